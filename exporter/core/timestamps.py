"""The times that the metadata service writes, as instants.

Parsed here, since the standard library's parser of mail dates reads the year 0099 as 1999 and accepts digits of any
script.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d{2}):(?P<minute>\d{2}):(?P<second>\d{2})"
_RFC1123 = re.compile(
    r"(?:[A-Za-z]{3,9}, )?(?P<day>\d{1,2}) (?P<month>[A-Za-z]{3}) (?P<year>\d{4}) "
    rf"{_CLOCK} (?P<zone>GMT|UTC|[+-]\d{{4}})",
    re.ASCII,
)
# .NET writes seven digits of a second: those below a microsecond are ignored.
_ISO8601 = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})[T ]"
    rf"{_CLOCK}(?:\.(?P<fraction>\d{{1,9}}))?(?P<zone>Z|[+-]\d{{2}}:?\d{{2}})?",
    re.ASCII,
)
_LONGEST_TIME = 64


def parse_time(text: str) -> datetime | None:
    """An instant in UTC, from RFC 1123 as documented or ISO 8601 as newer pages and mock servers show; None otherwise.

    A wrong weekday is accepted: the documentation's own examples have some. ISO 8601 without a zone is UTC, as all
    times of this service are.
    """
    text = text.strip() if len(text) <= _LONGEST_TIME else ""
    match = _RFC1123.fullmatch(text) or _ISO8601.fullmatch(text)
    if match is None:
        return None
    try:
        return _instant(match.groupdict())
    except (ValueError, OverflowError):
        return None


def _instant(parts: dict[str, str | None]) -> datetime:
    """The instant of these parts, all set but `fraction` and `zone`. Raises ValueError or OverflowError."""
    names = ("year", "day", "hour", "minute", "second")
    year, day, hour, minute, second = (int(parts[name] or "") for name in names)
    word = (parts["month"] or "").lower()
    month = int(word) if word.isdigit() else _MONTHS.index(word) + 1
    fraction = int((parts.get("fraction") or "")[:6].ljust(6, "0"))
    zone = _zone(parts["zone"] or "Z")
    return datetime(year, month, day, hour, minute, second, fraction, zone).astimezone(UTC)


def _zone(text: str) -> timezone:
    if text[0] not in "+-":
        return UTC
    digits = text[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if minutes >= 60:  # noqa: PLR2004  # minutes of an hour
        raise ValueError("no offset has so many minutes")
    return timezone(timedelta(hours=hours, minutes=minutes) * (-1 if text[0] == "-" else 1))
