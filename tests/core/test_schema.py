"""Every kind of record against the JSON Schema of the package and the rules of CloudEvents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.resources import files
from typing import Any, Final

import jsonschema
import pytest
from msgspec.structs import replace

from exporter.core import records as published
from exporter.core.continuity import ANOMALIES
from exporter.core.decision import decide
from exporter.core.document import folded
from exporter.core.memory import with_tracked
from exporter.core.policy import Mode, Policy, Reason
from exporter.core.record_factory import RecordFactory
from exporter.core.records import KINDS, Record, Vm
from exporter.core.state import (
    Approval,
    Instant,
    Interruption,
    InterruptionKind,
    InterruptionTotals,
    Rejection,
    Seen,
    StartedBy,
    State,
    TransitionKind,
)
from tests.support.approval_case import OURS
from tests.support.core_documents import EVENT_ID, NOON, Watcher, event, started
from tests.support.records_reading import unknown_value_fields

KEY: Final = folded(EVENT_ID)
SCHEMA: Final[Mapping[str, Any]] = json.loads(
    files("exporter").joinpath("schema", "record.v1.json").read_text(encoding="utf-8")
)
VALIDATOR: Final = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
VM: Final = Vm(name="vm-0", id="5c7f1d3e-1c1a-4a3e-9d57-0d1f4c1f2b11", location="westeurope", zone="2")
StateAndRecord = tuple[State, Record]


def scheduled() -> State:
    watcher = Watcher.fresh()
    watcher.sees(event())
    return watcher.state


def moved(*steps: tuple[dict[str, Any], ...]) -> StateAndRecord:
    """Return the record of the last transition."""
    watcher = Watcher.fresh()
    found = [watcher.sees(*shown) for shown in steps]
    return RecordFactory(VM, watcher.wall, 3, evidence={"rebooted": True}).transition(watcher.state, found[-1][-1])


def ended() -> StateAndRecord:
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.restarts()
    (found,) = watcher.sees()
    return RecordFactory(VM, watcher.wall, 3, evidence={"rebooted": True}).transition(watcher.state, found)


def decided() -> StateAndRecord:
    state = scheduled()
    (decision,) = decide(Policy(Mode.ENFORCE), state, OURS)
    return RecordFactory(VM, NOON, 2, Mode.ENFORCE).decision(state, decision)


def with_approval(publish: Callable[[RecordFactory, State], StateAndRecord]) -> StateAndRecord:
    state = scheduled()
    tracked = replace(
        state.tracked[KEY],
        approval=Approval(1, rule="all", failures={"timeout": 1}),
        interruptions=InterruptionTotals(1, 2.0, 2.0),
    )
    return publish(RecordFactory(VM, NOON, 2), with_tracked(state, tracked))


def of_vm(kind: str, severity: str, **more: Any) -> StateAndRecord:
    return RecordFactory(VM, NOON, 2).about_vm(State(NOON, vm_key="k"), kind, severity, "It is so.", more)


SINCE: Final = published.timestamp(NOON - timedelta(seconds=12))
EXAMPLES: Final[Mapping[str, Callable[[], StateAndRecord]]] = {
    "scheduled": lambda: moved((event(),)),
    "updated": lambda: moved((event(),), (event(Description="New.", Resources=["vm-0", "vm-1"]),)),
    "started": lambda: moved((event(),), (started(),)),
    "completed": lambda: moved((event(),), (started(),), ()),
    "canceled": lambda: moved((event(),), ()),
    "ended": ended,
    "approval.decided": decided,
    "approval.accepted": lambda: with_approval(lambda writer, state: writer.accepted(state, state.tracked[KEY])),
    "approval.failed": lambda: with_approval(
        lambda writer, state: writer.failed(state, state.tracked[KEY], "timeout", None, "no answer in 5 s")
    ),
    "approval.outdated": lambda: with_approval(
        lambda writer, state: writer.outdated(state, state.tracked[KEY], "no-rule")
    ),
    "interruption.observed": lambda: with_approval(
        lambda writer, state: writer.interruption(
            state, Interruption(InterruptionKind.CLOCK_STEP, 2.0, Instant(NOON)), state.tracked[KEY]
        )
    ),
    "source.unavailable": lambda: of_vm("source.unavailable", "ERROR", reason="timeout", since=SINCE),
    "source.recovered": lambda: of_vm(
        "source.recovered", "INFO", reason="timeout", since=SINCE, gap_seconds=12.0, absent_seconds=None
    ),
    "source.anomaly": lambda: RecordFactory(VM, NOON, 2).anomaly(State(NOON, vm_key="k"), "incarnation-restarted"),
    "document.rejected": lambda: of_vm("document.rejected", "WARN", reason="empty", error="the body is empty"),
    "event.rejected": lambda: RecordFactory(VM, NOON, 2).rejection(
        State(NOON, vm_key="k"), Rejection("not-an-object", ["anything", None])
    ),
    "agent.started": lambda: of_vm("agent.started", "INFO", version="1.0", mode="dry-run", rebooted=True),
    "agent.stopped": lambda: of_vm("agent.stopped", "INFO"),
}


def cloudevent(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXAMPLES[kind]()[1].to_json())
    return found


def test_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_kind_has_its_example() -> None:
    """A new kind needs one here."""
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_of_record_matches_the_schema(kind: str) -> None:
    """With the kind that it claims."""
    found = cloudevent(kind)
    VALIDATOR.validate(found)
    assert found["type"] == f"azure_scheduled_event.{kind}.v1"


@pytest.mark.parametrize("kind", EXAMPLES)
def test_unknown_values_are_null_in_every_kind(kind: str) -> None:
    """Never -1 or an empty text, except in Azure's own object, which is kept as received."""
    found = cloudevent(kind)
    assert unknown_value_fields(found["data"]) == []
    event_of = found["data"]["event"]
    assert not isinstance(event_of, dict) or -1 in event_of.values()


