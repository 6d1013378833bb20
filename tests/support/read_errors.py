"""Outboxes on a disk that returns read errors. Run as a program with `read_errors.c` preloaded; each result is a line.

For each read of the file in turn, at its opening and in use, that one read fails; then all reads from one on, or every
second, third, and so on, fail until the disk recovers.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from exporter.outbox.errors import OutboxUnwritable
from exporter.outbox.store import Outbox
from tests.support.outbox_content import BOTH, NOW, STATE, a_record, numbers, on_disk

RECORDS: Final = 40
FOREVER: Final = 1 << 40
MOST: Final = 80
"""Reads, each of which is the first to fail in one life."""


class Clock:
    """A clock that advances by this many seconds at each call; by a minute, so that no wait is too long."""

    def __init__(self, seconds: float = 60.0) -> None:
        self.now = NOW
        self.seconds = seconds

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=self.seconds)
        return self.now


def fail(path: Path, first: int, count: int, every: int = 1) -> None:
    """Make these reads fail from now on."""
    numbers = (ctypes.c_long(number) for number in (first, count, every))
    ctypes.CDLL(None).fail_reads(os.fsencode(path), *numbers)


def opened(path: Path) -> Outbox:
    outbox = Outbox(path, 10 << 20, BOTH, now=Clock())
    outbox.release()
    return outbox


def filled(folder: Path) -> None:
    """Create an outbox that a process left without closing it: a part of it is in the journal."""
    outbox = opened(folder / "o.db")
    for number in range(RECORDS):
        outbox.commit(STATE, [a_record(number, size=6_000)])
    shutil.copytree(folder, folder.with_name("left"))
    outbox.close()
    shutil.rmtree(folder)


def used(outbox: Outbox, commits: int) -> list[int]:
    """Do the work of the agent and a delivery, repeatedly until all is done. Return the delivered records."""
    got: list[int] = []
    for turn in range(commits + 40):
        with suppress(OutboxUnwritable):
            outbox.commit(STATE, [a_record(RECORDS + number) for number in range(min(turn + 1, commits))])
        with suppress(OutboxUnwritable):
            outbox.used()
        with suppress(OutboxUnwritable):
            batch = outbox.next("otlp", 5, None)
            got += numbers(batch)
            outbox.delivered("otlp", [queued.seq for queued in batch])
    return got


def life(folder: Path, first: int, count: int, *, while_running: bool, every: int = 1) -> dict[str, Any]:
    """Run one process on a copy of the outbox."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder.with_name("left"), folder)
    path = folder / "o.db"
    if not while_running:
        fail(path, first, count, every)
    outbox = opened(path)
    if while_running:
        fail(path, first, count, every)
    got: list[int] = []
    if count == FOREVER:
        got += used(outbox, 2)
        during = sorted(os.listdir(folder))
        fail(path, FOREVER, 0)
    got += used(outbox, 3)
    result = {
        "reads": ctypes.CDLL(None).reads_seen(),
        "got": sorted(got),
        "lost": outbox.lost,
        "faults": outbox.faults,
        "state": outbox.load() == STATE,
        "left": sorted(os.listdir(folder)),
    }
    if count == FOREVER:
        result["during"] = during
    outbox.close()
    fail(path, FOREVER, 0)
    return result


def lives(folder: Path, count: int, *, while_running: bool) -> Iterator[dict[str, Any]]:
    """Run one life for each read that is the first to fail, then some on a disk that fails repeatedly."""
    first, reads = 0, 1
    while first < reads:
        first += 1
        yield (result := life(folder, first, count, while_running=while_running))
        reads = min(result["reads"], MOST)
    for every in range(2, 20) if count == FOREVER else ():
        yield life(folder, 1, count, while_running=while_running, every=every)


def patience(folder: Path) -> dict[str, Any]:
    """Return how often an unreadable file is read while an agent uses it each second, for an hour; and its state when
    the disk recovers."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder.with_name("left"), folder)
    path, clock = folder / "o.db", Clock(0.0)
    fail(path, 1, FOREVER)
    outbox = Outbox(path, 10 << 20, BOTH, now=clock)
    for second in range(3600):
        clock.now = NOW + timedelta(seconds=second)
        with suppress(OutboxUnwritable):
            outbox.commit(STATE, [a_record(RECORDS)])
    reads = ctypes.CDLL(None).reads_seen()
    fail(path, FOREVER, 0)
    clock.now = NOW + timedelta(seconds=3661)
    outbox.commit(STATE, [a_record(RECORDS)])
    outbox.close()
    return {"reads": reads}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "o"
    filled(folder)
    assert on_disk(folder.with_name("left")) > RECORDS * 6_000
    for count in (1, FOREVER):
        for while_running in (False, True):
            for result in lives(folder, count, while_running=while_running):
                print(json.dumps(result), flush=True)
    print(json.dumps(patience(folder)), flush=True)
