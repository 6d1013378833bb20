"""Memory of ended events: what is kept, and for how long.

Three stores, each bounded by bytes:

- Closed events with published records: if the id returns, its record numbers continue.
- Sent approvals: Azure may show a past event again, and an approval is never sent twice.
- Ids that were seen Started: they can't be approved, whatever the document contains later.

Approvals and ids are kept for 30 days, and longer until their space is needed: the clock that determines their age may
be wrong for a while. If 30 days of them don't fit, nothing is approved.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from msgspec.structs import replace

from exporter.core.state import Approval, State, TrackedEvent

T = TypeVar("T")

CLOSED_KEPT: Final = 32
"""Maximum number of closed events, which are written with every commit. Sent approvals and Started ids are kept longer,
in their own stores."""
SENT_KEPT: Final = timedelta(days=30)
_TRACKED_EVENT_BYTES: Final = 1024  # of a tracked event without Azure's object
_SENT_BYTES: Final = 320  # of an approval without the id
_STARTED_BYTES: Final = 64
_LONGEST_STARTED_BYTES: Final = 400 + _STARTED_BYTES


def close(state: State, gone: Iterable[TrackedEvent], now: datetime, budget: int) -> State:
    """Keep the newest closed events, and none of those that returned.

    `gone` are the events that left the document. `budget` is in bytes for the three stores together: a quarter is for
    closed events, half for sent approvals.
    """
    closed = {key: tracked for key, tracked in state.closed.items() if key not in state.tracked}
    forgotten: list[TrackedEvent] = []
    for tracked in gone:
        closed.pop(tracked.key, None)
        if _recorded(tracked):
            closed[tracked.key] = replace(tracked, weight=_weight(tracked))
        else:
            forgotten.append(tracked)
    weight = sum(tracked.weight for tracked in closed.values())
    for key in list(closed):
        if len(closed) <= CLOSED_KEPT and weight <= budget // 4:
            break
        tracked = closed.pop(key)
        weight -= tracked.weight
        forgotten.append(tracked)
    return _forget(replace(state, closed=closed), forgotten, now, budget)


def without_closed_events(state: State, now: datetime, budget: int) -> State:
    """Return the state without closed events: if space is short, they are dropped before undelivered records."""
    return _forget(replace(state, closed={}), state.closed.values(), now, budget)


def memory_full(state: State, now: datetime, budget: int) -> bool:
    """Return whether one more approval or Started id may drop one before its 30 days have passed, or has done so.

    `budget` is as for `close`.
    """
    known = (*state.tracked.values(), *state.closed.values())
    sent = {key: approval.last_attempt_at for key, approval in state.sent.items()}
    sent_budget = budget // 2 - _SENT_BYTES * sum(1 for tracked in known if tracked.approval.attempts)
    started_budget = budget // 4 - _STARTED_BYTES * sum(1 for tracked in known if tracked.was_started)
    return _is_full(sent, now, _SENT_BYTES, sent_budget) or _is_full(
        state.started_ids, now, _STARTED_BYTES, started_budget - _LONGEST_STARTED_BYTES
    )


def _recorded(tracked: TrackedEvent) -> bool:
    """Return whether records of this event were published: only then are there record numbers to continue."""
    return any(tracked.numbers.get(kind) for kind in tracked.numbers if kind)


def _weight(tracked: TrackedEvent) -> int:
    azure = len(json.dumps(tracked.event.raw)) * 2  # the typed fields repeat most of it
    return _TRACKED_EVENT_BYTES + azure + tracked.earlier_bytes


def _forget(state: State, forgotten: Iterable[TrackedEvent], now: datetime, budget: int) -> State:
    """Drop closed events, but keep which approvals were sent and which ids were Started."""
    gone = list(forgotten)
    return replace(
        state,
        sent=_sent(state.sent, [tracked for tracked in gone if tracked.approval.attempts], now, budget // 2),
        started_ids=_started(
            state.started_ids, [tracked.key for tracked in gone if tracked.was_started], now, budget // 4
        ),
        evictions=state.evictions + sum(1 for tracked in gone if _recorded(tracked)),
    )


def _sent(
    before: Mapping[str, Approval], gone: Sequence[TrackedEvent], now: datetime, budget: int
) -> Mapping[str, Approval]:
    if not gone:
        return before
    after = {**before, **{tracked.key: tracked.approval for tracked in gone}}
    expired = [key for key, approval in after.items() if not _lasts(approval.last_attempt_at, now)]
    return _fitting(after, expired, _SENT_BYTES, budget)


def _started(before: Mapping[str, datetime], gone: Sequence[str], now: datetime, budget: int) -> Mapping[str, datetime]:
    """Return the Started ids with `gone`, without the oldest (first) ones if 30 days don't fit (`memory_full`)."""
    if not gone:
        return before
    again = set(gone)
    after = {key: at for key, at in before.items() if key not in again} | dict.fromkeys(gone, now)
    return _fitting(after, sorted(after, key=lambda key: _lasts(after[key], now)), _STARTED_BYTES, budget)


def _fitting(given: dict[str, T], droppable: Iterable[str], each: int, budget: int) -> dict[str, T]:
    """Return what remains after dropping as many as needed."""
    excess = _bytes(given, each) - budget
    for key in droppable:
        if excess <= 0:
            break
        del given[key]
        excess -= _bytes((key,), each)
    return given


def _is_full(times: Mapping[str, datetime | None], now: datetime, each: int, budget: int) -> bool:
    """Return whether the ids that must be kept exceed the budget."""
    if _bytes(times, each) <= budget:
        return False
    return _bytes([key for key, at in times.items() if _lasts(at, now)], each) > budget


def _bytes(keys: Collection[str], each: int) -> int:
    return len("".join(keys).encode()) + len(keys) * each


def _lasts(since: datetime | None, now: datetime) -> bool:
    return since is not None and now - since <= SENT_KEPT


def number(tracked: TrackedEvent, kind: str, first: int = 1) -> tuple[int, TrackedEvent]:
    """Return the next number of a record of this kind about this event, and the tracked event that contains it."""
    following = tracked.numbers.get(kind, tracked.numbers.get("", 0) + first - 1) + 1
    return following, replace(tracked, numbers={**tracked.numbers, kind: following})


def with_tracked(state: State, tracked: TrackedEvent) -> State:
    """Return the state with this tracked event replaced. If it was dropped, only the approval is kept."""
    if tracked.key in state.tracked:
        return replace(state, tracked={**state.tracked, tracked.key: tracked})
    if tracked.key in state.closed:
        return replace(state, closed={**state.closed, tracked.key: tracked})
    if tracked.approval.attempts:
        return replace(state, sent={**state.sent, tracked.key: tracked.approval})
    return state
