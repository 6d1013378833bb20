"""The state as JSON text and back: what the outbox keeps. The dataclasses of the core are the only description."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from exporter.core.document import Document
from exporter.core.state import EMPTY, State, Tracked

STATE_VERSION: Final = 1
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class _Written:
    """A mapping of the state, its text, and the part of the text that each of its values makes."""

    values: Mapping[str, object]
    text: str
    parts: Mapping[str, tuple[object, str]]


class StateWriter:
    """Writes one state after another, and keeps the text of each history: from one to the next, few of them change.

    An agent that has run for long remembers hundreds of events that are over; writing them anew at each commit would
    take longer than all the rest of an approval.
    """

    def __init__(self) -> None:
        self._written = {name: _Written(EMPTY, "{}", {}) for name in ("tracked", "closed", "sent", "started_ids")}

    def text(self, state: State) -> str:
        """Compact JSON. The document's events are written once, with their histories."""
        rest = _encode(replace(state, document=None, tracked=EMPTY, closed=EMPTY, sent=EMPTY, started_ids=EMPTY))
        rest["document"] = None
        if state.document is not None:
            rest["document"] = {
                "incarnation": state.document.incarnation,
                "order": [event.key for event in state.document.events],
                "rejected": _encode(state.document.rejected),
            }
        for name in self._written:
            rest.pop(name, None)
        parts = [f'"{name}":{self._each(name, getattr(state, name))}' for name in self._written]
        return f'{{"version":{STATE_VERSION},"state":{_json(rest)[:-1]},{",".join(parts)}}}}}'

    def _each(self, name: str, values: Mapping[str, object]) -> str:
        before = self._written[name]
        if before.values is values:
            return before.text
        parts: dict[str, tuple[object, str]] = {}
        for key, value in values.items():
            known = before.parts.get(key)
            same = known is not None and known[0] is value
            parts[key] = known if known and same else (value, f"{_json(key)}:{_json(_encode(value))}")
        text = f"{{{','.join(part for _, part in parts.values())}}}"
        self._written[name] = _Written(values, text, parts)
        return text


def dump_state(state: State) -> str:
    """One state alone, as `StateWriter` writes it."""
    return StateWriter().text(state)


_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def load_state(text: str) -> State:
    """What a `StateWriter` wrote; raises ValueError for anything else. Monotonic times do not survive a process."""
    try:
        return _state(json.loads(text, parse_constant=_refuse))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a state: {error!r}"[:500]) from error


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _state(found: Any) -> State:
    if found["version"] != STATE_VERSION:
        raise ValueError(f"state of version {found['version']!r}")
    document = found["state"].pop("document")
    state: State = _decode(State, {**found["state"], "document": None})
    given = state.tracked
    state = replace(state, tracked=_by_key(state.tracked), closed=_by_key(state.closed))
    if document is None:
        return state
    if sorted(document["order"]) != sorted(given):
        raise ValueError("the document's events are not those that are tracked")
    events = tuple(given[key].event for key in document["order"])
    rejected = _decode(_hints(Document)["rejected"], document["rejected"])
    return replace(state, document=Document(_decode(int, document["incarnation"]), events, rejected))


def _by_key(histories: Mapping[str, Tracked]) -> Mapping[str, Tracked]:
    """The histories by their events' keys; the version before folded letters in keys that are not ASCII, too."""
    if any(key != tracked.key and key != tracked.event.event_id.casefold() for key, tracked in histories.items()):
        raise ValueError("a history under another event's key")
    found = {tracked.key: tracked for tracked in histories.values()}
    if len(found) != len(histories):
        raise ValueError("two histories of one event")
    return found


def _encode(value: Any) -> Any:
    if type(value) in _PLAIN:  # most of what there is
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {
            name: _encode(item)
            for name, default in _defaults(type(value))
            if (item := getattr(value, name)) is not default
            and (type(item) not in _PLAIN or type(item) is not type(default) or item != default)
        }
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return value


@cache
def _defaults(kind: Any) -> tuple[tuple[str, object], ...]:
    """The fields that are kept, each with the value that need not be written: most histories are mostly defaults."""
    given = {field.name: field.default for field in fields(kind)}
    return tuple((name, given[name]) for name in _names(kind))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """What is kept of a dataclass: all but what means nothing to another process."""
    return tuple(field.name for field in fields(kind) if not field.metadata.get("in_memory"))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    found = get_type_hints(kind)
    return {name: found[name] for name in _names(kind)}


def _decode(kind: Any, value: Any) -> Any:
    """`value` as a `kind`; raises ValueError, KeyError, TypeError or AttributeError where it is none."""
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        option = next(option for option in get_args(kind) if option is not type(None))
        return None if value is None else _decode(option, value)
    if origin in (tuple, frozenset):
        return _decode_items(kind, value)
    if origin is Mapping:
        return {key: _decode(get_args(kind)[1], item) for key, item in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: _decode(_hints(kind)[name], item) for name, item in value.items()})
    if kind is datetime:
        return _moment(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise TypeError(f"{kind.__name__} expected")
    return value


def _decode_items(kind: Any, value: Any) -> Any:
    if not isinstance(value, list):
        raise TypeError("a list expected")
    inner = get_args(kind)
    if get_origin(kind) is frozenset:
        return frozenset(_decode(inner[0], item) for item in value)
    kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
    return tuple(_decode(each, item) for each, item in zip(kinds, value, strict=True))


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("a time without a zone")
    return found
