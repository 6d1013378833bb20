"""What the agent knows at one moment, as one immutable value: the gauges and the landing page are computed from it.

The agent replaces the whole value after each poll; readers on other threads take it once and see one consistent moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from exporter.core.policy import Coordination, Decision, Mode
from exporter.core.records import Vm
from exporter.core.state import Instant, Phase, SourceStatus, State, Tracked

WARMING_SECONDS: Final = 300.0
"""Events begin to flow within five minutes of the first answer [Enabling and disabling]."""
STALE_SECONDS: Final = 30.0
STALE_POLLS: Final = 10
DESTINATIONS: Final = ("event_hubs", "otlp")


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
    """The outbox: `bytes` used of `capacity`, and whether the last thing to be recorded was."""

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
    source: SourceStatus = field(default_factory=SourceStatus)
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    mode: Mode = Mode.DRY_RUN
    coordination: Coordination = Coordination.LEADER
    held: bool = False
    """The hold file holds: it is there, or not clearly absent."""
    poll_interval: float = 1.0
    outbox: OutboxStatus = OutboxStatus()
    destinations: tuple[DestinationStatus, ...] = ()
    started_mono: float | None = None

    @property
    def started(self) -> Instant:
        """`started_at` on both clocks."""
        return Instant(self.started_at, self.started_mono)

    def concerns_this_vm(self, tracked: Tracked) -> bool:
        """False only for events that are known to be of other VMs."""
        return tracked.event.may_name(self.vm.name)

    @property
    def named_events(self) -> tuple[Tracked, ...]:
        """Those that are known to name this VM: none while its name is unknown, nor where `Resources` can't be read."""
        name = self.vm.name
        return tuple(tracked for tracked in self.state.tracked.values() if name and tracked.event.names(name))

    @property
    def own_events(self) -> tuple[Tracked, ...]:
        """Those that are not known to be of other VMs alone."""
        return tuple(tracked for tracked in self.state.tracked.values() if self.concerns_this_vm(tracked))

    def fresh(self, now: Instant) -> bool:
        """Whether this process has read a document, not older than 30 s or ten polls."""
        age = now.since(self.source.success) if self.source.success else None
        return age is not None and age <= max(STALE_SECONDS, STALE_POLLS * self.poll_interval)

    def warming(self, now: Instant) -> bool:
        """Whether Azure may still be switching the service on: an empty document is then not yet "nothing planned".

        Where an earlier process had the first answer, the wall clock says how much of the time was over when this one
        began; a clock that was set back says that nothing was, so that it never takes longer than once more.
        """
        state = self.state
        if state.first_answer is None or state.flowing:
            return not state.flowing
        first = Instant(state.first_answer, state.first_answer_mono)
        if first.mono is None and self.started.mono is not None:
            waited = (self.started.since(first) or 0.0) + (now.since(self.started) or 0.0)
        else:
            waited = now.since(first) or 0.0
        return waited < WARMING_SECONDS


def urgency(tracked: Tracked) -> tuple[int, datetime]:
    """What is on comes first, then what starts soonest, then what does not say when."""
    if tracked.phase is Phase.STARTED:
        return (0, tracked.started_at or tracked.first_seen)
    if tracked.event.not_before is not None:
        return (1, tracked.event.not_before)
    return (2, tracked.first_seen)