def test_changes_and_decisions_quote_unknown_values_as_null() -> None:
    """They are outside Azure's object, so they follow the same rule as everything else outside it."""
    watcher = Watcher.fresh()
    watcher.sees(event(DurationInSeconds=9, Description="Soon.", More={"list": [""]}))
    (found,) = watcher.sees(event(DurationInSeconds=-1, Description="", More={"list": [-1]}))
    recorded = json.loads(RecordFactory(VM, NOON, 3).transition(watcher.state, found)[1].to_json())["data"]
    assert recorded["changed"] == {
        "Description": {"from": "Soon.", "to": None},
        "DurationInSeconds": {"from": 9, "to": None},
        "More": {"from": {"list": [None]}, "to": {"list": [None]}},
    }
    assert (recorded["event"]["DurationInSeconds"], recorded["event"]["Description"]) == (-1, "")
    assert cloudevent("approval.decided")["data"]["decision"]["fields"]["DurationInSeconds"] is None


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_number_has_one_type_in_every_record(kind: str) -> None:
    """Tools derive a column's type from the first records: a value that may have a fraction always has one."""
    data = cloudevent(kind)["data"]
    parts = {"data": data, "summary": data.get("summary", {}), "interruption": data.get("interruption", {})}
    for part, found in parts.items():
        for name, value in found.items():
            types = SCHEMA["$defs"][part]["properties"][name].get("type", ())
            if "number" in types and value is not None:
                assert isinstance(value, float), (part, name, value)
            if "integer" in types and value is not None:
                assert isinstance(value, int), (part, name, value)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_record_contains_its_kind_and_event_id_for_joins(kind: str) -> None:
    """Consumers need not parse `type`. The id is in lower case, as Azure may change its case; null for the VM's
    records."""
    found = cloudevent(kind)
    event = found["data"]["event"]
    about_event = isinstance(event, dict)
    assert found["data"]["kind"] == kind
    assert found["data"]["event_id"] == (EVENT_ID.lower() if about_event else None)
    assert not about_event or event["EventId"] == EVENT_ID != EVENT_ID.lower()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_schema_describes_every_member_of_a_record(kind: str) -> None:
    described = set(SCHEMA["$defs"]["data"]["properties"])
    assert set(cloudevent(kind)["data"]) - described == set()
    assert set(cloudevent(kind)) == set(SCHEMA["properties"])
    summary = cloudevent(kind)["data"].get("summary", {})
    assert set(summary) <= set(SCHEMA["$defs"]["summary"]["properties"])


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_record_is_a_cloudevent(kind: str) -> None:
    """Version 1.0: names of lower-case letters and digits, non-empty strings, a time of RFC 3339, and data."""
    found = cloudevent(kind)
    data = found.pop("data")
    assert isinstance(data, dict)
    for name, value in found.items():
        assert re.fullmatch(r"[a-z0-9]{1,20}", name)
        assert isinstance(value, str)
        assert value
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", value)
    assert found["specversion"] == "1.0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", found["time"])
    assert re.fullmatch(r"[!#-;=?-\[\]_a-z~%]+", found["source"])
    assert found["partitionkey"] == found["subject"]
    assert found["datacontenttype"] == "application/json"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (("data", "transition"), {*(kind.value for kind in TransitionKind), None}),
        (("data", "seen_before"), {word.value for word in Seen}),
        (("data", "started_by"), {*(word.value for word in StartedBy), None}),
        (("data", "mode"), {mode.value for mode in Mode}),
        (("data", "anomaly"), set(ANOMALIES)),
        (("decision", "reason"), {*(reason.value for reason in Reason if reason.value), None}),
        (("decision", "mode"), {mode.value for mode in Mode}),
        (("summary", "seen_before"), {word.value for word in Seen}),
        (("summary", "started_by"), {*(word.value for word in StartedBy), None}),
    ],
)
def test_enumerations_are_the_same_in_the_schema(where: tuple[str, str], words: set[str | None]) -> None:
    """A difference would break a consumer."""
    assert set(SCHEMA["$defs"][where[0]]["properties"][where[1]]["enum"]) == words


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.pop("id"),
        lambda found: found.update(specversion="2.0"),
        lambda found: found.update(subject=""),
        lambda found: found.update(type="azure_scheduled_event.scheduled"),
        lambda found: found["data"].pop("vm"),
        lambda found: found["data"].update(severity="FATAL"),
        lambda found: found["data"].update(transition="finished"),
        lambda found: found["data"].update(seen_before="yes"),
        lambda found: found["data"]["vm"].update(name=5),
    ],
)
def test_schema_rejects_invalid_records(spoil: Callable[[dict[str, Any]], Any]) -> None:
    """A schema that accepts everything proves nothing."""
    found = cloudevent("scheduled")
    spoil(found)
    assert not VALIDATOR.is_valid(found)
