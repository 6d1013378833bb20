"""Formats durations, instants, sizes, counts, and external text for the page, the timeline, commands, and settings.

A duration has two forms: `span` for a sentence, rounded down to its two largest units, and Prometheus' notation for a
setting or a scenario, which is exact (`parse_duration`, `format_duration`).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from exporter.text.terminal import printable

NO_BREAK_SPACE: Final = "\u00a0"
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
TENTHS_BELOW: Final = 10.0

_UNITS_MS: Final = (
    ("y", 31_536_000_000),
    ("w", 604_800_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
)
_DURATION: Final = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,12}}){unit})?" for unit, _ in _UNITS_MS))
_UNITS_BYTES: Final = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
"""Bytes of each unit, with SI and IEC prefixes [IEC 80000-13]. KB is a common spelling of kB."""
_SIZE: Final = re.compile(r"([0-9]{1,18}) ?([A-Za-z]{0,3})")


def span(seconds: float) -> str:
    """Return a duration with its two largest units: `4.2 s`, `14 min 30 s`, `3 d 4 h`.

    A no-break space separates number and unit; `clean` replaces it with a space.
    """
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


def parse_duration(text: str) -> float:
    """Return the seconds of a duration in Prometheus' notation: `100ms`, `1m30s`, `2h`, `0`. Raises ValueError."""
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise ValueError('expected a duration such as "100ms", "1s" or "1m30s"')
    milliseconds = sum(int(match[unit] or 0) * size for unit, size in _UNITS_MS)
    return milliseconds / 1000


def format_duration(seconds: float) -> str:
    """Return a duration in Prometheus' notation, to the millisecond; years and weeks only without a remainder."""
    left = round(seconds * 1000)
    if left == 0:
        return "0s"
    parts = []
    for unit, size in _UNITS_MS:
        if unit in ("y", "w") and left % size:
            continue
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def parse_size(text: str) -> int:
    """Return the bytes of a size: `100MB` (10^6 bytes each), `100MiB` (2^20 each), `104857600`. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _UNITS_BYTES:
        raise ValueError('expected a size such as "100MB" or "100MiB"')
    return int(match[1]) * _UNITS_BYTES[match[2]]


def format_size(count: int) -> str:
    """Return a size in the largest exact unit, as `parse_size` reads it; without a unit if none is exact."""
    for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB"):
        if count and count % _UNITS_BYTES[unit] == 0:
            return f"{count // _UNITS_BYTES[unit]}{unit}"
    return str(count)


def ago(seconds: float | None) -> str:
    """Return the age of something; None: unknown, because the clock was set back. Never a time in the future."""
    if seconds is None:
        return "the clock was set back since"
    return "just now" if seconds < 1 else f"{span(seconds)} ago"


def moment(instant: datetime) -> str:
    """Return an instant in UTC, to the second: `2026-03-02 09:00:20Z`."""
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def size(count: int) -> str:
    """Return bytes in KiB or MiB, without decimals."""
    return f"{count / 2**10:.0f}\u00a0KiB" if count < 2**20 else f"{count / 2**20:.0f}\u00a0MiB"


def counted(count: int, singular: str) -> str:
    """Return a number with a noun whose plural ends in s: `1 record`, `2 records`."""
    return f"{count} {singular}{'s' * (count != 1)}"


def clean(value: object, limit: int) -> str:
    """Return at most `limit` characters of the value's text, on one line, without control characters."""
    text = str(value)
    cut = text[: limit + 1].replace(NO_BREAK_SPACE, " ")
    shown = printable(re.sub(r"[\r\n\t]", " ", cut[:limit]))
    return shown + "..." if len(cut) > limit else shown
