"""The records that one destination rejected, and when such a record is parked. Pure: no I/O, no clock.

A record that was the only one in a rejected request becomes a *suspect*. That proves little, because a proxy may reject
everything for an hour. So another record is tried. The suspect is parked if the destination accepted another record
after it, and then rejected it `CERTAIN` times in a row.

- If the other record is rejected too, the destination accepts nothing. All records wait, and each round tries the
  oldest suspect and one more record. This, like any outage, resets the evidence against all suspects.
- If a suspect is accepted, the rejections were transient: no record is a suspect any more, and order is restored.
- Other records may overtake a suspect, also those of the same event. While it isn't known whether the destination
  accepts anything, records of other events are tried first.

Suspects aren't stored: after a restart, all records are tried again at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from enum import Enum, auto
from typing import Final

from msgspec import Struct

CERTAIN: Final = 5
"""Number of failures in a row that rules out chance."""
MOST_SUSPECTS: Final = 1_000
"""Limits memory and queries. At the limit, no further record is sent until a suspect is parked. If the destination
accepts nothing, all suspects are dropped, and the records are tried again from the oldest on."""


class NextSend(Enum):
    """The records to send next."""

    ALL = auto()
    """A suspect that is due, in its own request; otherwise the waiting records without the suspects."""
    ANOTHER = auto()
    """One record, in its own request, that isn't the one just rejected."""
    OLDEST = auto()
    """The oldest suspect, in its own request."""


class RejectionResult(Enum):
    """The consequence of a rejection."""

    TRY_ANOTHER = auto()
    """It isn't known whether the destination accepts anything."""
    NOTHING_ACCEPTED = auto()
    """Two records were rejected in a row."""
    AGAIN_LATER = auto()
    """Another record was accepted meanwhile, but there were too few rejections."""
    PARK = auto()


class _Suspect(Struct):
    passed: bool = False
    """Whether another record was accepted after this one was rejected."""
    rejections: int = 0
    """Rejections in a row since then."""
    due: float = math.inf
    """Monotonic time at which to try it again."""


class Suspects:
    """The suspects of one destination, by row number, the least recently rejected first."""

    def __init__(self) -> None:
        self._suspects: dict[int, _Suspect] = {}
        self.step = NextSend.ALL

    @property
    def numbers(self) -> Collection[int]:
        """The row numbers of all suspects."""
        return self._suspects.keys()

    @property
    def are_too_many(self) -> bool:
        """Whether no further record may be sent, because it could become one suspect too many."""
        return len(self._suspects) >= MOST_SUSPECTS

    def reject(self, seq: int) -> RejectionResult:
        """Handle the rejection of a record that was sent in its own request, and return the consequence."""
        suspect = self._suspects[seq] = self._suspects.pop(seq, _Suspect())
        if suspect.passed:
            suspect.rejections += 1
            if suspect.rejections < CERTAIN:
                return RejectionResult.AGAIN_LATER
            del self._suspects[seq]
            return RejectionResult.PARK
        if self.step is NextSend.ANOTHER:
            self.fail()
            return RejectionResult.NOTHING_ACCEPTED
        self.step = NextSend.ANOTHER
        return RejectionResult.TRY_ANOTHER

    def accept(self, numbers: Iterable[int], now: float) -> None:
        """Handle the acceptance of records, by row number. `now` is monotonic."""
        if not self._suspects.keys().isdisjoint(numbers):
            self._suspects.clear()
        for suspect in self._suspects.values():
            if not suspect.passed:
                suspect.passed, suspect.due = True, now
        self.step = NextSend.ALL

    def fail(self) -> None:
        """Reset the evidence against all suspects: the destination accepts nothing, or is unreachable."""
        if self.are_too_many:
            self._suspects.clear()
        for seq in self._suspects:
            self._suspects[seq] = _Suspect()
        self.step = NextSend.OLDEST if self._suspects else NextSend.ALL

    def postpone(self, seq: int, due: float) -> None:
        """Try this suspect again at the monotonic time `due`, and all other records before."""
        self._suspects[seq].due = due
        self.step = NextSend.ALL

    def forget(self, seq: int) -> None:
        """Remove a suspect that isn't in the queue any more."""
        del self._suspects[seq]
        if not self._suspects:
            self.step = NextSend.ALL

    def due(self, now: float) -> int | None:
        """Return the suspect to try now; None if there is none."""
        if self.step is NextSend.OLDEST:
            return min(self._suspects)
        if self.step is NextSend.ANOTHER:
            *others, _ = self._suspects
            return next((seq for seq in others if not self._suspects[seq].passed), None)
        return next((seq for seq, suspect in self._suspects.items() if suspect.due <= now), None)

    def unproven(self) -> int | None:
        """Return a suspect after which no other record was accepted yet; None if there is none.

        It is tried before a new record, which may belong to the same event.
        """
        return next((seq for seq, suspect in self._suspects.items() if not suspect.passed), None)

    def next_due(self) -> float:
        """Return the monotonic time at which the next suspect is due; infinity if there is none."""
        return min((suspect.due for suspect in self._suspects.values()), default=math.inf)
