"""The one file on disk: the last state and the records that are not delivered yet, in one transaction.

Every record stands in `records` once, and in `queue` once for each destination that has not taken it. Delivered records
stay as history (`DELIVERED_KEPT` of them) for a person to read. At the bound of `max_bytes` history is dropped first,
then the oldest records.

The agent's side commits, each destination's side settles; a file that can't be opened delivers nothing, and each
`load` and `commit` tries to open it again (`database`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from exporter.core.records import Record, Storable
from exporter.core.snapshot import DestinationStatus
from exporter.core.state import Instant, State
from exporter.outbox.database import Database
from exporter.outbox.errors import SQLITE_ERRORS, OutboxUnwritable, reason_of
from exporter.outbox.file import load_meta, transaction, used_bytes
from exporter.outbox.queue import (
    DELIVERED_KEPT,
    Queued,
    another_number,
    at_bound,
    bytes_for,
    counts_of,
    drop_oldest,
    enqueue,
    free_space,
    prune,
    settle,
    waiting_rows,
    write_result,
)

RECORD_BYTES: Final = 4096  # of most records, with their rows in the queues
MAX_UNSETTLED: Final = 10_000
"""So many records a destination may take whose acknowledgement the disk does not; then it waits for the disk."""
Body = tuple[Storable, bytes]


class Outbox(Database):
    """See the module. Safe for one agent's thread and one thread per destination."""

    # -- the agent's side

    def load(self) -> State | None:
        """The state as last committed; None when there is none yet. Raises `OutboxUnwritable`, `OutboxBusy`."""
        with self._agent_lock, self._guard:
            try:
                state, seen = load_meta(self._ready())
            except ValueError as error:
                raise OutboxUnwritable("corrupt", f"the state in {self.path} can't be read") from error
        if state is None or state.last_good is None:
            return state
        # a heartbeat is younger than the state
        return replace(state, last_good=Instant(_time(seen) or state.last_good.wall, None))

    def commit(self, state: State, records: Sequence[Storable]) -> Mapping[str, int]:
        """State and records, durable together or not at all; raises `OutboxUnwritable`, `OutboxBusy`.

        Answers how many undelivered records were dropped to make room, by destination. A record whose id is already
        there is not written again.
        """
        text = self._states.text(state)
        bodies = [(record, record.to_json()) for record in records]
        with self._agent_lock, self._guard:
            self._ready()
            try:
                self._recover_replaced_file()
                dropped = self._commit(text, bodies)
            except SQLITE_ERRORS as error:
                if not self._doubt(reason_of(error)):
                    raise
                dropped = self._commit(text, bodies)
            if not self.is_in_place():
                raise OutboxUnwritable("gone", f"{self.path} was removed or replaced while it was written to")
            self._doubts, self._birth, self._withheld = 0, state.birth, False
        return {name: dropped[name] for name in self._names if dropped[name]}

    def _commit(self, text: str, bodies: list[Body]) -> Counter[str]:
        dropped = Counter[str]()
        fitting = [body for body in bodies if len(body[1]) <= self.capacity // 2]
        shrunk = False
        while True:
            lost = len(bodies) - len(fitting)
            need = bytes_for(text, [body for _, body in fitting])
            try:
                return dropped + self._write(text, fitting) + Counter(dict.fromkeys(self._names, lost))
            except sqlite3.OperationalError as error:
                if reason_of(error) != "full":
                    raise
                if not at_bound(self._ready(), self.capacity, need):
                    if shrunk:
                        raise
                    with contextlib.suppress(*SQLITE_ERRORS):  # the journal may be what fills the disk
                        self._ready().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                    shrunk = True
                    continue
                if not self._free(dropped):
                    if not fitting:
                        raise
                    del fitting[0]

    def _write(self, text: str, bodies: Sequence[Body]) -> Counter[str]:
        with transaction(self._ready()) as db:
            numbers = enqueue(db, self._names, bodies)
            newest = max([self._newest, *numbers])
            db.execute("INSERT OR REPLACE INTO meta VALUES ('state', ?)", (text,))
            db.execute("DELETE FROM meta WHERE key = 'seen'")  # it is older than this state
            pruned = prune(db, self._pruned, newest - DELIVERED_KEPT)
            dropped = free_space(db, self.capacity)
        self._newest, self._pruned = newest, pruned
        if dropped:
            self._count_again(db)
        elif numbers:
            for queue in self._queues.values():
                queue.change(len(numbers))
        return dropped

    def _free(self, dropped: Counter[str]) -> bool:
        """Makes room in a transaction of its own. Whether anything was dropped."""
        with transaction(self._ready()) as db:
            freed = drop_oldest(db)
        if freed:
            self._count_again(db)
            dropped.update(freed)
        return freed is not None

    def save_heartbeat(self, seen: datetime) -> None:
        """Keeps when a good document was last read, so that a restart knows how long nobody looked.

        Raises `OutboxUnwritable`.
        """
        with self._agent_lock, self._guard:
            if self._agent is None:
                return
            self._ready()
            self._recover_replaced_file()
            self._ready().execute("INSERT OR REPLACE INTO meta VALUES ('seen', ?)", (seen.isoformat(),))

    def used(self) -> int:
        """Bytes that the content takes. A file in doubt is examined. Raises `OutboxUnwritable`."""
        with self._agent_lock, self._guard:
            if self._in_doubt:
                self._ready()
            return used_bytes(self._agent) if self._agent is not None else 0

    def is_nearly_full(self, records: int) -> bool:
        """Whether so many more records may leave no room for those that wait. Raises `OutboxUnwritable`."""
        return self.used() + (records + 2) * RECORD_BYTES > self.capacity * 0.9

    def queues(self) -> dict[str, DestinationStatus]:
        """How each destination stands; the file is asked only after a change. Raises `OutboxUnwritable`."""
        with self._agent_lock, self._guard:
            db = None if self._in_doubt else self._agent
            if db is not None and any(queue.status.parked for queue in self._queues.values()):
                version = db.execute("PRAGMA data_version").fetchone()[0]
                if version != self._version:
                    self._count_again(db)
                    self._version = version
            return {name: queue.view(db) for name, queue in self._queues.items()}

    def _count_again(self, db: sqlite3.Connection) -> None:
        """Both locks are held: nothing of ours is on its way between file and counts."""
        with self._delivery_lock:
            for name, queue in self._queues.items():
                waiting, parked = counts_of(db, name)
                queue.change(waiting - queue.status.records, parked - queue.status.parked)

    # -- the deliveries' side

    def next(
        self, destination: str, limit: int, subjects: int | None = 1, without: Collection[int] = ()
    ) -> list[Queued]:
        """At most `limit` of the records that wait for this destination: the oldest of so many subjects, by subject.

        With None the oldest of all subjects, in the order of the outbox; none of the row numbers `without`. Bounded by
        `BATCH_BYTES` too; empty when nothing waits. Raises `OutboxUnwritable`.
        """
        with self._delivery_lock, self._guard:
            if (db := self._readable_file()) is None:
                return []
            queue = self._queues[destination]
            while True:
                with contextlib.suppress(*SQLITE_ERRORS):  # the disk may not take it yet; a read needs no room on it
                    self._settle(destination)
                if len(queue.settled) > MAX_UNSETTLED:
                    self._settle(destination)
                rows = waiting_rows(db, destination, queue.unsettled(without), limit, subjects)
                if (readable := self._readable(destination, rows)) or not rows:
                    return readable

    def _readable_file(self) -> sqlite3.Connection | None:
        """The deliveries' connection; None if there is nothing to read for them. Raises `OutboxUnwritable`."""
        if self._in_doubt:
            raise OutboxUnwritable(self._in_doubt, f"{self.path} will be examined")
        return None if self._withheld else self._delivery

    def waiting(self, destination: str, seq: int) -> list[Queued]:
        """The record with this row number, if it waits for this destination. Raises `OutboxUnwritable`."""
        with self._delivery_lock, self._guard:
            if (db := self._readable_file()) is None:
                return []
            this = f"{self._queues[destination].unsettled()} AND seq = {seq:d}"
            return self._readable(destination, waiting_rows(db, destination, this, 1, None))

    def another(self, destination: str, suspects: Collection[int], *, youngest: bool) -> list[Queued]:
        """One record that waits for this destination and is none of the `suspects`, which are row numbers: the first of
        the oldest, or the youngest, subject without a suspect; else the oldest. Raises `OutboxUnwritable`."""
        with self._delivery_lock, self._guard:
            if (db := self._readable_file()) is None:
                return []
            others = self._queues[destination].unsettled(suspects)
            seq = another_number(db, destination, others, suspects, youngest=youngest)
            return self.waiting(destination, seq) if seq is not None else []

    def _readable(self, destination: str, rows: Sequence[tuple[int, bytes]]) -> list[Queued]:
        """The rows as records. One that can't be read is lost: it leaves the queue."""
        readable: list[Queued] = []
        for seq, body in rows:
            try:
                readable.append(Queued(seq, Record.from_json(body)))
            except (ValueError, KeyError):
                self._queues[destination].settled[seq] = None
                self.lost.append((destination, 1))
        return readable

    def needs_polling(self, destination: str) -> bool:
        """Whether something may change for this destination without a commit: the file is not open, is in doubt or may
        be another VM's, the disk has not taken all that was settled, or another process may let parked records wait
        again."""
        with self._delivery_lock:
            queue = self._queues[destination]
            may_read = self._delivery is not None and not self._in_doubt and not self._withheld
            return not may_read or bool(queue.settled) or queue.status.parked > 0

    def delivered(self, destination: str, seqs: Sequence[int]) -> None:
        """The destination has acknowledged these. Raises `OutboxUnwritable`; they are not sent again all the same."""
        with self._delivery_lock, self._guard:
            queue = self._queues[destination]
            queue.change(error="", last_success=self._now())
            queue.settled.update(dict.fromkeys(seqs))
            self._settle(destination)

    def park(self, destination: str, seq: int, reason: str) -> None:
        """This destination refuses this record: it becomes a dead letter.

        Raises `OutboxUnwritable`; it is not sent again all the same.
        """
        with self._delivery_lock, self._guard:
            self._queues[destination].settled[seq] = reason
            self._settle(destination)

    def _settle(self, destination: str) -> None:
        queue, db = self._queues[destination], self._delivery
        if db is not None and queue.settled:
            settle(db, queue, self._pruned)

    def failed(self, destination: str, error: str) -> None:
        """Keeps why the last attempt failed, for the page. Raises `OutboxUnwritable`."""
        with self._delivery_lock, self._guard:
            queue = self._queues[destination]
            queue.change(error=error)
            if self._delivery is not None:
                write_result(self._delivery, queue.status)


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
