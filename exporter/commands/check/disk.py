"""Probes files: the outbox, the recording, the hold file, and the directory for event files.

Writes only a temporary file, which it removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from exporter.agent.files import presence
from exporter.commands.check.report import Finding, ProbeEnvironment, Report, fail, ok, warn
from exporter.config.places import hold_place
from exporter.config.schema import Settings
from exporter.core.policy import Presence
from exporter.event_files.folder import Folder, PathOccupied
from exporter.files import fault_of, open_folder
from exporter.outbox.errors import SQLITE_ERRORS, is_damage
from exporter.outbox.file import file_uri, is_blank, load_meta, unusable_reason
from exporter.outbox.lock import FileLock
from exporter.windows import access
from exporter.windows.places import NO_SHARE, is_on_network

_COPIED_AT_MOST: Final = 256 << 20
_TRIED_BYTES: Final = 64 << 10
_MIB: Final = 1 << 20

_OS_SENTENCES: Final[Mapping[int, str]] = {
    errno.EACCES: "is not writable for this user: make the agent's user the owner of the directory",
    errno.EPERM: "is not writable for this user: make the agent's user the owner of the directory",
    errno.EROFS: "is on a read-only file system: mount a writable volume there, or change the path",
    errno.ENOSPC: "has no space left: free some, or change the path to another file system",
    errno.EDQUOT: "is over its quota: raise it, or change the path to another file system",
    errno.ENOTDIR: "cannot exist, because a part of its path is a file: correct the path",
    errno.ENOENT: "cannot be created: correct the path",
}

_WINDOWS_SENTENCES: Final[Mapping[int, str]] = {
    19: "is on a write-protected drive: change the path to another drive",
    21: "is on a drive that is not ready: correct the path",
    32: "is open exclusively in another program: close it there",
    33: "is locked by another program: close it there",
    39: _OS_SENTENCES[errno.ENOSPC],
    1295: _OS_SENTENCES[errno.EDQUOT],
}
"""By `winerror` [System error codes]: Python's `errno` is EACCES for the first four, and EINVAL for the others."""


def probe_outbox(settings: Settings, _: ProbeEnvironment) -> Report:
    """Test whether the agent can use its outbox, and read which VM the outbox belongs to."""
    path = Path(settings.outbox.path)
    if sys.platform == "win32" and is_on_network(real := os.path.realpath(path)):
        return Report((fail("outbox", f"{path} is on a share ({real}): {NO_SHARE}; set outbox.path to a local drive"),))
    try:
        in_use = _is_in_use(path)
    except OSError as error:
        return Report((fail("outbox", f"{path} {_reason(error)}"),))
    if in_use:
        return Report((ok("outbox", f"{path} is in use: an agent is running on it"),))
    finding = try_folder("outbox", path.parent, "outbox.path")
    if finding is not None:
        return Report((finding,))
    finding, owner = _content(path)
    return Report((finding, *_space(path, settings.outbox.max_bytes), *_open_to_others(path)), vm_id=owner)


def _open_to_others(path: Path) -> list[Finding]:
    """Return a warning if other users may read or replace files in the directory; the agent creates it private."""
    folder = path.parent
    if not folder.exists() or (path.exists() and fault_of(path.stat())):  # reported for the outbox itself
        return []
    return [warn("outbox", sentence)] if (sentence := open_folder(folder)) else []


def _is_in_use(path: Path) -> bool:
    """Return whether an agent uses the outbox. Never creates the lock file: it would belong to the wrong user."""
    lock = FileLock(Path(os.path.realpath(path)))
    if not lock.path.is_file():
        return False
    try:
        return not lock.acquire()
    finally:
        lock.release()


