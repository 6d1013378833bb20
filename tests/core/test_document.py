"""The parser: strict about the document, tolerant about each event."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from exporter.core.document import (
    DOCUMENT_REASONS,
    MAX_RESOURCES,
    DocumentError,
    document_from,
    parse_document,
    unknown_value_fields,
)
from tests.support.core_documents import body, event, one, parsed


def reason_of(raw: bytes) -> str:
    with pytest.raises(DocumentError) as caught:
        parse_document(raw)
    assert caught.value.reason in DOCUMENT_REASONS
    return caught.value.reason


# -- the document


@pytest.mark.parametrize("raw", [b"", b" ", b"\r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
def test_empty_body_is_an_error_and_not_an_empty_document(raw: bytes) -> None:
    """A proxy's empty 200 must not look like "nothing is scheduled"."""
    assert reason_of(raw) == "empty"


@pytest.mark.parametrize(
    "raw",
    [
        b"<html>Bad gateway</html>",
        b"{",
        b'{"DocumentIncarnation": 1, "Events": [',
        b'{"DocumentIncarnation": 1, "Events": []} {}',
        b'{"DocumentIncarnation": 1, "Events": []}\x00',
        b"{'DocumentIncarnation': 1, 'Events': []}",
        b'{"DocumentIncarnation": 1, "Events": [],}',
        b'{"DocumentIncarnation": 01, "Events": []}',
        b'{"DocumentIncarnation": NaN, "Events": []}',
        b'{"DocumentIncarnation": 1, "Events": [{"EventId": "a", "DurationInSeconds": Infinity}]}',
        b'{"DocumentIncarnation": 1, "Events": [], "More": -Infinity}',
        b'{"DocumentIncarnation": 1, "Events": ["\x01"]}',
        b"\xff\xfe{\x00}\x00",
        '{"DocumentIncarnation": 1, "Events": []}'.encode("utf-16"),
        b'{"DocumentIncarnation": 1, "Events": ["\xed\xa0\x80"]}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_invalid_json_is_rejected(raw: bytes) -> None:
    """NaN, truncated documents, other encodings, and deep nesting are rejected."""
    assert reason_of(raw) == "not-json"


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"null",
        b"1",
        b'"DocumentIncarnation"',
        b"{}",
        b'{"DocumentIncarnation": 1}',
        b'{"Events": []}',
        b'{"documentincarnation": 1, "events": []}',
        b'{"DocumentIncarnation": true, "Events": []}',
        b'{"DocumentIncarnation": 1.0, "Events": []}',
        b'{"DocumentIncarnation": "1", "Events": []}',
        b'{"DocumentIncarnation": null, "Events": []}',
        b'{"DocumentIncarnation": 9223372036854775808, "Events": []}',
        b'{"DocumentIncarnation": -9223372036854775809, "Events": []}',
        b'{"DocumentIncarnation": 1, "Events": {}}',
        b'{"DocumentIncarnation": 1, "Events": null}',
        b'{"DocumentIncarnation": 1, "Events": "[]"}',
        b'{"DocumentIncarnation": 1, "Events": [], "Events": [{"EventId": "a"}]}',
        b'{"DocumentIncarnation": 1, "DocumentIncarnation": 2, "Events": []}',
    ],
)
def test_json_that_is_not_a_document_is_rejected(raw: bytes) -> None:
    """A document has one 64-bit integer DocumentIncarnation and one array Events."""
    assert reason_of(raw) == "not-a-document"


@pytest.mark.parametrize("number", [0, -1, 1, 2**63 - 1, -(2**63)])
def test_any_64_bit_incarnation_is_valid(number: int) -> None:
    """DocumentIncarnation is only compared; it may decrease."""
    assert parse_document(body(number)).incarnation == number


def test_byte_order_mark_and_unknown_members_are_ignored() -> None:
    raw = b"\xef\xbb\xbf" + json.dumps({"New": 1, "DocumentIncarnation": 7, "Events": [event()]}).encode()
    assert [found.event_type for found in parse_document(raw).events] == ["Reboot"]


