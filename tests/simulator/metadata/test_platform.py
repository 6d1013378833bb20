"""The simulated platform without a server: every built-in scenario, and properties of random ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib import resources
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.platform import AcceptedStartRequest, Platform, current, documents, whole_second
from exporter.simulator.metadata.scenario import Action, EventMoment, Scenario, ScenarioError, ScenarioStep, ScenarioVm

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
Seen = list[tuple[float, int, list[str]]]


def play(name: str, approvals: Sequence[AcceptedStartRequest] = ()) -> Seen:
    """Return a built-in scenario as (seconds, incarnation, statuses)."""
    loaded = scenario.load(name)
    return [
        (
            (at - loaded.start).total_seconds(),
            document["DocumentIncarnation"],
            [f"{event['EventType']} {event['EventStatus']}" for event in document["Events"]],
        )
        for at, document in documents(loaded, approvals=approvals)
    ]


def one_event(kind: str, scheduled: float, started: float, gone: float) -> Seen:
    """Return an event that is scheduled, started, and removed."""
    seen = [(scheduled, 2, [f"{kind} Scheduled"]), (started, 3, [f"{kind} Started"]), (gone, 4, [])]
    return [(0, 1, []), *seen]


UNAPPROVED: Mapping[str, Seen] = {
    "approved-by-other": one_event("Reboot", 20, 140, 440),
    "canceled-maintenance": [(0, 1, []), (20, 2, ["Reboot Scheduled"]), (320, 3, [])],
    "changed-after-approval": [
        (0, 1, []),
        (20, 2, ["Freeze Scheduled"]),
        (80, 3, ["Freeze Scheduled"]),
        (1280, 4, ["Freeze Started"]),
        (1400, 5, []),
    ],
    "degraded-hardware": [
        (0, 1, []),
        (60, 2, ["Redeploy Scheduled"]),
        (259_260, 3, ["Redeploy Scheduled"]),
        (432_060, 4, ["Redeploy Started"]),
        (432_660, 5, []),
    ],
    "demo": [
        (0, 1, []),
        (1, 2, ["Reboot Scheduled"]),
        (4, 3, ["Reboot Scheduled", "Redeploy Scheduled"]),
        (5.5, 4, ["Reboot Scheduled", "Redeploy Scheduled", "Freeze Scheduled"]),
        (7, 5, ["Reboot Started", "Redeploy Scheduled", "Freeze Scheduled", "Freeze Scheduled"]),
        (8.5, 6, ["Redeploy Scheduled", "Freeze Scheduled", "Freeze Scheduled", "Reboot Scheduled"]),
        (9, 7, ["Redeploy Started", "Freeze Scheduled", "Freeze Scheduled", "Reboot Scheduled"]),
        (11, 8, ["Redeploy Started", "Freeze Started", "Freeze Started", "Reboot Scheduled"]),
        (11.5, 9, ["Freeze Started", "Freeze Started", "Reboot Scheduled"]),
        (12.5, 10, ["Reboot Scheduled"]),
        (15.5, 11, []),
        (17, 12, ["Reboot Started"]),
        (19, 13, []),
    ],
    "host-agent-maintenance": one_event("Freeze", 20, 920, 941),
    "host-failure": [(0, 1, []), (20, 2, ["Reboot Started"]), (500, 3, [])],
    "live-migration": one_event("Freeze", 30, 930, 947),
    "live-migration-unknown-duration": one_event("Freeze", 30, 930, 947),
    "platform-redeploy": one_event("Redeploy", 20, 620, 980),
    "quiet": [(0, 1, [])],
    "scale-set-termination": one_event("Terminate", 20, 320, 365),
    "serial-fault-domains": [
        (0, 1, []),
        (20, 2, ["Reboot Scheduled"]),
        (920, 3, ["Reboot Started"]),
        (1520, 4, ["Reboot Scheduled"]),
        (2420, 5, ["Reboot Started"]),
        (3020, 6, []),
        (3025, 7, ["Reboot Scheduled"]),
        (3925, 8, ["Reboot Started"]),
        (4525, 9, []),
    ],
    "spot-preemption": one_event("Preempt", 20, 50, 80),
    "switched-off": [
        (0, 7, []),
        (20, 8, ["Freeze Scheduled"]),
        (86_700, 1, []),
        (86_730, 2, ["Reboot Scheduled"]),
        (87_630, 3, ["Reboot Started"]),
        (87_930, 4, []),
    ],
    "user-reboot": one_event("Reboot", 20, 920, 1010),
    "user-redeploy": one_event("Redeploy", 20, 620, 920),
}
# An approval 10 s after the announcement: the times of the start and the removal.
APPROVED = {
    "host-agent-maintenance": (35, 56),
    "live-migration": (45, 62),
    "platform-redeploy": (270, 630),
    "scale-set-termination": (32, 77),
    "spot-preemption": (50, 80),
    "user-reboot": (33, 123),
    "user-redeploy": (33, 333),
}


def test_every_built_in_scenario_is_tested() -> None:
    """Every built-in scenario has an expected timeline."""
    assert set(scenario.names()) == set(UNAPPROVED)


@pytest.mark.parametrize("name", UNAPPROVED)
def test_each_scenario_plays_as_written(name: str) -> None:
    """Without approvals, every scenario gives these documents at these times."""
    assert play(name) == UNAPPROVED[name]


@pytest.mark.parametrize("name", APPROVED)
def test_an_approval_starts_an_event_early_or_waits_for_the_other_tenants(name: str) -> None:
    """An approved event starts after its delay, once the others approve, or at NotBefore if they never do."""
    loaded = scenario.load(name)
    step = loaded.steps[0]
    approval = AcceptedStartRequest(step.fields["EventId"].lower(), loaded.start + timedelta(seconds=step.delay + 10))
    assert tuple(at for at, _, _ in play(name, [approval])[2:]) == APPROVED[name]
    assert play(name, [approval])[:2] == UNAPPROVED[name][:2]


def test_the_documented_live_migration_matches_field_by_field() -> None:
    """The four documents of Microsoft's example, field by field."""
    seen = [document for _, document in documents(scenario.load("live-migration"))]
    event = {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "EventStatus": "Scheduled",
        "EventType": "Freeze",
        "ResourceType": "VirtualMachine",
        "Resources": ["WestNO_0", "WestNO_1"],
        "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
        "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
        "EventSource": "Platform",
        "DurationInSeconds": 5,
    }
    assert seen == [
        {"DocumentIncarnation": 1, "Events": []},
        {"DocumentIncarnation": 2, "Events": [event]},
        {"DocumentIncarnation": 3, "Events": [{**event, "EventStatus": "Started", "NotBefore": ""}]},
        {"DocumentIncarnation": 4, "Events": []},
    ]


