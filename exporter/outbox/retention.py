"""The outbox's own bound: what goes when there is no room, the history of delivered records first."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from exporter.outbox.file import PAGE, used_bytes

DELIVERED: Final = "NOT EXISTS (SELECT 1 FROM queue WHERE queue.seq = records.seq)"
_ROW_BYTES: Final = 512  # what a record takes beside its body: its rows in the queues and their indexes
_MARGIN_PAGES: Final = 8


@dataclass(slots=True)
class Dropped:
    """How many records went, by destination: those that still waited, and those that were parked."""

    waiting: Counter[str] = field(default_factory=Counter)
    parked: Counter[str] = field(default_factory=Counter)

    def add(self, other: Dropped) -> None:
        self.waiting += other.waiting
        self.parked += other.parked


def bytes_for(text: str, bodies: list[bytes]) -> int:
    """What a transaction takes at most, pages rounded up."""
    return sum(-(-(len(body) + _ROW_BYTES) // PAGE) * PAGE for body in bodies) + len(text) + 2 * PAGE


def make_room(db: sqlite3.Connection, capacity: int) -> Dropped:
    """Drops until the content leaves a twentieth of the bound free, for what a transaction needs while it runs."""
    dropped = Dropped()
    while used_bytes(db) > capacity * 0.95 - 2 * PAGE:
        freed = drop_oldest(db)
        if freed is None:
            break
        dropped.add(freed)
    return dropped


def at_bound(db: sqlite3.Connection, capacity: int, need: int) -> bool:
    """Whether "full" is our own bound. Otherwise the disk is full, and dropping records would not help."""
    pages: int = db.execute("PRAGMA page_count").fetchone()[0]
    return (pages + _MARGIN_PAGES) * PAGE + need >= capacity


def prune(db: sqlite3.Connection, after: int, upto: int) -> int:
    """Delivered records before the history go; what is queued there goes when it is delivered. Answers how far."""
    if upto <= after:
        return after
    db.execute(
        f"DELETE FROM records WHERE seq > ? AND seq <= ? AND {DELIVERED}",  # noqa: S608  # a constant
        (after, upto),
    )
    return upto


def drop_oldest(db: sqlite3.Connection) -> Dropped | None:
    """Drops a fiftieth of the history, or where there is none of the oldest records; None: nothing left to drop."""
    total: int = db.execute("SELECT count(*) FROM records").fetchone()[0]
    some = max(1, total // 50)
    history = f"SELECT seq FROM records WHERE {DELIVERED} ORDER BY seq LIMIT ?"  # noqa: S608  # a constant
    if db.execute(f"DELETE FROM records WHERE seq IN ({history})", (some,)).rowcount:  # noqa: S608  # a constant
        return Dropped()
    last = db.execute("SELECT seq FROM records ORDER BY seq LIMIT 1 OFFSET ?", (some - 1,)).fetchone()
    if last is None:
        return None
    dropped = Dropped()
    counted = "SELECT destination, count(*) FILTER (WHERE parked IS NULL), count(parked) FROM queue WHERE seq <= ?"
    for name, waiting, parked in db.execute(f"{counted} GROUP BY destination", last):
        dropped.waiting[name], dropped.parked[name] = waiting, parked
    db.execute("DELETE FROM queue WHERE seq <= ?", last)
    db.execute("DELETE FROM records WHERE seq <= ?", last)
    return dropped