def try_folder(topic: str, folder: Path, key: str) -> Finding | None:
    """Write and remove a file in the directory, or in its first existing parent; return None on success.

    `key` names the setting in the finding.
    """
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():  # Windows has no such error: it reports that the path isn't found
        return fail(topic, f"{folder} {_OS_SENTENCES[errno.ENOTDIR]} ({key})")
    try:
        with _temporary_file(existing) as file:
            file.write(bytes(_TRIED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return fail(topic, f"{folder} {_reason(error)} ({key})")
    return None


def _temporary_file(folder: Path) -> IO[bytes]:
    """Create a file that is removed when it is closed. Raises OSError."""
    if sys.platform == "win32":  # there `tempfile` tries ten thousand names in a directory without write permission
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_TEMPORARY | os.O_BINARY
        return os.fdopen(os.open(folder / f".check-{secrets.token_hex(8)}", flags), "w+b")
    return tempfile.TemporaryFile(dir=folder)


def _reason(error: OSError) -> str:
    return reason(error.errno, getattr(error, "winerror", None)) or f"cannot be used: {error.strerror}"


def reason(number: int | None, winerror: int | None) -> str:
    """Return the problem of a path and its remedy, by `winerror` if that is more specific, else by `errno`."""
    return _WINDOWS_SENTENCES.get(winerror or 0) or _OS_SENTENCES.get(number or 0, "")


def _space(path: Path, max_bytes: int) -> list[Finding]:
    """Return a warning if the outbox could fill the disk before it reaches `max_bytes`."""
    existing = next(folder for folder in path.parents if folder.exists())
    free = shutil.disk_usage(existing).free
    used = path.stat().st_size if path.exists() else 0
    if free + used >= max_bytes:
        return []
    return [
        warn(
            "outbox",
            f"outbox.max_bytes is {max_bytes // _MIB} MiB, but {existing} has only {free // _MIB} MiB left: lower it, "
            "so that the outbox drops old records before the disk is full",
        )
    ]


def _content(path: Path) -> tuple[Finding, str]:
    """Return the finding about the outbox file, and the vmId of its owner; "" if it has none."""
    as_root = " (tested as root)" if hasattr(os, "geteuid") and os.geteuid() == 0 else ""
    if not path.exists():
        return ok("outbox", f"{path} does not exist yet and can be created{as_root}"), ""
    if not path.is_file():
        return fail("outbox", f"{path} is not a file: correct outbox.path"), ""
    try:
        unusable, owner, waiting, parked = _read_outbox(path)
    except OSError as error:
        return fail("outbox", f"{path} {_reason(error)}"), ""
    if unusable:
        return warn(
            "outbox",
            f"{path} is {unusable}: when the agent starts, it renames this file, keeps it, and begins a new outbox "
            f"{'with its readable records' if unusable == 'corrupt' else 'without its records'}; correct outbox.path "
            "if the file belongs to another program",
        ), ""
    if fault := fault_of(path.stat()):
        return fail("outbox", f"{path}: {fault}") if not as_root else _tried_as_root(path), owner
    return ok(
        "outbox", f"{path} is writable{as_root}; {waiting} undelivered{f', {parked} parked' if parked else ''}"
    ), owner


def _tried_as_root(path: Path) -> Finding:
    """Return the warning for an outbox of another user, which root can't test."""
    owner = path.stat().st_uid
    return warn("outbox", f"{path} belongs to user {owner} (tested as root): only an agent of user {owner} can use it")


def _read_outbox(path: Path) -> tuple[str, str, int, int]:
    """Return the file's fault, its vmId, and its numbers of undelivered and parked records.

    The fault is one of `unusable_reason`, "" for none. Doesn't change the file. Raises OSError if it can't be read.
    """
    with _unchanging(path) as uri:
        if not uri:
            return "", "", 0, 0
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
            try:
                if is_blank(db):
                    return "", "", 0, 0
                if fault := unusable_reason(db):
                    return fault, "", 0, 0
                state, _ = load_meta(db)
                counted = "SELECT count(*) FILTER (WHERE parked IS NULL), count(parked) FROM queue"
                return "", state.vm_id if state else "", *db.execute(counted).fetchone()
            except SQLITE_ERRORS as error:
                if is_damage(error):
                    return "corrupt", "", 0, 0
                raise OSError(errno.EIO, str(error)) from error


@contextlib.contextmanager
def _unchanging(path: Path) -> Iterator[str]:
    """Yield a URI to read the database by; "" if it is too large.

    SQLite itself would create files of this user next to it. Without a journal the file is opened as immutable. With a
    journal, which a crash leaves behind, a copy of both files is opened.
    """
    with open(path, "rb"):
        pass
    journal = Path(f"{path}-wal")
    if not journal.exists() or journal.stat().st_size == 0:
        yield f"{file_uri(path.absolute())}?mode=ro&immutable=1"
        return
    if path.stat().st_size + journal.stat().st_size > _COPIED_AT_MOST:
        yield ""
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "outbox.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(journal, f"{copy}-wal")
        yield file_uri(copy.absolute())


def probe_hold_file(settings: Settings, _: ProbeEnvironment) -> Report:
    """Test whether the hold file holds every event: it exists, or its absence can't be verified."""
    path = settings.approval.hold_file
    found = presence(path)
    if found is Presence.ABSENT:
        return Report((ok("hold_file", f"{path} does not exist: it holds no event"),))
    if found is Presence.UNTRUSTED:
        sentence = f"{access.exposure(path)}, so every event is held: use a path like {hold_place()}"
    elif os.path.lexists(path):
        sentence = f"{path} exists: every event is held until it is removed"
    else:
        sentence = (
            f"{path} cannot be checked, so every event is held: create its directory if it is missing, and let the "
            "agent's user search it"
        )
    return Report((warn("hold_file", sentence),))


def probe_recorder(settings: Settings, _: ProbeEnvironment) -> Report:
    """Test whether the recording can be written."""
    path = Path(settings.recording.path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return Report((fail("recording", f"{path} is not a regular file: correct recording.path"),))
    refusal = try_folder("recording", path.parent, "recording.path")
    if refusal is None and sys.platform == "win32" and path.parent.exists() and not access.keeps_lists(path.parent):
        return Report((warn("recording", f"{path} is writable, but {access.NO_LISTS}: other users may read it"),))
    return Report((refusal or ok("recording", f"{path} is writable"),))


def open_to_writers(settings: Settings) -> list[str]:
    """Return a warning if every user of the machine may write event files. On Windows `exposed_folders` does that."""
    path = settings.event_files.path
    if not path or sys.platform == "win32":
        return []
    try:
        if not os.stat(path).st_mode & stat.S_IWOTH:
            return []
    except (OSError, ValueError):
        return []
    return [f"event_files.path: every user of this machine can forge event files in {path}: run chmod o-w on it"]


def probe_event_files(settings: Settings, _: ProbeEnvironment) -> Report:
    """Test whether event files can be written: the directory exists and is writable for this user."""
    path = settings.event_files.path
    if not os.path.lexists(path):
        missing = f"{path} does not exist, and the agent does not create it: create it, unless the agent's unit does"
        return Report((warn("event_files", missing),))
    if not os.path.isdir(path):
        return Report((fail("event_files", f"{path} is not an accessible directory: correct event_files.path"),))
    if (refusal := try_folder("event_files", Path(path), "event_files.path")) is not None:
        return Report((refusal,))
    try:
        Folder(path).check_status()
    except PathOccupied as error:
        return Report((fail("event_files", str(error)),))
    return Report((ok("event_files", f"{path} is writable"),))
