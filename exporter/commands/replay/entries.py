"""The input of a replay: entries, each with a time and one thing that the agent read, did, or observed; and its clocks.

A recording contains wall-clock times and the measured steps of that clock. The monotonic clock is reconstructed as the
wall clock without the steps.
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
EARLIEST, LATEST = 1970, 2200  # years; outside of them, sums of times may overflow


class DocumentReading(Struct, frozen=True):
    """A document that was read. `at` is None if the input has no time; `where` is the file and line."""

    at: datetime | None
    body: bytes
    where: str
    recorded: bool = False
    """Whether the entry comes from a recording of the agent."""
    opening: bool = False
    """Whether it repeats, at the beginning of a recording's file, the last document of the file before it."""


class Steady(Struct, frozen=True):
    """Successful polls without a gap until `at` that returned the unchanged document.

    `times` is their number; None: unknown, assume one for each poll interval.
    """

    at: datetime
    times: int | None = None


class Failed(Struct, frozen=True):
    """The beginning of an outage: no poll succeeded from `at` on."""

    at: datetime
    reason: str


class Posted(Struct, frozen=True):
    """The result of an approval request. `status` is the HTTP status, None without a response."""

    at: datetime
    event_id: str
    status: int | None
    reason: str = ""


class Sent(Struct, frozen=True):
    """An approval request that was sent and not answered yet."""

    at: datetime
    event_id: str


class RecordedInterruption(Struct, frozen=True):
    """An observed interruption; `seconds` is negative for a clock that was set back.

    `handled_at` is when the agent attributed it without a document; None: with the next document, or when it stopped.
    """

    at: datetime
    kind: str
    seconds: float
    handled_at: datetime | None = None


class IdentityKnown(Struct, frozen=True):
    """The identity of the VM, as known from `at` on."""

    at: datetime
    vm: Vm
    conflict: bool = False
    """Whether the configured name differed from the metadata service's."""
    confirmed: bool = True
    """Whether the metadata service had returned the name, or reported that it has none."""


class Began(Struct, frozen=True):
    """The start of an agent with its `version`, and the `policy` in force from then on.

    `boot` identifies the boot of the machine; "": unknown.
    """

    at: datetime
    boot: str
    version: str
    policy: PolicyRead


class PolicyKnown(Struct, frozen=True):
    """The policy in force, at the beginning of a further file of a recording."""

    at: datetime
    policy: PolicyRead


class FilesFound(Struct, frozen=True):
    """The presence of the policy's files for the document that was read at `at`, and for later ones."""

    at: datetime
    files: Mapping[str, Presence]


class OutboxKnown(Struct, frozen=True):
    """Whether the outbox was writable for entries of this time, and from then on."""

    at: datetime
    writable: bool


class Lost(Struct, frozen=True):
    """A number of lines before this one, of that time or earlier, that could not be written."""

    at: datetime
    lines: int


class Ended(Struct, frozen=True):
    """The regular end of the agent."""

    at: datetime


class Unreadable(Struct, frozen=True):
    """A line that is not a valid entry."""

    where: str
    detail: str


Noted = IdentityKnown | PolicyKnown | FilesFound | OutboxKnown
"""The entries that a file of a recording may begin with."""
Timed = Steady | Failed | Sent | Posted | RecordedInterruption | Noted | Began | Ended | Lost
Entry = DocumentReading | Timed | Unreadable


def read_time(text: object) -> datetime | None:
    """Return an RFC 3339 instant in UTC; None for other values, and for years out of range."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
        return is_plausible_time(moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def is_plausible_time(at: datetime | None) -> datetime | None:
    """Return the same instant, or None if its year is out of range: sums with it might overflow."""
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
        """Return both clocks at a moment of the recording; the monotonic one never goes back."""
        self._mono = max(self._mono, self._of(at))
        return Instant(at, self._mono)

    def instant_of(self, at: datetime) -> Instant:
        """Return both clocks at a moment that may be before the last one, unless the clock was set in between."""
        return Instant(at, max(self._of(at), self._mono) if self._set_before_entry else self._of(at))

    def _of(self, at: datetime) -> float:
        stepped = self._stepped + sum(step.seconds for step in self._stepping if not step.after(at))
        return (at - self._start).total_seconds() - stepped


class ClockStep(Struct, frozen=True):
    """A step of the wall clock by `seconds` (negative: back), measured at `noticed`."""

    noticed: datetime
    seconds: float

    def after(self, at: datetime) -> bool:
        """Return whether the step certainly came after that moment; a step back makes some moments ambiguous."""
        return self.seconds > 0 and at <= self.noticed - timedelta(seconds=self.seconds)


def _steps(entries: Sequence[Entry]) -> Mapping[int, Sequence[ClockStep]]:
    """Return the steps of the clock by the index of the entry before which they happened.

    The agent records a step right before the next document.
    """
    steps: dict[int, list[ClockStep]] = defaultdict(list)
    for index, entry in enumerate(entries):
        if isinstance(entry, RecordedInterruption) and entry.kind == InterruptionKind.CLOCK_STEP:
            steps[index].append(ClockStep(entry.at, entry.seconds))
    return steps
