"""The parser with random input: its results can be published, and its cost is bounded."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.core.document import DOCUMENT_REASONS, MAX_EVENTS, MAX_REJECTED, Document, DocumentError, parse_document
from exporter.core.strict_json import encodable
from tests.support.core_documents import NOT_BEFORE, body, event, one, outcome, parsed, started

MIB = 2**20


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
def test_encodable_result_is_valid_and_stable(value: Any) -> None:
    """The result is valid UTF-8 without NUL; a second pass doesn't change it."""
    safe = encodable(value)
    assert b"\0" not in json.dumps(safe, ensure_ascii=False).encode()
    assert encodable(safe) == safe


def test_deep_nesting_in_an_event_is_cut() -> None:
    """The event itself is kept."""
    deep = json.loads("[" * 200 + "]" * 200)
    found = one(More=deep)
    assert found.faults == ()
    assert "…" in json.dumps(found.raw, ensure_ascii=False)


def test_lone_surrogates_are_always_replaced() -> None:
    """JSON accepts them, but SQLite, protobuf, and UTF-8 don't."""
    odd: dict[str, Any] = {"\udfff": ["\ud800"]}
    found = parsed(event(Description="a\ud800b", **odd), {"EventId": "\ud800"})
    for raw in (found.events[0].raw, found.rejected[0].raw):
        json.dumps(raw, ensure_ascii=False).encode()
    assert found.events[0].description is None


# -- random input


FIELDS = ("EventId", "EventType", "ResourceType", "Resources", "EventStatus", "NotBefore", "DurationInSeconds", "More")


@given(st.lists(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["a", "A"])), max_size=6))
def test_random_document_is_read_completely(items: list[Any]) -> None:
    """Each element becomes an event or a rejection, no two events share an id, and all can be encoded."""
    found = parse_document(body(1, *items))
    assert len(found.events) + len(found.rejected) == len(items)
    assert len({good.key for good in found.events}) == len(found.events)
    for raw in [*(good.raw for good in found.events), *(bad.raw for bad in found.rejected)]:
        json.dumps(raw, ensure_ascii=False, allow_nan=False).encode()


@given(st.binary(max_size=200))
def test_random_bytes_are_a_document_or_a_document_error(raw: bytes) -> None:
    """The parser raises no other exception."""
    assert outcome(raw) in ("read", *DOCUMENT_REASONS)


@given(st.binary(max_size=3), st.integers(0, 500), st.integers(0, 500))
def test_damaged_document_is_a_document_or_a_document_error(junk: bytes, start: int, length: int) -> None:
    """A valid body with one part replaced."""
    good = body(4, event(), started("b", Resources=["vm-1"]))
    assert outcome(good[:start] + junk + good[start + length :]) in ("read", *DOCUMENT_REASONS)


# -- size


def filled(item: bytes) -> bytes:
    head = b'{"DocumentIncarnation":1,"Events":['
    return head + b",".join([item] * ((MIB - len(head) - 2) // (len(item) + 1))) + b"]}"


@pytest.mark.parametrize(
    "raw",
    [
        filled(b"{}"),
        filled(b"0"),
        filled(b'{"EventId":"x"}'),
        filled(b'"\\ud800"'),
        filled(b'{"EventId":"x","a":' + b"[" * 500 + b"]" * 500 + b"}"),
        b'{"DocumentIncarnation":1,"Events":['
        + b",".join(b'{"EventId":"%d"}' % number for number in range(50_000))
        + b"]}",
        b"[" * MIB,
        b'{"DocumentIncarnation":' + b"9" * MIB + b',"Events":[]}',
        b"{" + b'"a":1,' * (MIB // 6) + b'"DocumentIncarnation":1,"Events":[]}',
    ],
    ids=["objects", "numbers", "one-id", "surrogates", "nested", "many-ids", "deep", "digits", "keys"],
)
def test_parsing_time_of_hostile_bodies_is_bounded(raw: bytes) -> None:
    """At most fifty times the CPU time to parse plain JSON of the same length, in the best of three runs."""
    found: Document | None = None

    def ratio() -> float:
        nonlocal found
        began = time.process_time()
        json.loads(filled(b"{}"))
        plain = time.process_time()
        with contextlib.suppress(DocumentError):
            found = parse_document(raw)
        return (time.process_time() - plain) / (plain - began)

    assert min(ratio() for _ in range(3)) < 50
    if found is not None:
        assert len(found.events) <= MAX_EVENTS
        assert len(found.rejected) <= MAX_REJECTED


def test_rejections_beyond_the_limit_are_counted_as_not_quiet() -> None:
    """A Started event after many invalid elements must not look quiet."""
    found = parsed(*[0] * (MAX_REJECTED + 5), {"EventStatus": "Started"})
    assert len(found.rejected) == MAX_REJECTED
    assert (found.rejected[-1].fault, found.rejected[-1].status) == ("too-many-rejected", None)
    many = parsed(*(event(str(number), NotBefore=NOT_BEFORE) for number in range(MAX_EVENTS + 1)))
    assert len(many.events) == MAX_EVENTS
    assert [bad.fault for bad in many.rejected] == ["too-many-events"]
