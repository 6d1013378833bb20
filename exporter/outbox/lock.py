"""One process per file: an advisory lock that the system releases when the process dies, however it dies."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

_OPEN: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class FileLock:
    """A lock on a file of its own, which stays behind when the lock is released."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Whether the lock is ours now; it never waits. Raises OSError when the file can't be made.

        When it is ours already, it is taken again if the file was removed: a lock on a removed file keeps nobody out.
        """
        if self._descriptor is not None and self._still_there(self._descriptor):
            return True
        descriptor = os.open(self._path, _OPEN, 0o600)
        try:
            _lock(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self.release()
        self._descriptor = descriptor
        return True

    def _still_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Gives the lock back. Without one it does nothing."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(str(error)) from error

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