def test_an_event_can_change_after_its_approval() -> None:
    """The approved short freeze becomes a long one of two VMs and starts nevertheless."""
    loaded = scenario.load("changed-after-approval")
    approval = AcceptedStartRequest(loaded.steps[0].fields["EventId"], loaded.start + timedelta(seconds=21))
    seen = [event for _, document in documents(loaded, approvals=[approval]) for event in document["Events"]]
    assert [(event["EventStatus"], event["DurationInSeconds"], len(event["Resources"])) for event in seen] == [
        ("Scheduled", 5, 1),
        ("Scheduled", 30, 2),
        ("Started", 30, 2),
    ]


def test_ids_are_used_once_and_come_in_both_cases() -> None:
    """No two built-in events share an id, and ids come in upper and lower case."""
    ids = [
        step.fields["EventId"]
        for name in scenario.names()
        for step in scenario.load(name).steps
        if step.fields.get("EventId")
    ]
    assert len({event_id.lower() for event_id in ids}) == len(ids)
    assert any(event_id.isupper() for event_id in ids)
    assert any(event_id.islower() for event_id in ids)


def test_the_readme_documents_every_key_of_a_scenario() -> None:
    """The README of the scenarios documents every key of a file."""
    readme = (resources.files("exporter.simulator.metadata") / "scenarios" / "README.md").read_text()
    for key in {*Scenario.__struct_encode_fields__, *ScenarioStep.__struct_encode_fields__, "wait"} - {"name"}:
        assert f"`{key}`" in readme


LABELS = ("a", "b", "c")
SECONDS = st.integers(0, 600) | st.floats(0, 600, allow_nan=False).map(lambda value: round(value, 3))


