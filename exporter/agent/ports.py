"""What the parts of the agent share: the shapes of what it is connected to, and one pass along the line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

from exporter.core.lifecycle import HISTORY_BYTES
from exporter.core.memory import with_tracked
from exporter.core.policy import Decision, Mode, Policy, Presence
from exporter.core.record_factory import Writer
from exporter.core.records import Record, Vm
from exporter.core.snapshot import Status
from exporter.core.state import Instant, Interruption, State, Tracked, Transition
from exporter.log.protocol import Logger


class Answer(Protocol):
    @property
    def body(self) -> bytes: ...
    @property
    def read_at_monotonic(self) -> float: ...


class Source(Protocol):
    """The metadata service. Both raise `Failure` with, where known, `status_code` and `delay()`."""

    def fetch(self) -> Answer: ...
    def approve(self, event_id: str) -> None: ...


class Queue(Protocol):
    @property
    def records(self) -> int: ...
    @property
    def oldest(self) -> datetime | None: ...
    @property
    def parked(self) -> int: ...
    @property
    def error(self) -> str: ...
    @property
    def last_success(self) -> datetime | None: ...


class Store(Protocol):
    """The outbox. Everything raises `Failure` when the disk does not take it."""

    capacity: int
    notes: list[str]

    def load(self) -> State | None: ...
    def commit(self, state: State, records: Sequence[Record]) -> Mapping[str, int]: ...
    def beat(self, seen: datetime) -> None: ...
    def renew(self, why: str) -> None: ...
    def crowded(self, records: int) -> bool: ...
    def used(self) -> int: ...
    def queues(self) -> Mapping[str, Any]: ...


class Metrics(Protocol):
    """Where facts are counted and the status is shown."""

    def publish(self, status: Status) -> None: ...
    def polled(self, duration: float, failure: str | None) -> None: ...
    def document_changed(self) -> None: ...
    def anomaly(self, word: str) -> None: ...
    def unknown_value(self, field: str) -> None: ...
    def transition(self, transition: Transition) -> None: ...
    def decided(self, decision: Decision) -> None: ...
    def approval_requested(self) -> None: ...
    def approval_failed(self, reason: str) -> None: ...
    def approval_outdated(self) -> None: ...
    def approval_postponed(self) -> None: ...
    def interruption(self, kind: str, attributed: bool, seconds: float, event_id: str) -> None: ...
    def dropped(self, destination: str, reason: str, records: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Who:
    """Who this VM is, as far as is known now. `conflict`: the configured name is not the one Azure gives."""

    vm: Vm = field(default_factory=Vm)
    conflict: bool = False
    confirmed: bool = True
    """The metadata service gave this name, or has none to give."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the agent was told. `boot_id` names this boot of the machine, empty where the system has no word for it."""

    policy: Policy = field(default_factory=Policy)
    poll_interval: float = 1.0
    all_events: bool = False
    version: str = ""
    boot_id: str = ""
    history_bytes: int = HISTORY_BYTES
    """The bound of what is remembered of events that are over."""


@dataclass(frozen=True, slots=True)
class Senses:
    """The world as the agent perceives it, each part an argument."""

    clock: Callable[[], Instant]
    who: Callable[[], Who]
    look: Callable[[Iterable[str]], Mapping[str, Presence]]
    interruptions: Callable[[], Sequence[Interruption]] = lambda: ()
    keep: Callable[[bytes, datetime], None] = lambda _body, _read: None
    """Takes each raw document for the recording."""
    stopping: Callable[[], bool] = lambda: False
    committed: Callable[[], None] = lambda: None
    """Called when there is something new to deliver."""
    sent: Callable[[datetime, str], None] = lambda _at, _event_id: None
    """Takes each POST for the recording, as it leaves."""
    posted: Callable[[datetime, str, int | None, str], None] = lambda _at, _event_id, _status, _reason: None
    """Takes the answer to each POST for the recording: its status, or none and why."""
    spawn: Callable[[Callable[[], None], float], None] = lambda task, _patience: task()
    """Runs what may take long on a thread of its own; comes back when it is done, or after so many seconds."""
    wake: Callable[[], None] = lambda: None
    """Called, from such a thread, when there is something for the next turn."""


class Turn:
    """One pass along the line: the state as it becomes, what is to be recorded, and what to announce once it is."""

    def __init__(self, state: State, writer: Writer, now: Instant) -> None:
        self.state = state
        self.writer = writer
        self.now = now
        self.records: list[Record] = []
        self.announcements: list[Callable[[], None]] = []
        self.dirty = False

    def become(self, state: State) -> None:
        self.state = state
        self.dirty = True

    def record(self, written: tuple[State, Record]) -> None:
        self.become(written[0])
        self.records.append(written[1])

    def history(self, tracked: Tracked) -> None:
        self.become(with_tracked(self.state, tracked))

    def announce(self, fact: Callable[[], None]) -> None:
        self.announcements.append(fact)

    def mark(self) -> tuple[State, int, int]:
        return self.state, len(self.records), len(self.announcements)

    def back_to(self, mark: tuple[State, int, int]) -> None:
        self.state = mark[0]
        del self.records[mark[1] :]
        del self.announcements[mark[2] :]

    @classmethod
    def after(  # noqa: PLR0917  # a turn is complete at birth
        cls,
        state: State,
        senses: Senses,
        mode: Mode,
        now: Instant | None = None,
        incarnation: int | None = None,
        evidence: Mapping[str, Any] = MappingProxyType({}),
    ) -> Turn:
        """A turn that begins with this state; without a time it is now, without a number the document's own."""
        at = now or senses.clock()
        if incarnation is None and state.document is not None:
            incarnation = state.document.incarnation
        return cls(state, Writer(senses.who().vm, at.wall, incarnation, mode, evidence), at)

    def announce_all(self, log: Logger) -> None:
        """Counts and logs what this turn found: after it was committed, or as well as it could be."""
        for fact in self.announcements:
            fact()
        for record in self.records:
            say = {"INFO": log.info, "WARN": log.warn}.get(record.severity, log.error)
            decision = record.data.get("decision") or {}
            fields = {name: decision[name] for name in ("verdict", "reason", "rule") if decision.get(name)}
            say(record.kind, subject=record.subject, message=record.data["message"], **fields, id=record.id)
