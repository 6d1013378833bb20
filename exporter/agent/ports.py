"""The protocols and values by which the loop, the approvals and the persistence use their adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from exporter.core.facts import Fact
from exporter.core.lifecycle import EVENT_MEMORY_BYTES
from exporter.core.policy import Policy, Presence
from exporter.core.records import Storable, VmIdentity
from exporter.core.snapshot import DestinationStatus, EventFilesStatus, Status
from exporter.core.state import Instant, Interruption, State


class SourceResponse(Protocol):
    """An answer of the metadata service with status 200."""

    @property
    def body(self) -> bytes:
        """The document as it was received."""

    @property
    def read_at_monotonic(self) -> float:
        """When its last byte was read, in seconds of the monotonic clock."""


class MetadataSource(Protocol):
    """The metadata service. Both raise `Failure`, with `status_code` and `retry_after` where they are known."""

    def fetch(self) -> SourceResponse:
        """Read the document."""

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None], /) -> None:
        """Approve an event. Returns when Azure has answered 200. `leave` is called right before the first byte is
        written, `left` right after it: nothing was sent if `leave` raises, or if `left` was not called."""


class Store(Protocol):
    """The outbox. Every method but `release` raises `Failure` if the file can't be read or written."""

    capacity: int
    """The most bytes that it may take."""
    notes: list[str]
    """Sentences for the log; the caller removes those that it has logged."""
    faults: list[str]
    """The same about damage."""
    lost: list[tuple[str, int]]
    """A destination and how many of its records could not be read; the caller removes what it has counted."""

    def load(self) -> State | None:
        """The last state that was committed; None if there is none. Deliveries get no record before `release`."""

    def release(self) -> None:
        """Let deliveries send what is stored: it is of this VM."""

    def commit(self, state: State, records: Sequence[Storable]) -> Mapping[str, int]:
        """Make both durable in one transaction. Returns how many records were dropped for space, by destination."""

    def save_heartbeat(self, seen: datetime) -> None:
        """Note when the last good document was read."""

    def is_in_place(self) -> bool:
        """Whether the file that was opened is still the one at the path. From any thread; raises nothing."""

    def start_new_file(self, why: str) -> None:
        """Set the file aside and begin a new one."""

    def is_nearly_full(self, records: int) -> bool:
        """Whether there is no space for so many more records."""

    def used(self) -> int:
        """The bytes in use."""

    def queues(self) -> Mapping[str, DestinationStatus]:
        """The state of each destination's queue, by name."""


class AgentMetrics(Protocol):
    """The metrics: facts are counted and the status is shown."""

    def publish(self, status: Status) -> None:
        """Show this status on the gauges from now on."""

    def observe(self, fact: Fact) -> None:
        """Count a fact."""


class AgentOptions(Struct, frozen=True):
    """The configuration of the agent."""

    policy: Policy = Policy()
    poll_interval: float = 1.0
    """Seconds."""
    all_events: bool = False
    """Records are also published for events of other VMs."""
    version: str = ""
    boot_id: str = ""
    """Identifies this boot of the machine; empty where the system gives no id."""
    event_memory_bytes: int = EVENT_MEMORY_BYTES
    """The most bytes that the histories of events that are over may take."""


class Environment(Struct, frozen=True):
    """The agent's inputs and outputs besides source, store and metrics, each of them replaceable."""

    clock: Callable[[], Instant]
    identity: Callable[[], VmIdentity]
    check_files: Callable[[Iterable[str]], Mapping[str, Presence]]
    interruptions: Callable[[], Sequence[Interruption]] = lambda: ()
    """The interruptions up to now since the last call."""
    record_interruption: Callable[[Interruption, datetime | None], None] = lambda _interruption, _handled: None
    """Records each of them, with the time at which it is attributed without a document; None for the document that is
    recorded next, and at the end of the process."""
    record_document: Callable[[bytes, datetime], None] = lambda _body, _read: None
    """Records each document as it was received, with the time."""
    record_failure: Callable[[datetime, str], None] = lambda _at, _reason: None
    """Records why a request for the document failed, with the time."""
    record_files: Callable[[datetime, Mapping[str, Presence]], None] = lambda _read, _files: None
    """Records what was found of the files that decisions on a document ask for, with the time at which it was read."""
    record_outbox: Callable[[datetime, bool], None] = lambda _read, _writable: None
    """Records whether the outbox could be written for what followed from an observation, with the time of that."""
    stopping: Callable[[], bool] = lambda: False
    """Whether the process is about to end: no new request is made."""
    notify_deliveries: Callable[[], None] = lambda: None
    """Called after records were committed."""
    record_post_sent: Callable[[datetime, str], None] = lambda _at, _event_id: None
    """Records each POST as it leaves: time and event id."""
    record_post_answer: Callable[[datetime, str, int | None, str], None] = lambda _at, _event_id, _status, _reason: None
    """Records the answer to each POST: time, event id, status (None for no answer) and reason."""
    spawn: Callable[[Callable[[], None], float], None] = lambda task, _patience: task()
    """Runs a task on a thread of its own; returns when it is done, or after so many seconds."""
    wake: Callable[[], None] = lambda: None
    """Called from such a thread when the loop should run its next pass."""
    publish_status: Callable[[Status], None] = lambda _status: None
    """Called with each status, last of all: it must not wait for anything."""
    event_files: Callable[[], EventFilesStatus] = EventFilesStatus
    """The state of the files for local software."""
