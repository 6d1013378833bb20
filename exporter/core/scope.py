"""Scope: which events concern this VM, and which of their transitions it publishes and counts.

Each event with a recorded beginning has exactly one recorded end. The document contains events of neighbours too,
`Resources` may change, and the name of this VM may become known late. So each tracked event keeps two facts: whether
it's in scope, its beginning recorded and its end not yet (`in_scope`), and its last known ownership (`ownership`; the
beginning of an event is counted when it becomes `OURS`). These and the current document determine what is published and
counted now:

    was in scope    is in scope
    no              yes           it begins: `scheduled` or `started`; joined, if it existed before without this VM
    yes             yes           its transitions
    yes             no            it left the scope: `ended`, not-this-vm
    no              no            nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from exporter.core.continuity import Continuity, DocumentStep, gap_reasons
from exporter.core.document import FIELDS, folded
from exporter.core.lifecycle import phase_of
from exporter.core.state import (
    CLOSING,
    NOT_THIS_VM,
    InterruptionTotals,
    Ownership,
    Phase,
    Rejection,
    State,
    TrackedEvent,
    Transition,
    TransitionKind,
)


class EventNow(NamedTuple):
    """An event as it concerns a VM of this name now; `vm_name` is empty while it's unknown.

    Gate, page, gauges, event files, and records all use it. A document may contain a field that can't be read, or show
    an event as Scheduled that has started. Neither undoes what is known: a field keeps its last readable value, and an
    event that has started remains Started until it's no longer in the document. Nothing is approved on such a value: a
    decision reads the document's own fields (`core/decision.py`).
    """

    tracked: TrackedEvent
    vm_name: str

    @property
    def last_readable(self) -> dict[str, Any]:
        """The last readable value, or None, of each Azure field that the document holds unreadable or twice.

        NotBefore is not included: `TrackedEvent.not_before` has it.
        """
        event = self.tracked.event
        names = {*event.faults, *event.disputed} & {*FIELDS} - {"EventId", "NotBefore"}
        resources = list(self.tracked.resources) if self.tracked.resources is not None else None
        earlier = {"EventType": self.tracked.event_type, "Resources": resources, "EventStatus": self.tracked.status}
        return {name: earlier.get(name) for name in sorted(names)}

    @property
    def ownership(self) -> Ownership:
        """Whether the last known Resources name this VM."""
        return ownership_of(self.tracked.resources, self.vm_name)

    @property
    def names_this_vm(self) -> bool | None:
        """`ownership` for JSON; None if unknown."""
        ownership = self.ownership
        return None if ownership is Ownership.MAYBE else ownership is Ownership.OURS

    @property
    def phase(self) -> Phase:
        """STARTED once it was seen Started; before that the last readable status."""
        return phase_of(self.tracked) if self.tracked.started_at is None else Phase.STARTED

    @property
    def starts_at(self) -> datetime | None:
        """The last known NotBefore of an event that has not started."""
        return self.tracked.not_before if self.tracked.started_at is None else None


def ownership_of(resources: tuple[str, ...] | None, vm_name: str) -> Ownership:
    """Return whether `Resources` name this VM: whole names, case-insensitive in ASCII. MAYBE if either is unknown."""
    if resources is None or not vm_name:
        return Ownership.MAYBE
    wanted = folded(vm_name)
    return Ownership.OURS if any(folded(name) == wanted for name in resources) else Ownership.THEIRS


_BEGINS: Final = {Phase.SCHEDULED: TransitionKind.SCHEDULED, Phase.STARTED: TransitionKind.STARTED}


def apply_scope(before: State, step: DocumentStep, vm_name: str, all_events: bool) -> DocumentStep:
    """Return the part of the step from `before` that a VM of this name publishes and counts.

    `all_events` includes events of other VMs. `vm_name` is empty while it's unknown. While document, name, and scope
    are unchanged, the events are not examined again.
    """
    scoped_as = (vm_name, all_events)
    if not step.changed and before.scoped_as == scoped_as:
        return step
    scope = _Scope(vm_name, all_events, step.continuity)
    moves = {move.tracked.key: move for move in step.transitions}
    for key, move in moves.items():
        if move.kind in CLOSING:
            scope.on_event_removed(before.tracked[key], move)
    tracked = {
        key: scope.on_event_present(before.tracked.get(key), after, moves.get(key))
        for key, after in step.state.tracked.items()
    }
    newly_in_scope = {rejection.key: rejection for rejection in scope.rejections}
    rejections = [
        rejection
        for rejection in step.rejections
        if not rejection.key or (tracked[rejection.key].in_scope and rejection.key not in newly_in_scope)
    ]
    return replace(
        step,
        state=replace(step.state, tracked=tracked, scoped_as=scoped_as),
        transitions=tuple(scope.published),
        rejections=(*rejections, *scope.rejections),
        counted=tuple(scope.counted),
    )


class _Scope:
    """Examines one document, event by event; the results are in the three lists."""

    def __init__(self, vm_name: str, all_events: bool, continuity: Continuity) -> None:
        self._vm_name = vm_name
        self._all = all_events
        self._continuity = continuity
        self._now = continuity.now
        self.published: list[Transition] = []
        self.counted: list[Transition] = []
        self.rejections: list[Rejection] = []

    def on_event_removed(self, was: TrackedEvent, move: Transition) -> None:
        """Publish and count the end of an event. One whose ownership becomes known only now counts at both ends."""
        if was.in_scope:
            self.published.append(move)
        if was.ownership is not Ownership.OURS:
            if EventNow(was, self._vm_name).ownership is not Ownership.OURS:
                return
            self.counted += self._beginnings(was)
        self.counted.append(move)

    def on_event_present(self, was: TrackedEvent | None, after: TrackedEvent, move: Transition | None) -> TrackedEvent:
        """Return an event of the document with its current `in_scope` and `ownership`."""
        was_in_scope, before = (bool(was.in_scope), was.ownership) if was else (False, None)
        ownership = self._ownership_now(was, before, after)
        in_scope = self._all or ownership is not Ownership.THEIRS
        if was is None or (was_in_scope == in_scope and before == ownership):
            after = _marked(after, in_scope, ownership)
            if move:
                self.published += [move] if in_scope else []
                self.counted += [move] if ownership is Ownership.OURS else []
            return after
        joins = before is Ownership.THEIRS and ownership is not Ownership.THEIRS
        as_new = self._first_seen_now(after) if joins else after
        if joins:  # takeover and settling begin now, even if its records don't
            after = replace(after, first_seen_at=as_new.first_seen_at, unchanged_at=as_new.unchanged_at)
        after = _marked(as_new if in_scope and not was_in_scope else after, in_scope, ownership)
        self._publish(was, after, move, was_in_scope=was_in_scope, joined=ownership is not Ownership.THEIRS)
        if before is Ownership.OURS and ownership is Ownership.THEIRS:
            # If its status was unknown until its end, it counts at both ends.
            self.counted.append(replace(self._left(was, after, move), newly_seen=was.phase is Phase.UNKNOWN))
        elif before is Ownership.OURS:
            self.counted += [move] if move else []
        elif ownership is Ownership.OURS:
            self.counted += self._beginnings(as_new)
        return after

    def _ownership_now(self, was: TrackedEvent | None, before: Ownership | None, after: TrackedEvent) -> Ownership:
        """Return the ownership; while this VM's name is unknown: as before, or MAYBE if THEIRS has other Resources."""
        ownership = EventNow(after, self._vm_name).ownership
        if ownership is not Ownership.MAYBE or was is None or before is None:
            return ownership
        return Ownership.MAYBE if before is Ownership.THEIRS and was.resources != after.resources else before

    def _first_seen_now(self, tracked: TrackedEvent) -> TrackedEvent:
        """Return an event that now names this VM, as first seen now. Its approval and `started_before` stay."""
        return replace(
            tracked,
            first_seen=self._now,
            seen_before=self._continuity.seen_before,
            first_seen_at=self._continuity.observed_seconds,
            unchanged_at=self._continuity.observed_seconds,
            first_not_before=tracked.not_before,
            scheduled_seen=tracked.phase is Phase.SCHEDULED,
            started=self._now if tracked.started else None,
            interruptions=InterruptionTotals(),
            updates=0,
            updates_while_started=0,
            gaps=0,
            gap_seconds=0.0,
            started_gaps=0,
        )

    def _publish(
        self, was: TrackedEvent, after: TrackedEvent, move: Transition | None, *, was_in_scope: bool, joined: bool
    ) -> None:
        if was_in_scope and after.in_scope:
            self.published += [replace(move, tracked=after)] if move else []
        elif after.in_scope:
            if kind := _BEGINS.get(after.phase):
                self.published.append(replace(self._move(kind, after, move), newly_seen=True, joined=joined))
            if after.faults_recorded:  # not recorded while it was out of scope
                self.rejections.append(Rejection(", ".join(after.faults_recorded), after.event.raw, after.key))
        elif was_in_scope:
            self.published.append(self._left(was, after, move))

    def _beginnings(self, tracked: TrackedEvent) -> Iterator[Transition]:
        """Yield the transitions to count for an event that is known from now on to be of this VM.

        Without a known status there are none: such an event counts when it has one, or at its end.
        """
        if tracked.scheduled_seen:
            yield replace(self._move(TransitionKind.SCHEDULED, tracked, None), newly_seen=True)
        if tracked.phase is Phase.STARTED:
            yield replace(self._move(TransitionKind.STARTED, tracked, None), newly_seen=not tracked.scheduled_seen)

    def _left(self, was: TrackedEvent, tracked: TrackedEvent, move: Transition | None) -> Transition:
        """Return the closing transition of an event that stays in the document without this VM.

        `was` is the tracked event before that document.
        """
        over = replace(tracked, closed=self._now, outcome=TransitionKind.ENDED)
        ending = self._move(TransitionKind.ENDED, over, move)
        return replace(ending, unseen=(*ending.unseen, NOT_THIS_VM), last_published=was)

    def _move(self, kind: TransitionKind, tracked: TrackedEvent, move: Transition | None) -> Transition:
        changed, gap = move.changed if move else {}, self._continuity.recorded_gap_seconds
        return Transition(kind, tracked, changed, gap=gap, unseen=gap_reasons(self._continuity))


def _marked(tracked: TrackedEvent, in_scope: bool, ownership: Ownership) -> TrackedEvent:
    if tracked.in_scope == in_scope and tracked.ownership == ownership:
        return tracked
    return replace(tracked, in_scope=in_scope, ownership=ownership)
