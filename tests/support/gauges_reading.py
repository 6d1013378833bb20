"""The gauges that `/metrics` must have, calculated only from the bodies: slow, simple, sharing no code.

In addition to the last valid body it notes when a poll first showed a detail of an event, and the last readable text of
each field; everything else is read from the body each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from exporter.core.document import folded
from tests.support import oracle

TYPES: Final = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "other")
STATUSES: Final = ("Scheduled", "Started", "other")
SOURCES: Final = ("Platform", "User", "other")
WARMING: Final = 300.0
MOST: Final = 50

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""A sample's name without the common prefix, and its labels in order of their names, to its value."""


def put(series: Series, name: str, value: float | None, **labels: str) -> None:
    """Add a sample, unless its value is unknown."""
    if value is not None:
        series[name, tuple(sorted(labels.items()))] = float(value)


def word(value: object, known: Iterable[str]) -> str:
    """Return `value` if the closed set has it, else `other`."""
    return value if isinstance(value, str) and value in known else "other"


def key_of(item: Any) -> str:
    """Return the id of an element; empty if it has none."""
    event_id = item.get("EventId") if isinstance(item, dict) else None
    usable = isinstance(event_id, str) and 0 < len(event_id) <= 100 and oracle.clean(event_id)
    return folded(str(event_id)) if usable else ""


@dataclass
class Life:
    """When a detail of an event was first shown, by this VM's clock, and the last readable value of each field."""

    first: float
    started: float | None = None
    kind: str | None = None
    names: list[str] | None = None
    status: str | None = None
    due: float | None = None

    def reads(self, item: Mapping[str, Any], times: Mapping[str, float], twins: Iterable[Any] = ()) -> None:
        """Read an element of the document; an unreadable field keeps its last value. If its `twins`, with the same id,
        differ from it, the meaning is unknown: the element only adds values that were unknown."""
        names = ("EventType", "EventStatus", "NotBefore", "Resources")
        read = [{**twin, "NotBefore": times.get(str(twin.get("NotBefore")), twin.get("NotBefore"))} for twin in twins]
        kind, status, due, resources = (any(twin.get(n) != read[0].get(n) for twin in read) for n in names)
        before = replace(self)
        self._reads(item, times)
        self.kind = before.kind if kind and before.kind else self.kind
        self.status = before.status if status and before.status else self.status
        self.due = before.due if due and before.due is not None else self.due
        self.names = before.names if resources and before.names is not None else self.names

    def _reads(self, item: Mapping[str, Any], times: Mapping[str, float]) -> None:
        kind, names, status, due = (item.get(n) for n in ("EventType", "Resources", "EventStatus", "NotBefore"))
        if oracle.clean(kind) and kind:
            self.kind = str(kind)
        if isinstance(names, list) and len(names) <= 10_000 and all(oracle.clean(name) and name for name in names):
            self.names = names
        if oracle.clean(status) and status:
            self.status = str(status)
        if isinstance(due, str) and due in times:
            self.due = times[due]

    @property
    def phase(self) -> str:
        """Return the status: Started stays Started; else the last status, which may be an unknown value."""
        return "Started" if self.started is not None else word(self.status, STATUSES)

    @property
    def starts(self) -> float | None:
        """Return when an event that has not started may start."""
        return None if self.started is not None else self.due


