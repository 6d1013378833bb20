"""The parser: strict about the document, tolerant about each event, never fooled and never slow."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.events import (
    DOCUMENT_REASONS,
    MAX_EVENTS,
    MAX_REJECTED,
    MAX_RESOURCES,
    DocumentError,
    document_from,
    parse_document,
    unknown_words,
)
from exporter.events_json import encodable
from exporter.events_time import parse_time
from tests.core_documents import NOT_BEFORE, body, event, one, parsed, started

MIB = 2**20


def reason_of(raw: bytes) -> str:
    with pytest.raises(DocumentError) as caught:
        parse_document(raw)
    assert caught.value.reason in DOCUMENT_REASONS
    return caught.value.reason


def outcome(raw: bytes) -> str:
    try:
        parse_document(raw)
    except DocumentError as error:
        return error.reason
    return "read"


# -- the document


@pytest.mark.parametrize("raw", [b"", b" ", b"\r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n"])
def test_an_empty_body_is_an_error_and_never_no_events(raw: bytes) -> None:
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
def test_what_is_not_strict_json_is_refused(raw: bytes) -> None:
    """JSON's own rules hold: no NaN, no half documents, no other encodings, no bottomless nesting."""
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
def test_json_that_is_no_document_is_refused(raw: bytes) -> None:
    """Only a whole, well-formed document counts: an integer number that fits everywhere and an array, each once."""
    assert reason_of(raw) == "not-a-document"


@pytest.mark.parametrize("number", [0, -1, 1, 2**63 - 1, -(2**63)])
def test_every_number_that_fits_is_a_number(number: int) -> None:
    """The document's number is compared, never trusted to grow."""
    assert parse_document(body(number)).incarnation == number


def test_a_byte_order_mark_and_unknown_members_do_no_harm() -> None:
    """What a strange but right server sends is read."""
    raw = b"\xef\xbb\xbf" + json.dumps({"New": 1, "DocumentIncarnation": 7, "Events": [event()]}).encode()
    assert [found.event_type for found in parse_document(raw).events] == ["Reboot"]


def test_a_decoded_document_is_read_like_its_bytes() -> None:
    """Recordings come decoded: both doors lead into one room."""
    assert document_from(json.loads(body(3, event()))) == parse_document(body(3, event()))


# -- one event among others


def test_a_good_event_is_read_whole() -> None:
    """Every documented field arrives typed."""
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
def test_an_element_that_cannot_be_tracked_is_kept_and_hides_nothing(item: Any, fault: str) -> None:
    """One bad event never hides a good one, before or after it."""
    found = parsed(event("before"), item, event("after"))
    assert [good.event_id for good in found.events] == ["before", "after"]
    assert [bad.fault for bad in found.rejected] == [fault]
    assert not any(good.faults for good in found.events)


def test_an_id_of_100_characters_is_an_id() -> None:
    """The limit itself is within."""
    assert one(EventId="x" * 100).event_id == "x" * 100


@pytest.mark.parametrize("twin", ["a-1", "A-1"])
def test_two_events_with_one_id_are_both_malformed(twin: str) -> None:
    """No reader can know which one is meant, in whatever case: the first is faulty, the second is kept aside."""
    found = parsed(event("a-1"), event(twin, EventType="Freeze"), event("b"))
    first, other = found.events
    assert (first.event_id, first.faulty, first.faults) == ("a-1", True, ("EventId",))
    assert not other.faulty
    assert [(bad.fault, bad.raw["EventType"]) for bad in found.rejected] == [("duplicate-event-id", "Freeze")]


def test_three_of_one_id_are_one_event_and_two_rejections() -> None:
    """The fault is named once however often the id comes."""
    found = parsed(event("a"), event("a"), event("A"))
    assert [good.faults for good in found.events] == [("EventId",)]
    assert [bad.fault for bad in found.rejected] == ["duplicate-event-id"] * 2


def test_an_id_that_stands_there_twice_in_one_object_is_unreadable() -> None:
    """A reader that takes the first and one that takes the last would approve different events."""
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
def test_a_field_that_stands_there_twice_is_unreadable(name: str, field: str) -> None:
    """Of two values neither is taken, whichever comes last."""
    good = json.dumps(event())[1:-1]
    for value in (json.dumps(event()[name]), '"Freeze"'):
        raw = f'{{"DocumentIncarnation": 1, "Events": [{{{good}, "{name}": {value}}}]}}'.encode()
        (found,) = parse_document(raw).events
        assert getattr(found, field) is None
        assert name in found.faults


