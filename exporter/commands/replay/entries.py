"""What `replay` plays: entries, each one thing that was read, done, felt or known at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from exporter.core.records import Vm

ACCEPTED: Final = 200
MAX_BODY: Final = 4 << 20  # as the metadata client's
EARLIEST, LATEST = 1970, 2200  # years; outside of them sums of times may not fit


@dataclass(frozen=True, slots=True)
class Reading:
    """A document was read. `at` is None while nobody knows when; `where` names the file and line."""

    at: datetime | None
    body: bytes
    where: str
    recorded: bool = False
    """By the agent's own recorder."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Until then the document was read again and again, without a gap, and had not changed."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Failed:
    """From then on no poll succeeded."""

    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Posted:
    """An approval that was asked for was answered. `status` is Azure's answer, None for none."""

    at: datetime
    event_id: str
    status: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Sent:
    """The agent asked for an approval, and had no answer yet."""

    at: datetime
    event_id: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """An interruption was noticed; `seconds` long."""

    at: datetime
    kind: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Known:
    """Who the VM is, as was known from then on."""

    at: datetime
    vm: Vm


@dataclass(frozen=True, slots=True)
class Began:
    """The agent started; `boot` names the boot of the machine, if that is known."""

    at: datetime
    boot: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The agent stopped in good order."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is none of the others."""

    where: str
    detail: str


Timed = Steady | Failed | Sent | Posted | Noticed | Known | Began | Ended
Entry = Reading | Timed | Unreadable


def read_time(text: object) -> datetime | None:
    """An instant of this age from RFC 3339, in UTC; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
        return of_this_age(moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def of_this_age(at: datetime | None) -> datetime | None:
    """The same instant, where sums of times with it fit."""
    return at if at and EARLIEST <= at.year <= LATEST else None
