"""Gate, status, page, gauges, and event files agree on each event, whatever a document contains.

They are compared with each other and with `gauges_reading`, which reads the documents independently: ownership, type,
whether an event has started, and when it may start.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import event as seen
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.policy import DEFAULT_RULES, Coordination
from exporter.core.records import VmIdentity
from exporter.core.snapshot import Gate, GatePolicy, GateReason, gate_of
from exporter.event_files.folder import Folder
from exporter.event_files.writer import Reconciler
from exporter.log.protocol import NullLogger
from exporter.page.view import render_page
from exporter.sinks.event_hubs.messages import message
from exporter.sinks.otlp.sink import log_attributes
from tests.support import oracle
from tests.support.agent_environment import NAME, REBOOT, VM, AgentEnvironment, event, policy, started
from tests.support.effort import LONG, MEMORY, Tried, examples
from tests.support.event_files import events as event_files
from tests.support.gauges_environment import EVENTS, TIMES, Watched, families
from tests.support.gauges_reading import Life, Sheet
from tests.support.page_reading import plain, read, terms
from tests.support.status_reading import answered

LEAD: Final = 300.0
FRESH: Final = 30.0
TYPES: Final = ("Reboot", "Freeze", "Nap")


@dataclass(frozen=True)
class Twice:
    """A field that appears twice in one object."""

    value: Any


def body(number: int, items: list[dict[str, Any]]) -> bytes:
    """Return a document of these events; `...` omits a field."""
    objects = []
    for item in items:
        pairs = []
        for name, value in item.items():
            given = [value.value, value.value] if isinstance(value, Twice) else [] if value is ... else [value]
            pairs += [f"{json.dumps(name)}: {json.dumps(each)}" for each in given]
        objects.append("{" + ", ".join(pairs) + "}")
    return f'{{"DocumentIncarnation": {number}, "Events": [{", ".join(objects)}]}}'.encode()


class Judged(Watched):
    """Stores each POST for an event with fields missing in the last body that an approval needs."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.wrong: list[str] = []

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        """Check a POST, which must be justified by the last body only."""

        def judged() -> None:
            leave()
            self.judge(event_id)

        super().approve(event_id, judged, left)

    def judge(self, event_id: str) -> None:
        """Store a POST that is sent without the required fields in the last body."""
        alone = Life(0.0)
        items = [item for item in self.sheet.items or () if oracle.same(str(item.get("EventId")), event_id)]
        alone.reads(items[0], TIMES)
        own = any(oracle.same(name, NAME) for name in alone.names or ())
        if len(items) != 1 or not own or alone.kind != "Reboot" or alone.status != "Scheduled" or alone.due is None:
            self.wrong.append(event_id)


