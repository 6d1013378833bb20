"""One running play of a scenario: the pure platform plus the approvals so far, for many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Collection
from datetime import datetime, timedelta

from exporter.core.folding import folded
from exporter.simulator.metadata.platform import Approval, Change, Platform, current
from exporter.simulator.metadata.story import Scenario

# A scenario in which nothing happens is repeated no faster than this.
_SHORTEST_REPETITION = timedelta(seconds=1)
SLOWEST, FASTEST = 0.001, 1e6


class Play:
    """A scenario played from `start` on, `speed` times as fast. Every `now` is an aware UTC argument: no clock is read.

    `repeat` begins it again when it is over, with other EventIds and the number going on.
    """

    def __init__(self, scenario: Scenario, *, start: datetime, speed: float = 1.0, repeat: bool = False) -> None:
        """Raises ValueError for a speed that is out of bounds."""
        if not SLOWEST <= speed <= FASTEST:
            raise ValueError(f"speed: expected a number from {SLOWEST} to {FASTEST:.0f}")
        self.scenario = scenario
        self.speed = speed
        self._repeat = repeat
        self._lock = threading.Lock()
        self._approvals: list[Approval] = []
        self._platform = Platform(scenario, start, speed)
        self._timeline = self._platform.timeline()
        self._past: tuple[Change, ...] = ()

    def now(self, now: datetime) -> Change:
        """The document in force at that instant."""
        with self._lock:
            self._repeat_if_over(now)
            return current(self._timeline, now)

    def approve(self, event_ids: Collection[str], now: datetime) -> bool:
        """Approve events: True (a 200) if every id is in the document now, else nothing of it counts (a 400)."""
        with self._lock:
            self._repeat_if_over(now)
            document = current(self._timeline, now)
            if not all(document.knows(event_id) for event_id in event_ids):
                return False
            known = {approval.event_id for approval in self._approvals}
            new = {folded(event_id) for event_id in event_ids} - known
            self._approvals += [Approval(event_id, now) for event_id in sorted(new)]
            self._timeline = self._platform.timeline(self._approvals)
            return True

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The first accepted approval of each event of this repetition; ids in lower case."""
        with self._lock:
            return tuple(self._approvals)

    def changes(self, after: datetime, until: datetime) -> tuple[Change, ...]:
        """The changes later than `after` and not later than `until`, back to the repetition before this one."""
        with self._lock:
            self._repeat_if_over(until)
            return tuple(change for change in (*self._past, *self._timeline) if after < change.at <= until)

    def next_change(self, now: datetime) -> datetime | None:
        """When the document changes next without another approval; None if it does not."""
        with self._lock:
            return next((change.at for change in self._timeline if change.at > now), None)

    def finished(self, now: datetime) -> bool:
        """True once the play is over; never for a repeated one."""
        with self._lock:
            return not self._repeat and now >= self._platform.end(self._timeline)

    def _repeat_if_over(self, now: datetime) -> None:
        while self._repeat:
            end = max(self._platform.end(self._timeline), self._platform.start + _SHORTEST_REPETITION)
            if now < end:
                return
            last = self._timeline[-1]
            self._past, self._approvals = self._timeline, []
            self._platform = Platform(
                self.scenario, end, self.speed, repetition=self._platform.repetition + 1, incarnation=last.incarnation
            )
            self._timeline = self._platform.timeline()
