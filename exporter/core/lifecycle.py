"""The state machine of events: the transitions between two documents, as a pure function of state and document.

The metadata service never reports "completed" or "canceled": a finished event is no longer in the document. The
transition follows from the last observed phase and the continuity of polling; after a gap it is `ended`.

                       status of the event in the next valid document
    last phase     Scheduled      Started     other status     absent
    ----------     ---------      -------     ------------     ------
    (absent)       scheduled      started     rejected         -
    SCHEDULED      updated*       started     updated          canceled or ended
    STARTED        updated        updated*    updated          completed
    UNKNOWN        scheduled      started     updated*         ended

    * only if a field changed. The table is `MOVES`; a test checks every pair.

Source: Azure's documentation of Scheduled Events, section "High level overview".
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from exporter.core.continuity import (
    Continuity,
    DocumentStep,
    anomaly_of,
    continuity_of,
    gap_reasons,
    is_unchanged,
    reset_after,
)
from exporter.core.document import FIELDS, Document, Event, Likeness, Rejected, folded
from exporter.core.memory import close
from exporter.core.state import (
    EMPTY,
    Instant,
    Phase,
    Rejection,
    Seen,
    StartedBy,
    State,
    TrackedEvent,
    Transition,
    TransitionKind,
)

EARLY_SECONDS: Final = 10.0
"""A start this long before NotBefore followed an approval; a smaller difference may come from the clocks."""


MOVES: Final[Mapping[tuple[Phase | None, Phase | None], TransitionKind | None]] = {
    (None, None): None,
    (None, Phase.SCHEDULED): TransitionKind.SCHEDULED,
    (None, Phase.STARTED): TransitionKind.STARTED,
    (None, Phase.UNKNOWN): None,
    (Phase.SCHEDULED, Phase.SCHEDULED): None,
    (Phase.SCHEDULED, Phase.STARTED): TransitionKind.STARTED,
    (Phase.SCHEDULED, Phase.UNKNOWN): TransitionKind.UPDATED,
    (Phase.SCHEDULED, None): TransitionKind.CANCELED,
    (Phase.STARTED, Phase.SCHEDULED): TransitionKind.UPDATED,
    (Phase.STARTED, Phase.STARTED): None,
    (Phase.STARTED, Phase.UNKNOWN): TransitionKind.UPDATED,
    (Phase.STARTED, None): TransitionKind.COMPLETED,
    (Phase.UNKNOWN, Phase.SCHEDULED): TransitionKind.SCHEDULED,
    (Phase.UNKNOWN, Phase.STARTED): TransitionKind.STARTED,
    (Phase.UNKNOWN, Phase.UNKNOWN): None,
    (Phase.UNKNOWN, None): TransitionKind.ENDED,
}
"""The transition from the last phase to the next (None: not in the document). After a gap CANCELED becomes ENDED."""


EVENT_MEMORY_BYTES: Final = 4 << 20


def advance(
    state: State,
    document: Document,
    now: Instant,
    poll_interval: float = 1.0,
    event_memory_bytes: int = EVENT_MEMORY_BYTES,
) -> DocumentStep:
    """Return the state after a valid document, and every transition in it. Total: no document or state is refused.

    `poll_interval` is in seconds; `event_memory_bytes` bounds the closed events and what is kept of earlier documents.
    """
    document = document.with_unread(tracked.event for tracked in _possibly_hidden(state, document))
    continuity = continuity_of(state, document, now, poll_interval)
    anomaly = anomaly_of(state, document)
    touched = replace(
        _with_warmup(state, document, now, again=anomaly == "incarnation-restarted"),
        last_good=now,
        observed_seconds=continuity.observed_seconds,
        document_rejected="",
        reset=reset_after(state, document, continuity),
    )
    if state.document is not None and is_unchanged(document, state.document):
        return DocumentStep(_with_gap(touched, continuity), continuity)
    transitions: list[Transition] = []
    tracked: dict[str, TrackedEvent] = {}
    for event in document.events:
        after, transition = _follow(_before(state, event.key), event, continuity)
        tracked[event.key] = after
        if transition:
            transitions.append(transition)
    leaving = [before for key, before in state.tracked.items() if key not in tracked]
    started = newly_started(state.tracked.keys(), document.events) if leaving else {}
    closing = [_close_event(before, continuity, started) for before in leaving]
    seen = replace(touched, document=document, tracked=_bounded(tracked, event_memory_bytes))
    after_all = close(seen, [transition.tracked for transition in closing], now.wall, event_memory_bytes)
    final, rejections = rejected(after_all, document)
    return DocumentStep(final, continuity, tuple(closing + transitions), rejections, True, anomaly)


def _possibly_hidden(state: State, document: Document) -> Iterator[TrackedEvent]:
    """Yield the events missing in the document that may still be in it: beyond its bound, or with an unreadable id.

    Such an element has the event's type and resources. It hides one event at most, and none if it was already there
    next to the event. A hidden event remains hidden while there is an element for it.
    """
    beyond = {folded(item.raw["EventId"]) for item in document.rejected if item.fault == "too-many-events"}
    hiding = _likenesses(document)
    if not (beyond or hiding):
        return
    others = _likenesses(state.document)
    others.subtract(likeness(tracked) for tracked in state.tracked.values() if tracked.event.is_unread)
    hiding -= +others
    present = {event.key for event in document.events}
    missing = [tracked for key, tracked in state.tracked.items() if key not in present]
    for tracked in sorted(missing, key=lambda tracked: not tracked.event.is_unread):
        like = likeness(tracked)
        if tracked.key in beyond or hiding[like] > 0:
            hiding[like] -= 1
            yield tracked


def _likenesses(document: Document | None) -> Counter[Likeness | None]:
    """Return the number of elements without a readable id, by type and resources."""
    return Counter(item.likeness for item in (document.rejected if document else ()) if item.likeness)


def _with_warmup(state: State, document: Document, now: Instant, *, again: bool) -> State:
    """Return the state with the start of the service's warm-up, which ends with the first event in a document."""
    flows = bool(document.events or document.rejected)
    if state.first_answer is None or again:
        return replace(state, first_answer=now, events_seen_since_warmup=flows)
    return replace(state, events_seen_since_warmup=True) if flows and not state.events_seen_since_warmup else state


