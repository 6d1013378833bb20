"""The state as JSON text and back: what the outbox keeps.

The types of `core.state` and `core.document` are the only description. From each of them another msgspec `Struct` is
derived, which is its form on disk: the same fields, without those that mean nothing to another process
(`IN_MEMORY`), closed to unknown fields, and with every time in a zone. msgspec encodes, decodes and checks these, and
converts between the two.

The text is `{"version": 1, "state": {...}}`. Three things differ from the plain form of a `State`:

- the document's events are given by their keys alone, in order: each event is written once, in `tracked`;
- a field with its default may be left out;
- text with lone surrogates, which UTF-8 can't carry, is written with JSON's own escapes.
"""

from __future__ import annotations

import json
import operator
import types
from collections.abc import Mapping
from datetime import datetime
from functools import cache, reduce
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo, fields, replace

from exporter.core.document import Document, Rejected
from exporter.core.state import EMPTY, IN_MEMORY, State
from exporter.core.strict_json import constant

STATE_VERSION: Final = 1
_BY_EVENT: Final = ("tracked", "closed", "sent", "started_ids")
"""The fields of a `State` that hold one value per event, whose text is kept from one state to the next."""
_TIME: Final[Any] = Annotated[datetime, msgspec.Meta(tz=True)]
_SURROGATE: Final = "\\ud"


def _form(kind: Any) -> Any:
    """The type on disk for the type `kind` in memory."""
    if kind is datetime:
        return _TIME
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct(kind)
    origin, arguments = get_origin(kind), tuple(_form(argument) for argument in get_args(kind))
    if origin in (Union, types.UnionType):
        return reduce(operator.or_, arguments)
    if origin is frozenset:
        return _generic(tuple, (arguments[0], ...))  # in order, so that equal states make equal texts
    if origin is Mapping:
        return _generic(dict, arguments)
    return kind if origin is None else _generic(origin, arguments)


def _generic(origin: Any, arguments: tuple[Any, ...]) -> Any:
    return origin[arguments]


@cache
def _struct(kind: Any) -> Any:
    """The form on disk of a type of the state."""
    return _derive(kind)


def _derive(kind: Any, without: tuple[str, ...] = (), **instead: Any) -> Any:
    """A `Struct` for a type of the state, `without` some of its fields. Those in `instead` have another type on disk
    and are always written."""
    hints = get_type_hints(kind)
    kept = [field for field in fields(kind) if field.name not in IN_MEMORY and field.name not in without]
    return msgspec.defstruct(
        f"{kind.__name__}OnDisk",
        [
            (field.name, instead[field.name], msgspec.NODEFAULT)
            if field.name in instead
            else (field.name, _form(hints[field.name]), _default(field, _form(hints[field.name])))
            for field in kept
        ],
        forbid_unknown_fields=True,
        omit_defaults=True,
        frozen=True,
        kw_only=True,
    )


def _default(field: FieldInfo, form: Any) -> Any:
    """The value of a field that is not in the text."""
    if field.default_factory is not msgspec.NODEFAULT or field.default is EMPTY:
        return msgspec.field(default_factory=dict)  # only mappings have one
    if field.default is msgspec.NODEFAULT:
        return msgspec.NODEFAULT
    return msgspec.convert(field.default, form, from_attributes=True)


_REJECTED: Final = _form(tuple[Rejected, ...])
_DOCUMENT: Final = _derive(Document, events=tuple[str, ...], rejected=_REJECTED)
_STATE: Final = _derive(State, document=_DOCUMENT | None)
_REST: Final = _derive(State, without=("document", *_BY_EVENT))
_VALUES: Final = {name: _form(get_args(get_type_hints(State)[name])[1]) for name in _BY_EVENT}
_VERSION: Final[Any] = Annotated[int, msgspec.Meta(ge=STATE_VERSION, le=STATE_VERSION)]
_TEXT: Final[Any] = msgspec.defstruct("Text", [("version", _VERSION), ("state", _STATE)])

