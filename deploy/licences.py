"""The licences of everything that is shipped: `make -C deploy licences` writes dist/THIRD-PARTY-LICENCES.txt.

By default, these are the licences of the wheels in deploy/constraints.txt, for Linux and Windows. Each wheel is
downloaded and checked by its hash. With `--folder FOLDER`, run by the Python that built the self-contained folder, they
are those of the installed packages of the lock, of Python, and of every third-party library in the folder; the text is
written to the folder. Only a wheel itself states the licences of code linked into it (OpenSSL in `cryptography`,
libyaml in `PyYAML`, Rust crates in `bcrypt`).

Exit code 0: all licences are permitted; 1: one is not permitted, not stated, or has no text, and nothing is written.
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
        "MPL-2.0",  # certifi: separate, unchanged files
        "GPL-3.0-or-later WITH GCC-exception-3.1",  # the compiler's own libraries, for which the exception is made
        "GPL-2.0-or-later WITH Bootloader-exception",  # PyInstaller's loader, likewise
        "LicenseRef-Microsoft-redistributable",  # vcruntime140.dll, which python.org's CPython brings
    }
)
"""The permitted licences ([SPDX]). Add a licence only after reading it."""

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
"""SPDX expressions for `License` fields and classifiers, if there is no expression. Jinja2's has three clauses."""

LICENCE_FILE: Final = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", re.IGNORECASE)
NATIVE: Final = re.compile(r"\.(so(\.\d+)*|dll|dylib)$")
OF_WHEELS: Final = re.compile(r"\.(cpython-\d+-[^.]+|abi3)\.so$|^(pywintypes|pythoncom)\d+\.dll$")
"""Extension modules, of wheels or of Python."""


@dataclass(frozen=True, slots=True)
class Component:
    """A shipped component. `licence` is an SPDX expression, empty if none is stated; `text` has its licences."""

    name: str
    version: str
    licence: str
    text: str

    @property
    def fault(self) -> str:
        """The reason why it must not be shipped, or an empty text."""
        if not self.licence:
            return f"{self.name} states no licence"
        named = re.split(r" (?:AND|OR) ", self.licence.replace("(", "").replace(")", ""))
        if odd := [one for one in named if one not in ALLOWED]:
            return (
                f"{self.name} is under {', '.join(odd)}, which is not permitted; see ALLOWED in {Path(__file__).name}"
            )
        return "" if self.text.strip() else f"{self.name} has no licence text"


@dataclass(frozen=True, slots=True)
class Library:
    """A library of CPython or the compiler: file names, project, licence, and the Debian package with the text."""

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
"""Libraries that CPython can contain statically, so they are always listed."""
DOCUMENTS: Final = Path("/usr/share/doc")


class UnknownLibrary(Exception):
    """A library that LIBRARIES does not list; the text names it."""


def main(arguments: list[str] | None = None) -> int:
    """Write the licences. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.licences", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="A self-contained folder that this Python built.")
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
    print(f"{len(components)} components, all under permitted licences: {output}")
    return 0


def locked() -> dict[str, str]:
    """Return the versions in the lock by normalised name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return {normal(name): version for name, version in found}


def normal(name: str) -> str:
    """Return the normalised name of a distribution ([PEP 503])."""
    return re.sub(r"[-_.]+", "-", name).lower()


def in_lock() -> Iterator[Component]:
    """Return a component for each distribution of the lock, including those for Windows."""
    with tempfile.TemporaryDirectory(prefix="licences-") as name:
        folder = Path(name)
        for platform in ("manylinux_2_28_x86_64", "win_amd64"):
            download(folder, platform)
        found = importlib.metadata.distributions(path=[str(path) for path in sorted(folder.glob("*.whl"))])
        components = {normal(one.metadata["Name"]): component(one) for one in found}
    for one in locked():
        yield components.get(one, Component(one, "", "", ""))


