"""The one file on disk: the last state and the records that are not delivered yet, in one transaction.

Every record stands in `records` once, and in `queue` once for each destination that has not taken it. Delivered records
stay as history (`HISTORY` of them) for a person to read. At the bound of `max_bytes` history goes first, then the
oldest records.

The agent's side commits, each destination's side settles; a file that can't be opened delivers nothing, and each
`load` and `commit` tries to open it again (`outbox_held`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from exporter.core.records import Record
from exporter.core.state import Instant, State
from exporter.core.state_codec import StateWriter, load_state
from exporter.outbox.database import HeldFile
from exporter.outbox.errors import reason_of, translated
from exporter.outbox.file import is_corrupt, transaction, used_bytes
from exporter.outbox.queue import Queue, Queued, enqueue, note, queue_of, settle, waiting
from exporter.outbox.retention import Dropped, at_bound, bytes_for, drop_oldest, make_room, prune

HISTORY: Final = 1_000
RECORD_BYTES: Final = 4096  # of most records, with their rows in the queues
UNSETTLED: Final = 10_000
"""So many records a destination may take whose acknowledgement the disk does not; then it waits for the disk."""
Body = tuple[Record, bytes]


class Outbox(HeldFile):
    """See the module. Safe for one agent's thread and one thread per destination."""

    def __init__(
        self,
        path: str | Path,
        max_bytes: int,
        destinations: Sequence[str] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Opens or makes the file. Raises `OutboxBusy`; one that can't be opened now is opened later."""
        super().__init__(path, max_bytes, destinations, now)
        self._states = StateWriter()

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
        seen = _time(found.get("seen", "")) or state.last_good.wall  # what stands there came after the state
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
                    self._shrink_journal()
                    shrunk = True
                    continue
                if not self._free(dropped):
                    if not fitting:
                        raise
                    del fitting[0]

    def _write(self, text: str, bodies: Sequence[Body]) -> Counter[str]:
        with transaction(self._ready()) as db:
            seqs = [seq for seq in (enqueue(db, self._names, *body) for body in bodies) if seq]
            newest = max([self._newest, *seqs])
            db.execute("INSERT OR REPLACE INTO meta VALUES ('state', ?)", (text,))
            db.execute("DELETE FROM meta WHERE key = 'seen'")
            pruned = prune(db, self._pruned, newest - HISTORY)
            dropped = make_room(db, self.capacity)
        self._newest, self._pruned = newest, pruned
        self._gone(dropped)
        for name in self._names:
            self._standing[name].count(len(seqs))
        return dropped.waiting

    def _shrink_journal(self) -> None:
        """On a full disk the journal may be what fills it: its content goes into the file, and it is cut."""
        with contextlib.suppress(sqlite3.Error):
            self._ready().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

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
            self._standing[name].count(-dropped.waiting[name], -dropped.parked[name])

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

    def crowded(self, records: int) -> bool:
        """Whether so many more records may leave no room for those that wait."""
        return self.used() + (records + 2) * RECORD_BYTES > self.capacity * 0.9

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
            rows = waiting(db, destination, standing, limit)
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
        if db is not None and standing.settled:
            settle(db, destination, standing, self._pruned)

    def failed(self, destination: str, error: str, due: datetime) -> None:
        """Remembers a failed attempt and when the next one is due, for the page and for whoever looks at the file."""
        with self._theirs, translated():
            standing, db = self._standing[destination], self._delivery
            standing.attempts += 1
            standing.error = error
            if db is not None:
                with transaction(db):
                    note(db, destination, standing, due.timestamp())

    def queues(self) -> dict[str, Queue]:
        """How each destination stands."""
        with self._mine, translated():
            return {name: queue_of(self._agent, name, standing) for name, standing in self._standing.items()}


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
