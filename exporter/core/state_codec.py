"""The state as JSON text and back: what the outbox keeps.

The types of `core.state` and `core.document` define their own form on disk (`document.Stored`): unknown fields are
rejected, and every time has a zone. msgspec encodes, decodes, and checks them.

The text is `{"version": 1, "document": {...}, "state": {...}}`. It differs from the plain form of a `State`:

- the document's events are given only by their keys, in order: each event is written once, in `tracked`
- an `Instant` is a time: the monotonic clock means nothing to another process, and neither does `process`
- a field with its default may be omitted
- text with lone surrogates, which UTF-8 can't represent, is written with JSON's own escapes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from exporter.core.document import Document, Rejected, Stored, Time
from exporter.core.state import EMPTY, Instant, ProcessMemory, State
from exporter.core.strict_json import constant

STATE_VERSION: Final = 1
_BY_EVENT: Final = ("tracked", "closed", "sent", "started_ids")
"""Fields of a `State` with one value per event; their text is reused from one state to the next."""
_NOT_KEPT: Final = ProcessMemory()
_SURROGATE: Final = "\\ud"


class _Document(Stored, frozen=True):
    incarnation: int
    events: tuple[str, ...]
    rejected: tuple[Rejected, ...]


class _Text(Struct, frozen=True):
    version: Annotated[int, msgspec.Meta(ge=STATE_VERSION, le=STATE_VERSION)]
    document: _Document | None
    state: State


def _to_disk(value: object) -> object:
    if isinstance(value, Instant):
        return value.wall
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError


def _from_disk(_kind: type, value: object) -> Instant:
    return Instant(msgspec.convert(value, Time))


_decoder: Final = msgspec.json.Decoder(_Text, dec_hook=_from_disk)
_encoder: Final = msgspec.json.Encoder(enc_hook=_to_disk)


def _json(value: object) -> str:
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=_to_disk), separators=(",", ":"), allow_nan=False)


class _Written(Struct):
    """One mapping of the state as last written, in whole and value by value."""

    name: str
    text: str
    values: Mapping[str, object] = EMPTY
    members: Mapping[str, tuple[object, str]] = EMPTY

    def update(self, values: Mapping[str, object]) -> str:
        """Return the mapping as a member of a JSON object. An unchanged value (the same object) keeps its text."""
        if self.values is values:
            return self.text
        before, members = self.members, dict[str, tuple[object, str]]()
        for key, value in values.items():
            member = before.get(key)
            if member is None or member[0] is not value:
                member = value, f"{_json(key)}:{_json(value)}"
            members[key] = member
        self.text = f"{self.name}:{{{','.join([text for _, text in members.values()])}}}"
        self.values, self.members = values, members
        return self.text


class StateWriter:
    """Writes one state after another, and reuses the text of each event that has not changed.

    After a long time the state contains hundreds of closed events; encoding them again at each commit would take longer
    than all the rest of an approval.
    """

    def __init__(self) -> None:
        self._written = {name: _Written(f'"{name}"', f'"{name}":{{}}') for name in _BY_EVENT}

    def text(self, state: State) -> str:
        """Return compact JSON, as `load_state` reads it."""
        document = state.document
        rest = replace(
            _kept(state),
            rejected=sorted(state.rejected),  # sorted, so that equal states have equal texts
            **dict.fromkeys(_BY_EVENT, EMPTY),
        )
        members = [_json(rest)[1:-1], *(each.update(getattr(state, name)) for name, each in self._written.items())]
        saved = document and _Document(document.incarnation, tuple([e.key for e in document.events]), document.rejected)
        return f'{{"version":{STATE_VERSION},"document":{_json(saved)},"state":{{{",".join(members)}}}}}'


def _kept(state: State) -> State:
    """Return the state without its document, and without what means nothing to another process."""
    outage = state.outage and replace(state.outage, first_failure_in_process=None)
    return replace(state, document=None, outage=outage, process=_NOT_KEPT)


def dump_state(state: State) -> str:
    """Return the text of a single state, as `StateWriter` writes it."""
    return StateWriter().text(state)


def load_state(text: str) -> State:
    """Return the state in a text that `StateWriter` wrote; raises ValueError for another text.

    Monotonic times are not restored. The returned state can be written again.
    """
    try:
        state = _whole(_decoded(text))
        dump_state(state)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        # msgspec's own error is a ValueError only from 0.21 on
        raise ValueError(f"not a state: {error!r}"[:500]) from error
    return state


def _decoded(text: str) -> _Text:
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if _SURROGATE not in text.lower():
            raise
        return msgspec.convert(json.loads(text, parse_constant=constant), _Text, dec_hook=_from_disk)


def _whole(stored: _Text) -> State:
    """Return the state with its document."""
    state, document = stored.state, stored.document
    if state != _kept(state):
        raise ValueError("a field that is not kept on disk")
    if any(key != tracked.key for key, tracked in (*state.tracked.items(), *state.closed.items())):
        raise ValueError("an event under another event's key")
    if document is None:
        return state
    if sorted(document.events) != sorted(state.tracked):
        raise ValueError("the document's events differ from the tracked ones")
    events = tuple(state.tracked[key].event for key in document.events)
    return replace(state, document=Document(document.incarnation, events, document.rejected))
