"""The gate: whether a load balancer shall send this VM traffic, as one sentence that it may read without a password.

It is closed while an event that is known to name this VM, of a type that the policy names, has started, was approved by
this VM (Azure answered 200), or may begin within `GatePolicy.lead`; until that event is gone from the document. It
fails open: what is not known, or known no more, takes no VM out of service. A gate that closed itself when the metadata
service is silent would take all VMs of a region out at once.

Strangers may read the sentence, so it holds no id, name or description: the type of an event, which is a word of the
policy, and one time.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Final

from msgspec import Struct

from exporter.core.event_now import EventNow
from exporter.core.snapshot import Status, urgency
from exporter.core.state import Instant, Whose

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
    APPROVED = "Closed: {type} of this VM was approved at {time} and may begin at any moment."
    NOT_BEFORE = "Closed: {type} of this VM may begin from {time} on."
    NO_EVENT = "Open: no event that closes the gate is near."
    NO_EVENT_TYPES = "Open: no type of event closes this gate."
    STARTING = "Open: the agent is starting, so what is planned is not known yet."
    NOT_READ = "Open: the metadata service has not been read yet, so what is planned is not known."
    STALE = "Open: the metadata service was last read too long ago to know what is planned."
    IDENTITY_UNKNOWN = "Open: the name of this VM is not known yet, so neither are its events."


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
    """The gate of this status. Of several events that close it, the most urgent one is told."""
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
        and event.ownership is Whose.OURS
    ]
    if not closing:
        return Gate(GateReason.NO_EVENT)
    return min(closing, key=lambda found: (_ORDER[found[0].reason], urgency(found[1]), found[1].history.key))[0]


_ORDER: Final = {reason: place for place, reason in enumerate(GateReason)}


def _closed_by(event: EventNow, now: Instant, policy: GatePolicy) -> Gate | None:
    """The gate that this event closes if it is one of this VM; None if it does not."""
    tracked, kind = event.history, event.history.event_type
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
