"""The state in memory and, if the outbox can be written, on disk with the records: the one place that assigns it.

The stored state is used as soon as it can be read and is known to be of this VM: a copied disk has the state of another
one. It is known at once if this boot of the machine wrote it, else by the identity that the metadata service returns.
The stored state then replaces the observed one, as at a restart, and the next document is compared with it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.agent.boot import is_same_boot
from exporter.agent.ports import Environment, Store
from exporter.core.cycle import CycleOutcome, adopted_state, fresh_state
from exporter.core.document import alike
from exporter.core.facts import Fact, RecordsDropped
from exporter.core.lifecycle import EVENT_MEMORY_BYTES
from exporter.core.memory import without_closed_events
from exporter.core.records import RecordKind, Storable, VmIdentity
from exporter.core.snapshot import DestinationStatus, OutboxStatus
from exporter.core.state import Instant, State
from exporter.errors import Failure
from exporter.log.protocol import Logger

HEARTBEAT_SECONDS: Final = 60.0
HEARTBEAT_SECONDS_WITH_EVENTS: Final = 5.0
UNSAVED_RECORDS: Final = 10_000
UNSAVED_BYTES: Final = 16 << 20
"""Of unsaved records, or a quarter of the outbox if that is less."""
OWNER_SECONDS: Final = 60.0
"""How long after its start the agent waits for this VM's identity before it uses a stored state that has a vmId and was
written in another boot."""


class UnsavedRecord(Struct, frozen=True):
    """A record that the outbox has not accepted: its JSON, and what the outbox needs besides. Azure's objects and the
    ones before them are not kept alive by it."""

    id: str
    kind: str
    subject: str
    time: datetime
    body: bytes

    def to_json(self) -> bytes:
        """The record's JSON, in UTF-8."""
        return self.body


