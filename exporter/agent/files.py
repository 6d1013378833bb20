"""Checks whether the files that approvals ask for exist, within a time limit."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from typing import Final

from exporter.core.policy import Presence
from exporter.daemon import DaemonCall
from exporter.windows import access
from exporter.windows.places import FILE_NOT_FOUND, is_not_found, is_own_name

PATIENCE_SECONDS: Final = 0.5
MOST_STUCK: Final = 16
"""Threads that may wait for a file system at once. While so many do, every file is UNKNOWN."""


def check_files(paths: Iterable[str]) -> dict[str, Presence]:
    """The presence of a file at each path. Waits for the file system; `FileChecker` has a time limit."""
    return {path: presence(path) for path in paths}


def presence(
    path: str, platform: str = sys.platform, is_exposed: Callable[[str], bool] = access.is_exposed
) -> Presence:
    """Whether there is a file at `path`. A link is not ABSENT, and PRESENT if it leads to a regular file.

    ABSENT is "no such file" (`is_absence`) in a folder that exists before the check and is the same one after it. A
    missing folder, mount, drive or share is UNKNOWN: systems have different error numbers for these, and Python raises
    FileNotFoundError for most of them. So is what is no absolute path of this system, as a Windows path is on
    Linux the name of another file, and on Windows a name that means another file than the one a person makes. On
    Windows a file is UNTRUSTED if a stranger may decide what is there (`access.intruder`).
    """
    if not (is_own_name(path) if platform == "win32" else posixpath.isabs(path)):
        return Presence.UNKNOWN
    folder = os.path.dirname(path) or os.curdir
    try:
        before = _folder(folder)
        if is_exposed(path):
            return Presence.UNTRUSTED
        try:
            os.lstat(path)
        except FileNotFoundError as error:
            absent = is_absence(error.errno, getattr(error, "winerror", None), sys.platform) and _is_not_found(path)
            return Presence.ABSENT if absent and before is not None and _folder(folder) == before else Presence.UNKNOWN
        return Presence.PRESENT if stat.S_ISREG(os.stat(path).st_mode) else Presence.UNKNOWN
    except (OSError, ValueError):
        return Presence.UNKNOWN


def is_absence(number: int | None, winerror: int | None, platform: str) -> bool:
    """Whether an error of the system, its `errno` and its `winerror`, can say "no such file in this folder".

    On Windows ERROR_FILE_NOT_FOUND alone [System error codes]. Python gives the same `errno` to a path (3), a drive
    (15), a server (53) and a share (67) that are not found, and to a name that can't be (123, 161).
    """
    return winerror == FILE_NOT_FOUND if platform == "win32" else number == errno.ENOENT


def _is_not_found(path: str) -> bool:
    """Whether the system itself says so: on Windows Python may have looked through a folder that hides the file."""
    return sys.platform != "win32" or is_not_found(path)


def _folder(path: str) -> tuple[int, int] | None:
    """Device and inode of the folder; None if it is no folder. Raises OSError."""
    status = os.stat(path)
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


class FileChecker:
    """`check_files` with a time limit: what is not known within `patience` seconds for all paths together is UNKNOWN.

    The checks are made on a daemon thread. If it blocks in a file system that does not answer, it is left behind, and
    that path is not checked again until it returns. May be called from any thread; a second caller waits for the first.
    """

    def __init__(self, presence: Callable[[str], Presence] = presence, patience: float = PATIENCE_SECONDS) -> None:
        self._presence = presence
        self._patience = patience
        self._asking = threading.Lock()
        self._stuck: dict[str, DaemonCall[None]] = {}

    def __call__(self, paths: Iterable[str]) -> dict[str, Presence]:
        """The presence of a file at each path."""
        with self._asking:
            self._stuck = {path: call for path, call in self._stuck.items() if not call.done()}
            presences = dict.fromkeys(paths, Presence.UNKNOWN)
            free = [path for path in presences if path not in self._stuck]
            return presences | self._check(free) if free and len(self._stuck) < MOST_STUCK else presences

    def _check(self, paths: Sequence[str]) -> dict[str, Presence]:
        found: dict[str, Presence] = {}
        left_behind = threading.Event()

        def check() -> None:
            for path in paths:
                if not left_behind.is_set():
                    found[path] = self._presence(path)

        try:
            call = DaemonCall(check, "files")
        except RuntimeError:  # the system starts no more threads
            return {}
        wait([call], self._patience)
        left_behind.set()
        known = found.copy()
        if not call.done() and (stuck := next((path for path in paths if path not in known), None)):
            self._stuck[stuck] = call
        return known
