"""Records to put into an outbox, and the content of an outbox."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from exporter.core.records import Record
from exporter.core.state import State
from exporter.outbox.store import Outbox
from tests.support import factories

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
STATE = State(birth=NOW, vm_key="me")
BOTH = ("event_hubs", "otlp")


def a_record(number: int, subject: str = "event", size: int = 0, created: datetime = NOW) -> Record:
    """Return a record created this many seconds after `created`, with `size` bytes of text."""
    time = created + timedelta(seconds=number)
    return factories.a_record(number, subject=subject, time=time, severity="INFO", message="x" * size)


def numbers(batch: list[Any]) -> list[int]:
    return [int(queued.record.id[-12:]) for queued in batch]


def drained(outbox: Outbox, destination: str) -> list[int]:
    """Return everything that waits, in order, and acknowledge it."""
    taken: list[int] = []
    while batch := outbox.next(destination, 10):
        taken += numbers(batch)
        outbox.delivered(destination, [queued.seq for queued in batch])
    return taken


def opened(path: Path, capacity: int = 10 << 20, names: tuple[str, ...] = BOTH) -> Outbox:
    """Return an outbox of this many bytes with a clock that doesn't move. It is this VM's."""
    outbox = Outbox(path, capacity, names, now=lambda: NOW)
    outbox.release()
    return outbox


def on_disk(folder: Path) -> int:
    """Return the bytes of all files in the folder."""
    return sum(os.path.getsize(folder / name) for name in os.listdir(folder))