_decoder: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(_TEXT)
_encoder: Final = msgspec.json.Encoder()


def _on_disk(value: object, form: Any) -> str:
    """A value of the state as JSON, in its `form` on disk."""
    return _json(msgspec.convert(value, form, from_attributes=True))


def _json(value: object) -> str:
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"), allow_nan=False)


class _Written(Struct):
    """One mapping of the state as it was last written, in whole and value by value."""

    form: Any
    name: str
    values: Mapping[str, object]
    text: str
    members: dict[str, tuple[object, str]]

    def update(self, values: Mapping[str, object]) -> str:
        """The mapping as a member of a JSON object. A value that is the very object written before keeps its text."""
        if self.values is values:
            return self.text
        before, members = self.members, dict[str, tuple[object, str]]()
        for key, value in values.items():
            member = before.get(key)
            if member is None or member[0] is not value:
                member = value, f"{_json(key)}:{_on_disk(value, self.form)}"
            members[key] = member
        self.text = f"{self.name}:{{{','.join([text for _, text in members.values()])}}}"
        self.values, self.members = values, members
        return self.text


class StateWriter:
    """Writes one state after another, and keeps the text of each history: from one to the next, few of them change.

    After a long time the state holds hundreds of histories of events that are over; encoding them again at each commit
    would take longer than all the rest of an approval.
    """

    def __init__(self) -> None:
        self._written = {}
        for name, form in _VALUES.items():
            self._written[name] = _Written(form, f'"{name}"', EMPTY, f'"{name}":{{}}', {})

    def text(self, state: State) -> str:
        """Compact JSON, as `load_state` reads it."""
        rest = msgspec.convert(state, _REST, from_attributes=True)
        if state.rejected:
            rest = msgspec.structs.replace(rest, rejected=tuple(sorted(state.rejected)))
        members = [
            _json(rest)[1:-1],
            f'"document":{_json(_document_on_disk(state.document))}',
            *(written.update(getattr(state, name)) for name, written in self._written.items()),
        ]
        return f'{{"version":{STATE_VERSION},"state":{{{",".join(members)}}}}}'


def _document_on_disk(document: Document | None) -> Any:
    if document is None:
        return None
    rejected = msgspec.convert(document.rejected, _REJECTED, from_attributes=True)
    keys = tuple([event.key for event in document.events])
    return _DOCUMENT(incarnation=document.incarnation, events=keys, rejected=rejected)


def dump_state(state: State) -> str:
    """One state alone, as `StateWriter` writes it."""
    return StateWriter().text(state)


def load_state(text: str) -> State:
    """The state in a text that `StateWriter` wrote; raises ValueError for another text.

    Monotonic times are not restored. The returned state is one that can be written again.
    """
    try:
        state = _in_memory(_decoded(text).state)
        dump_state(state)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        # msgspec's own error is a ValueError only from 0.21 on
        raise ValueError(f"not a state: {error!r}"[:500]) from error
    return state


def _decoded(text: str) -> Any:
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if _SURROGATE not in text.lower():
            raise
        return msgspec.convert(json.loads(text, parse_constant=constant), _TEXT)


def _in_memory(stored: Any) -> State:
    """The state out of its form on disk."""
    state = msgspec.convert(msgspec.structs.replace(stored, document=None), State, from_attributes=True)
    if any(key != tracked.key for key, tracked in (*state.tracked.items(), *state.closed.items())):
        raise ValueError("a history under another event's key")
    if stored.document is None:
        return state
    keys = stored.document.events
    if sorted(keys) != sorted(state.tracked):
        raise ValueError("the document's events are not those that are tracked")
    events = tuple(state.tracked[key].event for key in keys)
    rejected = msgspec.convert(stored.document.rejected, tuple[Rejected, ...], from_attributes=True)
    return replace(state, document=Document(stored.document.incarnation, events, rejected))
