"""The outbox's file and its journal: made where there are none, examined, and set aside where they can't be used."""

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
"""Where the table `meta` is: each commit and heartbeat of the agent writes it, with a flush, and no delivery does."""
BUSY_SECONDS: Final = 1.0
_BESIDE: Final = r"(\.lock|(\.new|\.[a-z-]+-[0-9]{8}T[0-9]{6}Z(-[0-9]+)?)?(-wal|-shm|-journal)?)"
_PARTS: Final = ("", "-wal", "-shm", "-journal")
_ASIDE: Final = re.compile(
    r"(?P<copy>.+\.(?:corrupt|other-vm|replaced|no-database)-(?P<at>[0-9]{8}T[0-9]{6}Z)(?:-(?P<number>[0-9]+))?)"
    r"(?:-wal|-shm|-journal)?"
)
"""Names of copies that are ours to remove. A `foreign` one is another program's database."""
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
"""For writing and for reading [Database File Format, 1.3.3]. SQLite opens a file of a later one for reading only."""
_TABLES: Final = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
MOST_ROWS: Final = 1 << 62
"""No row number is as large."""
_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_MOST_BYTES: Final = 32 << 20
"""Of a journal that is examined, which takes a second then. The agent's has a hundredth of that."""
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"


def connect(path: Path, capacity: int, synchronous: str) -> sqlite3.Connection:
    """Return a connection in WAL mode to the file at the path, which it lets grow to `capacity` bytes.

    Each statement is a transaction of its own outside `transaction`. `synchronous` is SQLite's setting of that name.
    Raises sqlite3.Error, also if there is no file.
    """
    for suffix in _PARTS:
        refuse_foreign(f"{path}{suffix}")
    db = sqlite3.connect(
        f"{file_uri(path.absolute())}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )
    pages = max(16, capacity // PAGE)
    try:
        db.execute(f"PRAGMA page_size={PAGE}")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.execute(f"PRAGMA max_page_count={pages}")
        # Often: a journal that has grown on a disk with little room is what fills it, and can't be emptied then.
        db.execute(f"PRAGMA wal_autocheckpoint={max(16, min(128, pages // 8))}")
        db.execute(f"PRAGMA journal_size_limit={max(16 * PAGE, min(4 << 20, capacity // 8))}")
    except SQLITE_ERRORS:
        db.close()
        raise
    return db


def file_uri(path: PurePath) -> str:
    """The absolute path as a URI for SQLite, which knows no server but a path that begins with one [URI Filenames]."""
    place = path.as_posix()
    return "file://" + ("" if place.startswith("/") else "/") + quote(os.fsencode(place), safe="/:")


def make_tables(db: sqlite3.Connection) -> None:
    """Make an empty database an outbox. Raises sqlite3.Error."""
    for statement in _SCHEMA:
        db.execute(statement)
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")
    db.execute(f"PRAGMA user_version={FORMAT}")


def is_ours(db: sqlite3.Connection) -> bool:
    """Whether the file's header says that it is an outbox of this version."""
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    user_version = db.execute("PRAGMA user_version").fetchone()[0]
    return bool((application_id, user_version) == (APPLICATION_ID, FORMAT))


def is_blank(db: sqlite3.Connection) -> bool:
    """Whether nothing was ever written to the file. Raises sqlite3.Error."""
    return bool(db.execute("PRAGMA schema_version").fetchone()[0] == 0)


def unusable_reason(db: sqlite3.Connection) -> str:
    """Return why a file that is not blank can't be used: `foreign`, `corrupt`, or an empty string. Writes nothing.

    All that the agent reads of it later is read here, but for the records' bodies. Raises sqlite3.Error for what is not
    the content's fault.
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
    """What `_TABLES` finds in an outbox."""
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        make_tables(fresh)
        return fresh.execute(_TABLES).fetchall()


def load_meta(db: sqlite3.Connection) -> tuple[State | None, str]:
    """Return the state, None if there is none yet, and the text of the last heartbeat. Raises ValueError for a state
    that can't be read, and sqlite3.Error."""
    meta: dict[str, bytes] = dict(db.execute("SELECT key, CAST(value AS BLOB) FROM meta").fetchall())
    state = load_state(meta["state"].decode()) if "state" in meta else None
    return state, meta.get("seen", b"").decode(errors="replace")


def examined(path: Path, capacity: int) -> tuple[sqlite3.Connection | None, str]:
    """Return a connection to the file at the path, or None and why there is none: `foreign` or `corrupt`.

    A blank file becomes an outbox. SQLite reports a disk's read error as damage. So a file that seems damaged is
    closed, read whole by itself, which raises OSError, and examined twice more. Raises OSError or sqlite3.Error for
    what is not the content's fault.
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
        return None, "corrupt"  # before SQLite forgets what it can't read of it
    with contextlib.ExitStack() as undo:
        try:
            db = connect(path, capacity, "FULL")
            undo.callback(db.close)  # before the file is renamed, which not every system does with one that is open
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
    """Remove a database that no one uses, with its journal, or some of its `parts`. Raises OSError."""
    for suffix in parts:
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def files_of(path: Path) -> list[Path]:
    """The outbox's file and what stands beside it under our own names: journal, lock, copy, what was set aside."""
    own_name = re.compile(re.escape(path.name) + _BESIDE)
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:  # a folder that may be used but not listed
        names = [f"{path.name}{suffix}" for suffix in ("", "-wal", "-shm", ".lock")]
    return [path.with_name(name) for name in names if own_name.fullmatch(name)]


def set_aside(path: Path, why: str, now: datetime) -> Path:
    """Rename the file, with its journal, to a name that contains `why` and when. Return that name.

    If one of them can't be renamed, those after it stay: a journal that stays alone is set aside before the next outbox
    is begun. On Windows nothing is renamed that another program has open. Only the newest copies are kept. Raises
    OSError.
    """
    target = _free_name(path, why, now)
    for suffix in _PARTS:  # the database first: it is what a reader has open, and then nothing was done yet
        source = Path(f"{path}{suffix}")
        if size_of(source):  # SQLite would delete the journal of an empty database
            narrow(source)  # it may be one that was put here
            os.rename(source, f"{target}{suffix}")
    for copy in [copy for _, _, copy in _copies(path) if copy != target][: 1 - _COPIES]:
        with contextlib.suppress(OSError):  # another program has it open: removed with the next one
            remove_parts(copy)
    return target


def stranger_at(path: Path) -> str:
    """Return the word under which a file that took the place of the outbox is set aside. Raises OSError."""
    with open(path, "rb") as file:
        header = file.read(PAGE)
    is_outbox = header[68:72] == APPLICATION_ID.to_bytes(4, "big") or size_of(Path(f"{path}-wal"))
    return "foreign" if header.startswith(_MAGIC) and not is_outbox else "replaced"


def _free_name(path: Path, why: str, now: datetime) -> Path:
    """A name to set the file aside under, after those of the same second, that no part of a database has."""
    at = f"{now:%Y%m%dT%H%M%SZ}"
    numbers = itertools.count(1 + max((number for when, number, _ in _copies(path) if when == at), default=0))
    names = (path.with_name(f"{path.name}.{why}-{at}{f'-{number}' if number > 1 else ''}") for number in numbers)
    return next(name for name in names if not any(os.path.lexists(f"{name}{suffix}") for suffix in _PARTS))


def _copies(path: Path) -> list[tuple[str, int, Path]]:
    """When and under which names databases of this path were set aside, the last one last."""
    found = filter(None, (_ASIDE.fullmatch(str(file)) for file in files_of(path)))
    return sorted({(match["at"], int(match["number"] or 1), Path(match["copy"])) for match in found})


def size_of(path: Path) -> int:
    """Bytes in the file, 0 if there is none. Raises OSError."""
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
        with contextlib.suppress(*SQLITE_ERRORS):
            db.execute("ROLLBACK")
        raise


def used_bytes(db: sqlite3.Connection) -> int:
    """Bytes that the content takes, free pages not counted."""
    pages: int = db.execute("PRAGMA page_count").fetchone()[0] - db.execute("PRAGMA freelist_count").fetchone()[0]
    return pages * PAGE


class Journal(Struct):
    """What was committed to a journal, read without SQLite [Database File Format, 4].

    SQLite reads a journal up to the first frame whose checksum is wrong and forgets the rest, since that is what a
    crash leaves of writes that it cut off. A damaged frame looks the same, and would cost every transaction after it.
    What tells them apart: a checksum continues the one before, so frames that fit each other were written one after the
    other. And the agent's commits are flushed to the disk, with everything before them, before the next transaction
    begins. So where one of them and another transaction follow a wrong frame, the frame is damaged.
    """

    path: Path
    pages: dict[int, int] = field(default_factory=dict)
    """By number: where the newest content of a page begins in the journal."""
    places: list[int] = field(default_factory=list)
    """Where any content of a page begins, also an older or a damaged one."""
    is_damaged: bool = False
    """Some of what was committed can't be read."""


class _Frame(NamedTuple):
    page: int
    place: int
    is_commit: bool
    fits: bool
    """Its checksum is right, and continues the one before."""


def read_journal(database: Path) -> Journal:
    """Read the journal of an outbox that no one has open. Raises OSError."""
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
    """The checksum of a multiple of 8 bytes, continued from the one `before` them [Checksum Algorithm]."""
    first, second = struct.unpack(">II", before)
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return struct.pack(">II", first, second)
