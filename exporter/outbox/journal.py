"""The journal of an outbox that no one has open, read without SQLite [Database File Format, 4].

SQLite reads a journal up to the first frame whose checksum is wrong and forgets the rest, since that is what a crash
leaves of writes that it cut off. A damaged frame looks the same, and would cost every transaction after it. What tells
them apart: a checksum continues the one before, so frames that fit each other were written one after the other. And the
agent's commits are flushed to the disk, with everything before them, before the next transaction begins. So where one
of them and another transaction follow a wrong frame, the frame is damaged.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from msgspec import Struct, field

_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_MOST_BYTES: Final = 32 << 20
"""Of a journal that is examined, which takes a second then. The agent's has a hundredth of that."""
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"


class Journal(Struct):
    """What was committed to a journal."""

    path: Path
    pages: dict[int, int] = field(default_factory=dict)
    """By number: where the newest content of a page begins in the journal."""
    places: list[int] = field(default_factory=list)
    """Where any content of a page begins, also an older or a damaged one."""
    is_damaged: bool = False
    """Some of what was committed can't be read."""


class _Frame(NamedTuple):
    page: int
    place: int
    is_commit: bool
    fits: bool
    """Its checksum is right, and continues the one before."""


def read_journal(database: Path, page_size: int, flushed: int) -> Journal:
    """Read the journal of a database with pages of this many bytes. Raises OSError.

    `flushed` is the number of a page that is written only by transactions that are flushed, and by each of them.
    """
    journal = Journal(database.with_name(f"{database.name}-wal"))
    with contextlib.suppress(FileNotFoundError), journal.path.open("rb") as file:
        if journal.path.stat().st_size <= _MOST_BYTES:
            _read(file, page_size, flushed, journal)
    return journal


def _read(file: BinaryIO, page_size: int, flushed: int, journal: Journal) -> None:
    header = file.read(_HEADER).ljust(_HEADER, b"\0")
    frame = file.read(_FRAME_HEADER + page_size)
    order = ">" if header[3:4] == b"\x83" else "<"
    is_whole = any(header) and _sum(order, bytes(8), header[:24]) == header[24:]
    salts = header[16:24] if is_whole else frame[8:16]
    order = order if is_whole else _NATIVE
    before, place = header[24:], _HEADER + _FRAME_HEADER
    runs: list[list[_Frame]] = [[]]
    while len(frame) == _FRAME_HEADER + page_size:
        number, size_after = struct.unpack_from(">II", frame)
        is_ours = frame[8:16] == salts
        fits = is_ours and _sum(order, before, frame[:8] + frame[_FRAME_HEADER:]) == frame[16:24]
        if not fits:
            runs.append([])
        runs[-1].append(_Frame(number, place, is_ours and size_after > 0, fits))
        before, place = frame[16:24], place + len(frame)
        frame = file.read(_FRAME_HEADER + page_size)
    for run in runs:
        commits = [index for index, found in enumerate(run) if found.is_commit]
        is_damaged = not (is_whole and run is runs[0])
        before_last = run[: commits[-2] + 1] if len(commits) > 1 else []
        if not commits or (is_damaged and not any(found.fits and found.page == flushed for found in before_last)):
            continue
        journal.is_damaged |= is_damaged
        committed = run[: commits[-1] + 1]
        journal.pages.update({found.page: found.place for found in committed if found.fits})
    if journal.pages:
        journal.places = [found.place for run in runs for found in run]


def _sum(order: str, before: bytes, data: bytes) -> bytes:
    """The checksum of a multiple of 8 bytes, continued from the one `before` them [Checksum Algorithm]."""
    first, second = struct.unpack(">II", before)
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return struct.pack(">II", first, second)
