"""The state: everything that the core keeps from one run to the next, with each tracked event in it, and its enums."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field

from exporter.core.document import Document, Event, Stored, Time

EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})


class Phase(StrEnum):
    """A status of an event: Azure's values, or UNKNOWN for another one."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"
    UNKNOWN = "unknown"


class TransitionKind(StrEnum):
    """Published transitions of an event."""

    SCHEDULED = "scheduled"
    UPDATED = "updated"
    STARTED = "started"
    COMPLETED = "completed"
    CANCELED = "canceled"
    ENDED = "ended"


CLOSING: Final = frozenset({TransitionKind.COMPLETED, TransitionKind.CANCELED, TransitionKind.ENDED})
NOT_THIS_VM: Final = "not-this-vm"
"""In `Transition.unseen`: the event now names only other VMs."""


class Seen(StrEnum):
    """How well the time just before an event was first seen was observed."""

    UNBROKEN = "unbroken"
    GAP = "gap"
    AGENT_START = "agent_start"


class StartedBy(StrEnum):
    """What started an event, as far as it can be derived: the service doesn't report it."""

    THIS_VM = "this_vm"
    OTHER = "other"
    NOT_BEFORE = "not_before"
    UNKNOWN = "unknown"


class Ownership(StrEnum):
    """Last known owner of an event: OURS if `Resources` name this VM, MAYBE if that is unknown."""

    OURS = "ours"
    MAYBE = "maybe"
    THEIRS = "theirs"


class Instant:
    """An instant on both clocks. `mono` is in seconds and only has a meaning within one process.

    The disk doesn't keep `mono`: it's None after a restart. Not a `Struct`, so that msgspec asks `state_codec` for its
    form on disk.
    """

    __slots__ = ("mono", "wall")

    def __init__(self, wall: datetime, mono: float | None = None) -> None:
        self.wall: Final = wall
        self.mono: Final = mono

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instant) and (self.wall, self.mono) == (other.wall, other.mono)

    def __hash__(self) -> int:
        return hash((self.wall, self.mono))

    def __repr__(self) -> str:
        return f"Instant({self.wall!r}, {self.mono!r})"

    @property
    def monotonic(self) -> float:
        """Seconds of the clock that can't be set.

        Raises ValueError for an instant that was read from disk; one that this process observed has both clocks.
        """
        if self.mono is None:
            raise ValueError("an instant of another process")
        return self.mono

    def at(self, monotonic: float) -> Instant:
        """Return the instant at which the monotonic clock had this value. Raises ValueError as `monotonic` does."""
        return Instant(self.wall + timedelta(seconds=monotonic - self.monotonic), monotonic)

    def minus(self, other: Instant) -> float:
        """Return the seconds from the other instant to this one, negative if the other is later.

        The monotonic clock is used if both instants are of one process, else the wall clock.
        """
        if self.mono is not None and other.mono is not None:
            return self.mono - other.mono
        return (self.wall - other.wall).total_seconds()

    def since(self, earlier: Instant) -> float | None:
        """Return the seconds since `earlier`; None if unknown.

        Across a restart only the wall clock remains; the time is unknown if that was set back in between.
        """
        passed = self.minus(earlier)
        if self.mono is not None and earlier.mono is not None:
            return max(0.0, passed)
        return passed if passed >= 0 else None


class InterruptionKind(StrEnum):
    """The signal by which an interruption was observed."""

    CLOCK_STEP = "clock_step"
    STALL = "stall"


class Interruption(Struct, frozen=True):
    """One interruption, observed `at`. `seconds` is negative for a clock that was set back.

    A stall began up to one tick earlier than known, so its seconds are a lower bound.
    """

    kind: InterruptionKind
    seconds: float
    at: Instant


class Approval(Stored, frozen=True):
    """The approval of an event by this VM.

    `unanswered`: a POST had no clear response, so Azure may have accepted it.
    """

    attempts: int = 0
    last_attempt: Instant | None = None
    accepted_at: Time | None = None
    rule: str = ""
    in_flight: bool = False
    unanswered: bool = False
    last_failure: str = ""
    failures: Mapping[str, int] = EMPTY
    """Number of POSTs that did not return HTTP 200, by reason."""
    outdated: bool = False
    retry_after_seconds: float = 0.0
    """`Retry-After` of the last response, in seconds."""

    @property
    def last_attempt_at(self) -> datetime | None:
        """Time at which the last POST was sent."""
        return self.last_attempt.wall if self.last_attempt is not None else None

    @property
    def doubtful(self) -> bool:
        """Whether Azure may have accepted an approval without confirming it."""
        return self.in_flight or self.unanswered


