"""Records: their ids, times, and names, and that they can always be written."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.core.decision import decide
from exporter.core.document import folded
from exporter.core.memory import with_tracked
from exporter.core.policy import Mode, Policy, Rule, Verdict
from exporter.core.record_factory import NAMESPACE, RecordFactory, event_summary
from exporter.core.records import DEPTH, KINDS, Record, Vm, timestamp
from exporter.core.state import Approval, Instant, Interruption, InterruptionKind, InterruptionTotals, Rejection, State
from exporter.core.strict_json import encodable
from tests.support.approval_case import OURS, hours
from tests.support.core_documents import EVENT_ID, NOON, Watcher, context_of, event, started

KEY = folded(EVENT_ID)
VM_ID = "5c7f1d3e-1c1a-4a3e-9d57-0d1f4c1f2b11"
RESOURCE_ID = "/subscriptions/0b1f6471/resourceGroups/shop (prod)/providers/Microsoft.Compute/virtualMachines/vm-0"
VM = Vm(name="vm-0", id=VM_ID, resource_id=RESOURCE_ID, location="westeurope")
WRITER = RecordFactory(VM, NOON, 7)
ANY_TEXT = st.text(st.characters(), max_size=20)


def first_record(vm: Vm = VM, *, vm_key: str = VM_ID, **fields: Any) -> Record:
    """Return the first record of an event."""
    watcher = Watcher.fresh()
    watcher.state = replace(watcher.state, vm_key=vm_key)
    (found,) = watcher.sees(event(**fields))
    return RecordFactory(vm, NOON, 7).transition(watcher.state, found)[1]


# -- the id


def test_record_id_is_made_as_documented() -> None:
    """Consumers can derive it: UUIDv5 of VM key, case-folded EventId, kind, and number, a line each."""
    name = f"{VM_ID}\n{EVENT_ID.lower()}\nscheduled\n1"
    assert first_record().id == str(uuid.uuid5(NAMESPACE, name))


def test_same_fact_has_the_same_id_and_any_other_a_different_one() -> None:
    """Another VM, event, kind, or number is another fact."""
    base = first_record()
    assert first_record().id == base.id
    assert first_record(Vm(name="renamed")).id == base.id
    assert first_record(EventId=EVENT_ID.lower()).id == base.id
    others = [
        first_record(vm_key="other"),
        first_record(EventId="other"),
        first_record(EventStatus="Started", NotBefore=""),
    ]
    assert len({base.id, *(other.id for other in others)}) == 4


def test_each_further_record_of_a_kind_has_the_next_number() -> None:
    """Two updates of one event are two facts."""
    watcher = Watcher.fresh()
    ids = []
    for text in ("", "One.", "Two.", "One."):
        for found in watcher.sees(event(Description=text)):
            watcher.state, record = WRITER.transition(watcher.state, found)
            ids.append(record.id)
    assert len(set(ids)) == 4


def test_vm_wide_record_after_a_lost_state_has_a_new_id() -> None:
    """Its numbers begin with the birth of the state, the only remaining difference."""
    before, after = State(NOON, vm_key="k"), State(NOON + timedelta(seconds=1), vm_key="k")
    ids = []
    for state in (before, after):
        following = state
        for _ in range(3):
            following, record = WRITER.about_vm(following, "agent.started", "INFO", "It has.", {})
            ids.append(record.id)
    assert len(set(ids)) == 6


@given(st.lists(st.sampled_from(["a", "a\nscheduled", "a\nscheduled\n1", "b"]), min_size=2, max_size=2, unique=True))
def test_event_id_with_line_ends_has_a_unique_record_id(event_ids: list[str]) -> None:
    """The parts are joined by line ends, and an EventId may contain some."""
    one, other = (first_record(EventId=event_id).id for event_id in event_ids)
    assert one != other


# -- names and times


@pytest.mark.parametrize(
    ("vm", "source"),
    [
        (VM, "/subscriptions/0b1f6471/resourceGroups/shop%20(prod)/providers/Microsoft.Compute/virtualMachines/vm-0"),
        (replace(VM, resource_id=""), f"urn:uuid:{VM_ID}"),
        (Vm(name="vm-0"), "urn:azure-vm:vm-0"),
        (Vm(name="straße 1/a#b?c"), "urn:azure-vm:stra%C3%9Fe%201%2Fa%23b%3Fc"),
        (Vm(), "urn:azure-vm:unknown"),
    ],
)
def test_source_is_the_best_known_name_of_the_vm(vm: Vm, source: str) -> None:
    """The ARM resource id, else the vmId, else the name, else "unknown"."""
    assert vm.source == source


URI_REFERENCE = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-F]{2})+")


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_source_is_always_a_uri_reference(name: str, vm_id: str, resource_id: str) -> None:
    """Whatever the VM's name is, even if it's invalid Unicode."""
    source = Vm(name=name, id=vm_id, resource_id=resource_id).source
    assert URI_REFERENCE.fullmatch(source)
    parts = urlsplit(source)
    assert parts.scheme in ("", "urn")
    assert not parts.fragment


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_times_are_rfc_3339_in_utc_and_can_be_parsed(moment: datetime) -> None:
    """Always with microseconds and Z, so that they sort as text."""
    if moment.year in (1, 9999):  # at the ends of time UTC may be out of reach
        return
    text = timestamp(moment)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert datetime.fromisoformat(text) == moment


def test_record_has_the_members_of_the_contract() -> None:
    """The attributes of the CloudEvent, and the members of `data` that every kind has."""
    record = first_record()
    found = json.loads(record.to_json())
    assert {name: value for name, value in found.items() if name != "data"} == {
        "specversion": "1.0",
        "id": record.id,
        "source": VM.source,
        "type": "azure_scheduled_event.scheduled.v1",
        "subject": EVENT_ID,
        "time": "2025-11-21T12:00:00.000000Z",
        "datacontenttype": "application/json",
        "dataschema": "urn:azure-scheduled-events-exporter:schema:record:v1",
        "partitionkey": EVENT_ID,
    }
    data = found["data"]
    assert data["event"] == event()
    assert data["vm"]["name"] == "vm-0"
    assert (data["transition"], data["document_incarnation"], data["affects_self"]) == ("scheduled", 7, True)
    assert data["not_before"] == "2025-11-21T12:15:00.000000Z"
    assert (data["seen_before"], data["notice_seconds"]) == ("unbroken", 900.0)


@pytest.mark.parametrize(("vm", "subject"), [(VM, "vm-0"), (Vm(), "vm")])
def test_subject_of_a_vm_wide_record_is_the_vm(vm: Vm, subject: str) -> None:
    """Its name, or a text that is never empty."""
    _, record = RecordFactory(vm, NOON).about_vm(State(NOON, vm_key="k"), "agent.started", "INFO", "It has.", {})
    assert (record.subject, record.data["event"], record.data["transition"]) == (subject, None, None)


@pytest.mark.parametrize(
    ("resources", "name", "expected"),
    [(["vm-0"], "VM-0", True), (["vm-1"], "vm-0", False), ("vm-0", "vm-0", None), (["vm-0"], "", None)],
)
def test_affects_self_is_null_if_unknown(resources: Any, name: str, expected: bool | None) -> None:
    """Neither unreadable Resources nor an unknown VM name mean false."""
    assert first_record(Vm(name=name), Resources=resources).data["affects_self"] is expected


def test_summary_contains_the_whole_life_cycle() -> None:
    """For an event observed from first to last."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    tracked = watcher.state.tracked[KEY]
    approval = Approval(2, accepted_at=watcher.wall + timedelta(seconds=1), rule="all")
    watcher.state = with_tracked(
        watcher.state, replace(tracked, approval=approval, interruptions=InterruptionTotals(2, 7.5, 5.0))
    )
    watcher.sees(event(Description="New."))
    watcher.sees(started(Description="New."), after=3)
    watcher.sees(started(Description="Newer."), after=4)
    (closed,) = watcher.sees(after=30)
    recorded = event_summary(closed.tracked, closed.unseen)
    expected: Mapping[str, Any] = {
        "seen_before": "unbroken",
        "notice_seconds": 898.0,
        "documented_minimum_notice_seconds": 900,
        "started_by": "this_vm",
        "rule": "all",
        "approval_attempts": 2,
        "scheduled_duration_seconds": 4.0,
        "started_duration_seconds": 34.0,
        "outcome": "completed",
        "last_status": "Started",
        "last_not_before": timestamp(NOON + timedelta(minutes=15)),
        "unseen": ["gap"],
        "updates": 2,
        "updates_while_started": 1,
        "gaps": 1,
        "gap_seconds": 30.0,
        "announced_duration_seconds": None,
        "interruptions_observed": 2,
        "interruption_seconds": 7.5,
        "interruption_longest_seconds": 5.0,
    }
    assert {name: recorded[name] for name in expected} == expected


