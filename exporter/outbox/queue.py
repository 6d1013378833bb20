"""The queue of each destination: its waiting and its parked records, and its status.

A parked record is one that the destination rejected while it accepted others (`agent.suspects`). It stays in the file,
`parked` with the reason, until `requeue` returns it to the queue.

The outbox is kept within its bound: delivered records are dropped first, then the oldest records.
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
from exporter.outbox.errors import SQLITE_ERRORS, Guard, refuse_directory
from exporter.outbox.file import PAGE, file_uri, is_ours, transaction, used_bytes

BATCH_BYTES: Final = 1 << 20
"""Maximum bytes of the bodies read at once, except for one that is larger by itself."""
_WINDOW: Final = 50
"""Number of oldest rows searched for subjects, for each subject that is wanted."""
DELIVERED_KEPT: Final = 1_000
"""Number of newest records that are kept even after delivery."""
DELIVERED: Final = "NOT EXISTS (SELECT 1 FROM queue WHERE queue.seq = records.seq)"
_ROW_BYTES: Final = 512  # of a record without its body: its rows in the queues and their indexes
_MARGIN_PAGES: Final = 8
BUSY_SECONDS: Final = 5.0

Body = tuple[Storable, bytes]
"""A record with its encoded body."""


class Queued(Struct, frozen=True):
    """A record that waits for one destination, with its row number."""

    seq: int
    record: Record


class Queue(Struct):
    """One destination's queue as counted by this process, which saves queries. The agent's and its own thread count."""

    status: DestinationStatus
    """Current status; `oldest` is as of the last `view`."""
    settled: dict[int, str | None] = field(default_factory=dict)
    """Delivered (None) or rejected (the reason) records by row number, until the file is updated.

    This process does not send them again.
    """
    has_changed: bool = True
    """Whether the queue changed since `view` last queried the file."""
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def unsettled(self, without: Collection[int] = ()) -> str:
        """Return the SQL condition for a destination's waiting rows, except settled ones and the numbers `without`."""
        return f"destination = ? AND parked IS NULL AND seq NOT IN ({','.join(map(str, (*self.settled, *without)))})"

    def change(self, waiting: int = 0, parked: int = 0, **others: Any) -> None:
        """Add to both counts (negative numbers subtract), and set other fields of the status."""
        with self._changing:
            before = self.status
            self.status = replace(before, records=before.records + waiting, parked=before.parked + parked, **others)
        self.has_changed = True

    def view(self, db: sqlite3.Connection | None) -> DestinationStatus:
        """Return the status; query the file only after a change. Raises sqlite3.Error."""
        if self.has_changed:
            self.has_changed = False  # before the query: the next call sees later changes
            try:
                oldest = oldest_of(db, self.status.name) if self.status.records > 0 and db is not None else None
            except SQLITE_ERRORS:
                self.has_changed = True
                raise
            with self._changing:
                self.status = replace(self.status, oldest=oldest)
        return self.status


def counts_of(db: sqlite3.Connection, destination: str) -> tuple[int, int]:
    """Return the numbers of waiting and of parked records of a destination. Raises sqlite3.Error."""
    waiting, parked = db.execute(
        "SELECT count(*) FILTER (WHERE parked IS NULL), count(parked) FROM queue WHERE destination = ?", (destination,)
    ).fetchone()
    return waiting, parked


def queue_of(db: sqlite3.Connection, destination: str) -> Queue:
    """Return the queue of a destination, read from the file. Raises sqlite3.Error."""
    waiting, parked = counts_of(db, destination)
    row = db.execute("SELECT error, last_success FROM destination WHERE name = ?", (destination,)).fetchone()
    error, last = row or ("", None)
    success = datetime.fromtimestamp(last, UTC) if last else None
    return Queue(DestinationStatus(destination, True, waiting, None, parked, success, error))


def oldest_of(db: sqlite3.Connection, destination: str) -> datetime | None:
    """Return the time of the oldest record waiting for a destination, None if none waits. Raises sqlite3.Error."""
    row = db.execute(
        "SELECT r.created FROM queue q JOIN records r USING (seq)"
        " WHERE q.destination = ? AND q.parked IS NULL ORDER BY q.seq LIMIT 1",
        (destination,),
    ).fetchone()
    return datetime.fromtimestamp(row[0], UTC) if row else None


def enqueue(db: sqlite3.Connection, destinations: Sequence[str], records: Sequence[Body]) -> list[int]:
    """Write each record, with its body, once, and add it to the queue of each destination.

    Return the numbers of the new rows. A record whose id already exists is skipped. Raises sqlite3.Error.
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
            subject = folded(record.subject)  # EventIds are compared in folded case
            rows += [(name, row[0], subject) for name in destinations]
    if rows:
        db.executemany("INSERT INTO queue VALUES (?, ?, ?, NULL)", rows)
    return numbers


def another_number(
    db: sqlite3.Connection, destination: str, unsettled: str, suspects: Collection[int], *, youngest: bool
) -> int | None:
    """Return a row number outside the subjects of the `suspects`, which are row numbers too.

    It is the first row of the subject that has waited longest, or with `youngest` shortest. If every subject has a
    suspect, it is the oldest row; None if none is left. `unsettled` excludes the suspects. Raises sqlite3.Error.
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
    """Return at most `limit` of the `unsettled` rows, each a row number and a record's body.

    They are the oldest rows of the `subjects` subjects that have waited longest, grouped by subject and in order, with
    an equal share of the limit for each. With None: the oldest rows of all subjects, in order. Raises sqlite3.Error.
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
    # Without INDEXED BY, SQLite scans the whole backlog for the subject.
    of_subject = (
        "SELECT seq, body FROM queue INDEXED BY queue_order JOIN records USING (seq)"  # noqa: S608  # as above
        f" WHERE {unsettled} AND subject = ? ORDER BY seq LIMIT ?"
    )
    return _within_bytes(row for (subject,) in found for row in db.execute(of_subject, (destination, subject, share)))


def _within_bytes(rows: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the first rows whose bodies total at most `BATCH_BYTES`, but at least one. Reads one row beyond them."""
    some: list[tuple[int, bytes]] = []
    size = 0
    for row in rows:
        size += length_hint(row[1])  # 0 for a damaged body without a length
        if some and size > BATCH_BYTES:
            break
        some.append(row)
    return some


