"""Validate one message and convert it into a fact that can be joined.

The format is version 1 of the agent's record schema. Unknown members are ignored; a known member of the wrong type
makes the record unreadable. `data.event` is Azure's object as received, so it can contain any type.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

MAX_BODY: Final = 1 << 20  # bytes; the largest message of Event Hubs' Standard tier
MAX_KEY: Final = 2048  # characters of an id, a source, a subject or a name
MAX_TEXT: Final = 4096  # characters of Azure's description
MAX_NAMES: Final = 20_000  # resources of an event
MAX_TAGS: Final = 16  # as many as the agent publishes
MAX_NUMBER: Final = 1 << 53  # largest integer that a double holds exactly; excludes NaN and infinity
PREFIX: Final = "azure_scheduled_event."

CLOSING: Final = frozenset({"completed", "canceled", "ended"})
ABOUT_EVENTS: Final = CLOSING | {
    "scheduled",
    "updated",
    "started",
    "approval.decided",
    "approval.accepted",
    "approval.failed",
    "approval.outdated",
    "interruption.observed",
    "event.rejected",
}
ABOUT_VMS: Final = frozenset(
    {
        "interruption.observed",
        "source.unavailable",
        "source.recovered",
        "source.anomaly",
        "document.rejected",
        "event.rejected",
        "agent.started",
        "agent.stopped",
    }
)
"""Two kinds can be about an event or about the VM."""

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Unreadable(ValueError):
    """The message is not a valid record. `reason` is a key of REASONS."""

    def __init__(self, reason: str) -> None:
        super().__init__(REASONS[reason])
        self.reason = reason


REASONS: Final = {
    "too-large": "more than 1 MiB",
    "not-json": "not a JSON object",
    "not-cloudevents": "not a CloudEvent of version 1.0",
    "other-producer": "a CloudEvent of another program",
    "other-version": "a record of another version of the schema",
    "unknown-kind": "a kind that this program does not know",
    "wrong-type": "a member has the wrong type",
}


@dataclass(frozen=True, slots=True)
class AzureEvent:
    """Azure's object; None for values that are missing or have the wrong type."""

    event_id: str | None
    event_type: str | None
    event_source: str | None
    status: str | None
    description: str | None
    duration: int | None
    """In seconds; None if Azure gives none (-1)."""
    resources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Location of the VM; empty if not known."""

    subscription_id: str = ""
    resource_group: str = ""
    vmss_name: str = ""
    location: str = ""
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Fact:
    """What the join needs of a record. Times are RFC 3339 in UTC with microseconds, so they compare as text."""

    source: str
    id: str
    kind: str
    event_id: str | None
    """In lower case: the key of the join. None: the record is VM-wide."""
    time: str
    vm: str
    """The VM's name, else `source`."""
    place: Place = Place()
    event: AzureEvent | None = None
    not_before: str | None = None
    affects_self: bool | None = None
    seen_before: str | None = None
    first_seen: str | None = None
    notice_seconds: float | None = None
    started_at: str | None = None
    started_by: str | None = None
    approved_at: str | None = None
    rule: str | None = None
    attempts: int | None = None
    verdict: str | None = None
    reason: str | None = None
    interruption_seconds: float | None = None
    """Total interruption of the VM during the event so far; None: not reported."""
    interruption_longest_seconds: float | None = None
    watched: bool | None = None
    """Closing records: whether interruptions were measured."""
    gone_at: str | None = None
    gaps: int = 0
    """Number of polling gaps on the VM during the event; `gap_seconds` is their total length."""
    gap_seconds: float = 0.0
    unseen: tuple[str, ...] = ()
    replaced_by: str | None = None


def lower(text: str) -> str:
    """Return `text` with A to Z in lower case. Ids and names that only differ in this are the same."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def read(body: bytes) -> Fact:
    """Return the fact in a message's body. Raises only `Unreadable`, for any bytes."""
    if len(body) > MAX_BODY:
        raise Unreadable("too-large")
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Unreadable("not-json") from None
    if not isinstance(content, dict):
        raise Unreadable("not-json")
    return _fact(content, _kind(content))


