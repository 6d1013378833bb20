"""Keeps what the agent knows: the state in memory and, whenever the disk takes it, on disk with the records.

An outbox that can't be opened at the start is taken into use when it can be. What it then turns out to hold and what
was lived through meanwhile are one story: `reunited`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from exporter.agent.ports import Metrics, Senses, Store, Turn
from exporter.core.folding import alike, folded
from exporter.core.lifecycle import HISTORY_BYTES
from exporter.core.memory import without_histories
from exporter.core.records import Record
from exporter.core.snapshot import DestinationStatus, OutboxStatus
from exporter.core.state import CLOSING, Instant, Kind, Phase, Reset, State, Tracked, Whose
from exporter.errors import Failure
from exporter.log.protocol import Logger

BEAT_SECONDS: Final = 60.0
BEAT_SECONDS_WITH_EVENTS: Final = 5.0
UNSAVED_RECORDS: Final = 10_000
_LIFE: Final = frozenset(kind.value for kind in Kind)


def unread(birth: datetime) -> State:
    """What a life begins with that does not know what the file holds.

    Its events' numbers begin as after more evictions than there can have been, so that no other fact has their ids.
    """
    return State(birth=birth, evictions=int(birth.timestamp()))


def reunited(found: State, lived: State) -> State:
    """One state out of the one on disk and the one that was lived through without knowing it.

    What was approved stays approved, no record's number is given twice, and an event that is only on disk is told to be
    gone by the next document. Nothing else of the old state outweighs what was seen since.
    """
    if lived.document is None:
        return replace(
            found,
            vm_key=found.vm_key or lived.vm_key,
            vm_id=found.vm_id or lived.vm_id,
            numbers=_numbers(found.numbers, lived.numbers),
            outage=lived.outage or found.outage,
            boot_id=lived.boot_id or found.boot_id,
        )
    known = {**found.closed, **found.tracked}
    begun = {key for key, each in found.tracked.items() if each.told is not False}
    untold = {key for key, each in lived.closed.items() if key in begun and not _ended(each)}
    tracked = {key: _joined(known.get(key), _aware(found, each)) for key, each in lived.tracked.items()}
    closed = {
        key: _joined(known.get(key), _aware(found, each)) for key, each in lived.closed.items() if key not in untold
    }
    left = {
        key: replace(
            each,
            first_seen_at=lived.watched,  # by the clock that goes on
            unchanged_at=lived.watched,
            started_before=each.started_before or (key in untold and lived.closed[key].was_started),
        )
        for key, each in found.tracked.items()
        if key not in tracked and key not in closed
    }
    return replace(
        lived,
        birth=found.birth,
        vm_key=found.vm_key or lived.vm_key,
        vm_id=lived.vm_id or found.vm_id,
        # Without a document before it, the next one is compared event by event, which tells what is gone.
        document=None if left else lived.document,
        tracked={**left, **tracked},
        closed={**found.closed, **closed},
        sent={**lived.sent, **found.sent},
        started_ids={**found.started_ids, **lived.started_ids},
        evictions=found.evictions + max(0, lived.evictions - unread(lived.birth).evictions),
        reset=lived.reset or _reset(found, lived),
        numbers=_numbers(found.numbers, lived.numbers),
        first_answer=found.first_answer or lived.first_answer,
        first_answer_mono=None if found.first_answer else lived.first_answer_mono,
        flowing=found.flowing or lived.flowing,
        sorted_as=None,  # what the file told to begin, this life may know to be of others
    )


def _reset(found: State, lived: State) -> Reset | None:
    """The number that the file knew was higher, or had gone down just before."""
    if found.document is None or lived.document is None:
        return None
    lower = lived.document.incarnation < found.document.incarnation
    return Reset(lived.watched) if lower or found.reset is not None else None


def _aware(found: State, lived: Tracked) -> Tracked:
    """With what the file knows of the id, whatever is left of its history: what was sent, and that it was Started."""
    before = found.history(lived.key)
    sent = before.approval if before else found.sent.get(lived.key)
    started = lived.key in found.started_ids or (before is not None and before.was_started)
    return replace(
        lived,
        approval=lived.approval if sent is None or lived.approval.accepted_at is not None else sent,
        started_before=lived.started_before or started,
    )


def _joined(before: Tracked | None, after: Tracked) -> Tracked:
    if before is None:
        return after
    if before.closed_at is None and not _ended(after):
        counted = before.whose is Whose.OURS
        after = replace(after, told=after.told or before.told, whose=before.whose if counted else after.whose)
    after = replace(after, numbers=_numbers(before.numbers, after.numbers))
    if before.closed_at is not None or any(kind.value in after.numbers for kind in CLOSING):
        return after  # another life of the same id
    until_then = before.gaps + 1  # between the two lives nobody looked
    earlier = before.first_seen <= after.first_seen
    return replace(
        after,
        first_seen=before.first_seen if earlier else after.first_seen,
        first_seen_mono=None if earlier else after.first_seen_mono,
        seen_before=before.seen_before,
        first_not_before=before.first_not_before,
        scheduled_seen=before.scheduled_seen or after.scheduled_seen,
        started_at=before.started_at or after.started_at,
        started_mono=None if before.started_at else after.started_mono,
        started_by=before.started_by or after.started_by,
        gaps=until_then + after.gaps,
        gap_seconds=None,
        started_gaps=before.started_gaps if before.started_at else until_then + after.started_gaps,
    )


def _ended(lived: Tracked) -> bool:
    """Whether the life that did not know the file told an end of it."""
    return any(kind.value in lived.numbers for kind in CLOSING)


def told_before(found: State, record: Record) -> bool:
    """Whether a first sight, in a life that did not know the file, is a fact that the file already had."""
    before = found.tracked.get(folded(record.subject))
    if before is None or before.told is False:
        return False
    if before.told:  # it goes on as it stood there; how often it had records of a kind is of all its lives
        begun = {Kind.SCHEDULED: before.phase is not Phase.UNKNOWN, Kind.STARTED: before.phase is Phase.STARTED}
        return any(record.kind == kind.value and told for kind, told in begun.items())
    if record.kind not in before.numbers:
        return False
    since = {Kind.SCHEDULED: before.scheduled_seen, Kind.STARTED: before.started_at is not None}
    return any(record.kind == kind.value and seen for kind, seen in since.items())


def _numbers(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {kind: max(one.get(kind, 0), other.get(kind, 0)) for kind in {**one, **other}}


class Keeper:
    """The one place that commits. Without a disk nothing is lost but durability: records wait in memory, bounded."""

    def __init__(  # what it is connected to
        self, store: Store, metrics: Metrics, log: Logger, senses: Senses, history_bytes: int = HISTORY_BYTES
    ) -> None:
        self._store = store
        self._history_bytes = history_bytes
        self._metrics = metrics
        self._log = log
        self._senses = senses
        self._unsaved: deque[Record] = deque()
        self._beaten: Instant | None = None
        self._news = False
        self.writable = True
        """The last thing that was to be recorded was."""
        self.outbox = OutboxStatus(capacity=store.capacity)
        self.destinations: tuple[DestinationStatus, ...] = ()
        self._loaded = False
        """What the file held is known. Until then nothing is written over it."""
        self.state = unread(senses.clock().wall)
        self.take_up()

    def take_up(self) -> None:
        """Goes on from what the file holds, as soon as it can be read; before, nothing is written over it."""
        if self._loaded:
            return
        try:
            found = self._store.load()
            self._loaded = True
            lived = self.state
            if found is None:
                self.state = reunited(State(birth=lived.birth), lived)
                return
            if found.vm_id and lived.vm_id and not alike(found.vm_id, lived.vm_id):
                self._log.warn("outbox.of_another_vm", vm_id=lived.vm_id, was=found.vm_id)
                self._store.renew("other-vm")
                return
            self.state = reunited(found, lived)
            self._forget_what_was_told(found)
        except Failure as failure:
            self._failed(failure)

    def _forget_what_was_told(self, found: State) -> None:
        """Of each event the first record that waits may be of a fact that has its record already."""
        kept, begun = deque[Record](), set[str]()
        for record in self._unsaved:
            key = folded(record.subject) if record.kind in _LIFE else ""
            if not key or key in begun or not told_before(found, record):
                kept.append(record)
            begun.add(key)
        self._unsaved = kept

    def save(self, turn: Turn) -> bool:
        """Makes the turn's state and records durable. Where the disk does not take them, they wait: False."""
        self.state = turn.state
        if not (turn.dirty or self._unsaved or not self.writable):
            return True
        self._wait(turn.records)
        if not self._loaded:
            return False
        try:
            if turn.state.closed and self._store.crowded(len(self._unsaved)):
                turn.state = self.state = without_histories(turn.state, turn.now.wall, self._history_bytes)
            dropped = self._store.commit(turn.state, tuple(self._unsaved))
        except Failure as failure:
            self._failed(failure)
            return False
        self._news = self._news or bool(self._unsaved)
        self._unsaved.clear()
        self.writable = True
        self._log.recovered("outbox", "outbox.recovered")
        for name, count in dropped.items():
            self._metrics.dropped(name, "outbox-full", count)
            self._log.error("outbox.dropped", destination=name, records=count, reason="outbox-full")
        return True

    def hand_over(self) -> None:
        """Lets the deliveries know of what was committed. After acting: an approval has less time than a record."""
        if self._news:
            self._news = False
            self._senses.committed()

    def save_instead(self, turn: Turn, taken_back: int) -> None:
        """After a `save` that failed: the turn ended otherwise. Its last records as saved are taken back, and what it
        has now waits for the disk in their place."""
        for _ in range(min(taken_back, len(self._unsaved))):
            self._unsaved.pop()
        self._wait(turn.records)
        self.state = turn.state

    def _wait(self, records: Sequence[Record]) -> None:
        self._unsaved.extend(records)
        excess = len(self._unsaved) - UNSAVED_RECORDS
        if excess <= 0:
            return
        for _ in range(excess):
            self._unsaved.popleft()
        for destination in self.destinations:
            self._metrics.dropped(destination.name, "outbox-unwritable", excess)
        self._log.error("outbox.dropped", records=excess, reason="outbox-unwritable")

    def _failed(self, failure: Failure) -> None:
        self.writable = False
        self._log.failing("outbox", "outbox.unwritable", reason=failure.reason, detail=failure.detail)

    def renew(self, state: State) -> None:
        """Everything kept so far is another VM's: it is set aside, and `state` begins anew."""
        self._unsaved.clear()
        self.state = state
        try:
            self._store.renew("other-vm")
        except Failure as failure:
            self._failed(failure)

    def beat(self, read: Instant) -> None:
        """Now and then the time of the last good document goes to disk: a restart then knows how long it was blind."""
        patience = BEAT_SECONDS_WITH_EVENTS if self.state.tracked else BEAT_SECONDS
        if self._beaten is not None:
            by_mono = (read.mono or 0.0) - (self._beaten.mono or 0.0)
            by_wall = (read.wall - self._beaten.wall).total_seconds()
            if by_mono < patience and 0 <= by_wall < patience:  # a clock that was set makes the last time a lie
                return
        self._beaten = read
        try:
            self._store.beat(read.wall)
        except Failure as failure:
            self._failed(failure)

    def look(self) -> None:
        """Brings what is shown of the outbox and of its queues up to date."""
        for note in self._store.notes:
            self._log.warn("outbox.note", note=note)
        self._store.notes.clear()
        try:
            queues = self._store.queues()
            self.outbox = OutboxStatus(self._store.used(), self._store.capacity, self.writable)
        except Failure:
            self.outbox = replace(self.outbox, writable=False)
            return
        self.destinations = tuple(
            DestinationStatus(name, True, queue.records, queue.oldest, queue.parked, queue.last_success, queue.error)
            for name, queue in queues.items()
        )
