"""Whether the locks hold everywhere: `python -m deploy.platforms [--python VERSION…]` (`make -C deploy platforms`).

For Linux on amd64 and arm64 with glibc 2.28, for Windows on amd64, and for every Python that pyproject.toml names, uv
acts as if it were there: each requirement of the locks has a wheel that fits and whose hash is in the lock, and what
the project asks for there is what the lock has for it, no more and no less. The wheels are downloaded and thrown away,
since a dry run compares no hashes.
Exit code 0: all hold; 1: one does not.
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
"""uv's names of them. glibc 2.28: that of RHEL 8, the oldest that the packages are for."""
LOCKS: Final = ("constraints.txt", "build.txt", "standalone.txt")
"""What an installation and a self-contained build take; the tools of a release run on the machine that releases."""
WHEELS: Final = ("--only-binary", ":all:")
CLASSIFIER: Final = "Programming Language :: Python :: 3."


class Fault(Exception):
    """What a lock lacks somewhere; the text is uv's."""


def main(arguments: list[str] | None = None) -> int:
    """Look at every combination; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.platforms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", nargs="+", default=pythons(), metavar="VERSION", help="Default: the classifiers'.")
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
    """The versions that the classifiers name."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    return [line.rpartition(" ")[2] for line in told if line.startswith(CLASSIFIER)]


def fitting(platform: str, version: str, locks: Sequence[Path]) -> int:
    """How many wheels the locks name there. Raises Fault when one that is needed is not there, or not by its hash."""
    named = [word for lock in locks for word in ("--requirement", str(lock))]
    with tempfile.TemporaryDirectory(prefix="platforms-") as folder:
        said = _uv(platform, version, "install", "--no-deps", "--target", folder, "--require-hashes", *named)
    (count,) = re.findall(r"^Installed (\d+) package", said, re.MULTILINE)
    return int(count)


def complete(platform: str, version: str) -> None:
    """Raises Fault when what the project asks for there is not what the lock has for it."""
    project = ("pyproject.toml", "--extra", "identity", "--constraint", str(CONSTRAINTS))
    asked = _names(_uv(platform, version, "compile", *project))
    has = _names(_uv(platform, version, "compile", str(CONSTRAINTS)))
    if asked != has:
        raise Fault(f"asked for and not locked: {sorted(asked - has)}; locked for nothing: {sorted(has - asked)}")


def _names(said: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+==\S+)", said, re.MULTILINE))


def _uv(platform: str, version: str, *command: str) -> str:
    """What uv's pip says, of both streams. Raises Fault with its own words."""
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
