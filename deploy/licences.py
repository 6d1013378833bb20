"""The licences of all that ships: `make -C deploy licences` writes dist/THIRD-PARTY-LICENCES.txt.

By default of the wheels that deploy/constraints.txt names, for Linux and for Windows: each is downloaded, held by its
hash, and read. With `--folder FOLDER`, run by the Python that the self-contained folder was made with: of what that
Python has of the lock, of the Python itself, and of every library in the folder that some other project makes; the
text goes into the folder. What a wheel has linked into itself (OpenSSL in `cryptography`, libyaml in `PyYAML`, crates
of Rust in `bcrypt`) is told by that wheel alone.

Exit code 0: all licences are allowed ones; 1: one is not, is not told, or has no text; then nothing is written.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "deploy" / "constraints.txt"
OUTPUT: Final = ROOT / "dist" / "THIRD-PARTY-LICENCES.txt"

ALLOWED: Final = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0", "Python-2.0"),
        *("Zlib", "bzip2-1.0.6", "blessing", "LicenseRef-public-domain"),
        "MPL-2.0",  # certifi: files of their own, unchanged
        "GPL-3.0-or-later WITH GCC-exception-3.1",  # the compiler's own libraries: made for it
        "GPL-2.0-or-later WITH Bootloader-exception",  # PyInstaller's loader, likewise
        "LicenseRef-Microsoft-redistributable",  # vcruntime140.dll, which python.org's CPython brings
    }
)
"""What may ship ([SPDX]). Everything else is a decision: a licence that is named here is one that was read."""

WORDS: Final = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "PSF": "PSF-2.0",  # pywin32; adodbapi in it is under the LGPL, and standalone.spec leaves it out
    "Python Software Foundation License": "PSF-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "GPLv2-or-later with a special exception which allows to use PyInstaller to build and distribute non-free programs "
    "(including commercial ones)": "GPL-2.0-or-later WITH Bootloader-exception",
}
"""What distributions without an expression say in `License` and in their classifiers. Jinja2's has three clauses."""

LICENCE_FILE: Final = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", re.IGNORECASE)
NATIVE: Final = re.compile(r"\.(so(\.\d+)*|dll|dylib)$")
OF_WHEELS: Final = re.compile(r"\.(cpython-\d+-[^.]+|abi3)\.so$|^(pywintypes|pythoncom)\d+\.dll$")
"""Extension modules: a wheel's, or Python's own."""


@dataclass(frozen=True, slots=True)
class Component:
    """One thing that ships: `licence` is an SPDX expression, empty when none is told; `text` all that comes with it."""

    name: str
    version: str
    licence: str
    text: str

    @property
    def fault(self) -> str:
        """Why it may not ship, as a sentence; empty when it may."""
        if not self.licence:
            return f"{self.name} does not say its licence"
        named = re.split(r" (?:AND|OR) ", self.licence.replace("(", "").replace(")", ""))
        if odd := [one for one in named if one not in ALLOWED]:
            return f"{self.name} is under {', '.join(odd)}, which is not allowed: {Path(__file__).name} says what is"
        return "" if self.text.strip() else f"{self.name} has no text of its licence"


@dataclass(frozen=True, slots=True)
class Library:
    """A library that CPython or the compiler brings: file names, project, and Debian's package with its text."""

    files: str
    name: str
    licence: str
    package: str


LIBRARIES: Final = (
    Library(r"(lib)?python3\S*", "CPython", "PSF-2.0", ""),
    Library(r"lib(crypto|ssl)\b\S*", "OpenSSL", "Apache-2.0", "libssl3*"),
    Library(r"(lib)?sqlite3\S*", "SQLite", "blessing", "libsqlite3-0"),
    Library(r"lib(z|zlib1?)\.\S*|zlib1\.dll", "zlib", "Zlib", "zlib1g"),
    Library(r"libbz2\S*", "bzip2", "bzip2-1.0.6", "libbz2-1.0"),
    Library(r"liblzma\S*", "XZ Utils' liblzma", "LicenseRef-public-domain", "liblzma5"),
    Library(r"libffi\S*", "libffi", "MIT", "libffi[678]"),
    Library(r"libexpat\S*", "Expat", "MIT", "libexpat1"),
    Library(r"libuuid\S*", "libuuid", "BSD-3-Clause", "libuuid1"),
    Library(r"libgcc_s\S*", "GCC's libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1", "libgcc-s1"),
    Library(r"libstdc\+\+\S*", "GCC's libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1", "libstdc++6"),
    Library(r"vcruntime140\S*", "Visual C++ runtime", "LicenseRef-Microsoft-redistributable", ""),
)
WITHIN: Final = LIBRARIES[:9]
"""What a CPython has in it when it does not bring it as files: they are listed in any case."""
DOCUMENTS: Final = Path("/usr/share/doc")


class UnknownLibrary(Exception):
    """A library that LIBRARIES does not name; the text says which."""


def main(arguments: list[str] | None = None) -> int:
    """Write the text; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.licences", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="A self-contained folder, made with this Python.")
    args = parser.parse_args(arguments)
    output: Path = args.folder / OUTPUT.name if args.folder else OUTPUT
    try:
        components = [*(in_folder(args.folder) if args.folder else in_lock())]
    except UnknownLibrary as error:
        print(error, file=sys.stderr)
        return 1
    if faults := [one.fault for one in components if one.fault]:
        print(*faults, sep="\n", file=sys.stderr)
        return 1
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(rendered(components), encoding="utf-8", newline="\n")
    print(f"{len(components)} components, all under allowed licences: {output}")
    return 0


def locked() -> dict[str, str]:
    """Names in the lock, normalised, with their versions."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return {normal(name): version for name, version in found}


