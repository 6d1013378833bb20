"""What a self-contained folder needs from the host: which libraries, and in which version of their symbols.

Read from every ELF file in it: NEEDED of the dynamic section, and .gnu.version_r, which names the versions of the
symbols that are used [LSB, Symbol Versioning]. A package states this, and nothing that somebody believed to be so.

`python -m deploy.packages.needs FOLDER` prints it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

GLIBC: Final = re.compile(r"(lib(c|m|pthread|dl|rt|util|resolv|anl)|ld-linux[\w-]*)\.so\.\d+")
"""The libraries that glibc is made of; libpthread, libdl, librt and libutil are parts of libc.so.6 since 2.34."""
RELATIVE_RELOCATIONS: Final = "GLIBC_ABI_DT_RELR"
"""What a file asks for that the loader of 2.36 and later alone can relocate."""
ARCHITECTURES: Final[Mapping[str, str]] = {"EM_X86_64": "amd64", "EM_AARCH64": "arm64"}
"""By the machine in an ELF header, as Debian and Go name it."""
DEBIAN: Final[Mapping[str, tuple[str, str | None]]] = {
    "libz.so.1": ("zlib1g", "1:"),
    "libgcc_s.so.1": ("libgcc-s1", None),
    "libstdc++.so.6": ("libstdc++6", None),
}
"""The package of Debian that brings a library, and the epoch of its versions; None: those of its symbols are others.

GCC's libraries have had the symbols of manylinux_2_28 since GCC 8, the oldest that came with that C library.
"""

Version = tuple[int, ...]


class NeedsError(Exception):
    """The folder can't be stated as a package's dependencies; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the host has to bring.

    `architecture` is that of all files, as Debian names it. `symbols` has a version of symbols by each library, such as
    `GLIBC_2.34` for `libc.so.6`, the highest that is used; "" where none is.
    """

    architecture: str
    symbols: Mapping[str, str]

    @property
    def glibc(self) -> str:
        """The oldest version of glibc that has all symbols, such as `2.34`."""
        versions = [_version(name) for library, name in self.symbols.items() if GLIBC.fullmatch(library) and name]
        if not versions:
            raise NeedsError("no file in the folder uses a symbol of glibc")
        return ".".join(map(str, max(versions)))

    def debian(self) -> list[str]:
        """As `Depends` of a deb. Raises `NeedsError` for a library of which no package is known here."""
        depends = [f"libc6 (>= {self.glibc})"]
        for library, symbol in self.symbols.items():
            if GLIBC.fullmatch(library):
                continue
            if library not in DEBIAN:
                raise NeedsError(f"{library} is needed from the host: name its Debian package in {__name__}")
            package, epoch = DEBIAN[library]
            counted = symbol and epoch is not None
            depends.append(f"{package} (>= {epoch}{_dotted(symbol)})" if counted else package)
        return depends

    def rpm(self) -> list[str]:
        """As `Requires` of an rpm, spelled as rpm's own generator spells what libraries provide [elfdeps]."""
        requires = []
        for library, symbol in self.symbols.items():
            if library.startswith("ld-linux"):
                continue  # a part of glibc, which libc.so.6 stands for
            if symbol == RELATIVE_RELOCATIONS:
                raise NeedsError(f"{library}: {symbol} is newer than any release of RHEL that is served")
            requires.append(f"{library}({symbol})(64bit)" if symbol else f"{library}()(64bit)")
        return requires


def measure(folder: Path) -> Needs:
    """Read all ELF files of a self-contained folder. Raises `NeedsError` where they are not of one known machine.

    A library that the folder brings is not needed from the host, but for the program itself: it starts before anything
    tells the loader where those libraries are.
    """
    files = {path: _read(path) for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()}
    found = {path: file for path, file in files.items() if file is not None}
    machines = {file.machine for file in found.values()}
    if len(machines) != 1 or not machines <= set(ARCHITECTURES):
        raise NeedsError(f"{folder}: expected files of one machine of {', '.join(ARCHITECTURES)}, found {machines}")
    brought = {path.name for path in found}
    used: dict[str, set[str]] = defaultdict(set)
    for path, file in found.items():
        for library in file.needed:
            if path.parent == folder or library not in brought:
                used[library] |= file.symbols.get(library, set())
    highest = {library: max(symbols, key=_version, default="") for library, symbols in sorted(used.items())}
    return Needs(ARCHITECTURES[machines.pop()], highest)


@dataclass(frozen=True, slots=True)
class _File:
    machine: str
    needed: tuple[str, ...]
    symbols: Mapping[str, set[str]]


def _read(path: Path) -> _File | None:
    """The needs of one file; None for one that is no ELF file."""
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return None
        try:
            elf = ELFFile(stream)
            return _File(elf["e_machine"], tuple(_needed(elf)), _symbols(elf))
        except ELFError as error:
            raise NeedsError(f"{path}: can't be read: {error}") from error


def _needed(elf: ELFFile) -> Iterator[str]:
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            yield from (str(getattr(tag, "needed")) for tag in section.iter_tags("DT_NEEDED"))  # noqa: B009  # set by its kind


def _symbols(elf: ELFFile) -> dict[str, set[str]]:
    symbols: dict[str, set[str]] = defaultdict(set)
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for library, uses in section.iter_versions():
                symbols[str(library.name)] |= {str(use.name) for use in uses}
    return symbols


def _version(symbol: str) -> Version:
    """`GLIBC_2.34` as numbers. Raises `NeedsError` for one that has none."""
    if symbol == RELATIVE_RELOCATIONS:
        return (2, 36)
    return _numbers(_dotted(symbol))


def _numbers(dotted: str) -> Version:
    return tuple(int(part) for part in dotted.split("."))


def _dotted(symbol: str) -> str:
    match = re.fullmatch(r"[A-Z]+_(\d+(?:\.\d+)*)", symbol)
    if match is None:
        raise NeedsError(f"{symbol}: expected a version of symbols such as GLIBC_2.34")
    return match[1]


def main() -> int:
    """Print the needs of a folder. Returns the exit code: 1 where it needs a newer glibc than it may."""
    parser = argparse.ArgumentParser(prog="python -m deploy.packages.needs", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--glibc-at-most", metavar="VERSION", help="such as 2.28, of the oldest host to be served")
    args = parser.parse_args()
    needs = measure(args.folder)
    print(f"{needs.architecture}, glibc {needs.glibc}")
    print(f"Depends: {', '.join(needs.debian())}")
    print(f"Requires: {', '.join(needs.rpm())}")
    if args.glibc_at_most is None or _numbers(needs.glibc) <= _numbers(args.glibc_at_most):
        return 0
    print(
        f"{args.folder} needs glibc {needs.glibc}, more than {args.glibc_at_most}: "
        'make -C deploy standalone PYTHON="$(deploy/standalone-base)"',
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
