"""The outbox's interface: commit state and records in one transaction, and read and settle them per destination.

Each record is in `records` once, and in `queue` once for each destination that has not acknowledged it. The newest
`DELIVERED_KEPT` records are kept after delivery for manual review. At the bound of `max_bytes` delivered records are
dropped first, then the oldest records.

The agent's thread commits; each destination's thread settles. While the file can't be opened nothing is delivered, and
each `load` and `commit` tries to open it again (`database`).
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
    Body,
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
"""Maximum records of a destination that are acknowledged but not settled on disk; then delivery waits for the disk."""


class Outbox(Database):
    """The outbox. Safe for one agent's thread and one thread per destination; every method may block on the disk."""

    # -- for the agent

    def load(self) -> State | None:
        """Return the last committed state; None if there is none yet. Raises `OutboxUnwritable`, `OutboxBusy`."""
        with self._agent_lock, self._guard:
            try:
                state, seen = load_meta(self._ready())
            except ValueError as error:
                raise OutboxUnwritable("corrupt", f"the state in {self.path} cannot be read") from error
        if state is None or state.last_good is None:
            return state
        # The heartbeat is newer than the state.
        return replace(state, last_good=Instant(_time(seen) or state.last_good.wall, None))

    def commit(self, state: State, records: Sequence[Storable]) -> Mapping[str, int]:
        """Write state and records durably, in one transaction.

        Return how many undelivered records were dropped to make room, by destination; empty if none were. A record
        whose id already exists is skipped. Raises `OutboxUnwritable`, `OutboxBusy`.
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
                raise OutboxUnwritable("gone", f"{self.path} was removed or replaced during a write")
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
            db.execute("DELETE FROM meta WHERE key = 'seen'")  # older than this state
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
        """Drop records in a separate transaction. Return whether any were dropped."""
        with transaction(self._ready()) as db:
            freed = drop_oldest(db)
        if freed:
            self._count_again(db)
            dropped.update(freed)
        return freed is not None

    def save_heartbeat(self, seen: datetime) -> None:
        """Save the time of the last valid document, so that the next process can compute the polling gap.

        Does nothing while the file is closed. Raises `OutboxUnwritable`.
        """
        with self._agent_lock, self._guard:
            if self._agent is None:
                return
            self._ready()
            self._recover_replaced_file()
            self._ready().execute("INSERT OR REPLACE INTO meta VALUES ('seen', ?)", (seen.isoformat(),))

    def used(self) -> int:
        """Return the bytes that the content uses. Examines a file in doubt. Raises `OutboxUnwritable`."""
        with self._agent_lock, self._guard:
            if self._in_doubt:
                self._ready()
            return used_bytes(self._agent) if self._agent is not None else 0

    def is_nearly_full(self, records: int) -> bool:
        """Return whether this many more records could displace waiting ones. Raises `OutboxUnwritable`."""
        return self.used() + (records + 2) * RECORD_BYTES > self.capacity * 0.9

    def queues(self) -> dict[str, DestinationStatus]:
        """Return the status of each destination; query the file only after a change. Raises `OutboxUnwritable`."""
        with self._agent_lock, self._guard:
            db = None if self._in_doubt else self._agent
            if db is not None and any(queue.status.parked for queue in self._queues.values()):
                version = db.execute("PRAGMA data_version").fetchone()[0]
                if version != self._version:
                    self._count_again(db)
                    self._version = version
            return {name: queue.view(db) for name, queue in self._queues.items()}

    def _count_again(self, db: sqlite3.Connection) -> None:
        """Correct the counts from the file. Under both locks no change is between file and counts."""
        with self._delivery_lock:
            for name, queue in self._queues.items():
                waiting, parked = counts_of(db, name)
                queue.change(waiting - queue.status.records, parked - queue.status.parked)

    # -- for the deliveries

    def next(
        self, destination: str, limit: int, subjects: int | None = 1, without: Collection[int] = ()
    ) -> list[Queued]:
        """Return the oldest undelivered records of a destination: at most `limit` records and `BATCH_BYTES` bytes.

        `subjects` is the maximum number of subjects (event ids), grouped by subject; None: any number, in the order of
        the outbox. The row numbers `without` are left out. Empty if no record waits. Raises `OutboxUnwritable`.
        """
        with self._delivery_lock, self._guard:
            if (db := self._readable_file()) is None:
                return []
            queue = self._queues[destination]
            while True:
                with contextlib.suppress(*SQLITE_ERRORS):  # a full disk still allows reads
                    self._settle(destination)
                if len(queue.settled) > MAX_UNSETTLED:
                    self._settle(destination)
                rows = waiting_rows(db, destination, queue.unsettled(without), limit, subjects)
                if (readable := self._readable(destination, rows)) or not rows:
                    return readable

    def _readable_file(self) -> sqlite3.Connection | None:
        """Return the deliveries' connection; None if they may not read now. Raises `OutboxUnwritable`."""
        if self._in_doubt:
            raise OutboxUnwritable(self._in_doubt, f"{self.path} is examined before its next use")
        return None if self._withheld else self._delivery

    def waiting(self, destination: str, seq: int) -> list[Queued]:
        """Return the record with this row number in a list; empty if it isn't waiting. Raises `OutboxUnwritable`."""
        with self._delivery_lock, self._guard:
            if (db := self._readable_file()) is None:
                return []
            this = f"{self._queues[destination].unsettled()} AND seq = {seq:d}"
            return self._readable(destination, waiting_rows(db, destination, this, 1, None))

    def another(self, destination: str, suspects: Collection[int], *, youngest: bool) -> list[Queued]:
        """Return one record that is not among the `suspects`, which are row numbers; empty if none waits.

        It is the first of the oldest, or the youngest, subject without a suspect. If each subject has one, it is the
        oldest record. Raises `OutboxUnwritable`.
        """
        with self._delivery_lock, self._guard:
            if (db := self._readable_file()) is None:
                return []
            others = self._queues[destination].unsettled(suspects)
            seq = another_number(db, destination, others, suspects, youngest=youngest)
            return self.waiting(destination, seq) if seq is not None else []

    def _readable(self, destination: str, rows: Sequence[tuple[int, bytes]]) -> list[Queued]:
        """Return the rows as records. An unreadable one is counted as lost and leaves the queue."""
        readable: list[Queued] = []
        for seq, body in rows:
            try:
                readable.append(Queued(seq, Record.from_json(body)))
            except (ValueError, KeyError):
                self._queues[destination].settled[seq] = None
                self.lost.append((destination, 1))
        return readable

    def needs_polling(self, destination: str) -> bool:
        """Return whether records for this destination may become available without a commit.

        That is so if the file isn't open, is in doubt, or may belong to another VM, if settled records aren't on disk
        yet, or if another process may requeue parked records.
        """
        with self._delivery_lock:
            queue = self._queues[destination]
            may_read = self._delivery is not None and not self._in_doubt and not self._withheld
            return not may_read or bool(queue.settled) or queue.status.parked > 0

    def delivered(self, destination: str, seqs: Sequence[int]) -> None:
        """Settle acknowledged records. Raises `OutboxUnwritable`; this process doesn't send them again even then."""
        with self._delivery_lock, self._guard:
            queue = self._queues[destination]
            queue.change(error="", last_success=self._now())
            queue.settled.update(dict.fromkeys(seqs))
            self._settle(destination)

    def park(self, destination: str, seq: int, reason: str) -> None:
        """Park a record that this destination rejected for `reason`.

        Raises `OutboxUnwritable`; this process doesn't send it again even then.
        """
        with self._delivery_lock, self._guard:
            self._queues[destination].settled[seq] = reason
            self._settle(destination)

    def _settle(self, destination: str) -> None:
        queue, db = self._queues[destination], self._delivery
        if db is not None and queue.settled:
            settle(db, queue, self._pruned)

    def failed(self, destination: str, error: str) -> None:
        """Save the error of the last attempt, for the page. Raises `OutboxUnwritable`."""
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