def test_decoded_document_equals_the_parsed_bytes() -> None:
    """Recordings contain decoded documents."""
    assert document_from(json.loads(body(3, event()))) == parse_document(body(3, event()))


# -- one event among others


def test_valid_event_has_all_typed_fields() -> None:
    found = one()
    assert (found.event_type, found.resources, found.status) == ("Reboot", ("vm-0",), "Scheduled")
    assert (found.source, found.duration, found.resource_type) == ("User", -1, "VirtualMachine")
    assert found.not_before == datetime(2025, 11, 21, 12, 15, tzinfo=UTC)
    assert found.faults == ()
    assert not found.faulty
    assert found.raw == event()


@pytest.mark.parametrize(
    ("item", "fault"),
    [
        (None, "not-an-object"),
        ([], "not-an-object"),
        ("C7061BAC", "not-an-object"),
        ({}, "no-event-id"),
        (event(EventId=...), "no-event-id"),
        ({"eventid": "a"}, "no-event-id"),
        (event(EventId=None), "mistyped-event-id"),
        (event(EventId=7), "mistyped-event-id"),
        (event(EventId=["a"]), "mistyped-event-id"),
        (event(""), "empty-event-id"),
        (event("x" * 101), "overlong-event-id"),
        (event("a\ud800"), "unreadable-event-id"),
        (event("a\0b"), "unreadable-event-id"),
    ],
)
def test_untrackable_element_is_kept_and_hides_no_event(item: Any, fault: str) -> None:
    """An invalid element before or after a valid event doesn't hide it."""
    found = parsed(event("before"), item, event("after"))
    assert [good.event_id for good in found.events] == ["before", "after"]
    assert [bad.fault for bad in found.rejected] == [fault]
    assert not any(good.faults for good in found.events)


def test_event_id_of_100_characters_is_valid() -> None:
    """100 is the limit."""
    assert one(EventId="x" * 100).event_id == "x" * 100


@pytest.mark.parametrize("twin", ["a-1", "A-1"])
def test_two_events_with_one_id_are_both_malformed(twin: str) -> None:
    """Ids ignore case. The first event gets a fault, the second is rejected."""
    found = parsed(event("a-1"), event(twin, EventType="Freeze"), event("b"))
    first, other = found.events
    assert (first.event_id, first.faulty, first.faults) == ("a-1", True, ("EventId",))
    assert not other.faulty
    assert [(bad.fault, bad.raw["EventType"]) for bad in found.rejected] == [("duplicate-event-id", "Freeze")]


def test_three_events_with_one_id_are_one_event_and_two_rejections() -> None:
    """The fault is named once."""
    found = parsed(event("a"), event("a"), event("A"))
    assert [good.faults for good in found.events] == [("EventId",)]
    assert [bad.fault for bad in found.rejected] == ["duplicate-event-id"] * 2


def test_repeated_event_id_in_one_object_is_unreadable() -> None:
    """Readers that use the first or the last value would approve different events."""
    raw = b'{"DocumentIncarnation": 1, "Events": [{"EventId": "a", "EventId": "b"}]}'
    assert [bad.fault for bad in parse_document(raw).rejected] == ["unreadable-event-id"]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("EventType", "event_type"),
        ("Resources", "resources"),
        ("NotBefore", "not_before"),
        ("EventStatus", "status"),
        ("EventSource", "source"),
        ("DurationInSeconds", "duration"),
        ("ResourceType", "resource_type"),
    ],
)
def test_repeated_field_is_unreadable(name: str, field: str) -> None:
    """Neither value is used."""
    good = json.dumps(event())[1:-1]
    for value in (json.dumps(event()[name]), '"Freeze"'):
        raw = f'{{"DocumentIncarnation": 1, "Events": [{{{good}, "{name}": {value}}}]}}'.encode()
        (found,) = parse_document(raw).events
        assert getattr(found, field) is None
        assert name in found.faults