def test_rejection_of_a_tracked_event_is_a_record_about_that_event() -> None:
    """An element that can't be tracked is a record about the VM."""
    watcher = Watcher.fresh()
    step = watcher.step(event(Resources=5), "nonsense")
    recorded = [WRITER.rejection(step.state, found)[1] for found in step.rejections]
    assert {(record.subject, record.data["fault"]) for record in recorded} == {
        (EVENT_ID, "Resources"),
        ("vm-0", "not-an-object"),
    }
    assert {str(record.data["event"])[:8] for record in recorded} == {"nonsense", str(event())[:8]}


def test_rejection_names_the_event_as_azure_does() -> None:
    """With the EventId as received, in its own case."""
    step = Watcher.fresh().step(event(EventId="AbC-1", Resources=5))
    record = WRITER.rejection(step.state, step.rejections[0])[1]
    assert record.data["message"].startswith("Event AbC-1 has missing, invalid, repeated, or unknown values")


@pytest.mark.parametrize(
    ("fields", "approved"),
    [
        ({"Description": None}, True),
        ({"DurationInSeconds": "9"}, True),
        ({"EventType": 7}, False),
        ({"Resources": None}, False),
        ({"NotBefore": "soon"}, False),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_rejection_rules_an_approval_out_only_if_the_decision_does(fields: dict[str, Any], approved: bool) -> None:
    """The default rules approve an event with an unreadable description, right after this record."""
    watcher = Watcher.fresh()
    step = watcher.step(event(**fields))
    (decision,) = decide(Policy(Mode.ENFORCE), step.state, OURS)
    assert (decision.verdict is Verdict.APPROVE) is approved
    _, record = WRITER.rejection(step.state, step.rejections[0])
    assert ("cannot be approved" in record.data["message"]) is not approved
    assert record.data["message"].endswith(f": {next(iter(fields))}")


def test_decision_is_recorded_with_reason_rule_and_fields() -> None:
    """Held or approved, with the values of the policy."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    for mode, verdict, reason in ((Mode.DRY_RUN, "hold", "dry-run"), (Mode.ENFORCE, "approve", None)):
        (decision,) = decide(Policy(mode), watcher.state, OURS)
        _, record = replace(WRITER, mode=mode).decision(watcher.state, decision)
        recorded = record.data["decision"]
        assert (recorded["verdict"], recorded["reason"], recorded["rule"]) == (verdict, reason, "user-initiated")
        assert (recorded["mode"], recorded["fields"]["EventType"]) == (mode.value, "Reboot")


def test_decision_by_hours_is_recorded_with_the_hours_and_the_next_change() -> None:
    """Record, page, and log show when the event may be approved, and by which local time it was held or sent."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    rule = Rule("nights", ("Reboot",), hours=hours("22:00-05:00", "Sat", timezone="Europe/Berlin"))
    asked = {"between": "22:00-05:00", "days": ["Sat"], "timezone": "Europe/Berlin"}
    opens = "outside 22:00-05:00 in Europe/Berlin until Sat 2026-11-28 22:00+01:00"
    for now, verdict, local, change, message in (
        ("2026-11-28T12:00:30+00:00", "hold", "2026-11-28T13:00+01:00", "2026-11-28T22:00+01:00", opens),
        ("2026-11-28T23:59:00+00:00", "approve", "2026-11-29T00:59+01:00", "2026-11-29T05:00+01:00", "(rule nights)"),
        ("2026-11-28T12:00:30", "hold", None, None, "hours (rule nights): the current time is unknown"),
    ):
        context = context_of(now=datetime.fromisoformat(now))
        (decision,) = decide(Policy(Mode.ENFORCE, rules=(rule,)), watcher.state, context)
        _, record = replace(WRITER, mode=Mode.ENFORCE).decision(watcher.state, decision)
        recorded = record.data["decision"]
        assert recorded["verdict"] == verdict
        assert recorded["fields"]["hours"] == {**asked, "local_time": local, "next_change": change}
        assert record.data["message"].endswith(message)


# -- writing and reading back


HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    ANY_TEXT,
    st.lists(ANY_TEXT | st.floats(), max_size=3),
    st.tuples(ANY_TEXT),
    st.dictionaries(ANY_TEXT, ANY_TEXT | st.floats(), max_size=3),
    st.just(NOON),
    st.binary(max_size=3),
)


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, HOSTILE)
def test_any_record_can_be_written(text: str, name: str, subject: str, value: Any) -> None:
    """Lone surrogates, NUL, NaN, infinity, and types unknown to JSON are replaced."""
    record = Record(
        text, "agent.started", text, subject, NOON, "INFO", {"severity": "INFO", "vm": {"name": name}, "x": value}
    )
    found = json.loads(record.to_json())
    assert found["specversion"] == "1.0"


