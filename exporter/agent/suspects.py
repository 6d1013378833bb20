"""The records that one destination refused alone, and when such a record is parked. Pure: no I/O, no clock.

A record is refused alone if nothing else was in the request. That proves little: a proxy may refuse everything for an
hour. So the record becomes a *suspect*, and another record is tried. The suspect is parked if the destination accepted
another record after it and then refused it `CERTAIN` times in a row.

- If the other record is refused too, the destination accepts nothing: all records wait, and each round tries the oldest
  suspect and one more record. That, and any outage, voids what spoke against single records until then.
- If a suspect is accepted, the refusals were passing: all suspicion ends, and the records go in their order again.
- Other records may pass a suspect, also those of its own event. While it isn't known whether the destination accepts
  anything, records of other events are tried first.

Nothing of this is stored: after a restart all records are tried again at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from enum import Enum, auto
from typing import Final

from msgspec import Struct

CERTAIN: Final = 5
"""So many failures in a row are no accident."""
MOST_SUSPECTS: Final = 1_000
"""Bounds memory and queries. At the bound no further record is sent until a suspect is parked; if the destination
accepts nothing, all suspicion ends and the records are tried from the oldest on."""


class NextSend(Enum):
    """What is sent next."""

    ALL = auto()
    """A suspect whose time has come, alone; otherwise what waits, without the suspects."""
    ANOTHER = auto()
    """One record, alone, that is not the one just refused."""
    OLDEST = auto()
    """The suspect that waits longest, alone."""


class RejectionResult(Enum):
    """What follows from a refusal."""

    TRY_ANOTHER = auto()
    """Whether the destination accepts anything is not known."""
    NOTHING_ACCEPTED = auto()
    """Two records were refused one after the other."""
    AGAIN_LATER = auto()
    """Another record was accepted meanwhile; not certain yet."""
    PARK = auto()


class _Suspect(Struct):
    passed: bool = False
    """Another record was accepted after this one was refused."""
    refusals: int = 0
    """In a row since then."""
    due: float = math.inf
    """When to try it again, a monotonic time."""


class Suspects:
    """The suspects of one destination, by row number, the least recently refused first."""

    def __init__(self) -> None:
        self._suspects: dict[int, _Suspect] = {}
        self.step = NextSend.ALL

    @property
    def numbers(self) -> Collection[int]:
        """The row numbers of all suspects."""
        return self._suspects.keys()

    @property
    def are_too_many(self) -> bool:
        """Whether no further record may be sent, since it could be one more."""
        return len(self._suspects) >= MOST_SUSPECTS

    def refuse(self, seq: int) -> RejectionResult:
        """The destination refused this record, sent alone."""
        suspect = self._suspects[seq] = self._suspects.pop(seq, _Suspect())
        if suspect.passed:
            suspect.refusals += 1
            if suspect.refusals < CERTAIN:
                return RejectionResult.AGAIN_LATER
            del self._suspects[seq]
            return RejectionResult.PARK
        if self.step is NextSend.ANOTHER:
            self.fail()
            return RejectionResult.NOTHING_ACCEPTED
        self.step = NextSend.ANOTHER
        return RejectionResult.TRY_ANOTHER

    def accept(self, numbers: Iterable[int], now: float) -> None:
        """The destination accepted these records. `now` is monotonic."""
        if not self._suspects.keys().isdisjoint(numbers):
            self._suspects.clear()
        for suspect in self._suspects.values():
            if not suspect.passed:
                suspect.passed, suspect.due = True, now
        self.step = NextSend.ALL

    def fail(self) -> None:
        """The destination accepts nothing, or can't be reached: what spoke against single records is void."""
        if self.are_too_many:
            self._suspects.clear()
        for seq in self._suspects:
            self._suspects[seq] = _Suspect()
        self.step = NextSend.OLDEST if self._suspects else NextSend.ALL

    def postpone(self, seq: int, due: float) -> None:
        """Try this suspect again at that monotonic time, and everything else before."""
        self._suspects[seq].due = due
        self.step = NextSend.ALL

    def forget(self, seq: int) -> None:
        """This record does not wait any more."""
        del self._suspects[seq]
        if not self._suspects:
            self.step = NextSend.ALL

    def due(self, now: float) -> int | None:
        """The suspect to try now, if there is one."""
        if self.step is NextSend.OLDEST:
            return min(self._suspects)
        if self.step is NextSend.ANOTHER:
            *others, _ = self._suspects
            return next((seq for seq in others if not self._suspects[seq].passed), None)
        return next((seq for seq, suspect in self._suspects.items() if suspect.due <= now), None)

    def unproven(self) -> int | None:
        """A suspect after which no other record was accepted yet: a new record, maybe of its event, waits for it."""
        return next((seq for seq, suspect in self._suspects.items() if not suspect.passed), None)

    def next_due(self) -> float:
        """When a suspect is due, infinity for none."""
        return min((suspect.due for suspect in self._suspects.values()), default=math.inf)