class Shown:
    """One agent with its outputs, and what is read from each after every step."""

    def __init__(self, folder: Path, all_events: bool) -> None:
        self.files = folder / "events"
        self.files.mkdir()
        self.environment = AgentEnvironment(
            folder, policy(coordination=Coordination.ANY), source=Judged, all_events=all_events
        )
        assert isinstance(self.environment.source, Judged)
        self.source = self.environment.source
        self.source.sheet = self.sheet = Sheet(TIMES, all_events)
        self.source.environment = self.environment
        self.items: list[dict[str, Any]] = []
        self.keeper = self.new_event_files()

    def new_event_files(self) -> Reconciler:
        """Create the event files of another process."""
        clock = self.environment.clock
        return Reconciler(
            Folder(str(self.files)),
            DEFAULT_RULES,
            version="1.0.0",
            log=NullLogger(),
            now=clock.utc,
            monotonic=clock.monotonic,
        )

    # -- actions

    def shows(self, items: list[dict[str, Any]]) -> None:
        """Set the events of the next document."""
        self.items = items
        self.source.number += 1
        self.source.answer = body(self.source.number, items)

    def moves(self, which: int, fields: dict[str, Any]) -> None:
        """Change a field of one event."""
        items = list(self.items)
        if items:
            items[which % len(items)] = {**items[which % len(items)], **fields}
        self.shows(items)

    def repeats(self, which: int, fields: dict[str, Any], first: bool) -> None:
        """Add a second event with one of the ids."""
        if self.items:
            twin = {**self.items[which % len(self.items)], **fields}
            self.shows([twin, *self.items] if first else [*self.items, twin])

    def loses(self, which: int) -> None:
        """Remove one of the events."""
        self.shows([item for place, item in enumerate(self.items) if place != which % len(self.items)])

    def source_is(self, broken: str) -> None:
        """Let the source return documents (empty), or time out."""
        self.source.broken = broken

    def knows_itself(self, known: bool) -> None:
        """Make the VM's own name known, or unknown."""
        self.environment.identity = VmIdentity(VM) if known else VmIdentity()

    def restarts(self, seconds: float) -> None:
        """Start another process with the outbox on disk."""
        self.sheet.restarts()
        self.environment.restart(seconds)
        self.sheet.begins(self.environment.clock.wall, self.environment.clock.mono)
        self.keeper = self.new_event_files()
        self.agrees()

    def lives(self, seconds: float) -> None:
        """Run one pass and check; then run for this many seconds and check again."""
        self.environment.agent.tick()
        self.agrees()
        self.environment.clock.go(0.5)
        if seconds:
            self.environment.live(seconds)
            self.agrees()

    # -- checks

    @property
    def vm_name(self) -> str:
        """Return the VM's own name as the agent knows it now."""
        return self.environment.identity.vm.name

    def agrees(self) -> None:
        """Compare what each output has about each event with the sheet."""
        assert self.source.wrong == [], "approved without a field of the document"
        own = self.sheet.own(self.vm_name)
        near = {key: self.life_of(key) for key in self.sheet.events() if key in own or self.may_be_own(key)}
        self.gauges(own)
        gate = self.gate(own)
        self.page(near, gate)
        if self.environment.agent.status.knows_its_events:
            self.event_files(own)

    def life_of(self, key: str) -> Life:
        """Return what was read of an event."""
        return self.sheet.lives[key]

    def may_be_own(self, key: str) -> bool:
        """Return whether the ownership of an event is unknown."""
        return not self.vm_name or self.life_of(key).names is None

    def gauges(self, own: Mapping[str, Any]) -> None:
        """Compare the gauges: exactly those series and values."""
        shown = {item["EventId"] for item in own.values()}
        expected = self.sheet.says(self.vm_name, self.environment.clock.mono, shown)
        assert families(self.environment.sink, EVENTS) == pytest.approx(expected, abs=1e-3)

    def gate(self, own: Mapping[str, Any]) -> Gate:
        """Check the gate: only an own event that started, was approved, or is near closes it."""
        status, now = self.environment.agent.status, self.environment.clock.instant()
        gate = gate_of(status, now, GatePolicy(LEAD, TYPES))
        seen(gate.reason.name.lower().replace("_", "-"))
        if gate.reason is GateReason.STALE and not self.sheet.decided:
            return gate  # the saved time of the last valid document may lag
        closing = []
        for key in own:
            life = self.life_of(key)
            due = life.starts is not None and self.environment.clock.wall >= life.starts - LEAD
            if life.kind in TYPES and (life.phase == "Started" or key in self.sheet.accepted or due):
                closing.append(life.kind)
        good = self.sheet.last_good
        fresh = good is not None and self.environment.clock.wall - good <= FRESH + 1e-6
        assert gate.open is not (bool(closing) and fresh and bool(self.vm_name))
        assert gate.open or gate.event_type in closing
        return gate

    def page(self, near: Mapping[str, Life], gate: Gate) -> None:
        """Check the page and its JSON: all events except known neighbours' ones, with the last readable fields."""
        now = self.environment.clock.instant()
        value = answered(self.environment.agent.status, now, gate=gate)
        cards = {plain(terms(card)["EventId"]): card for card in read(render_page(value)).all("article")}
        shown = {each["event_id"]: each for each in value["events"]}
        assert {event_id.lower() for event_id in shown} == set(near)
        assert set(cards) == set(shown)
        for event_id, each in shown.items():
            life, card = near[event_id.lower()], cards[event_id]
            assert (each["event_type"], each["status"]) == (life.kind, life.phase.replace("other", "unknown"))
            assert each["names_this_vm"] is (None if self.may_be_own(event_id.lower()) else True)
            assert (each["not_before"] is None) is (life.due is None)
            if life.starts is None:
                assert each["not_before_in_seconds"] is None
            else:
                assert each["not_before_in_seconds"] == pytest.approx(
                    life.starts - self.environment.clock.wall, abs=1e-2
                )
            assert (each["started_at"] is None) is (life.started is None)
            assert card.attributes["class"] == ("started" if life.phase == "Started" else "scheduled")
            assert plain(card.one("h3").text) == (life.kind or "Event of unknown type")
            assert ("Not before" in terms(card)) is (life.starts is not None)

    def event_files(self, own: Mapping[str, Any]) -> None:
        """Check the event files: one per own event, with Azure's object as received."""
        self.keeper.reconcile(self.environment.agent.status, running=True)
        found = {event_id.lower(): value for event_id, value in event_files(self.files).items()}
        assert set(found) == set(own)
        items: dict[str, dict[str, Any]] = {}
        for item in json.loads(self.source.sheet_body)["Events"]:
            items.setdefault(item["EventId"].lower(), item)
        for key, value in found.items():
            life = self.life_of(key)
            assert value["event"] == items[key]
            assert (value["event_type"], value["status"]) == (life.kind, life.phase.replace("other", "unknown"))
            assert (value["not_before"] is None) is (life.due is None)
            assert (value["started_at"] is None) is (life.started is None)


