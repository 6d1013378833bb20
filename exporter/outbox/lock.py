"""One agent per outbox: an advisory lock that the system releases when the process ends, however it ends.

On POSIX it is on the database itself, on a descriptor of its own: there is no second file that could be removed. On
Windows, where a lock also keeps others from reading, it is on a file next to it, which nobody can remove meanwhile.
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

    Closing any descriptor of a database ends the locks that SQLite holds on that file in this process. So `release` is
    called after its connections were closed, and `acquire` while it is open only if another file is at the path.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(f"{database.name}.lock") if sys.platform == "win32" else database
        """The file that is locked."""
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Lock the file that is at the path now; make it if there is none. Return False if another process has it.

        Never waits. Of a lock on a file that is no longer at the path nothing remains. Raises OSError if the file can't
        be opened for writing.
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
        """Whether the file that is locked is still the one at the path. Raises OSError."""
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
        """To close the file is enough."""
