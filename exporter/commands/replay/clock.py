"""Both clocks of a recorded moment. A recording holds wall clock times, and the steps of that clock that were measured;
the monotonic clock is reconstructed as the wall clock without the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from exporter.commands.replay.entries import (
    Entry,
    FilesFound,
    IdentityKnown,
    Interrupted,
    Lost,
    OutboxKnown,
    PolicyKnown,
    Reading,
    Steady,
    Unreadable,
)
from exporter.core.state import Instant, InterruptionKind


class Clock:
    """The clocks at each entry, in order: `reach` goes to the next one."""

    def __init__(self, entries: Sequence[Entry], start: datetime) -> None:
        self._start = start
        self._steps = _steps(entries)
        self._stepped = 0.0
        self._stepping: Sequence[Step] = ()
        self._mono = 0.0
        self._set_before_entry = False

    def reach(self, index: int) -> None:
        """Go to the entry at this index."""
        self._set_before_entry = index in self._steps
        self._stepped += sum(step.seconds for step in self._stepping)
        self._stepping = self._steps.get(index, ())

    def advance_to(self, at: datetime) -> Instant:
        """Both clocks at a moment of the recording, at the earliest the last one."""
        self._mono = max(self._mono, self._of(at))
        return Instant(at, self._mono)

    def instant_of(self, at: datetime) -> Instant:
        """Both clocks at a moment that may be before the last one, unless the clock was only set after that."""
        return Instant(at, max(self._of(at), self._mono) if self._set_before_entry else self._of(at))

    def _of(self, at: datetime) -> float:
        stepped = self._stepped + sum(step.seconds for step in self._stepping if not step.after(at))
        return (at - self._start).total_seconds() - stepped


class Step(Struct, frozen=True):
    """The clock was set forward (or back, if negative) by so many seconds, which was measured at `noticed`."""

    noticed: datetime
    seconds: float

    def after(self, at: datetime) -> bool:
        """Whether it certainly came after that moment: a clock that is set back shows some moments twice."""
        return self.seconds > 0 and at <= self.noticed - timedelta(seconds=self.seconds)


def _steps(entries: Sequence[Entry]) -> Mapping[int, Sequence[Step]]:
    """The steps of the clock, by the index of the entry before which they took index.

    The agent records a step right after the reading that followed it. So a step belongs before the preceding reading,
    if the wall clock advanced that far, or went back, before that reading.
    """
    steps: dict[int, list[Step]] = defaultdict(list)
    reading, advanced = 0, 0.0
    last: datetime | None = None
    for index, entry in enumerate(entries):
        if isinstance(entry, Unreadable | PolicyKnown | FilesFound | OutboxKnown | Lost) or entry.at is None:
            continue
        if entry.at == last and isinstance(entry, IdentityKnown | Reading):
            continue  # a further file begins with the document before it
        if isinstance(entry, Interrupted):
            if entry.kind == InterruptionKind.CLOCK_STEP:
                before = advanced >= entry.seconds if entry.seconds > 0 else advanced < 0
                steps[reading if before else index].append(Step(entry.at, entry.seconds))
                advanced -= entry.seconds if before else 0.0
            continue
        reading, advanced = index, 0.0
        if isinstance(entry, Reading | Steady) and last is not None:
            advanced = (entry.at - last).total_seconds()
        last = entry.at
    return steps