class InterruptionTotals(Stored, frozen=True):
    """Interruptions attributed to an event: their number, their total seconds, and the longest in seconds."""

    count: int = 0
    total: float = 0.0
    longest: float = 0.0


class TrackedEvent(Stored, frozen=True):
    """One event with what is known about it, from when it was first seen until some time after it left the document."""

    event: Event
    phase: Phase
    """The last status that this version knows, which determines transitions. Outputs show `EventNow.phase`."""
    first_seen: Instant
    seen_before: Seen
    first_seen_at: float
    """`State.observed_seconds` when it was first seen; the difference to now is how long it was observed."""
    unchanged_at: float
    """`State.observed_seconds` at the last change."""
    not_before: Time | None = None
    """The last one known: the document no longer contains it once the event has started."""
    earlier_event_type: str | None = None
    """The last readable one, while the document's is unreadable or disputed; the next two likewise."""
    earlier_resources: tuple[str, ...] | None = None
    earlier_status: str | None = None
    first_not_before: Time | None = None
    scheduled_seen: bool = False
    started: Instant | None = None
    """When it was first seen Started. Kept until it leaves the document, whatever its status is."""
    started_by: StartedBy | None = None
    approval: Approval = Approval()
    decided: tuple[str, str, str] | None = None
    """The last published decision: verdict, reason, rule."""
    started_before: bool = False
    """Whether an earlier event with this id was Started."""
    interruptions: InterruptionTotals = InterruptionTotals()
    updates: int = 0
    updates_while_started: int = 0
    gaps: int = 0
    gap_seconds: float | None = 0.0
    """None if unknown: the clock was set back between two processes."""
    started_gaps: int = 0
    """Number of the gaps before it was first seen Started."""
    faults_recorded: tuple[str, ...] = ()
    numbers: Mapping[str, int] = EMPTY
    """Number of the last record of each kind about this event, an input of the record's id."""
    closed: Instant | None = None
    outcome: TransitionKind | None = None
    weight: int = 0
    """Approximate size on disk in bytes; known once the event has left the document."""
    in_scope: bool | None = None
    """Whether its beginning was recorded and its end was not yet (`core/scope.py`). None until determined."""
    ownership: Ownership | None = None
    """`OURS`: its beginning was counted, and its end will be. None until determined."""

    @property
    def key(self) -> str:
        """The id by which events are compared."""
        return self.event.key

    @property
    def event_type(self) -> str | None:
        """The last readable EventType; an empty one is unreadable."""
        return self.earlier_event_type or self.event.event_type or None

    @property
    def resources(self) -> tuple[str, ...] | None:
        """The last readable Resources."""
        return self.event.resources if self.earlier_resources is None else self.earlier_resources

    @property
    def status(self) -> str | None:
        """The last readable EventStatus; an empty one is unreadable."""
        return self.earlier_status or self.event.status or None

    @property
    def earlier_bytes(self) -> int:
        """Size in bytes of the fields that only earlier documents contained."""
        texts = self.earlier_event_type or "", self.earlier_status or "", *(self.earlier_resources or ())
        return sum(len(text.encode()) + 1 for text in texts if text)

    @property
    def was_started(self) -> bool:
        """Whether this id was ever seen Started."""
        return self.started_before or self.started is not None

    @property
    def started_at(self) -> datetime | None:
        """`started` by the wall clock."""
        return self.started.wall if self.started else None

    @property
    def scheduled_duration_seconds(self) -> float | None:
        """Seconds from when it was first seen until it was seen Started."""
        return self.started.since(self.first_seen) if self.started else None

    @property
    def started_duration_seconds(self) -> float | None:
        """Seconds from when it was seen Started until it left the document."""
        return self.closed.since(self.started) if self.started and self.closed else None

    @property
    def observed_since_started(self) -> bool:
        """Whether this process has seen it start, and observed it without a gap since."""
        return self.started is not None and self.started.mono is not None and self.gaps == self.started_gaps


class Outage(Stored, frozen=True):
    """Failed polls from `since`, the beginning of the first, to `last_failure`, the end of the last.

    `recorded`: `source.unavailable` was written; `warned`: the anomaly `idle-deactivation-near` was.
    """

    since: Instant
    reason: str
    last_failure: Instant
    recorded: bool = False
    warned: bool = False
    silent: float = 0.0
    """Seconds from the beginning of the first failed poll to the end of the last one, summed over processes."""
    absent: float | None = 0.0
    """Seconds between the last failed poll of one process and the first poll of the next; None if unknown, because the
    clock was set back in between."""
    first_failure_in_process: Instant | None = None
    """The first failure in this process, if the outage began in an earlier one."""

    @property
    def known_since(self) -> Instant:
        """Beginning of the outage for this process."""
        return self.first_failure_in_process or self.since


