"""The metadata service's side: any bytes as a document, and any sequence of documents, through the whole line."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from exporter.agent.loop import Agent
from exporter.agent.ports import AgentOptions, Environment
from exporter.core.document import folded
from exporter.core.policy import DEFAULT_RULES, Coordination, Mode, Policy
from exporter.core.records import Record, Storable, Vm, VmIdentity
from exporter.core.state import Instant, State
from exporter.core.state_codec import dump_state, load_state
from exporter.log.log import Log
from exporter.metadata.client import MetadataResponse
from exporter.page.status import status_value
from exporter.page.view import render_page
from exporter.sinks.event_hubs.messages import message, partition_key
from exporter.sinks.otlp.sink import body, log_attributes, resource_attributes
from exporter.sinks.prometheus.sink import PrometheusSink
from tests.support.eventhubs_target import body_of

NAME: Final = "vm-0"
BEGAN: Final = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
NOTHING: Final = b'{"DocumentIncarnation":7,"Events":[]}'
IDENTITY: Final = VmIdentity(Vm(name=NAME, id="5c7f1d3e-1c1a-4a3e-9d57-0d1f4c1f2b11"))
OPTIONS: Final = AgentOptions(Policy(Mode.ENFORCE, Coordination.ANY, rules=DEFAULT_RULES), all_events=True)
SHOWN: Final = 16
"""One in this many inputs, by content, is also scraped: that takes longer than the rest."""
SINK: Final = PrometheusSink("0", tuple(rule.name for rule in DEFAULT_RULES))


@dataclass(slots=True)
class Memory:
    """An outbox in memory, which asserts that its content can be stored and read back."""

    capacity: int = 1 << 20
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lost: list[tuple[str, int]] = field(default_factory=list)
    ids: dict[str, bytes] = field(default_factory=dict)

    def load(self) -> State | None:
        return None

    def release(self) -> None:
        """Do nothing."""

    def commit(self, state: State, records: Sequence[Storable]) -> Mapping[str, int]:
        text = dump_state(state)
        assert dump_state(load_state(text)) == text
        text.encode()
        for given in records:
            found = given.to_json()
            record = Record.from_json(found)
            assert record.to_json() == found
            assert self.ids.setdefault(record.id, found) == found, "one id for two facts"
            body_of(message(record, "cloudevents")).decode()
            message(record, "azure-sample")
            partition_key(record.subject)
            body(record), log_attributes(record), resource_attributes(record)
        return {}

    def save_heartbeat(self, seen: datetime) -> None:
        """Do nothing."""

    def is_nearly_full(self, records: int) -> bool:
        return records < 0

    def is_in_place(self) -> bool:
        return True

    def start_new_file(self, why: str) -> None:
        raise AssertionError(f"renewed: {why}")

    def used(self) -> int:
        return 0

    def queues(self) -> Mapping[str, Any]:
        return {}


@dataclass(slots=True)
class Service:
    """A source with a given answer, which asserts that only permitted approvals are sent."""

    seconds: float = 0.0
    given: bytes = b""

    def now(self) -> Instant:
        return Instant(BEGAN + timedelta(seconds=self.seconds), 100.0 + self.seconds)

    def fetch(self) -> MetadataResponse:
        return MetadataResponse(self.given, self.now().mono or 0.0, 0.0)

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        leave()
        left()
        events = json.loads(self.given)["Events"]
        meant = [each for each in events if isinstance(each, dict) and each.get("EventId") == event_id]
        assert len(meant) == 1, "approved an id that does not occur exactly once"
        event = meant[0]
        assert event["EventStatus"] == "Scheduled"
        assert NAME in [folded(name) for name in event["Resources"]]
        short = event["EventType"] == "Freeze" and 0 <= event["DurationInSeconds"] <= 8
        asked = event["EventType"] in ("Reboot", "Redeploy") and event["EventSource"] == "User"
        assert short or asked, "approved without a rule"


def run(documents: Sequence[tuple[float, bytes]]) -> None:
    """Run a new agent on these documents, each this many seconds after the previous one."""
    service = Service()
    environment = Environment(clock=service.now, identity=lambda: IDENTITY, check_files=lambda _: {})
    agent = Agent(OPTIONS, service, Memory(), SINK, log=Log(None), environment=environment)
    for pause, given in documents:
        service.seconds += pause
        service.given = given
        agent.tick()
    page = render_page(status_value(agent.status, service.now(), "0"))
    assert b"<script" not in page.lower(), "text from Azure became part of the page"
    if zlib.crc32(service.given) % SHOWN == 0:
        for openmetrics in (False, True):
            SINK.render(openmetrics)[1].decode()


def document(data: bytes) -> None:
    """Poll any bytes, then an empty document, then the bytes again."""
    run(((0.0, NOTHING), (1.0, data), (1.0, NOTHING), (1.0, data)))


class Choices:
    """Decisions from bytes; after the last byte, always the first choice."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, below: int) -> int:
        self._at += 1
        return self._data[self._at - 1] % below if self._at <= len(self._data) else 0

    def one(self, of: Sequence[Any]) -> Any:
        return of[self.number(len(of))]

    @property
    def left(self) -> bool:
        return self._at < len(self._data)


