"""Recovery of the readable content of a damaged outbox into a new file, page by page.

SQLite stops at the first page that it can't follow, and reports a disk's read error as damage. This module reads each
page separately [Database File Format]: a damaged page costs only its content, and a read error is an OSError. The work
is linear in the size of the file.

That is safe because of how the outbox writes. A record never changes and its row number is never reused, so every copy
of a row anywhere in the file is that record. The queues do change: they are read by walking the tables from their root
pages, which are the same in every outbox.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from exporter.core.document import folded
from exporter.core.records import Record, RecordKind
from exporter.core.state import Approval, Instant, State, TransitionKind
from exporter.core.state_codec import dump_state, load_state
from exporter.outbox.file import MOST_ROWS, PAGE, make_tables, read_journal, transaction
from exporter.outbox.queue import DELIVERED_KEPT

_INDEX_INNER: Final = 2
_INDEX_LEAF: Final = 10
_TABLE_LEAF: Final = 13
_CELLS_AT: Final = {_INDEX_INNER: 12, _TABLE_LEAF: 8, _INDEX_LEAF: 8}
"""Offset of the cell pointers, by page type."""
_LEAST_LOCAL: Final = (PAGE - 12) * 32 // 255 - 23
_MOST_LOCAL: Final = {_TABLE_LEAF: PAGE - 35, _INDEX_LEAF: (PAGE - 12) * 64 // 255 - 23}
"""Maximum bytes of a row on its page, by page type; longer rows continue on overflow pages."""
_INTEGERS: Final = (0, 1, 2, 3, 4, 6, 8)
_READS_A_PAGE: Final = 8
"""Maximum reads per page, on average: damage can make many rows refer to the same pages."""

Row = tuple[object, ...]
Claim = tuple[int, str]
"""Row number of a record, and a destination that it waits for or is parked for."""
Waiting = dict[int, dict[str, str | None]]
"""Destinations by row number: None if the record waits for it, else the reason why it is parked."""


def salvage(
    source: Path, target: sqlite3.Connection, destinations: Sequence[str], now: datetime
) -> tuple[int, Counter[str]]:
    """Fill the new file `target` with the readable content of `source`, in one transaction.

    Return the number of records, and for each of the `destinations` the number of undelivered ones that could not be
    read. If the queues can't be read, every record waits for all destinations, and each missing record counts as
    undelivered. An unreadable state is replaced by one with the birth `now`, which repeats no record id and contains
    the approvals and starts that the records show. The results of the last attempts are not recovered. Raises OSError
    and sqlite3.Error.
    """
    with contextlib.ExitStack() as files, transaction(target):
        make_tables(target)
        pages = _Pages(source, files)
        waiting, claims, is_complete = _waiting(pages)
        unknown = {} if is_complete else dict.fromkeys(destinations)
        found: set[int] = set()
        sent: dict[str, Approval] = {}
        started: dict[str, datetime] = {}
        for seq, record, body in _records(pages):
            values = (seq, record.id, body, record.time.timestamp())
            if not target.execute("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?)", values).rowcount:
                continue
            found.add(seq)
            queues = unknown | waiting.get(seq, {})
            rows = [(name, seq, folded(record.subject), why) for name, why in queues.items()]
            target.executemany("INSERT INTO queue VALUES (?, ?, ?, ?)", rows)
            if record.kind == RecordKind.APPROVAL_ACCEPTED:
                sent[folded(record.subject)] = Approval(1, Instant(record.time), record.time)
            elif record.kind == TransitionKind.STARTED:
                started[folded(record.subject)] = record.time
        fresh = State(now, sent=sent, started_ids=started, evictions=int(now.timestamp()))
        target.executemany("INSERT INTO meta VALUES (?, ?)", _meta(pages, fresh).items())
        if is_complete:
            lost = Counter(name for seq, name in claims if seq not in found)
        else:
            lost = Counter(dict.fromkeys(destinations, _missing(pages, found, claims)))
        return len(found), Counter({name: lost[name] for name in destinations})


class _Pages:
    """The pages of a database with its journal, and the root pages of its tables and indexes."""

    def __init__(self, source: Path, files: contextlib.ExitStack) -> None:
        """Open both until `files` is closed. Raises OSError."""
        self.journal = read_journal(source)
        self._file = files.enter_context(source.open("rb"))
        self._journal_file = files.enter_context(self.journal.path.open("rb")) if self.journal.places else self._file
        in_file = source.stat().st_size // PAGE
        self._size = PAGE * (in_file + len(self.journal.places))
        self._reads_left = _READS_A_PAGE * (self._size // PAGE + 16)
        self.numbers = range(1, max([in_file, *self.journal.pages]) + 1)
        with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
            fresh.execute(f"PRAGMA page_size={PAGE}")
            make_tables(fresh)
            self.roots: dict[str, int] = dict(fresh.execute("SELECT name, rootpage FROM sqlite_master").fetchall())

    def read(self, number: int) -> bytes:
        """Return one page, numbered from 1; empty if it doesn't exist, or if too many pages were read."""
        self._reads_left -= 1
        if number not in self.numbers or self._reads_left < 0:
            return b""
        if number in self.journal.pages:
            return _page(self._journal_file, self.journal.pages[number])
        return _page(self._file, (number - 1) * PAGE)

    def contents(self) -> Iterator[bytes]:
        """Yield every current and former content of the pages."""
        for number in self.numbers:
            yield _page(self._file, (number - 1) * PAGE)
        for place in self.journal.places:
            yield _page(self._journal_file, place)

    def rows(self, page: bytes) -> Iterator[tuple[int, Row]]:
        """Yield the rows of a table's leaf page with their row numbers, or those of an index page with 0.

        Unreadable rows are skipped.
        """
        kind = page[0]
        for index in range(min(int.from_bytes(page[3:5], "big"), PAGE // 2)):
            try:
                (at,) = struct.unpack_from(">H", page, _CELLS_AT[kind] + 2 * index)
                size, at = _varint(page, at + 4 * (kind == _INDEX_INNER))
                seq, at = _varint(page, at) if kind == _TABLE_LEAF else (0, at)
                yield seq, _values(self._payload(page, kind, at, size))
            except (ValueError, IndexError, struct.error):
                continue

    def _payload(self, page: bytes, kind: int, at: int, size: int) -> bytes:
        most = _MOST_LOCAL.get(kind, _MOST_LOCAL[_INDEX_LEAF])
        if size <= most:
            return page[at : at + size]
        if size > self._size:
            raise ValueError("larger than the file")
        local = _LEAST_LOCAL + (size - _LEAST_LOCAL) % (PAGE - 4)
        local = local if local <= most else _LEAST_LOCAL
        parts, left = [page[at : at + local]], size - local
        (following,) = struct.unpack_from(">I", page, at + local)
        while left > 0:
            page = self.read(following)
            if not page:
                raise ValueError("incomplete row")
            parts.append(page[4 : 4 + left])
            left -= PAGE - 4
            (following,) = struct.unpack_from(">I", page)
        return b"".join(parts)

    def walk(self, name: str) -> tuple[list[Row], bool]:
        """Return the rows of an index, or of a table without row numbers, and whether all its pages could be read."""
        found: list[Row] = []
        seen: set[int] = set()
        left, is_complete = [self.roots[name]], True
        while left:
            number = left.pop()
            page = b"" if number in seen else self.read(number)
            seen.add(number)
            if not page or page[0] not in (_INDEX_INNER, _INDEX_LEAF):
                is_complete = False
                continue
            rows = [row for _, row in self.rows(page)]
            is_complete = is_complete and len(rows) == int.from_bytes(page[3:5], "big")
            found += rows
            if page[0] == _INDEX_INNER:
                left += self._children(page)
        return found, is_complete

    def _children(self, page: bytes) -> Iterator[int]:
        yield int.from_bytes(page[8:12], "big")
        for index in range(min(int.from_bytes(page[3:5], "big"), PAGE // 6)):
            (at,) = struct.unpack_from(">H", page, 12 + 2 * index)
            yield int.from_bytes(page[at : at + 4], "big")


def _page(file: BinaryIO, place: int) -> bytes:
    """Return the page at this offset; empty if it is incomplete."""
    file.seek(place)
    page = file.read(PAGE)
    return page if len(page) == PAGE else b""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer of one to nine bytes, and the offset of its end. Raises IndexError."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004  # the last byte
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _values(payload: bytes) -> Row:
    """Return the values of a row. Raises ValueError or IndexError if the payload isn't a row."""
    end, at = _varint(payload, 0)
    position, row = end, []
    while at < end:
        kind, at = _varint(payload, at)
        size = (kind - 12) // 2 if kind >= 12 else _INTEGERS[kind] if kind < len(_INTEGERS) else 8 * (kind == 7)  # noqa: PLR2004  # [Serial Type Codes]
        content = payload[position : position + size]
        if len(content) < size:
            raise ValueError("cut off")
        position += size
        row.append(_value(kind, content))
    return tuple(row)


def _value(kind: int, content: bytes) -> object:
    """Return the value of a serial type. Text that is not UTF-8 stays bytes."""
    if kind >= 12:  # noqa: PLR2004  # as above
        try:
            return content.decode() if kind % 2 else content
        except UnicodeDecodeError:
            return content
    if kind == 7:  # noqa: PLR2004  # as above
        return struct.unpack(">d", content)[0]
    if kind in (8, 9):
        return kind - 8
    return int.from_bytes(content, "big", signed=True) if kind else None


def _records(pages: _Pages) -> Iterator[tuple[int, Record, bytes]]:
    """Yield every record anywhere in the file, with its row number and body; some more than once."""
    for page in pages.contents():
        if page[:1] != bytes([_TABLE_LEAF]):
            continue
        for seq, row in pages.rows(page):
            match row:
                case (None, _, str() | bytes() as body, _) if 0 < seq < MOST_ROWS:
                    with contextlib.suppress(ValueError, KeyError, OverflowError, OSError):
                        record = Record.from_json(body)
                        datetime.fromtimestamp(record.time.timestamp(), UTC)
                        yield seq, record, body.encode() if isinstance(body, str) else body


def _waiting(pages: _Pages) -> tuple[Waiting, set[Claim], bool]:
    """Return the queues, their certain entries, and whether the queues are complete.

    The file has the queues twice: as a table, and as its index by row number, which lacks the reason for parking. If
    only the index can be read, a parked record is sent once more. If both can be read, the certain entries are those
    that both contain.
    """
    waiting: Waiting = {}
    in_index: set[Claim] = set()
    rows, is_complete = pages.walk("queue")
    for row in rows:
        match row:
            case (str(name), int(seq), _, why):
                waiting.setdefault(seq, {})[name] = None if why is None else str(why)
            case _:
                is_complete = False
    claims = {(seq, name) for seq, names in waiting.items() for name in names}
    rows, is_index_complete = pages.walk("queue_seq")
    for row in rows:
        match row:
            case (int(seq), str(name)):
                waiting.setdefault(seq, {}).setdefault(name, None)
                in_index.add((seq, name))
            case _:
                is_index_complete = False
    claims = claims & in_index if is_complete and is_index_complete else claims | in_index
    return waiting, claims, (is_complete or is_index_complete) and not pages.journal.is_damaged


def _missing(pages: _Pages, found: set[int], claims: set[Claim]) -> int:
    """Return how many undelivered records may be lost, if the queues can't be read: at least one if that is unknown.

    Row numbers have no gaps, and the newest `DELIVERED_KEPT` records are kept even after delivery.
    """
    page = pages.read(pages.roots["sqlite_sequence"])
    rows = [row for _, row in pages.rows(page)] if page[:1] == bytes([_TABLE_LEAF]) else []
    last = next((row[1] for row in rows if len(row) == 2 and row[0] == "records" and isinstance(row[1], int)), 0)  # noqa: PLR2004  # name and number
    claimed = {seq for seq, _ in claims if 0 < seq < MOST_ROWS}
    newest = max([last if 0 < last < MOST_ROWS else 0, *found, *claimed])
    missing = {*range(max(1, newest - DELIVERED_KEPT + 1), newest + 1), *claimed} - found
    return max(len(missing), 0 if last else 1)


def _meta(pages: _Pages, fresh: State) -> Mapping[str, str]:
    """Return the state and its heartbeat, or the `fresh` state if the stored one is unreadable."""
    found = {str(row[0]): row[1] for row in pages.walk("meta")[0] if len(row) == 2}  # noqa: PLR2004  # key and value
    kept = {key: value for key, value in found.items() if key in ("state", "seen") and isinstance(value, str)}
    try:
        load_state(kept["state"])
    except (KeyError, ValueError):
        return {"state": dump_state(fresh)}
    return kept