@given(ANY_TEXT, ANY_TEXT, ANY_TEXT, st.floats())
def test_factory_accepts_any_input(name: str, key: str, error: str, seconds: float) -> None:
    """Names and fault texts come from outside, for example an invalid environment variable. Records are cleaned when
    they're made, so they're the same for every destination."""
    state = State(NOON, vm_key=key)
    writer = RecordFactory(Vm(name=name), NOON)
    state, unavailable = writer.about_vm(state, "source.unavailable", "ERROR", error, {"error": error})
    state, rejected = writer.rejection(state, Rejection(error, {error: [error, seconds]}))
    stall = Interruption(InterruptionKind.STALL, seconds, Instant(NOON))
    state, observed = writer.interruption(state, stall, None)
    for record in (unavailable, rejected, observed):
        assert Record.from_json(record.to_json()) == record
        assert record.subject


@pytest.mark.parametrize("name", ["vm-\ud800", "\udcff", "a\0b"])
def test_event_of_an_oddly_named_vm_is_recorded(name: str) -> None:
    """The name is cleaned in the record."""
    record = first_record(Vm(name=name), vm_key=name)
    assert Record.from_json(record.to_json()) == record


def test_record_round_trips_through_its_text() -> None:
    """What the outbox keeps is what is sent."""
    record = first_record(Description="ünïcödé ✓ \u2028")
    assert Record.from_json(record.to_json()) == record
    assert "ünïcödé ✓".encode() in record.to_json()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_round_trips_through_its_name(kind: str) -> None:
    """Also one with a dot in it."""
    record = replace(first_record(), kind=kind)
    assert Record.from_json(record.to_json()).kind == kind


