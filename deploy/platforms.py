"""Check the locks for every platform: `python -m deploy.platforms [--python VERSION…]` (`make -C deploy platforms`).

The platforms are Linux on amd64 and arm64 with glibc 2.28, and Windows on amd64, with every Python that pyproject.toml
names. For each, uv resolves as on that platform: each requirement of the locks must have a wheel whose hash is in the
lock, and the project's requirements must be exactly those of the lock. The wheels are downloaded and deleted, because a
dry run compares no hashes.

Exit code 0: all locks are valid; 1: at least one is not.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CONSTRAINTS: Final = ROOT / "deploy" / "constraints.txt"
PLATFORMS: Final = {
    "Linux amd64": "x86_64-manylinux_2_28",
    "Linux arm64": "aarch64-manylinux_2_28",
    "Windows amd64": "x86_64-pc-windows-msvc",
}
"""The platforms by uv's names. glibc 2.28 is that of RHEL 8, the oldest supported system."""
LOCKS: Final = ("constraints.txt", "build.txt", "standalone.txt")
"""The locks of an installation and of a self-contained build. Release tools run only on the release machine."""
WHEELS: Final = ("--only-binary", ":all:")
CLASSIFIER: Final = "Programming Language :: Python :: 3."


class Fault(Exception):
    """A lock is incomplete on a platform; the text is uv's or names the requirements."""


def main(arguments: list[str] | None = None) -> int:
    """Check every combination. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.platforms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--python", nargs="+", default=pythons(), metavar="VERSION", help="Default: those of the classifiers."
    )
    args = parser.parse_args(arguments)
    faults = 0
    for system, platform in PLATFORMS.items():
        for version in args.python:
            try:
                count = fitting(platform, version, [ROOT / "deploy" / name for name in LOCKS])
                complete(platform, version)
            except Fault as fault:
                faults += 1
                print(f"FAILED {system}, Python {version}: {fault}", flush=True)
            else:
                print(f"ok     {system}, Python {version}: {count} wheels, each with its hash", flush=True)
    return 1 if faults else 0


def pythons() -> list[str]:
    """Return the Python versions of the classifiers."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    return [line.rpartition(" ")[2] for line in classifiers if line.startswith(CLASSIFIER)]


def fitting(platform: str, version: str, locks: Sequence[Path]) -> int:
    """Return the number of wheels of the locks on a platform. Raises Fault for a missing wheel or another hash."""
    named = [word for lock in locks for word in ("--requirement", str(lock))]
    with tempfile.TemporaryDirectory(prefix="platforms-") as folder:
        output = _uv(platform, version, "install", "--no-deps", "--target", folder, "--require-hashes", *named)
    (count,) = re.findall(r"^Installed (\d+) package", output, re.MULTILINE)
    return int(count)


def complete(platform: str, version: str) -> None:
    """Raise Fault unless the project's requirements on a platform are those of the lock."""
    project = ("pyproject.toml", "--extra", "identity", "--constraint", str(CONSTRAINTS))
    asked = _names(_uv(platform, version, "compile", *project))
    has = _names(_uv(platform, version, "compile", str(CONSTRAINTS)))
    if asked != has:
        raise Fault(f"required but not locked: {sorted(asked - has)}; locked but not required: {sorted(has - asked)}")


def _names(output: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+==\S+)", output, re.MULTILINE))


def _uv(platform: str, version: str, *command: str) -> str:
    """Run `uv pip` and return both its output streams. Raises Fault with its error message."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    there = ("--python-platform", platform, "--python-version", version, *WHEELS, "--no-config", "--color", "never")
    quiet = ("--no-header", "--no-annotate") if command[0] == "compile" else ()
    done = subprocess.run(
        [uv, "pip", *command, *there, *quiet], cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    if done.returncode:
        raise Fault(done.stderr.strip())
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
