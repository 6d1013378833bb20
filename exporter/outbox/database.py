"""The outbox's file in one process: open, close, examine when in doubt, and replace.

There are two connections. The agent commits on one with `synchronous=FULL`, because records are rare and the machine
may be about to reboot. Deliveries settle on the other with `synchronous=NORMAL`: an acknowledgement lost in a power
failure causes a duplicate, never a loss.

A file that can't be opened doesn't stop the agent: the database stays closed, gets a note, and the next call that needs
it opens it. An error of the disk or of the content puts the file in doubt: the agent's next call closes the file and
examines it before further use. The replacement of a damaged or removed file is written next to it (`.new`) and then
renamed, so that killing the process at any point loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from exporter.core.snapshot import DestinationStatus
from exporter.core.state_codec import StateWriter
from exporter.errors import Backoff
from exporter.files import make_folder, make_private, narrow, open_folder
from exporter.outbox.errors import SQLITE_ERRORS, Guard, OutboxBusy, OutboxUnwritable, refuse_directory
from exporter.outbox.file import (
    PAGE,
    connect,
    examined,
    files_of,
    load_meta,
    quarantine,
    remove_parts,
    size_of,
    stranger_at,
    transaction,
    unusable_reason,
)
from exporter.outbox.lock import FileLock
from exporter.outbox.queue import Queue, queue_of
from exporter.outbox.salvage import salvage

EXAMINED_AGAIN: Final = Backoff(1.0, 60.0)
"""Wait between two examinations of a file that stays in doubt; each reads the whole file. The first has no wait."""
_DOUBTS: Final = frozenset({"corrupt", "io", "read-only"})
"""Reasons to close and reopen the file. A connection that SQLite opened read-only stays read-only."""


class Database:
    """The file, its two connections with their locks, and the queue status of each destination.

    Code that needs both locks takes the agent's first.
    """

    def __init__(
        self,
        path: str | Path,
        max_bytes: int,
        destinations: Sequence[str] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Open or create the file. A file that can't be opened is retried later. Raises `OutboxBusy`."""
        self.path = Path(path)
        self.capacity = max_bytes
        self.notes: list[str] = []
        self.faults: list[str] = []
        """Messages about damage, for the log."""
        self.lost: list[tuple[str, int]] = []
        """Destinations and the number of their records that could not be read."""
        self._now = now
        self._names = tuple(destinations)
        self._agent_lock = threading.RLock()
        self._delivery_lock = threading.RLock()
        self._lock = FileLock(self.path)
        self._journal_path = self.path.with_name(self.path.name + "-wal")
        self._new = self.path.with_name(self.path.name + ".new")
        self._folder_seen = False
        self._agent: sqlite3.Connection | None = None
        self._delivery: sqlite3.Connection | None = None
        self._queues = self._no_queues()
        self._version = 0
        """SQLite's `data_version` at the last count of the queues; it changes if another process requeues records."""
        self._states = StateWriter()
        self._files: tuple[object, object] = (None, None)
        """Device and inode of the open database and journal."""
        self._newest = 0
        """Largest row number, including those of earlier files."""
        self._quarantine_reason = ""
        """Why the file at the path must be quarantined before a new one is created; empty if it need not be."""
        self._withheld = True
        """Deliveries get no records, because the stored ones might belong to another VM."""
        self._birth: datetime | None = None
        """`birth` of the state in the file, once this process has committed one."""
        self._in_doubt = ""
        """Why the file must be closed and examined: one of `_DOUBTS`, or empty."""
        self._doubts = 0
        """Number of doubts since the last commit."""
        self._examine_at = now()
        self._guard = Guard(self.path, self._doubt)
        self._taken_over = False
        """Another agent uses the file that replaced this one."""
        self._closed = False
        try:
            with self._guard:
                self._ready()
        except OutboxUnwritable as failure:
            self.notes.append(f"the outbox cannot be opened yet ({failure}); the agent retries")

    def _no_queues(self) -> dict[str, Queue]:
        return {name: Queue(DestinationStatus(name, True)) for name in self._names}

    def _doubt(self, reason: str) -> bool:
        """Put the file in doubt if the reason is one of `_DOUBTS`. Return whether it is."""
        if reason not in _DOUBTS or self._in_doubt:
            return reason in _DOUBTS
        self._in_doubt = reason
        if reason != "read-only":  # opening it is enough to find that out, and takes no time
            self._postpone()
        return True

    def _postpone(self) -> None:
        """Schedule the next examination: at once after the first doubt, then at increasing intervals."""
        wait = EXAMINED_AGAIN.after(self._doubts) if self._doubts else 0.0
        self._examine_at = self._now() + timedelta(seconds=wait)
        self._doubts += 1

    def _ready(self) -> sqlite3.Connection:
        """Return the agent's connection; open it if needed. Raises `OutboxBusy`, OSError, or sqlite3.Error."""
        if self._agent is not None and not self._in_doubt:
            return self._agent
        if self._closed:
            raise OutboxUnwritable("gone", "the outbox was closed")
        wait = (self._examine_at - self._now()).total_seconds()
        if 0 < wait <= EXAMINED_AGAIN.most:
            raise OutboxUnwritable(self._in_doubt or "io", f"{self.path} is examined again in {wait:.0f} s")
        with self._delivery_lock:
            self._shut()
            self._in_doubt = ""
            refuse_directory(self.path)
            make_folder(self.path.parent)
            self._acquire()
            os.close(os.open(self.path, os.O_RDWR))  # SQLite would also open a read-only file
            if not self._folder_seen and (note := open_folder(self.path.parent)):  # others could read new files
                self.notes.append(note)
            self._folder_seen = True
            self.notes += filter(None, map(narrow, files_of(self.path)))
            self._finish_replacing()
            if self._quarantine_reason:
                self._replace_unusable()
            return self._open()

    def _acquire(self) -> None:
        """Lock the file at the path; create it if there is none. Raises `OutboxBusy` and OSError."""
        make_private(self._lock.path)  # SQLite copies the file's mode to its journal
        if self._taken_over or not self._lock.acquire():
            self._taken_over = self._files != (None, None)
            restart = "; stop it and restart this one" if self._taken_over else ""
            raise OutboxBusy("busy", f"{self.path}: another agent uses this outbox{restart}")
        make_private(self.path)

    def _open(self) -> sqlite3.Connection:
        """Open both connections; replace the file first if it can't be used. Count what the destinations lost."""
        lost = Counter[str]()
        agent, why = examined(self.path, self.capacity)
        state = load_meta(agent)[0] if agent is not None and self._birth is not None else None
        if agent is not None and state is not None and state.birth != self._birth:
            agent.close()
            agent, why = None, "replaced"
        if why == "corrupt":
            lost = self._salvage()
        elif why:
            self._quarantine_reason = why
            self._replace_unusable()
        if why:
            agent, why = examined(self.path, self.capacity)
        if agent is None:
            raise OutboxUnwritable("corrupt", f"{self.path} is still {why} after it was rewritten")
        with contextlib.ExitStack() as undo:
            undo.callback(agent.close)
            delivery = connect(self.path, self.capacity, "NORMAL")
            undo.callback(delivery.close)
            self._newest = self._count_on(agent)
            queues = {name: queue_of(agent, name) for name in self._names}
            self._files = self._files_at_path()  # the queries above created the journal
            if not self._lock.is_held():
                raise OutboxUnwritable("gone", f"{self.path} was replaced while it was opened")
            undo.pop_all()
        for name, queue in queues.items():
            before, after = self._queues[name].status, queue.status
            queue.settled = self._queues[name].settled
            missing = before.records + before.parked - after.records - after.parked
            if (number := max(lost[name], missing)) > 0:
                self.lost.append((name, number))
        self._queues = queues
        self._pruned = 0
        self._agent, self._delivery = agent, delivery
        return agent

    def is_in_place(self) -> bool:
        """Return whether the opened file is still the one at the path: another agent could use one that isn't."""
        try:
            return self._agent is not None and self._files_at_path()[0] == self._files[0]
        except OSError:
            return False

    def _files_at_path(self) -> tuple[object, object]:
        """Return device and inode of database and journal, None for a missing one. An empty database is missing."""
        return inode(self.path) if size_of(self.path) else None, inode(self._journal_path)

    def _count_on(self, db: sqlite3.Connection) -> int:
        """Return the largest row number, after continuing the numbering of the previous file.

        A record of the previous file that is still being sent is acknowledged by its row number, so that number must
        not be used again.
        """
        query = "SELECT (SELECT ifnull(max(seq), 0) FROM records), ifnull(max(seq), 0) FROM sqlite_sequence"
        numbers: tuple[int, int] = db.execute(query).fetchone()
        newest, last = numbers
        if last < self._newest:
            with transaction(db):
                db.execute("DELETE FROM sqlite_sequence")
                db.execute("INSERT INTO sqlite_sequence VALUES ('records', ?)", (self._newest,))
        return max(newest, self._newest)

    def _shut(self) -> None:
        for db in (self._delivery, self._agent):
            if db is not None:
                with contextlib.suppress(*SQLITE_ERRORS):
                    db.close()
        self._delivery = self._agent = None
        for queue in self._queues.values():
            queue.has_changed = True

    def close(self) -> None:
        """Close the file; committed data stays. Safe to call twice."""
        with self._agent_lock, self._delivery_lock:
            self._closed = True
            self._shut()
            self._lock.release()

    # -- replacing the file

    def start_new_file(self, why: str) -> None:
        """Quarantine the file and create an empty one, because its state belongs to another VM.

        `why` becomes a part of the old file's new name. Raises `OutboxUnwritable` or `OutboxBusy`.
        """
        with self._agent_lock, self._delivery_lock, self._guard:
            if self._agent is None and not self._quarantine_reason:
                return  # never read, so there is no reason to reject it
            self._shut()
            self._quarantine_reason, self._birth = why, None
            self._queues = self._no_queues()
            self._ready()

    def release(self) -> None:
        """Let deliveries send the stored records, because they belong to this VM."""
        self._withheld = False

    def _replace_unusable(self) -> None:
        """Quarantine the file at the path, for the reason in `_quarantine_reason`, and create a new one."""
        if size_of(self.path) or size_of(self._journal_path):
            why = self._quarantine_reason
            copy = quarantine(self.path, why, self._now()).name
            self.notes.append(f"{self.path}: not usable ({why}); renamed to {copy}, and a new outbox was created")
        self._quarantine_reason = ""
        self._acquire()

    def _salvage(self) -> Counter[str]:
        """Replace a damaged file with a new one that holds its readable content. Raises OSError.

        Return for each destination the number of undelivered records that could not be read.
        """
        self._postpone()  # Windows renames no file that another program has open
        with self._new_file() as new:
            records, lost = salvage(self.path, new, self._names, self._now())
            if unusable_reason(new):  # keep the damaged file, and every earlier copy
                raise OutboxUnwritable("corrupt", f"{self.path} is damaged, and its readable content cannot be used")
        ending = self._put_new("corrupt")
        self.faults.append(f"{self.path} was damaged; {records} records were recovered{ending}")
        self._birth = None
        return lost

    def _recover_replaced_file(self) -> None:
        """Rewrite the file if it or its journal was removed or replaced while open: the connection still has it."""
        if self._agent is None or self._in_doubt or self._files_at_path() == self._files:
            return
        make_folder(self.path.parent)
        self._acquire()
        with self._delivery_lock:
            with self._new_file() as new:
                self._agent.backup(new)
            self._shut()
            if self._files_at_path()[0] != self._files[0] and inode(self._journal_path) == self._files[1]:
                remove_parts(self.path, ("-wal", "-shm"))  # SQLite would apply them to another file
            ending = self._put_new(stranger_at(self.path) if size_of(self.path) else "")
            self.notes.append(f"{self.path} was removed or replaced while running; it was rewritten{ending}")
            self._open()

    @contextlib.contextmanager
    def _new_file(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection to an empty database next to the file; remove it again on any error."""
        remove_parts(self._new)
        make_private(self._new)
        with contextlib.ExitStack() as undo:
            undo.callback(remove_parts, self._new)
            with contextlib.closing(sqlite3.connect(self._new, isolation_level=None)) as new:
                new.execute(f"PRAGMA page_size={PAGE}")
                yield new
            undo.pop_all()

    def _put_new(self, why: str) -> str:
        """Move the new file to the path; quarantine the file there for the reason `why`, or drop it if `why` is empty.

        Return the end of a message that names the quarantined file, or "".
        """
        ending = f"; the previous file is now {quarantine(self.path, why, self._now()).name}" if why else ""
        remove_parts(self.path, ("-wal", "-shm"))
        os.replace(self._new, self.path)
        self._acquire()
        return ending

    def _finish_replacing(self) -> None:
        """Move the new file to the path if a process was killed just before that.

        A journal without its database is quarantined: SQLite would delete it.
        """
        if not size_of(self.path):
            if size_of(self._new):
                self._put_new("")
                self.notes.append(f"{self.path}: completed a rewrite that an earlier process had begun")
            elif size_of(self._journal_path):
                self._quarantine_reason = self._quarantine_reason or "no-database"
        remove_parts(self._new)


def inode(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file at a path; None if there is none. Raises OSError."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
