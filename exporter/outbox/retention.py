"""Keeps the outbox within its bound: drops the history of delivered records first, then the oldest records."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Final

from exporter.outbox.file import PAGE, used_bytes

HISTORY: Final = 1_000
"""The last so many records are kept also when they were delivered."""
DELIVERED: Final = "NOT EXISTS (SELECT 1 FROM queue WHERE queue.seq = records.seq)"
_ROW_BYTES: Final = 512  # what a record takes beside its body: its rows in the queues and their indexes
_MARGIN_PAGES: Final = 8


def bytes_for(text: str, bodies: Sequence[bytes]) -> int:
    """Bytes that a transaction with this state and these records adds at most."""
    state = len(text) if text.isascii() else len(text.encode())
    return sum(-(-(len(body) + _ROW_BYTES) // PAGE) * PAGE for body in bodies) + state + 2 * PAGE


def make_room(db: sqlite3.Connection, capacity: int) -> Counter[str]:
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
    history = f"SELECT seq FROM records WHERE {DELIVERED} ORDER BY seq LIMIT ?"  # noqa: S608  # a constant
    if db.execute(f"DELETE FROM records WHERE seq IN ({history})", (portion,)).rowcount:  # noqa: S608  # a constant
        return Counter()
    last = db.execute("SELECT seq FROM records ORDER BY seq LIMIT 1 OFFSET ?", (portion - 1,)).fetchone()
    if last is None:
        return None
    counts = "SELECT destination, count(*) FILTER (WHERE parked IS NULL) FROM queue WHERE seq <= ? GROUP BY destination"
    dropped = Counter(dict(db.execute(counts, last).fetchall()))
    db.execute("DELETE FROM queue WHERE seq <= ?", last)
    db.execute("DELETE FROM records WHERE seq <= ?", last)
    return dropped
