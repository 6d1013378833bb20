"""The outbox's file as one process holds it: opened, closed, followed when it is replaced, and set aside.

Two connections. The agent's commits with `synchronous=FULL`: records are rare and the machine is about to be rebooted.
Deliveries settle on the other with `synchronous=NORMAL`: an acknowledgement lost with the power is a duplicate, never a
loss.

A file that can't be opened does not stop the agent: the database is then closed, has a note about it, and is opened by
the next call that needs it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from exporter.outbox.errors import OutboxBusy, OutboxUnwritable, translated
from exporter.outbox.file import (
    connect,
    files_of,
    is_whole,
    open_or_set_aside,
    remove_copy,
    reunite,
    set_aside,
    transaction,
)
from exporter.outbox.lock import FileLock
from exporter.outbox.queue import QueueState, queue_state_of
from exporter.private_file import make_folder, make_private, narrow, open_folder

_REPLACED: Final = "replaced"
"""Why a file is set aside that took the place of ours while it was open."""


class Database:
    """The file, its two connections with their locks, and how each destination stands.

    Where both locks are needed, the agent's is taken first.
    """

    def __init__(
        self,
        path: str | Path,
        max_bytes: int,
        destinations: Sequence[str],
        now: Callable[[], datetime],
    ) -> None:
        """Opens or makes the file. Raises `OutboxBusy`; one that can't be opened now is opened later."""
        self.path = Path(path)
        self.capacity = max_bytes
        self.notes: list[str] = []
        self._now = now
        self._names = tuple(destinations)
        self._agent_lock = threading.RLock()
        self._delivery_lock = threading.RLock()
        self._lock_path = self.path.with_name(self.path.name + ".lock")
        self._lock = FileLock(self._lock_path)
        self._journal_path = self.path.with_name(self.path.name + "-wal")
        self._copy = self.path.with_name(self.path.name + ".new")
        self._unsettled: dict[str, dict[int, str | None]] = {}
        """What destinations took of the file that is being written anew, and the disk does not know yet."""
        self._folder_seen = False
        self._agent: sqlite3.Connection | None = None
        self._delivery: sqlite3.Connection | None = None
        self._queues = {name: QueueState() for name in self._names}
        self._newest = 0
        """The largest number of a row, also of the files before this one."""
        self._size_changed = True
        """Something was written since the file was last asked for its size."""
        self._heartbeat_kept = True
        """There may be a heartbeat in the file that is older than its state."""
        self._aside = ""
        """Why the file at the path has to be set aside before another is begun."""
        self._closed = False
        try:
            with translated():
                self._ready()
        except OutboxUnwritable as failure:
            self.notes.append(f"{path} can't be used yet ({failure}); it will be as soon as it can be opened")

    def _ready(self) -> sqlite3.Connection:
        """The agent's connection, opened where it is not. Raises `OutboxBusy`, OSError or sqlite3.Error."""
        if self._agent is not None:
            return self._agent
        if self._closed:
            raise OutboxUnwritable("gone", "the outbox was closed")
        make_folder(self.path.parent)
        self._acquire()
        self._look_at_folder()
        self.notes += filter(None, map(narrow, files_of(self.path)))
        with self._delivery_lock:
            if self._aside:
                if self.path.exists():
                    # Our own journal beside a file that took the place of ours would be read into that one.
                    alone = self._aside == _REPLACED and inode(self._journal_path) == self._journal
                    self.notes.append(set_aside(self.path, self._aside, self._now(), alone=alone))
                self._aside = ""
            taken = self._take_copy()
            self.notes += filter(None, [reunite(self.path, self._now())])
            agent = self._open()
            if taken:
                for name, settled in self._unsettled.items():
                    self._queues[name].settled = settled
            self._unsettled = {}
            return agent

    def _look_at_folder(self) -> None:
        """Says once that others may read what SQLite makes there."""
        if not self._folder_seen and (note := open_folder(self.path.parent)):
            self.notes.append(note)
        self._folder_seen = True

    def _take_copy(self) -> bool:
        """Puts the copy that `_follow_the_file` made at the path, where there is no other file; so also after a crash.

        All of the journal that may be there is in the copy. One that is damaged, as the file was, is put there too, and
        set aside by whoever opens it; one that was not written to its end is empty. Whether it is whole.
        """
        if not self._copy.exists() or self.path.exists():
            return False
        if whole := is_whole(self._copy):
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        elif not self._copy.stat().st_size:
            return False
        os.replace(self._copy, self.path)
        self.notes.append(f"{self.path} was removed or replaced while running; it was written anew")
        return whole

    def _acquire(self) -> None:
        make_private(self._lock_path)
        if not self._lock.acquire():
            raise OutboxBusy("busy", f"another agent works on {self.path}")

    def _open(self) -> sqlite3.Connection:
        agent, note = open_or_set_aside(self.path, self.capacity, self._now())
        self.notes += [note] if note else []
        with contextlib.ExitStack() as undo:
            undo.callback(agent.close)
            delivery = connect(self.path, self.capacity, "NORMAL")
            undo.callback(delivery.close)
            self._inode = inode(self.path)
            self._newest = self._count_on(agent)
            self._queues = {name: queue_state_of(agent, name) for name in self._names}
            self._journal = inode(self._journal_path)  # there since the first of these questions
            undo.pop_all()
        with contextlib.suppress(OSError):
            remove_copy(self._copy)  # of a process that died before it could use it
        self._pruned = 0
        self._size_changed = self._heartbeat_kept = True
        self._agent, self._delivery = agent, delivery
        return agent

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
                with contextlib.suppress(sqlite3.Error):
                    db.close()
        self._delivery = self._agent = None
        self._size_changed = True
        for queue in self._queues.values():
            queue.changed = True

    def close(self) -> None:
        """Closes the file; what is committed stays. Safe to call twice."""
        with self._agent_lock, self._delivery_lock:
            self._closed = True
            self._shut()
            self._lock.release()

    def renew(self, why: str) -> None:
        """Sets the file aside while running and begins an empty one: its state is not ours.

        `why` becomes a part of its new name. Raises `OutboxUnwritable` or `OutboxBusy`.
        """
        with self._agent_lock, self._delivery_lock, translated():
            if self._agent is None and not self._aside:
                return  # it was never read, so nothing is known against it
            self._begin_anew(why)

    def _begin_anew(self, why: str) -> None:
        with self._delivery_lock:
            self._shut()
            self._aside = why
            self._ready()

    def _follow_the_file(self) -> None:
        """A file that was removed or replaced under us is written anew from what the connection still holds."""
        if self._agent is None or inode(self.path) == self._inode:
            return
        make_folder(self.path.parent)
        self._acquire()
        remove_copy(self._copy)
        make_private(self._copy)
        with contextlib.closing(sqlite3.connect(self._copy)) as copy:
            self._agent.backup(copy)
        with self._delivery_lock:
            self._unsettled = {name: queue.settled for name, queue in self._queues.items()}
            self._begin_anew(_REPLACED)


def inode(path: Path) -> tuple[int, int] | None:
    """The device and inode of the file at a path; None where there is none. Raises OSError."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino
