"""The simulated platform, pure: given a scenario, a time and the approvals so far, what is the document?

No clock and no I/O. `Platform.timeline` plays the whole story for the approvals given; an approval changes only what
comes after it, so playing again after each approval, as `Play` does, never contradicts an earlier answer. Protocol
facts: Microsoft's documentation of Scheduled Events; the section is named in brackets.
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

# Each is answered with all fields and types: what an older version does not know yet is not left out.
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
# Of what happens at one instant the steps come first, then what is due by itself, then approvals.
_STEP, _DUE, _APPROVAL = range(3)

# A scenario in which nothing happens is repeated no faster than this.
_SHORTEST_REPETITION = timedelta(seconds=1)
SLOWEST, FASTEST = 0.001, 1e6


class AcceptedStartRequest(NamedTuple):
    """A StartRequest that was answered 200: the EventId in any letter case, and when (aware UTC)."""

    event_id: str
    at: datetime


class Change(Struct, frozen=True):
    """From `at` on (aware UTC) the document has these events and this number; while `silent` nothing is answered."""

    at: datetime
    incarnation: int
    events: tuple[Mapping[str, Any], ...]
    silent: bool = False

    def document(self) -> dict[str, Any]:
        """The answer's JSON object."""
        return {"DocumentIncarnation": self.incarnation, "Events": list(map(dict, self.events))}

    def knows(self, event_id: str) -> bool:
        """True if that EventId, letter case aside, is in the document: Scheduled or Started [Start an event]."""
        return any(folded(str(event["EventId"])) == folded(event_id) for event in self.events)


class Platform(Struct, frozen=True):
    """One play of a scenario from `start` (aware UTC) on, its time running `speed` times as fast as the wall's.

    `repetition` counts from 0: in each further one every EventId is another one, since an id never comes back.
    `incarnation` is the first number, the scenario's own for None.
    """

    scenario: Scenario
    start: datetime
    speed: float = 1.0
    repetition: int = 0
    incarnation: int | None = None

    def timeline(self, approvals: Iterable[AcceptedStartRequest] = ()) -> tuple[Change, ...]:
        """Every change in order, the first at `start`. Between two of them the document stands still."""
        return tuple(_Simulation(self, approvals).changes())

    def end(self, timeline: tuple[Change, ...]) -> datetime:
        """When the play is over: after the last change, and not before the scenario's least length."""
        return max(timeline[-1].at, self.start + self.span(self.scenario.length))

    def span(self, seconds: float) -> timedelta:
        """That much platform time as the wall measures it."""
        return timedelta(seconds=seconds / self.speed)


def current(timeline: tuple[Change, ...], now: datetime) -> Change:
    """The change in force at `now`; before the start it is the first."""
    return timeline[max(0, bisect_right(timeline, now, key=lambda change: change.at) - 1)]


def documents(
    scenario: Scenario, approvals: Iterable[AcceptedStartRequest] = ()
) -> Iterator[tuple[datetime, dict[str, Any]]]:
    """Each changed document with its time, without a server, from the scenario's own start.

    What can't be read (while the service is switched off) is left out: a reader sees the number jump.
    """
    for change in Platform(scenario, scenario.start).timeline(approvals):
        if not change.silent:
            yield change.at, change.document()


def whole_second(instant: datetime) -> datetime:
    """`instant`, rounded up: RFC 1123 has no fractions, and no event starts before its NotBefore."""
    whole = instant.replace(microsecond=0)
    return whole if whole == instant else whole + timedelta(seconds=1)


class _Event(Struct):
    """An event in the document: its fields, and how the platform treats it."""

    step: ScenarioStep
    fields: dict[str, Any]
    announced: datetime
    not_before: datetime | None
    approved: datetime | None = None
    started: bool = False

    def published(self) -> dict[str, Any]:
        """The event as the document has it. Of a malformed one the scenario's fields win over all others."""
        fields = {**_DEFAULTS, **self.fields}
        fields["EventStatus"] = "Started" if self.started else "Scheduled"
        fields["NotBefore"] = format_datetime(self.not_before, usegmt=True) if self.not_before else ""
        return {**fields, **self.fields} if self.step.malformed else fields


