"""Opens the outbox's file: makes a new one, checks one that is there, and sets aside one that is not ours to use."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Final
from urllib.parse import quote

from exporter.core.state_codec import load_state
from exporter.outbox.errors import result_code
from exporter.ownership import refuse_foreign
from exporter.private_file import make_private, narrow

APPLICATION_ID: Final = 0x415A5345  # "AZSE", in the file's header
FORMAT: Final = 1
PAGE: Final = 4096
BUSY_SECONDS: Final = 1.0
_BESIDE: Final = r"(\.lock|(\.new|\.[a-z-]+-[0-9]{8}T[0-9]{6}Z(-[0-9]+)?)?(-wal|-shm|-journal)?)"
_PARTS: Final = ("", "-wal", "-shm", "-journal")
_ASIDE: Final = re.compile(r"\.[a-z-]+-([0-9]{8}T[0-9]{6}Z)(?:-([0-9]+))?\Z")
_CLOCK_SLACK: Final = timedelta(seconds=2)
"""File systems keep times to 2 s (FAT), and names to 1 s."""
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
    for suffix in _PARTS:
        refuse_foreign(f"{path}{suffix}")
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


def file_uri(path: PurePath) -> str:
    """The absolute path as a URI for SQLite, which knows no server but a path that begins with one [URI Filenames]."""
    place = path.as_posix()
    return "file://" + ("" if place.startswith("/") else "/") + quote(os.fsencode(place), safe="/:")


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

    `now` is a part of the name of what is set aside. Raises OSError or sqlite3.Error where the file can not be opened,
    or not be set aside: then it is as it was.
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


def is_whole(path: Path) -> bool:
    """Whether the file is an outbox of this version that was written to its end. Raises OSError or sqlite3.Error."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db:
        try:
            return bool(db.execute("PRAGMA schema_version").fetchone()[0]) and not fault_within(db)
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            return False


def remove_copy(path: Path) -> None:
    """Removes a database that nobody uses, with its journal. Raises OSError."""
    for suffix in _PARTS:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


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


Rename = Callable[[Path, Path], None]


def set_aside(path: Path, why: str, now: datetime, rename: Rename = os.rename, *, alone: bool = False) -> str:
    """Renames the file, with its journal, to a name that says `why` and when; answers a sentence for the log.

    `alone` where the journal beside it is not its own: then that stays where it is.

    Either all of them are renamed or, where one can't be, none: a journal that is left beside the next outbox would be
    lost or, worse, be read into it. On Windows nothing is renamed while somebody has it open. Raises OSError.
    """
    target = _free_name(path, why, now)
    with contextlib.ExitStack() as undo:
        # The database first: it is what a reader has open, and then nothing was done yet.
        for suffix in _PARTS[:1] if alone else _PARTS:
            source, goal = Path(f"{path}{suffix}"), Path(f"{target}{suffix}")
            narrow(source)  # it may be one that was put here
            try:
                rename(source, goal)
            except FileNotFoundError:
                continue
            undo.callback(_rename_back, goal, source, rename)
        undo.pop_all()
    return f"{path} was {why} and is now {target.name}; a new outbox was begun"


def _rename_back(goal: Path, source: Path, rename: Rename) -> None:
    with contextlib.suppress(OSError):  # then `reunite` puts the journal to its database
        rename(goal, source)


def _free_name(path: Path, why: str, now: datetime) -> Path:
    """A name to set the file aside under, that neither a database nor a part of one has."""
    base = f"{path.name}.{why}-{now:%Y%m%dT%H%M%SZ}"
    target = path.with_name(base)
    count = 1
    while any(os.path.lexists(f"{target}{suffix}") for suffix in _PARTS):
        count += 1
        target = path.with_name(f"{base}-{count}")
    return target


def reunite(path: Path, now: datetime) -> str:
    """Moves a journal that has no database at `path` out of the way of a new one; answers a sentence, or "".

    A process that died while it set its outbox aside leaves one behind, and SQLite would delete it. It goes to the
    database that it belongs to: the one that was set aside last, not before the journal was written, and has none.
    Otherwise it is kept under a name of its own. Raises OSError.
    """
    journal = Path(f"{path}-wal")
    if _size(path) or not _size(journal):
        return ""
    written = datetime.fromtimestamp(journal.stat().st_mtime, UTC) - _CLOCK_SLACK
    owner = next(
        (copy for aside_at, copy in _set_aside_last(path) if aside_at >= written and _lacks_journal(copy)), None
    )
    target = owner or _free_name(path, "no-database", now)
    narrow(journal)
    os.rename(journal, f"{target}-wal")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")
    return f"{journal} was left without its database and is now {target.name}-wal"


def _set_aside_last(path: Path) -> list[tuple[datetime, Path]]:
    """When and under which names databases of this path were set aside, the last of them alone."""
    found: list[tuple[datetime, int, Path]] = []
    for file in files_of(path):
        if match := _ASIDE.search(file.name):
            with contextlib.suppress(ValueError):  # a name that somebody else gave, of the 99th of a month
                at = datetime.strptime(match[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                found.append((at, int(match[2] or 1), file))
    return [(at, file) for at, _, file in sorted(found)[-1:]]


def _lacks_journal(copy: Path) -> bool:
    return not os.path.lexists(f"{copy}-wal")


def _size(path: Path) -> int:
    """Bytes in the file, 0 where there is none. Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


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
