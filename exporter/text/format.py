"""Durations, instants, sizes, counts and text from outside in words for a person.

The one place that formats them: the page, the timeline, the commands and the settings all use these functions.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from exporter.core.state import Instant
from exporter.text.terminal import visible

NO_BREAK_SPACE: Final = "\u00a0"
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
TENTHS_BELOW: Final = 10.0


def span(seconds: float) -> str:
    """A length of time with its two greatest units: `4.2 s`, `14 min 30 s`, `3 d 4 h`. A unit stays with its number:
    between the two stands a space that does not break (`clean` makes plain ones of them)."""
    if seconds < TENTHS_BELOW and seconds != int(seconds):
        return f"{seconds:.1f}\u00a0s"
    whole = int(seconds)
    for size, name, rest_size, rest_name in (
        (DAY, "d", HOUR, "h"),
        (HOUR, "h", MINUTE, "min"),
        (MINUTE, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // rest_size
            return f"{whole // size}\u00a0{name}" + (f" {rest}\u00a0{rest_name}" if rest else "")
    return f"{whole}\u00a0s"


def distance(instant: datetime, now: datetime) -> str:
    """How far away an instant of the wall clock is: `in 14 min 30 s` or `3 min ago`."""
    away = instant - now
    if abs(away) < timedelta(seconds=1):
        return "now"
    return f"in {span(away.total_seconds())}" if away > timedelta() else f"{span(-away.total_seconds())} ago"


def ago(then: Instant, now: Instant) -> str:
    """How long ago something was, which is never said to come."""
    seconds = now.since(then)
    if seconds is None:
        return "the clock was set back since"
    return "now" if seconds < 1 else f"{span(seconds)} ago"


def moment(instant: datetime) -> str:
    """An instant in UTC, to the second: `2026-03-02 09:00:20Z`."""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def size(count: int) -> str:
    """Bytes, in KiB or MiB without decimals."""
    return f"{count / 2**10:.0f}\u00a0KiB" if count < 2**20 else f"{count / 2**20:.0f}\u00a0MiB"


def counted(count: int, singular: str) -> str:
    """A number with its noun, whose plural is made with an s: `1 record`, `2 records`."""
    return f"{count} {singular}{'s' * (count != 1)}"


def clean(value: object, limit: int) -> str:
    """The value's text on one line, without characters that a terminal acts on, at most `limit` characters of it."""
    text = str(value)
    cut = text[: limit + 1].replace(NO_BREAK_SPACE, " ")
    shown = "".join(char if visible(char) else _escape(char) for char in cut[:limit])
    return shown + "..." if len(cut) > limit else shown


def _escape(char: str) -> str:
    return " " if char in "\r\n\t" else char.encode("unicode_escape").decode("ascii")
