"""The forms in which people keep documents: with the time beside them, or one after the other from a loop of `curl`.

The recorder's own lines are read in `inputs`. A document's text is passed on unchanged, so that whatever the agent
would refuse is refused here too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from exporter.commands.replay.entries import MAX_BODY, Reading, Unreadable, of_this_age, read_time
from exporter.core.timestamps import parse_time

TIMES: Final = ("time", "timestamp", "@timestamp", "ts", "date", "at", "read_at", "observed_at", "fetched_at")
HOLDERS: Final = ("document", "body", "doc", "data", "response", "payload")
DOCUMENT: Final = frozenset({"DocumentIncarnation", "Events"})
_MILLISECONDS: Final = 1e11  # as seconds this would be the year 5138
_NUMBER: Final = re.compile(r"\d{9,17}(?:\.\d{1,9})?", re.ASCII)
_BETWEEN: Final = re.compile(r"[\s,\x1e]*")
_SPACE: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()


def kept(parsed: dict[str, Any], text: bytes, where: str) -> Reading | Unreadable | None:
    """The document in a line such as {"time": …, "document": {…}} or {"time": …, "Events": […], …}; None: no such line.

    The document may be an object or its JSON text; the time RFC 3339, RFC 1123 or seconds or milliseconds since 1970.
    """
    given = next((parsed[name] for name in TIMES if name in parsed), None)
    at = when(given)
    if parsed.keys() >= DOCUMENT:
        return Reading(at, text, where)
    holder = next((name for name in HOLDERS if _is_document(parsed.get(name))), None)
    if holder is None:
        return None
    if given is not None and at is None:
        return Unreadable(where, "its time can't be read")
    inner = parsed[holder]
    return Reading(at, inner.encode("utf-8", "replace") if isinstance(inner, str) else _member(text, holder), where)


def _is_document(value: Any) -> bool:
    if isinstance(value, dict):
        return not DOCUMENT.isdisjoint(value)
    return isinstance(value, str) and value.lstrip().startswith("{")


def when(value: object) -> datetime | None:
    """The instant in a time that people write, in UTC; None when it can't be read."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            seconds = float(value)
            seconds = seconds / 1000 if seconds >= _MILLISECONDS else seconds
            return of_this_age(datetime.fromtimestamp(seconds, UTC)) if math.isfinite(seconds) else None
        except (ValueError, OverflowError, OSError):
            return None
    if not isinstance(value, str):
        return None
    return read_time(value) or of_this_age(parse_time(value))


def _member(text: bytes, wanted: str) -> bytes:
    """The text of an object's member, unchanged. The object is well-formed; of repeated members the last one counts."""
    whole = text.decode(json.detect_encoding(text), "surrogatepass")  # as `json.loads` does
    position, member = _after(whole, whole.index("{") + 1), ""
    while whole[position] != "}":
        name, position = _DECODER.raw_decode(whole, position)
        begin = _after(whole, _after(whole, position) + 1)
        _, position = _DECODER.raw_decode(whole, begin)
        member = whole[begin:position] if name == wanted else member
        position = _after(whole, position)
        if whole[position] == ",":
            position = _after(whole, position + 1)
    return member.encode("utf-8", "surrogatepass")


def _after(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def several(content: bytes) -> Iterator[bytes]:
    """The texts of two or more JSON objects in a row, whatever their lines; nothing for fewer.

    The rest after the last whole object comes last.
    """
    text = content.decode("utf-8-sig", "surrogateescape")
    parts: list[str] = []
    position, end = _start(text, 0), len(text)
    while position < end and text[position] == "{":
        try:
            _, after = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        parts.append(text[position:after])
        position = _start(text, after)
    if len(parts) > 1:
        rest = [text[position : position + MAX_BODY]] if position < end else []
        yield from (part.encode("utf-8", "surrogateescape") for part in parts + rest)


def _start(text: str, position: int) -> int:
    match = _BETWEEN.match(text, position)
    return match.end() if match else position
