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
    """The `reason` of an `OutboxUnwritable`, by the system's `errno` or by SQLite's primary result code."""
    if isinstance(error, OSError):
        return _SYSTEM.get(error.errno or 0, "io")
    return _SQLITE.get(result_code(error), "io")


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
