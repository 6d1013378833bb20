"""The outbox's failures, and the translation of SQLite's and the system's errors to them.

Failure
├── Retryable
│   └── OutboxUnwritable   disk full, read-only, file missing: retry
└── Permanent
    └── OutboxBusy         another agent uses the file: do not start
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from exporter.errors import Permanent, Retryable


class OutboxUnwritable(Retryable):
    """A read or write that failed for now. `detail` contains the path.

    `reason` is `full`, `read-only`, `busy`, `corrupt`, `gone`, `directory`, or `io`.
    """


class OutboxBusy(Permanent):
    """Another agent uses this file."""


SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""Python's exceptions for SQLite's errors: the second if the message contains a damaged name that is not UTF-8."""
_SYSTEM: Final = {
    "read-only": (errno.EACCES, errno.EPERM, errno.EROFS),
    "full": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "gone": (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP),
    "directory": (errno.EISDIR,),
}
_WINDOWS: Final = {
    "gone": (21, 433),  # not ready; no such device
    "busy": (32, 33, 303, 1224),  # sharing violation; lock violation; delete pending; user mapped file
    "full": (39, 223, 1295),  # handle disk full; file too large; disk quota exceeded
}
"""[System error codes] that Python maps to a less exact `errno`: EACCES for 21, 32, and 33, EINVAL for the others."""
_SQLITE: Final = {
    "full": (sqlite3.SQLITE_FULL,),
    "read-only": (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM),
    "busy": (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL),
    "gone": (sqlite3.SQLITE_CANTOPEN,),
    "io": (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_MISUSE),
}
"""By primary result code. Every statement is a constant and was valid when the file was created. So any other error
comes from the file's content: an unreadable schema, a violated constraint, or text that is not UTF-8 (for which Python
has no code)."""


def reason_of(error: OSError | sqlite3.Error | UnicodeDecodeError) -> str:
    """Return the `reason` of an `OutboxUnwritable`, by the system's error or by SQLite's primary result code."""
    if isinstance(error, OSError):
        return system_reason(error.errno, getattr(error, "winerror", None))
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return "io"  # from Python's module: a closed connection
    return _reason_in(_SQLITE, getattr(error, "sqlite_errorcode", 0) & 0xFF) or "corrupt"


def message_of(error: OSError | sqlite3.Error | UnicodeDecodeError, path: Path) -> str:
    """Return the text of SQLite's or the system's error, after the path of its file: the outbox's if it names none."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or path}: {error.strerror}"
    text = error.object.decode(errors="backslashreplace") if isinstance(error, UnicodeDecodeError) else error
    return f"{path}: {text}"


def refuse_directory(path: Path) -> None:
    """Raise `OutboxUnwritable`, with advice, if the path of the outbox is a directory."""
    if os.path.isdir(path):
        inside = path / "outbox.db"
        advice = f"use {inside}" if os.path.isfile(inside) else "use the path of the file in it"
        raise OutboxUnwritable("directory", f"{path}: a directory, not an outbox; {advice}")


def is_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Return whether the error may come from damaged content. SQLite also reports a disk's read error this way."""
    return reason_of(error) == "corrupt"


def system_reason(number: int | None, winerror: int | None) -> str:
    """Return the `reason` by an error's `errno`, or by its `winerror` if that is more exact."""
    return _reason_in(_WINDOWS, winerror) or _reason_in(_SYSTEM, number) or "io"


def _reason_in(table: Mapping[str, Collection[int]], number: int | None) -> str:
    return next((reason for reason, numbers in table.items() if number in numbers), "")


class Guard:
    """A context manager that turns SQLite's and the system's errors into `OutboxUnwritable`.

    It calls `doubt` with the reason of each. It is a class because `contextlib.contextmanager`, from Python 3.12 on,
    makes a reference cycle of the error and all frames, which keeps their documents until the next collection.
    """

    def __init__(self, path: Path, doubt: Callable[[str], object]) -> None:
        self._path = path
        self._doubt = doubt

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OutboxUnwritable):
            self._doubt(error.reason)
        elif isinstance(error, (OSError, *SQLITE_ERRORS)):
            self._doubt(reason_of(error))
            raise OutboxUnwritable(reason_of(error), message_of(error, self._path)) from error
