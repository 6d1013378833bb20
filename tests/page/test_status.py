"""`/api/v1/status`: strict JSON that matches its schema, bounded whatever Azure sends."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.core.document import folded
from exporter.core.policy import Coordination, Mode, Presence, Reason
from exporter.core.records import VM_TEXTS, Vm
from exporter.core.snapshot import DestinationStatus, EventFilesStatus, Gate, GateReason, OutboxStatus, Status
from exporter.core.state import Instant, InterruptionTotals, Phase, Seen, StartedBy, State
from exporter.page import status as made
from exporter.page.view import render_page
from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.platform import documents
from tests.support import statuses
from tests.support.agent_environment import TIMEOUT, AgentEnvironment
from tests.support.effort import LONG, examples
from tests.support.page_reading import plain, read, terms
from tests.support.status_reading import SCHEMA, answered
from tests.support.statuses import FREEZE, NOON, EventScenario

POLICY: Final[Mapping[str, Any]] = {
    "mode": "dry-run",
    "coordination": "leader",
    "takeover_after": "2m",
    "hold_file": "/run/hold",
    "rules": [{"name": "user-initiated", "event_source": ["User"], "event_type": ["Reboot", "Redeploy"]}],
}


def of(case: EventScenario, later: float = 0.0, **given: Any) -> dict[str, Any]:
    """Return the status `later` seconds after the last poll of a scenario."""
    return answered(case.status(**given), Instant(case.now + timedelta(seconds=later)))


# --- the content


def test_empty_document_yields_verdict_none_with_its_age() -> None:
    value = of(statuses.empty_scenario(), 2.5)
    assert value["type"] == "azure_scheduled_events.status.v1"
    assert value["as_of"] == "2025-11-21T12:10:03.500000Z"
    assert value["verdict"] == {
        "state": "none",
        "title": "Nothing is planned",
        "lines": ["The metadata service lists no event for this VM, as of 2025-11-21 12:10:01 UTC."],
    }
    assert value["source"] == {
        "up": True,
        "fresh": True,
        "warming": False,
        "failure": None,
        "failing_since_at": None,
        "failing_since_seconds_ago": None,
        "last_poll_at": "2025-11-21T12:10:01.000000Z",
        "last_read_at": "2025-11-21T12:10:01.000000Z",
        "last_read_seconds_ago": 2.5,
        "read_by_this_process": True,
        "poll_interval_seconds": 1.0,
        "stale_after_seconds": 30.0,
    }
    assert value["agent"] == {
        "version": "1.2.3",
        "started_at": "2025-11-21T12:00:00.000000Z",
        "started_seconds_ago": 603.5,
    }
    assert value["identity"] == "known"
    assert value["vm"]["name"] == "shop-web_3"
    assert value["vm"]["node"] is None
    assert tuple(value["vm"]) == (*VM_TEXTS, "tags")
    assert (value["events"], value["closed"], value["gate"], value["event_files"]) == ([], [], None, None)


def test_event_contains_all_known_data() -> None:
    """Azure's object as received, times, decision, and resources; null if unknown."""
    reboot, freeze = of(statuses.scheduled_scenario())["events"]
    assert freeze["event"] == FREEZE
    assert {name: freeze[name] for name in freeze if name != "event"} == {
        "event_id": FREEZE["EventId"],
        "event_type": "Freeze",
        "event_source": "Platform",
        "event_status": "Scheduled",
        "resource_type": "VirtualMachine",
        "description": FREEZE["Description"],
        "status": "Scheduled",
        "not_before": "2025-11-21T12:15:00.000000Z",
        "not_before_in_seconds": 893.0,
        "announced_duration_seconds": 5,
        "names_this_vm": True,
        "resources": {"count": 1, "others": [], "others_omitted": 0},
        "first_seen_at": "2025-11-21T12:00:07.000000Z",
        "first_seen_seconds_ago": 0.0,
        "seen_before": "unbroken",
        "started_at": None,
        "started_seconds_ago": None,
        "started_by": None,
        "decision": {
            "decision": "hold",
            "reason": "dry-run",
            "rule": "short-freeze",
            "finding": None,
            "mode": "dry-run",
            "why": "it would be approved, but the mode is dry-run (rule short-freeze)",
        },
        "approved_at": None,
        "approved_seconds_ago": None,
        "approval_rule": None,
        "approval_attempts": 0,
        "approval_failure": None,
        "approval_outdated": False,
        "interruptions_observed": 0,
        "interruption_seconds": None,
        "interruption_longest_seconds": None,
        "faults": [],
        "faults_omitted": 0,
        "omitted_characters": {},
        "event_omitted_bytes": 0,
    }
    assert reboot["announced_duration_seconds"] is None
    assert reboot["event"]["DurationInSeconds"] == -1
    assert reboot["resources"] == {"count": 2, "others": ["shop-web_1"], "others_omitted": 0}
    value = of(statuses.scheduled_scenario())
    assert value["document"] == {"incarnation": 2, "events": 3, "events_of_other_vms": 1, "unreadable": 0}


