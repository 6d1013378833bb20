"""The libraries that a self-contained folder needs from the host, with the versions of their symbols.

They are read from every ELF file in it: NEEDED of the dynamic section, and .gnu.version_r, which names the versions of
the used symbols [LSB, Symbol Versioning]. The dependencies of the packages are exactly these.

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
"""The libraries of glibc. Since 2.34, libc.so.6 contains libpthread, libdl, librt, and libutil."""
RELATIVE_RELOCATIONS: Final = "GLIBC_ABI_DT_RELR"
"""The symbol version of files that only the loader of glibc 2.36 and later can relocate."""
ARCHITECTURES: Final[Mapping[str, str]] = {"EM_X86_64": "amd64", "EM_AARCH64": "arm64"}
"""The names of Debian and Go by the machine in an ELF header."""
DEBIAN: Final[Mapping[str, tuple[str, str | None]]] = {
    "libz.so.1": ("zlib1g", "1:"),
    "libgcc_s.so.1": ("libgcc-s1", None),
    "libstdc++.so.6": ("libstdc++6", None),
}
"""The Debian package of a library, and the epoch of its versions; None if the versions of its symbols differ.

GCC's libraries have the symbols of manylinux_2_28 since GCC 8, the oldest version with that C library.
"""

Version = tuple[int, ...]


class NeedsError(Exception):
    """The dependencies of the folder can't be determined; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements on the host.

    `architecture` is Debian's name for that of all files. `symbols` has the highest used symbol version of each
    library, such as `GLIBC_2.34` for `libc.so.6`; "" if no version is used.
    """

    architecture: str
    symbols: Mapping[str, str]

    @property
    def glibc(self) -> str:
        """The oldest glibc that has all used symbols, such as `2.34`."""
        versions = [_version(name) for library, name in self.symbols.items() if GLIBC.fullmatch(library) and name]
        if not versions:
            raise NeedsError("no file uses a symbol of glibc")
        return ".".join(map(str, max(versions)))

    def debian(self) -> list[str]:
        """Return `Depends` of a deb. Raises `NeedsError` for a library that DEBIAN does not list."""
        depends = [f"libc6 (>= {self.glibc})"]
        for library, symbol in self.symbols.items():
            if GLIBC.fullmatch(library):
                continue
            if library not in DEBIAN:
                raise NeedsError(
                    f"{library}: needed from the host, but its Debian package is unknown; add it in {__name__}"
                )
            package, epoch = DEBIAN[library]
            counted = symbol and epoch is not None
            depends.append(f"{package} (>= {epoch}{_dotted(symbol)})" if counted else package)
        return depends

    def rpm(self) -> list[str]:
        """Return `Requires` of an rpm, in the form of rpm's own generator [elfdeps]."""
        requires = []
        for library, symbol in self.symbols.items():
            if library.startswith("ld-linux"):
                continue  # part of glibc, like libc.so.6
            if symbol == RELATIVE_RELOCATIONS:
                raise NeedsError(f"{library}: {symbol} is newer than any supported RHEL")
            requires.append(f"{library}({symbol})(64bit)" if symbol else f"{library}()(64bit)")
        return requires


def measure(folder: Path) -> Needs:
    """Read all ELF files of a self-contained folder. Raises `NeedsError` unless they are for one known machine.

    A library in the folder isn't needed from the host, except by the program itself, which starts before the loader
    knows where those libraries are.
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
    """Return the requirements of one file; None if it isn't an ELF file."""
    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return None
        try:
            elf = ELFFile(stream)
            return _File(elf["e_machine"], tuple(_needed(elf)), _symbols(elf))
        except ELFError as error:
            raise NeedsError(f"{path}: not readable: {error}") from error


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
    """Return `GLIBC_2.34` as numbers. Raises `NeedsError` for a symbol version without numbers."""
    if symbol == RELATIVE_RELOCATIONS:
        return (2, 36)
    return _numbers(_dotted(symbol))


def _numbers(dotted: str) -> Version:
    return tuple(int(part) for part in dotted.split("."))


def _dotted(symbol: str) -> str:
    match = re.fullmatch(r"[A-Z]+_(\d+(?:\.\d+)*)", symbol)
    if match is None:
        raise NeedsError(f"{symbol}: expected a symbol version such as GLIBC_2.34")
    return match[1]


def main() -> int:
    """Print the requirements of a folder. Return the exit code: 1 if it needs a newer glibc than permitted."""
    parser = argparse.ArgumentParser(prog="python -m deploy.packages.needs", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--glibc-at-most", metavar="VERSION", help="glibc of the oldest supported host, for example 2.28"
    )
    args = parser.parse_args()
    needs = measure(args.folder)
    print(f"{needs.architecture}, glibc {needs.glibc}")
    print(f"Depends: {', '.join(needs.debian())}")
    print(f"Requires: {', '.join(needs.rpm())}")
    if args.glibc_at_most is None or _numbers(needs.glibc) <= _numbers(args.glibc_at_most):
        return 0
    print(
        f"{args.folder}: needs glibc {needs.glibc}, newer than {args.glibc_at_most}; build it with: "
        'make -C deploy standalone PYTHON="$(deploy/standalone-base)"',
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