def _with_gap(state: State, continuity: Continuity) -> State:
    """Add a gap between polls to every tracked event that it covers."""
    if continuity.steady or not state.tracked:
        return state
    return replace(state, tracked={key: _gapped(tracked, continuity) for key, tracked in state.tracked.items()})


def _gapped(tracked: TrackedEvent, continuity: Continuity) -> TrackedEvent:
    if continuity.steady:
        return tracked
    known = tracked.gap_seconds is not None and continuity.recorded_gap_seconds is not None
    away = (tracked.gap_seconds or 0.0) + (continuity.recorded_gap_seconds or 0.0) if known else None
    gapped = replace(tracked, gaps=tracked.gaps + 1, gap_seconds=away)
    seconds = continuity.observed_seconds
    return replace(gapped, first_seen_at=seconds, unchanged_at=seconds) if continuity.anew else gapped


def _before(state: State, key: str) -> TrackedEvent:
    """Return the tracked or closed event of an id, or a new one whose record numbers repeat no earlier ones."""
    return state.tracked_or_closed(key) or replace(
        _NEW,
        numbers={"": state.evictions * 1_000_000} if state.evictions else EMPTY,
        approval=state.sent.get(key, _NEW.approval),
        started_before=key in state.started_ids,
    )


_EPOCH = Instant(datetime.fromisoformat("1970-01-01T00:00:00+00:00"))
_NEW = TrackedEvent(Event(""), Phase.UNKNOWN, _EPOCH, Seen.GAP, 0.0, 0.0, closed=_EPOCH)


def _follow(before: TrackedEvent, event: Event, continuity: Continuity) -> tuple[TrackedEvent, Transition | None]:
    """Return one event of the new document as tracked event, and its transition if there is one."""
    present = before.closed is None
    phase = _shown(event)
    changed = changes(before.event, event) if present else {}
    kind = MOVES[before.phase if present else None, phase]
    if present and not changed and before.event.status == event.status and kind is not TransitionKind.STARTED:
        kind = None
    elif kind is None and changed:
        kind = TransitionKind.UPDATED
    unexpected = kind is TransitionKind.UPDATED and phase is not before.phase
    started = _gapped(before, continuity) if present else _first_seen(before, event, continuity)
    if kind is None and started is before and event == before.event:
        return before, None  # the same object keeps its text on disk
    unsettled = bool(changed) or unexpected or event.is_ambiguous or (present and before.event.is_ambiguous)
    after = _moved(started, event, kind, changed=unsettled, continuity=continuity)
    if kind is None:
        return after, None
    first = not present or (before.phase is Phase.UNKNOWN and kind is not TransitionKind.UPDATED)
    gap, reasons = continuity.recorded_gap_seconds, gap_reasons(continuity)
    return after, Transition(kind, after, changed, unexpected, first, gap, reasons)


