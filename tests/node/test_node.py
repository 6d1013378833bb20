"""Node in the tests."""

from __future__ import annotations

import json

import pytest

from tests.support.node import FOLDER, run_node

pytestmark = [pytest.mark.linux("the Node of the tests"), pytest.mark.peer("node")]


def test_every_package_loads() -> None:
    """A script in tests/node can import each of its packages, in the locked version."""
    names = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))["dependencies"]
    loaded = json.loads(run_node(FOLDER / "loads.mjs", *names))
    assert loaded == names


def test_the_lock_names_no_address() -> None:
    """Packages are identified by their hashes; each machine configures their source."""
    packages = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert all("integrity" in package and "resolved" not in package for path, package in packages.items() if path)
