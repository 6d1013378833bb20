"""The outbox as `tail` reads it: read-only, also while the agent works on it."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporter.commands.tail.messages import record_in
from exporter.core.records import Record
from exporter.outbox.file import is_ours

BUSY_SECONDS: Final = 5.0
AT_ONCE: Final = 200


class OutboxError(Exception):
    """The file can't be read; the text is a sentence that names it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A record in the outbox: the destinations that have not taken it, and why those gave it up that have."""

    record: Record
    waiting: tuple[str, ...] = ()
    parked: tuple[tuple[str, str], ...] = ()


class OutboxReader:
    """Reads what is new each time. Raises `OutboxError`.

    With `waits` a file that is not there (yet, or for the moment in which another takes its place) holds nothing new.
    """

    def __init__(self, path: str, waits: bool = False) -> None:
        self.path = Path(path)
        self.waiting = False
        self._waits = waits
        self._seq = 0
        self._db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self.foreign = 0

    def new(self) -> Iterator[Kept]:
        """The records since the last time, oldest first, as the file stands now."""
        try:
            self._follow()
            while rows := self._rows():
                for seq, body, queue in rows:
                    self._seq = seq
                    record = record_in(body if isinstance(body, bytes) else str(body).encode())
                    if record is None:
                        self.foreign += 1
                        continue
                    yield _kept(record, queue)
        except (OSError, sqlite3.Error) as error:
            self.waiting = self._waits and isinstance(error, FileNotFoundError)
            if self.waiting:
                return
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise OutboxError(f"{self.path}: {reason}") from error

    def _rows(self) -> list[tuple[int, bytes, str | None]]:
        assert self._db is not None, "follow comes first"  # noqa: S101  # a mistake of ours, not of the world
        return self._db.execute(
            "SELECT r.seq, r.body, (SELECT json_group_array(json_array(destination, parked)) FROM queue q"
            " WHERE q.seq = r.seq) FROM records r WHERE r.seq > ? ORDER BY r.seq LIMIT ?",
            (self._seq, AT_ONCE),
        ).fetchall()

    def _follow(self) -> None:
        """Opens the file, and the one that took its place: an outbox can be set aside while it is followed."""
        found = os.stat(self.path)
        inode = (found.st_dev, found.st_ino)
        if self._db is not None and inode == self._inode:
            return
        self.close()
        self._db, self._inode, self._seq = _open(self.path, self._waits), inode, 0
        self.waiting = False

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def _open(path: Path, waits: bool) -> sqlite3.Connection:
    """A read-only connection. Where nobody works on the file and we may not write beside it, as it lies there."""
    base = path.resolve().as_uri()
    try:
        return _checked(sqlite3.connect(f"{base}?mode=ro", uri=True, timeout=BUSY_SECONDS), path, waits)
    except sqlite3.OperationalError:
        if path.with_name(f"{path.name}-wal").exists():
            raise
        return _checked(sqlite3.connect(f"{base}?mode=ro&immutable=1", uri=True), path, waits)


def _checked(db: sqlite3.Connection, path: Path, waits: bool) -> sqlite3.Connection:
    try:
        ours = is_ours(db)
        blank = not ours and waits and db.execute("PRAGMA schema_version").fetchone()[0] == 0
    except sqlite3.Error:
        db.close()
        raise
    if blank:  # its maker has not written into it yet
        db.close()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not ours:
        db.close()
        raise OutboxError(f"{path}: not an outbox of this version")
    return db


def _kept(record: Record, queue: str | None) -> Kept:
    found: list[tuple[str, str | None]] = _pairs(queue)
    waiting = tuple(name for name, parked in found if parked is None)
    return Kept(record, waiting, tuple((name, parked) for name, parked in found if parked is not None))


def _pairs(queue: str | None) -> list[tuple[str, str | None]]:
    return [(str(name), parked) for name, parked in json.loads(queue or "[]")]
