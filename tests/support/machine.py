"""What proofs on other machines begin with: programs and unpacked packages by apt, a Debian in a folder, and a sentence
about what is missing."""

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
"""What takes long to make is kept here."""


class Missing(Exception):
    """What is needed is not there, and could not be had; the text says why."""


def must(*command: str, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
    """What a command printed that has to succeed, with these variables beside this process' own. Raises Missing."""
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
    """Have these programs, by the packages of Debian that bring them (`.ci/need`). Raises Missing."""
    words = (f"{program}:{package}" for program, package in packages.items())
    must(str(ROOT / ".ci" / "need"), *words, environ={"PATH": path} if path else None)


def make_debian(folder: Path, *packages: str, **variables: str) -> None:
    """Make a minimal Debian with these packages, as root; the variables are those of `.ci/debian`. Raises Missing."""
    must(str(ROOT / ".ci" / "debian"), str(folder), *packages, environ=variables)


def unpacked(package: str, folder: Path) -> Path:
    """A package of Debian, unpacked in `folder` and not installed: no service of it is started. Raises Missing."""
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
    """What pyproject.toml asks for, for the agent and its tests, where these markers are others than here ([PEP 508]).

    Without what begins with a word of `elsewhere`.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = (*project["dependencies"], *extras["identity"], *extras["test"])
    return without_markers(lines, markers, (PROJECT, *elsewhere))


def without_markers(lines: Iterable[str], markers: Mapping[str, str], without: tuple[str, ...] = ()) -> list[str]:
    """The requirements that hold there and don't begin with a word of `without`, as they are beside their markers."""
    found = [Requirement(line) for line in lines]
    return [
        str(one).partition(";")[0].strip()
        for one in found
        if not one.name.startswith(without) and (one.marker is None or one.marker.evaluate(dict(markers)))
    ]


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """A line for a step of the set-up, with how long it took."""
    began = time.monotonic()
    yield
    print(f"ok     {name}: {time.monotonic() - began:.0f} s", flush=True)
