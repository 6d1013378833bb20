"""How each destination stands: the rows of what waits for it, what it took, and what it refused for good."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from exporter.core.folding import folded
from exporter.core.records import Record
from exporter.outbox.file import transaction
from exporter.outbox.retention import DELIVERED


@dataclass(frozen=True, slots=True)
class Queued:
    """A record that waits for one destination."""

    seq: int
    record: Record


@dataclass(frozen=True, slots=True)
class Queue:
    """How one destination stands."""

    records: int = 0
    oldest: datetime | None = None
    parked: int = 0
    error: str = ""
    last_success: datetime | None = None


@dataclass(slots=True)
class Standing:
    """The same while the agent runs, counted without asking the file. Two threads count."""

    pending: int = 0
    parked: int = 0
    attempts: int = 0
    error: str = ""
    last_success: datetime | None = None
    settled: dict[int, str | None] = field(default_factory=dict)
    """Taken (None) or refused for good (why), but the disk did not take that yet: not sent again by this process."""
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def count(self, pending: int, parked: int = 0) -> None:
        """So many more, or with a minus fewer."""
        with self._counting:
            self.pending += pending
            self.parked += parked


def standing_of(db: sqlite3.Connection, name: str) -> Standing:
    """As the file has it."""
    pending, parked = db.execute(
        "SELECT count(*) FILTER (WHERE parked IS NULL), count(parked) FROM queue WHERE destination = ?", (name,)
    ).fetchone()
    row = db.execute("SELECT attempts, error, last_success FROM destination WHERE name = ?", (name,)).fetchone()
    attempts, error, last = row or (0, "", None)
    return Standing(pending, parked, attempts, error, datetime.fromtimestamp(last, UTC) if last else None)


def enqueue(db: sqlite3.Connection, destinations: Sequence[str], record: Record, body: bytes) -> int:
    """The new row's number; 0 when a record of this id is already there."""
    row = db.execute(
        "INSERT OR IGNORE INTO records (id, body, created) VALUES (?, ?, ?) RETURNING seq",
        (record.id, body, record.time.timestamp()),
    ).fetchone()
    if row is None:
        return 0
    rows = [(name, row[0], folded(record.subject)) for name in destinations]  # ids are compared so
    db.executemany("INSERT INTO queue VALUES (?, ?, ?, NULL)", rows)
    return int(row[0])


def waiting(db: sqlite3.Connection, destination: str, standing: Standing, limit: int) -> list[tuple[int, bytes]]:
    """The oldest row that waits and is not settled, and up to `limit` - 1 more of the same subject."""
    rest = f"parked IS NULL AND seq NOT IN ({','.join(map(str, standing.settled))})"
    row = db.execute(
        f"SELECT subject FROM queue WHERE destination = ? AND {rest} ORDER BY seq LIMIT 1",  # noqa: S608  # numbers
        (destination,),
    ).fetchone()
    if row is None:
        return []
    # Left to itself, SQLite walks the whole backlog in search of the subject.
    return db.execute(
        "SELECT seq, body FROM queue INDEXED BY queue_order JOIN records USING (seq)"  # noqa: S608  # as above
        f" WHERE destination = ? AND subject = ? AND {rest} ORDER BY seq LIMIT ?",
        (destination, row[0], limit),
    ).fetchall()


def settle(db: sqlite3.Connection, destination: str, standing: Standing, pruned: int) -> None:
    """Writes down what was taken or refused. A record before `pruned` that nobody waits for goes at once."""
    gone = parked = 0
    with transaction(db):
        for seq, reason in sorted(standing.settled.items()):
            row = (destination, seq)
            if reason is not None:
                parked += db.execute(
                    "UPDATE queue SET parked = ? WHERE destination = ? AND seq = ?", (reason, *row)
                ).rowcount
                continue
            gone += db.execute("DELETE FROM queue WHERE destination = ? AND seq = ?", row).rowcount
            if seq <= pruned:
                db.execute(f"DELETE FROM records WHERE seq = ? AND {DELIVERED}", (seq,))  # noqa: S608  # a constant
        note(db, destination, standing, 0.0)
    standing.settled.clear()
    standing.count(-gone - parked, parked)


def note(db: sqlite3.Connection, destination: str, standing: Standing, due: float) -> None:
    """Writes down how the attempts stand and when the next one is due, in seconds since 1970."""
    last = standing.last_success.timestamp() if standing.last_success else None
    db.execute(
        "INSERT OR REPLACE INTO destination VALUES (?, ?, ?, ?, ?)",
        (destination, standing.attempts, due, standing.error, last),
    )


def queue_of(db: sqlite3.Connection | None, destination: str, standing: Standing) -> Queue:
    """For the gauges and the page. Only the age of the oldest record is asked of the file."""
    row = None
    if standing.pending > 0 and db is not None:
        row = db.execute(
            "SELECT r.created FROM queue q JOIN records r USING (seq)"
            " WHERE q.destination = ? AND q.parked IS NULL ORDER BY q.seq LIMIT 1",
            (destination,),
        ).fetchone()
    oldest = datetime.fromtimestamp(row[0], UTC) if row else None
    return Queue(max(0, standing.pending), oldest, standing.parked, standing.error, standing.last_success)
