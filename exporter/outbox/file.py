"""Opens the outbox's file: makes a new one, checks one that is there, and sets aside one that is not ours to use."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from exporter.core.state_codec import load_state
from exporter.outbox.errors import result_code
from exporter.private_file import make_private, narrow

APPLICATION_ID: Final = 0x415A5345  # "AZSE", in the file's header
FORMAT: Final = 1
PAGE: Final = 4096
BUSY_SECONDS: Final = 1.0
_BESIDE: Final = r"(\.lock|(\.new|\.[a-z-]+-[0-9]{8}T[0-9]{6}Z(-[0-9]+)?)?(-wal|-shm|-journal)?)"
_SCHEMA: Final = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE records (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, body BLOB NOT NULL,"
    " created REAL NOT NULL)",
    "CREATE TABLE queue (destination TEXT NOT NULL, seq INTEGER NOT NULL, subject TEXT NOT NULL, parked TEXT,"
    " PRIMARY KEY (destination, seq)) WITHOUT ROWID",
    "CREATE INDEX queue_order ON queue (destination, subject, seq) WHERE parked IS NULL",
    "CREATE INDEX queue_seq ON queue (seq)",
    "CREATE TABLE destination (name TEXT PRIMARY KEY, attempts INTEGER NOT NULL, due REAL NOT NULL,"
    " error TEXT NOT NULL, last_success REAL) WITHOUT ROWID",
)


def connect(path: Path, capacity: int, synchronous: str) -> sqlite3.Connection:
    """A connection in WAL mode that lets the file grow to `capacity` bytes.

    Each statement is a transaction of its own outside `transaction`. `synchronous` is SQLite's setting of that name.
    Raises OSError or sqlite3.Error.
    """
    make_private(path)  # SQLite gives its journal the mode that the file has
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
    pages = max(16, capacity // PAGE)
    try:
        db.execute(f"PRAGMA page_size={PAGE}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.execute(f"PRAGMA max_page_count={pages}")
        # Often: a journal that has grown on a disk with little room is what fills it, and can't be emptied then.
        db.execute(f"PRAGMA wal_autocheckpoint={max(16, min(128, pages // 8))}")
        db.execute(f"PRAGMA journal_size_limit={max(16 * PAGE, min(4 << 20, capacity // 8))}")
    except sqlite3.Error:
        db.close()
        raise
    return db


def fault(db: sqlite3.Connection) -> str:
    """Why this file is not ours to use: `foreign`, `corrupt`, or an empty string. An empty file becomes ours.

    Raises sqlite3.Error.
    """
    if db.execute("PRAGMA schema_version").fetchone()[0] == 0:
        with transaction(db):
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={FORMAT}")
        return ""
    return fault_within(db)


def is_ours(db: sqlite3.Connection) -> bool:
    """Whether the file's header says that it is an outbox of this version."""
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    user_version = db.execute("PRAGMA user_version").fetchone()[0]
    return bool((application_id, user_version) == (APPLICATION_ID, FORMAT))


def fault_within(db: sqlite3.Connection) -> str:
    """As `fault`, for a file that is not empty; writes nothing."""
    if not is_ours(db):
        return "foreign"
    if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        return "corrupt"
    row = db.execute("SELECT value FROM meta WHERE key = 'state'").fetchone()
    try:
        if row is not None:
            load_state(row[0])
    except ValueError:
        return "corrupt"
    return ""


def open_or_set_aside(path: Path, capacity: int, now: datetime) -> tuple[sqlite3.Connection, str]:
    """A checked connection, and a sentence about what had to be set aside for it (or an empty string).

    `now` is a part of the name of what is set aside. Raises OSError or sqlite3.Error where the file can not be opened.
    """
    why = "corrupt"
    try:
        with contextlib.ExitStack() as undo:
            db = connect(path, capacity, "FULL")
            undo.callback(db.close)  # before the file is renamed, which not every system does with one that is open
            why = fault(db)
            if not why:
                undo.pop_all()
                return db, ""
    except sqlite3.DatabaseError as error:
        if not is_corrupt(error):
            raise
    note = set_aside(path, why, now)
    db = connect(path, capacity, "FULL")
    fault(db)
    return db, note


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether the error says that the file is damaged, or no database at all."""
    return result_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def files_of(path: Path) -> list[Path]:
    """The outbox's file and what stands beside it under our own names: journal, lock, copy, what was set aside."""
    own_name = re.compile(re.escape(path.name) + _BESIDE)
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:  # a folder that may be used but not listed
        names = [f"{path.name}{suffix}" for suffix in ("", "-wal", "-shm", ".lock")]
    return [path.with_name(name) for name in names if own_name.fullmatch(name)]


def set_aside(path: Path, why: str, now: datetime) -> str:
    """Renames the file, with its journal, to a name that says `why` and when; answers a sentence for the log.

    Raises OSError.
    """
    base = f"{path.name}.{why}-{now:%Y%m%dT%H%M%SZ}"
    target = path.with_name(base)
    count = 1
    while target.exists():
        count += 1
        target = path.with_name(f"{base}-{count}")
    for suffix in ("-wal", "-shm", ""):
        narrow(Path(f"{path}{suffix}"))  # it may be one that was put here
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{target}{suffix}")
    return f"{path} was {why} and is now {target.name}; a new outbox was begun"


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One write transaction: committed at the end, rolled back on any error. Raises sqlite3.Error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def used_bytes(db: sqlite3.Connection) -> int:
    """Bytes that the content takes, free pages not counted."""
    pages: int = db.execute("PRAGMA page_count").fetchone()[0] - db.execute("PRAGMA freelist_count").fetchone()[0]
    return pages * PAGE
