"""Records as consumers receive them: of every kind, of three scenarios, and of a whole scale set."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet import DESTINATION, REBOOT, Fleet, NoMetrics, fleet_scenario
from deploy.consumers.python.event_summaries.join import event_summary
from deploy.consumers.python.event_summaries.record import Fact, read
from exporter.agent.delivery import Delivery
from exporter.commands.replay.engine import ReplayEngine, ReplayOptions
from exporter.commands.replay.inputs import scenario_plan
from exporter.core.policy import Policy
from exporter.core.records import Record
from exporter.log.log import Log
from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.metadata.scenario import load
from tests.core.test_schema import EXAMPLES
from tests.support.eventhubs_target import hub_destination

ROOT: Final = Path(__file__).parents[2]
HUB: Final = "scheduled-events"
NOW: Final = "2026-12-01T00:00:00.000000Z"


def every_kind() -> dict[str, bytes]:
    """Return a record of each kind, as this version sends it."""
    return {kind: make()[1].to_json() for kind, make in EXAMPLES.items()}


@cache
def recorded() -> Sequence[bytes]:
    """Return one of each kind, then those of three scenarios as `replay` gives them."""
    bodies = [*every_kind().values()]
    for name in ("demo", "live-migration", "host-agent-maintenance"):
        plan = scenario_plan(load(name), 1.0)
        options = ReplayOptions(Policy(), 1.0, lambda _, __, found: found)
        bodies += (record.to_json() for record in ReplayEngine(plan, options).run())
    return tuple(bodies)


def recorded_by_a_fleet(folder: Path, vms: int, events: int = 1, what: Mapping[str, object] = REBOOT) -> list[Record]:
    """Return the records of a scale set's real agents about events that name all of them, from the first poll to the
    end."""
    fleet = Fleet(folder, fleet_scenario(vms, events, what, shared=True))
    try:
        fleet.run(14)
        return fleet.records()
    finally:
        fleet.close()


class SendingFleet:
    """The real agents of a scale set; each record goes from its outbox through the real destination to a broker."""

    def __init__(self, folder: Path, broker: Broker, vms: int, events: int = 1) -> None:
        self._fleet = Fleet(folder, fleet_scenario(vms, events, shared=True))
        self._destination = hub_destination(broker.connection_string(HUB))

    def run(self, seconds: int) -> None:
        """Advance the platform by this time, and send all records of it."""
        self._fleet.run(seconds)
        for member in self._fleet.members:
            delivery = Delivery(self._destination, member.outbox, NoMetrics(), Log(None), jitter=lambda: 1.0)
            while (wait := delivery.tick()) < 1.0 or any(member.outbox.next(DESTINATION, 1)):
                time.sleep(wait)

    def records(self) -> list[Record]:
        """Return all records so far."""
        return self._fleet.records()

    def close(self) -> None:
        self._destination.close()
        self._fleet.close()


def facts(bodies: Sequence[bytes]) -> list[Fact]:
    """Return those about events."""
    return [fact for body in bodies if (fact := read(body)).event_id is not None]


def summaries(bodies: Sequence[bytes]) -> dict[str, dict[str, Any]]:
    """Return the summary of each event after all records."""
    found: dict[str, list[Fact]] = {}
    for fact in facts(bodies):
        found.setdefault(fact.event_id or "", []).append(fact)
    return {event_id: event_summary(own, NOW, None) for event_id, own in found.items()}


def last_lines(output: str) -> dict[str, dict[str, Any]]:
    """Return the newest summary of each event in the output of the program."""
    lines = [json.loads(line) for line in output.splitlines()]
    return {line["event_id"]: line for line in sorted(lines, key=lambda line: int(line["records"]))}
