"""The state in memory and, if the outbox can be written, on disk with the records. Only this module assigns the state.

The stored state is adopted when it can be read and is known to belong to this VM, because a copied disk contains the
state of another one. That is known at once if this boot of the machine wrote it, else by the identity that the metadata
service returns. The stored state then replaces the observed one, and the next document is compared with it.
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
"""Maximum size of unsaved records, or a quarter of the outbox if that is less."""
OWNER_SECONDS: Final = 60.0
"""Maximum time after the start for which the agent waits for the VM's identity before it adopts a stored state that has
a vmId and was written in another boot."""


class UnsavedRecord(Struct, frozen=True):
    """A record that the outbox hasn't accepted: its JSON, and the fields that the outbox needs.

    It doesn't reference documents from Azure, so that they can be freed.
    """

    id: str
    kind: str
    subject: str
    time: datetime
    body: bytes

    def to_json(self) -> bytes:
        """Return the record's JSON, in UTF-8."""
        return self.body


class StatePersistence:
    """The current state. While the outbox can't be written, it and a limited number of records stay in memory."""

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
        """Whether the stored state was adopted or doesn't exist. Until then nothing is written over it."""
        self.withheld: State | None = None
        """The stored state while it isn't known to belong to this VM; else None."""
        self.writable = True
        """Whether the last write to the outbox succeeded."""
        self.outbox = OutboxStatus(capacity=store.capacity)
        self.destinations: tuple[DestinationStatus, ...] = ()
        self.state = State(birth=environment.clock().wall)

    def load_once(self, identity: VmIdentity, waited: float, boot_id: str) -> bool:
        """Adopt the stored state when it can be read and is known to belong to this VM.

        Return whether it replaced the observed state: then the caller runs `AgentStarted` on it. `waited` is the number
        of seconds since the start of the process, `boot_id` is of this boot. The file of another VM is quarantined.
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
        # The next document contains the events again, but no interruptions.
        self._add_unsaved(record for record in self._take_unsaved() if record.kind == RecordKind.INTERRUPTION_OBSERVED)
        return True

    def quarantine_if_other_vm(self, vm_id: str, now: Instant, boot_id: str) -> bool:
        """Quarantine the outbox if it belongs to another VM, for example in a golden image. Return whether it did.

        `boot_id` is of this boot, empty if the state doesn't contain it yet.
        """
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
        """Commit the outcome's state and records in one transaction, and make its state the current one.

        Return False if the outbox can't be written: nothing has changed, and the caller decides again and calls `keep`.
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
        """Keep the state in memory and queue the records for the next commit, after a failed `commit`."""
        self.state = outcome.state
        self._add_unsaved(
            UnsavedRecord(record.id, record.kind, record.subject, record.time, record.to_json())
            for record in outcome.records
        )
        most, dropped = min(UNSAVED_BYTES, self._store.capacity // 4), 0
        while self._unsaved_bytes > most or len(self._unsaved) > UNSAVED_RECORDS:
            self._unsaved_bytes -= len(self._unsaved.popleft().body)
            dropped += 1
        for destination in self.destinations if dropped else ():
            self._drop(destination.name, dropped, "outbox-unwritable")

    def _add_unsaved(self, records: Iterable[UnsavedRecord]) -> None:
        for record in records:
            self._unsaved.append(record)
            self._unsaved_bytes += len(record.body)

    def _take_unsaved(self) -> Sequence[UnsavedRecord]:
        taken, self._unsaved, self._unsaved_bytes = self._unsaved, deque(), 0
        return taken

    def can_record(self) -> bool:
        """Return whether the last write succeeded and the file is still in place. May be called from any thread."""
        return self.writable and self._store.is_in_place()

    def notify_deliveries(self) -> None:
        """Wake the deliveries if records were committed. The loop sends approvals first, which are more urgent."""
        if self._undelivered:
            self._undelivered = False
            self._environment.notify_deliveries()

    def save_heartbeat(self, read: Instant) -> None:
        """Save the time of the last valid document at intervals: the next process computes the polling gap from it."""
        interval = HEARTBEAT_SECONDS_WITH_EVENTS if self.state.tracked else HEARTBEAT_SECONDS
        if self._heartbeat is not None:
            by_mono = read.monotonic - self._heartbeat.monotonic
            by_wall = (read.wall - self._heartbeat.wall).total_seconds()
            if by_mono < interval and 0 <= by_wall < interval:  # if the clock was set, the saved time is wrong
                return
        self._heartbeat = read
        try:
            self._store.save_heartbeat(read.wall)
        except Failure as failure:
            self._disk_failed(failure)

    def refresh(self) -> None:
        """Update the status of the outbox and its queues, and log its notes and losses."""
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
        """Return the facts about the outbox since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def _disk_failed(self, failure: Failure) -> None:
        self.writable = False
        self._log.failing("outbox", "outbox.unwritable", reason=failure.reason, detail=failure.detail)
