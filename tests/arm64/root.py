"""A Debian for arm64 in a folder, with the dependencies of the agent and its tests, and a way to run commands in it.

debootstrap downloads Debian's packages and checks the archive's signatures. This machine's pip downloads the wheels
(the agent's own checked by the hashes of deploy/constraints.txt), and the pip of that Debian installs them. It is made
once, kept in `~/.cache`, and made again when its inputs change.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tests.arm64.inside import INTERPRETER
from tests.support import machine
from tests.support.machine import ROOT, Missing

CONSTRAINTS: Final = ROOT / "deploy" / "constraints.txt"
BUILD: Final = ROOT / "deploy" / "build.txt"
CACHE: Final = machine.CACHE / "arm64"
INSIDE: Final = Path(__file__).with_name("inside.py")
VENV: Final = "/opt/venv"
"""The folder of the virtual environment in the root."""

PYTHON: Final = "3.11"
"""The version of that Debian's Python."""
PACKAGES: Final = ("python3", "python3-venv", "ca-certificates", "git", "iproute2", "make", "openssl", "procps")
MARKERS: Final = {"platform_machine": "aarch64", "python_version": PYTHON, "python_full_version": f"{PYTHON}.2"}
"""Differences for the markers of requirements ([PEP 508]); everything else is as here."""
PLATFORMS: Final = tuple(f"manylinux{floor}_aarch64" for floor in ("2014", "_2_17", "_2_24", "_2_28", "_2_34"))
"""The tags of wheels for glibc 2.36."""
ELSEWHERE: Final = ("mypy", "ruff", "codespell", "import-linter", "types-", "grafana-foundation-sdk")
"""Requirements of `test` with the same result on every architecture: they run on the developer's machine."""


def make() -> Path:
    """Return the root; existing parts are reused. To be called while `alone`. Raises Missing."""
    machine.need({Path(INTERPRETER).name: "qemu-user-static"})
    name = _made_of()
    root = CACHE / name
    if root.is_dir():
        return root
    for old in CACHE.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=CACHE) as part:
        made = Path(part) / "root"
        _debian(made)
        _environment(made, Path(part) / "wheels")
        made.rename(root)
    return root


def _made_of() -> str:
    """Return a name for the root's inputs: if one of them changes, it is made again."""
    files = (Path(__file__), CONSTRAINTS, BUILD)
    parts = [path.read_bytes() for path in files] + [line.encode() for line in requirements()]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


@contextmanager
def alone() -> Iterator[None]:
    """Lock the cache: no other process makes, uses, or removes a root of it in the block. Raises Missing if it is
    locked."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Missing(f"another `make -C tests arm64` is under way: it holds {file.name}") from None
        yield


def _debian(root: Path) -> None:
    """Unpack the packages here, and let their own programs configure them inside."""
    machine.make_debian(root, *PACKAGES, ARCHITECTURE="arm64")
    # `container`: a user namespace makes no device nodes, and with this word debootstrap uses the existing ones.
    _inside(root, "/debootstrap/debootstrap", "--second-stage", environ={"container": "lxc"})
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n", encoding="ascii")


def _environment(root: Path, wheels: Path) -> None:
    """Make the virtual environment: wheels downloaded by this machine's pip, installed by that Debian's own."""
    locked = (str(CONSTRAINTS), str(BUILD))
    hashed = [word for path in locked for word in ("--requirement", path)]
    _download(wheels, "--no-deps", "--require-hashes", *hashed)
    _download(wheels, "--find-links", str(wheels), "--constraint", str(_versions(wheels)), *requirements())
    inside = root / "var" / "wheels"
    shutil.copytree(wheels, inside)
    for path in locked:
        shutil.copy(path, inside)
    pip = f"{VENV}/bin/pip install --quiet --disable-pip-version-check --no-index --find-links /var/wheels --no-compile"
    asked = " ".join(f"'{line}'" for line in requirements())
    script = f"""
        set -eu
        python3 -m venv {VENV}
        {pip} --require-hashes --only-binary :all: -r /var/wheels/{CONSTRAINTS.name} -r /var/wheels/{BUILD.name}
        {pip} {asked}
        {VENV}/bin/pip check
        touch {VENV}/.test {VENV}/.run
    """
    _inside(root, "/bin/sh", "-c", script)
    shutil.rmtree(inside)


def _inside(root: Path, *command: str, environ: Mapping[str, str] | None = None) -> None:
    """Run a command in the root that must succeed. Raises Missing."""
    with (
        root.with_name("said").open("w+b") as said,
        entered(root, command, environ=environ, output=said) as process,
    ):
        if code := process.wait():
            said.seek(0)
            last = said.read().decode(errors="replace").splitlines()[-20:]
            raise Missing("\n".join([f"{' '.join(command[:2])}, exit code {code}:", *last]))


def _download(wheels: Path, *asked: str) -> None:
    target = [word for tag in PLATFORMS for word in ("--platform", tag)]
    target += ["--python-version", PYTHON, "--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--abi", "none"]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
    machine.must(*pip, "--dest", str(wheels), *target, *asked)


def _versions(wheels: Path) -> Path:
    """Return what was downloaded by hash, as constraints for downloads without one."""
    names = [path.name.split("-")[:2] for path in sorted(wheels.glob("*.whl"))]
    path = wheels.with_name("versions.txt")
    path.write_text("".join(f"{name}=={version}\n" for name, version in names), encoding="utf-8")
    return path


def requirements() -> list[str]:
    """Return the requirements of pyproject.toml on arm64."""
    return machine.asked(MARKERS, ELSEWHERE)


@contextmanager
def entered(
    root: Path,
    command: Sequence[str],
    *,
    source: Path | None = None,
    environ: Mapping[str, str] | None = None,
    output: IO[bytes] | int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in the root, in an isolated environment (`tests.arm64.inside`), killed at the end of the block.

    Its standard output and error go to `output`; its environment is only `environ` and the variables of every shell.
    """
    reported_ready, ready = os.pipe()
    go, signal_go = os.pipe()
    clean = {"PATH": f"{VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **(environ or {})}
    places = (str(root), *([str(source)] if source else []))
    process = subprocess.Popen(
        [sys.executable, "-S", str(INSIDE), str(ready), str(go), *places, "--", *command],
        env=clean,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        pass_fds=(ready, go),
    )
    try:
        os.close(ready)
        os.close(go)
        if os.read(reported_ready, 1):  # nothing: it has ended, and has printed why
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{process.pid}/{kind}").write_text("0 0 4294967295\n", encoding="ascii")
            os.write(signal_go, b"1")
        yield process
    finally:
        os.close(reported_ready)
        os.close(signal_go)
        process.kill()
        process.wait()