def test_started_event_contains_start_approval_and_interruptions() -> None:
    """Its NotBefore is the last known one."""
    case = statuses.started_scenario()
    key = folded(FREEZE["EventId"])
    observed = replace(case.state.tracked[key], interruptions=InterruptionTotals(2, 5.25, 4.9))
    case.state = replace(case.state, tracked={**case.state.tracked, key: observed})
    value = of(case, 3)
    freeze = value["events"][1]
    assert value["verdict"]["state"] == "started"
    assert value["verdict"]["title"] == "Reboot in 21 min 46 s at the earliest, and 1 more event"
    assert value["verdict"]["lines"][1] == "Also: Freeze started 3 s ago."
    assert (freeze["status"], freeze["started_by"], freeze["approval_rule"]) == ("Started", "this_vm", "short-freeze")
    assert freeze["started_seconds_ago"] == 3.0
    assert freeze["approved_at"] == "2025-11-21T12:00:07.000000Z"
    assert freeze["not_before"] == "2025-11-21T12:15:00.000000Z"
    assert freeze["not_before_in_seconds"] is None
    assert freeze["event"]["NotBefore"] == ""
    assert (freeze["interruptions_observed"], freeze["interruption_seconds"]) == (2, 5.25)
    assert freeze["interruption_longest_seconds"] == 4.9


def test_closed_event_contains_the_summary_of_its_record() -> None:
    """The newest event comes first; an unknown duration is null, not -1."""
    reboot, freeze = of(statuses.closed_scenario())["closed"]
    assert (reboot["event_type"], reboot["summary"]["outcome"]) == ("Reboot", "canceled")
    assert reboot["summary"]["announced_duration_seconds"] is None
    assert freeze["event_id"] == FREEZE["EventId"]
    assert freeze["summary"]["rule"] == "short-freeze"
    assert freeze["summary"]["started_duration_seconds"] == 6.0
    assert "unseen" not in freeze["summary"]


def test_unknown_values_are_null() -> None:
    """Before the first poll, without a name, with a failing source, and after a clock that was set back."""
    never = answered(Status(Instant(NOON), State(birth=NOON)), Instant(NOON))
    assert (never["identity"], never["document"], never["source"]["last_read_at"]) == ("unknown", None, None)
    assert never["vm"] == {**dict.fromkeys(VM_TEXTS), "tags": {}}
    assert never["verdict"]["state"] == "unknown"
    nameless = of(statuses.scheduled_scenario(), vm=Vm())
    assert [each["names_this_vm"] for each in nameless["events"]] == [None, None, None]
    failing = statuses.failing_status(statuses.scheduled_scenario())
    value = answered(failing, Instant(NOON + timedelta(seconds=70)))
    assert value["source"]["failure"] == "timeout"
    assert value["source"]["failing_since_seconds_ago"] == 62.0
    assert (value["source"]["up"], value["source"]["fresh"]) == (False, False)
    back = answered(failing, Instant(NOON - timedelta(hours=1)))
    assert back["source"]["last_read_seconds_ago"] is None
    assert back["events"][0]["first_seen_seconds_ago"] is None
    assert back["events"][0]["first_seen_at"] is not None