KINDS: Final = st.sampled_from(["Reboot"] * 4 + ["Freeze", "Nap", "", None, 5, ..., Twice("Reboot")])
NAMES: Final = st.sampled_from(
    [[NAME]] * 4 + [[NAME.upper(), "web-2"], ["web-2"], [], NAME, [NAME, 5], None, ..., Twice([NAME])]
)
STATUSES: Final = st.sampled_from(["Scheduled"] * 3 + ["Started"] * 2 + ["Paused", "", None, ..., Twice("Scheduled")])
TIMES_SHOWN: Final = st.sampled_from([*TIMES, "", "soon", None, ..., Twice(next(iter(TIMES)))])
FIELDS: Final = st.fixed_dictionaries(
    {}, optional={"EventType": KINDS, "Resources": NAMES, "EventStatus": STATUSES, "NotBefore": TIMES_SHOWN}
)
MANY: Final = st.just({"Resources": [NAME] * 10_001})
ITEMS: Final = st.builds(lambda event_id, fields: {**event(event_id), **fields}, st.sampled_from("aAbc"), FIELDS)
SOME: Final = st.lists(ITEMS, max_size=3)
WHICH: Final = st.integers(0, 2)


def happening(name: str, *arguments: Any) -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
    """Return a strategy for one call of a method of `Shown`."""
    return st.tuples(st.just(name), st.tuples(*arguments))


HAPPENINGS: Final = st.one_of(
    happening("shows", SOME),
    *[happening("moves", WHICH, st.one_of([FIELDS] * 8 + [MANY]))] * 5,
    happening("repeats", WHICH, FIELDS, st.booleans()),
    happening("loses", WHICH),
    happening("source_is", st.sampled_from(["", "", "timeout"])),
    happening("knows_itself", st.sampled_from([True, True, False])),
    happening("restarts", st.sampled_from([0.25, 20.0, 4000.0])),
)
SCENARIOS: Final = st.lists(
    st.tuples(HAPPENINGS, st.sampled_from([0.0, 0.0, 1.0, 12.0])), min_size=10, max_size=40 if LONG else 24
)


@settings(max_examples=examples(25))
@given(st.booleans(), SOME, SCENARIOS)
def test_outputs_agree_on_every_event(
    everything: bool, first: list[dict[str, Any]], scenario: list[tuple[tuple[str, tuple[Any, ...]], float]]
) -> None:
    """After every step, whatever is published of neighbours' events; nothing is approved on an old value."""
    Tried.example(steps=len(scenario))
    with tempfile.TemporaryDirectory(prefix="azse-outputs-", dir=MEMORY) as folder:
        shown = Shown(Path(folder), everything)
        try:
            shown.shows(first)
            for (name, arguments), seconds in scenario:
                getattr(shown, name)(*arguments)
                shown.lives(seconds)
        finally:
            shown.environment.outbox.close()


# -- records


UNREADABLE: Final[tuple[Mapping[str, Any], ...]] = (
    {"EventType": Twice("Freeze")},
    {"EventType": 7},
    {"EventType": ...},
    {"EventStatus": Twice("Scheduled")},
    {"Resources": Twice(["web-9"])},
    {"EventSource": Twice("Platform"), "DurationInSeconds": "9", "Description": None},
)


@pytest.mark.parametrize("fields", UNREADABLE, ids=str)
def test_record_outputs_have_the_last_readable_values(tmp_path: Path, fields: Mapping[str, Any]) -> None:
    """Attributes, properties, and the log; also in the closing record."""
    readable = started(event())
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(body(2, [readable]), 2)
        environment.see(body(3, [{**readable, **fields}]), 2)
        environment.see(body(4, []), 2)
        (rejected,) = environment.records("event.rejected")
        (completed,) = environment.records("completed")
        assert all("last_readable" not in record.data for record in environment.records("started", "agent.started"))
        lines = [*environment.said("event.rejected"), *environment.said("completed")]
        assert all(" event_type=Reboot " in line for line in lines)
    kept = {"EventType", "EventStatus", "Resources"}
    expected = {name: readable[name] if name in kept else None for name in fields}
    for record in (rejected, completed):
        assert record.data["last_readable"] == expected
        attributes = log_attributes(record)
        assert attributes["azure_scheduled_event.id"] == REBOOT
        assert attributes["azure_scheduled_event.type"] == "Reboot"
        assert attributes["azure_scheduled_event.status"] == "Started"
        assert attributes["azure_scheduled_event.resources"] == (NAME,)
        assert attributes.get("azure_scheduled_event.source") == (None if "EventSource" in fields else "User")
        properties = message(record, "cloudevents").properties
        assert (properties["event_type"], properties["event_status"]) == ("Reboot", "Started")
        assert properties.get("event_source") == (None if "EventSource" in fields else "User")


def test_fields_of_an_untrackable_element_are_in_no_output(tmp_path: Path) -> None:
    """The record of a second event with the same id is about the VM."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(body(2, [event(), event(kind="Freeze")]), 2)
        elements = [record for record in environment.records("event.rejected") if record.data["event_id"] is None]
        (line,) = [line for line in environment.said("event.rejected") if f"subject={NAME} " in line]
    (record,) = elements
    names = {name.removeprefix("azure_scheduled_event.") for name in log_attributes(record)}
    assert names.isdisjoint({"id", "type", "status", "source", "resources", "resource_type", "duration"})
    assert set(message(record, "cloudevents").properties) == {"kind", "vm"}
    assert "event_type=" not in line
