"""The outbox's file and its journal: create, examine, and quarantine if unusable."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import sqlite3
import struct
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import quote

from msgspec import Struct, field

from exporter.core.state import State
from exporter.core.state_codec import load_state
from exporter.files import narrow, refuse_foreign
from exporter.outbox.errors import SQLITE_ERRORS, is_damage

APPLICATION_ID: Final = 0x415A5345  # "AZSE", in the file's header
FORMAT: Final = 1
PAGE: Final = 4096
META_PAGE: Final = 2
"""Page of the table `meta`. Each commit and heartbeat of the agent writes and flushes it; deliveries never do."""
BUSY_SECONDS: Final = 1.0
_SUFFIXES: Final = r"(\.lock|(\.new|\.[a-z-]+-[0-9]{8}T[0-9]{6}Z(-[0-9]+)?)?(-wal|-shm|-journal)?)"
_PARTS: Final = ("", "-wal", "-shm", "-journal")
_QUARANTINED: Final = re.compile(
    r"(?P<copy>.+\.(?:corrupt|other-vm|replaced|no-database)-(?P<at>[0-9]{8}T[0-9]{6}Z)(?:-(?P<number>[0-9]+))?)"
    r"(?:-wal|-shm|-journal)?"
)
"""Names of copies that the agent may remove. A `foreign` one is another program's database and is kept."""
_COPIES: Final = 2
_SCHEMA: Final = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE records (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, body BLOB NOT NULL,"
    " created REAL NOT NULL)",
    "CREATE TABLE queue (destination TEXT NOT NULL, seq INTEGER NOT NULL, subject TEXT NOT NULL, parked TEXT,"
    " PRIMARY KEY (destination, seq)) WITHOUT ROWID",
    "CREATE INDEX queue_order ON queue (destination, subject, seq) WHERE parked IS NULL",
    "CREATE INDEX queue_seq ON queue (seq)",
    "CREATE TABLE destination (name TEXT PRIMARY KEY, error TEXT NOT NULL, last_success REAL) WITHOUT ROWID",
)
_MAGIC: Final = b"SQLite format 3\0"
_VERSIONS: Final = (b"\1\1", b"\2\2")
"""Write and read version [Database File Format, 1.3.3]. SQLite opens a file with a later one read-only."""
_TABLES: Final = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
MOST_ROWS: Final = 1 << 62
"""Exclusive upper bound of row numbers."""
_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_MOST_BYTES: Final = 32 << 20
"""Maximum size of a journal that is examined, which takes a second. The agent's journals have 1 % of that."""
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"