def download(folder: Path, platform: str) -> None:
    """Download the wheels of the lock for a platform and this Python's version. Raises CalledProcessError."""
    tags = [platform, "manylinux2014_x86_64", "manylinux_2_17_x86_64"] if platform.startswith("many") else [platform]
    lock = LOCK
    if platform == "win_amd64":
        # pip evaluates markers for the machine that it runs on, so requirements for Windows lose their marker.
        entries = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8"))
        theirs = [re.sub(r" ; sys_platform == 'win32'", "", one) for one in entries if "== 'win32'" in one]
        lock = folder / "windows.txt"
        lock.write_text("\n".join(theirs) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    target = [word for tag in tags for word in ("--platform", tag)]
    hashed = ["--require-hashes", "--only-binary", ":all:", "--dest", str(folder), "--requirement", str(lock)]
    subprocess.run([*pip, *target, *hashed], check=True)


def in_folder(folder: Path) -> Iterator[Component]:
    """Return the components of a self-contained folder: distributions, PyInstaller's loader, Python, and libraries."""
    installed = {normal(one.metadata["Name"]): one for one in importlib.metadata.distributions()}
    wanted = [*locked(), "pyinstaller"]
    yield from (component(installed[name]) for name in wanted if name in installed)
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    found = {library(name) for name in names if NATIVE.search(name) and not OF_WHEELS.search(name)} | {*WITHIN}
    for one in sorted(found, key=lambda one: one.name):
        yield Component(one.name, version_of(one), one.licence, text_of(one))


def library(file: str) -> Library:
    """Return the entry of LIBRARIES for a file. Raises UnknownLibrary."""
    for one in LIBRARIES:
        if re.fullmatch(one.files, file):
            return one
    raise UnknownLibrary(f"{file}: not in LIBRARIES; add it in {Path(__file__).name}")


def version_of(one: Library) -> str:
    """Return the version of a library that the interpreter reports; empty for others."""
    import sqlite3  # noqa: PLC0415  # not every Python that lists the lock's licences has it
    import ssl  # noqa: PLC0415  # likewise

    versions = {"CPython": sys.version.split()[0], "SQLite": sqlite3.sqlite_version, "OpenSSL": ssl.OPENSSL_VERSION}
    return versions.get(one.name, "").removeprefix("OpenSSL ")


def text_of(one: Library, documents: Path = DOCUMENTS) -> str:
    """Return the licence text: CPython's, which on Windows covers its libraries, or Debian's; empty without one."""
    places = [Path(sysconfig.get_path("stdlib")) / "LICENSE.txt", Path(sys.base_prefix) / "LICENSE.txt"]
    if one.package and sys.platform != "win32":
        places = sorted(documents.glob(f"{one.package}/copyright"))
    texts = (place.read_text(encoding="utf-8", errors="replace") for place in places if place.is_file())
    return next(texts, "")


def component(one: importlib.metadata.Distribution) -> Component:
    """Return the component of a distribution, from its metadata."""
    metadata = one.metadata
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    licence = _first(metadata, "License-Expression") or stated(
        _first(metadata, "License"), [line.rpartition(" :: ")[2] for line in classifiers]
    )
    files = [path for path in one.files or () if ".dist-info" in str(path) and LICENCE_FILE.search(path.name)]
    texts = [one.read_text(str(path).partition(".dist-info/")[2]) or "" for path in sorted(files, key=str)]
    return Component(metadata["Name"], one.version, licence, "\n\n".join(text.strip() for text in texts if text))


def _first(metadata: importlib.metadata.PackageMetadata, name: str) -> str:
    """Return a field of a distribution's metadata; empty if it is missing."""
    return next(iter(metadata.get_all(name) or ()), "")


def stated(field: str, classifiers: Iterable[str]) -> str:
    """Return the expression of the field `License` or, if that is empty or a whole text, of all licence classifiers.

    Unknown names are returned unchanged and are therefore not permitted. Empty if no licence is stated.
    """
    names = [field.strip()] if field.strip() and "\n" not in field.strip() else classifiers
    return " AND ".join(dict.fromkeys(WORDS.get(word, word) for word in names))


def rendered(components: list[Component]) -> str:
    """Return the list of components, then their texts. The same components give the same text."""
    width = max(len(f"{one.name} {one.version}") for one in components)
    lines = [f"{f'{one.name} {one.version}':{width}}  {one.licence}".rstrip() for one in components]
    title = (
        "azure-scheduled-events-exporter is under the MIT License. It includes the following components, unchanged.\n"
    )
    texts = [
        f"{'=' * 80}\n{one.name} {one.version}".rstrip() + f"\n{one.licence}\n\n{one.text.strip()}\n"
        for one in components
    ]
    return "\n".join([title, *lines, "", *texts])


if __name__ == "__main__":
    sys.exit(main())
