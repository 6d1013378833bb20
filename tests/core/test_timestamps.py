"""The times of a document, in the documented and in newer formats."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.core.document import parse_time
from tests.support.core_documents import one

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
def test_documented_and_newer_times_are_read(text: str, expected: datetime) -> None:
    """RFC 1123 with any weekday, ISO 8601 with any fraction; always an instant in UTC."""
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
def test_invalid_time_is_none(text: str) -> None:
    """It never raises."""
    assert parse_time(text) is None


def test_not_before_may_be_empty_only_once_started() -> None:
    """Azure documents an empty value for started events; a Scheduled event without a time is malformed."""
    assert one(EventStatus="Started", NotBefore="").faults == ()
    assert one(NotBefore="").faults == ("NotBefore",)
    assert one(EventStatus="Paused", NotBefore="").faults == ("NotBefore",)
    assert one(NotBefore=" ").faulty
    assert one(NotBefore=None).faulty
    assert one(NotBefore=1763726400).faulty


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))  # noqa: DTZ001  # Hypothesis wants naive bounds
def test_every_instant_round_trips_in_both_formats(moment: datetime) -> None:
    moment = moment.replace(tzinfo=UTC)
    months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
    rfc = f"Mon, {moment.day:02} {months[moment.month - 1]} {moment.year:04} {moment:%H:%M:%S} GMT"
    assert parse_time(rfc) == moment.replace(microsecond=0)
    assert parse_time(moment.isoformat()) == moment


@given(st.text(max_size=60))
def test_random_text_never_makes_parse_time_raise(text: str) -> None:
    """It returns an aware instant or None."""
    found = parse_time(text)
    assert found is None or found.tzinfo is UTC
