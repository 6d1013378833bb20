"""What the Python consumer reads from one message of any sender."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.consumers.python.event_summaries.record import (
    ABOUT_EVENTS,
    ABOUT_VMS,
    MAX_BODY,
    REASONS,
    Fact,
    Unreadable,
    lower,
    read,
)
from exporter.core.document import folded
from exporter.core.records import KINDS
from tests.support.core_documents import EVENT_ID
from tests.support.fleet_records import every_kind

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def scheduled() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(every_kind()["scheduled"])
    return found


def reason(body: bytes) -> str:
    with pytest.raises(Unreadable) as caught:
        read(body)
    return caught.value.reason


def changed(**members: Any) -> bytes:
    return json.dumps({**scheduled(), **members}).encode()


def with_data(**members: Any) -> bytes:
    found = scheduled()
    return json.dumps({**found, "data": {**found["data"], **members}}).encode()


def test_every_kind_is_known() -> None:
    """And no other; the examples define which of them are about events."""
    assert {*KINDS} == ABOUT_EVENTS | ABOUT_VMS


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_record_is_read(kind: str) -> None:
    """As this version writes it: the fact has its kind, its id, and the event's in lower case or none."""
    body = every_kind()[kind]
    sent = json.loads(body)
    fact = read(body)
    assert (fact.kind, fact.source, fact.id, fact.time) == (kind, sent["source"], sent["id"], sent["time"])
    assert fact.event_id == sent["data"]["event_id"]


def test_a_closing_record_has_its_summary() -> None:
    """Times, durations, and `started_by` are read from it."""
    fact = read(every_kind()["completed"])
    summary = json.loads(every_kind()["completed"])["data"]["summary"]
    assert (fact.first_seen, fact.started_at, fact.gone_at) == (
        summary["first_seen"], summary["started_at"], summary["gone_at"],
    )  # fmt: skip
    assert (fact.notice_seconds, fact.started_by) == (summary["notice_seconds"], summary["started_by"])


def test_ids_that_differ_in_case_are_one() -> None:
    """Only ASCII letters are folded, as in the agent."""
    assert read(changed(subject=EVENT_ID.upper())).event_id == read(changed(subject=EVENT_ID.lower())).event_id
    assert lower("KſK") == folded("KſK") == "kſk"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not-json"),
        (b"\xff\xfe", "not-json"),
        (b"{", "not-json"),
        (b"[]", "not-json"),
        (b"NaN", "not-json"),
        (b"[" * 100_000, "not-json"),
        (b'{"n": ' + b"9" * 5_000 + b"}", "not-json"),
        (b" " * (MAX_BODY + 1), "too-large"),
        (b"{}", "not-cloudevents"),
        (changed(specversion="0.3"), "not-cloudevents"),
        (changed(type=7), "not-cloudevents"),
        (changed(type="com.example.other"), "other-producer"),
        (changed(type="azure_scheduled_event.scheduled.v2"), "other-version"),
        (changed(type="azure_scheduled_event.scheduled"), "other-version"),
        (changed(type="azure_scheduled_event.melted.v1"), "unknown-kind"),
        (changed(source=None), "wrong-type"),
        (changed(id=["x"]), "wrong-type"),
        (changed(id="x" * 100_000), "wrong-type"),
        (changed(time="yesterday"), "wrong-type"),
        (changed(time="2026-03-04T05:06:07"), "wrong-type"),
        (changed(time="0001-01-01T00:00:00+23:59"), "wrong-type"),
        (changed(data=[]), "wrong-type"),
        (with_data(vm="web-1"), "wrong-type"),
        (with_data(vm={"name": {}}), "wrong-type"),
        (with_data(vm={"tags": {"owner": 7}}), "wrong-type"),
        (with_data(event_id=7), "wrong-type"),
        (with_data(event_id=None), "wrong-type"),
        (with_data(affects_self="yes"), "wrong-type"),
        (with_data(notice_seconds=1e300), "wrong-type"),
        (with_data(notice_seconds=True), "wrong-type"),
    ],
)  # fmt: skip
def test_an_invalid_record_is_rejected_with_a_reason(body: bytes, why: str) -> None:
    """No sent message has any other effect."""
    assert reason(body) == why
    assert why in REASONS


def test_the_tags_of_a_vm_are_kept() -> None:
    """Those that have a value."""
    found = read(with_data(vm={"name": "a", "tags": {"owner": "web", "environment": None}}))
    assert found.place.tags == (("owner", "web"),)


def test_the_object_of_azure_may_have_any_value() -> None:
    """Azure defines its members: an unexpected value is unknown."""
    odd = {"EventId": EVENT_ID, "EventType": 7, "Resources": ["a", 7, None], "DurationInSeconds": "long"}
    event = read(with_data(event=odd)).event
    assert event is not None
    assert (event.event_type, event.resources, event.duration) == (None, ("a",), None)


def test_an_unreadable_value_keeps_the_last_readable_one() -> None:
    """As in the agent's other outputs; null is a value that was never readable."""
    twice = {"EventId": EVENT_ID, "EventType": "Freeze", "EventSource": "User", "Resources": ["a"]}
    event = read(with_data(event=twice, last_readable={"EventType": "Reboot", "EventSource": None})).event
    assert event is not None
    assert (event.event_type, event.event_source, event.resources) == ("Reboot", None, ("a",))
    odd: tuple[Any, ...] = (None, 7, [], "x")
    for earlier in odd:
        event = read(with_data(event=twice, last_readable=earlier)).event
        assert event is not None
        assert event.event_type == "Freeze"


def test_a_lone_surrogate_does_no_harm() -> None:
    """JSON can contain half a surrogate pair; no file can."""
    fact = read(with_data(vm={"name": "web-\ud800"}))
    fact.vm.encode()


@given(JSON, st.sampled_from(["data", "id", "source", "subject", "time", "vm", "summary", "event", "event_id"]))
def test_any_value_in_any_place_is_read_or_rejected(value: Any, name: str) -> None:
    """It has no other effect."""
    found: dict[str, Any] = json.loads(every_kind()["completed"])
    (found if name in found else found["data"])[name] = value
    _read_or_refused(json.dumps(found).encode())


@given(st.binary(max_size=64) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_rejected(body: bytes) -> None:
    """They have no other effect."""
    _read_or_refused(body)


def _read_or_refused(body: bytes) -> None:
    with contextlib.suppress(Unreadable):
        assert isinstance(read(body), Fact)
