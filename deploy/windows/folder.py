"""Checks of the folder for Windows before it becomes a zip, and again before it becomes an MSI.

`python -m deploy.windows.folder FOLDER` prints the faults; the exit code is 1 if there are any. It runs on every system
and checks that signatures exist. Only the build on Windows, which has the certificates, verifies them.
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
"""The signer of python.org's builds, as spelled in the certificate in the file."""
AMD64: Final = 0x8664
WINDOWS_OWN: Final = frozenset({"bcryptprimitives.dll", "kernel32.dll", "ntdll.dll", "advapi32.dll", "ucrtbase.dll"})
"""Parts of Windows. In the program's folder, they would be loaded instead of the system's and never be updated."""
BINARIES: Final = frozenset({".exe", ".dll", ".pyd"})

_SECURITY_DIRECTORY: Final = 4
_PE32_PLUS: Final = 0x20B


@dataclass(frozen=True, slots=True)
class Image:
    """A program or library: its machine, and the signature at its end (empty: not signed)."""

    machine: int
    signature: bytes


def image(content: bytes) -> Image:
    """Read the headers [PE Format]. Raises ValueError unless they are those of a 64-bit image."""
    try:
        (at,) = struct.unpack_from("<I", content, 0x3C)
        (machine,) = struct.unpack_from("<H", content, at + 4)
        (kind,) = struct.unpack_from("<H", content, at + 24)
        (count,) = struct.unpack_from("<I", content, at + 24 + 108)
        start, size = (0, 0)
        if count > _SECURITY_DIRECTORY:
            start, size = struct.unpack_from("<II", content, at + 24 + 112 + 8 * _SECURITY_DIRECTORY)
    except struct.error as error:
        raise ValueError("the headers are truncated") from error
    if content[:2] != b"MZ" or content[at : at + 4] != b"PE\0\0" or kind != _PE32_PLUS:
        raise ValueError("not a 64-bit image")
    return Image(machine, content[start : start + size] if size else b"")


def faults(folder: Path) -> Iterator[str]:
    """Return each reason why this folder must not be released, with the file."""
    names = {path.name.lower() for path in folder.rglob("*")}
    if not (folder / PROGRAM).is_file():
        yield f"{PROGRAM}: missing"
    if not any(name.startswith("python3") and name.endswith(".dll") and name != "python3.dll" for name in names):
        yield "python3NN.dll: missing, so there is no Python"
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield from (f"{path.relative_to(folder).as_posix()}: {fault}" for fault in _faults_of(path))


def _faults_of(path: Path) -> Iterator[str]:
    name = path.name.lower()
    if name in WINDOWS_OWN or name.startswith("api-ms-win-"):
        yield "part of Windows, or a replacement for one"
        return
    if path.suffix.lower() not in BINARIES:
        return
    try:
        found = image(path.read_bytes())
    except ValueError as error:
        yield str(error)
        return
    if found.machine != AMD64:
        yield f"built for another machine ({found.machine:#06x})"
    if name.startswith("python3") and name.endswith(".dll") and SIGNER not in found.signature:
        yield "not from python.org: no signature of the Python Software Foundation"


def main(arguments: list[str]) -> int:
    """Print the faults of a folder. Return the exit code: 1 if there are any."""
    found = list(faults(Path(arguments[0])))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