def test_policy_destinations_gate_and_event_files_are_included() -> None:
    case = statuses.empty_scenario()
    status = replace(
        case.status(destinations=[*statuses.outputs(case.now), DestinationStatus("spare")]),
        coordination=Coordination.SINGLE,
        held=True,
        files={"/run/ready/1": Presence.ABSENT, POLICY["hold_file"]: Presence.PRESENT},
        identity_conflict=True,
        outbox=OutboxStatus(1, 2**20, writable=False),
        event_files=EventFilesStatus("/run/events", "the directory does not exist"),
    )
    value = answered(status, Instant(case.now), policy=POLICY, gate=Gate(GateReason.NO_EVENT))
    assert value["approval"] == {
        **POLICY,
        "coordination": "single",
        "held": True,
        "files": {POLICY["hold_file"]: "present", "/run/ready/1": "absent"},
    }
    assert value["identity"] == "conflict"
    assert value["outbox"] == {"bytes": 1, "capacity_bytes": 2**20, "writable": False}
    assert value["gate"] == {"open": True, "sentence": Gate(GateReason.NO_EVENT).sentence}
    assert value["event_files"] == {"path": "/run/events", "error": "the directory does not exist"}
    works, fails, spare = value["destinations"]
    assert works["error"] is None
    assert (fails["error"], fails["records"], fails["parked"]) == ("connect", 3, 1)
    assert (fails["oldest_seconds_ago"], fails["last_success_seconds_ago"]) == (240.0, 540.0)
    assert (spare["configured"], spare["last_success_at"]) == (False, None)
    page = terms(read(render_page(value)))
    assert page["Hold file"] == "/run/hold: exists, or its absence can't be verified: every event is held"
    assert page["Gate"] == Gate(GateReason.NO_EVENT).sentence
    assert page["Event files"] == "/run/events: the directory does not exist"
    healthy = replace(status, held=False, event_files=EventFilesStatus("/run/events"))
    page = terms(read(render_page(answered(healthy, Instant(case.now), policy=POLICY))))
    assert page["Hold file"] == "/run/hold: does not exist"
    assert page["Event files"] == "/run/events: written"
    assert "Gate" not in page


# --- whatever Azure sends


@pytest.mark.parametrize("name", scenario.names())
def test_status_of_every_scenario_matches_the_schema(name: str, tmp_path: Path) -> None:
    """At each change, during an outage, and after a restart."""
    shown_at = tuple(documents(scenario.load(name)))
    named = [vm for _, shown in shown_at for each in shown["Events"] for vm in each["Resources"]]
    with AgentEnvironment(tmp_path, vm=Vm(name=named[0] if named else "vm-1")) as environment:
        recorded = []
        for at, shown in shown_at:
            environment.clock.go(max(0.0, at.timestamp() - environment.clock.wall))
            environment.see(json.dumps(shown).encode(), 1)
            recorded.append(answered(environment.agent.status, environment.clock.instant()))
        environment.see(TIMEOUT, 40)
        recorded.append(answered(environment.agent.status, environment.clock.instant()))
        environment.restart()
        recorded.append(answered(environment.agent.status, environment.clock.instant()))
    assert recorded[-1]["verdict"]["state"] == recorded[-2]["verdict"]["state"] == "unknown"
    assert any(value["events"] or value["closed"] for value in recorded) is bool(named)


HOSTILE: Final = (
    *("\u202egnp.exe\u2066", "a\x00b\x1b[31m", "\ud800", "<script>", '"}', "e\u0301" * 400, "W" * 5000, "", " "),
    *("Scheduled", "Started", "Reboot", "Mon, 99 Foo 2026", "NaN", "status", "../../etc/passwd", "日本"),
)
VALUES: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(HOSTILE)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(HOSTILE), inner, max_size=4),
    max_leaves=8,
)
FIELDS: Final = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(HOSTILE) | VALUES for name in (*FREEZE, "Extra", "\u202e", "\ud800")}
)
ITEMS: Final = VALUES | st.tuples(FIELDS, st.sampled_from([*HOSTILE, "a", "b", "c"])).map(
    lambda parts: {**FREEZE, **parts[0], "EventId": parts[1]}
)


def text_of(item: Any, twice: str) -> str:
    """Return the element as JSON, with the key `twice` repeated."""
    text = json.dumps(item)
    return "{" + f"{json.dumps(twice)}: 1, {text[1:]}" if isinstance(item, dict) and item and twice else text


