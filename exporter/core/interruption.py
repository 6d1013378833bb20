"""Attribution of interruptions of this VM to events, and the totals of each event.

During memory-preserving maintenance the guest's clocks stop and the wall clock is corrected afterwards. So a pause is
measured as a step of the wall clock against the monotonic one (`clock_step`). A host that only fails to schedule the
guest is measured as a late tick (`stall`). The two never count the same seconds: a stall has passed on the monotonic
clock, a step has not. If a pause shows as both, their sum is its length. `agent/observer.py` measures them.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from exporter.core.records import Vm
from exporter.core.scope import EventNow
from exporter.core.state import (
    Instant,
    Interruption,
    InterruptionKind,
    InterruptionTotals,
    Ownership,
    State,
    TrackedEvent,
)

THRESHOLD_SECONDS: Final = 0.2
"""Shorter interruptions are not reported: the worst noise under load was 82 ms."""
CORRECTED_LATE_SECONDS: Final = 30.0
"""Latest correction of the time of day by the host after a pause."""
WINDOW_POLLS: Final = 2
WINDOW_BEFORE_LONGEST: Final = 30.0


def attribute(
    state: State, vm: Vm, interruption: Interruption, poll_interval: float, unobserved: float = 0.0
) -> TrackedEvent | None:
    """Return the event of this VM that was Started during the interruption; None if there is none.

    An event fits from two polls before it was first seen Started until two polls after it left the document (for a
    clock step, which the host may correct late, until 30 s after). If several fit, the one that started last is
    returned. A backward step has no event.

    `unobserved` is how many seconds before the current document were not observed. An event that started in that gap
    may have started at its beginning, so the window extends back by that time, at most 30 s. While the name of this VM
    is unknown, an event is of this VM if it was when the name was last known.
    """
    if interruption.seconds <= 0:
        return None
    polls = WINDOW_POLLS * poll_interval
    early = max(polls, min(unobserved, WINDOW_BEFORE_LONGEST))
    late = polls if interruption.kind is InterruptionKind.STALL else max(polls, CORRECTED_LATE_SECONDS)
    fitting: list[tuple[bool, float, int, TrackedEvent]] = []
    for place, tracked in enumerate((*state.tracked.values(), *state.closed.values())):
        ownership = EventNow(tracked, vm.name).ownership if vm.name else tracked.ownership
        if tracked.started is None or ownership is not Ownership.OURS:
            continue
        into = interruption.at.minus(tracked.started)
        if into >= -early and (tracked.closed is None or _since_end(interruption, tracked.closed) <= late):
            fitting.append((tracked.closed is None, -into, -place, tracked))
    return max(fitting)[-1] if fitting else None


def _since_end(interruption: Interruption, closed: Instant) -> float:
    """Return the seconds from an event's end to the beginning of an interruption.

    A step takes no time on the monotonic clock; on the wall clock it takes its own length.
    """
    measured = interruption.at.mono is not None and closed.mono is not None
    took = 0.0 if measured and interruption.kind is InterruptionKind.CLOCK_STEP else interruption.seconds
    return interruption.at.minus(closed) - took


def with_interruption(tracked: TrackedEvent, interruption: Interruption) -> TrackedEvent:
    """Return the tracked event with one more interruption."""
    before = tracked.interruptions
    after = InterruptionTotals(
        before.count + 1, before.total + interruption.seconds, max(before.longest, interruption.seconds)
    )
    return replace(tracked, interruptions=after)
