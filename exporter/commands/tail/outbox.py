"""Reading the outbox file: read-only, also while the agent works on it."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from exporter.commands.tail.messages import record_in
from exporter.core.records import Record
from exporter.errors import Permanent
from exporter.outbox.errors import SQLITE_ERRORS, message_of
from exporter.outbox.file import file_uri, is_ours

BUSY_SECONDS: Final = 5.0
ROWS_AT_ONCE: Final = 200


class OutboxUnreadable(Permanent):
    """The file can't be read; `detail` is a sentence that names it."""


class Entry(Struct, frozen=True):
    """A record in the outbox, the destinations that it waits for, and those that gave it up, each with the reason."""

    record: Record
    waiting: tuple[str, ...] = ()
    parked: tuple[tuple[str, str], ...] = ()


class OutboxReader:
    """Reads what is new each time.

    With `wait_for_file` a file that does not exist (yet, or while another takes its place) has nothing new, and
    `file_missing` is True; `foreign` counts entries that are no record.
    """

    def __init__(self, path: str, wait_for_file: bool = False) -> None:
        self.path = Path(path)
        self.file_missing = False
        self._wait_for_file = wait_for_file
        self._seq = 0
        self._db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self.foreign = 0

    def new(self) -> Iterator[Entry]:
        """The entries since the last call, oldest first. Raises `OutboxUnreadable`."""
        try:
            self._reopen()
            while rows := self._rows():
                for seq, body, queue in rows:
                    self._seq = seq
                    record = record_in(body if isinstance(body, bytes) else str(body).encode())
                    if record is None:
                        self.foreign += 1
                        continue
                    yield _entry(record, queue)
        except (OSError, *SQLITE_ERRORS) as error:
            self.file_missing = self._wait_for_file and isinstance(error, FileNotFoundError)
            if self.file_missing:
                return
            reason = error.strerror if isinstance(error, OSError) and error.strerror else message_of(error)
            raise OutboxUnreadable("unreadable", f"{self.path}: {reason}") from error

    def _rows(self) -> list[tuple[int, bytes, str | None]]:
        assert self._db is not None, "opened by `new`"  # noqa: S101  # a mistake in this class
        return self._db.execute(
            "SELECT r.seq, r.body, (SELECT json_group_array(json_array(destination, parked)) FROM queue q"
            " WHERE q.seq = r.seq) FROM records r WHERE r.seq > ? ORDER BY r.seq LIMIT ?",
            (self._seq, ROWS_AT_ONCE),
        ).fetchall()

    def _reopen(self) -> None:
        """Open the file, and a new one in its place: an outbox can be set aside while it is followed."""
        status = os.stat(self.path)
        inode = (status.st_dev, status.st_ino)
        if self._db is not None and inode == self._inode:
            return
        self.close()
        self._db, self._inode, self._seq = _open(self.path, self._wait_for_file), inode, 0
        self.file_missing = False

    def close(self) -> None:
        """Close the file; `new` opens it again and reads from its beginning."""
        if self._db is not None:
            self._db.close()
            self._db = None


def _open(path: Path, wait_for_file: bool) -> sqlite3.Connection:
    """A read-only connection; as an immutable file where no agent has it open and its folder can't be written to."""
    base = file_uri(path.resolve())
    try:
        return _checked(sqlite3.connect(f"{base}?mode=ro", uri=True, timeout=BUSY_SECONDS), path, wait_for_file)
    except sqlite3.OperationalError:
        if path.with_name(f"{path.name}-wal").exists():
            raise
        return _checked(sqlite3.connect(f"{base}?mode=ro&immutable=1", uri=True), path, wait_for_file)


def _checked(db: sqlite3.Connection, path: Path, wait_for_file: bool) -> sqlite3.Connection:
    try:
        ours = is_ours(db)
        blank = not ours and wait_for_file and db.execute("PRAGMA schema_version").fetchone()[0] == 0
    except SQLITE_ERRORS:
        db.close()
        raise
    if blank:  # created, and not yet written to
        db.close()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not ours:
        db.close()
        raise OutboxUnreadable("foreign", f"{path}: not an outbox of this version")
    return db


def _entry(record: Record, queue: str | None) -> Entry:
    destinations: list[tuple[str, str | None]] = json.loads(queue or "[]")
    waiting = tuple(name for name, reason in destinations if reason is None)
    return Entry(record, waiting, tuple((name, reason) for name, reason in destinations if reason is not None))
