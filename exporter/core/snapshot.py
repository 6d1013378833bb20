"""The status of the agent at one moment, as one immutable value: gauges, landing page, and gate are computed from it.

The agent replaces the whole value after each poll; a reader on another thread takes it once, for a consistent view.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from msgspec import Struct, field

from exporter.core.document import KNOWN_TYPES
from exporter.core.policy import Coordination, Mode, Presence
from exporter.core.records import Vm
from exporter.core.scope import EventNow
from exporter.core.state import Instant, Ownership, State

WARMING_SECONDS: Final = 300.0
"""Azure delivers events at most five minutes after the first response [Enabling and disabling]."""
STALE_SECONDS: Final = 30.0
STALE_POLLS: Final = 10
DESTINATIONS: Final = ("event_hubs", "otlp")
HARMLESS: Final = frozenset({"Freeze"})
"""Event types during which the VM keeps running, except for a pause [Event properties]."""
DOWN: Final = frozenset(KNOWN_TYPES) - HARMLESS
"""Event types that take the VM down, temporarily or permanently."""


class DestinationStatus(Struct, frozen=True):
    """One destination's queue. `error` is the reason of the last failure while it fails."""

    name: str
    configured: bool = False
    records: int = 0
    oldest: datetime | None = None
    parked: int = 0
    last_success: datetime | None = None
    error: str = ""


class OutboxStatus(Struct, frozen=True):
    """The outbox: `bytes` used of `capacity`, and whether its last write succeeded."""

    bytes: int = 0
    capacity: int = 0
    writable: bool = True


class EventFilesStatus(Struct, frozen=True):
    """The files for local software. `path` is their folder, "" if none is configured.

    `error` is a sentence: why the files are not up to date.
    """

    path: str = ""
    error: str = ""


class Status(Struct, frozen=True):
    """The agent at one moment. `state.process` has the newest values of the metadata service and the decisions."""

    started: Instant
    state: State
    vm: Vm = Vm()
    identity_conflict: bool = False
    mode: Mode = Mode.DRY_RUN
    coordination: Coordination = Coordination.LEADER
    held: bool = False
    """Whether the hold file exists, or its absence can't be verified."""
    files: Mapping[str, Presence] = field(default_factory=dict)
    """Presence, at the last check, of the files that approvals need, by path."""
    poll_interval: float = 1.0
    outbox: OutboxStatus = OutboxStatus()
    destinations: tuple[DestinationStatus, ...] = ()
    event_files: EventFilesStatus = EventFilesStatus()

    @property
    def events(self) -> tuple[EventNow, ...]:
        """The events of the document, as they concern this VM now."""
        name = self.vm.name
        return tuple([EventNow(tracked, name) for tracked in self.state.tracked.values()])

    @property
    def named_events(self) -> tuple[EventNow, ...]:
        """The events that are known to name this VM: none while its name is unknown."""
        return tuple(event for event in self.events if event.ownership is Ownership.OURS)

    @property
    def may_hold_own_event(self) -> bool:
        """Whether the document may contain an event of this VM.

        Also True if the last poll failed or the VM's name is unknown.
        """
        state = self.state
        is_known = state.process.source.up and self.vm.name
        return not is_known or any(event.ownership is not Ownership.THEIRS for event in state.tracked.values())

    @property
    def last_read(self) -> datetime | None:
        """Time at which the document was last read.

        A time of an earlier process counts only once the first poll of this one has ended.
        """
        last, source = self.state.last_good, self.state.process.source
        read = source.success or (last if source.last_poll is not None else None)
        return read.wall if read else None

    @property
    def knows_its_events(self) -> bool:
        """Whether this process has read a document and knows the VM's name, so that an absent event has ended."""
        return self.state.process.source.success is not None and bool(self.vm.name)

    @property
    def stale_after(self) -> float:
        """Seconds after which the last valid document is too old to show what is planned: 30, or ten polls."""
        return max(STALE_SECONDS, STALE_POLLS * self.poll_interval)

    def fresh(self, now: Instant) -> bool:
        """Return whether this process has read a document that is not older than `stale_after`."""
        success = self.state.process.source.success
        age = now.since(success) if success else None
        return age is not None and age <= self.stale_after

    def warming(self, now: Instant) -> bool:
        """Return whether Azure may still be enabling the service: an empty document doesn't mean "nothing planned".

        If an earlier process got the first response, the time until this process began is measured by the wall clock.
        If that was set back, it counts as 0, so that warming takes at most twice as long.
        """
        first, flowing = self.state.first_answer, self.state.events_seen_since_warmup
        if first is None or flowing:
            return not flowing
        if first.mono is None and self.started.mono is not None:
            waited = (self.started.since(first) or 0.0) + (now.since(self.started) or 0.0)
        else:
            waited = now.since(first) or 0.0
        return waited < WARMING_SECONDS


def urgency_key(event: EventNow) -> tuple[int, datetime]:
    """Return a sort key: first what is Started, then what starts soonest, then what has no known start."""
    if event.tracked.started_at is not None:
        return (0, event.tracked.started_at)
    if event.starts_at is not None:
        return (1, event.starts_at)
    return (2, event.tracked.first_seen.wall)


