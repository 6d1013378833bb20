"""The input of a replay: entries, each with a time and one thing that the agent read, did or observed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from exporter.config.load import PolicyRead
from exporter.core.policy import Presence
from exporter.core.records import Vm

ACCEPTED: Final = 200
MAX_BODY: Final = 4 << 20  # as the metadata client's
EARLIEST, LATEST = 1970, 2200  # years; outside of them sums of times may not fit


class Reading(Struct, frozen=True):
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


class Interrupted(Struct, frozen=True):
    """An interruption was observed; `seconds` is negative for a clock that was set back.

    `read_at` is when the document was read that the agent attributed it with; None where a recording does not say.
    """

    at: datetime
    kind: str
    seconds: float
    read_at: datetime | None = None


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
Timed = Steady | Failed | Sent | Posted | Interrupted | Noted | Began | Ended | Lost
Entry = Reading | Timed | Unreadable


def read_time(text: object) -> datetime | None:
    """An instant from RFC 3339, in UTC; None for anything else, and for years that are out of range."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
        return of_this_age(moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def of_this_age(at: datetime | None) -> datetime | None:
    """The same instant, or None if its year is out of range, where sums with it may overflow."""
    return at if at and EARLIEST <= at.year <= LATEST else None
