"""The queue of each destination: the rows of what waits for it and of its dead letters, and how it stands.

A dead letter is a record that its destination refused while it accepted others (`agent.suspects`). It stays in the
file, `parked` with the reason, until `requeue` lets it wait again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from operator import length_hint
from typing import Final

from msgspec import Struct, field

from exporter.core.folding import folded
from exporter.core.records import Record, Storable
from exporter.outbox.errors import SQLITE_ERRORS
from exporter.outbox.file import transaction
from exporter.outbox.retention import DELIVERED

BATCH_BYTES: Final = 1 << 20
"""Bodies of more than so many bytes are not read at once, except for one that is larger by itself."""
_WINDOW: Final = 50
"""Among so many of the oldest rows a subject is looked for, times the number of subjects that are wanted."""


class Queued(Struct, frozen=True):
    """A record that waits for one destination, with the number of its row."""

    seq: int
    record: Record


class Queue(Struct, frozen=True):
    """How one destination stands, for the gauges and the page."""

    records: int = 0
    """How many wait."""
    oldest: datetime | None = None
    """The time of the oldest record that waits."""
    parked: int = 0
    """How many dead letters there are."""
    error: str = ""
    """The reason of the last attempt's failure; empty after a success."""
    last_success: datetime | None = None


class QueueState(Struct):
    """How one destination stands, kept in memory so that the file need not be asked. Both threads count."""

    waiting: int = 0
    parked: int = 0
    attempts: int = 0
    error: str = ""
    last_success: datetime | None = None
    settled: dict[int, str | None] = field(default_factory=dict)
    """By row number what was delivered (None) or refused for good (why), while the disk does not take that. It is not
    sent again by this process."""
    changed: bool = True
    """Something happened since `view` last asked the file."""
    _view: Queue = field(default_factory=Queue)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def unsettled(self, without: Collection[int] = ()) -> str:
        """The condition on the rows of a destination that wait, but for what is settled and these row numbers."""
        return f"destination = ? AND parked IS NULL AND seq NOT IN ({','.join(map(str, (*self.settled, *without)))})"

    def count(self, waiting: int, parked: int = 0) -> None:
        """Adds to both counts; negative numbers take away."""
        with self._counting:
            self.waiting += waiting
            self.parked += parked
        self.changed = True

    def view(self, db: sqlite3.Connection | None, destination: str) -> Queue:
        """How it stands; the file is asked only after a change. Raises sqlite3.Error."""
        if not self.changed:
            return self._view
        self.changed = False  # before the file is asked: what changes meanwhile is seen by the next call
        try:
            oldest = oldest_of(db, destination) if self.waiting > 0 and db is not None else None
        except SQLITE_ERRORS:
            self.changed = True
            raise
        self._view = Queue(max(0, self.waiting), oldest, self.parked, self.error, self.last_success)
        return self._view


def counts_of(db: sqlite3.Connection, destination: str) -> tuple[int, int]:
    """How many records wait for a destination, and how many it parked, by the file. Raises sqlite3.Error."""
    waiting, parked = db.execute(
        "SELECT count(*) FILTER (WHERE parked IS NULL), count(parked) FROM queue WHERE destination = ?", (destination,)
    ).fetchone()
    return waiting, parked


def queue_state_of(db: sqlite3.Connection, destination: str) -> QueueState:
    """How a destination stands by the file. Raises sqlite3.Error."""
    waiting, parked = counts_of(db, destination)
    row = db.execute("SELECT attempts, error, last_success FROM destination WHERE name = ?", (destination,)).fetchone()
    attempts, error, last = row or (0, "", None)
    return QueueState(waiting, parked, attempts, error, datetime.fromtimestamp(last, UTC) if last else None)


def oldest_of(db: sqlite3.Connection, destination: str) -> datetime | None:
    """The time of the oldest record that waits for a destination. Raises sqlite3.Error."""
    row = db.execute(
        "SELECT r.created FROM queue q JOIN records r USING (seq)"
        " WHERE q.destination = ? AND q.parked IS NULL ORDER BY q.seq LIMIT 1",
        (destination,),
    ).fetchone()
    return datetime.fromtimestamp(row[0], UTC) if row else None


def enqueue(
    db: sqlite3.Connection, destinations: Sequence[str], records: Sequence[tuple[Storable, bytes]]
) -> list[int]:
    """Writes records, each with its body, once and into the queue of each destination.

    Answers the numbers of the new rows. A record whose id is already there is passed over. Raises sqlite3.Error.
    """
    numbers: list[int] = []
    rows: list[tuple[str, int, str]] = []
    for record, body in records:
        row = db.execute(
            "INSERT OR IGNORE INTO records (id, body, created) VALUES (?, ?, ?) RETURNING seq",
            (record.id, body, record.time.timestamp()),
        ).fetchone()
        if row is not None:
            numbers.append(row[0])
            subject = folded(record.subject)  # ids are compared so
            rows += [(name, row[0], subject) for name in destinations]
    if rows:
        db.executemany("INSERT INTO queue VALUES (?, ?, ?, NULL)", rows)
    return numbers


