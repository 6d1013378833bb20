"""The simulated platform: computes the document from a scenario, a time, and the approvals so far.

No clock and no I/O. `Platform.timeline` plays the whole scenario with the given approvals. An approval changes only
later documents, so `Play` can replay the scenario after each approval without contradicting an earlier response.
Protocol facts come from Microsoft's documentation of Scheduled Events, with its section in brackets.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from exporter.core.document import folded
from exporter.simulator.metadata.scenario import Action, EventMoment, Scenario, ScenarioStep

# Every version gets all fields and types, including those that older versions lack.
API_VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")

_DEFAULTS: Mapping[str, Any] = {
    "EventId": "",
    "EventStatus": "",
    "EventType": "",
    "ResourceType": "VirtualMachine",
    "Resources": [],
    "NotBefore": "",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
# At one instant, steps come first, then due transitions, then approvals.
_STEP, _DUE, _APPROVAL = range(3)

# The shortest repetition, for scenarios without any change.
_SHORTEST_REPETITION = timedelta(seconds=1)
SLOWEST, FASTEST = 0.001, 1e6


class AcceptedStartRequest(NamedTuple):
    """A StartRequest that got a 200: the EventId in any letter case, and the time (aware UTC)."""

    event_id: str
    at: datetime


class Change(Struct, frozen=True):
    """The document from `at` on (aware UTC); while `silent`, the service sends no response."""

    at: datetime
    incarnation: int
    events: tuple[Mapping[str, Any], ...]
    silent: bool = False

    def document(self) -> dict[str, Any]:
        """Return the document as a JSON object."""
        return {"DocumentIncarnation": self.incarnation, "Events": list(map(dict, self.events))}

    def knows(self, event_id: str) -> bool:
        """Return whether the document has this EventId in any letter case, Scheduled or Started [Start an event]."""
        return any(folded(str(event["EventId"])) == folded(event_id) for event in self.events)


class Platform(Struct, frozen=True):
    """One play of a scenario from `start` (aware UTC) on, `speed` times as fast as the wall clock.

    `repetition` counts from 0; each has different EventIds, since an id is never reused. `incarnation` is the first
    DocumentIncarnation; None for the scenario's.
    """

    scenario: Scenario
    start: datetime
    speed: float = 1.0
    repetition: int = 0
    incarnation: int | None = None

    def timeline(self, approvals: Iterable[AcceptedStartRequest] = ()) -> tuple[Change, ...]:
        """Return every change in order, the first at `start`. Between two changes the document doesn't change."""
        return tuple(_Simulation(self, approvals).changes())

    def end(self, timeline: tuple[Change, ...]) -> datetime:
        """Return the time at which the play ends: after the last change and the scenario's minimum length."""
        return max(timeline[-1].at, self.start + self.span(self.scenario.length))

    def span(self, seconds: float) -> timedelta:
        """Return the wall-clock time for this many seconds of platform time."""
        return timedelta(seconds=seconds / self.speed)


def current(timeline: tuple[Change, ...], now: datetime) -> Change:
    """Return the change in effect at `now`; before the start, the first one."""
    return timeline[max(0, bisect_right(timeline, now, key=lambda change: change.at) - 1)]


def documents(
    scenario: Scenario, approvals: Iterable[AcceptedStartRequest] = ()
) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """Yield each changed document with its time, without a server, from the scenario's start.

    Documents while the service is switched off are left out: a reader sees DocumentIncarnation jump.
    """
    for change in Platform(scenario, scenario.start).timeline(approvals):
        if not change.silent:
            yield change.at, change.document()


def whole_second(instant: datetime) -> datetime:
    """Return `instant` rounded up: RFC 1123 has no fractions, and no event starts before its NotBefore."""
    whole = instant.replace(microsecond=0)
    return whole if whole == instant else whole + timedelta(seconds=1)


class _Event(Struct):
    """An event in the document: its fields and its state on the platform."""

    step: ScenarioStep
    fields: dict[str, Any]
    announced: datetime
    not_before: datetime | None
    approved: datetime | None = None
    started: bool = False

    def published(self) -> dict[str, Any]:
        """Return the event as in the document. If it is malformed, the scenario's fields override all others."""
        fields = {**_DEFAULTS, **self.fields}
        fields["EventStatus"] = "Started" if self.started else "Scheduled"
        fields["NotBefore"] = format_datetime(self.not_before, usegmt=True) if self.not_before else ""
        return {**fields, **self.fields} if self.step.malformed else fields