def test_the_status_of_a_rejected_element_is_told_only_if_it_is_one() -> None:
    """`when_quiet` asks for it: a status that stands there twice is no status."""
    raw = b'{"DocumentIncarnation": 1, "Events": [{"EventStatus": "Started", "EventStatus": "Scheduled"}]}'
    assert [bad.status for bad in parse_document(raw).rejected] == [None]
    assert [bad.status for bad in parsed({"EventStatus": "Started"}, {"EventStatus": 1}, 5).rejected] == [
        "Started",
        None,
        None,
    ]


@pytest.mark.parametrize("value", [None, 5, True, "vm-0", {}, ["vm-0", 5], [""], [None], [["vm-0"]], ["a\ud800"]])
def test_resources_that_are_no_list_of_names_are_a_fault(value: Any) -> None:
    """A name among things that are none does not make a list of names."""
    found = one(Resources=value)
    assert (found.resources, found.names("vm-0"), found.faulty) == (None, None, True)


def test_no_resources_is_readable_and_names_nobody() -> None:
    """An empty list is a list; too long a one is none."""
    assert one(Resources=[]).names("vm-0") is False
    assert one(Resources=["vm-0"] * (MAX_RESOURCES + 1)).names("vm-0") is None


@pytest.mark.parametrize(
    ("name", "found"),
    [("vm-0", True), ("VM-0", True), ("vm-", False), ("vm-00", False), ("m-0", False), (" vm-0", False)],
)
def test_names_are_compared_whole_and_without_case(name: str, found: bool) -> None:
    """A part of a name is another VM's."""
    assert one(Resources=["other", "Vm-0"]).names(name) is found


@pytest.mark.parametrize("value", [True, False, 5.0, 0.0, -1.0, "5", "", None, [5], {}, 10**400, 2**63, -(2**63) - 1])
def test_a_duration_that_is_no_integer_is_a_fault(value: Any) -> None:
    """No bool, no float, no string, and nothing that no output can carry."""
    found = one(DurationInSeconds=value)
    assert found.duration is None
    assert "DurationInSeconds" in found.faults


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775809", "9" * 5000, "1e999"])
@pytest.mark.parametrize(
    "name", ["EventId", "EventType", "EventSource", "EventStatus", "Resources", "NotBefore", "ResourceType"]
)
def test_a_number_beyond_all_bounds_is_never_taken_for_a_word(name: str, number: str) -> None:
    """It is kept for people, as an object: of no type that any field has."""
    raw = json.dumps({"DocumentIncarnation": 1, "Events": [event(**{name: "here"})]}).replace('"here"', number)
    found = parse_document(raw.encode())
    if name == "EventId":
        assert [bad.fault for bad in found.rejected] == ["mistyped-event-id"]
        return
    assert name in found.events[0].faults
    assert found.events[0].raw[name] == {"number": number}


def test_floats_beyond_all_bounds_can_be_published() -> None:
    """1e999 is a number in JSON and infinite in Python, which no JSON can carry on."""
    raw = body(1, event()).replace(b'"DurationInSeconds": -1', b'"DurationInSeconds": 1e999')
    (found,) = parse_document(raw).events
    assert found.duration is None
    assert json.dumps(found.raw, allow_nan=False)


@pytest.mark.parametrize("value", [-1, 0, 9, 2**63 - 1, -(2**63)])
def test_a_duration_that_is_an_integer_is_taken(value: int) -> None:
    """Also -1, which means "not known" and is no fault."""
    assert one(DurationInSeconds=value).duration == value


def test_fields_that_older_versions_lack_are_no_faults() -> None:
    """Description, EventSource and DurationInSeconds came later than the first api-version."""
    found = one(Description=..., EventSource=..., DurationInSeconds=...)
    assert (found.description, found.source, found.duration, found.faults) == (None, None, None, ())


def test_fields_that_every_version_has_are_missed() -> None:
    """Their absence is named."""
    found = one(EventType=..., Resources=..., NotBefore=..., EventStatus=...)
    assert found.faults == ("EventStatus", "EventType", "NotBefore", "Resources")


def test_unknown_words_are_named_and_kept() -> None:
    """Azure may add words: they are passed on, counted and never acted on. A missing field is no word."""
    found = one(EventType="Hibernate", EventStatus="Paused", EventSource="Robot", ResourceType="Disk", NotBefore="")
    assert unknown_words(found) == ("EventType", "EventStatus", "EventSource", "ResourceType")
    assert found.event_type == "Hibernate"
    assert unknown_words(one(EventSource=..., ResourceType=...)) == ()