@pytest.mark.parametrize(
    "change",
    [
        {"type": "com.example.other.v1"},
        {"type": "azure_scheduled_event.v1"},
        {"type": 5},
        {"type": None},
        {"time": "soon"},
        {"time": "2025-11-21T12:00:00"},
        {"time": 5},
        {"data": None},
        {"data": []},
        {"data": {}},
        {"id": 5},
        {"subject": None},
    ],
)
def test_text_that_is_not_a_record_is_a_value_error_or_a_key_error(change: dict[str, Any]) -> None:
    """A file or an event hub may contain anything; readers catch these two."""
    found = json.loads(first_record().to_json()) | change
    with pytest.raises((ValueError, KeyError)):
        Record.from_json(json.dumps(found))


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{}", b'"x"', b"\xff", b"[" * 100_000])
def test_text_that_is_not_an_object_is_a_value_error_or_a_key_error(text: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        Record.from_json(text)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.just(NOON) | st.just("\\u0000"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(ANY_TEXT, inner, max_size=3)
        | st.lists(inner, min_size=1, max_size=1).map(lambda items: nested(items[0], 90))
    ),
    max_leaves=8,
)


def nested(value: Any, depth: int) -> Any:
    """Return the value inside this many arrays."""
    for _ in range(depth):
        value = [value]
    return value


@given(st.dictionaries(ANY_TEXT, ANYTHING, max_size=4), ANY_TEXT)
def test_fast_encoding_equals_the_careful_one(data: dict[str, Any], subject: str) -> None:
    """The fast path writes the same bytes as replacing what JSON can't represent first."""
    record = Record("id", "scheduled", "urn:x", subject, NOON, "INFO", data)
    careful = encodable(record.to_cloudevent(), DEPTH)
    assert record.to_json() == json.dumps(careful, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