def connect(path: Path, capacity: int, synchronous: str) -> sqlite3.Connection:
    """Return a connection in WAL mode to the file at the path, limited to `capacity` bytes.

    Outside `transaction`, each statement is a separate transaction. `synchronous` is the SQLite pragma. Raises
    sqlite3.Error, also for a missing file, and PermissionError for another user's file.
    """
    for suffix in _PARTS:
        refuse_foreign(f"{path}{suffix}")
    uri = f"{file_uri(path.absolute())}?mode=rw"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
    pages = max(16, capacity // PAGE)
    try:
        db.execute(f"PRAGMA page_size={PAGE}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.execute(f"PRAGMA max_page_count={pages}")
        # Checkpoint often: a large journal can fill a small disk, and can't be emptied then.
        db.execute(f"PRAGMA wal_autocheckpoint={max(16, min(128, pages // 8))}")
        db.execute(f"PRAGMA journal_size_limit={max(16 * PAGE, min(4 << 20, capacity // 8))}")
    except SQLITE_ERRORS:
        db.close()
        raise
    return db


def file_uri(path: PurePath) -> str:
    """Return the absolute path as a URI for SQLite, with an empty authority, also for UNC paths [URI Filenames]."""
    text = path.as_posix()
    return "file://" + ("" if text.startswith("/") else "/") + quote(os.fsencode(text), safe="/:")


def make_tables(db: sqlite3.Connection) -> None:
    """Create the outbox's tables in an empty database. Raises sqlite3.Error."""
    for statement in _SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={FORMAT}")


def is_ours(db: sqlite3.Connection) -> bool:
    """Return whether the file's header identifies an outbox of this version."""
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    user_version = db.execute("PRAGMA user_version").fetchone()[0]
    return bool((application_id, user_version) == (APPLICATION_ID, FORMAT))


def is_blank(db: sqlite3.Connection) -> bool:
    """Return whether nothing was ever written to the file. Raises sqlite3.Error."""
    return bool(db.execute("PRAGMA schema_version").fetchone()[0] == 0)


def unusable_reason(db: sqlite3.Connection) -> str:
    """Return why a file that is not blank can't be used: `foreign`, `corrupt`, or an empty string. Writes nothing.

    Reads everything that the agent reads later, except the records' bodies. Raises sqlite3.Error for an error that the
    content did not cause.
    """
    try:
        is_whole = db.execute(_TABLES).fetchall() == _own_tables()
        if not is_ours(db):
            is_of_this_version = db.execute("PRAGMA user_version").fetchone()[0] == FORMAT
            return "corrupt" if is_whole and is_of_this_version else "foreign"
        if not is_whole or db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
            return "corrupt"
        times = "SELECT created, id FROM records UNION ALL SELECT ifnull(last_success, 0), error FROM destination"
        for time, _text in db.execute(times):
            datetime.fromtimestamp(time, UTC)
        for _texts in db.execute("SELECT destination, subject, parked FROM queue"):
            pass
        missing = "SELECT seq FROM queue EXCEPT SELECT seq FROM records LIMIT 1"
        mistyped = "SELECT 1 FROM records WHERE typeof(body) <> 'blob' OR seq NOT BETWEEN 1 AND ? LIMIT 1"
        uncounted = "SELECT 1 FROM sqlite_sequence WHERE typeof(seq) <> 'integer' OR seq NOT BETWEEN 0 AND ? LIMIT 1"
        bounds = (MOST_ROWS,)
        if any(db.execute(*query).fetchone() for query in ((missing,), (mistyped, bounds), (uncounted, bounds))):
            return "corrupt"
        load_meta(db)
    except SQLITE_ERRORS as error:
        if not is_damage(error):
            raise
        return "corrupt"
    except (ValueError, TypeError, OverflowError, OSError):
        return "corrupt"
    return ""


@functools.cache
def _own_tables() -> list[tuple[object, ...]]:
    """Return the result of `_TABLES` for a new outbox."""
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        make_tables(fresh)
        return fresh.execute(_TABLES).fetchall()


def load_meta(db: sqlite3.Connection) -> tuple[State | None, str]:
    """Return the state, None if there is none yet, and the text of the last heartbeat, "" if there is none.

    Raises ValueError for an unreadable state, and sqlite3.Error.
    """
    meta: dict[str, bytes] = dict(db.execute("SELECT key, CAST(value AS BLOB) FROM meta").fetchall())
    state = load_state(meta["state"].decode()) if "state" in meta else None
    return state, meta.get("seen", b"").decode(errors="replace")


def examined(path: Path, capacity: int) -> tuple[sqlite3.Connection | None, str]:
    """Return a connection to the file at the path, or None and the reason: `foreign` or `corrupt`.

    A blank file becomes an outbox. SQLite reports a disk's read error as damage. So a file that seems damaged is
    closed, read completely without SQLite, which raises OSError for a read error, and examined twice more. Raises
    OSError or sqlite3.Error for an error that the content did not cause.
    """
    for attempt in range(3):
        db, why = _examined_once(path, capacity)
        if why != "corrupt":
            return db, why
        if not attempt:
            _read_whole(path)
    return None, "corrupt"


def _examined_once(path: Path, capacity: int) -> tuple[sqlite3.Connection | None, str]:
    with path.open("rb") as file:
        header = file.read(20)
    if header.startswith(_MAGIC) and header[18:20] not in _VERSIONS:
        return None, "corrupt"
    if read_journal(path).is_damaged:
        return None, "corrupt"  # before SQLite discards the damaged part
    with contextlib.ExitStack() as undo:
        try:
            db = connect(path, capacity, "FULL")
            undo.callback(db.close)  # Windows renames no open file
            if is_blank(db):
                with transaction(db):
                    make_tables(db)
            elif why := unusable_reason(db):
                return None, why
        except SQLITE_ERRORS as error:
            if not is_damage(error):
                raise
            return None, "corrupt"
        undo.pop_all()
        return db, ""


def _read_whole(path: Path) -> None:
    for suffix in ("", "-wal"):
        with contextlib.suppress(FileNotFoundError), open(f"{path}{suffix}", "rb") as file:
            while file.read(1 << 20):
                pass


def remove_parts(path: Path, parts: Sequence[str] = _PARTS) -> None:
    """Remove a database that is not in use, with its journal, or only some of its `parts`. Raises OSError."""
    for suffix in parts:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def files_of(path: Path) -> list[Path]:
    """Return the outbox's file and the agent's files next to it: journal, lock, `.new` file, and quarantined copies."""
    own_name = re.compile(re.escape(path.name) + _SUFFIXES)
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:  # a folder without the right to list it
        names = [f"{path.name}{suffix}" for suffix in ("", "-wal", "-shm", ".lock")]
    return [path.with_name(name) for name in names if own_name.fullmatch(name)]


def quarantine(path: Path, why: str, now: datetime) -> Path:
    """Rename the file, with its journal, to a name that contains `why` and the time. Return the new name.

    If one of them can't be renamed, the remaining ones stay; a journal that is left is quarantined before the next
    outbox is created. Windows renames no file that another program has open. Only the newest `_COPIES` copies are kept.
    Raises OSError.
    """
    target = _free_name(path, why, now)
    for suffix in _PARTS:  # the database first: if a reader has it open, nothing was renamed yet
        source = Path(f"{path}{suffix}")
        if size_of(source):  # SQLite would delete the journal of an empty database
            narrow(source)  # another program may have put it here
            os.rename(source, f"{target}{suffix}")
    for copy in [copy for _, _, copy in _copies(path) if copy != target][: 1 - _COPIES]:
        with contextlib.suppress(OSError):  # another program has it open: removed with the next one
            remove_parts(copy)
    return target


def stranger_at(path: Path) -> str:
    """Return why a file that replaced the outbox is quarantined: `foreign` or `replaced`. Raises OSError."""
    with open(path, "rb") as file:
        header = file.read(PAGE)
    is_outbox = header[68:72] == APPLICATION_ID.to_bytes(4, "big") or size_of(Path(f"{path}-wal"))
    return "foreign" if header.startswith(_MAGIC) and not is_outbox else "replaced"


def _free_name(path: Path, why: str, now: datetime) -> Path:
    """Return an unused name for the copy, with a number higher than those of the same second."""
    at = f"{now:%Y%m%dT%H%M%SZ}"
    numbers = itertools.count(1 + max((number for when, number, _ in _copies(path) if when == at), default=0))
    names = (path.with_name(f"{path.name}.{why}-{at}{f'-{number}' if number > 1 else ''}") for number in numbers)
    return next(name for name in names if not any(os.path.lexists(f"{name}{suffix}") for suffix in _PARTS))


def _copies(path: Path) -> list[tuple[str, int, Path]]:
    """Return time, number, and path of each quarantined copy, oldest first."""
    found = filter(None, (_QUARANTINED.fullmatch(str(file)) for file in files_of(path)))
    return sorted({(match["at"], int(match["number"] or 1), Path(match["copy"])) for match in found})


def size_of(path: Path) -> int:
    """Return the size of the file in bytes, 0 if there is none. Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Run a write transaction: commit at the end, roll back on any error. Raises sqlite3.Error."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(*SQLITE_ERRORS):
            db.execute("ROLLBACK")
        raise


def used_bytes(db: sqlite3.Connection) -> int:
    """Return the bytes that the content uses, without free pages."""
    pages: int = db.execute("PRAGMA page_count").fetchone()[0] - db.execute("PRAGMA freelist_count").fetchone()[0]
    return pages * PAGE


class Journal(Struct):
    """The committed content of a journal, read without SQLite [Database File Format, 4].

    SQLite reads a journal up to the first frame with a wrong checksum and discards the rest, because a crash leaves
    such an end. A damaged frame looks the same, and would cost every later transaction. They differ as follows: each
    checksum continues the previous one, so frames whose checksums match were written in sequence. And the agent's
    commits are flushed, with everything before them, before the next transaction begins. So a wrong frame that is
    followed by an agent's commit and another transaction is damaged.
    """

    path: Path
    pages: dict[int, int] = field(default_factory=dict)
    """Offset of the newest content of each page in the journal, by page number."""
    places: list[int] = field(default_factory=list)
    """Offsets of all page contents, including older and damaged ones."""
    is_damaged: bool = False
    """Whether some of the committed content can't be read."""


class _Frame(NamedTuple):
    page: int
    place: int
    is_commit: bool
    fits: bool
    """Whether its checksum is right, and continues the previous one."""


def read_journal(database: Path) -> Journal:
    """Read the journal of an outbox that is not open. Raises OSError."""
    journal = Journal(database.with_name(f"{database.name}-wal"))
    with contextlib.suppress(FileNotFoundError), journal.path.open("rb") as file:
        if journal.path.stat().st_size <= _MOST_BYTES:
            _read_frames(file, journal)
    return journal


def _read_frames(file: BinaryIO, journal: Journal) -> None:
    header = file.read(_HEADER).ljust(_HEADER, b"\0")
    frame = file.read(_FRAME_HEADER + PAGE)
    order = ">" if header[3:4] == b"\x83" else "<"
    is_whole = any(header) and _sum(order, bytes(8), header[:24]) == header[24:]
    salts = header[16:24] if is_whole else frame[8:16]
    order = order if is_whole else _NATIVE
    before, place = header[24:], _HEADER + _FRAME_HEADER
    runs: list[list[_Frame]] = [[]]
    while len(frame) == _FRAME_HEADER + PAGE:
        number, size_after = struct.unpack_from(">II", frame)
        is_ours = frame[8:16] == salts
        fits = is_ours and _sum(order, before, frame[:8] + frame[_FRAME_HEADER:]) == frame[16:24]
        if not fits:
            runs.append([])
        runs[-1].append(_Frame(number, place, is_ours and size_after > 0, fits))
        before, place = frame[16:24], place + len(frame)
        frame = file.read(_FRAME_HEADER + PAGE)
    for run in runs:
        commits = [index for index, found in enumerate(run) if found.is_commit]
        is_damaged = not (is_whole and run is runs[0])
        before_last = run[: commits[-2] + 1] if len(commits) > 1 else []
        if not commits or (is_damaged and not any(found.fits and found.page == META_PAGE for found in before_last)):
            continue
        journal.is_damaged |= is_damaged
        committed = run[: commits[-1] + 1]
        journal.pages.update({found.page: found.place for found in committed if found.fits})
    if journal.pages:
        journal.places = [found.place for run in runs for found in run]


def _sum(order: str, before: bytes, data: bytes) -> bytes:
    """Return the checksum of a multiple of 8 bytes, continued from the one `before` it [Checksum Algorithm]."""
    first, second = struct.unpack(">II", before)
    numbers = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(numbers[::2], numbers[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return struct.pack(">II", first, second)