# -- times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mon, 11 Apr 2022 22:26:58 GMT", datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)),
        ("Sun, 11 Apr 2022 22:26:58 GMT", datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)),
        ("Monday, 11 Apr 2022 22:26:58 GMT", datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)),
        ("11 Apr 2022 22:26:58 GMT", datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)),
        ("Fri, 1 Apr 2022 22:26:58 UTC", datetime(2022, 4, 1, 22, 26, 58, tzinfo=UTC)),
        ("Fri, 01 apr 2022 22:26:58 +0200", datetime(2022, 4, 1, 20, 26, 58, tzinfo=UTC)),
        ("Fri, 01 Apr 2022 22:26:58 -0000", datetime(2022, 4, 1, 22, 26, 58, tzinfo=UTC)),
        ("Mon, 01 Jan 0001 00:00:00 GMT", datetime(1, 1, 1, tzinfo=UTC)),
        (" 2022-04-11T22:26:58Z ", datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)),
        ("2022-04-11T22:26:58", datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)),
        ("2022-04-11 22:26:58Z", datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)),
        ("2022-04-11T22:26:58.5Z", datetime(2022, 4, 11, 22, 26, 58, 500_000, tzinfo=UTC)),
        ("2022-04-11T22:26:58.1234567Z", datetime(2022, 4, 11, 22, 26, 58, 123_456, tzinfo=UTC)),
        ("2022-04-11T22:26:58.123456789+02:00", datetime(2022, 4, 11, 20, 26, 58, 123_456, tzinfo=UTC)),
        ("2022-04-11T22:26:58-0130", datetime(2022, 4, 11, 23, 56, 58, tzinfo=UTC)),
    ],
)
def test_times_are_read_as_documented_and_as_newer_pages_show_them(text: str, expected: datetime) -> None:
    """RFC 1123 with whatever weekday, ISO 8601 with whatever fraction; always an instant in UTC."""
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soon",
        "null",
        "1649716018",
        "Mon, 11 Apr 2022",
        "Mon, 11 Apr 2022 22:26:58",
        "Mon, 11 Apr 22 22:26:58 GMT",
        "Mon, 31 Feb 2022 22:26:58 GMT",
        "Mon, 11 Foo 2022 22:26:58 GMT",
        "Mon, 11 Apr 2022 24:00:00 GMT",
        "Mon, 11 Apr 2022 22:26:60 GMT",
        "Mon, 11 Apr 0000 22:26:58 GMT",
        "Mon, 11 Apr 2022 22:26:58 PST",
        "Mon, 11 Apr 2022 22:26:58 +2400",
        "Mon, 11 Apr 2022 22:26:58 +0160",
        "Mon, 11 Apr 2022 22:26:58 GMT, or later",
        "Mon, 11 Apr ٢٠٢٢ 22:26:58 GMT",
        "Fri, 31 Dec 9999 23:59:59 -0100",
        "2022-04-11",
        "2022-04-11T22:26Z",
        "2022-04-11T22:26:58,5Z",
        "2022-04-11T22:26:58.Z",
        "2022-04-11T22:26:58.1234567890Z",
        "2022-04-11T22:26:58+24:00",
        "2022-04-11T22:26:58+01:60",
        "2022-13-11T22:26:58Z",
        "0000-04-11T22:26:58Z",
        "0001-01-01T00:00:00+14:00",
        "٢٠٢٢-04-11T22:26:58Z",
        "2022-04-11T22:26:58Z" * 50_000,
    ],
)
def test_what_is_no_time_is_none(text: str) -> None:
    """Garbage is never taken for a time, and never raises."""
    assert parse_time(text) is None


def test_not_before_may_be_empty_only_once_started() -> None:
    """Empty is how the service says "it has started"; a Scheduled event without a time is malformed."""
    assert one(EventStatus="Started", NotBefore="").faults == ()
    assert one(NotBefore="").faults == ("NotBefore",)
    assert one(EventStatus="Paused", NotBefore="").faults == ("NotBefore",)
    assert one(NotBefore=" ").faulty
    assert one(NotBefore=None).faulty
    assert one(NotBefore=1763726400).faulty


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))  # noqa: DTZ001  # Hypothesis wants naive bounds
def test_every_instant_survives_both_spellings(moment: datetime) -> None:
    """What a server writes in either format is read as the same instant."""
    moment = moment.replace(tzinfo=UTC)
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    rfc = f"Mon, {moment.day:02} {months[moment.month - 1]} {moment.year:04} {moment:%H:%M:%S} GMT"
    assert parse_time(rfc) == moment.replace(microsecond=0)
    assert parse_time(moment.isoformat()) == moment


@given(st.text(max_size=60))
def test_no_text_makes_the_reading_of_times_raise(text: str) -> None:
    """It answers an aware instant or None."""
    found = parse_time(text)
    assert found is None or found.tzinfo is UTC


# -- encodable


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON)
def test_what_is_encodable_can_be_encoded_and_stays_so(value: Any) -> None:
    """UTF-8 takes it, NUL is not in it, and doing it twice changes nothing."""
    safe = encodable(value)
    assert b"\0" not in json.dumps(safe, ensure_ascii=False).encode()
    assert encodable(safe) == safe


