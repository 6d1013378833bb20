"""A scale set in one process: real agents with real outboxes, one simulated platform, and a simulated clock.

Each VM has its own agent, state, and file. All VMs read the same documents, and each one polls at a different moment of
each second. Nothing sleeps: a minute of platform time takes only the agents' CPU time.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from exporter.agent.files import check_files
from exporter.agent.loop import Agent
from exporter.agent.ports import AgentOptions, Environment
from exporter.core.policy import DEFAULT_RULES, Coordination, Mode, Policy
from exporter.core.records import Record, Vm, VmIdentity
from exporter.core.state import Instant
from exporter.log.log import Log
from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import MetadataError
from exporter.outbox.store import Outbox
from exporter.simulator.metadata.platform import Play
from exporter.simulator.metadata.scenario import Action, Scenario, ScenarioStep, ScenarioVm

START: Final = datetime(2026, 3, 2, 9, 0, 0, tzinfo=UTC)
ANNOUNCED_AFTER: Final = 3.4
DESTINATION: Final = "event_hubs"
CAPACITY: Final = 16 << 20


class NoMetrics:
    """Metrics that do nothing; other benchmarks measure scrapes."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@dataclass(slots=True)
class Clock:
    """Platform time, in seconds since `START`."""

    seconds: float = 0.0

    def now(self) -> Instant:
        return Instant(START + timedelta(seconds=self.seconds), 1000.0 + self.seconds)


@dataclass(slots=True)
class PlatformOfAll:
    """The simulated platform. It encodes each document once for all VMs."""

    play: Play
    clock: Clock
    posts: list[tuple[float, str, str]] = field(default_factory=list)
    """Seconds since the start, VM, and event id of each POST."""
    _written: tuple[int, bytes] = (0, b"")

    def body(self) -> bytes:
        change = self.play.now(self.clock.now().wall)
        if self._written[0] != change.incarnation:
            self._written = (change.incarnation, json.dumps(change.document()).encode())
        return self._written[1]


@dataclass(frozen=True, slots=True)
class Source:
    """The platform as one VM reaches it. `mute`: its POSTs fail."""

    platform: PlatformOfAll
    vm: str
    mute: bool = False

    def fetch(self) -> MetadataResponse:
        return MetadataResponse(self.platform.body(), self.platform.clock.now().mono or 0.0, 0.0)

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        if self.mute:
            raise MetadataError("connect", "no route from this VM")
        leave()
        left()
        now = self.platform.clock
        self.platform.posts.append((now.seconds, self.vm, event_id))
        if not self.platform.play.approve([event_id], now.now().wall):
            raise MetadataError("status-400", "HTTP 400", status_code=400)


@dataclass(slots=True)
class Member:
    """One VM with its agent."""

    name: str
    agent: Agent
    outbox: Outbox


class Fleet:
    """The agents of all VMs. `dead` VMs have no agent; POSTs of `mute` ones fail. `takeover_after` in seconds; None:
    never."""

    def __init__(
        self,
        folder: Path,
        scenario: Scenario,
        *,
        takeover_after: float | None = None,
        dead: Sequence[int] = (),
        mute: Sequence[int] = (),
    ) -> None:
        self.clock = Clock()
        self.platform = PlatformOfAll(Play(scenario, start=START), self.clock)
        policy = Policy(
            mode=Mode.ENFORCE, coordination=Coordination.LEADER, takeover_after=takeover_after, rules=DEFAULT_RULES
        )
        options, log = AgentOptions(policy=policy), Log(None)
        self.members = [
            self._member(folder, vm.name, options, log, number in mute)
            for number, vm in enumerate(scenario.vms)
            if number not in dead
        ]
        self.cpu = 0.0
        self.ticks = 0

    def _member(self, folder: Path, name: str, options: AgentOptions, log: Log, mute: bool) -> Member:
        identity = VmIdentity(Vm(name=name, id=f"id-{name}", vmss_name="web", location="westeurope"))
        outbox = Outbox(folder / f"{name}.db", CAPACITY, (DESTINATION,))
        environment = Environment(clock=self.clock.now, identity=lambda: identity, check_files=check_files)
        agent = Agent(options, Source(self.platform, name, mute), outbox, NoMetrics(), log=log, environment=environment)
        return Member(name, agent, outbox)

    def second(self) -> None:
        """Advance platform time by one second, in which each agent polls once."""
        began = time.process_time()
        base = self.clock.seconds
        for number, member in enumerate(self.members):
            self.clock.seconds = base + number / (len(self.members) + 1)
            member.agent.tick()
        self.clock.seconds = base + 1.0
        self.cpu += time.process_time() - began
        self.ticks += len(self.members)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()

    def records(self) -> list[Record]:
        """Return all records."""
        found: list[Record] = []
        for member in self.members:
            with closing(sqlite3.connect(member.outbox.path)) as db:
                found += [Record.from_json(body) for (body,) in db.execute("SELECT body FROM records ORDER BY seq")]
        return found

    def close(self) -> None:
        for member in self.members:
            member.outbox.close()


def name(number: int) -> str:
    return f"web_{number}"


REBOOT: Final = {"EventType": "Reboot", "EventSource": "User", "DurationInSeconds": -1}
FREEZE: Final = {"EventType": "Freeze", "EventSource": "Platform", "DurationInSeconds": 5}
REDEPLOY: Final = {"EventType": "Redeploy", "EventSource": "Platform", "DurationInSeconds": -1}
"""The default rules approve reboots and freezes, but not this."""


def fleet_scenario(vms: int, events: int, fields: Mapping[str, object] = REBOOT, *, shared: bool) -> Scenario:
    """Return a scenario with `events` simultaneous events: each of the whole scale set (`shared`), or of one VM in
    turn."""
    names = [name(number) for number in range(vms)]
    steps = tuple(
        ScenarioStep(
            Action.ANNOUNCE,
            ANNOUNCED_AFTER,
            event=f"e{number}",
            fields={
                "EventId": f"00000000-0000-4000-8000-{number:012d}",
                "Resources": names if shared else [names[number % vms]],
                **fields,
            },
            notice=900.0,
            lasts=5.0,
            start_after_approval=2.0,
        )
        for number in range(events)
    )
    return Scenario("fleet", "Something happens to a scale set.", tuple(ScenarioVm(each) for each in names), steps)