ANOMALY_MESSAGES: Final[Sequence[Any]] = (
    None,
    True,
    0,
    -1,
    8,
    9,
    2**63,
    1.5,
    "",
    "x",
    "\ud800",
    "\0",
    [],
    [NAME],
    {},
    {"a": 1},
    "<script>",
    "é" * 200,
)
WORDS: Final[Mapping[str, Sequence[Any]]] = {
    "EventStatus": ("Scheduled", "Started", "Completed", "scheduled"),
    "EventType": ("Reboot", "Freeze", "Redeploy", "Preempt", "Terminate", "Melt"),
    "ResourceType": ("VirtualMachine", "Disk"),
    "Resources": ([NAME], [NAME.upper(), "vm-1"], ["vm-1", NAME], ["vm-1"], [NAME, 1], [], NAME),
    "NotBefore": ("", "Mon, 02 Mar 2026 09:15:00 GMT", "2026-03-02T09:15:00Z", "Mon, 02 Mar 2026 08:00:00 GMT", "soon"),
    "Description": ("", "Virtual machine is going to be restarted."),
    "EventSource": ("User", "Platform", "Alien"),
    "DurationInSeconds": (-1, 0, 5, 8, 9, 10**19),
}
PAUSES: Final = (1.0, 0.2, 2.0, 4.0, 6.0, 90.0, 90_000.0, -3.0)


def _event(choose: Choices) -> dict[str, Any]:
    found: dict[str, Any] = {"EventId": f"EVENT-{choose.number(4)}"}
    for name, words in WORDS.items():
        fate = choose.number(16)
        if fate == 15:
            continue
        found[name] = choose.one(ANOMALY_MESSAGES) if fate == 14 else choose.one(words)
    return found


def sequence(data: bytes) -> None:
    """Generate a sequence of mostly valid documents, with gaps, resets, and wrong fields now and then."""
    choose, number = Choices(data), 1
    recorded: list[tuple[float, bytes]] = []
    events: list[dict[str, Any]] = []
    while choose.left and len(recorded) < 12:
        match choose.number(6):
            case 0:
                events = [*events, _event(choose)][-5:]
            case 1:
                events = events[1:]
            case 2 if events:
                events = [{**events[0], "EventStatus": "Started", "NotBefore": ""}, *events[1:]]
            case 3 if events:
                key = choose.one(tuple(WORDS))
                events = [*events[:-1], {**events[-1], key: choose.one(WORDS[key])}]
            case 4:
                number = choose.one((1, number, number + 5, -1))
            case 5:
                recorded.append((choose.one(PAUSES), choose.one((b"", b"<html>", b"[]", b'{"Events":[]}'))))
        number += 1
        written = json.dumps({"DocumentIncarnation": number, "Events": events}).encode()
        recorded.append((choose.one(PAUSES), written))
    run(recorded)