def _kind(content: dict[str, Any]) -> str:
    """Return the kind of one of the agent's CloudEvents, from its type."""
    found = content.get("type")
    if content.get("specversion") != "1.0" or not isinstance(found, str):
        raise Unreadable("not-cloudevents")
    if not found.startswith(PREFIX):
        raise Unreadable("other-producer")
    kind, _, version = found.removeprefix(PREFIX).rpartition(".v")
    if version != "1":
        raise Unreadable("other-version")
    if kind not in ABOUT_EVENTS | ABOUT_VMS:
        raise Unreadable("unknown-kind")
    return kind


def _fact(content: dict[str, Any], kind: str) -> Fact:
    data = _Members(_Members(content).mapping("data"))
    envelope, vm = _Members(content), _Members(data.mapping("vm"))
    source, record_id, _ = (envelope.key(name) for name in ("source", "id", "subject"))
    raw, earlier = data.values.get("event"), data.values.get("last_readable")
    if isinstance(raw, dict) and isinstance(earlier, dict):  # replaces invalid values
        raw = {**raw, **earlier}
    event_id = _event_id(data, kind)
    name = vm.text("name") or source
    if event_id is None:
        return Fact(source, record_id, kind, None, envelope.time_of("time"), name)
    return Fact(
        source=source,
        id=record_id,
        kind=kind,
        event_id=event_id,
        time=envelope.time_of("time"),
        vm=name,
        place=_place(vm),
        event=_azure(raw),
        not_before=data.time("not_before"),
        affects_self=data.boolean("affects_self"),
        **_specific(kind, data, envelope),
    )


def _event_id(data: _Members, kind: str) -> str | None:
    """Return the id of the record's event; None for VM-wide records."""
    found = data.text("event_id")
    if kind not in (ABOUT_EVENTS if found is not None else ABOUT_VMS):
        raise Unreadable("wrong-type")
    return lower(found) if found is not None else None


def _specific(kind: str, data: _Members, envelope: _Members) -> dict[str, Any]:
    """Return the members that only this kind of record has."""
    time = envelope.time_of("time")
    match kind:
        case "scheduled" | "started":
            return {
                "first_seen": time if data.text("seen_before") else None,
                "seen_before": data.text("seen_before"),
                "notice_seconds": data.number("notice_seconds"),
                "started_at": time if kind == "started" else None,
                "started_by": data.text("started_by"),
            }
        case "approval.decided":
            decision = _Members(data.mapping("decision"))
            return {name: decision.text(name) for name in ("verdict", "reason", "rule")}
        case "approval.accepted":
            return {"approved_at": time, "rule": data.text("rule"), "attempts": data.integer("attempt")}
        case "approval.failed":
            return {"attempts": data.integer("attempt")}
        case "interruption.observed":
            interruption = _Members(data.mapping("interruption"))
            return {
                "interruption_seconds": interruption.number("total_seconds"),
                "interruption_longest_seconds": interruption.number("longest_seconds"),
            }
        case "completed" | "canceled" | "ended":
            return _closing(data)
    return {}


def _closing(data: _Members) -> dict[str, Any]:
    summary = _Members(data.mapping("summary"))
    return {
        "first_seen": summary.time("first_seen"),
        "seen_before": summary.text("seen_before"),
        "notice_seconds": summary.number("notice_seconds"),
        "started_at": summary.time("started_at"),
        "started_by": summary.text("started_by"),
        "approved_at": summary.time("approved_at"),
        "rule": summary.text("rule"),
        "attempts": summary.integer("approval_attempts"),
        "interruption_seconds": summary.number("interruption_seconds"),
        "interruption_longest_seconds": summary.number("interruption_longest_seconds"),
        "watched": summary.integer("interruptions_observed") is not None,
        "gone_at": summary.time("gone_at"),
        "gaps": summary.integer("gaps") or 0,
        "gap_seconds": summary.number("gap_seconds") or 0.0,
        "unseen": data.words("unseen"),
        "replaced_by": data.text("replaced_by"),
    }


