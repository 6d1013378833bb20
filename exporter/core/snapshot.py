"""The status of the agent at one moment, as one immutable value: gauges and landing page are computed from it.

The agent replaces the whole value after each poll; a reader on another thread takes it once, for a consistent view.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from exporter.core.document import KNOWN_TYPES
from exporter.core.event_now import EventNow
from exporter.core.policy import Coordination, Mode, Presence
from exporter.core.records import Vm
from exporter.core.state import Instant, State, Whose

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
        return tuple(event for event in self.events if event.ownership is Whose.OURS)

    @property
    def own_events(self) -> tuple[EventNow, ...]:
        """The events that are not known to be of other VMs alone."""
        return tuple(event for event in self.events if event.ownership is not Whose.THEIRS)

    @property
    def may_hold_own_event(self) -> bool:
        """Whether the document may hold an event of this VM: also if the last poll failed or the VM's name is not
        known."""
        state = self.state
        is_known = state.process.source.up and self.vm.name
        return not is_known or any(event.whose is not Whose.THEIRS for event in state.tracked.values())

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
        first, flowing = self.state.first_answer, self.state.flowing
        if first is None or flowing:
            return not flowing
        if first.mono is None and self.started.mono is not None:
            waited = (self.started.since(first) or 0.0) + (now.since(self.started) or 0.0)
        else:
            waited = now.since(first) or 0.0
        return waited < WARMING_SECONDS


def urgency(event: EventNow) -> tuple[int, datetime]:
    """A sort key: first what is Started, then what starts soonest, then what has no known start."""
    if event.history.started_at is not None:
        return (0, event.history.started_at)
    if event.starts_at is not None:
        return (1, event.starts_at)
    return (2, event.history.first_seen.wall)


def harm(event: EventNow) -> tuple[int, int, datetime]:
    """A sort key, the worst first: what takes the VM down, then types that this version does not know, then what is
    harmless; among those the most urgent first."""
    event_type = event.history.event_type
    return (0 if event_type in DOWN else 2 if event_type in HARMLESS else 1, *urgency(event))
