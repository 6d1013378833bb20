"""Reading the outbox file: read-only, also while the agent works on it."""

from __future__ import annotations

import contextlib
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
from exporter.outbox.file import file_uri, is_blank, is_ours

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
        self.foreign = 0
        self._wait_for_file = wait_for_file
        self._seq = 0
        self._inode: tuple[int, int] | None = None

    def new(self) -> Iterator[Entry]:
        """The entries since the last call, oldest first; all of a file that has taken the place of the last one. Raises
        `OutboxUnreadable`."""
        try:
            status = os.stat(self.path)
            if self._inode != (status.st_dev, status.st_ino):
                self._inode, self._seq = (status.st_dev, status.st_ino), 0
            with contextlib.closing(_open(self.path, self._wait_for_file)) as db:
                while rows := db.execute(_NEW, (self._seq, ROWS_AT_ONCE)).fetchall():
                    for seq, body, queue in rows:
                        self._seq = seq
                        record = record_in(body if isinstance(body, bytes) else str(body).encode())
                        if record is None:
                            self.foreign += 1
                            continue
                        yield _entry(record, queue)
            self.file_missing = False
        except (OSError, *SQLITE_ERRORS) as error:
            self.file_missing = self._wait_for_file and isinstance(error, FileNotFoundError)
            if self.file_missing:
                return
            reason = error.strerror if isinstance(error, OSError) and error.strerror else message_of(error)
            raise OutboxUnreadable("unreadable", f"{self.path}: {reason}") from error


_NEW: Final = (
    "SELECT r.seq, r.body, (SELECT json_group_array(json_array(destination, parked)) FROM queue q"
    " WHERE q.seq = r.seq) FROM records r WHERE r.seq > ? ORDER BY r.seq LIMIT ?"
)


def _open(path: Path, wait_for_file: bool) -> sqlite3.Connection:
    """A read-only connection; as an immutable file where no agent has it open and its folder can't be written to."""
    uri = f"{file_uri(path.resolve())}?mode=ro"
    try:
        return _checked(uri, path, wait_for_file)
    except sqlite3.OperationalError:
        if path.with_name(f"{path.name}-wal").exists():
            raise
        return _checked(f"{uri}&immutable=1", path, wait_for_file)


def _checked(uri: str, path: Path, wait_for_file: bool) -> sqlite3.Connection:
    with contextlib.ExitStack() as undo:
        db = undo.enter_context(contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)))
        if not is_ours(db):
            if wait_for_file and is_blank(db):  # created, and not yet written to
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            raise OutboxUnreadable("foreign", f"{path}: not an outbox of this version")
        undo.pop_all()
        return db


def _entry(record: Record, queue: str | None) -> Entry:
    destinations: list[tuple[str, str | None]] = json.loads(queue or "[]")
    waiting = tuple(name for name, reason in destinations if reason is None)
    return Entry(record, waiting, tuple((name, reason) for name, reason in destinations if reason is not None))
