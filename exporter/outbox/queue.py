"""The queue of each destination: the rows of what waits for it and of its dead letters, and how it stands.

A dead letter is a record that its destination refused while it accepted others (`agent.suspects`). It stays in the
file, `parked` with the reason, until `requeue` lets it wait again.

The outbox is kept within its bound: the history of delivered records is dropped first, then the oldest records.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from operator import length_hint
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.core.document import folded
from exporter.core.records import Record, Storable
from exporter.core.snapshot import DestinationStatus
from exporter.errors import Permanent
from exporter.outbox.errors import SQLITE_ERRORS, Guard
from exporter.outbox.file import PAGE, file_uri, is_ours, transaction, used_bytes

BATCH_BYTES: Final = 1 << 20
"""Bodies of more than so many bytes are not read at once, except for one that is larger by itself."""
_WINDOW: Final = 50
"""Among so many of the oldest rows a subject is looked for, times the number of subjects that are wanted."""
DELIVERED_KEPT: Final = 1_000
"""The last so many records are kept also when they were delivered."""
DELIVERED: Final = "NOT EXISTS (SELECT 1 FROM queue WHERE queue.seq = records.seq)"
_ROW_BYTES: Final = 512  # what a record takes beside its body: its rows in the queues and their indexes
_MARGIN_PAGES: Final = 8
BUSY_SECONDS: Final = 5.0


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


def requeue(path: Path, destination: str = "") -> dict[str, int]:
    """Let the parked records of this destination, or of all, wait for it again. Returns how many, by destination.

    For a process of its own, beside the agent that works on the file: that one looks for it while it has parked records
    (`Outbox.queues`, `Outbox.must_look_again`). Raises `OutboxUnwritable`, and `Permanent` for a file that is no
    outbox; then nothing has changed.
    """
    chosen = "parked IS NOT NULL AND ? IN ('', destination)"
    with Guard(lambda _reason: None):
        os.stat(path)  # to name what is missing; SQLite says that it can't open the file
        uri = f"{file_uri(path.resolve())}?mode=rw"
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)) as db:
            if not is_ours(db):
                raise Permanent("foreign", "not an outbox of this version")
            with transaction(db):
                counted = f"SELECT destination, count(*) FROM queue WHERE {chosen} GROUP BY destination"  # noqa: S608  # a constant
                counts: dict[str, int] = dict(db.execute(counted, (destination,)).fetchall())
                db.execute(f"UPDATE queue SET parked = NULL WHERE {chosen}", (destination,))  # noqa: S608  # a constant
    return counts


# -- the bound


def bytes_for(text: str, bodies: Sequence[bytes]) -> int:
    """Bytes that a transaction with this state and these records adds at most."""
    state = len(text) if text.isascii() else len(text.encode())
    return sum(-(-(len(body) + _ROW_BYTES) // PAGE) * PAGE for body in bodies) + state + 2 * PAGE


def free_space(db: sqlite3.Connection, capacity: int) -> Counter[str]:
    """Drops until a twentieth of the bound is free, for what a transaction needs while it runs.

    Answers as `drop_oldest`; without any destination if no record in a queue was dropped.
    """
    dropped = Counter[str]()
    while used_bytes(db) > capacity * 0.95 - 2 * PAGE:
        freed = drop_oldest(db)
        if freed is None:
            break
        dropped.update(freed)
    return dropped


def at_bound(db: sqlite3.Connection, capacity: int, need: int) -> bool:
    """Whether "full" is our own bound. Otherwise the disk is full, and dropping records would not help."""
    pages: int = db.execute("PRAGMA page_count").fetchone()[0]
    return (pages + _MARGIN_PAGES) * PAGE + need >= capacity


def prune(db: sqlite3.Connection, after: int, upto: int) -> int:
    """Deletes the delivered records after one row number up to another; what waits there is deleted when it is settled.

    Answers up to which row number that has now been done.
    """
    if upto <= after:
        return after
    db.execute(
        f"DELETE FROM records WHERE seq > ? AND seq <= ? AND {DELIVERED}",  # noqa: S608  # a constant
        (after, upto),
    )
    return upto


def drop_oldest(db: sqlite3.Connection) -> Counter[str] | None:
    """Drops a fiftieth of the records out of the history, or where there is none the oldest; None: nothing to drop.

    Answers how many waited, by destination; 0 for one that had only parked some of them.
    """
    total: int = db.execute("SELECT count(*) FROM records").fetchone()[0]
    portion = max(1, total // 50)
    delivered_rows = f"SELECT seq FROM records WHERE {DELIVERED} ORDER BY seq LIMIT ?"  # noqa: S608  # a constant
    if db.execute(f"DELETE FROM records WHERE seq IN ({delivered_rows})", (portion,)).rowcount:  # noqa: S608  # a constant
        return Counter()
    last = db.execute("SELECT seq FROM records ORDER BY seq LIMIT 1 OFFSET ?", (portion - 1,)).fetchone()
    if last is None:
        return None
    counts = "SELECT destination, count(*) FILTER (WHERE parked IS NULL) FROM queue WHERE seq <= ? GROUP BY destination"
    dropped = Counter(dict(db.execute(counts, last).fetchall()))
    db.execute("DELETE FROM queue WHERE seq <= ?", last)
    db.execute("DELETE FROM records WHERE seq <= ?", last)
    return dropped