@settings(max_examples=examples(60), deadline=None, derandomize=not LONG)
@given(st.lists(st.tuples(ITEMS, st.sampled_from(["", "EventType", "Extra", "\u202e", "\ud800", "x" * 900]))))
def test_status_of_any_document_matches_the_schema(items: list[tuple[Any, str]]) -> None:
    """Events of any content yield strict JSON and a page."""
    case = EventScenario()
    case.read()
    body = f'{{"DocumentIncarnation": 2, "Events": [{", ".join(text_of(item, key) for item, key in items)}]}}'
    if case.read_body(body.encode()):
        of(case)
    of(case, vm=Vm())


def test_unreadable_fields_are_null_and_listed() -> None:
    """Mistyped and repeated fields are null; their names are listed, with invisible characters escaped."""
    case = EventScenario()
    case.read()
    twice = ", ".join(f'"\\u202e{number}": 1, "\\u202e{number}": 2' for number in range(30))
    case.read_body(
        b'{"DocumentIncarnation": 2, "Events": [{"EventId": "a", "EventStatus": 7, "EventType": null, "Resources": 3, '
        b'"NotBefore": "soon", "DurationInSeconds": "5", %s}]}' % twice.encode()
    )
    value = of(case)
    (recorded,) = value["events"]
    assert (recorded["status"], recorded["event_status"], recorded["event_type"]) == ("unknown", None, None)
    assert (recorded["resources"], recorded["not_before"], recorded["announced_duration_seconds"]) == (None, None, None)
    assert recorded["names_this_vm"] is None
    assert len(recorded["faults"]) == 10
    assert recorded["faults_omitted"] == len(case.state.tracked["a"].event.faults) - 10
    page = terms(read(render_page(value)))["Unreadable fields"]
    assert page.endswith(f", {recorded['faults_omitted']} more")
    assert "\u202e" not in page
    crowded = {**recorded, "faults": ["\u202eevil"], "faults_omitted": 0}
    assert terms(read(render_page({**value, "events": [crowded]})))["Unreadable fields"] == "\\u202eevil"


def test_long_texts_are_truncated_with_the_number_of_omitted_characters() -> None:
    """600 characters of each text are kept; the page shows the same number of omitted ones."""
    case = EventScenario()
    case.read()
    names = ["shop-web_3", "n" * 700, "m" * 601, *(f"other-{number}" for number in range(9))]
    case.read({**FREEZE, "Description": "d" * 5000, "EventType": "T" * 700, "Resources": names})
    value = of(case)
    (recorded,) = value["events"]
    assert recorded["description"] == "d" * 600
    assert recorded["event_type"] == "T" * 600
    assert recorded["resources"]["count"] == 12
    assert recorded["resources"]["others"][:2] == ["n" * 600, "m" * 600]
    assert recorded["resources"]["others_omitted"] == 6
    assert recorded["omitted_characters"] == {"event_type": 100, "description": 4400, "resources": 101}
    assert recorded["event"]["Description"] == "d" * 5000
    page = read(render_page(value))
    assert terms(page)["Description"].endswith("d … 4400 more characters, see the records")
    assert "T … 640 more characters, see the records" in plain(page.one("h3").text)


def test_number_of_events_is_limited_to_the_most_urgent_ones() -> None:
    """The status contains the twenty most urgent events, and the number of omitted ones."""
    value = of(statuses.crowded_scenario(1000))
    assert len(value["events"]) == 20
    assert value["events_omitted"] == 980
    assert value["document"]["events"] == 1000
    assert value["events"][0]["event_id"] == "event-0999"
    assert [each["status"] for each in value["events"]] == ["Scheduled"] * 20
    case = statuses.crowded_scenario(30)
    case.read(after=30)
    value = of(case)
    assert (len(value["closed"]), value["closed_omitted"]) == (10, 20)


LARGE: Final = {
    "one event": [{**FREEZE, "Description": "\u00e9" * (2 << 20)}],
    "many names": [{**FREEZE, "Resources": ["shop-web_3", *(f"vm-{number:06}" for number in range(9_999))]}] * 20,
    "just not too large": [{**FREEZE, "Extra": "x" * (made.MAX_EVENT_BYTES - 600)}] * 60,
    "long names": [{**FREEZE, "Resources": ["shop-web_3", *(f"{number}" + "\u00e9" * 40_000 for number in range(5))]}]
    * 9,
    "keys": [{**FREEZE, **{f"{number}": number for number in range(150_000)}}],
}


