"""The metadata service's document: `Document`, `Event`, and a parser that is strict only for the document as a whole.

A document counts only if it's whole and well-formed: an invalid one raises `DocumentError` and never means "no events".
In a valid document, an invalid event never hides a valid one. An element that can't be tracked is kept in
`Document.rejected`; an event that can be tracked has the names of its invalid fields in `Event.faults`.

Protocol facts: Azure's documentation of Scheduled Events, sections "Query for events" and "Event scheduling".
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from exporter.core.strict_json import Object, UnrepresentableNumber, encodable, loads, repeated_in

MAX_EVENT_ID = 100
MAX_EVENTS = 10_000
MAX_REJECTED = 1_000
MAX_RESOURCES = 10_000

KNOWN_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
VITAL = frozenset({"EventId", "EventType", "Resources", "NotBefore"})
DISPUTABLE = ("EventType", "Resources", "NotBefore", "EventStatus")
KNOWN_STATUSES = ("Scheduled", "Started")
KNOWN_SOURCES = ("Platform", "User")
KNOWN_RESOURCE_TYPES = ("VirtualMachine",)

# Minimum notice that Azure documents for each type, in seconds [Event scheduling]; Preempt has none.
MINIMUM_NOTICE = {"Freeze": 900, "Reboot": 900, "Redeploy": 600, "Terminate": 300}

# Names and ids are compared ignoring the case of ASCII letters only. Unicode's case folding makes similar texts equal:
# `ſ` and `s`, the Kelvin sign and `k`, `ß` and `ss`. To the metadata service these are different VMs and events.
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(text: str) -> str:
    """Return `text` with A to Z in lower case and everything else unchanged."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def alike(one: str, other: str) -> bool:
    """Return whether two names, or two ids, are the same."""
    return folded(one) == folded(other)


Time = Annotated[datetime, Meta(tz=True)]
"""A time that must have a time zone on disk."""


class Stored(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value that is part of the state and defines its own form on disk (`core.state_codec`)."""


class DocumentError(Exception):
    """The body is not a whole, well-formed document. `reason` is one of `DOCUMENT_REASONS`; `detail` is a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


DOCUMENT_REASONS = ("empty", "not-json", "not-a-document")


class Event(Stored, frozen=True):
    """One scheduled event as one document shows it.

    A typed field is None if it's missing, mistyped, or unparsable. `faults` names the fields that are mistyped,
    unparsable, or repeated, and the missing ones among those that every API version has. `raw` is Azure's object as
    received, made safe to encode.
    """

    event_id: str
    event_type: str | None = None
    resource_type: str | None = None
    resources: tuple[str, ...] | None = None
    status: str | None = None
    not_before: Time | None = None
    description: str | None = None
    source: str | None = None
    duration: int | None = None
    faults: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)
    started_twin: bool = False
    """Whether the document contains the same id a second time, as Started."""
    disputed: tuple[str, ...] = ()
    """The fields of `DISPUTABLE` that differ if the document contains the same id a second time."""
    is_unread: bool = False
    """Whether the document doesn't contain this id, but an element that may be this event: the fields are the earlier
    ones."""

    @property
    def key(self) -> str:
        """The EventId for comparison, with ASCII letters in lower case."""
        return folded(self.event_id)

    @property
    def is_ambiguous(self) -> bool:
        """Whether the document's content about the event is ambiguous."""
        return self.is_unread or bool(self.disputed)

    @property
    def announced_seconds(self) -> int | None:
        """Announced length of the interruption in seconds; None if Azure doesn't state one (missing or -1)."""
        return self.duration if self.duration is not None and self.duration >= 0 else None

    @property
    def faulty(self) -> bool:
        """Whether one of the fields in `VITAL` is missing, mistyped, unparsable, or repeated."""
        return not VITAL.isdisjoint(self.faults)


Likeness = tuple[str, frozenset[str]]
"""An event's type and case-folded resources."""
_NO_ID = ("no-event-id", "mistyped-event-id", "empty-event-id", "unreadable-event-id")


class Rejected(Stored, frozen=True):
    """An element of `Events` that can't be tracked: `fault` is why, `raw` the element, `status` its own if readable."""

    fault: str
    raw: Any
    status: str | None

    @property
    def likeness(self) -> Likeness | None:
        """The event that it may be, if its id can't be read; None if it has another id or resembles no event."""
        match self.raw:
            case {"EventType": str(event_type), "Resources": [*names]} if self.fault in _NO_ID:
                resources = frozenset(folded(name) for name in names if isinstance(name, str))
                return (event_type, resources) if resources else None
        return None


