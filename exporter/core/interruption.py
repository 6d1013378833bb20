"""What this VM felt: interruptions as seen from inside, and the event that each belongs to.

During memory-preserving maintenance the guest's clocks stop and the time of day is set right afterwards, so a pause
shows as a step of the wall clock against the monotonic one; a host that merely does not run us shows as a late tick.

The two never count the same seconds: a stall is what passed on the monotonic clock, a step is what did not. Where a
pause shows as both, each tells its part and the sum is the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from exporter.core.records import Vm
from exporter.core.state import Felt, Instant, State, Tracked

THRESHOLD_SECONDS: Final = 0.2
TICK_SECONDS: Final = 0.1
FOLLOWED_PPM: Final = 1000
"""Twice the fastest slew that an NTP client may ask of a kernel (500 ppm): a clock that is slewed never adds up to a
step, and steps too small to be told still do where they come close together."""
WINDOW_AFTER_SECONDS: Final = 30.0
WINDOW_BEFORE_POLLS: Final = 2
WINDOW_BEFORE_LONGEST: Final = 30.0
_NANO: Final = 1_000_000_000
_TICK: Final = round(TICK_SECONDS * _NANO)
_THRESHOLD: Final = round(THRESHOLD_SECONDS * _NANO)
_GOOD_SPREAD: Final = _NANO // 1000
_USABLE_SPREAD: Final = _NANO // 20
_READINGS: Final = 5


class InterruptionKind(StrEnum):
    CLOCK_STEP = "clock_step"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Interruption:
    """One interruption, noticed `at`. `seconds` is negative for a clock that was set back.

    A stall began up to one tick earlier than it can be told to have: its seconds are "at least".
    """

    kind: InterruptionKind
    seconds: float
    at: Instant


@dataclass(frozen=True, slots=True)
class Reading:
    """Both clocks at one moment, in nanoseconds. The wall clock was read at most `spread` after the monotonic one."""

    mono: int
    real: int
    spread: int = 0

    @property
    def instant(self) -> Instant:
        return Instant(datetime.fromtimestamp(self.real / _NANO, UTC), self.mono / _NANO)


def read_clocks(mono: Callable[[], int] = time.monotonic_ns, real: Callable[[], int] = time.time_ns) -> Reading:
    """Both clocks, read so close together that their difference means something.

    A process that is stopped between the two reads would else see a step that never was: the best of a few is taken.
    """
    best: Reading | None = None
    for _ in range(_READINGS):
        before, wall, after = mono(), real(), mono()
        if best is None or after - before < best.spread:
            best = Reading(before, wall, after - before)
        if best.spread <= _GOOD_SPREAD:
            break
    assert best is not None  # noqa: S101  # the loop turns at least once
    return best


class Detector:
    """The two signals. Pure: what it sees are readings, in order; whoever has them need not be on time."""

    def __init__(self, first: Reading) -> None:
        self._last = first.mono
        self._followed = first.mono
        self._offset = first.real - first.mono

    def quiet(self, mono: int, real: int, after: int) -> bool:
        """Whether a tick has plainly nothing to tell; if not, `look`. `mono` was read before `real`, and again after.

        Nearly every tick ends here. Ten times a second it is the memory touched that costs: hence bare numbers.
        """
        if (
            mono - self._last < _TICK + _THRESHOLD
            and mono - self._followed < _NANO
            and after - mono < _GOOD_SPREAD
            and -_THRESHOLD < real - mono - self._offset < _THRESHOLD
        ):
            self._last = mono
            return True
        return False

    def look(self, now: Reading) -> list[Interruption]:
        """What the reading tells, compared with those before. It may come before the tick, when the clock was set."""
        found = [(InterruptionKind.STALL, self._late(now)), (InterruptionKind.CLOCK_STEP, self._step(now))]
        return [Interruption(kind, nanoseconds / _NANO, now.instant) for kind, nanoseconds in found if nanoseconds]

    def _late(self, now: Reading) -> int:
        late = now.mono - self._last - _TICK
        self._last = now.mono
        return late if late >= _THRESHOLD else 0

    def _step(self, now: Reading) -> int:
        if now.spread > _USABLE_SPREAD:
            return 0
        step = now.real - now.mono - self._offset
        unseen, self._followed = max(0, now.mono - self._followed), now.mono
        # After a long stall, what a slew may have done meanwhile is no step either.
        if abs(step) >= _THRESHOLD + _slewed(unseen - 2 * _NANO):
            self._offset += step
            return step
        self._offset += max(-_slewed(unseen), min(_slewed(unseen), step))
        return 0


def _slewed(nanoseconds: int) -> int:
    return max(0, nanoseconds) * FOLLOWED_PPM // 1_000_000


def attribute(state: State, vm: Vm, found: Interruption, poll_interval: float, blind: float = 0.0) -> Tracked | None:
    """The event of this VM that was Started during the interruption: from two polls before it was first seen so until
    30 s after it was gone; the one that started last where there are several. A step backwards is nobody's.

    `blind`: how long we did not see before the document at hand. An event that started in a gap of our sight may have
    started at its beginning, so the window reaches as far, but at most 30 s.
    """
    if found.seconds <= 0 or not vm.name:
        return None
    early = max(WINDOW_BEFORE_POLLS * poll_interval, min(blind, WINDOW_BEFORE_LONGEST))
    fitting: list[tuple[bool, float, int, Tracked]] = []
    for place, tracked in enumerate((*state.tracked.values(), *state.closed.values())):
        if tracked.started is None or not tracked.event.names(vm.name):
            continue
        into = found.at.minus(tracked.started)
        if into >= -early and (tracked.closed is None or _since_end(found, tracked.closed) <= WINDOW_AFTER_SECONDS):
            fitting.append((tracked.closed is None, -into, -place, tracked))
    return max(fitting)[-1] if fitting else None


def _since_end(found: Interruption, closed: Instant) -> float:
    """Seconds from an event's end to the beginning of an interruption. A step takes no time on the clock that can't be
    set; on the wall clock it is the time that it took."""
    measured = found.at.mono is not None and closed.mono is not None
    took = 0.0 if measured and found.kind is InterruptionKind.CLOCK_STEP else found.seconds
    return found.at.minus(closed) - took


def felt(tracked: Tracked, found: Interruption) -> Tracked:
    """The event's history with one more interruption."""
    before = tracked.felt
    after = Felt(before.count + 1, before.total + found.seconds, max(before.longest, found.seconds))
    return replace(tracked, felt=after)