class StatePersistence:
    """Commits outcomes. While the outbox can't be written, the state and a limited number of records stay in memory."""

    def __init__(
        self, store: Store, log: Logger, environment: Environment, event_memory_bytes: int = EVENT_MEMORY_BYTES
    ) -> None:
        self._store = store
        self._event_memory_bytes = event_memory_bytes
        self._log = log
        self._environment = environment
        self._unsaved: deque[UnsavedRecord] = deque()
        self._unsaved_bytes = 0
        self._heartbeat: Instant | None = None
        self._undelivered = False
        self._facts: list[Fact] = []
        self.loaded = False
        """The stored state was adopted, or there is none. Until then nothing is written over it."""
        self.withheld: State | None = None
        """The stored state while it isn't known to be of this VM."""
        self.writable = True
        """The last write to the outbox succeeded."""
        self.outbox = OutboxStatus(capacity=store.capacity)
        self.destinations: tuple[DestinationStatus, ...] = ()
        self.state = State(birth=environment.clock().wall)

    def load_once(self, identity: VmIdentity, waited: float, boot_id: str) -> bool:
        """Adopt the stored state as soon as it can be read and is known to be of this VM.

        Return whether it replaced the observed one: then the process begins anew for it. `waited` is the number of
        seconds since the start of the process, `boot_id` is of this boot. A state of another VM is set aside.
        """
        if self.loaded:
            return False
        try:
            stored, vm_id = self._store.load(), identity.vm.id
            if stored is not None and vm_id and stored.vm_id and not alike(stored.vm_id, vm_id):
                self._log.warn("outbox.wrong_vm", vm_id=vm_id, was=stored.vm_id)
                self._store.start_new_file("other-vm")
                stored = None
            known = vm_id or identity.confirmed or waited >= OWNER_SECONDS
            if stored is not None and stored.vm_id and not (known or is_same_boot(stored.boot_id, boot_id)):
                self.withheld = stored
                return False
        except Failure as failure:
            self._disk_failed(failure)
            return False
        self.loaded, self.withheld = True, None
        self._store.release()
        if stored is None:
            return False
        self.state = adopted_state(stored, self.state)
        # The next document shows again what is there. An interruption it does not show.
        self._hold(record for record in self._take_unsaved() if record.kind == RecordKind.INTERRUPTION_OBSERVED)
        return True

    def disown_if_of_another_vm(self, vm_id: str, now: Instant, boot_id: str) -> bool:
        """Set the outbox aside if it is that of another VM, as with a golden image: nothing in it is about this VM.
        Returns whether it was. `boot_id` is of this boot, empty where the state has not noted it yet."""
        if not (vm_id and self.state.vm_id) or alike(vm_id, self.state.vm_id):
            return False
        self._log.warn("outbox.wrong_vm", vm_id=vm_id, was=self.state.vm_id)
        self._take_unsaved()
        self.state = fresh_state(self.state, now, boot_id)
        try:
            self._store.start_new_file("other-vm")
        except Failure as failure:
            self._disk_failed(failure)
        return True

    def commit(self, outcome: CycleOutcome, now: Instant) -> bool:
        """Make the outcome's state and records durable, in one transaction, and its state the current one.

        False if the outbox can't be written: then nothing has changed, and the caller decides again and calls `keep`.
        """
        if not (outcome.changed or self._unsaved or not self.writable):
            self.state = outcome.state
            return True
        if not self.loaded:
            return False
        state = outcome.state
        records: Sequence[Storable] = (*self._unsaved, *outcome.records)
        try:
            if state.closed and self._store.is_nearly_full(len(records)):
                state = without_closed_events(state, now.wall, self._event_memory_bytes)
            dropped = self._store.commit(state, records)
        except Failure as failure:
            self._disk_failed(failure)
            return False
        self.state = state
        self._undelivered = self._undelivered or bool(records)
        self._take_unsaved()
        self.writable = True
        self._log.recovered("outbox", "outbox.recovered")
        for name, count in dropped.items():
            self._drop(name, count, "outbox-full")
        return True

    def keep(self, outcome: CycleOutcome) -> None:
        """After a `commit` that failed: keep the state in memory and queue the records for the next commit."""
        self.state = outcome.state
        self._hold(
            UnsavedRecord(record.id, record.kind, record.subject, record.time, record.to_json())
            for record in outcome.records
        )
        most, dropped = min(UNSAVED_BYTES, self._store.capacity // 4), 0
        while self._unsaved_bytes > most or len(self._unsaved) > UNSAVED_RECORDS:
            self._unsaved_bytes -= len(self._unsaved.popleft().body)
            dropped += 1
        for destination in self.destinations if dropped else ():
            self._drop(destination.name, dropped, "outbox-unwritable")

    def _hold(self, records: Iterable[UnsavedRecord]) -> None:
        for record in records:
            self._unsaved.append(record)
            self._unsaved_bytes += len(record.body)

    def _take_unsaved(self) -> Sequence[UnsavedRecord]:
        taken, self._unsaved, self._unsaved_bytes = self._unsaved, deque(), 0
        return taken

    def can_record(self) -> bool:
        """Whether the outbox accepts writes, by the last one and by the file at the path now. From any thread."""
        return self.writable and self._store.is_in_place()

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
            self._store.save_heartbeat(read.wall)
        except Failure as failure:
            self._disk_failed(failure)

    def refresh(self) -> None:
        """Update the published status of the outbox and of its queues, and log its notes and losses."""
        try:
            self.destinations = tuple(self._store.queues().values())
            self.outbox = OutboxStatus(self._store.used(), self._store.capacity, self.writable)
        except Failure as failure:
            self._disk_failed(failure)
            self.outbox = replace(self.outbox, writable=False)
        self._log_notes()

    def _log_notes(self) -> None:
        store = self._store
        while store.notes:
            self._log.warn("outbox.note", note=store.notes.pop(0))
        while store.faults:
            self._log.error("outbox.damaged", detail=store.faults.pop(0))
        lost = Counter[str]()
        while store.lost:
            name, records = store.lost.pop()
            lost[name] += records
        for name, records in lost.items():
            self._drop(name, records, "outbox-corrupt")

    def _drop(self, destination: str, records: int, reason: str) -> None:
        self._facts.append(RecordsDropped(destination, reason, records))
        self._log.error("outbox.dropped", destination=destination, records=records, reason=reason)

    def take_facts(self) -> Sequence[Fact]:
        """The facts about the outbox since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def _disk_failed(self, failure: Failure) -> None:
        self.writable = False
        self._log.failing("outbox", "outbox.unwritable", reason=failure.reason, detail=failure.detail)
