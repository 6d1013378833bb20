"""The one file on disk: the last state and the records that are not delivered yet, in one transaction.

SQLite in WAL mode. The agent's connection commits with `synchronous=FULL`: records are rare and the machine is about
to be rebooted. Deliveries settle on a second connection with `synchronous=NORMAL`: an acknowledgement lost with the
power is a duplicate, never a loss.

Every record stands in `records` once, and in `queue` once for each destination that has not taken it. Delivered records
stay as history (`HISTORY` of them) for a person to read. At the bound of `max_bytes` history goes first, then the
oldest records.

A file that can't be opened does not stop the agent: the outbox is then closed, says so, delivers nothing, and each
`load` and `commit` tries to open it again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from exporter.codec import StateWriter, load_state
from exporter.filelock import FileLock
from exporter.lifecycle import Instant, State
from exporter.outbox_errors import OutboxBusy, OutboxUnwritable, reason_of, translated
from exporter.outbox_file import connect, is_corrupt, open_or_set_aside, set_aside, transaction, used_bytes
from exporter.outbox_room import DELIVERED, Dropped, at_bound, bytes_for, drop_oldest, make_room
from exporter.records import Record

__all__ = ["HISTORY", "Outbox", "OutboxBusy", "OutboxUnwritable", "Queue", "Queued"]

HISTORY: Final = 1_000
UNSETTLED: Final = 10_000
"""So many records a destination may take whose acknowledgement the disk does not; then it waits for the disk."""
Body = tuple[Record, bytes]


@dataclass(frozen=True, slots=True)
class Queued:
    """A record that waits for one destination."""

    seq: int
    record: Record


@dataclass(frozen=True, slots=True)
class Queue:
    """How one destination stands."""

    records: int = 0
    oldest: datetime | None = None
    parked: int = 0
    error: str = ""
    last_success: datetime | None = None


@dataclass(slots=True)
class _Standing:
    pending: int = 0
    parked: int = 0
    attempts: int = 0
    error: str = ""
    last_success: datetime | None = None
    settled: dict[int, str | None] = field(default_factory=dict)
    """Taken (None) or refused for good (why), but the disk did not take that yet: not sent again by this process."""


class Outbox:
    """See the module. Safe for one agent's thread and one thread per destination."""

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
        self._now = now
        self._names = tuple(destinations)
        self._states = StateWriter()
        self._mine = threading.RLock()
        self._theirs = threading.RLock()
        self._counting = threading.Lock()
        self._lock = FileLock(self.path.with_name(self.path.name + ".lock"))
        self._agent: sqlite3.Connection | None = None
        self._delivery: sqlite3.Connection | None = None
        self._standing = {name: _Standing() for name in self._names}
        self._aside = ""  # why the file at the path has to be set aside before another is begun
        self._closed = False
        try:
            with translated():
                self._ready()
        except OutboxUnwritable as failure:
            self.notes.append(f"{path} can't be used yet ({failure}); it will be as soon as it can be opened")

    # -- opening and closing

    def _ready(self) -> sqlite3.Connection:
        """The agent's connection, opened where it is not. Raises `OutboxBusy`, OSError or sqlite3.Error."""
        if self._agent is not None:
            return self._agent
        if self._closed:
            raise OutboxUnwritable("gone", "the outbox was closed")
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._acquire()
        with self._theirs:
            if self._aside:
                self.notes.append(set_aside(self.path, self._aside, self._now()))
                self._aside = ""
            return self._open()

    def _acquire(self) -> None:
        if not self._lock.acquire():
            raise OutboxBusy("busy", f"another agent works on {self.path}")

    def _open(self) -> sqlite3.Connection:
        agent, note = open_or_set_aside(self.path, self.capacity, self._now())
        self.notes += [note] if note else []
        with contextlib.ExitStack() as undo:
            undo.callback(agent.close)
            delivery = connect(self.path, self.capacity, "NORMAL")
            undo.callback(delivery.close)
            self._inode = _inode(self.path)
            self._newest: int = agent.execute("SELECT ifnull(max(seq), 0) FROM records").fetchone()[0]
            self._standing = {name: _stand(agent, name) for name in self._names}
            undo.pop_all()
        self._pruned = 0
        self._agent, self._delivery = agent, delivery
        return agent

    def _shut(self) -> None:
        for db in (self._delivery, self._agent):
            if db is not None:
                with contextlib.suppress(sqlite3.Error):
                    db.close()
        self._delivery = self._agent = None

    def close(self) -> None:
        """Closes the file; what is committed stays. Safe to call twice."""
        with self._mine, self._theirs:
            self._closed = True
            self._shut()
            self._lock.release()

    def renew(self, why: str) -> None:
        """Sets the file aside while running and begins an empty one: its state is not ours."""
        with self._mine, self._theirs, translated():
            if self._agent is None and not self._aside:
                return  # it was never read, so nothing is known against it
            self._begin_anew(why)

    def _begin_anew(self, why: str) -> None:
        with self._theirs:
            self._shut()
            self._aside = why
            self._ready()

    # -- the agent's side

    def load(self) -> State | None:
        """The state as last committed; None when there is none yet. Raises `OutboxUnwritable`, `OutboxBusy`."""
        with self._mine, translated():
            found = dict(self._ready().execute("SELECT key, value FROM meta").fetchall())
        if "state" not in found:
            return None
        state = load_state(found["state"])
        if state.last_good is None:
            return state
        seen = max(_time(found.get("seen", "")) or state.last_good.wall, state.last_good.wall)
        return replace(state, last_good=Instant(seen, None))

    def commit(self, state: State, records: Sequence[Record]) -> Mapping[str, int]:
        """State and records, durable together or not at all; raises `OutboxUnwritable`, `OutboxBusy`.

        Answers how many undelivered records were dropped to make room, by destination. A record whose id is already
        there is not written again.
        """
        text = self._states.text(state)
        bodies = [(record, record.to_json()) for record in records]
        with self._mine, translated():
            try:
                dropped = self._commit(text, bodies)
            except sqlite3.DatabaseError as error:
                if not is_corrupt(error):
                    raise
                self._begin_anew("corrupt")
                dropped = self._commit(text, bodies)
        return {name: dropped[name] for name in self._names if dropped[name]}

    def _commit(self, text: str, bodies: list[Body]) -> Counter[str]:
        self._ready()
        self._follow_the_file()
        dropped: Counter[str] = Counter()
        fitting = [body for body in bodies if len(body[1]) <= self.capacity // 2]
        shrunk = False
        while True:
            lost = len(bodies) - len(fitting)
            try:
                dropped += self._write(text, fitting)
                return dropped + Counter(dict.fromkeys(self._names, lost))
            except sqlite3.OperationalError as error:
                need = bytes_for(text, [body for _, body in fitting])
                if reason_of(error) != "full":
                    raise
                if not at_bound(self._ready(), self.capacity, need):
                    if shrunk:
                        raise
                    shrunk = self._shrink_journal()
                    continue
                if not self._free(dropped):
                    if not fitting:
                        raise
                    del fitting[0]

    def _write(self, text: str, bodies: Sequence[Body]) -> Counter[str]:
        with transaction(self._ready()) as db:
            seqs = [seq for seq in (self._insert(db, *body) for body in bodies) if seq]
            newest = max([self._newest, *seqs])
            db.execute("INSERT OR REPLACE INTO meta VALUES ('state', ?)", (text,))
            pruned = self._prune(db, newest - HISTORY)
            dropped = make_room(db, self.capacity)
        self._newest, self._pruned = newest, pruned
        self._gone(dropped)
        for name in self._names:
            self._count(name, len(seqs))
        return dropped.waiting

    def _insert(self, db: sqlite3.Connection, record: Record, body: bytes) -> int:
        row = db.execute(
            "INSERT OR IGNORE INTO records (id, body, created) VALUES (?, ?, ?) RETURNING seq",
            (record.id, body, record.time.timestamp()),
        ).fetchone()
        if row is None:
            return 0
        rows = [(name, row[0], record.subject) for name in self._names]
        db.executemany("INSERT INTO queue VALUES (?, ?, ?, NULL)", rows)
        return int(row[0])

    def _prune(self, db: sqlite3.Connection, upto: int) -> int:
        """Delivered records before the history go; what is still queued there goes when it is delivered."""
        if upto <= self._pruned:
            return self._pruned
        db.execute(
            f"DELETE FROM records WHERE seq > ? AND seq <= ? AND {DELIVERED}",  # noqa: S608  # a constant
            (self._pruned, upto),
        )
        return upto

    def _shrink_journal(self) -> bool:
        """On a full disk the journal may be what fills it: its content goes into the file, and it is cut. True."""
        with contextlib.suppress(sqlite3.Error):
            self._ready().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return True

    def _free(self, dropped: Counter[str]) -> bool:
        """Makes room in a transaction of its own. Whether anything went."""
        with transaction(self._ready()) as db:
            freed = drop_oldest(db)
        if freed is None:
            return False
        self._gone(freed)
        dropped += freed.waiting
        return True

    def _gone(self, dropped: Dropped) -> None:
        for name in self._names:
            self._count(name, -dropped.waiting[name], -dropped.parked[name])

    def _count(self, name: str, pending: int, parked: int = 0) -> None:
        with self._counting:
            self._standing[name].pending += pending
            self._standing[name].parked += parked

    def beat(self, seen: datetime) -> None:
        """Remembers when a good document was last read, so that a restart knows how long it did not look."""
        with self._mine, translated():
            if self._agent is None:
                return
            self._follow_the_file()
            self._ready().execute("INSERT OR REPLACE INTO meta VALUES ('seen', ?)", (seen.isoformat(),))

    def used(self) -> int:
        """Bytes that the content takes."""
        with self._mine, translated():
            return used_bytes(self._agent) if self._agent is not None else 0

    def _follow_the_file(self) -> None:
        """A file that was removed or replaced under us is written anew from what the connection still holds."""
        if self._agent is None or _inode(self.path) == self._inode:
            return
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._acquire()
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(fresh)) as copy:
            self._agent.backup(copy)
        with self._theirs:
            unsettled = {name: standing.settled for name, standing in self._standing.items()}
            self._shut()
            if self.path.exists():
                self.notes.append(set_aside(self.path, "replaced", self._now()))
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            os.replace(fresh, self.path)
            self._open()
            for name, settled in unsettled.items():
                self._standing[name].settled = settled
        self.notes.append(f"{self.path} was removed or replaced while running; it was written anew")

    # -- the deliveries' side

    def next(self, destination: str, limit: int) -> list[Queued]:
        """The oldest record that waits for this destination, and up to `limit` - 1 more of the same subject."""
        with self._theirs, translated():
            db = self._delivery
            if db is None:
                return []
            standing = self._standing[destination]
            with contextlib.suppress(sqlite3.Error):  # the disk may not take it yet; a read needs no room on it
                self._settle(destination)
            if len(standing.settled) > UNSETTLED:
                self._settle(destination)
            rest = f"parked IS NULL AND seq NOT IN ({','.join(map(str, standing.settled))})"
            row = db.execute(
                f"SELECT subject FROM queue WHERE destination = ? AND {rest} ORDER BY seq LIMIT 1",  # noqa: S608  # numbers
                (destination,),
            ).fetchone()
            if row is None:
                return []
            # Left to itself, SQLite walks the whole backlog in search of the subject.
            rows = db.execute(
                "SELECT seq, body FROM queue INDEXED BY queue_order JOIN records USING (seq)"  # noqa: S608  # as above
                f" WHERE destination = ? AND subject = ? AND {rest} ORDER BY seq LIMIT ?",
                (destination, row[0], limit),
            ).fetchall()
            return self._readable(destination, rows)

    def _readable(self, destination: str, rows: Sequence[tuple[int, bytes]]) -> list[Queued]:
        """The rows as records; one that can't be read is parked, so that it is in nobody's way."""
        found: list[Queued] = []
        for seq, body in rows:
            try:
                found.append(Queued(seq, Record.from_json(body)))
            except (ValueError, KeyError, TypeError, AttributeError):
                self._standing[destination].settled[seq] = "unreadable: damaged in the outbox"
        return found or (self.next(destination, len(rows)) if rows else [])

    def delivered(self, destination: str, seqs: Sequence[int]) -> None:
        """The destination has acknowledged these. Raises `OutboxUnwritable`; they are not sent again all the same."""
        with self._theirs, translated():
            standing = self._standing[destination]
            standing.last_success, standing.attempts, standing.error = self._now(), 0, ""
            standing.settled.update(dict.fromkeys(seqs))
            self._settle(destination)

    def park(self, destination: str, seq: int, reason: str) -> None:
        """This destination will never take this record: it is kept for a person, and no longer in the way.

        Raises `OutboxUnwritable`; it is not sent again all the same.
        """
        with self._theirs, translated():
            self._standing[destination].settled[seq] = reason
            self._settle(destination)

    def _settle(self, destination: str) -> None:
        standing, db = self._standing[destination], self._delivery
        if db is None or not standing.settled:
            return
        gone = parked = 0
        with transaction(db):
            for seq, reason in sorted(standing.settled.items()):
                row = (destination, seq)
                if reason is not None:
                    parked += db.execute(
                        "UPDATE queue SET parked = ? WHERE destination = ? AND seq = ?", (reason, *row)
                    ).rowcount
                    continue
                gone += db.execute("DELETE FROM queue WHERE destination = ? AND seq = ?", row).rowcount
                if seq <= self._pruned:
                    db.execute(f"DELETE FROM records WHERE seq = ? AND {DELIVERED}", (seq,))  # noqa: S608  # a constant
            self._note(db, destination, 0.0)
        standing.settled.clear()
        self._count(destination, -gone - parked, parked)

    def failed(self, destination: str, error: str, due: datetime) -> None:
        """Remembers a failed attempt and when the next one is due, for the page and for whoever looks at the file."""
        with self._theirs, translated():
            standing, db = self._standing[destination], self._delivery
            standing.attempts += 1
            standing.error = error
            if db is not None:
                with transaction(db):
                    self._note(db, destination, due.timestamp())

    def _note(self, db: sqlite3.Connection, destination: str, due: float) -> None:
        standing = self._standing[destination]
        last = standing.last_success.timestamp() if standing.last_success else None
        db.execute(
            "INSERT OR REPLACE INTO destination VALUES (?, ?, ?, ?, ?)",
            (destination, standing.attempts, due, standing.error, last),
        )

    def queues(self) -> dict[str, Queue]:
        """How each destination stands."""
        with self._mine, translated():
            return {name: self._queue(name, standing) for name, standing in self._standing.items()}

    def _queue(self, name: str, standing: _Standing) -> Queue:
        row = None
        if standing.pending > 0 and self._agent is not None:
            row = self._agent.execute(
                "SELECT r.created FROM queue q JOIN records r USING (seq)"
                " WHERE q.destination = ? AND q.parked IS NULL ORDER BY q.seq LIMIT 1",
                (name,),
            ).fetchone()
        oldest = datetime.fromtimestamp(row[0], UTC) if row else None
        return Queue(max(0, standing.pending), oldest, standing.parked, standing.error, standing.last_success)


def _stand(db: sqlite3.Connection, name: str) -> _Standing:
    pending, parked = db.execute(
        "SELECT count(*) FILTER (WHERE parked IS NULL), count(parked) FROM queue WHERE destination = ?", (name,)
    ).fetchone()
    row = db.execute("SELECT attempts, error, last_success FROM destination WHERE name = ?", (name,)).fetchone()
    attempts, error, last = row or (0, "", None)
    return _Standing(pending, parked, attempts, error, datetime.fromtimestamp(last, UTC) if last else None)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
