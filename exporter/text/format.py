"""What a record may hold, in words for a person, whoever wrote it.

Nothing in a record is trusted: what is mistyped is left out, and no control character or escape sequence of a
stranger's reaches the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from exporter.core.strict_json import INT_LIMIT
from exporter.text import sentences as page_words
from exporter.text.terminal import visible

SHORT_ID: Final = 8
LONGEST_WORD: Final = 64
LONGEST_SENTENCE: Final = 400
LONGEST_LIST: Final = 20
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def moment(when: datetime) -> str:
    """An instant in UTC, to the second."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float) -> str:
    """A length of time as the page says it, with plain spaces."""
    return clean(page_words.span(min(seconds, float(INT_LIMIT))), LONGEST_WORD)


def short_id(subject: str) -> str:
    """What tells an event from its neighbours: the first part of a UUID, and anything else as far as it fits."""
    text = clean(subject, LONGEST_WORD)
    return text[:SHORT_ID] if _UUID.fullmatch(text) or len(text) > 2 * SHORT_ID else text


def clean(value: object, limit: int) -> str:
    """On one line, without control characters, and no longer than `limit`."""
    text = str(value)
    cut = text[: limit + 1].replace("\u00a0", " ")
    shown = "".join(ch if visible(ch) else _escape(ch) for ch in cut[:limit])
    return shown + "..." if len(cut) > limit else shown


def _escape(ch: str) -> str:
    return " " if ch in "\r\n\t" else ch.encode("unicode_escape").decode("ascii")


def pad(text: str, width: int) -> str:
    """The text, as wide as its column."""
    return f"{clean(text, LONGEST_WORD):<{width}} "


def moment_of(text: str | None) -> str:
    """The instant that a record tells as text; what is none is shown as it stands."""
    if not text:
        return page_words.UNKNOWN
    try:
        return moment(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return text


def brief(value: object) -> str:
    """A field of an event, or what a restart tells, in a few words."""
    if isinstance(value, list):
        return clean(", ".join(map(str, value[:LONGEST_LIST])), LONGEST_SENTENCE) or "none"
    return "none" if value in (None, "") else clean(value, LONGEST_SENTENCE)


def mapping_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def word_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def number_of(value: object) -> float | None:
    """The number, None for anything else and for what no output could carry."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < INT_LIMIT:
        return None
    return value