def test_deep_nesting_in_an_event_is_cut_and_the_event_kept() -> None:
    """A description nobody can draw does not cost us the event."""
    deep = json.loads("[" * 200 + "]" * 200)
    found = one(More=deep)
    assert found.faults == ()
    assert "…" in json.dumps(found.raw, ensure_ascii=False)


def test_lone_surrogates_never_come_through() -> None:
    """They pass JSON and poison everything after it: SQLite, protobuf, UTF-8."""
    odd: dict[str, Any] = {"\udfff": ["\ud800"]}
    found = parsed(event(Description="a\ud800b", **odd), {"EventId": "\ud800"})
    for raw in (found.events[0].raw, found.rejected[0].raw):
        json.dumps(raw, ensure_ascii=False).encode()
    assert found.events[0].description is None


# -- anything at all


FIELDS = ("EventId", "EventType", "ResourceType", "Resources", "EventStatus", "NotBefore", "DurationInSeconds", "More")


@given(st.lists(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["a", "A"])), max_size=6))
def test_a_document_of_anything_is_read_without_a_loss(items: list[Any]) -> None:
    """Each element is either an event or a rejection, no two events share an id, and all of it can be encoded."""
    found = parse_document(body(1, *items))
    assert len(found.events) + len(found.rejected) == len(items)
    assert len({good.key for good in found.events}) == len(found.events)
    for raw in [*(good.raw for good in found.events), *(bad.raw for bad in found.rejected)]:
        json.dumps(raw, ensure_ascii=False, allow_nan=False).encode()


@given(st.binary(max_size=200))
def test_bytes_of_anything_are_a_document_or_a_document_error(raw: bytes) -> None:
    """Nothing else ever comes out of the parser."""
    assert outcome(raw) in ("read", *DOCUMENT_REASONS)


@given(st.binary(max_size=3), st.integers(0, 500), st.integers(0, 500))
def test_a_damaged_document_is_a_document_or_a_document_error(junk: bytes, start: int, length: int) -> None:
    """A good body with a piece replaced: the neighbourhood of what is really sent."""
    good = body(4, event(), started("b", Resources=["vm-1"]))
    assert outcome(good[:start] + junk + good[start + length :]) in ("read", *DOCUMENT_REASONS)


# -- size


def filled(item: bytes) -> bytes:
    head = b'{"DocumentIncarnation":1,"Events":['
    return head + b",".join([item] * ((4 * MIB - len(head) - 2) // (len(item) + 1))) + b"]}"


@pytest.mark.parametrize(
    "raw",
    [
        filled(b"{}"),
        filled(b"0"),
        filled(b'{"EventId":"x"}'),
        filled(b'"\\ud800"'),
        filled(b'{"EventId":"x","a":' + b"[" * 500 + b"]" * 500 + b"}"),
        b'{"DocumentIncarnation":1,"Events":['
        + b",".join(b'{"EventId":"%d"}' % number for number in range(200_000))
        + b"]}",
        b"[" * 4 * MIB,
        b'{"DocumentIncarnation":' + b"9" * 4 * MIB + b',"Events":[]}',
        b"{" + b'"a":1,' * (4 * MIB // 6) + b'"DocumentIncarnation":1,"Events":[]}',
    ],
    ids=["objects", "numbers", "one-id", "surrogates", "nested", "many-ids", "deep", "digits", "keys"],
)
def test_four_mebibytes_of_nonsense_cost_a_moment(raw: bytes) -> None:
    """The largest body costs at most fifty times what the bare JSON of one costs: cost grows with its length alone."""
    began = time.process_time()
    json.loads(filled(b"{}"))
    bare = time.process_time() - began
    try:
        found = parse_document(raw)
    except DocumentError:
        found = None
    assert time.process_time() - began - bare < 50 * bare
    if found is not None:
        assert len(found.events) <= MAX_EVENTS
        assert len(found.rejected) <= MAX_REJECTED


def test_what_is_over_the_cap_is_said_and_counts_as_not_quiet() -> None:
    """A Started event behind a flood of rubbish must not look like silence."""
    found = parsed(*[0] * (MAX_REJECTED + 5), {"EventStatus": "Started"})
    assert len(found.rejected) == MAX_REJECTED
    assert (found.rejected[-1].fault, found.rejected[-1].status) == ("too-many-rejected", None)
    many = parsed(*(event(str(number), NotBefore=NOT_BEFORE) for number in range(MAX_EVENTS + 1)))
    assert len(many.events) == MAX_EVENTS
    assert [bad.fault for bad in many.rejected] == ["too-many-events"]