@st.composite
def steps(draw: st.DrawFn) -> ScenarioStep:
    """A strategy for any step, meaningful or not."""
    label = draw(st.sampled_from(LABELS))
    action = draw(st.sampled_from(Action))
    fields: dict[str, Any] = {}
    if action in (Action.ANNOUNCE, Action.START):
        fields = {"EventId": f"0000000{LABELS.index(label)}-0000-4000-8000-00000000000A", "EventType": "Reboot"}
        fields["Resources"] = ["vm"]
    if action is Action.CHANGE:
        fields = {"DurationInSeconds": draw(st.integers(0, 3))}
    return ScenarioStep(
        action,
        draw(SECONDS),
        draw(st.none() | st.tuples(st.sampled_from(LABELS), st.sampled_from(EventMoment))),
        label,
        fields,
        notice=draw(SECONDS) if action is Action.ANNOUNCE else draw(st.none() | SECONDS),
        lasts=draw(SECONDS),
        start_after_approval=draw(SECONDS),
        waits_for_all=draw(st.booleans()),
        others_approve_after=draw(st.none() | SECONDS),
    )


APPROVALS = st.lists(st.tuples(st.sampled_from((0, 1, 2)), SECONDS), max_size=4).map(
    lambda drawn: [
        AcceptedStartRequest(f"0000000{n}-0000-4000-8000-00000000000a", START + timedelta(seconds=after))
        for n, after in drawn
    ]
)


@given(st.lists(steps(), max_size=8), APPROVALS, st.sampled_from((1.0, 3.0, 60.0)))
def test_incarnation_grows_by_one_exactly_when_the_events_change(
    script: list[ScenarioStep], approvals: list[AcceptedStartRequest], speed: float
) -> None:
    """In any scenario, DocumentIncarnation and the events change together, in the order of time."""
    platform = Platform(Scenario("any", "any", (ScenarioVm("vm"),), tuple(script)), START, speed)
    timeline = platform.timeline(approvals)
    assert timeline[0].at == START
    for before, after in pairwise(timeline):
        assert before.at < after.at
        if before.silent and not after.silent:
            assert after.incarnation == 1
            continue
        assert after.incarnation - before.incarnation == (before.events != after.events)
        assert before.events != after.events or before.silent != after.silent


@given(st.lists(steps(), max_size=8), APPROVALS, SECONDS)
def test_an_approval_never_changes_earlier_documents(
    script: list[ScenarioStep], approvals: list[AcceptedStartRequest], after: float
) -> None:
    """Documents before an approval don't change, so a server may replay the scenario after each."""
    platform = Platform(Scenario("any", "any", (ScenarioVm("vm"),), tuple(script)), START)
    at = START + timedelta(seconds=after)
    early = [approval for approval in approvals if approval.at < at]
    late = [approval for approval in approvals if approval.at >= at]
    shown = [change for change in platform.timeline(early) if change.at < at]
    assert [change for change in platform.timeline(early + late) if change.at < at] == shown
    assert current(platform.timeline(early), at - timedelta(microseconds=1)) in (shown or platform.timeline(early))


@given(st.floats(0, 5000), st.floats(0.1, 1000), st.floats(0.001, 1e4))
def test_nothing_starts_before_its_not_before(at: float, notice: float, speed: float) -> None:
    """Without approval, an event is Scheduled until the whole second of its NotBefore, and Started from then on."""
    fields = {"EventId": "00000000-0000-4000-8000-00000000000a", "EventType": "Reboot", "Resources": ["vm"]}
    step = ScenarioStep(Action.ANNOUNCE, at, None, "a", fields, notice=notice, lasts=5 * speed)
    timeline = Platform(Scenario("any", "any", (ScenarioVm("vm"),), (step,)), START, speed).timeline()
    scheduled, started = timeline[-3:-1]
    assert parsedate_to_datetime(scheduled.events[0]["NotBefore"]) == started.at == whole_second(started.at)
    assert timedelta(0) <= started.at - scheduled.at - timedelta(seconds=notice / speed) < timedelta(seconds=1.000001)


def test_a_malformed_event_is_published_as_written() -> None:
    """`malformed` lets a scenario publish what the real service should never send."""
    fields = {"EventId": "00000000-0000-4000-8000-00000000000a", "Resources": "vm", "NotBefore": 5, "EventStatus": None}
    step = {"at": 0, "do": "announce", "event": "a", "notice": 60, "malformed": True, "fields": fields}
    loaded = scenario.parse("malformed", {"description": "malformed", "vms": ["vm"], "steps": [step]})
    (_, document), *_ = documents(loaded)
    assert {key: document["Events"][0][key] for key in fields} == fields


