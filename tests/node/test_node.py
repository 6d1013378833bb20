"""Node as the tests have it."""

from __future__ import annotations

import json

import pytest

from tests.support.node import FOLDER, run_node

pytestmark = [pytest.mark.linux("the Node of the tests"), pytest.mark.peer("node")]


def test_every_package_loads() -> None:
    """Each package of tests/node can be imported by a script that lies there, in the version that is locked."""
    names = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))["dependencies"]
    loaded = json.loads(run_node(FOLDER / "loads.mjs", *names))
    assert loaded == names


def test_the_lock_names_no_address() -> None:
    """Packages are known by their hashes; where they come from is for each machine to say."""
    packages = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert all("integrity" in package and "resolved" not in package for path, package in packages.items() if path)
