"""Merging two states: that of an outbox that could not be read at the start, and what was observed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from exporter.core.folding import folded
from exporter.core.records import Record
from exporter.core.state import CLOSING, Kind, Phase, Reset, State, Tracked, Whose

TRANSITION_KINDS: Final = frozenset(kind.value for kind in Kind)


def provisional_state(birth: datetime) -> State:
    """The state of a process that can't read its outbox.

    Its record numbers begin as after more evictions than there can have been, so that no other record has their ids.
    """
    return State(birth=birth, evictions=int(birth.timestamp()))


def merge_states(stored: State, observed: State) -> State:
    """One state out of the `stored` one and the one `observed` by a process that could not read it.

    What was approved stays approved, no record number is used twice, and an event that is only stored is closed by the
    next document. In all else the observed state takes precedence.
    """
    if observed.document is None:
        return replace(
            stored,
            vm_key=stored.vm_key or observed.vm_key,
            vm_id=stored.vm_id or observed.vm_id,
            numbers=_highest_numbers(stored.numbers, observed.numbers),
            outage=observed.outage or stored.outage,
            boot_id=observed.boot_id or stored.boot_id,
            process=observed.process,
        )
    known = {**stored.closed, **stored.tracked}
    begun = {key for key, history in stored.tracked.items() if history.in_scope is not False}
    unrecorded = {key for key, history in observed.closed.items() if key in begun and not _ended(history)}
    tracked = {
        key: _continued(known.get(key), _with_stored(stored, history)) for key, history in observed.tracked.items()
    }
    closed = {
        key: _continued(known.get(key), _with_stored(stored, history))
        for key, history in observed.closed.items()
        if key not in unrecorded
    }
    left = {
        key: replace(
            history,
            first_seen_at=observed.observed_seconds,  # by the observed state's clock, which continues
            unchanged_at=observed.observed_seconds,
            started_before=history.started_before or (key in unrecorded and observed.closed[key].was_started),
        )
        for key, history in stored.tracked.items()
        if key not in tracked and key not in closed
    }
    return replace(
        observed,
        birth=stored.birth,
        vm_key=stored.vm_key or observed.vm_key,
        vm_id=observed.vm_id or stored.vm_id,
        # Without a document before it, the next one is compared event by event, which shows what is gone.
        document=None if left else observed.document,
        tracked={**left, **tracked},
        closed={**stored.closed, **closed},
        sent={**observed.sent, **stored.sent},
        started_ids={**stored.started_ids, **observed.started_ids},
        evictions=stored.evictions + max(0, observed.evictions - provisional_state(observed.birth).evictions),
        reset=observed.reset or _reset(stored, observed),
        numbers=_highest_numbers(stored.numbers, observed.numbers),
        first_answer=stored.first_answer or observed.first_answer,
        first_answer_mono=None if stored.first_answer else observed.first_answer_mono,
        flowing=stored.flowing or observed.flowing,
        scoped_as=None,  # an event that the stored state has in scope may by now be known to be of others
    )


def _reset(stored: State, observed: State) -> Reset | None:
    """A reset if the stored document's number was higher, or had gone down just before; else None."""
    if stored.document is None or observed.document is None:
        return None
    lower = observed.document.incarnation < stored.document.incarnation
    return Reset(observed.observed_seconds) if lower or stored.reset is not None else None


def _with_stored(stored: State, observed: Tracked) -> Tracked:
    """The observed history with what is stored about its id: the approval that was sent, and that it was Started."""
    before = stored.history(observed.key)
    sent = before.approval if before else stored.sent.get(observed.key)
    started = observed.key in stored.started_ids or (before is not None and before.was_started)
    return replace(
        observed,
        approval=observed.approval if sent is None or observed.approval.accepted_at is not None else sent,
        started_before=observed.started_before or started,
    )


def _continued(before: Tracked | None, after: Tracked) -> Tracked:
    if before is None:
        return after
    if before.closed_at is None and not _ended(after):
        counted = before.whose is Whose.OURS
        after = replace(
            after, in_scope=after.in_scope or before.in_scope, whose=before.whose if counted else after.whose
        )
    after = replace(after, numbers=_highest_numbers(before.numbers, after.numbers))
    if before.closed_at is not None or any(kind.value in after.numbers for kind in CLOSING):
        return after  # an earlier event with the same id
    until_then = before.gaps + 1  # the time between the two processes was not observed
    earlier = before.first_seen <= after.first_seen
    return replace(
        after,
        first_seen=before.first_seen if earlier else after.first_seen,
        first_seen_mono=None if earlier else after.first_seen_mono,
        seen_before=before.seen_before,
        not_before=after.not_before or before.not_before,
        earlier_event_type=after.earlier_event_type if after.event_type else before.event_type,
        earlier_resources=before.resources if after.resources is None else after.earlier_resources,
        earlier_status=after.earlier_status if after.status else before.status,
        first_not_before=before.first_not_before,
        scheduled_seen=before.scheduled_seen or after.scheduled_seen,
        started_at=before.started_at or after.started_at,
        started_mono=None if before.started_at else after.started_mono,
        started_by=before.started_by or after.started_by,
        gaps=until_then + after.gaps,
        gap_seconds=None,
        started_gaps=before.started_gaps if before.started_at else until_then + after.started_gaps,
    )


def _ended(observed: Tracked) -> bool:
    """Whether the process that could not read the outbox recorded an end of the event."""
    return any(kind.value in observed.numbers for kind in CLOSING)


def recorded_before(stored: State, record: Record) -> bool:
    """Whether a beginning that was recorded without knowing the stored state is one that it already had."""
    before = stored.tracked.get(folded(record.subject))
    if before is None or before.in_scope is False:
        return False
    if before.in_scope:  # by its phase: the record numbers also count earlier events with the same id
        begun = {Kind.SCHEDULED: before.phase is not Phase.UNKNOWN, Kind.STARTED: before.phase is Phase.STARTED}
        return any(record.kind == kind.value and recorded for kind, recorded in begun.items())
    if record.kind not in before.numbers:
        return False
    since = {Kind.SCHEDULED: before.scheduled_seen, Kind.STARTED: before.started_at is not None}
    return any(record.kind == kind.value and seen for kind, seen in since.items())


def _highest_numbers(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {kind: max(one.get(kind, 0), other.get(kind, 0)) for kind in {**one, **other}}


def without_repeated(unsaved: Sequence[Record], stored: State) -> tuple[Record, ...]:
    """The unsaved records without those that the stored state already had: for each event the first one may be such."""
    kept: list[Record] = []
    begun = set[str]()
    for record in unsaved:
        key = folded(record.subject) if record.kind in TRANSITION_KINDS else ""
        if not key or key in begun or not recorded_before(stored, record):
            kept.append(record)
        begun.add(key)
    return tuple(kept)
