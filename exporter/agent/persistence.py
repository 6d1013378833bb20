"""The state in memory and, if the outbox can be written, on disk with the records: the one place that assigns it.

An outbox that can't be opened at the start is used as soon as it can be. Its state and what was observed meanwhile are
then merged (`core/merge.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from exporter.agent.ports import Environment, Store
from exporter.core.cycle import Outcome, fresh_state
from exporter.core.facts import Fact, RecordsDropped
from exporter.core.folding import alike
from exporter.core.lifecycle import HISTORY_BYTES
from exporter.core.memory import without_histories
from exporter.core.merge import merge_states, provisional_state, without_repeated
from exporter.core.records import Record
from exporter.core.snapshot import DestinationStatus, OutboxStatus
from exporter.core.state import Instant, State
from exporter.errors import Failure
from exporter.log.protocol import Logger

HEARTBEAT_SECONDS: Final = 60.0
HEARTBEAT_SECONDS_WITH_EVENTS: Final = 5.0
UNSAVED_RECORDS: Final = 10_000


class StatePersistence:
    """Commits outcomes. While the outbox can't be written, state and `UNSAVED_RECORDS` records stay in memory."""

    def __init__(self, store: Store, log: Logger, environment: Environment, history_bytes: int = HISTORY_BYTES) -> None:
        self._store = store
        self._history_bytes = history_bytes
        self._log = log
        self._environment = environment
        self._unsaved: deque[Record] = deque()
        self._heartbeat: Instant | None = None
        self._undelivered = False
        self._facts: list[Fact] = []
        self._loaded = False
        """The stored state was read. Until then nothing is written over it."""
        self.writable = True
        """The last write to the outbox succeeded."""
        self.outbox = OutboxStatus(capacity=store.capacity)
        self.destinations: tuple[DestinationStatus, ...] = ()
        self.state = provisional_state(environment.clock().wall)
        self.load_once()

    def load_once(self) -> None:
        """Load the stored state as soon as it can be read, and merge it; before, nothing is written over it."""
        if self._loaded:
            return
        try:
            stored = self._store.load()
            self._loaded = True
            observed = self.state
            if stored is None:
                self.state = merge_states(State(birth=observed.birth), observed)
                return
            if stored.vm_id and observed.vm_id and not alike(stored.vm_id, observed.vm_id):
                self._log.warn("outbox.of_another_vm", vm_id=observed.vm_id, was=stored.vm_id)
                self._store.renew("other-vm")
                return
            self.state = merge_states(stored, observed)
            self._unsaved = deque(without_repeated(tuple(self._unsaved), stored))
        except Failure as failure:
            self._disk_failed(failure)

    def disown_if_of_another_vm(self, vm_id: str, now: Instant, boot_id: str) -> bool:
        """Set the outbox aside if it is that of another VM, as with a golden image: nothing in it is about this VM.
        Returns whether it was. `boot_id` is of this boot, empty where the state has not noted it yet."""
        if not (vm_id and self.state.vm_id) or alike(vm_id, self.state.vm_id):
            return False
        self._log.warn("outbox.of_another_vm", vm_id=vm_id, was=self.state.vm_id)
        self._unsaved.clear()
        self.state = fresh_state(self.state, now, boot_id)
        try:
            self._store.renew("other-vm")
        except Failure as failure:
            self._disk_failed(failure)
        return True

    def commit(self, outcome: Outcome, now: Instant) -> bool:
        """Make the outcome's state and records durable, in one transaction, and its state the current one.

        False if the outbox can't be written: then nothing has changed, and the caller decides again and calls `keep`.
        """
        if not (outcome.changed or self._unsaved or not self.writable):
            self.state = outcome.state
            return True
        if not self._loaded:
            return False
        state, records = outcome.state, (*self._unsaved, *outcome.records)
        try:
            if state.closed and self._store.crowded(len(records)):
                state = without_histories(state, now.wall, self._history_bytes)
            dropped = self._store.commit(state, records)
        except Failure as failure:
            self._disk_failed(failure)
            return False
        self.state = state
        self._undelivered = self._undelivered or bool(records)
        self._unsaved.clear()
        self.writable = True
        self._log.recovered("outbox", "outbox.recovered")
        for name, count in dropped.items():
            self._facts.append(RecordsDropped(name, "outbox-full", count))
            self._log.error("outbox.dropped", destination=name, records=count, reason="outbox-full")
        return True

    def keep(self, outcome: Outcome) -> None:
        """After a `commit` that failed: keep the state in memory and queue the records for the next commit."""
        self.state = outcome.state
        self._unsaved.extend(outcome.records)
        excess = len(self._unsaved) - UNSAVED_RECORDS
        if excess <= 0:
            return
        for _ in range(excess):
            self._unsaved.popleft()
        self._facts += [
            RecordsDropped(destination.name, "outbox-unwritable", excess) for destination in self.destinations
        ]
        self._log.error("outbox.dropped", records=excess, reason="outbox-unwritable")

    def notify_deliveries(self) -> None:
        """Wake the deliveries if records were committed. Called after the approvals, which are more urgent."""
        if self._undelivered:
            self._undelivered = False
            self._environment.notify_deliveries()

    def save_heartbeat(self, read: Instant) -> None:
        """Write the time of the last good document to disk now and then, so that a restart can measure the gap."""
        interval = HEARTBEAT_SECONDS_WITH_EVENTS if self.state.tracked else HEARTBEAT_SECONDS
        if self._heartbeat is not None:
            by_mono = read.monotonic - self._heartbeat.monotonic
            by_wall = (read.wall - self._heartbeat.wall).total_seconds()
            if by_mono < interval and 0 <= by_wall < interval:  # a clock that was set makes the last time wrong
                return
        self._heartbeat = read
        try:
            self._store.beat(read.wall)
        except Failure as failure:
            self._disk_failed(failure)

    def refresh(self) -> None:
        """Update the published status of the outbox and of its queues, and log its notes."""
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

    def take_facts(self) -> Sequence[Fact]:
        """The facts about the outbox since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def _disk_failed(self, failure: Failure) -> None:
        self.writable = False
        self._log.failing("outbox", "outbox.unwritable", reason=failure.reason, detail=failure.detail)
