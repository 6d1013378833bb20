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
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.core.folding import folded
from exporter.core.records import Record, Storable
from exporter.core.snapshot import DestinationStatus
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


class Queue(Struct):
    """One destination's queue as this process knows it, so that the file need not be asked. Both threads count."""

    status: DestinationStatus
    """Its `oldest` is that of the last `view`."""
    settled: dict[int, str | None] = field(default_factory=dict)
    """By row number what was delivered (None) or refused for good (why), while the disk does not take that. It is not
    sent again by this process."""
    has_changed: bool = True
    """Something happened since `view` last asked the file."""
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def unsettled(self, without: Collection[int] = ()) -> str:
        """The condition on the rows of a destination that wait, but for what is settled and these row numbers."""
        return f"destination = ? AND parked IS NULL AND seq NOT IN ({','.join(map(str, (*self.settled, *without)))})"

    def change(self, waiting: int = 0, parked: int = 0, **others: Any) -> None:
        """Adds to both counts, where negative numbers take away, and sets other fields of the status."""
        with self._changing:
            before = self.status
            self.status = replace(before, records=before.records + waiting, parked=before.parked + parked, **others)
        self.has_changed = True

    def view(self, db: sqlite3.Connection | None) -> DestinationStatus:
        """How it stands; the file is asked only after a change. Raises sqlite3.Error."""
        if self.has_changed:
            self.has_changed = False  # before the file is asked: what changes meanwhile is seen by the next call
            try:
                oldest = oldest_of(db, self.status.name) if self.status.records > 0 and db is not None else None
            except SQLITE_ERRORS:
                self.has_changed = True
                raise
            with self._changing:
                self.status = replace(self.status, oldest=oldest)
        return self.status


def counts_of(db: sqlite3.Connection, destination: str) -> tuple[int, int]:
    """How many records wait for a destination, and how many it parked, by the file. Raises sqlite3.Error."""
    waiting, parked = db.execute(
        "SELECT count(*) FILTER (WHERE parked IS NULL), count(parked) FROM queue WHERE destination = ?", (destination,)
    ).fetchone()
    return waiting, parked


def queue_of(db: sqlite3.Connection, destination: str) -> Queue:
    """How a destination stands by the file. Raises sqlite3.Error."""
    waiting, parked = counts_of(db, destination)
    row = db.execute("SELECT error, last_success FROM destination WHERE name = ?", (destination,)).fetchone()
    error, last = row or ("", None)
    success = datetime.fromtimestamp(last, UTC) if last else None
    return Queue(DestinationStatus(destination, True, waiting, None, parked, success, error))


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


def settle(db: sqlite3.Connection, queue: Queue, pruned: int) -> None:
    """Writes down what was delivered or refused for good, in one transaction. Raises sqlite3.Error.

    A record with a row number up to `pruned` is before the history: it is deleted when no destination waits for it.
    """
    delivered = refused = 0
    with transaction(db):
        for seq, reason in sorted(queue.settled.items()):
            row = (queue.status.name, seq)
            if reason is not None:
                refused += db.execute(
                    "UPDATE queue SET parked = ? WHERE destination = ? AND seq = ?", (reason, *row)
                ).rowcount
                continue
            delivered += db.execute("DELETE FROM queue WHERE destination = ? AND seq = ?", row).rowcount
            if seq <= pruned:
                db.execute(f"DELETE FROM records WHERE seq = ? AND {DELIVERED}", (seq,))  # noqa: S608  # a constant
        write_result(db, queue.status)
    queue.settled.clear()
    queue.change(-delivered - refused, refused)


def write_result(db: sqlite3.Connection, status: DestinationStatus) -> None:
    """Writes down how the last attempt ended. Raises sqlite3.Error."""
    last = status.last_success.timestamp() if status.last_success else None
    db.execute("INSERT OR REPLACE INTO destination VALUES (?, ?, ?)", (status.name, status.error, last))
