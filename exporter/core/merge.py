"""One state out of two: what an outbox holds that could not be read at the start, and what was observed meanwhile."""

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
    """The state of a process that can't read what the file holds.

    Its events' numbers begin as after more evictions than there can have been, so that no other fact has their ids.
    """
    return State(birth=birth, evictions=int(birth.timestamp()))


def merge_states(stored: State, lived: State) -> State:
    """One state out of the one on disk and the one that a process came to without being able to read it.

    What was approved stays approved, no record's number is given twice, and an event that is only on disk is closed by
    the next document. Nothing else of the stored state outweighs what was observed since.
    """
    if lived.document is None:
        return replace(
            stored,
            vm_key=stored.vm_key or lived.vm_key,
            vm_id=stored.vm_id or lived.vm_id,
            numbers=_highest_numbers(stored.numbers, lived.numbers),
            outage=lived.outage or stored.outage,
            boot_id=lived.boot_id or stored.boot_id,
            process=lived.process,
        )
    known = {**stored.closed, **stored.tracked}
    begun = {key for key, history in stored.tracked.items() if history.in_scope is not False}
    untold = {key for key, history in lived.closed.items() if key in begun and not _ended(history)}
    tracked = {key: _continued(known.get(key), _with_stored(stored, history)) for key, history in lived.tracked.items()}
    closed = {
        key: _continued(known.get(key), _with_stored(stored, history))
        for key, history in lived.closed.items()
        if key not in untold
    }
    left = {
        key: replace(
            history,
            first_seen_at=lived.observed_seconds,  # by the clock that goes on
            unchanged_at=lived.observed_seconds,
            started_before=history.started_before or (key in untold and lived.closed[key].was_started),
        )
        for key, history in stored.tracked.items()
        if key not in tracked and key not in closed
    }
    return replace(
        lived,
        birth=stored.birth,
        vm_key=stored.vm_key or lived.vm_key,
        vm_id=lived.vm_id or stored.vm_id,
        # Without a document before it, the next one is compared event by event, which tells what is gone.
        document=None if left else lived.document,
        tracked={**left, **tracked},
        closed={**stored.closed, **closed},
        sent={**lived.sent, **stored.sent},
        started_ids={**stored.started_ids, **lived.started_ids},
        evictions=stored.evictions + max(0, lived.evictions - provisional_state(lived.birth).evictions),
        reset=lived.reset or _reset(stored, lived),
        numbers=_highest_numbers(stored.numbers, lived.numbers),
        first_answer=stored.first_answer or lived.first_answer,
        first_answer_mono=None if stored.first_answer else lived.first_answer_mono,
        flowing=stored.flowing or lived.flowing,
        scoped_as=None,  # what the file told to begin, this life may know to be of others
    )


def _reset(stored: State, lived: State) -> Reset | None:
    """The number that the file knew was higher, or had gone down just before."""
    if stored.document is None or lived.document is None:
        return None
    lower = lived.document.incarnation < stored.document.incarnation
    return Reset(lived.observed_seconds) if lower or stored.reset is not None else None


def _with_stored(stored: State, lived: Tracked) -> Tracked:
    """With what the file knows of the id, whatever is left of its history: what was sent, and that it was Started."""
    before = stored.history(lived.key)
    sent = before.approval if before else stored.sent.get(lived.key)
    started = lived.key in stored.started_ids or (before is not None and before.was_started)
    return replace(
        lived,
        approval=lived.approval if sent is None or lived.approval.accepted_at is not None else sent,
        started_before=lived.started_before or started,
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
        return after  # another life of the same id
    until_then = before.gaps + 1  # between the two lives nobody looked
    earlier = before.first_seen <= after.first_seen
    return replace(
        after,
        first_seen=before.first_seen if earlier else after.first_seen,
        first_seen_mono=None if earlier else after.first_seen_mono,
        seen_before=before.seen_before,
        first_not_before=before.first_not_before,
        scheduled_seen=before.scheduled_seen or after.scheduled_seen,
        started_at=before.started_at or after.started_at,
        started_mono=None if before.started_at else after.started_mono,
        started_by=before.started_by or after.started_by,
        gaps=until_then + after.gaps,
        gap_seconds=None,
        started_gaps=before.started_gaps if before.started_at else until_then + after.started_gaps,
    )


def _ended(lived: Tracked) -> bool:
    """Whether the life that did not know the file told an end of it."""
    return any(kind.value in lived.numbers for kind in CLOSING)


def recorded_before(stored: State, record: Record) -> bool:
    """Whether a first sight, in a life that did not know the file, is a fact that the file already had."""
    before = stored.tracked.get(folded(record.subject))
    if before is None or before.in_scope is False:
        return False
    if before.in_scope:  # it goes on as it stood there; how often it had records of a kind is of all its lives
        begun = {Kind.SCHEDULED: before.phase is not Phase.UNKNOWN, Kind.STARTED: before.phase is Phase.STARTED}
        return any(record.kind == kind.value and told for kind, told in begun.items())
    if record.kind not in before.numbers:
        return False
    since = {Kind.SCHEDULED: before.scheduled_seen, Kind.STARTED: before.started_at is not None}
    return any(record.kind == kind.value and seen for kind, seen in since.items())


def _highest_numbers(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {kind: max(one.get(kind, 0), other.get(kind, 0)) for kind in {**one, **other}}


def without_repeated(unsaved: Sequence[Record], stored: State) -> tuple[Record, ...]:
    """The records that wait, but for those of facts that the file already had: of each event the first may be one."""
    kept: list[Record] = []
    begun = set[str]()
    for record in unsaved:
        key = folded(record.subject) if record.kind in TRANSITION_KINDS else ""
        if not key or key in begun or not recorded_before(stored, record):
            kept.append(record)
        begun.add(key)
    return tuple(kept)
