"""Checks whether the files that approvals ask for exist, within a time limit, and reads the boot id."""

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
"""Threads that may wait for a file system at once. While so many do, every file is UNKNOWN."""


def check_files(paths: Iterable[str]) -> dict[str, Presence]:
    """The presence of a file at each path. Waits for the file system; `FileChecker` has a time limit."""
    return {path: presence(path) for path in paths}


def presence(path: str) -> Presence:
    """Whether there is a file at `path`. A link is not ABSENT, and PRESENT if it leads to a regular file.

    ABSENT is "no such file" in a folder that exists before the check and is the same one after it. A missing folder,
    mount, drive or share is UNKNOWN: systems have different error numbers for these, and Python raises
    FileNotFoundError for all of them.
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
    """Device and inode of the folder; None if it is no folder. Raises OSError."""
    status = os.stat(path)
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


class FileChecker:
    """`check_files` with a time limit: what is not known within `patience` seconds for all paths together is UNKNOWN.

    The checks are made on a thread of their own. If it blocks in a file system that does not answer, another thread
    replaces it, and that path is not checked again until the blocked thread returns.
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
        """The presence of a file at each path. From one thread at a time."""
        self._stuck = [worker for worker in self._stuck if worker.at is not None]
        stuck = {worker.at for worker in self._stuck}
        wanted = list(paths)
        presences = dict.fromkeys(wanted, Presence.UNKNOWN)
        free = [path for path in wanted if path not in stuck]
        if not free or len(self._stuck) >= MOST_STUCK:
            return presences
        if self._worker is None:
            self._worker = _Worker(self._presence)
        return presences | self._ask(self._worker, free)

    def _ask(self, worker: _Worker, paths: Sequence[str]) -> dict[str, Presence]:
        presences: dict[str, Presence] = {}
        answers: queue.SimpleQueue[tuple[str, Presence]] = queue.SimpleQueue()
        worker.asked.put((paths, answers))
        until = self._monotonic() + self._patience
        while len(presences) < len(paths):
            try:
                path, presence = answers.get(timeout=max(0.0, until - self._monotonic()))
            except queue.Empty:
                worker.dismiss()
                self._stuck.append(worker)
                self._worker = None
                break
            presences[path] = presence
        return presences


class _Worker:
    """The thread that checks. `at` is the path that it checks now; None while there is none, or after it has ended."""

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
        """End the thread after the check that it is in."""
        self._dismissed.set()


def boot_id() -> str:
    """Identifies this boot of the machine; empty where the system gives no id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""