class Reset(Stored, frozen=True):
    """A decrease of `DocumentIncarnation`: `State.observed_seconds` then, and the number of valid documents since."""

    observed_seconds: float
    documents: int = 0


class SourceStatus(Struct, frozen=True):
    """The status of the metadata service. `up` is about the last poll; the times are wall clock."""

    up: bool = False
    last_poll: datetime | None = None
    success: Instant | None = None
    """End of the last poll that returned a valid document."""
    failure: str = ""
    """Reason of the last poll if it failed."""
    failing: Instant | None = None
    """Time of the first failed poll since the last success in this process."""


class ProcessMemory(Struct, frozen=True):
    """The part of the state that only this process can use: it isn't kept on disk."""

    announced: bool = True
    """Whether `agent.started` was recorded; also True if it should not be recorded."""
    evidence: Mapping[str, Any] = EMPTY
    """Until the first valid document: what is known about the time before this process (`rebooted`)."""
    previous_run: str = ""
    """How the previous process ended: `stopped` in an orderly way, `killed` without the machine, or `with-machine`;
    empty if there was none or it is unknown."""
    source: SourceStatus = SourceStatus()
    malformed: int = 0
    """Number of invalid documents in a row."""
    pending: tuple[Interruption, ...] = ()
    """Interruptions without an event so far, whose event may be in one of the next documents."""
    unexplained: tuple[Interruption, ...] = ()
    """Interruptions recorded without an event while polls failed, whose event the next document may show."""
    recorded_at: Mapping[bool, tuple[float, ...]] = EMPTY
    """Monotonic seconds of the last records of interruptions with an event (True), and of those without one."""
    decisions: Mapping[str, Any] = EMPTY
    """The last decision on each event of the document (`policy.Decision`), by event key."""
    closed: Mapping[str, TrackedEvent] = EMPTY
    """The last events of this VM that ended in this process, by event key, as they were last updated."""


class State(Stored, frozen=True):
    """Everything that must survive a crash, and `process`. Replaced as a whole, never modified."""

    birth: Time
    vm_key: str = ""
    """Source of record ids: vmId, else the VM's name, else a random one; fixed at first use."""
    vm_id: str = ""
    document: Document | None = None
    tracked: Mapping[str, TrackedEvent] = EMPTY
    closed: Mapping[str, TrackedEvent] = EMPTY
    sent: Mapping[str, Approval] = EMPTY
    """Approvals of dropped ids: for 30 days none is sent twice."""
    started_ids: Mapping[str, Time] = EMPTY
    """Ids seen Started, kept after their events: with the time of the drop, or of the last evidence after a restart."""
    evictions: int = 0
    numbers: Mapping[str, int] = EMPTY
    rejected: frozenset[str] = frozenset()
    stopped: bool = False
    """Whether the process that wrote this ended in an orderly way."""
    last_good: Instant | None = None
    observed_seconds: float = 0.0
    """Seconds of gapless, successful polling: the clock of `settle` and `takeover_after`, which stops in a gap."""
    first_answer: Instant | None = None
    """When Azure first responded, or `DocumentIncarnation` last restarted: the service warms up after that."""
    events_seen_since_warmup: bool = False
    """Whether an event was seen since then, so that the service is warm."""
    outage: Outage | None = None
    document_rejected: str = ""
    boot_id: str = ""
    reset: Reset | None = None
    """Set while a decrease of `DocumentIncarnation` is too recent to act on any document."""
    scoped_as: tuple[str, bool] | None = None
    """VM name, and whether all events are published, for which `in_scope` and `ownership` were last determined."""
    process: ProcessMemory = ProcessMemory()
    """Not kept on disk."""

    def tracked_or_closed(self, key: str) -> TrackedEvent | None:
        """Return the event with this id: one in the document, or a closed one."""
        return self.tracked.get(key) or self.closed.get(key)


class Transition(Struct, frozen=True):
    """One transition of one event. `tracked` is the event after it."""

    kind: TransitionKind
    tracked: TrackedEvent
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    unexpected: bool = False
    newly_seen: bool = False
    gap: float | None = None
    """Seconds between the two valid documents; None if there was none before, or it is unknown."""
    unseen: tuple[str, ...] = ()
    """Why the time in between was not observed; empty if it was."""
    joined: bool = False
    """Whether the event was in the document before, without this VM."""
    replaced_by: str = ""
    """The id under which the event seems to continue."""
    last_published: TrackedEvent | None = None
    """The event as last published, if it left the scope with this document."""


class Rejection(Struct, frozen=True):
    """An event that can't be tracked, or a tracked one with invalid fields (then `key` is set)."""

    fault: str
    raw: Any
    key: str = ""