def settle(db: sqlite3.Connection, queue: Queue, pruned: int) -> None:
    """Write the delivered and rejected records of `queue.settled` to the file, in one transaction.

    A record with a row number up to `pruned` is deleted once no destination waits for it. Raises sqlite3.Error.
    """
    delivered = refused = 0
    with transaction(db):
        for seq, reason in sorted(queue.settled.items()):
            row = (queue.status.name, seq)
            if reason is not None:
                park = "UPDATE queue SET parked = ? WHERE destination = ? AND seq = ?"
                refused += db.execute(park, (reason, *row)).rowcount
                continue
            delivered += db.execute("DELETE FROM queue WHERE destination = ? AND seq = ?", row).rowcount
            if seq <= pruned:
                db.execute(f"DELETE FROM records WHERE seq = ? AND {DELIVERED}", (seq,))  # noqa: S608  # a constant
        write_result(db, queue.status)
    queue.settled.clear()
    queue.change(-delivered - refused, refused)


def write_result(db: sqlite3.Connection, status: DestinationStatus) -> None:
    """Write the result of the last attempt to the file. Raises sqlite3.Error."""
    last = status.last_success.timestamp() if status.last_success else None
    db.execute("INSERT OR REPLACE INTO destination VALUES (?, ?, ?)", (status.name, status.error, last))


def requeue(path: Path, destination: str = "") -> dict[str, int]:
    """Return the parked records of this destination, or of all, to the queue. Return their number by destination.

    Runs in a separate process while the agent uses the file; the agent checks for it while it has parked records
    (`Outbox.queues`, `Outbox.needs_polling`). Raises `OutboxUnwritable`, and `Permanent` for a file that isn't an
    outbox of this version; then the file is unchanged.
    """
    chosen = "parked IS NOT NULL AND ? IN ('', destination)"
    with Guard(path, lambda _reason: None):
        refuse_directory(path)
        os.stat(path)  # names a missing file; SQLite's error doesn't
        uri = f"{file_uri(path.resolve())}?mode=rw"
        with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)) as db:
            if not is_ours(db):
                raise Permanent("foreign", f"{path}: not an outbox of this version")
            with transaction(db):
                counted = f"SELECT destination, count(*) FROM queue WHERE {chosen} GROUP BY destination"  # noqa: S608  # a constant
                counts: dict[str, int] = dict(db.execute(counted, (destination,)).fetchall())
                db.execute(f"UPDATE queue SET parked = NULL WHERE {chosen}", (destination,))  # noqa: S608  # a constant
    return counts


# -- the bound


def bytes_for(text: str, bodies: Sequence[bytes]) -> int:
    """Return the maximum bytes that a transaction with this state and these records adds."""
    state = len(text) if text.isascii() else len(text.encode())
    return sum(-(-(len(body) + _ROW_BYTES) // PAGE) * PAGE for body in bodies) + state + 2 * PAGE


def free_space(db: sqlite3.Connection, capacity: int) -> Counter[str]:
    """Drop records until 5 % of the bound is free, which a running transaction needs.

    Return as `drop_oldest`; empty if no queued record was dropped.
    """
    dropped = Counter[str]()
    while used_bytes(db) > capacity * 0.95 - 2 * PAGE and (freed := drop_oldest(db)) is not None:
        dropped.update(freed)
    return dropped


def at_bound(db: sqlite3.Connection, capacity: int, need: int) -> bool:
    """Return whether the error `full` comes from the outbox's bound. If not, the disk is full: dropping won't help."""
    pages: int = db.execute("PRAGMA page_count").fetchone()[0]
    return (pages + _MARGIN_PAGES) * PAGE + need >= capacity


def prune(db: sqlite3.Connection, after: int, upto: int) -> int:
    """Delete the delivered records after one row number up to another; `settle` deletes the waiting ones later.

    Return the row number up to which records are now pruned.
    """
    if upto <= after:
        return after
    db.execute(f"DELETE FROM records WHERE seq > ? AND seq <= ? AND {DELIVERED}", (after, upto))  # noqa: S608  # a constant
    return upto


def drop_oldest(db: sqlite3.Connection) -> Counter[str] | None:
    """Drop 2 % of the records: delivered ones, or the oldest if there are none.

    Return how many of them were waiting, by destination; 0 for a destination that had only parked ones. None if there
    is nothing to drop.
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
