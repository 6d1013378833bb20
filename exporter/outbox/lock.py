"""An advisory lock that allows one agent per outbox. The system releases it when the process ends for any reason.

On POSIX the lock is on the database, through a separate descriptor: there is no second file that could be removed. On
Windows, where a lock also prevents reads, it is on a file next to the database, which can't be removed while locked.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

_OPEN: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class FileLock:
    """The lock of the outbox at a path.

    Closing any descriptor of a database releases the locks that SQLite holds on that file in this process. So call
    `release` after closing the connections, and `acquire` with open connections only if another file is at the path.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(f"{database.name}.lock") if sys.platform == "win32" else database
        """The file that is locked."""
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Lock the file at the path; create it if there is none. Return False if another process has the lock.

        Never waits. Releases a lock on a file that is no longer at the path. Raises OSError if the file can't be opened
        for writing.
        """
        for _ in range(3):  # again if the file is replaced between the two calls
            if self.is_held():
                return True
            descriptor = os.open(self.path, _OPEN, 0o600)
            try:
                _lock(descriptor)
            except OSError as error:
                os.close(descriptor)
                if isinstance(error, BlockingIOError):
                    return False
                raise
            self.release()
            self._descriptor = descriptor
        return self.is_held()

    def is_held(self) -> bool:
        """Return whether the locked file is still the one at the path. Raises OSError."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                _unlock(self._descriptor)
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


if sys.platform == "win32":
    from exporter.windows.system import lock as _lock
    from exporter.windows.system import unlock as _unlock
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        """Do nothing: closing the file releases the lock."""
