"""Statuses for tests of `/metrics` and the landing page, made by the real core from documents: no field is invented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from exporter.core.decision import decide
from exporter.core.document import folded, parse_document
from exporter.core.lifecycle import advance
from exporter.core.memory import number, with_tracked
from exporter.core.policy import Mode, Policy
from exporter.core.records import Vm
from exporter.core.snapshot import DestinationStatus, OutboxStatus, Status
from exporter.core.state import Approval, Instant, ProcessMemory, SourceStatus, State, Transition
from exporter.core.state_codec import dump_state, load_state
from tests.support import factories
from tests.support.core_documents import context_of

NOON: Final = datetime(2025, 11, 21, 12, 0, tzinfo=UTC)
VM: Final = Vm(
    name="shop-web_3",
    id="5c7f1d3e-1c1a-4a3e-9d57-0d1f4c1f2b11",
    subscription_id="0b1f6471-1bf0-4dda-aec3-cb9272f09590",
    resource_group="shop-prod",
    vmss_name="shop-web",
    location="westeurope",
    zone="2",
    size="Standard_D4s_v5",
    priority="Regular",
)
FREEZE: Final[dict[str, Any]] = {
    "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
    "EventStatus": "Scheduled",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["shop-web_3"],
    "NotBefore": "Fri, 21 Nov 2025 12:15:00 GMT",
    "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
    "EventSource": "Platform",
    "DurationInSeconds": 5,
}
REBOOT: Final[dict[str, Any]] = {
    **FREEZE,
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventType": "Reboot",
    "Resources": ["shop-web_1", "shop-web_3"],
    "NotBefore": "Fri, 21 Nov 2025 12:22:00 GMT",
    "Description": "Host server is undergoing maintenance.",
    "DurationInSeconds": -1,
}


started = factories.as_started
document = factories.document


class EventScenario:
    """Reads documents in order, a second apart by default; `state` and `transitions` are the core's results."""

    def __init__(self, at: datetime = NOON) -> None:
        self.at = at
        self.seconds = 0.0
        self.state = State(birth=at, vm_key="key")
        self.number = 0
        self.transitions: list[Transition] = []

    @property
    def now(self) -> datetime:
        """The time of the last document or poll."""
        return self.at + timedelta(seconds=self.seconds)

    def read(self, *events: Mapping[str, Any], after: float = 1.0) -> tuple[Transition, ...]:
        """Read the next document after polls every second, so that there is no gap."""
        whole = int(after)
        for _ in range(whole - 1):
            self._poll(1.0)
        self.seconds += after - max(0, whole - 1)
        return self.read_body(document(self.number + 1, *events))

    def read_body(self, body: bytes) -> tuple[Transition, ...]:
        """Read the next document, at once, from its body."""
        self.number += 1
        step = advance(self.state, parse_document(body), self.instant)
        self.state = step.state
        for transition in step.transitions:  # each is published: a record gives it a number
            self.state = with_tracked(self.state, number(transition.tracked, transition.kind.value)[1])
        self.transitions += step.transitions
        return step.transitions

    def wait(self, seconds: int) -> None:
        """Poll the same document once a second for this long."""
        for _ in range(seconds):
            self._poll(1.0)

    def blink(self, seconds: float = 3 * 86400.0) -> None:
        """Poll nothing for this long; the next document ends the gap."""
        self.seconds += seconds

    def restart(self, seconds: float = 3 * 86400.0) -> None:
        """Start another process after this long, with the stored state."""
        self.seconds += seconds
        self.state = load_state(dump_state(self.state))

    def _poll(self, seconds: float) -> None:
        self.seconds += seconds
        if self.state.document is not None:
            self.state = advance(self.state, self.state.document, self.instant).state

    @property
    def instant(self) -> Instant:
        """Return the same on both clocks."""
        return Instant(self.now, 1000.0 + self.seconds)

    def approved(self, event_id: str, rule: str) -> None:
        """Note that Azure accepted this VM's approval of an event just now."""
        tracked = self.state.tracked[folded(event_id)]
        approval = Approval(1, self.instant, self.now, rule)
        self.state = replace(
            self.state, tracked={**self.state.tracked, tracked.key: replace(tracked, approval=approval)}
        )

    def status(
        self,
        *,
        vm: Vm = VM,
        mode: Mode = Mode.DRY_RUN,
        destinations: Sequence[DestinationStatus] = (),
        source: SourceStatus | None = None,
        outbox: OutboxStatus | None = None,
    ) -> Status:
        decisions = decide(Policy(mode=mode), self.state, context_of(vm.name))
        source = source or SourceStatus(up=True, last_poll=self.now, success=Instant(self.now))
        process = ProcessMemory(source=source, decisions={decision.key: decision for decision in decisions})
        return Status(
            started=Instant(self.at),
            state=replace(self.state, process=process),
            vm=vm,
            mode=mode,
            outbox=outbox or OutboxStatus(bytes=45_056, capacity=104_857_600),
            destinations=tuple(destinations),
        )


def empty_scenario() -> EventScenario:
    """Return ten minutes without events: nothing is scheduled, and the service has long warmed up."""
    scenario = EventScenario()
    scenario.read()
    scenario.wait(600)
    return scenario


def scheduled_scenario() -> EventScenario:
    """Return two scheduled events of this VM and one of a neighbour."""
    scenario = EventScenario()
    scenario.read()
    scenario.wait(5)
    scenario.read(FREEZE, REBOOT, {**FREEZE, "EventId": "neighbour", "Resources": ["shop-web_9"]})
    return scenario


def started_scenario() -> EventScenario:
    """Return an approved freeze that has started, and a scheduled reboot."""
    scenario = scheduled_scenario()
    scenario.approved(FREEZE["EventId"], "short-freeze")
    scenario.read(started(FREEZE), REBOOT, after=4)
    return scenario


def closed_scenario() -> EventScenario:
    """Return a freeze that was approved by this VM, started, and ended, and a canceled reboot."""
    scenario = started_scenario()
    scenario.read(REBOOT, after=6)
    scenario.read(after=30)
    scenario.wait(300)
    return scenario


def crowded_scenario(count: int = 60) -> EventScenario:
    """Return many events of this VM at once; the last ones start soonest."""
    scenario = EventScenario()
    scenario.read()
    events = []
    for place in range(count):
        time = (NOON + timedelta(hours=24, minutes=-place)).strftime("%a, %d %b %Y %H:%M:%S GMT")
        kind = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "Levitate")[place % 6]
        events.append({**FREEZE, "EventId": f"event-{place:04}", "EventType": kind, "NotBefore": time})
    scenario.read(*events)
    return scenario


def outputs(now: datetime) -> tuple[DestinationStatus, ...]:
    """Return both destinations: one that keeps up, one that fails and has rejected a record."""
    return (
        DestinationStatus("event_hubs", True, 0, None, 0, now - timedelta(seconds=3), ""),
        DestinationStatus("otlp", True, 3, now - timedelta(minutes=4), 1, now - timedelta(minutes=9), "connect"),
    )


def failing_status(scenario: EventScenario) -> Status:
    """Return a source without a response for a minute; the known events are a minute old."""
    last = scenario.now
    scenario.seconds += 60
    source = SourceStatus(False, scenario.now, Instant(last), "timeout", Instant(last + timedelta(seconds=1)))
    return scenario.status(source=source, destinations=outputs(scenario.now))


def with_source(status: Status, source: SourceStatus) -> Status:
    """Return the same status with this one of the metadata service."""
    return replace(status, state=replace(status.state, process=replace(status.state.process, source=source)))
