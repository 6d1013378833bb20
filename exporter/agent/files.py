"""Looks at the files that approvals ask for, so that none of them can make the agent wait."""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from exporter.core.policy import Presence

PATIENCE_SECONDS: Final = 0.5
MOST_STUCK: Final = 16
"""Threads that may wait for a file system at once. While all do, nothing is looked at, and so nothing can be told."""


def look(paths: Iterable[str]) -> dict[str, Presence]:
    """What is at each path now. It may take as long as the file system does: `Looker` is for those who can't wait."""
    return {path: presence(path) for path in paths}


def presence(path: str) -> Presence:
    """What is at `path`. A link counts as itself for ABSENT, and what it leads to for PRESENT.

    ABSENT is "no such file" in a folder that was there before the look and is the same after it. A missing folder,
    mount, drive or share is no answer: each system has error numbers of its own for these, and Python calls them all
    FileNotFoundError.
    """
    folder = os.path.dirname(path) or os.curdir
    try:
        before = _folder(folder)
        try:
            os.lstat(path)
        except FileNotFoundError:
            return Presence.ABSENT if before is not None and _folder(folder) == before else Presence.UNKNOWN
        return Presence.PRESENT if stat.S_ISREG(os.stat(path).st_mode) else Presence.UNKNOWN
    except (OSError, ValueError):
        return Presence.UNKNOWN


def _folder(path: str) -> tuple[int, int] | None:
    """Which folder stands there; None for what is none. Raises OSError."""
    found = os.stat(path)
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


class Looker:
    """`look` with an end: what can't be told within `patience` seconds for all paths together is UNKNOWN.

    The looks are made on a thread of their own. One that is stuck in a file system that does not answer is left to
    itself until it comes back, another takes its place, and its path is not looked at meanwhile.
    """

    def __init__(
        self,
        presence: Callable[[str], Presence] = presence,
        patience: float = PATIENCE_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._presence = presence
        self._patience = patience
        self._monotonic = monotonic
        self._worker: _Worker | None = None
        self._stuck: list[_Worker] = []

    def __call__(self, paths: Iterable[str]) -> dict[str, Presence]:
        """What is at each path now. From one thread at a time."""
        self._stuck = [worker for worker in self._stuck if worker.at is not None]
        stuck = {worker.at for worker in self._stuck}
        wanted = list(paths)
        found = dict.fromkeys(wanted, Presence.UNKNOWN)
        free = [path for path in wanted if path not in stuck]
        if not free or len(self._stuck) >= MOST_STUCK:
            return found
        if self._worker is None:
            self._worker = _Worker(self._presence)
        return found | self._ask(self._worker, free)

    def _ask(self, worker: _Worker, paths: Sequence[str]) -> dict[str, Presence]:
        found: dict[str, Presence] = {}
        answers: queue.SimpleQueue[tuple[str, Presence]] = queue.SimpleQueue()
        worker.asked.put((paths, answers))
        until = self._monotonic() + self._patience
        while len(found) < len(paths):
            try:
                path, presence = answers.get(timeout=max(0.0, until - self._monotonic()))
            except queue.Empty:
                worker.dismiss()
                self._stuck.append(worker)
                self._worker = None
                break
            found[path] = presence
        return found


class _Worker:
    """The thread that looks. `at` is the path that it looks at; None when it is none, or has ended."""

    def __init__(self, presence: Callable[[str], Presence]) -> None:
        self._presence = presence
        self._dismissed = threading.Event()
        self.asked: queue.SimpleQueue[tuple[Sequence[str], queue.SimpleQueue[tuple[str, Presence]]]]
        self.asked = queue.SimpleQueue()
        self.at: str | None = None
        threading.Thread(target=self._run, name="files", daemon=True).start()

    def _run(self) -> None:
        while not self._dismissed.is_set():
            paths, answers = self.asked.get()
            for path in paths:
                if self._dismissed.is_set():
                    break
                self.at = path
                answers.put((path, self._presence(path)))
                self.at = None

    def dismiss(self) -> None:
        """Ends the thread once it comes back from where it is."""
        self._dismissed.set()


def boot_id() -> str:
    """Names this boot of the machine; empty where the system has no word for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""