EVENT_ID = "00000000-0000-4000-8000-00000000000a"
ANNOUNCED = {
    "at": 1,
    "do": "announce",
    "event": "x",
    "notice": "1m",
    "fields": {"EventId": EVENT_ID, "EventType": "Reboot", "Resources": ["a"]},
}
GOOD: dict[str, Any] = {"description": "good", "vms": ["a"], "steps": [ANNOUNCED]}


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ({"vms": ["a", 5]}, "$.vms[1].name"),
        ({"vms": []}, "$.vms"),
        ({"vms": [{"name": "a", "zone": 1}]}, "$.vms[0].fields[...]"),
        ({"colour": "red"}, "colour"),
        ({"description": ""}, "$.description"),
        ({"incarnation": -1}, "$.incarnation"),
        ({"start": "2026-03-02T09:00:00"}, "$.start"),
        ({"length": "soon"}, "$.length"),
        ({"steps": [7]}, "$.steps[0]"),
        ({"steps": [{**ANNOUNCED, "do": "explode"}]}, "$.steps[0].do"),
        ({"steps": [{**ANNOUNCED, "at": True}]}, "$.steps[0].at"),
        ({"steps": [{**ANNOUNCED, "at": "99999d"}]}, "$.steps[0].at"),
        ({"steps": [{**ANNOUNCED, "at": float("nan")}]}, "$.steps[0].at"),
        ({"steps": [{**ANNOUNCED, "wait": 1}]}, "wait"),
        ({"steps": [{**ANNOUNCED, "waits_for_all": 1}]}, "$.steps[0].waits_for_all"),
        ({"steps": [ANNOUNCED, {**ANNOUNCED, "after": "x gone"}]}, "at"),
        ({"steps": [ANNOUNCED, {"after": "x soon", "do": "cancel", "event": "x"}]}, "$.steps[1].after[1]"),
        ({"steps": [{**ANNOUNCED, "fields": []}]}, "$.steps[0].fields"),
    ],
)
def test_a_key_of_the_wrong_type_is_reported(file: dict[str, Any], place: str) -> None:
    """The first key of the wrong type is reported with its position."""
    scenario.parse("good", GOOD)
    with pytest.raises(ScenarioError) as error:
        scenario.parse("bad", {**GOOD, **file})
    assert str(error.value).startswith("bad: ")
    assert place in str(error.value)


def test_all_contradictions_of_a_file_are_reported_at_once() -> None:
    """Contradictions are reported step by step."""
    steps = [
        {"after": "x gone", "do": "announce", "event": "x", "fields": {"EventId": "no", "Resources": ["z"]}},
        {"do": "change", "event": "y", "at": 1, "fields": {"NotBefore": ""}},
        {"do": "change", "event": "x", "at": 1, "fields": {"DurationInSeconds": True}},
        {**ANNOUNCED, "event": ""},
        {**ANNOUNCED, "event": "z"},
    ]
    with pytest.raises(ScenarioError) as error:
        scenario.parse("bad", {**GOOD, "vms": ["a", "A"], "steps": steps})
    assert [line.removeprefix("bad: ").partition("; set `malformed`")[0] for line in str(error.value).splitlines()] == [
        "vms: duplicate name",
        "steps[0]: after: no earlier step has the event 'x'",
        "steps[0]: notice: missing; required for announce",
        "steps[0]: fields: expected an EventId that is a GUID and is used only once",
        "steps[0]: fields: expected at least EventId, EventType, and Resources",
        "steps[0]: fields: Resources contains a VM that is not in `vms`",
        "steps[1]: event: no earlier step announces or starts 'y'",
        "steps[1]: fields: Object contains unknown field `NotBefore`",
        "steps[2]: fields: Expected `int`, got `bool` - at `$.DurationInSeconds`",
        "steps[3]: event: missing; expected the label of an event",
        "steps[4]: fields: expected an EventId that is a GUID and is used only once",
    ]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (scenario.MAX_BYTES + 1)])
def test_an_invalid_scenario_is_refused(body: bytes) -> None:
    """Anything except a JSON object of bounded size is a ScenarioError."""
    with pytest.raises(ScenarioError):
        scenario.parse("bad", body)


def test_a_scenario_is_distinguished_from_a_recorded_document() -> None:
    """`replay` distinguishes the two kinds of file."""
    assert scenario.is_scenario(json.loads('{"vms": [], "steps": []}'))
    assert not scenario.is_scenario({"DocumentIncarnation": 1, "Events": []})
    assert not scenario.is_scenario([])
