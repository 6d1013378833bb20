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
                _unlock(self._descriptor)
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


if sys.platform == "win32":
    from exporter.windows.file_lock import lock as _lock
    from exporter.windows.file_lock import unlock as _unlock
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        """To close the file is enough."""
