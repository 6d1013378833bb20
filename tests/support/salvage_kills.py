"""Open an outbox that must be rewritten, and kill the process at each of its steps; then open it again.

Run as a program, with a folder that has the outbox's files and an empty one. It forks a process for each step, counted
by Python's audit events, until one is not killed, and prints for each what the next start found.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tests.support.outbox_content import BOTH, STATE, a_record, drained, opened

STEPS: Final = frozenset({"open", "os.rename", "os.remove", "os.chmod", "sqlite3.connect"})
LAST: Final = 7000
"""The number of the record that the process commits at its end."""


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Return whether a process that does the work reaches this step, and is killed just before it."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    left = step

    def count(name: str, _arguments: object) -> None:
        nonlocal left
        left -= name in STEPS
        if name in STEPS and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    try:
        work()
    finally:
        os._exit(0)


def damaged(path: Path) -> None:
    """Open a damaged file and commit."""
    outbox = opened(path)
    outbox.commit(STATE, [a_record(LAST)])


def removed(path: Path) -> None:
    """Open a sound file, remove it, and commit."""
    outbox = opened(path)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    outbox.commit(STATE, [a_record(LAST)])


def found(path: Path) -> dict[str, Any]:
    """Return what the next start finds."""
    outbox = opened(path)
    waiting = {name: drained(outbox, name) for name in BOTH}
    state = outbox.load() == STATE
    outbox.close()
    with closing(sqlite3.connect(path)) as db:
        ids = db.execute("SELECT count(*), count(DISTINCT id) FROM records").fetchone()
    return {"waiting": waiting, "state": state, "ids": ids, "left": sorted(os.listdir(path.parent))}


if __name__ == "__main__":
    work, source, folder = {"damaged": damaged, "removed": removed}[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3])
    step, goes_on = 0, True
    while goes_on:
        step += 1
        shutil.rmtree(folder)
        shutil.copytree(source, folder)
        goes_on = killed_at(step, lambda: work(folder / "o.db"))
        print(json.dumps(found(folder / "o.db")), flush=True)
