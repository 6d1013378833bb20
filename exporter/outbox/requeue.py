"""Parked records wait again: written by a process of its own, beside the agent that works on the file.

A running agent looks for it while it has parked records (`Outbox.queues`, `Outbox.must_look_again`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from exporter.errors import Permanent
from exporter.outbox.errors import Guard
from exporter.outbox.file import file_uri, is_ours, transaction

BUSY_SECONDS: Final = 5.0


def requeue(path: Path, destination: str = "") -> dict[str, int]:
    """Let the parked records of this destination, or of all, wait for it again. Returns how many, by destination.

    Raises `OutboxUnwritable`, and `Permanent` for a file that is no outbox; then nothing has changed.
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
