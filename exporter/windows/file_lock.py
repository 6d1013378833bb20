"""A lock on the first byte of a file [LockFileEx].

Not by `msvcrt.locking`, which has one `errno` for a lock that another process has and for a file that can't be locked.
"""

from __future__ import annotations

import sys
from typing import Final

LOCK_VIOLATION: Final = 33
IO_PENDING: Final = 997


def is_taken(winerror: int) -> bool:
    """Whether the error says that another process has the lock; anything else says that nobody knows."""
    return winerror in (LOCK_VIOLATION, IO_PENDING)


def lock(descriptor: int) -> None:
    """Take the lock, without waiting. Raises BlockingIOError when another has it, and OSError."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # of Windows alone

        import pywintypes  # noqa: PLC0415  # of Windows alone
        import win32con  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone

        flags = win32con.LOCKFILE_EXCLUSIVE_LOCK | win32con.LOCKFILE_FAIL_IMMEDIATELY
        try:
            win32file.LockFileEx(msvcrt.get_osfhandle(descriptor), flags, 1, 0, pywintypes.OVERLAPPED())
        except pywintypes.error as error:
            if is_taken(error.winerror):
                raise BlockingIOError(error.strerror) from error
            raise OSError(0, error.strerror, None, error.winerror) from error


def unlock(descriptor: int) -> None:
    """Give the lock back at once: Windows takes its time with a file that is closed. Raises OSError."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # of Windows alone

        import pywintypes  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone

        try:
            win32file.UnlockFileEx(msvcrt.get_osfhandle(descriptor), 1, 0, pywintypes.OVERLAPPED())
        except pywintypes.error as error:
            raise OSError(0, error.strerror, None, error.winerror) from error
