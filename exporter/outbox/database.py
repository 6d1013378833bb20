"""The outbox's file as one process holds it: opened, closed, examined when it is in doubt, and replaced.

Two connections. The agent's commits with `synchronous=FULL`: records are rare and the machine is about to be rebooted.
Deliveries settle on the other with `synchronous=NORMAL`: an acknowledgement lost with the power is a duplicate, never a
loss.

A file that can't be opened does not stop the agent: the database is then closed, has a note about it, and is opened by
the next call that needs it. An error of the disk or of the content puts the file in doubt: the agent's next call closes
it, and examines it before it is used again. What takes the place of a damaged or removed file is written beside it
(`.new`) and then renamed, so that a process that is killed in between loses nothing.
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
from exporter.outbox.errors import SQLITE_ERRORS, Guard, OutboxBusy, OutboxUnwritable
from exporter.outbox.file import (
    PAGE,
    connect,
    examined,
    files_of,
    load_meta,
    remove_parts,
    set_aside,
    size_of,
    stranger_at,
    transaction,
    unusable_reason,
)
from exporter.outbox.lock import FileLock
from exporter.outbox.queue import Queue, queue_of
from exporter.outbox.salvage import salvage

EXAMINED_AGAIN: Final = Backoff(1.0, 60.0)
"""Between two examinations of a file that stays in doubt: each reads all of it. After the first doubt it is examined at
once."""
_DOUBTS: Final = frozenset({"corrupt", "io", "read-only"})
"""Reasons to close the file and open it anew. A connection that SQLite opened for reading only stays so."""


class Database:
    """The file, its two connections with their locks, and how each destination stands.

    Where both locks are needed, the agent's is taken first.
    """

    def __init__(
        self,
        path: str | Path,
        max_bytes: int,
        destinations: Sequence[str] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Opens or makes the file. Raises `OutboxBusy`; one that can't be opened now is opened later."""
        self.path = Path(path)
        self.capacity = max_bytes
        self.notes: list[str] = []
        self.faults: list[str] = []
        """Sentences about damage, for the log."""
        self.lost: list[tuple[str, int]] = []
        """For which destination how many records could not be read."""
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
        """Of the file, when the queues were counted last: another process may let parked records wait again."""
        self._states = StateWriter()
        self._files: tuple[object, object] = (None, None)
        """Which database and journal are open."""
        self._newest = 0
        """The largest number of a row, also of the files before this one."""
        self._aside = ""
        """Why the file at the path has to be set aside before another is begun."""
        self._withheld = True
        """Deliveries get nothing: it is not known whether the stored records are this VM's."""
        self._birth: datetime | None = None
        """Of the state in the file, once it is this process's own."""
        self._in_doubt = ""
        """Why the file is to be closed and examined, one of `_DOUBTS`."""
        self._doubts = 0
        """Doubts since the last commit."""
        self._examine_at = now()
        self._guard = Guard(self._doubt)
        self._taken_over = False
        """Another agent began to work on the file that took the place of ours."""
        self._closed = False
        try:
            with self._guard:
                self._ready()
        except OutboxUnwritable as failure:
            self.notes.append(f"{path} can't be used yet ({failure}); it will be as soon as it can be opened")

    def _no_queues(self) -> dict[str, Queue]:
        return {name: Queue(DestinationStatus(name, True)) for name in self._names}

    def _doubt(self, reason: str) -> bool:
        """Put the file in doubt if this is a reason to. Return whether it is."""
        if reason not in _DOUBTS or self._in_doubt:
            return reason in _DOUBTS
        self._in_doubt = reason
        if reason != "read-only":  # that shows when it is opened, which takes no time
            self._postpone()
        return True

    def _postpone(self) -> None:
        """Examine the file again at once the first time, then later and later."""
        wait = EXAMINED_AGAIN.after(self._doubts) if self._doubts else 0.0
        self._examine_at = self._now() + timedelta(seconds=wait)
        self._doubts += 1

    def _ready(self) -> sqlite3.Connection:
        """The agent's connection, opened where it is not. Raises `OutboxBusy`, OSError or sqlite3.Error."""
        if self._agent is not None and not self._in_doubt:
            return self._agent
        if self._closed:
            raise OutboxUnwritable("gone", "the outbox was closed")
        wait = (self._examine_at - self._now()).total_seconds()
        if 0 < wait <= EXAMINED_AGAIN.most:
            raise OutboxUnwritable(self._in_doubt or "io", f"{self.path} will be examined in {wait:.0f} s")
        with self._delivery_lock:
            self._shut()
            self._in_doubt = ""
            make_folder(self.path.parent)
            self._acquire()
            os.close(os.open(self.path, os.O_RDWR))  # SQLite would be content with a file that it can only read
            if not self._folder_seen and (note := open_folder(self.path.parent)):  # others may read what is made there
                self.notes.append(note)
            self._folder_seen = True
            self.notes += filter(None, map(narrow, files_of(self.path)))
            self._finish_replacing()
            if self._aside:
                self._begin_anew()
            return self._open()

    def _acquire(self) -> None:
        """Lock the file at the path, which is made if there is none. Raises `OutboxBusy` and OSError."""
        make_private(self._lock.path)  # SQLite gives its journal the mode that the file has
        if self._taken_over or not self._lock.acquire():
            self._taken_over = self._files != (None, None)
            restart = "; end it, then start this one again" if self._taken_over else ""
            raise OutboxBusy("busy", f"another agent works on {self.path}{restart}")
        make_private(self.path)

    def _open(self) -> sqlite3.Connection:
        lost = Counter[str]()
        agent, why = examined(self.path, self.capacity)
        state = load_meta(agent)[0] if agent is not None and self._birth is not None else None
        if agent is not None and state is not None and state.birth != self._birth:
            agent.close()
            agent, why = None, "replaced"
        if why == "corrupt":
            lost = self._salvage()
        elif why:
            self._aside = why
            self._begin_anew()
        if why:
            agent, why = examined(self.path, self.capacity)
        if agent is None:
            raise OutboxUnwritable("corrupt", f"{self.path} is {why}, though it was just written")
        with contextlib.ExitStack() as undo:
            undo.callback(agent.close)
            delivery = connect(self.path, self.capacity, "NORMAL")
            undo.callback(delivery.close)
            self._newest = self._count_on(agent)
            queues = {name: queue_of(agent, name) for name in self._names}
            self._files = self._files_at_path()  # the journal is there since the first of these questions
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
        """Whether the file that was opened is still the one at the path: another agent may work on one that is not."""
        try:
            return self._agent is not None and self._files_at_path()[0] == self._files[0]
        except OSError:
            return False

    def _files_at_path(self) -> tuple[object, object]:
        """Which database and journal are there. A database that was emptied is none, though it is the same file."""
        return inode(self.path) if size_of(self.path) else None, inode(self._journal_path)

    def _count_on(self, db: sqlite3.Connection) -> int:
        """The largest number of a row. The numbers of a file that was begun anew go on where those of the last one
        ended: what was under way out of that one is acknowledged by its number, which is then nobody else's."""
        newest: int
        last: int
        newest, last = db.execute(
            "SELECT (SELECT ifnull(max(seq), 0) FROM records), ifnull(max(seq), 0) FROM sqlite_sequence"
        ).fetchone()
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
        """Closes the file; what is committed stays. Safe to call twice."""
        with self._agent_lock, self._delivery_lock:
            self._closed = True
            self._shut()
            self._lock.release()

    # -- another file in the place of this one

    def start_new_file(self, why: str) -> None:
        """Set the file aside while running and begin an empty one: its state is not this VM's.

        `why` becomes a part of its new name. Raises `OutboxUnwritable` or `OutboxBusy`.
        """
        with self._agent_lock, self._delivery_lock, self._guard:
            if self._agent is None and not self._aside:
                return  # it was never read, so nothing is known against it
            self._shut()
            self._aside, self._birth = why, None
            self._queues = self._no_queues()
            self._ready()

    def release(self) -> None:
        """Let deliveries send what is stored: it is this VM's."""
        self._withheld = False

    def _begin_anew(self) -> None:
        """Set aside what is at the path, for the reason in `_aside`, and make another file there."""
        if size_of(self.path) or size_of(self._journal_path):
            copy = set_aside(self.path, self._aside, self._now())
            self.notes.append(f"{self.path} was {self._aside} and is now {copy.name}; a new outbox was begun")
        self._aside = ""
        self._acquire()

    def _salvage(self) -> Counter[str]:
        """Write what can be read of a damaged file to another one, and put that in its place. Raises OSError.

        Return for each destination how many undelivered records could not be read.
        """
        self._postpone()  # on Windows it can't be set aside while another program has it open
        with self._written_beside() as new:
            records, lost = salvage(self.path, new, self._names, self._now())
            if unusable_reason(new):  # then the damaged file stays, and no copy of it takes the place of an earlier one
                raise OutboxUnwritable("corrupt", f"{self.path} is damaged, and what is readable of it can't be used")
        aside = self._put_new("corrupt")
        self.faults.append(f"{self.path} was damaged; {records} records were carried over{aside}")
        self._birth = None
        return lost

    def _recover_replaced_file(self) -> None:
        """Write the file anew if it or its journal was removed or replaced while open: the connection still has it."""
        if self._agent is None or self._in_doubt or self._files_at_path() == self._files:
            return
        make_folder(self.path.parent)
        self._acquire()
        with self._delivery_lock:
            with self._written_beside() as new:
                self._agent.backup(new)
            self._shut()
            if self._files_at_path()[0] != self._files[0] and inode(self._journal_path) == self._files[1]:
                remove_parts(self.path, ("-wal", "-shm"))  # SQLite would read our own into another file
            copy = self._put_new(stranger_at(self.path) if size_of(self.path) else "")
            self.notes.append(f"{self.path} was removed or replaced while running; it was written anew{copy}")
            self._open()

    @contextlib.contextmanager
    def _written_beside(self) -> Iterator[sqlite3.Connection]:
        remove_parts(self._new)
        make_private(self._new)
        with contextlib.ExitStack() as undo:
            undo.callback(remove_parts, self._new)
            with contextlib.closing(sqlite3.connect(self._new, isolation_level=None)) as new:
                new.execute(f"PRAGMA page_size={PAGE}")
                yield new
            undo.pop_all()

    def _put_new(self, why: str) -> str:
        """Put the new file at the path, after what is there was set aside. Return the end of a sentence about that."""
        aside = f"; what was there is now {set_aside(self.path, why, self._now()).name}" if why else ""
        remove_parts(self.path, ("-wal", "-shm"))
        os.replace(self._new, self.path)
        self._acquire()
        return aside

    def _finish_replacing(self) -> None:
        """Put the new file at the path if a process was killed just before that. A journal that is there without its
        database belongs to no outbox: SQLite would delete it."""
        if not size_of(self.path):
            if size_of(self._new):
                self._put_new("")
                self.notes.append(f"{self.path} was being written anew when a process ended; that is finished now")
            elif size_of(self._journal_path):
                self._aside = self._aside or "no-database"
        remove_parts(self._new)


def inode(path: Path) -> tuple[int, int] | None:
    """The device and inode of the file at a path; None where there is none. Raises OSError."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