def _place(vm: _Members) -> Place:
    tags = vm.mapping("tags") if vm.values.get("tags") is not None else {}
    if len(tags) > MAX_TAGS:
        raise Unreadable("wrong-type")
    values = {name: _Members(tags).text(name) for name in tags}
    return Place(
        vm.text("subscription_id") or "",
        vm.text("resource_group") or "",
        vm.text("vmss_name") or "",
        vm.text("location") or "",
        tuple(sorted((_encodable(name)[:MAX_KEY], value) for name, value in values.items() if value is not None)),
    )


def _azure(raw: object) -> AzureEvent | None:
    """Return Azure's object. It can contain any type, so nothing here is an error."""
    if not isinstance(raw, dict):
        return None
    resources, duration = raw.get("Resources"), raw.get("DurationInSeconds")
    names = resources[:MAX_NAMES] if isinstance(resources, list) else []
    if not set(map(type, names)) <= {str}:
        names = [name for name in names if isinstance(name, str)]
    if not "".join(names).isascii() or max(map(len, names), default=0) > MAX_KEY:
        names = [_encodable(name[:MAX_KEY]) for name in names]
    known = isinstance(duration, int) and not isinstance(duration, bool) and 0 <= duration < 1 << 31
    return AzureEvent(
        event_id=_any_text(raw.get("EventId")),
        event_type=_any_text(raw.get("EventType")),
        event_source=_any_text(raw.get("EventSource")),
        status=_any_text(raw.get("EventStatus")),
        description=_any_text(raw.get("Description"), MAX_TEXT),
        duration=duration if known else None,
        resources=tuple(filter(None, names)),
    )


@dataclass(frozen=True, slots=True)
class _Members:
    """The members of a JSON object, each null or of its type. Methods raise `Unreadable` for other types."""

    values: Mapping[str, Any]

    def mapping(self, name: str) -> dict[str, Any]:
        found = self.values.get(name)
        return found if isinstance(found, dict) else _wrong()

    def text(self, name: str) -> str | None:
        """Return a short string; None if empty."""
        found = self.values.get(name)
        if found is not None and (not isinstance(found, str) or len(found) > MAX_KEY):
            _wrong()
        return _encodable(found) if found else None

    def key(self, name: str) -> str:
        """Return a string that must not be missing."""
        return self.text(name) or _wrong()

    def number(self, name: str) -> float | None:
        found = self.values.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            _wrong()
        return float(found) if -MAX_NUMBER < found < MAX_NUMBER else _wrong()

    def integer(self, name: str) -> int | None:
        found = self.values.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not -MAX_NUMBER < found < MAX_NUMBER:
            _wrong()
        return found

    def boolean(self, name: str) -> bool | None:
        found = self.values.get(name)
        return found if found is None or isinstance(found, bool) else _wrong()

    def words(self, name: str) -> tuple[str, ...]:
        found = self.values.get(name)
        if found is None:
            return ()
        if not isinstance(found, list) or len(found) > MAX_TAGS:
            _wrong()
        return tuple(_Members({"word": word}).key("word") for word in found)

    def time(self, name: str) -> str | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            found = datetime.fromisoformat(text)
            return found.astimezone(UTC).isoformat(timespec="microseconds")[:26] + "Z" if found.tzinfo else _wrong()
        except (ValueError, OverflowError):
            _wrong()

    def time_of(self, name: str) -> str:
        """Return a time that must not be missing."""
        return self.time(name) or _wrong()


def _wrong() -> NoReturn:
    raise Unreadable("wrong-type")


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"not valid in JSON: {word}")


def _any_text(value: object, most: int = MAX_KEY) -> str | None:
    return _encodable(value[:most]) if isinstance(value, str) else None


def _encodable(text: str) -> str:
    """Return `text` without lone surrogates, which cannot be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
