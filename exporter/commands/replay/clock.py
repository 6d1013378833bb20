"""Both clocks of a recorded moment. A recording tells the time of day alone, and each step that was noticed of it: the
clock that can't be set is the time of day without the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from exporter.commands.replay.entries import Entry, Noticed, Reading, Steady, Unreadable
from exporter.core.state import Instant, InterruptionKind


class Clock:
    """Goes from entry to entry (`reach`), and never back."""

    def __init__(self, entries: Sequence[Entry], start: datetime) -> None:
        self._start = start
        self._steps = _steps(entries)
        self._stepped = 0.0
        self._stepping: Sequence[Step] = ()
        self._mono = 0.0
        self._set_here = False

    def reach(self, place: int) -> None:
        """The entry at this place comes next."""
        self._set_here = place in self._steps
        self._stepped += sum(step.seconds for step in self._stepping)
        self._stepping = self._steps.get(place, ())

    def set_at(self, place: int) -> bool:
        """Whether the clock was set just before the entry at this place."""
        return place in self._steps

    def seen(self, at: datetime) -> Instant:
        """A moment that was read then."""
        self._mono = max(self._mono, self._of(at))
        return Instant(at, self._mono)

    def felt(self, at: datetime) -> Instant:
        """A moment that may lie before what was read last, unless the clock was only set after that."""
        return Instant(at, max(self._of(at), self._mono) if self._set_here else self._of(at))

    def _of(self, at: datetime) -> float:
        stepped = self._stepped + sum(step.seconds for step in self._stepping if not step.after(at))
        return (at - self._start).total_seconds() - stepped


@dataclass(frozen=True, slots=True)
class Step:
    """The clock was set forward (or back, if negative) by so many seconds, which was noticed then."""

    noticed: datetime
    seconds: float

    def after(self, at: datetime) -> bool:
        """Whether it came surely after that moment: a clock that is set back shows some moments twice."""
        return self.seconds > 0 and at <= self.noticed - timedelta(seconds=self.seconds)


def _steps(entries: Sequence[Entry]) -> Mapping[int, Sequence[Step]]:
    """Around which entry the clock was set, and by how much.

    The agent tells of a step right after the reading that came after it; so a step belongs before the reading in front
    of it, if the time of day went as far, or back, in between.
    """
    steps: dict[int, list[Step]] = defaultdict(list)
    reading, went = 0, 0.0
    last: datetime | None = None
    for place, entry in enumerate(entries):
        if isinstance(entry, Unreadable) or entry.at is None:
            continue
        if isinstance(entry, Noticed):
            if entry.kind == InterruptionKind.CLOCK_STEP:
                before = went >= entry.seconds if entry.seconds > 0 else went < 0
                steps[reading if before else place].append(Step(entry.at, entry.seconds))
                went -= entry.seconds if before else 0.0
            continue
        reading, went = place, 0.0
        if isinstance(entry, Reading | Steady) and last is not None:
            went = (entry.at - last).total_seconds()
        last = entry.at
    return steps