def _first_seen(before: TrackedEvent, event: Event, continuity: Continuity) -> TrackedEvent:
    """Return a new tracked event, with the record numbers and the approval of an earlier event with the same id.

    Azure may have accepted that approval, and an id that disappears and returns must not evade the backoff.
    """
    return TrackedEvent(
        event=event,
        phase=Phase.UNKNOWN,
        first_seen=continuity.now,
        seen_before=continuity.seen_before,
        first_seen_at=continuity.observed_seconds,
        unchanged_at=continuity.observed_seconds,
        first_not_before=event.not_before,
        approval=replace(before.approval, last_failure="", failures=EMPTY),
        started_before=before.was_started,
        numbers=before.numbers,
    )


def _moved(
    before: TrackedEvent, event: Event, kind: TransitionKind | None, *, changed: bool, continuity: Continuity
) -> TrackedEvent:
    """Return `before` with the event of the new document. An unknown status leaves the phase unchanged."""
    phase = _shown(event)
    starting = before.started_at is None and kind is TransitionKind.STARTED
    return replace(
        before,
        event=event,
        phase=before.phase if phase is Phase.UNKNOWN else phase,
        not_before=("NotBefore" in event.disputed and before.not_before) or event.not_before or before.not_before,
        earlier_event_type=before.event_type if "EventType" in event.disputed or not event.event_type else None,
        earlier_resources=before.resources if "Resources" in event.disputed or event.resources is None else None,
        earlier_status=before.status if "EventStatus" in event.disputed or not event.status else None,
        scheduled_seen=before.scheduled_seen or phase is Phase.SCHEDULED,
        started=continuity.now if starting else before.started,
        started_gaps=before.gaps if starting else before.started_gaps,
        started_by=_started_by(before, continuity) if starting else before.started_by,
        unchanged_at=continuity.observed_seconds if changed or starting else before.unchanged_at,
        updates=before.updates + (kind is TransitionKind.UPDATED),
        updates_while_started=before.updates_while_started
        + (kind is TransitionKind.UPDATED and before.phase is Phase.STARTED),
    )


def _started_by(before: TrackedEvent, continuity: Continuity) -> StartedBy:
    """Return what started an event.

    A start well before NotBefore without an approval of this VM was caused by another VM, ARM, or Azure itself. An id
    belongs to one event: an accepted approval of it counts whatever the clocks did since, even if the event was absent
    in between.
    """
    if before.approval.accepted_at is not None:
        return StartedBy.THIS_VM
    if not before.scheduled_seen or before.not_before is None or before.approval.doubtful:
        return StartedBy.UNKNOWN
    late = (continuity.now.wall - before.not_before).total_seconds()
    if late < -EARLY_SECONDS:
        return StartedBy.OTHER
    last_scheduled_late = continuity.gap is not None and late >= continuity.gap
    return StartedBy.NOT_BEFORE if late >= 0 and (continuity.steady or last_scheduled_late) else StartedBy.UNKNOWN


def _close_event(before: TrackedEvent, continuity: Continuity, started: Mapping[Likeness | None, str]) -> Transition:
    """Return the closing transition of an event: CANCELED only if nothing else can have happened.

    An event that may continue under a new id, one of those in `started` by their likeness, is ENDED.
    """
    before = _gapped(before, continuity)
    kind = MOVES[before.phase, None]
    assert kind is not None, "every phase has a way out"  # noqa: S101  # the table is total, and a test walks it
    unseen = gap_reasons(continuity) if kind is TransitionKind.COMPLETED else _unseen(before, continuity)
    replaced_by = started.get(likeness(before), "") if kind is TransitionKind.CANCELED and started else ""
    if replaced_by:
        unseen = (*unseen, "replaced")
    if kind is TransitionKind.CANCELED and unseen:
        kind = TransitionKind.ENDED
    after = replace(before, closed=continuity.now, outcome=kind)
    return Transition(kind, after, gap=continuity.recorded_gap_seconds, unseen=unseen, replaced_by=replaced_by)