@dataclass
class Sheet:
    """Everything that was read so far. `times` maps each text of a NotBefore to its value."""

    times: Mapping[str, float]
    everything: bool = False
    """Whether records of other VMs' events are published: an event that later names this VM was then seen before."""
    items: list[Any] | None = None
    number: int = 0
    first_answer: float | None = None
    cold_until: float | None = None
    """On the clock that can't be set."""
    flowing: bool = False
    last_good: float | None = None
    last_poll: float | None = None
    up: bool = False
    decided: bool = False
    """Whether this process read a document, and so decided about its events."""
    lives: dict[str, Life] = field(default_factory=dict)
    ownership: dict[str, str] = field(default_factory=dict)
    """By key "ours" or "theirs", as last known."""
    accepted: dict[str, float] = field(default_factory=dict)

    def fails(self, wall: float) -> None:
        """Note a poll without a document."""
        self.last_poll, self.up = wall, False

    def reads(self, body: bytes, number: int, wall: float, mono: float, vm_name: str) -> None:
        """Note a poll with this document."""
        self.last_poll = self.last_good = wall
        self.up = self.decided = True
        if self.first_answer is None or number < self.number:
            self.first_answer, self.cold_until, self.flowing = wall, mono + WARMING, False
        self.items, self.number = oracle.read(body), number
        self.flowing = self.flowing or bool(self.items)
        before, self.lives = self.lives, {}
        ownership, self.ownership = self.ownership, {}
        for key, item in self.events().items():
            known, life = ownership.get(key, ""), before.get(key) or Life(wall)
            names = life.names
            twins = [other for other in self.items if key_of(other) == key]
            life.reads(item, self.times, twins)
            statuses = [twin.get("EventStatus") for twin in twins]
            if "Started" in statuses and life.started is None:
                life.started = wall
            self.ownership[key] = self._ownership(known, life.names, life.names != names, vm_name)
            if (
                known == "theirs" != self.ownership[key] and not self.everything
            ):  # first seen now, with its current values
                life.first = wall
                life.started = None if life.started is None else wall
            self.lives[key] = life

    def _ownership(self, known: str, names: list[str] | None, moved: bool, vm_name: str) -> str:
        """Return the ownership: an unreadable one is as before, except that an event of another VM with new names is
        unknown."""
        if vm_name and names is not None:
            return "ours" if any(oracle.same(name, vm_name) for name in names) else "theirs"
        return "" if known == "theirs" and moved else known

    def restarts(self) -> None:
        """Start another process: it knows what was written, and has not polled yet."""
        self.last_poll, self.up, self.decided = None, False, False

    def begins(self, wall: float, mono: float) -> None:
        """Start another process: the wall clock gives the elapsed part of the five minutes, as well as it can."""
        if self.first_answer is not None:
            self.cold_until = mono + WARMING - max(0.0, wall - self.first_answer)

    def is_accepted(self, event_id: str, wall: float) -> None:
        """Note that Azure accepted the approval of this event."""
        self.accepted[folded(event_id)] = wall

    def events(self) -> dict[str, Mapping[str, Any]]:
        """Return the elements with an id: for an id that occurs twice, the first."""
        events: dict[str, Mapping[str, Any]] = {}
        for item in self.items or ():
            if key_of(item):
                events.setdefault(key_of(item), item)
        return events

    def own(self, vm_name: str) -> dict[str, Mapping[str, Any]]:
        """Return the events known to name this VM: none while its name is unknown, or while names are unreadable."""
        own = {}
        for key, item in self.events().items():
            if vm_name and any(oracle.same(name, vm_name) for name in self.lives[key].names or ()):
                own[key] = item
        return own

    def says(self, vm_name: str, now: float, shown: set[str]) -> Series:
        """Return all samples, `now` on the clock that can't be set. `shown` are the ids that have series; `fair` checks
        which ones may have them."""
        series: Series = {}
        put(series, "up", self.up)
        put(series, "last_poll_timestamp_seconds", self.last_poll)
        warm = self.flowing or (self.cold_until is not None and now >= self.cold_until)
        put(series, "source_warming", not warm)
        if self.items is not None:
            put(series, "document_incarnation", self.number)
            put(series, "document_events", len(self.items))
        own = self.own(vm_name)
        counts = Counter((word(self.lives[key].kind, TYPES), self.lives[key].phase) for key in own)
        for kind in TYPES:
            for status in STATUSES:
                put(series, "events", counts[kind, status], event_type=kind, event_status=status)
        put(series, "event_series_dropped", max(0, len(own) - MOST))
        for key, item in own.items():
            if item["EventId"] in shown:
                self._event(series, item, self.lives[key], self.accepted.get(key))
        return series

    def _event(self, series: Series, item: Mapping[str, Any], life: Life, accepted: float | None) -> None:
        name = {"event_id": item["EventId"]}
        kind, source = word(life.kind, TYPES), word(item.get("EventSource"), SOURCES)
        what = word(item.get("ResourceType"), ("VirtualMachine",))
        put(series, "event_info", 1, **name, event_type=kind, event_source=source, resource_type=what)
        for status in STATUSES:
            put(series, "event_status", life.phase == status, **name, event_status=status)
        put(series, "event_not_before_timestamp_seconds", life.starts, **name)
        seconds: Any = item.get("DurationInSeconds")
        if oracle.is_whole_number(seconds) and seconds >= 0:
            put(series, "event_advertised_duration_seconds", seconds, **name)
        put(series, "event_first_seen_timestamp_seconds", life.first, **name)
        put(series, "event_started_timestamp_seconds", life.started, **name)
        put(series, "event_approved_timestamp_seconds", accepted, **name)
        put(series, "event_resources", None if life.names is None else len(life.names), **name)

    def started(self, shown: set[str]) -> set[str]:
        """Return which of these ids are in progress."""
        return {item["EventId"] for key, item in self.events().items() if self.lives[key].phase == "Started"} & shown

    def fair(self, vm_name: str, shown: set[str]) -> None:
        """Assert that only this VM's events have series, as many as permitted, and that no event is dropped while a
        lesser one stays."""
        own = {item["EventId"]: self.lives[key].phase for key, item in self.own(vm_name).items()}
        assert shown <= set(own)
        assert len(shown) == min(MOST, len(own))
        if any(own[event_id] == "Started" for event_id in set(own) - shown):
            assert all(own[event_id] == "Started" for event_id in shown)