def normal(name: str) -> str:
    """The name of a distribution as all spellings of it compare ([PEP 503])."""
    return re.sub(r"[-_.]+", "-", name).lower()


def in_lock() -> Iterator[Component]:
    """What each distribution of the lock says, Windows' own too."""
    with tempfile.TemporaryDirectory(prefix="licences-") as name:
        folder = Path(name)
        for platform in ("manylinux_2_28_x86_64", "win_amd64"):
            download(folder, platform)
        found = importlib.metadata.distributions(path=[str(path) for path in sorted(folder.glob("*.whl"))])
        told = {normal(one.metadata["Name"]): component(one) for one in found}
    for one in locked():
        yield told.get(one, Component(one, "", "", ""))


def download(folder: Path, platform: str) -> None:
    """The wheels of the lock for a platform, by this Python's version; raises CalledProcessError."""
    tags = [platform, "manylinux2014_x86_64", "manylinux_2_17_x86_64"] if platform.startswith("many") else [platform]
    lock = LOCK
    if platform == "win_amd64":
        # pip reads markers for the machine that it runs on: what Windows alone has is asked for without its marker.
        entries = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8"))
        theirs = [re.sub(r" ; sys_platform == 'win32'", "", one) for one in entries if "== 'win32'" in one]
        lock = folder / "windows.txt"
        lock.write_text("\n".join(theirs) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    target = [word for tag in tags for word in ("--platform", tag)]
    hashed = ["--require-hashes", "--only-binary", ":all:", "--dest", str(folder), "--requirement", str(lock)]
    subprocess.run([*pip, *target, *hashed], check=True)


def in_folder(folder: Path) -> Iterator[Component]:
    """What is in a self-contained folder: distributions, PyInstaller's loader, Python, and libraries."""
    installed = {normal(one.metadata["Name"]): one for one in importlib.metadata.distributions()}
    wanted = [*locked(), "pyinstaller"]
    yield from (component(installed[name]) for name in wanted if name in installed)
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    found = {library(name) for name in names if NATIVE.search(name) and not OF_WHEELS.search(name)} | {*WITHIN}
    for one in sorted(found, key=lambda one: one.name):
        yield Component(one.name, version_of(one), one.licence, text_of(one))


def library(file: str) -> Library:
    """Whose a library is. Raises UnknownLibrary."""
    for one in LIBRARIES:
        if re.fullmatch(one.files, file):
            return one
    raise UnknownLibrary(f"{file}: LIBRARIES in {Path(__file__).name} does not know whose it is")


def version_of(one: Library) -> str:
    """The version of what the interpreter can tell about itself; empty for others."""
    import sqlite3  # noqa: PLC0415  # not every Python that lists the lock's licences has it
    import ssl  # noqa: PLC0415  # likewise

    told = {"CPython": sys.version.split()[0], "SQLite": sqlite3.sqlite_version, "OpenSSL": ssl.OPENSSL_VERSION}
    return told.get(one.name, "").removeprefix("OpenSSL ")


def text_of(one: Library, documents: Path = DOCUMENTS) -> str:
    """The licence's text: CPython's own, which on Windows has that of all it brings, or Debian's; empty without it."""
    places = [Path(sysconfig.get_path("stdlib")) / "LICENSE.txt", Path(sys.base_prefix) / "LICENSE.txt"]
    if one.package and sys.platform != "win32":
        places = sorted(documents.glob(f"{one.package}/copyright"))
    texts = (place.read_text(encoding="utf-8", errors="replace") for place in places if place.is_file())
    return next(texts, "")


def component(one: importlib.metadata.Distribution) -> Component:
    """What a distribution says about itself."""
    told = one.metadata
    classifiers = [line for line in told.get_all("Classifier") or [] if line.startswith("License ::")]
    licence = _first(told, "License-Expression") or stated(
        _first(told, "License"), [line.rpartition(" :: ")[2] for line in classifiers]
    )
    files = [path for path in one.files or () if ".dist-info" in str(path) and LICENCE_FILE.search(path.name)]
    texts = [one.read_text(str(path).partition(".dist-info/")[2]) or "" for path in sorted(files, key=str)]
    return Component(told["Name"], one.version, licence, "\n\n".join(text.strip() for text in texts if text))


def _first(told: importlib.metadata.PackageMetadata, name: str) -> str:
    """A field of a distribution's metadata; empty without it."""
    return next(iter(told.get_all(name) or ()), "")


def stated(field: str, classifiers: Iterable[str]) -> str:
    """The expression of the field `License`, or where it has none or the whole text, of all classifiers of licences.

    Words that nobody read stay as they are, and so are not allowed; empty where nothing is told.
    """
    told = [field.strip()] if field.strip() and "\n" not in field.strip() else classifiers
    return " AND ".join(dict.fromkeys(WORDS.get(word, word) for word in told))


def rendered(components: list[Component]) -> str:
    """The list, then the texts. The same components give the same text."""
    width = max(len(f"{one.name} {one.version}") for one in components)
    lines = [f"{f'{one.name} {one.version}':{width}}  {one.licence}".rstrip() for one in components]
    title = "azure-scheduled-events-exporter is under the MIT License. It ships with what follows, unchanged.\n"
    texts = [
        f"{'=' * 80}\n{one.name} {one.version}".rstrip() + f"\n{one.licence}\n\n{one.text.strip()}\n"
        for one in components
    ]
    return "\n".join([title, *lines, "", *texts])


if __name__ == "__main__":
    sys.exit(main())
