"""Set-up of tests on other machines: programs and unpacked packages with apt, a Debian in a folder, and a message about
what is missing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = "azure-scheduled-events-exporter"
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / PROJECT
"""The cache for parts that take long to make."""


class Missing(Exception):
    """A requirement is missing and could not be installed; the text has the reason."""


def must(*command: str, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """Return the output of a command that must succeed, with these variables in addition to this process's own. Raises
    Missing."""
    recorded = {**os.environ, **(environ or {})}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=recorded, cwd=folder
        )
    except FileNotFoundError as error:
        raise Missing(f"{error.filename} is missing here") from error
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise Missing(f"{' '.join(command)}, exit code {done.returncode}:\n{said}")
    return done.stdout


def need(packages: Mapping[str, str], path: str | None = None) -> None:
    """Install these programs from the Debian packages that contain them (`.ci/need`). Raises Missing."""
    words = (f"{program}:{package}" for program, package in packages.items())
    must(str(ROOT / ".ci" / "need"), *words, environ={"PATH": path} if path else None)


def make_debian(folder: Path, *packages: str, **variables: str) -> None:
    """Make a minimal Debian with these packages, as root; the variables are those of `.ci/debian`. Raises Missing."""
    must(str(ROOT / ".ci" / "debian"), str(folder), *packages, environ=variables)


def unpacked(package: str, folder: Path) -> Path:
    """Unpack a package of Debian in `folder` without installing it: no service of it is started. Raises Missing."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        download = ("apt-get", "-qq", "download", package)
        try:
            must(*download, folder=Path(name))
        except Missing:
            if os.geteuid():
                raise
            must("apt-get", "-qq", "update")
            must(*download, folder=Path(name))
        (archive,) = Path(name).glob("*.deb")
        must("dpkg-deb", "-x", str(archive), str(Path(name) / "content"))
        (Path(name) / "content").rename(folder)
    return folder


def asked(markers: Mapping[str, str], elsewhere: tuple[str, ...]) -> list[str]:
    """Return the requirements in pyproject.toml, of the agent and its tests, for other markers than here ([PEP 508]).

    Requirements that begin with a word of `elsewhere` are omitted.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = (*project["dependencies"], *extras["identity"], *extras["test"])
    return without_markers(lines, markers, (PROJECT, *elsewhere))


def without_markers(lines: Iterable[str], markers: Mapping[str, str], without: tuple[str, ...] = ()) -> list[str]:
    """Return the requirements that apply there and don't begin with a word of `without`, without their markers."""
    found = [Requirement(line) for line in lines]
    return [
        str(one).partition(";")[0].strip()
        for one in found
        if not one.name.startswith(without) and (one.marker is None or one.marker.evaluate(dict(markers)))
    ]


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Print a line for a step of the set-up, with its duration."""
    began = time.monotonic()
    yield
    print(f"ok     {name}: {time.monotonic() - began:.0f} s", flush=True)
