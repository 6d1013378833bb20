"""Hours of a rule: a daily or weekly window on the wall clock of a time zone.

Pure: the zone is a value that the settings loaded. An instant is within the window if the zone's local time at that
instant is between start and end. Daylight saving affects the window as it affects the clock: a window inside the
skipped hour does not open on that day, and one inside the repeated hour opens twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from msgspec import Struct

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
"""Days of the week as written in the settings, in the order of `datetime.weekday`."""
WHOLE_DAY: Final = 24 * 60
"""Minutes of a day: the latest end of a window, "24:00"."""
_DAY: Final = timedelta(days=1)
_NEAR: Final = range(-2, 3)
_FAR: Final = range(3, 16)
"""Days from today. A weekly window opens within eight days, and within fifteen if a zone skips its day."""


class Hours(Struct, frozen=True):
    """A window. `start` (0 to 1439) and `end` (0 to 1440) are minutes after local midnight and differ.

    The start is in the window, the end is not. A window with an end before its start spans midnight and belongs to the
    day on which it begins. `days` (0 is Monday, in order) are the days on which it begins. `timezone` is the name of
    `zone`.
    """

    start: int = 0
    end: int = WHOLE_DAY
    days: tuple[int, ...] = tuple(range(len(DAYS)))
    timezone: str = "UTC"
    zone: tzinfo = UTC

    @property
    def over_midnight(self) -> bool:
        """Whether the window ends on the day after it begins."""
        return self.end < self.start

    @property
    def between(self) -> str:
        """Start and end as written in the settings: `22:00-05:00`."""
        return f"{_clock(self.start)}-{_clock(self.end)}"

    @property
    def table(self) -> dict[str, str | list[str]]:
        """The keys of the rule that define the window."""
        return {"between": self.between, "days": [DAYS[day] for day in self.days], "timezone": self.timezone}

    def within(self, now: datetime) -> bool:
        """Return whether an instant is in the window; False for one without a zone or outside the calendar."""
        local = self.local(now)
        if local is None:
            return False
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if not self.over_midnight:
            return day in self.days and self.start <= minute < self.end
        if minute >= self.start:
            return day in self.days
        return minute < self.end and (day - 1) % len(DAYS) in self.days and self._had_a_day_before(local)

    def next_change(self, now: datetime) -> datetime | None:
        """Return the first UTC instant after `now` at which `within` changes; None if none is near (16 days) or known.

        It may be an edge of the window, or the moment at which the clock is set.
        """
        return _next_change(self, now)

    def local(self, now: datetime) -> datetime | None:
        """Return an instant in the local time of the zone; None for one without a zone or outside the calendar."""
        if now.utcoffset() is None:
            return None
        try:
            return now.astimezone(self.zone)
        except (OverflowError, ValueError):  # the first and the last day of the calendar
            return None

    def _had_a_day_before(self, local: datetime) -> bool:
        """Return whether the previous calendar day existed: in Samoa, 30 December 2011 did not."""
        try:
            noon = local.replace(hour=12) - _DAY
            return noon.astimezone(UTC).astimezone(self.zone).date() == noon.date()
        except OverflowError:
            return False

    def edges(self, day: date) -> Iterator[datetime]:
        """Yield each UTC instant at which the window of a day may begin or end."""
        if day.weekday() not in self.days:
            return
        midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001  # by the zone's clock, which may show it twice
        for minutes in (self.start, self.end + (WHOLE_DAY if self.over_midnight else 0)):
            yield from _instants(midnight + timedelta(minutes=minutes), self.zone)


@lru_cache(32)  # each poll calls it for every event of a document with the same instant
def _next_change(hours: Hours, now: datetime) -> datetime | None:
    local = hours.local(now)
    if local is None:
        return None
    inside = hours.within(now)
    try:
        for days in (_NEAR, _FAR):
            for edge in sorted(edge for ahead in days for edge in hours.edges(local.date() + ahead * _DAY)):
                if edge > now and hours.within(edge) is not inside:
                    return edge
    except OverflowError:  # the calendar ends
        pass
    return None


def shown(local: datetime) -> str:
    """Return a local time with its day and UTC offset: a local hour repeats when clocks are set back."""
    return f"{DAYS[local.weekday()]} {local.isoformat(' ', 'minutes')}"


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _instants(wall: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Yield the UTC instants at which the zone's clock shows this time: two if it's set back over it.

    If the clock is set back or forward over the time, also yield the moment at which it's set. A skipped time is never
    shown.
    """
    # Fold 1 of a skipped time is before the change and fold 0 after it; a repeated time is the reverse (PEP 495).
    first, last = sorted(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    yield first
    if first == last:
        return
    yield last
    before, seconds = first.astimezone(zone).utcoffset(), int((last - first).total_seconds())
    low, high = 0, seconds  # the clock is set after `low` and at the latest at `high`, in seconds after `first`
    while high - low > 1:
        middle = (low + high) // 2
        if (first + timedelta(seconds=middle)).astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    yield first + timedelta(seconds=high)