def test_status_of_a_rejected_element_is_kept_only_if_readable() -> None:
    """`when_quiet` needs it. A repeated status is unreadable."""
    raw = b'{"DocumentIncarnation": 1, "Events": [{"EventStatus": "Started", "EventStatus": "Scheduled"}]}'
    assert [bad.status for bad in parse_document(raw).rejected] == [None]
    assert [bad.status for bad in parsed({"EventStatus": "Started"}, {"EventStatus": 1}, 5).rejected] == [
        "Started",
        None,
        None,
    ]


@pytest.mark.parametrize("value", [None, 5, True, "vm-0", {}, ["vm-0", 5], [""], [None], [["vm-0"]], ["a\ud800"]])
def test_resources_that_are_not_all_names_are_a_fault(value: Any) -> None:
    found = one(Resources=value)
    assert (found.resources, found.faulty) == (None, True)


def test_empty_resources_are_readable_and_too_many_are_not() -> None:
    assert one(Resources=[]).resources == ()
    assert one(Resources=["vm-0"] * MAX_RESOURCES).resources is not None
    assert one(Resources=["vm-0"] * (MAX_RESOURCES + 1)).resources is None


@pytest.mark.parametrize("value", [True, False, 5.0, 0.0, -1.0, "5", "", None, [5], {}, 10**400, 2**63, -(2**63) - 1])
def test_duration_that_is_not_an_integer_is_a_fault(value: Any) -> None:
    """Booleans, floats, strings, and numbers that no output can represent."""
    found = one(DurationInSeconds=value)
    assert found.duration is None
    assert "DurationInSeconds" in found.faults


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775809", "9" * 5000, "1e999"])
@pytest.mark.parametrize(
    "name", ["EventId", "EventType", "EventSource", "EventStatus", "Resources", "NotBefore", "ResourceType"]
)
def test_number_out_of_range_is_never_a_field_value(name: str, number: str) -> None:
    """It's kept as an object, the type of no field, so that users can read it."""
    raw = json.dumps({"DocumentIncarnation": 1, "Events": [event(**{name: "here"})]}).replace('"here"', number)
    found = parse_document(raw.encode())
    if name == "EventId":
        assert [bad.fault for bad in found.rejected] == ["mistyped-event-id"]
        return
    assert name in found.events[0].faults
    assert found.events[0].raw[name] == {"number": number}


def test_infinite_floats_can_be_published() -> None:
    """1e999 is valid JSON and infinite in Python, which JSON can't represent."""
    raw = body(1, event()).replace(b'"DurationInSeconds": -1', b'"DurationInSeconds": 1e999')
    (found,) = parse_document(raw).events
    assert found.duration is None
    assert json.dumps(found.raw, allow_nan=False)


@pytest.mark.parametrize("value", [-1, 0, 9, 2**63 - 1, -(2**63)])
def test_integer_duration_is_accepted(value: int) -> None:
    """Also -1, which means "not known" and isn't a fault."""
    assert one(DurationInSeconds=value).duration == value


def test_fields_missing_in_older_api_versions_are_not_faults() -> None:
    """Description, EventSource, and DurationInSeconds are newer than the first API version."""
    found = one(Description=..., EventSource=..., DurationInSeconds=...)
    assert (found.description, found.source, found.duration, found.faults) == (None, None, None, ())


def test_missing_fields_of_every_api_version_are_faults() -> None:
    found = one(EventType=..., Resources=..., NotBefore=..., EventStatus=...)
    assert found.faults == ("EventStatus", "EventType", "NotBefore", "Resources")


def test_unknown_values_are_kept_and_listed() -> None:
    """Azure may add values. They are published and counted, and never acted on. A missing field isn't listed."""
    found = one(EventType="Hibernate", EventStatus="Paused", EventSource="Robot", ResourceType="Disk", NotBefore="")
    assert unknown_value_fields(found) == ("EventType", "EventStatus", "EventSource", "ResourceType")
    assert found.event_type == "Hibernate"
    assert unknown_value_fields(one(EventSource=..., ResourceType=...)) == ()