def another_number(
    db: sqlite3.Connection, destination: str, unsettled: str, suspects: Collection[int], *, youngest: bool
) -> int | None:
    """The number of the first row of the subject that began to wait first, or last, of those without a suspect; if each
    has one, of the oldest row. Raises sqlite3.Error.

    `unsettled` excludes the suspects, which are row numbers.
    """
    oldest = f"SELECT min(seq) FROM queue WHERE {unsettled}"  # noqa: S608  # numbers
    theirs = f"SELECT subject FROM queue WHERE destination = ? AND seq IN ({','.join(map(str, suspects))})"  # noqa: S608  # as above
    order = "DESC" if youngest else "ASC"
    of_others = f"{oldest} AND subject NOT IN ({theirs}) GROUP BY subject ORDER BY min(seq) {order} LIMIT 1"
    row = db.execute(of_others, (destination, destination)).fetchone()
    seq: int | None = (row or db.execute(oldest, (destination,)).fetchone())[0]
    return seq


def waiting_rows(
    db: sqlite3.Connection, destination: str, unsettled: str, limit: int, subjects: int | None = 1
) -> list[tuple[int, bytes]]:
    """At most `limit` of the rows that wait and are `unsettled`, each a row number and a record's body.

    They are the oldest of the `subjects` that wait longest, by subject and each subject's in order; with None the
    oldest of all, in order. No subject gets more than its share of the limit. Raises sqlite3.Error.
    """
    if subjects is None:
        return _within_bytes(
            db.execute(
                f"SELECT seq, body FROM queue JOIN records USING (seq) WHERE {unsettled} ORDER BY seq LIMIT ?",  # noqa: S608  # numbers
                (destination, limit),
            )
        )
    window = 1 if subjects == 1 else _WINDOW * subjects
    oldest = f"SELECT subject, seq FROM queue WHERE {unsettled} ORDER BY seq LIMIT ?"  # noqa: S608  # as above
    found = db.execute(
        f"SELECT subject FROM ({oldest}) GROUP BY subject ORDER BY min(seq) LIMIT ?",  # noqa: S608  # as above
        (destination, window, min(subjects, limit)),
    ).fetchall()
    share = max(1, limit // max(1, len(found)))
    # Left to itself, SQLite walks the whole backlog in search of the subject.
    of_subject = (
        "SELECT seq, body FROM queue INDEXED BY queue_order JOIN records USING (seq)"  # noqa: S608  # as above
        f" WHERE {unsettled} AND subject = ? ORDER BY seq LIMIT ?"
    )
    return _within_bytes(row for (subject,) in found for row in db.execute(of_subject, (destination, subject, share)))


def _within_bytes(rows: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The first rows whose bodies are no more than `BATCH_BYTES` together, and one at least. Reads no further."""
    some: list[tuple[int, bytes]] = []
    size = 0
    for row in rows:
        size += length_hint(row[1])  # 0 for a damaged one that has none
        if some and size > BATCH_BYTES:
            break
        some.append(row)
    return some


def settle(db: sqlite3.Connection, destination: str, state: QueueState, pruned: int) -> None:
    """Writes down what was delivered or refused for good, in one transaction. Raises sqlite3.Error.

    A record with a row number up to `pruned` is before the history: it is deleted when no destination waits for it.
    """
    delivered = refused = 0
    with transaction(db):
        for seq, reason in sorted(state.settled.items()):
            row = (destination, seq)
            if reason is not None:
                refused += db.execute(
                    "UPDATE queue SET parked = ? WHERE destination = ? AND seq = ?", (reason, *row)
                ).rowcount
                continue
            delivered += db.execute("DELETE FROM queue WHERE destination = ? AND seq = ?", row).rowcount
            if seq <= pruned:
                db.execute(f"DELETE FROM records WHERE seq = ? AND {DELIVERED}", (seq,))  # noqa: S608  # a constant
        write_attempts(db, destination, state, 0.0)
    state.settled.clear()
    state.count(-delivered - refused, refused)


def write_attempts(db: sqlite3.Connection, destination: str, state: QueueState, due: float) -> None:
    """Writes down how the attempts stand and when the next one is due, in POSIX seconds. Raises sqlite3.Error."""
    last = state.last_success.timestamp() if state.last_success else None
    db.execute(
        "INSERT OR REPLACE INTO destination VALUES (?, ?, ?, ?, ?)",
        (destination, state.attempts, due, state.error, last),
    )