def severity_key(event: EventNow) -> tuple[int, int, datetime]:
    """Return a sort key, the worst first, and the most urgent first among equals.

    The order is: what takes the VM down, types that this version doesn't know, and what is harmless.
    """
    event_type = event.tracked.event_type
    return (0 if event_type in DOWN else 2 if event_type in HARMLESS else 1, *urgency_key(event))


# -- the gate: whether a load balancer should send traffic to this VM

LEAD_SECONDS: Final = 120.0
EVENT_TYPES: Final = ("Reboot", "Redeploy", "Preempt", "Terminate")
"""Types that end what runs on the VM. A Freeze has ended before a load balancer notices it."""


class GatePolicy(Struct, frozen=True):
    """When the gate closes: `lead` seconds before `NotBefore` of an event of these types; without types, never."""

    lead: float = LEAD_SECONDS
    event_types: tuple[str, ...] = EVENT_TYPES


class GateReason(Enum):
    """Why the gate is open or closed, as the sentence in its response."""

    STARTED = "Closed: {type} of this VM has started, seen at {time}."
    APPROVED = "Closed: {type} of this VM was approved at {time} and can start at any time."
    NOT_BEFORE = "Closed: {type} of this VM can start from {time} on."
    NO_EVENT = "Open: no upcoming event closes the gate."
    NO_EVENT_TYPES = "Open: no event types are configured for the gate."
    STARTING = "Open: the agent is starting and has not read the events yet."
    NOT_READ = "Open: the agent has not read the metadata service yet."
    STALE = "Open: the last data from the metadata service is too old."
    IDENTITY_UNKNOWN = "Open: the name of this VM is not known yet."


CLOSED: Final = frozenset({GateReason.STARTED, GateReason.APPROVED, GateReason.NOT_BEFORE})
"""The reasons for which the gate is closed, the most urgent first in `GateReason`; for all others it's open."""


class Gate(Struct, frozen=True):
    """The gate at one moment. `event_type` and `at` belong to the event that closes it; None while the gate is open.

    `at` is when the event was seen Started or was approved, or its `NotBefore`.
    """

    reason: GateReason
    event_type: str | None = None
    at: datetime | None = None

    @property
    def open(self) -> bool:
        """Whether the VM may receive traffic."""
        return self.reason not in CLOSED

    @property
    def sentence(self) -> str:
        """Human-readable response: whether the gate is open, and why."""
        time = self.at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if self.at else ""
        return self.reason.value.format(type=self.event_type, time=time)


STARTING: Final = Gate(GateReason.STARTING)
"""The gate while there is no status yet."""


def gate_of(status: Status, now: Instant, policy: GatePolicy) -> Gate:
    """Return the gate of this status, as one sentence that a load balancer may read without a password.

    It's closed while an event that is known to name this VM, of a type in the policy, has started, was approved by this
    VM (HTTP 200), or may start within `GatePolicy.lead`; until that event is no longer in the document. It fails open:
    missing or outdated data takes no VM out of service. A gate that closed when the metadata service fails would take
    all VMs of a region out at once.

    Anyone may read the sentence, so it contains no id, name, or description: only the type of an event, which is a
    value of the policy, and one time. If several events close the gate, the most urgent one is named.
    """
    if not policy.event_types:
        return Gate(GateReason.NO_EVENT_TYPES)
    if not status.vm.name:
        return Gate(GateReason.IDENTITY_UNKNOWN)
    last = status.state.last_good
    if last is None:
        return Gate(GateReason.NOT_READ)
    age = now.since(last)  # None: an earlier process read it, and the clock was set back since
    if age is None or age > status.stale_after:
        return Gate(GateReason.STALE)
    closing = [
        (gate, event)
        for event in status.events
        if (gate := _closed_by(event, now, policy)) is not None
        # Checked last: in a scale set every VM reads the events of all VMs, each with many names.
        and event.ownership is Ownership.OURS
    ]
    if not closing:
        return Gate(GateReason.NO_EVENT)
    return min(
        closing, key=lambda found: ([*GateReason].index(found[0].reason), urgency_key(found[1]), found[1].tracked.key)
    )[0]


def _closed_by(event: EventNow, now: Instant, policy: GatePolicy) -> Gate | None:
    """Return the gate that this event closes if it's one of this VM; None if it doesn't close it."""
    tracked, kind = event.tracked, event.tracked.event_type
    if kind not in policy.event_types:
        return None
    if tracked.started_at is not None:
        return Gate(GateReason.STARTED, kind, tracked.started_at)
    if tracked.approval.accepted_at is not None:
        return Gate(GateReason.APPROVED, kind, tracked.approval.accepted_at)
    ahead = event.starts_at  # not `ahead - lead`: the year 1 has no time before it
    if ahead is not None and (ahead - now.wall).total_seconds() <= policy.lead:
        return Gate(GateReason.NOT_BEFORE, kind, ahead)
    return None
