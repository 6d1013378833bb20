"""What the loop is connected to, by shape: the loop, the approvals and the persistence import no adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from exporter.core.facts import Fact
from exporter.core.lifecycle import HISTORY_BYTES
from exporter.core.policy import Policy, Presence
from exporter.core.records import Record, VmIdentity
from exporter.core.snapshot import Status
from exporter.core.state import Instant, Interruption, State


class Answer(Protocol):
    """What the metadata service answered with status 200."""

    @property
    def body(self) -> bytes:
        """The document as it came."""

    @property
    def read_at_monotonic(self) -> float:
        """When its last byte was read, in seconds of the monotonic clock."""


class Source(Protocol):
    """The metadata service. Both raise `Failure`, with `status_code` and `retry_after` where they are known."""

    def fetch(self) -> Answer:
        """Reads the document."""

    def approve(self, event_id: str) -> None:
        """Approves an event: returns when Azure answered 200."""


class Store(Protocol):
    """The outbox. Everything raises `Failure` when the disk does not take it."""

    capacity: int
    """Bytes."""
    notes: list[str]
    """Sentences for the log, taken out by who logs them."""

    def load(self) -> State | None:
        """The last state that was committed, None where there is none."""

    def commit(self, state: State, records: Sequence[Record]) -> Mapping[str, int]:
        """Makes both durable in one transaction. Answers how many records each destination lost for want of room."""

    def beat(self, seen: datetime) -> None:
        """Notes when the last good document was read."""

    def renew(self, why: str) -> None:
        """Sets the file aside and begins a new one."""

    def crowded(self, records: int) -> bool:
        """Whether there is no room for so many records more."""

    def used(self) -> int:
        """Bytes."""

    def queues(self) -> Mapping[str, Any]:
        """How each destination stands, by name."""


class Metrics(Protocol):
    """Where facts are counted and the status is shown."""

    def publish(self, status: Status) -> None:
        """The gauges show this status from now on."""

    def observe(self, fact: Fact) -> None:
        """Counts a fact."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the agent was told."""

    policy: Policy = field(default_factory=Policy)
    poll_interval: float = 1.0
    """Seconds."""
    all_events: bool = False
    """Records are published of events of other VMs as well."""
    version: str = ""
    boot_id: str = ""
    """Names this boot of the machine, empty where the system has no word for it."""
    history_bytes: int = HISTORY_BYTES
    """The bound of what is remembered of events that are over."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The world as the agent perceives it, each part an argument."""

    clock: Callable[[], Instant]
    identity: Callable[[], VmIdentity]
    look_at_files: Callable[[Iterable[str]], Mapping[str, Presence]]
    interruptions: Callable[[], Sequence[Interruption]] = lambda: ()
    """The interruptions noticed since the last call."""
    record_document: Callable[[bytes, datetime], None] = lambda _body, _read: None
    """Takes each raw document for the recording."""
    stopping: Callable[[], bool] = lambda: False
    """Whether the process is about to end: nothing new is begun."""
    notify_deliveries: Callable[[], None] = lambda: None
    """Called when there is something new to deliver."""
    record_post_sent: Callable[[datetime, str], None] = lambda _at, _event_id: None
    """Takes each POST for the recording, as it leaves."""
    record_post_answer: Callable[[datetime, str, int | None, str], None] = lambda _at, _event_id, _status, _reason: None
    """Takes the answer to each POST for the recording: its status, or none and why."""
    spawn: Callable[[Callable[[], None], float], None] = lambda task, _patience: task()
    """Runs what may take long on a thread of its own; comes back when it is done, or after so many seconds."""
    wake: Callable[[], None] = lambda: None
    """Called, from such a thread, when there is something for the next turn of the loop."""
