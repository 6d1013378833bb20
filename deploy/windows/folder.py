"""What may not be handed out: a folder for Windows is looked through before it becomes a zip, and again before an MSI.

`python -m deploy.windows.folder FOLDER` says what stands against it, and ends with 1 if anything does. It runs on every
system: signatures are looked at, not verified. The build verifies them on Windows, where the certificates are.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.windows import PROGRAM

SIGNER: Final = b"Python Software Foundation"
"""Who signs python.org's builds, as the certificate in the file spells it."""
AMD64: Final = 0x8664
WINDOWS_OWN: Final = frozenset({"bcryptprimitives.dll", "kernel32.dll", "ntdll.dll", "advapi32.dll", "ucrtbase.dll"})
"""Parts of Windows: beside the program they would be loaded instead of the system's own, and never be updated."""
BINARIES: Final = frozenset({".exe", ".dll", ".pyd"})

_SECURITY_DIRECTORY: Final = 4
_PE32_PLUS: Final = 0x20B


@dataclass(frozen=True, slots=True)
class Image:
    """A program or library of Windows: the machine it is for, and the signature at its end (empty: not signed)."""

    machine: int
    signature: bytes


def image(content: bytes) -> Image:
    """What the headers say [PE Format]. Raises ValueError where they are not those of a 64-bit image."""
    try:
        (at,) = struct.unpack_from("<I", content, 0x3C)
        (machine,) = struct.unpack_from("<H", content, at + 4)
        (kind,) = struct.unpack_from("<H", content, at + 24)
        (count,) = struct.unpack_from("<I", content, at + 24 + 108)
        start, size = (0, 0)
        if count > _SECURITY_DIRECTORY:
            start, size = struct.unpack_from("<II", content, at + 24 + 112 + 8 * _SECURITY_DIRECTORY)
    except struct.error as error:
        raise ValueError("its headers are cut off") from error
    if content[:2] != b"MZ" or content[at : at + 4] != b"PE\0\0" or kind != _PE32_PLUS:
        raise ValueError("it is no 64-bit image")
    return Image(machine, content[start : start + size] if size else b"")


def faults(folder: Path) -> Iterator[str]:
    """Each reason why this folder must not be handed out, as a sentence that names the file."""
    names = {path.name.lower() for path in folder.rglob("*")}
    if not (folder / PROGRAM).is_file():
        yield f"{PROGRAM} is missing"
    if not any(name.startswith("python3") and name.endswith(".dll") and name != "python3.dll" for name in names):
        yield "there is no Python in it: no python3NN.dll"
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield from (f"{path.relative_to(folder).as_posix()}: {fault}" for fault in _faults_of(path))


def _faults_of(path: Path) -> Iterator[str]:
    name = path.name.lower()
    if name in WINDOWS_OWN or name.startswith("api-ms-win-"):
        yield "this is a part of Windows itself, or stands in for one"
        return
    if path.suffix.lower() not in BINARIES:
        return
    try:
        found = image(path.read_bytes())
    except ValueError as error:
        yield str(error)
        return
    if found.machine != AMD64:
        yield f"it is for another machine ({found.machine:#06x})"
    if name.startswith("python3") and name.endswith(".dll") and SIGNER not in found.signature:
        yield "it is not python.org's: no signature of the Python Software Foundation"


def main(arguments: list[str]) -> int:
    """The exit code: 1 if anything stands against the folder."""
    found = list(faults(Path(arguments[0])))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
