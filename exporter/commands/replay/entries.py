"""The input of a replay: entries, each with a time and one thing that the agent read, did or observed; and both clocks.

A recording holds wall clock times, and the steps of that clock that were measured; the monotonic clock is reconstructed
as the wall clock without the steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from exporter.config.load import PolicyRead
from exporter.core.policy import Presence
from exporter.core.records import Vm
from exporter.core.state import Instant, InterruptionKind

ACCEPTED: Final = 200
MAX_BODY: Final = 4 << 20  # as the metadata client's
EARLIEST, LATEST = 1970, 2200  # years; outside of them sums of times may not fit


class DocumentReading(Struct, frozen=True):
    """A document was read. `at` is None if the input has no time; `where` names the file and line."""

    at: datetime | None
    body: bytes
    where: str
    recorded: bool = False
    """By the agent's own recorder."""
    opening: bool = False
    """At the beginning of a file of a recording: the document that the file before it ended with, once more."""


class Steady(Struct, frozen=True):
    """Until then the document was read repeatedly, without a gap, and had not changed.

    `times` is how often; None where the input does not say: once each poll interval.
    """

    at: datetime
    times: int | None = None


class Failed(Struct, frozen=True):
    """From then on no poll succeeded."""

    at: datetime
    reason: str


class Posted(Struct, frozen=True):
    """A POST was answered. `status` is the HTTP status, None for no answer."""

    at: datetime
    event_id: str
    status: int | None
    reason: str = ""


class Sent(Struct, frozen=True):
    """The agent sent a POST, and had no answer yet."""

    at: datetime
    event_id: str


class RecordedInterruption(Struct, frozen=True):
    """An interruption was observed; `seconds` is negative for a clock that was set back.

    `handled_at` is when the agent attributed it without a document; None: with the next document, or at its end.
    """

    at: datetime
    kind: str
    seconds: float
    handled_at: datetime | None = None


class IdentityKnown(Struct, frozen=True):
    """The identity of the VM, as it was known from then on."""

    at: datetime
    vm: Vm
    conflict: bool = False
    """The configured name was not the one that the metadata service gave."""
    confirmed: bool = True
    """The metadata service had given the name, or had none to give."""


class Began(Struct, frozen=True):
    """The agent of this `version` started, with the `policy` in force from then on. `boot` identifies the boot of the
    machine; empty where it is not known."""

    at: datetime
    boot: str
    version: str
    policy: PolicyRead


class PolicyKnown(Struct, frozen=True):
    """The policy in force, at the beginning of a further file of a recording."""

    at: datetime
    policy: PolicyRead


class FilesFound(Struct, frozen=True):
    """What the agent found of the policy's files for the document that it read then, and for those after it."""

    at: datetime
    files: Mapping[str, Presence]


class OutboxKnown(Struct, frozen=True):
    """Whether the outbox could be written for what was read or observed then, and from then on."""

    at: datetime
    writable: bool


class Lost(Struct, frozen=True):
    """So many lines before this one, of that time or earlier, could not be written."""

    at: datetime
    lines: int


class Ended(Struct, frozen=True):
    """The agent stopped in good order."""

    at: datetime


class Unreadable(Struct, frozen=True):
    """A line that is none of the others."""

    where: str
    detail: str


Noted = IdentityKnown | PolicyKnown | FilesFound | OutboxKnown
"""What a file of a recording may begin with."""
Timed = Steady | Failed | Sent | Posted | RecordedInterruption | Noted | Began | Ended | Lost
Entry = DocumentReading | Timed | Unreadable


def read_time(text: object) -> datetime | None:
    """An instant from RFC 3339, in UTC; None for anything else, and for years that are out of range."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
        return is_plausible_time(moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def is_plausible_time(at: datetime | None) -> datetime | None:
    """The same instant, or None if its year is out of range, where sums with it may overflow."""
    return at if at and EARLIEST <= at.year <= LATEST else None


class Clock:
    """The clocks at each entry, in order: `reach` goes to the next one."""

    def __init__(self, entries: Sequence[Entry], start: datetime) -> None:
        self._start = start
        self._steps = _steps(entries)
        self._stepped = 0.0
        self._stepping: Sequence[ClockStep] = ()
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


class ClockStep(Struct, frozen=True):
    """The clock was set forward (or back, if negative) by so many seconds, which was measured at `noticed`."""

    noticed: datetime
    seconds: float

    def after(self, at: datetime) -> bool:
        """Whether it certainly came after that moment: a clock that is set back shows some moments twice."""
        return self.seconds > 0 and at <= self.noticed - timedelta(seconds=self.seconds)


def _steps(entries: Sequence[Entry]) -> Mapping[int, Sequence[ClockStep]]:
    """The steps of the clock, by the index of the entry before which they took place: the agent records each right
    before the document that it read next."""
    steps: dict[int, list[ClockStep]] = defaultdict(list)
    for index, entry in enumerate(entries):
        if isinstance(entry, RecordedInterruption) and entry.kind == InterruptionKind.CLOCK_STEP:
            steps[index].append(ClockStep(entry.at, entry.seconds))
    return steps