class _Simulation:
    """One play from first to last, as a discrete-event simulation: each action may schedule further ones."""

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
        """Every change in order, once."""
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
        """The document now; `last` itself if nothing changed [DocumentIncarnation grows whenever Events changes]."""
        events = tuple(event.published() for event in self._events.values())
        if self._restarted:
            self._restarted, self._number = False, 1
            return Change(now, self._number, events, self._silent)
        if last is None:
            # A repetition goes on from the number of the one before, which ended without events.
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
            # A host failure is not announced: the event is Started when it first appears [High level overview].
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
        """Start early once it is approved, by other tenants too where they are waited for [Start an event]."""
        if event.approved is None:
            return
        step = event.step
        agreed = step.others_approve_after
        if step.waits_for_all and (agreed is None or now < event.announced + self._platform.span(agreed)):
            return
        start = now + self._platform.span(step.start_after_approval)
        self._schedule(start, _DUE, lambda at: self._begin(event, at))

    def _set_notice(self, event: _Event, notice: float | None, now: datetime) -> None:
        if notice is None:
            return
        due = event.not_before = whole_second(now + self._platform.span(notice))
        # A NotBefore that was moved since starts nothing.
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
        """The fields, in a repetition with another EventId in the same letter case."""
        event_id = fields["EventId"]
        if not self._platform.repetition:
            return dict(fields)
        other = str(uuid.uuid5(uuid.UUID(event_id), str(self._platform.repetition)))
        return {**fields, "EventId": other.upper() if event_id.isupper() else other}


def utc(seconds: float) -> datetime:
    """Seconds since the epoch as an aware instant."""
    return datetime.fromtimestamp(seconds, UTC)


class Play:
    """A scenario played from `start` on, `speed` times as fast. Every `now` is an aware UTC argument: no clock is read.

    `repeat` begins it again when it is over, with other EventIds and the number going on.
    """

    def __init__(self, scenario: Scenario, *, start: datetime, speed: float = 1.0, repeat: bool = False) -> None:
        """Raises ValueError for a speed that is out of bounds."""
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
        """The document in force at that instant."""
        with self._lock:
            self._repeat_if_over(now)
            return current(self._timeline, now)

    def approve(self, event_ids: Collection[str], now: datetime) -> bool:
        """Approve events: True (a 200) if every id is in the document now, else nothing of it counts (a 400)."""
        with self._lock:
            self._repeat_if_over(now)
            document = current(self._timeline, now)
            if not all(document.knows(event_id) for event_id in event_ids):
                return False
            known = {approval.event_id for approval in self._approvals}
            new = {folded(event_id) for event_id in event_ids} - known
            self._approvals += [AcceptedStartRequest(event_id, now) for event_id in sorted(new)]
            self._timeline = self._platform.timeline(self._approvals)
            return True

    @property
    def approvals(self) -> tuple[AcceptedStartRequest, ...]:
        """The first accepted approval of each event of this repetition; ids in lower case."""
        with self._lock:
            return tuple(self._approvals)

    def changes(self, after: datetime, until: datetime) -> tuple[Change, ...]:
        """The changes later than `after` and not later than `until`, back to the repetition before this one."""
        with self._lock:
            self._repeat_if_over(until)
            return tuple(change for change in (*self._past, *self._timeline) if after < change.at <= until)

    def next_change(self, now: datetime) -> datetime | None:
        """When the document changes next without another approval; None if it does not."""
        with self._lock:
            return next((change.at for change in self._timeline if change.at > now), None)

    def finished(self, now: datetime) -> bool:
        """True once the play is over; never for a repeated one."""
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
