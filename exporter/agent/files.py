"""Checks whether the files that approval rules require exist, within a time limit."""

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
"""Maximum number of threads that wait for a file system. At the maximum, every file is UNKNOWN."""


def check_files(paths: Iterable[str]) -> dict[str, Presence]:
    """Return the presence of a file at each path. Blocks on the file system; `FileChecker` has a time limit."""
    return {path: presence(path) for path in paths}


def presence(
    path: str, platform: str = sys.platform, is_exposed: Callable[[str], bool] = access.is_exposed
) -> Presence:
    """Return whether there is a file at `path`. A link is never ABSENT; it is PRESENT if it leads to a regular file.

    - ABSENT: the error is "no such file" (`is_absence`), and the folder exists and stays the same during the check.
    - UNKNOWN: the folder, mount, drive, or share is missing. The error numbers differ between systems, and Python
      raises FileNotFoundError for most of them. Also a path that isn't absolute on this system (a Windows path on Linux
      names another file), and on Windows a name that the system maps to another file.
    - UNTRUSTED, on Windows only: an untrusted account may decide what is there (`access.intruder`).
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
            absent = is_absence(error.errno, getattr(error, "winerror", None), sys.platform)
            if sys.platform == "win32":  # Python also raises this for a file that its folder hides
                absent = absent and is_not_found(path)
            return Presence.ABSENT if absent and before is not None and _folder(folder) == before else Presence.UNKNOWN
        return Presence.PRESENT if stat.S_ISREG(os.stat(path).st_mode) else Presence.UNKNOWN
    except (OSError, ValueError):
        return Presence.UNKNOWN


def is_absence(number: int | None, winerror: int | None, platform: str) -> bool:
    """Return whether a system error (`errno` and `winerror`) means "no such file in this folder".

    On Windows only ERROR_FILE_NOT_FOUND [System error codes]. Python uses the same `errno` for a path (3), a drive
    (15), a server (53), and a share (67) that are not found, and for an invalid name (123, 161).
    """
    return winerror == FILE_NOT_FOUND if platform == "win32" else number == errno.ENOENT


def _folder(path: str) -> tuple[int, int] | None:
    """Return device and inode of the folder; None if `path` is something else. Raises OSError."""
    status = os.stat(path)
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


class FileChecker:
    """`check_files` with a time limit of `patience` seconds for all paths together; then a file is UNKNOWN.

    The checks run on a daemon thread. If it hangs in the file system, it is abandoned, and its path isn't checked until
    it returns. May be called from any thread; a second caller waits for the first.
    """

    def __init__(self, presence: Callable[[str], Presence] = presence, patience: float = PATIENCE_SECONDS) -> None:
        self._presence = presence
        self._patience = patience
        self._asking = threading.Lock()
        self._stuck: dict[str, DaemonCall[None]] = {}

    def __call__(self, paths: Iterable[str]) -> dict[str, Presence]:
        """Return the presence of a file at each path."""
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
        except RuntimeError:  # the system can't start more threads
            return {}
        wait([call], self._patience)
        left_behind.set()
        known = found.copy()
        if not call.done() and (stuck := next((path for path in paths if path not in known), None)):
            self._stuck[stuck] = call
        return known
