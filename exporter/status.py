"""What the agent knows at one moment, as one immutable value: the gauges and the landing page are computed from it.

The agent replaces the whole value after each poll; readers on other threads take it once and see one consistent moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from exporter.approval import Coordination, Decision, Mode
from exporter.lifecycle import State, Tracked
from exporter.records import Vm

WARMING: Final = timedelta(minutes=5)
"""Events begin to flow within five minutes of the first answer [Enabling and disabling]."""
DESTINATIONS: Final = ("event_hubs", "otlp")


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How the metadata service answers. `up` is about the last poll; the times are wall clock."""

    up: bool = False
    last_poll: datetime | None = None
    last_success: datetime | None = None
    failure: str = ""
    """Reason of the last poll when it failed."""
    failing_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class DestinationStatus:
    """One destination's queue. `error` is the reason of the last failure while it fails."""

    name: str
    configured: bool = False
    records: int = 0
    oldest: datetime | None = None
    parked: int = 0
    last_success: datetime | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    bytes: int = 0
    capacity: int = 0
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Status:
    """The agent at one moment. `decisions` is by event key, for each event of the last good document."""

    started_at: datetime
    state: State
    vm: Vm = field(default_factory=Vm)
    identity_conflict: bool = False
    source: SourceStatus = SourceStatus()
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    mode: Mode = Mode.DRY_RUN
    coordination: Coordination = Coordination.LEADER
    poll_interval: float = 1.0
    outbox: OutboxStatus = OutboxStatus()
    destinations: tuple[DestinationStatus, ...] = ()

    def concerns_this_vm(self, tracked: Tracked) -> bool:
        """False only for events that are known to be of other VMs."""
        return tracked.event.may_name(self.vm.name)

    @property
    def own_events(self) -> tuple[Tracked, ...]:
        return tuple(tracked for tracked in self.state.tracked.values() if self.concerns_this_vm(tracked))

    def warming(self, now: datetime) -> bool:
        """Whether Azure may still be switching the service on: an empty document is then not yet "nothing planned"."""
        first = self.state.first_answer
        return first is None or now - first < WARMING
