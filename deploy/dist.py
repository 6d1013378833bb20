"""Wheel and sdist of a checkout, the same to the byte wherever they are built: `python -m deploy.dist [--outdir dist]`.

What git tracks is copied with one mode and one time, so that neither the builder's umask nor what lies about in their
checkout gets in; setuptools makes the sdist of it, which is packed anew without the builder's name and clock, and the
wheel is built from that sdist alone. The time is SOURCE_DATE_EPOCH ([reproducible-builds.org]) or that of the last
commit. `make -C deploy dist` calls it, `make -C deploy reproducible` proves it. Links of the README lead to the files
of the version's tag, since PyPI shows it without them.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.notes import version

ROOT: Final = Path(__file__).parents[1]
HOME: Final = "https://github.com/azure-scheduled-events-exporter/azure-scheduled-events-exporter"
UMASK: Final = 0o022
FIRST_OF_ZIP: Final = 315_532_800
"""1 January 1980, in seconds: an archive of zip knows no earlier time."""


class NotBuilt(Exception):
    """Why there is no wheel, as a sentence."""


def main(arguments: list[str] | None = None) -> int:
    """Build both; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.dist", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--outdir", type=Path, default=ROOT / "dist", help="The folder for both. Default: dist.")
    args = parser.parse_args(arguments)
    try:
        for path in build(ROOT, args.outdir, epoch(ROOT)):
            print(path)
    except NotBuilt as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def epoch(checkout: Path, environ: Mapping[str, str] = os.environ) -> int:
    """The time of everything that is packed, in seconds since 1970. Raises NotBuilt."""
    told = environ.get("SOURCE_DATE_EPOCH") or git(checkout, "log", "-1", "--format=%ct").strip()
    if not told.isdigit() or int(told) < FIRST_OF_ZIP:
        raise NotBuilt(f"SOURCE_DATE_EPOCH is {told!r}, and has to be a number of seconds from 1980 on")
    return int(told)


def git(checkout: Path, *command: str) -> str:
    """What git says of the checkout. Raises NotBuilt."""
    # `safe.directory`: whoever may read the checkout may build it, in a container too.
    told = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout), *command]
    done = subprocess.run(told, capture_output=True, text=True, check=False, encoding="utf-8")
    if done.returncode:
        raise NotBuilt(f"this needs a checkout: git {command[0]}: {done.stderr.strip()}")
    return done.stdout


def build(checkout: Path, outdir: Path, seconds: int) -> tuple[Path, Path]:
    """The paths of sdist and wheel in `outdir`, which are made anew. Raises NotBuilt."""
    before = os.umask(UMASK)
    try:
        with tempfile.TemporaryDirectory(prefix="dist-") as name:
            folder = Path(name)
            stage(checkout, folder / "source", seconds)
            readme = folder / "source" / "README.md"
            text = linked(readme.read_text(encoding="utf-8"), f"{HOME}/raw/v{version(checkout)}")
            readme.write_text(text, encoding="utf-8", newline="\n")
            os.utime(readme, (seconds, seconds))
            _pyproject(folder / "source", "--sdist", folder / "made", seconds)
            (made,) = (folder / "made").glob("*.tar.gz")
            repack(made, folder / made.name, seconds)
            with tarfile.open(folder / made.name) as archive:
                archive.extractall(folder, filter="data")
            _pyproject(folder / made.name.removesuffix(".tar.gz"), "--wheel", folder / "made", seconds)
            (wheel,) = (folder / "made").glob("*.whl")
            outdir.mkdir(parents=True, exist_ok=True)
            for old in (*outdir.glob("*.whl"), *outdir.glob("*.tar.gz")):
                if old.name.startswith(wheel.name.split("-")[0] + "-"):
                    old.unlink()
            return Path(shutil.copyfile(folder / made.name, outdir / made.name)), Path(
                shutil.copyfile(wheel, outdir / wheel.name)
            )
    finally:
        os.umask(before)


def stage(checkout: Path, folder: Path, seconds: int) -> None:
    """Copy what git tracks, as it is in the checkout, with one mode and one time."""
    for name in git(checkout, "ls-files", "-z").split("\0"):
        source, target = checkout / name, folder / name
        if not name or not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
        os.utime(target, (seconds, seconds))


def linked(text: str, place: str) -> str:
    """A page whose links within the checkout lead to a place of GitHub's: pictures as files, the rest as shown."""

    def absolute(match: re.Match[str]) -> str:
        shown = place if match[1] else place.replace("/raw/", "/blob/")
        return f"{match[1]}[{match[2]}]({shown}/{match[3]})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", absolute, text)


def repack(made: Path, path: Path, seconds: int) -> None:
    """Write an archive anew: its members in order, nobody's, of one time; and so its compression."""
    packed = io.BytesIO()
    with tarfile.open(made) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            fresh = tarfile.TarInfo(member.name)
            fresh.size, fresh.type, fresh.mtime = member.size, member.type, seconds
            fresh.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(fresh, old.extractfile(member) if member.isfile() else None)
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=seconds) as compressed:
        compressed.write(packed.getvalue())


def _pyproject(source: Path, kind: str, outdir: Path, seconds: int) -> None:
    """Have the locked setuptools of this environment build it. Raises NotBuilt."""
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(outdir), str(source)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "TZ"))}
    environ |= {"SOURCE_DATE_EPOCH": str(seconds), "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, encoding="utf-8")
    if done.returncode:
        raise NotBuilt(f"{kind}, exit code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


if __name__ == "__main__":
    sys.exit(main())
