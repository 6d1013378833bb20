"""Scenarios of the real agent: the platform of the simulator, a clock that a test sets, and the resulting `/metrics`.

No part of the agent is replaced: documents come from the simulated platform, state and queues are in a real outbox,
and the text is from the real collector. There is only no HTTP to the platform, and no backend of a destination.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from exporter.agent.delivery import Delivery
from exporter.agent.loop import Agent
from exporter.agent.ports import AgentOptions, Environment
from exporter.core.policy import DEFAULT_RULES, Mode, Policy
from exporter.core.records import Record, Vm, VmIdentity
from exporter.core.state import Instant, Interruption, InterruptionKind
from exporter.errors import Permanent, Retryable
from exporter.log.log import Log
from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import REASONS, MetadataError
from exporter.outbox.store import Outbox
from exporter.simulator.metadata.platform import Play
from exporter.simulator.metadata.scenario import Scenario
from exporter.sinks.prometheus.sink import PrometheusSink

POLL_SECONDS: Final = 5.0
CAPACITY: Final = 104_857_600


class Clock:
    """Wall and monotonic time, which advance together when a test sets them."""

    def __init__(self, wall: float) -> None:
        self.wall = wall

    def instant(self) -> Instant:
        """Return the time of both clocks."""
        return Instant(self.utc(), self.mono())

    def utc(self) -> datetime:
        """Return the wall time."""
        return datetime.fromtimestamp(self.wall, UTC)

    def mono(self) -> float:
        """Return the monotonic time, in seconds."""
        return self.wall - 1_000_000_000


@dataclass(frozen=True, slots=True)
class ObservedInterruption:
    """The VM observed an interruption."""

    at: float
    kind: InterruptionKind
    seconds: float


@dataclass(frozen=True, slots=True)
class Life:
    """One VM and its agent. Times are in seconds before the end of the scenario, so negative."""

    vm: str
    scenario: Scenario
    began: float
    vmss: str = ""
    mode: Mode = Mode.DRY_RUN
    without_data_since: float = 1.0
    hangs_since: float = 1.0
    """The agent answers scrapes and no longer polls."""
    down_since: float = 1.0
    approvals_fail_since: float = 1.0
    destination_fails_since: float = 1.0
    refused_at: float = 1.0
    capacity: int = CAPACITY
    observed: tuple[ObservedInterruption, ...] = ()
    named: bool = True
    """The metadata service returns the identity of the VM."""
    clock_error: float = 0.0
    """Seconds by which the VM's clock is ahead of that of Prometheus."""
    prepare: Callable[[PrometheusSink, float], None] = field(default=lambda _sink, _end: None)


class _Metadata:
    """The metadata service for this VM: the document of the platform, or no answer."""

    def __init__(self, life: Life, end: float, clock: Clock) -> None:
        self._life, self._end, self._clock = life, end, clock
        self._play = Play(life.scenario, start=datetime.fromtimestamp(end + life.began, UTC))
        self._failures = 0

    def fetch(self) -> MetadataResponse:
        if self._clock.wall - self._end >= self._life.without_data_since:
            self._failures += 1
            raise MetadataError("timeout", "no answer", failures=self._failures)
        body = json.dumps(self._play.now(self._clock.utc()).document()).encode()
        self._clock.wall += 0.006
        return MetadataResponse(body, self._clock.mono(), 0.006)

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        leave()
        left()
        if self._clock.wall - self._end >= self._life.approvals_fail_since:
            raise MetadataError("server-error", "not now", status_code=500)
        if not self._play.approve([event_id], self._clock.utc()):
            raise MetadataError("status-400", "no such event", status_code=400)


class _Receiver:
    """A destination that accepts records until it fails, and permanently rejects one record at a given time."""

    batch_size = 50
    subjects = 1

    def __init__(self, name: str, life: Life, end: float, clock: Clock) -> None:
        self.name = name
        self._life, self._end, self._clock = life, end, clock

    def send(self, records: Sequence[Record]) -> None:
        at = self._clock.wall - self._end
        if self.name != "otlp":
            return
        if at >= self._life.destination_fails_since:
            raise Retryable("unavailable", "not now")
        if at >= self._life.refused_at and any(record.kind == "scheduled" for record in records):
            raise Permanent("rejected", "never")

    def idle(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Living:
    """One agent with outbox, destinations, and sink, on a clock that advances from poll to poll."""

    def __init__(self, life: Life, end: float, folder: Path) -> None:
        self.life, self._end = life, end
        self.clock = clock = Clock(end + life.began)
        log = Log(None)
        names = ("event_hubs", "otlp")
        self._outbox = Outbox(folder / f"{life.vm}.db", life.capacity, names, now=clock.utc)
        self.sink = PrometheusSink(
            "1.0.0",
            tuple(rule.name for rule in DEFAULT_RULES),
            destinations=names,
            poll_failure_reasons=REASONS,
            now=clock.instant,
            include_process_metrics=False,
        )
        life.prepare(self.sink, end)
        self._observed = list(life.observed)
        identity = VmIdentity(
            Vm(name=life.vm, id=f"id-of-{life.vm}", vmss_name=life.vmss, size="Standard_D2s_v5", location="westeurope")
        )
        identity = identity if life.named else VmIdentity()
        environment = Environment(
            clock=clock.instant,
            identity=lambda: identity,
            check_files=lambda _paths: {},
            interruptions=self._interruptions,
        )
        options = AgentOptions(policy=Policy(mode=life.mode), poll_interval=POLL_SECONDS, version="1.0.0")
        metadata = _Metadata(life, end, clock)
        self._agent = Agent(options, metadata, self._outbox, self.sink, log=log, environment=environment)
        self._deliveries = [
            Delivery(
                _Receiver(name, life, end, clock),
                self._outbox,
                self.sink,
                log,
                monotonic=clock.mono,
                jitter=lambda: 0.0,
            )
            for name in names
        ]

    def _interruptions(self) -> list[Interruption]:
        now = self.clock.wall - self._end
        due = [observed for observed in self._observed if observed.at <= now]
        self._observed = [observed for observed in self._observed if observed.at > now]
        return [Interruption(observed.kind, observed.seconds, self.clock.instant()) for observed in due]

    def live_until(self, at: float) -> None:
        """Poll and deliver until this time (seconds before the end)."""
        until = self._end + at
        while self.clock.wall < until:
            wait = self._agent.tick()
            for delivery in self._deliveries:
                while delivery.tick() == 0:
                    pass
            self.clock.wall = min(until, self.clock.wall + max(wait, 0.1))

    def scraped(self) -> str:
        """Return the current `/metrics`, as OpenMetrics."""
        return self.sink.render(openmetrics=True)[1].decode()

    def close(self) -> None:
        """Close the outbox."""
        self._outbox.close()


def scrapes(life: Life, end: float, folder: Path, moments: Sequence[float]) -> Iterator[tuple[float, str | None]]:
    """Yield the result of a scrape at each of these times (seconds before the end); None while the target is down."""
    living = Living(life, end + life.clock_error, folder)
    try:
        for at in moments:
            if at >= life.down_since:
                yield at, None
                continue
            living.live_until(min(at, life.hangs_since))
            yield at, living.scraped()
    finally:
        living.close()
