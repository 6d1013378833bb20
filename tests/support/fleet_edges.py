"""The environment of a fleet's agents: the platform, and for each VM its disk, its source, and its backends.

Each of them has the faults that its member sets, and reports to the member's reading what was visible of the agent.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any, Final

from exporter.core.document import Document
from exporter.core.records import Record, Storable
from exporter.core.state import State
from exporter.errors import Permanent, Retryable
from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import MetadataError
from exporter.outbox.errors import OutboxUnwritable
from exporter.outbox.store import Outbox
from tests.support.agent_environment import CAPACITY, DESTINATIONS, START
from tests.support.agent_environment import event as an_event

if TYPE_CHECKING:
    from tests.support.fleet_environment import Member

BOUNDARIES: Final = ("fetch", "commit", "committed", "post", "posted", "send", "sent", "settle", "settled")


class Killed(BaseException):
    """SIGKILL: the process can't do anything more."""


@dataclass
class Azure:
    """What the platform shows to every VM of the scale set, and the approvals that it received."""

    true: float = 0.0
    number: int = 1
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    twin: bool = False
    shown: list[bytes] = field(default_factory=list)
    posts: list[tuple[float, str, str]] = field(default_factory=list)

    def announces(self, event_id: str, names: list[str], notice: int, fields: dict[str, Any]) -> None:
        when = format_datetime(datetime.fromtimestamp(START + int(self.true) + notice, UTC), usegmt=True)
        not_before = "" if fields["EventStatus"] == "Started" else when
        self.events[event_id] = an_event(event_id, **fields, Resources=names, NotBefore=not_before)
        self.number += 1

    def moves(self, event_id: str, status: str, numbered: bool) -> None:
        """Start an event after an approval, at its time, or in an impossible way; sometimes the incarnation stays the
        same."""
        if event_id in self.events:
            when = format_datetime(datetime.fromtimestamp(START + int(self.true) + 900, UTC), usegmt=True)
            self.events[event_id] |= {"EventStatus": status, "NotBefore": "" if status == "Started" else when}
            self.number += numbered

    def changes(self, event_id: str, fields: dict[str, Any], swapped: bool) -> None:
        """Sometimes write the id in another case."""
        if event_id in self.events:
            self.events[event_id] |= fields
            if swapped:
                self.events[event_id]["EventId"] = self.events[event_id]["EventId"].swapcase()
            self.number += 1

    def speaks_an_older_version(self, event_id: str) -> None:
        for name in ("Description", "EventSource", "DurationInSeconds"):
            self.events.get(event_id, {}).pop(name, None)
        self.number += 1

    def is_over(self, event_id: str) -> None:
        if self.events.pop(event_id, None):
            self.number += 1

    def starts_its_number_again(self, down: int) -> None:
        self.number -= down

    def shows_its_events_backwards(self) -> None:
        self.events = dict(reversed(self.events.items()))

    def shows_twins(self, twin: bool) -> None:
        self.twin = twin

    def document(self, ago: int = 0) -> bytes:
        """Return the current document, or the one of this many responses ago."""
        items = list(self.events.values())
        if self.twin and items:
            items.append({**items[0], "EventId": items[0]["EventId"].swapcase(), "Description": "Twin."})
        body = json.dumps({"DocumentIncarnation": self.number, "Events": items}).encode()
        self.shown = [*self.shown[-9:], body]
        return self.shown[-1 - min(ago, len(self.shown) - 1)]


class Disk(Outbox):
    """The real outbox, on a disk that may be full, in a process that may be killed before and after each write."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._stored: Document | None = None
        super().__init__(member.folder / "outbox.db", CAPACITY, DESTINATIONS, now=member.utc)

    def load(self) -> State | None:
        state = super().load()
        if state is not None:
            self._stored = state.document
            self._member.reading.finds()
        return state

    def commit(self, state: State, records: Sequence[Storable]) -> Mapping[str, int]:
        self._member.cross("commit")
        if state.document is not self._stored:  # else a new process has read it, and has not processed another one yet
            self._member.reading.is_read(self._member.name_known)
        self._full(OutboxUnwritable("full"))
        done = super().commit(state, records)
        self._member.reading.is_kept()
        self._member.cross("committed")
        return done

    def save_heartbeat(self, seen: datetime) -> None:
        self._full(OutboxUnwritable("full"))
        super().save_heartbeat(seen)

    def _settle(self, destination: str) -> None:
        self._full(sqlite3.OperationalError("database or disk is full"))
        super()._settle(destination)

    def delivered(self, destination: str, seqs: Sequence[int]) -> None:
        self._member.cross("settle")
        super().delivered(destination, seqs)
        self._member.cross("settled")

    def _full(self, error: Exception) -> None:
        if self._member.disk == "full":
            raise error


class Backend:
    """One destination of one VM, with its mode; the records that it accepted and permanently rejected, in order."""

    batch_size = 3

    def __init__(self, name: str, member: Member) -> None:
        self.name, self._member = name, member
        self.subjects = None if name == "otlp" else 2  # as the real ones accept them
        self.mood = "fine"
        self.recorded: list[Record] = []

    def send(self, records: Sequence[Record]) -> None:
        self._member.cross("send")
        if self.mood in ("down", "busy", "denied"):
            asked = 7.0 if self.mood == "busy" else None
            raise Retryable("connect", retry_after=asked, needs_operator=self.mood == "denied")
        if self.mood == "picky" and any(record.id[0] in "048c" for record in records):
            if len(records) == 1:
                self.recorded += records
            raise Permanent("rejected", "never this one")
        self.recorded += records[:1] if self.mood == "half" else records
        if self.mood in ("half", "mute"):
            raise Retryable("timeout")
        self._member.cross("sent")

    def idle(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Source:
    """The metadata service as one VM reaches it."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._failures = 0

    def fetch(self) -> MetadataResponse:
        member = self._member
        member.cross("fetch")
        if member.source == "timeout":
            self._failures += 1
            raise MetadataError("timeout", failures=self._failures)
        self._failures = 0
        read = member.mono
        if member.source == "html":
            return MetadataResponse(b"<html>", read, 0.01)
        body = member.azure.document(3 if member.source == "old" else 0)
        member.reading.is_served(body, member.azure.true, member.touched)
        member.lingers()
        return MetadataResponse(body, read, 0.01)

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        member = self._member
        member.cross("post")
        if member.answer == "refused":
            raise MetadataError("connect")
        leave()
        left()
        member.posts(event_id)
        member.cross("posted")
        if member.answer == "lost":
            raise MetadataError("timeout")
        if member.answer != "200":
            raise MetadataError("server-error", status_code=int(member.answer))
        member.reading.is_accepted(event_id)