class Document(Struct, frozen=True):
    """One response of the metadata service. Two events never share a key."""

    incarnation: int
    events: tuple[Event, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements in `Events`, as far as they're kept."""
        return sum(not event.is_unread for event in self.events) + len(self.rejected)

    def with_unread(self, missing: Iterable[Event]) -> Document:
        """Return the same document with these events, one or more of which an element of it may be."""
        unread = [replace(_also_faulty(event, "EventId"), is_unread=True) for event in missing]
        return replace(self, events=(*self.events, *unread)) if unread else self


def _decode(body: bytes) -> Any:
    try:
        text = body.decode("utf-8-sig")
        if not text.strip():
            raise DocumentError("empty", "the body is empty")
        return loads(text)
    except UnicodeDecodeError as error:
        raise DocumentError("not-json", "the body is not UTF-8") from error
    except RecursionError as error:
        raise DocumentError("not-json", "the body is nested too deeply") from error
    except ValueError as error:
        raise DocumentError("not-json", f"the body is not JSON: {str(error)[:120]}") from error


def parse_document(body: bytes) -> Document:
    """Parse one response. Raises `DocumentError` if it's not a whole, well-formed document."""
    body_object = _decode(body)
    if not isinstance(body_object, Object):
        raise DocumentError("not-a-document", f"the body must be a JSON object, not {_kind(body_object)}")
    return document_from(body_object)


def document_from(given: Mapping[str, Any]) -> Document:
    """Return the document in an already decoded JSON object; raises `DocumentError`."""
    repeated = {key for key in repeated_in(given) if key in ("DocumentIncarnation", "Events")}
    if repeated:
        raise DocumentError("not-a-document", f"{sorted(repeated)[0]} occurs twice")
    incarnation = given.get("DocumentIncarnation")
    if not isinstance(incarnation, int) or isinstance(incarnation, bool):
        raise DocumentError("not-a-document", f"DocumentIncarnation must be an integer, not {_kind(incarnation)}")
    items = given.get("Events")
    if not isinstance(items, list):
        raise DocumentError("not-a-document", f"Events must be an array, not {_kind(items)}")
    return _with_events(incarnation, items)


def _with_events(incarnation: int, items: list[Any]) -> Document:
    events: dict[str, Event] = {}
    rejected: list[Rejected] = []

    def reject(fault: str, item: Any) -> None:
        """Beyond the cap one last rejection represents all others; its status is None, since one may be Started."""
        if len(rejected) < MAX_REJECTED - 1:
            rejected.append(Rejected(fault, encodable(item), _status_of(item)))
        elif len(rejected) < MAX_REJECTED:
            rejected.append(Rejected("too-many-rejected", None, None))

    for item in items:
        if fault := _untrackable(item):
            reject(fault, item)
            continue
        key = folded(item["EventId"])
        if key in events:
            # A repeated id is ambiguous, so neither element may be acted on.
            known, twin = _also_faulty(events[key], "EventId"), _event(item)
            unreadable = {*known.disputed, *known.faults, *twin.faults}
            differ = {name for name, own in FIELDS.items() if getattr(known, own) != getattr(twin, own)}
            disputed = tuple(name for name in DISPUTABLE if name in unreadable | differ)
            started = known.started_twin or twin.status == "Started"
            events[key] = replace(known, started_twin=started, disputed=disputed)
            reject("duplicate-event-id", item)
        elif len(events) >= MAX_EVENTS:
            reject("too-many-events", item)
        else:
            events[key] = _event(item)
    return Document(incarnation, tuple(events.values()), tuple(rejected))


def _also_faulty(event: Event, name: str) -> Event:
    return event if name in event.faults else replace(event, faults=(*event.faults, name))


def _untrackable(item: Any) -> str:
    if not isinstance(item, dict):
        return "not-an-object"
    event_id = item.get("EventId")
    if "EventId" not in item:
        return "no-event-id"
    if not isinstance(event_id, str):
        return "mistyped-event-id"
    if not event_id:
        return "empty-event-id"
    if len(event_id) > MAX_EVENT_ID:
        return "overlong-event-id"
    if "EventId" in repeated_in(item) or encodable(event_id) != event_id:
        return "unreadable-event-id"
    return ""


def _status_of(item: Any) -> str | None:
    if not isinstance(item, dict) or "EventStatus" in repeated_in(item):
        return None
    status = item.get("EventStatus")
    return status if isinstance(status, str) else None


def _event(item: Object) -> Event:
    faults = {*repeated_in(item), *(name for name in DISPUTABLE if name not in item)}

    def text(name: str) -> str | None:
        value = item.get(name)
        if name not in item:
            return None
        if not isinstance(value, str) or encodable(value) != value:
            faults.add(name)
            return None
        return value

    status = text("EventStatus")
    duration = item.get("DurationInSeconds")
    if "DurationInSeconds" in item and (not isinstance(duration, int) or isinstance(duration, bool)):
        faults.add("DurationInSeconds")
    event = Event(
        event_id=item["EventId"],
        event_type=text("EventType"),
        resource_type=text("ResourceType"),
        resources=_resources(item, faults),
        status=status,
        not_before=_not_before(text("NotBefore"), status, faults),
        description=text("Description"),
        source=text("EventSource"),
        duration=None if "DurationInSeconds" in faults else duration,
        raw=encodable(item),
    )
    if not faults:
        return event
    # A repeated field is as unreadable as a mistyped one.
    fields = {azure: ours for azure, ours in FIELDS.items() if azure in faults and ours != "event_id"}
    return replace(event, faults=tuple(sorted(faults)), **dict.fromkeys(fields.values()))


def unknown_value_fields(event: Event) -> tuple[str, ...]:
    """Return Azure's names of the fields whose value this version doesn't know. A missing field is not included."""
    known = (
        ("EventType", event.event_type, KNOWN_TYPES),
        ("EventStatus", event.status, KNOWN_STATUSES),
        ("EventSource", event.source, KNOWN_SOURCES),
        ("ResourceType", event.resource_type, KNOWN_RESOURCE_TYPES),
    )
    return tuple(name for name, value, values in known if value is not None and value not in values)


FIELDS = {
    "EventId": "event_id",
    "EventType": "event_type",
    "ResourceType": "resource_type",
    "Resources": "resources",
    "EventStatus": "status",
    "NotBefore": "not_before",
    "Description": "description",
    "EventSource": "source",
    "DurationInSeconds": "duration",
}


def _resources(item: Mapping[str, Any], faults: set[str]) -> tuple[str, ...] | None:
    names = item.get("Resources")
    if (
        not isinstance(names, list)
        or len(names) > MAX_RESOURCES
        or not all(isinstance(name, str) and name and encodable(name) == name for name in names)
    ):
        faults.add("Resources")
        return None
    return tuple(names)


def _not_before(text: str | None, status: str | None, faults: set[str]) -> datetime | None:
    """Return NotBefore; None with a fault if it's invalid. It's empty once the event has started [Query for events]."""
    if text is None or (text == "" and status == "Started"):
        return None
    instant = parse_time(text)
    if instant is None:
        faults.add("NotBefore")
    return instant


def _kind(value: Any) -> str:
    names = {type(None): "nothing", bool: "a boolean", str: "a string", list: "an array", float: "a float"}
    if isinstance(value, UnrepresentableNumber):
        return "a number beyond 64 bits"
    return names.get(type(value), "an object" if isinstance(value, dict) else "a number")


# -- times

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?:[01]\d|2[0-3]):\d{2}:\d{2}"
_RFC1123 = re.compile(
    rf"(?:[A-Za-z]{{3,9}}, )?(\d{{1,2}}) ([A-Za-z]{{3}}) (\d{{4}}) ({_CLOCK}) (?:GMT|UTC|([+-]\d{{4}}))", re.ASCII
)
# .NET writes seven digits of a second; digits below a microsecond are ignored.
_ISO8601 = re.compile(rf"\d{{4}}-\d{{2}}-\d{{2}}[T ]{_CLOCK}(?:\.\d{{1,9}})?(?:Z|[+-]\d{{2}}:?[0-5]\d)?", re.ASCII)
_LONGEST_TIME = 64


def parse_time(text: str) -> datetime | None:
    """Return an instant in UTC from RFC 1123 (as documented) or ISO 8601 (newer pages, simulators); None otherwise.

    RFC 1123 is parsed here, since the standard library's parser of mail dates reads the year 0099 as 1999 and accepts
    digits of any script. A wrong weekday is accepted: the documentation's own examples have some. ISO 8601 without a
    zone is UTC, like all times of this service.
    """
    text = text.strip() if len(text) <= _LONGEST_TIME else ""
    try:
        if match := _RFC1123.fullmatch(text):
            day, month, year, clock, zone = match.groups(default="Z")
            text = f"{year}-{_MONTHS.index(month.lower()) + 1:02}-{day:0>2}T{clock}{zone}"
        if not _ISO8601.fullmatch(text):
            return None
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
