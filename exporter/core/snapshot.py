"""The status of the agent at one moment, as one immutable value: gauges, landing page and gate are computed from it.

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
"""Azure delivers events at the latest five minutes after the first answer [Enabling and disabling]."""
STALE_SECONDS: Final = 30.0
STALE_POLLS: Final = 10
DESTINATIONS: Final = ("event_hubs", "otlp")
HARMLESS: Final = frozenset({"Freeze"})
"""Event types through which the VM keeps running, but for a pause [Event properties]."""
DOWN: Final = frozenset(KNOWN_TYPES) - HARMLESS
"""Event types that take the VM down, for a while or for good."""


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
    """The files for local software: their folder, "" where none is configured, and why they are not as they should be,
    a sentence."""

    path: str = ""
    error: str = ""


class Status(Struct, frozen=True):
    """The agent at one moment. Of the source, and of what was decided, `state.process` has the newest."""

    started: Instant
    state: State
    vm: Vm = Vm()
    identity_conflict: bool = False
    mode: Mode = Mode.DRY_RUN
    coordination: Coordination = Coordination.LEADER
    held: bool = False
    """The hold file is there, or not clearly absent."""
    files: Mapping[str, Presence] = field(default_factory=dict)
    """What the last look found of the files that approvals ask for, by path."""
    poll_interval: float = 1.0
    outbox: OutboxStatus = OutboxStatus()
    destinations: tuple[DestinationStatus, ...] = ()
    event_files: EventFilesStatus = EventFilesStatus()

    @property
    def events(self) -> tuple[EventNow, ...]:
        """The events of the document, as they are to this VM now."""
        name = self.vm.name
        return tuple([EventNow(tracked, name) for tracked in self.state.tracked.values()])

    @property
    def named_events(self) -> tuple[EventNow, ...]:
        """The events that are known to name this VM: none while its name is unknown."""
        return tuple(event for event in self.events if event.ownership is Ownership.OURS)

    @property
    def may_hold_own_event(self) -> bool:
        """Whether the document may hold an event of this VM: also if the last poll failed or the VM's name is not
        known."""
        state = self.state
        is_known = state.process.source.up and self.vm.name
        return not is_known or any(event.ownership is not Ownership.THEIRS for event in state.tracked.values())

    @property
    def last_read(self) -> datetime | None:
        """When the document was last read: by an earlier process only once the first poll of this one has ended."""
        last, source = self.state.last_good, self.state.process.source
        read = source.success or (last if source.last_poll is not None else None)
        return read.wall if read else None

    @property
    def knows_its_events(self) -> bool:
        """Whether this process has read a document and the VM's name is known: what is not there now is over."""
        return self.state.process.source.success is not None and bool(self.vm.name)

    @property
    def stale_after(self) -> float:
        """The seconds after which the last good document is too old to say what is planned: 30, or ten polls."""
        return max(STALE_SECONDS, STALE_POLLS * self.poll_interval)

    def fresh(self, now: Instant) -> bool:
        """Whether this process has read a document that is not older than `stale_after`."""
        success = self.state.process.source.success
        age = now.since(success) if success else None
        return age is not None and age <= self.stale_after

    def warming(self, now: Instant) -> bool:
        """Whether Azure may still be enabling the service: an empty document does not mean "nothing planned" then.

        If an earlier process had the first answer, the time until this process began is measured by the wall clock. If
        that was set back, it counts as 0, so that warming takes at most twice as long.
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
    """A sort key: first what is Started, then what starts soonest, then what has no known start."""
    if event.tracked.started_at is not None:
        return (0, event.tracked.started_at)
    if event.starts_at is not None:
        return (1, event.starts_at)
    return (2, event.tracked.first_seen.wall)


def severity_key(event: EventNow) -> tuple[int, int, datetime]:
    """A sort key, the worst first: what takes the VM down, then types that this version does not know, then what is
    harmless; among those the most urgent first."""
    event_type = event.tracked.event_type
    return (0 if event_type in DOWN else 2 if event_type in HARMLESS else 1, *urgency_key(event))


# -- the gate: whether a load balancer shall send this VM traffic

LEAD_SECONDS: Final = 120.0
EVENT_TYPES: Final = ("Reboot", "Redeploy", "Preempt", "Terminate")
"""Types that end what runs on the VM. A Freeze is over before a load balancer has noticed it."""


class GatePolicy(Struct, frozen=True):
    """When the gate closes: `lead` seconds before `NotBefore` of an event of these types; without types, never."""

    lead: float = LEAD_SECONDS
    event_types: tuple[str, ...] = EVENT_TYPES


class GateReason(Enum):
    """Why the gate is open or closed, as the sentence that it answers with."""

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
"""The reasons for which the gate is closed, the most urgent first in `GateReason`; for all others it is open."""


class Gate(Struct, frozen=True):
    """The gate at one moment. `event_type` and `at` are of the event that closes it: when it was seen Started, when it
    was approved, or its `NotBefore`; None while the gate is open."""

    reason: GateReason
    event_type: str | None = None
    at: datetime | None = None

    @property
    def open(self) -> bool:
        """Whether the VM may get traffic."""
        return self.reason not in CLOSED

    @property
    def sentence(self) -> str:
        """The answer for a person: whether it is open, and why."""
        time = self.at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if self.at else ""
        return self.reason.value.format(type=self.event_type, time=time)


STARTING: Final = Gate(GateReason.STARTING)
"""While there is no status yet."""


def gate_of(status: Status, now: Instant, policy: GatePolicy) -> Gate:
    """The gate of this status, as one sentence that a load balancer may read without a password.

    It is closed while an event that is known to name this VM, of a type that the policy names, has started, was
    approved by this VM (Azure answered 200), or may begin within `GatePolicy.lead`; until that event is gone from
    the document. It fails open: what is not known, or known no more, takes no VM out of service. A gate that closed
    itself when the metadata service is silent would take all VMs of a region out at once.

    Strangers may read the sentence, so it holds no id, name or description: the type of an event, which is a word
    of the policy, and one time.

    Of several events that close it, the most urgent one is told.
    """
    if not policy.event_types:
        return Gate(GateReason.NO_EVENT_TYPES)
    if not status.vm.name:
        return Gate(GateReason.IDENTITY_UNKNOWN)
    last = status.state.last_good
    if last is None:
        return Gate(GateReason.NOT_READ)
    age = now.since(last)  # None: read by a process before this one, and the clock was set back since
    if age is None or age > status.stale_after:
        return Gate(GateReason.STALE)
    closing = [
        (gate, event)
        for event in status.events
        if (gate := _closed_by(event, now, policy)) is not None
        # The last thing asked: in a scale set every VM reads every VM's events, each with many names.
        and event.ownership is Ownership.OURS
    ]
    if not closing:
        return Gate(GateReason.NO_EVENT)
    return min(
        closing, key=lambda found: ([*GateReason].index(found[0].reason), urgency_key(found[1]), found[1].tracked.key)
    )[0]


def _closed_by(event: EventNow, now: Instant, policy: GatePolicy) -> Gate | None:
    """The gate that this event closes if it is one of this VM; None if it does not."""
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