@pytest.mark.parametrize("which", LARGE)
def test_status_of_the_largest_document_is_bounded(which: str) -> None:
    """4 MiB of document yield less than 3 MiB, with the most urgent events, and the size of omitted objects."""
    case = EventScenario()
    case.read()
    case.read(*({**item, "EventId": f"{place}"} for place, item in enumerate(LARGE[which])))
    value = of(case)
    assert value["events"]
    for recorded in value["events"]:
        if recorded["event"] is None:
            assert recorded["event_omitted_bytes"] > made.MAX_EVENT_BYTES
        else:
            assert len(json.dumps(recorded["event"], ensure_ascii=False).encode()) < made.MAX_EVENT_BYTES * 1.2
            assert recorded["event_omitted_bytes"] == 0


def test_status_of_the_costliest_texts_is_bounded() -> None:
    """Every text and repeated key has characters of six bytes in JSON, and Azure's objects just fit: under 3 MiB."""
    text = "\x01" * made.MAX_TEXT

    def item(place: int) -> str:
        names = ("EventType", "EventSource", "ResourceType", "Description", "EventStatus")
        fields = {**FREEZE, **dict.fromkeys(names, text), "EventId": f"{place:02}" + "\x01" * 98}
        fields["Resources"] = ["shop-web_3", *(f"{text}{number}" for number in range(made.MAX_RESOURCES))]
        twice = (f"{json.dumps(text[2:] + str(number))}: 1, " * 2 for number in range(7))
        return "{" + "".join(twice) + json.dumps(fields)[1:]

    case = EventScenario()
    case.read()
    case.read_body(f'{{"DocumentIncarnation": 2, "Events": [{", ".join(map(item, range(made.MAX_EVENTS)))}]}}'.encode())
    value = of(case)
    assert len(value["events"]) == made.MAX_EVENTS
    assert all(recorded["event"] is not None and len(recorded["faults"]) == 7 for recorded in value["events"])


# --- the schema


def subschemas(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all schemas within a schema."""
    if isinstance(part, dict):
        yield part
        for item in part.values():
            yield from subschemas(item)
    elif isinstance(part, list):
        for item in part:
            yield from subschemas(item)


def test_schema_is_strict_and_describes_each_member() -> None:
    """Each object of the agent lists every member as required and described."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    objects = [part for part in subschemas(SCHEMA) if "additionalProperties" in part and "properties" in part]
    assert len(objects) > 12
    for part in objects:
        assert part["additionalProperties"] is False
        assert sorted(part["required"]) == sorted(part["properties"])
        for name, member in part["properties"].items():
            assert member.get("description", "").endswith("."), name


def test_values_in_the_schema_are_those_of_the_code() -> None:
    """Modes, reasons, phases, and the members of the summary."""
    recorded = SCHEMA["$defs"]["event"]["properties"]
    decision = recorded["decision"]["anyOf"][0]["properties"]
    assert set(decision["reason"]["enum"]) >= {*Reason, None} - {Reason.NONE}
    assert decision["mode"]["enum"] == SCHEMA["properties"]["approval"]["properties"]["mode"]["enum"] == list(Mode)
    assert SCHEMA["properties"]["approval"]["properties"]["coordination"]["enum"] == list(Coordination)
    assert set(recorded["status"]["enum"]) == set(Phase)
    assert set(recorded["seen_before"]["enum"]) == set(Seen)
    assert set(recorded["started_by"]["enum"]) == {*StartedBy, None}
    assert tuple(SCHEMA["properties"]["vm"]["properties"]) == (*VM_TEXTS, "tags")
    record = json.loads(files("exporter").joinpath("schema", "record.v1.json").read_text(encoding="utf-8"))
    theirs = record["$defs"]["summary"]["properties"]
    ours = SCHEMA["$defs"]["closed"]["properties"]["summary"]["properties"]
    assert set(ours) == set(theirs) - {"unseen"}
    same = set(ours) - {"announced_duration_seconds", "gone_at", "outcome"}
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
