"""Hours of a rule compared with a slow reading, minute by minute, in zones with unusual clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exporter.core.hours import Hours
from tests.support import oracle
from tests.support.approval_case import hours
from tests.support.effort import examples

MINUTE = timedelta(minutes=1)
BEGIN, END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
STRANGE = {
    "UTC": ("2026-12-31T23:59", "2028-02-29T00:00"),
    "Europe/Berlin": ("2026-03-29T01:00", "2026-10-25T01:00", "2027-01-01T00:00"),
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    "Asia/Kathmandu": ("2026-12-31T18:15",),  # UTC+05:45
    "Australia/Lord_Howe": ("2026-04-04T15:00", "2026-10-03T15:30"),  # a change of half an hour
    "Antarctica/Troll": ("2026-03-29T01:00", "2026-10-25T01:00"),  # a change of two hours
    "Africa/Casablanca": ("2026-02-15T02:00", "2026-03-22T02:00"),  # standard time during Ramadan
    "America/Sao_Paulo": ("2018-02-18T02:00", "2018-11-04T03:00"),  # at midnight
    "America/Havana": ("2026-03-08T05:00", "2026-11-01T05:00"),  # at midnight, and to midnight
    "America/St_Johns": ("2010-03-14T03:31", "2010-11-07T02:31"),  # at a minute past midnight
    "Asia/Beirut": ("2026-03-28T22:00", "2026-10-24T21:00"),
    "Pacific/Apia": ("2011-12-30T10:00",),  # without a Friday
    "Pacific/Kwajalein": ("1993-08-21T12:00",),  # without a Saturday
    "Pacific/Chatham": ("2026-04-04T14:00", "2026-09-26T14:00"),
}
"""Zones, and moments (UTC) at which their clocks change."""
SECONDS = st.integers(-4 * 86400, 4 * 86400) | st.integers(-10_000, 10_000) | st.just(0)
NOWS = st.one_of(
    st.sampled_from([(zone, moment) for zone, moments in STRANGE.items() for moment in moments]).flatmap(
        lambda given: st.tuples(
            st.just(given[0]), SECONDS.map(lambda far: utc(given[1]) + timedelta(seconds=far, microseconds=far % 3))
        )
    ),
    st.tuples(
        st.sampled_from([*STRANGE]),
        st.integers(0, 42 * 365 * 86400).map(lambda seconds: utc("1995-01-01") + timedelta(seconds=seconds)),
    ),
)
CLOCKS = [f"{hour:02}:{minute:02}" for hour in range(24) for minute in (0, 1, 15, 30, 59)]
WINDOWS = st.tuples(st.sampled_from(CLOCKS), st.sampled_from([*CLOCKS, "24:00"])).filter(
    lambda window: window[0] != window[1]
) | st.sampled_from(
    [("00:00", "24:00"), ("22:00", "05:00"), ("02:15", "02:45"), ("23:30", "00:30"), ("02:30", "02:29")]
)
WEEKS = st.lists(st.sampled_from(oracle.WEEK), min_size=1, unique=True)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@settings(max_examples=examples(400))
@given(NOWS, WINDOWS, WEEKS)
@example(("Pacific/Apia", utc("2011-12-30T12:00")), ("22:00", "05:00"), ["Thu"])
@example(("Pacific/Apia", utc("2011-12-30T12:00")), ("22:00", "05:00"), ["Fri"])
def test_within_agrees_with_a_slow_reading(
    place: tuple[str, datetime], window: tuple[str, str], days: list[str]
) -> None:
    """Every day, in every zone, with every change of clocks."""
    zone, now = place
    found = hours("-".join(window), *days, timezone=zone).within(now)
    assert found == oracle.open_at(now, "-".join(window), days, zone)


@settings(max_examples=examples(200), deadline=None)
@given(NOWS, WINDOWS, WEEKS)
@example(("Pacific/Apia", utc("2011-12-26T12:00")), ("22:00", "05:00"), ["Fri"])
@example(("Pacific/Apia", utc("2011-12-24T12:00")), ("08:00", "12:00"), ["Fri"])
@example(("Europe/Berlin", utc("2026-10-25T00:00")), ("02:30", "04:00"), ["Sun"])
def test_next_change_is_the_first_minute_with_another_result(
    place: tuple[str, datetime], window: tuple[str, str], days: list[str]
) -> None:
    """Compared with checking each minute until then."""
    zone, now = place
    asked = hours("-".join(window), *days, timezone=zone)
    before, change = asked.within(now), asked.next_change(now)
    minute = now.replace(second=0, microsecond=0) + MINUTE
    last = change or now + timedelta(days=15)
    while minute < last:
        assert asked.within(minute) is before, minute
        minute += MINUTE
    if change is not None:
        assert change > now
        assert change.second == 0
        assert asked.within(change) is not before
    else:
        assert (window, len(days)) == (("00:00", "24:00"), 7)


@pytest.mark.parametrize(
    ("window", "day", "within"),
    [
        # Clocks go from 02:00 to 03:00 at 01:00 UTC.
        ("02:15-02:45", "2026-03-29", ""),
        ("02:30-03:30", "2026-03-29", "01:00-01:30"),
        ("01:30-02:30", "2026-03-29", "00:30-01:00"),
        # Clocks go from 03:00 back to 02:00 at 01:00 UTC.
        ("02:15-02:45", "2026-10-25", "00:15-00:45 01:15-01:45"),
        ("02:30-04:00", "2026-10-25", "00:30-01:00 01:30-03:00"),
        ("01:00-02:30", "2026-10-25", "23:00-00:30 01:00-01:30"),
        ("22:00-05:00", "2026-10-25", "20:00-04:00"),
    ],
)
def test_daylight_saving_skips_shortens_and_repeats_windows(window: str, day: str, within: str) -> None:
    """Both days in Berlin, in UTC."""
    asked = hours(window, timezone="Europe/Berlin")
    noon = utc(day) + timedelta(hours=12)
    minute, spans = noon - timedelta(hours=18), []
    inside = asked.within(minute)
    assert not inside
    while (edge := asked.next_change(minute)) is not None and edge < noon:
        spans.append(f"{edge:%H:%M}")
        minute = edge
    assert " ".join(f"{begin}-{end}" for begin, end in zip(spans[::2], spans[1::2], strict=True)) == within


def test_instants_at_the_ends_of_the_calendar_are_outside_all_hours() -> None:
    """A clock may show any year; without a local time, no hours apply."""
    for zone in STRANGE:
        for window in ("22:00-05:00", "05:00-22:00", "00:00-24:00"):
            asked = hours(window, timezone=zone)
            for now in (BEGIN, END):
                if asked.local(now) is None:
                    assert not asked.within(now)
                asked.next_change(now)
    ahead, behind = hours(timezone="Asia/Tokyo"), hours(timezone="America/New_York")
    assert not ahead.within(END - timedelta(hours=1))
    assert not behind.within(BEGIN)


def test_hours_are_hashable_values() -> None:
    """Hours from the same texts are equal and are one key."""
    one, other = (
        hours("22:00-05:00", "Sat", timezone="Europe/Berlin"),
        hours("22:00-05:00", "Sat", timezone="Europe/Berlin"),
    )
    assert one == other
    assert len({one, other}) == 1
    assert one.between == "22:00-05:00"
    assert Hours(0, 60, (5,), "Europe/Berlin", ZoneInfo("Europe/Berlin")) != Hours(0, 60, (5,))
