"""Human-readable durations, instants, sizes, and counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.text.format import ago, clean, counted, format_duration, moment, parse_duration, size, span
from exporter.text.timeline import announced_duration
from tests.support.statuses import NOON


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0.4 s"),
        (5, "5 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (870, "14 min 30 s"),
        (3600, "1 h"),
        (90_061, "1 d 1 h"),
        (604_800, "7 d"),
    ],
)
def test_span_has_at_most_two_units(seconds: float, text: str) -> None:
    """The two largest units; tenths only below ten seconds."""
    assert plain(span(seconds)) == text


def test_age_is_never_in_the_future() -> None:
    """None means that the clock was set back."""
    assert plain(ago(180)) == "3 min ago"
    assert ago(0) == "just now"
    assert ago(None) == "the clock was set back since"


def test_announced_duration_is_a_span() -> None:
    """-1 means that Azure announced no duration."""
    assert [plain(announced_duration(value)) for value in (None, -1, 0, 9)] == [
        "not known",
        "not known",
        "none",
        "9 s",
    ]


def test_instants_sizes_and_counts_have_their_units() -> None:
    """UTC to the second, KiB or MiB, and the plural of a noun."""
    assert moment(NOON) == "2025-11-21 12:00:00Z"
    assert [plain(size(count)) for count in (0, 45_056, 104_857_600)] == ["0 KiB", "44 KiB", "100 MiB"]
    assert [counted(count, "record") for count in (0, 1, 2)] == ["0 records", "1 record", "2 records"]


@pytest.mark.parametrize(("text", "limit", "shown"), [("abc", 3, "abc"), ("abcd", 3, "abc..."), ("a\u00a0b", 9, "a b")])
def test_clean_text_is_bounded(text: str, limit: int, shown: str) -> None:
    """Truncation is visible; a no-break space becomes a space."""
    assert clean(text, limit) == shown


@given(st.integers(min_value=0, max_value=10**15))
def test_durations_round_trip(milliseconds: int) -> None:
    """A formatted duration is parsed as the same duration."""
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("100ms", 0.1), ("1s", 1.0), ("1m30s", 90.0), ("2h", 7200.0), ("1d", 86400.0), ("1w", 604800.0), ("0", 0.0)],
)
def test_durations_have_prometheus_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "1.5s", "-1s", "1s1m", "1 s", "s", "1S", "١s", "9" * 5000 + "s", "1s\n"])
def test_invalid_durations_are_rejected(text: str) -> None:
    """Numbers without a unit, fractions, signs, and units in the wrong order."""
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)
