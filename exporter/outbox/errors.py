"""How the outbox fails, and the border at which SQLite's and the system's errors become that.

Failure
├── Retryable
│   └── OutboxUnwritable   not now: disk full, read-only, gone; try again
└── Permanent
    └── OutboxBusy         another agent holds the file: do not start
"""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from typing import Final

from exporter.errors import Permanent, Retryable


class OutboxUnwritable(Retryable):
    """The disk does not take it now. `reason` is `full`, `read-only`, `busy`, `corrupt`, `gone` or `io`."""


class OutboxBusy(Permanent):
    """Another agent works on this file."""


_SYSTEM: Final = {
    errno.EACCES: "read-only",
    errno.EPERM: "read-only",
    errno.EROFS: "read-only",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.ENOENT: "gone",
    errno.ENOTDIR: "gone",
    errno.EEXIST: "gone",
}
_WINDOWS: Final = {
    2: "gone",  # file not found
    3: "gone",  # path not found
    5: "read-only",  # access denied
    15: "gone",  # invalid drive
    19: "read-only",  # write protected
    21: "gone",  # not ready
    32: "busy",  # sharing violation
    33: "busy",  # lock violation
    39: "full",  # handle disk full
    53: "gone",  # bad network path
    55: "gone",  # device does not exist
    64: "gone",  # network name deleted
    67: "gone",  # bad network name
    80: "gone",  # file exists
    112: "full",  # disk full
    183: "gone",  # already exists
    223: "full",  # file too large
    303: "busy",  # delete pending
    433: "gone",  # no such device
    1224: "busy",  # user mapped file
    1295: "full",  # disk quota exceeded
}
"""[System error codes]. Python's `errno` is the same for some that differ here: 32 and 19 are EACCES to it."""
_SQLITE: Final = {
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
    sqlite3.SQLITE_CANTOPEN: "gone",
}


def reason_of(error: OSError | sqlite3.Error) -> str:
    """The `reason` of an `OutboxUnwritable`, by the system's error or by SQLite's primary result code."""
    if isinstance(error, OSError):
        return system_reason(error.errno, getattr(error, "winerror", None))
    return _SQLITE.get(result_code(error), "io")


def system_reason(number: int | None, winerror: int | None) -> str:
    """The `reason` by an error's `errno`, or by its `winerror` where it has one, which says more."""
    return _SYSTEM.get(number or 0, "io") if winerror is None else _WINDOWS.get(winerror, "io")


def result_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 where Python's own module raised the error without one."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # not a part of `sqlite3.Error`'s type, and not always there


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns SQLite's and the system's errors into `OutboxUnwritable`. The only place that does."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise OutboxUnwritable(reason_of(error), str(error)) from error