class _Simulation:
    """A discrete-event simulation of one whole play: each action may schedule further ones."""

    def __init__(self, platform: Platform, approvals: Iterable[AcceptedStartRequest]) -> None:
        scenario = platform.scenario
        self._platform = platform
        self._number = scenario.incarnation if platform.incarnation is None else platform.incarnation
        self._events: dict[str, _Event] = {}
        self._silent = self._restarted = False
        self._silent_until = platform.start
        self._order = itertools.count()
        self._queue: list[tuple[datetime, int, int, Callable[[datetime], None]]] = []
        self._waiting: dict[tuple[str, EventMoment], list[ScenarioStep]] = {}
        self._schedule(platform.start, _STEP, lambda _: None)
        for step in scenario.steps:
            if step.after is None:
                self._schedule(platform.start + platform.span(step.delay), _STEP, self._act(step))
            else:
                self._waiting.setdefault(step.after, []).append(step)
        for approval in approvals:
            self._schedule(approval.at, _APPROVAL, self._approval(approval.event_id))

    def changes(self) -> Iterator[Change]:
        """Yield every change in order. Can be called once."""
        last: Change | None = None
        while self._queue:
            now = self._queue[0][0]
            while self._queue and self._queue[0][0] == now:
                heapq.heappop(self._queue)[3](now)
            if now < self._platform.start:
                continue
            change = self._document_at(now, last)
            if change is not last:
                last = change
                yield change

    def _document_at(self, now: datetime, last: Change | None) -> Change:
        """Return the document now; `last` itself if unchanged [DocumentIncarnation grows whenever Events changes]."""
        events = tuple(event.published() for event in self._events.values())
        if self._restarted:
            self._restarted, self._number = False, 1
            return Change(now, self._number, events, self._silent)
        if last is None:
            # A repetition continues with the previous one's number; that one ended without events.
            self._number += 1 if self._platform.repetition and events else 0
        elif events != last.events:
            self._number += 1
        elif self._silent == last.silent:
            return last
        return Change(now, self._number, events, self._silent)

    def _schedule(self, at: datetime, rank: int, act: Callable[[datetime], None]) -> None:
        heapq.heappush(self._queue, (at, rank, next(self._order), act))

    def _act(self, step: ScenarioStep) -> Callable[[datetime], None]:
        actions: Mapping[Action, Callable[[ScenarioStep, datetime], None]] = {
            Action.ANNOUNCE: self._announce,
            Action.CHANGE: self._change,
            Action.START: self._start_now,
            Action.CANCEL: self._cancel,
            Action.SWITCH_OFF: self._switch_off,
        }
        return lambda now: actions[step.action](step, now)

    def _announce(self, step: ScenarioStep, now: datetime) -> None:
        event = _Event(step, self._with_event_id(step.fields), now, None)
        self._events[step.event] = event
        self._set_notice(event, step.notice, now)
        if step.waits_for_all and step.others_approve_after is not None:
            agreed = now + self._platform.span(step.others_approve_after)
            self._schedule(agreed, _DUE, lambda at: self._start_if_agreed(event, at))
        self._reach(step.event, EventMoment.ANNOUNCED, now)

    def _change(self, step: ScenarioStep, now: datetime) -> None:
        event = self._events.get(step.event)
        if event is None:
            return
        event.fields = {**event.fields, **{key: value for key, value in step.fields.items() if key != "EventId"}}
        event.step = replace(event.step, malformed=event.step.malformed or step.malformed)
        if not event.started:
            self._set_notice(event, step.notice, now)

    def _start_now(self, step: ScenarioStep, now: datetime) -> None:
        event = self._events.get(step.event)
        if event is None and "EventId" in step.fields:
            # A host failure has no announcement: the event is Started when it first appears [High level overview].
            event = self._events[step.event] = _Event(step, self._with_event_id(step.fields), now, None)
        self._begin(event, now)

    def _cancel(self, step: ScenarioStep, now: datetime) -> None:
        event = self._events.get(step.event)
        if event is not None and not event.started:
            self._remove(event, now)

    def _switch_off(self, step: ScenarioStep, now: datetime) -> None:
        until = now + self._platform.span(step.lasts)
        if until > max(now, self._silent_until):
            self._silent, self._silent_until = True, until
            self._schedule(until, _DUE, self._switch_on)

    def _switch_on(self, now: datetime) -> None:
        if now >= self._silent_until:
            self._silent, self._restarted = False, True

    def _approval(self, event_id: str) -> Callable[[datetime], None]:
        def approve(now: datetime) -> None:
            for event in list(self._events.values()):
                if folded(str(event.fields["EventId"])) != folded(event_id) or event.started or event.approved:
                    continue
                event.approved = now
                self._reach(event.step.event, EventMoment.APPROVED, now)
                self._start_if_agreed(event, now)

        return approve

    def _start_if_agreed(self, event: _Event, now: datetime) -> None:
        """Start the event early once it is approved, also by the other tenants if required [Start an event]."""
        if event.approved is None:
            return
        step = event.step
        agreed = step.others_approve_after
        if step.waits_for_all and (agreed is None or now < event.announced + self._platform.span(agreed)):
            return
        self._schedule(now + self._platform.span(step.start_after_approval), _DUE, lambda at: self._begin(event, at))

    def _set_notice(self, event: _Event, notice: float | None, now: datetime) -> None:
        if notice is None:
            return
        due = event.not_before = whole_second(now + self._platform.span(notice))
        # A NotBefore that was moved in the meantime starts nothing.
        self._schedule(due, _DUE, lambda at: self._begin(event, at) if event.not_before == due else None)

    def _begin(self, event: _Event | None, now: datetime) -> None:
        if event is None or event.started or self._events.get(event.step.event) is not event:
            return
        event.started, event.not_before = True, None
        self._schedule(now + self._platform.span(event.step.lasts), _DUE, lambda at: self._remove(event, at))
        self._reach(event.step.event, EventMoment.STARTED, now)

    def _remove(self, event: _Event, now: datetime) -> None:
        if self._events.get(event.step.event) is not event:
            return
        del self._events[event.step.event]
        self._reach(event.step.event, EventMoment.GONE, now)

    def _reach(self, label: str, phase: EventMoment, now: datetime) -> None:
        for step in self._waiting.pop((label, phase), []):
            self._schedule(now + self._platform.span(step.delay), _STEP, self._act(step))

    def _with_event_id(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields; in a repetition, with a different EventId in the same letter case."""
        event_id = fields["EventId"]
        if not self._platform.repetition:
            return dict(fields)
        other = str(uuid.uuid5(uuid.UUID(event_id), str(self._platform.repetition)))
        return {**fields, "EventId": other.upper() if event_id.isupper() else other}


def utc(seconds: float) -> datetime:
    """Return seconds since the epoch as an aware datetime."""
    return datetime.fromtimestamp(seconds, UTC)


class Play:
    """A scenario played from `start` on, `speed` times as fast. Thread-safe; reads no clock: every `now` is aware UTC.

    `repeat` restarts it at its end, with different EventIds and a DocumentIncarnation that continues.
    """

    def __init__(self, scenario: Scenario, *, start: datetime, speed: float = 1.0, repeat: bool = False) -> None:
        """Start the play. Raises ValueError if `speed` is out of bounds."""
        if not SLOWEST <= speed <= FASTEST:
            raise ValueError(f"speed: expected a number from {SLOWEST} to {FASTEST:.0f}")
        self.scenario = scenario
        self.speed = speed
        self._repeat = repeat
        self._lock = threading.Lock()
        self._approvals: list[AcceptedStartRequest] = []
        self._platform = Platform(scenario, start, speed)
        self._timeline = self._platform.timeline()
        self._past: tuple[Change, ...] = ()

    def now(self, now: datetime) -> Change:
        """Return the change in effect at `now`."""
        with self._lock:
            self._repeat_if_over(now)
            return current(self._timeline, now)

    def approve(self, event_ids: Collection[str], now: datetime) -> bool:
        """Approve events. Return True (a 200) if every id is in the document, else approve none (a 400)."""
        with self._lock:
            self._repeat_if_over(now)
            document = current(self._timeline, now)
            if not all(document.knows(event_id) for event_id in event_ids):
                return False
            new = {folded(event_id) for event_id in event_ids} - {approval.event_id for approval in self._approvals}
            self._approvals += [AcceptedStartRequest(event_id, now) for event_id in sorted(new)]
            self._timeline = self._platform.timeline(self._approvals)
            return True

    @property
    def approvals(self) -> tuple[AcceptedStartRequest, ...]:
        """The first accepted approval of each event in this repetition; ids in lower case."""
        with self._lock:
            return tuple(self._approvals)

    def changes(self, after: datetime, until: datetime) -> tuple[Change, ...]:
        """Return the changes after `after` up to and including `until`, as far back as the previous repetition."""
        with self._lock:
            self._repeat_if_over(until)
            return tuple(change for change in (*self._past, *self._timeline) if after < change.at <= until)

    def next_change(self, now: datetime) -> datetime | None:
        """Return the time of the next change without a further approval; None if there is none."""
        with self._lock:
            return next((change.at for change in self._timeline if change.at > now), None)

    def finished(self, now: datetime) -> bool:
        """Return whether the play has ended; never True for a repeated one."""
        with self._lock:
            return not self._repeat and now >= self._platform.end(self._timeline)

    def _repeat_if_over(self, now: datetime) -> None:
        while self._repeat:
            end = max(self._platform.end(self._timeline), self._platform.start + _SHORTEST_REPETITION)
            if now < end:
                return
            last = self._timeline[-1]
            self._past, self._approvals = self._timeline, []
            self._platform = Platform(
                self.scenario, end, self.speed, repetition=self._platform.repetition + 1, incarnation=last.incarnation
            )
            self._timeline = self._platform.timeline()