def _unseen(before: TrackedEvent, continuity: Continuity) -> tuple[str, ...]:
    reasons = list(continuity.unseen)
    if phase_of(before.event) is Phase.UNKNOWN or before.event.is_unread:  # by its last status, even after a known one
        reasons.append("unknown-status")
    elif before.started_at is not None:
        reasons.append("was-started")
    if before.approval.accepted_at is not None:
        reasons.append("approved")
    elif before.approval.doubtful:
        reasons.append("approval-unanswered")
    ahead = before.event.not_before if "NotBefore" not in before.event.disputed else None
    if ahead is None:  # an earlier readable one may have moved
        reasons.append("not-before-unknown")
    elif continuity.now.wall >= ahead:
        reasons.append("not-before-passed")
    return tuple(reasons)


def _bounded(tracked: dict[str, TrackedEvent], budget: int) -> dict[str, TrackedEvent]:
    """Limit fields that only earlier documents contained to `budget` bytes: each document could add its whole size."""
    for key, entry in sorted(tracked.items(), key=lambda item: item[1].earlier_bytes):  # the smallest stay
        budget -= entry.earlier_bytes
        if budget < 0 < entry.earlier_bytes:
            tracked[key] = replace(entry, earlier_event_type=None, earlier_resources=None, earlier_status=None)
    return tracked


def phase_of(event: Event | TrackedEvent) -> Phase:
    """Return the phase of an event by its status only; UNKNOWN for a status that this version doesn't know."""
    try:
        return Phase(event.status or "")
    except ValueError:
        return Phase.UNKNOWN


def _shown(event: Event) -> Phase:
    """Return the phase that a document shows: also STARTED if it contains the id a second time, as Started."""
    return Phase.STARTED if event.started_twin else phase_of(event)


def likeness(event: Event | TrackedEvent) -> Likeness | None:
    """Return the type and resources that two ids of one event share, if one replaces the other; None if unknown."""
    if event.event_type is None or event.resources is None:
        return None
    return event.event_type, frozenset(map(folded, event.resources))


def newly_started(known: Iterable[str], events: Iterable[Event]) -> dict[Likeness | None, str]:
    """Return the ids that are new and Started, by their likeness. Some simulators give each status a new id."""
    ids: dict[Likeness | None, str] = {}
    for event in events:
        like = likeness(event) if _shown(event) is Phase.STARTED and event.key not in known else None
        if like is not None:
            ids.setdefault(like, event.event_id)
    return ids


def changes(old: Event, new: Event) -> dict[str, tuple[Any, Any]]:
    """Return Azure's fields that differ, with old and new value.

    Not included: a move between the known statuses, losing NotBefore at the start, another spelling of the id or a
    time.
    """
    names = {*old.raw, *new.raw} - {"EventId", "EventStatus"}
    changed: dict[str, tuple[Any, Any]] = {}
    for name in sorted(names):
        if name == "NotBefore" and _same_not_before(old, new):
            continue
        if old.raw.get(name) != new.raw.get(name) or (name in FIELDS and (name in old.faults) != (name in new.faults)):
            changed[name] = (old.raw.get(name), new.raw.get(name))
    if old.status != new.status and Phase.UNKNOWN in (phase_of(old), phase_of(new)):
        changed["EventStatus"] = (old.raw.get("EventStatus"), new.raw.get("EventStatus"))
    return changed


def _same_not_before(old: Event, new: Event) -> bool:
    if old.not_before is not None and old.not_before == new.not_before:
        return True
    return phase_of(old) is not Phase.STARTED and phase_of(new) is Phase.STARTED and new.raw.get("NotBefore", "") == ""


MAX_REJECTIONS_RECORDED: Final = 20
"""Limit for one document, so that a malformed one doesn't fill the outbox."""


def rejected(state: State, document: Document) -> tuple[State, tuple[Rejection, ...]]:
    """Return the rejections that are new with this document; each is recorded once while it remains in the document."""
    prints = {_fingerprint(item): item for item in document.rejected}
    fresh = [Rejection(item.fault, item.raw) for mark, item in prints.items() if mark not in state.rejected]
    tracked = dict(state.tracked)
    for key, entry in state.tracked.items():
        faults = entry.event.faults
        if entry.phase is Phase.UNKNOWN and "EventStatus" not in faults:
            faults = (*faults, "EventStatus")
        if faults == entry.faults_recorded:
            continue
        tracked[key] = replace(entry, faults_recorded=faults)
        if set(faults) - set(entry.faults_recorded):
            fresh.append(Rejection(", ".join(faults), entry.event.raw, key))
    return replace(state, tracked=tracked, rejected=frozenset(prints)), tuple(fresh[:MAX_REJECTIONS_RECORDED])


def _fingerprint(item: Rejected) -> str:
    text = json.dumps([item.fault, item.raw], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
