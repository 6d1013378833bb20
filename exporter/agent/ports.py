"""Protocols and values through which the loop, the approvals, and the persistence use their adapters."""

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
    """A response of the metadata service with status 200."""

    @property
    def body(self) -> bytes:
        """The document as received, unparsed."""

    @property
    def read_at_monotonic(self) -> float:
        """Time at which the last byte was read, in seconds of the monotonic clock."""


class MetadataSource(Protocol):
    """The metadata service. Both methods raise `Failure`, with `status_code` and `retry_after` if known."""

    def fetch(self) -> SourceResponse:
        """Request the document. Blocks."""

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None], /) -> None:
        """Approve an event. Block until Azure has returned 200.

        Calls `leave` right before the first byte is written, and `left` right after it. If `leave` raises, or `left`
        was not called, nothing was sent.
        """


class Store(Protocol):
    """The outbox. Methods raise `Failure` if the file can't be read or written, except `release` and `is_in_place`."""

    capacity: int
    """Maximum size in bytes."""
    notes: list[str]
    """Notes for the log; the caller removes those that it has logged."""
    faults: list[str]
    """Descriptions of damage for the log; the caller removes those that it has logged."""
    lost: list[tuple[str, int]]
    """Destinations, each with a number of its records that were unreadable; the caller removes what it has counted."""

    def load(self) -> State | None:
        """Return the last committed state; None if there is none. Deliveries get no record before `release`."""

    def release(self) -> None:
        """Let deliveries send the stored records, which belong to this VM."""

    def commit(self, state: State, records: Sequence[Storable]) -> Mapping[str, int]:
        """Commit both in one transaction. Return the number of records dropped for space, by destination."""

    def save_heartbeat(self, seen: datetime) -> None:
        """Save the time of the last valid document."""

    def is_in_place(self) -> bool:
        """Return whether the opened file is still the one at the path. May be called from any thread; never raises."""

    def start_new_file(self, why: str) -> None:
        """Quarantine the file: rename and keep it, with `why` in its name, and start a new one."""

    def is_nearly_full(self, records: int) -> bool:
        """Return whether there is no space for this many more records."""

    def used(self) -> int:
        """Return the number of bytes in use."""

    def queues(self) -> Mapping[str, DestinationStatus]:
        """Return the state of each destination's queue, by name."""


class AgentMetrics(Protocol):
    """The metrics: counters of facts, and gauges of the status."""

    def publish(self, status: Status) -> None:
        """Show this status on the gauges from now on."""

    def observe(self, fact: Fact) -> None:
        """Count a fact."""


class AgentOptions(Struct, frozen=True):
    """The configuration of the agent."""

    policy: Policy = Policy()
    poll_interval: float = 1.0
    """Seconds between two polls."""
    all_events: bool = False
    """Whether records are also published for events of other VMs."""
    version: str = ""
    boot_id: str = ""
    """Id of this boot of the machine; empty if the system provides none."""
    event_memory_bytes: int = EVENT_MEMORY_BYTES
    """Maximum size of closed events in bytes."""


class Environment(Struct, frozen=True):
    """The agent's inputs and outputs in addition to source, store, and metrics. Each of them can be replaced."""

    clock: Callable[[], Instant]
    identity: Callable[[], VmIdentity]
    check_files: Callable[[Iterable[str]], Mapping[str, Presence]]
    interruptions: Callable[[], Sequence[Interruption]] = lambda: ()
    """Returns the interruptions since the last call, up to now."""
    record_interruption: Callable[[Interruption, datetime | None], None] = lambda _interruption, _handled: None
    """Records an interruption, with the time if it is attributed without a document. None: it is attributed with the
    document that is recorded next, or at the end of the process."""
    record_document: Callable[[bytes, datetime], None] = lambda _body, _read: None
    """Records a document as received, with the time."""
    record_failure: Callable[[datetime, str], None] = lambda _at, _reason: None
    """Records the time and the reason of a failed request for the document."""
    record_files: Callable[[datetime, Mapping[str, Presence]], None] = lambda _read, _files: None
    """Records the presence of the files that decisions on a document require, with the time of the document."""
    record_outbox: Callable[[datetime, bool], None] = lambda _read, _writable: None
    """Records whether the outcome of an observation could be written to the outbox, with the observation's time."""
    stopping: Callable[[], bool] = lambda: False
    """Returns whether the process is about to end: then no new request is made."""
    notify_deliveries: Callable[[], None] = lambda: None
    """Called after records were committed."""
    record_post_sent: Callable[[datetime, str], None] = lambda _at, _event_id: None
    """Records a POST when it is sent: time and event id."""
    record_post_answer: Callable[[datetime, str, int | None, str], None] = lambda _at, _event_id, _status, _reason: None
    """Records the response to a POST: time, event id, status (None without a response), and reason."""
    spawn: Callable[[Callable[[], None], float], None] = lambda task, _patience: task()
    """Runs a task on a separate thread; returns when it is done, or after this many seconds."""
    wake: Callable[[], None] = lambda: None
    """Called from such a thread to start the loop's next pass."""
    publish_status: Callable[[Status], None] = lambda _status: None
    """Called with each status at the end of a pass; must not block."""
    event_files: Callable[[], EventFilesStatus] = EventFilesStatus
    """Returns the state of the event files."""
