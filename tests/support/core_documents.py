"""Documents for the tests of the core, as bytes, and a watcher that reads them in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from exporter.core.continuity import DocumentStep
from exporter.core.decision import Explanation, decide, explain_decision
from exporter.core.document import Document, DocumentError, Event, folded, parse_document
from exporter.core.lifecycle import advance
from exporter.core.memory import number, with_tracked
from exporter.core.policy import Context, Policy, Presence
from exporter.core.records import Vm, VmIdentity
from exporter.core.state import EMPTY, Approval, Instant, State, Transition
from tests.support import factories

NOON: Final = datetime(2025, 11, 21, 12, 0, tzinfo=UTC)
NOT_BEFORE: Final = "Fri, 21 Nov 2025 12:15:00 GMT"
EVENT_ID: Final = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
KEY: Final = folded(EVENT_ID)


def event(event_id: str = EVENT_ID, **fields: Any) -> dict[str, Any]:
    """Return a user's reboot of vm-0, Scheduled, NotBefore a quarter past noon; `...` as a value omits the field."""
    recorded = "Virtual machine is going to be restarted as requested by authorized user."
    usual = {"EventSource": "User", "Description": recorded}
    return factories.azure_event(event_id, "Reboot", ["vm-0"], NOT_BEFORE, **usual | fields)


def started(event_id: str = EVENT_ID, **fields: Any) -> dict[str, Any]:
    """Return a Started event in Azure's form."""
    return event(event_id, **{"EventStatus": "Started", "NotBefore": ""} | fields)


def context_of(
    vm_name: str = "vm-0",
    files: Mapping[str, Presence] = EMPTY,
    *,
    conflict: bool = False,
    writable: bool = True,
    now: datetime = NOON,
) -> Context:
    """Return the context of a VM with this name."""
    return Context(Instant(now), Instant(now), VmIdentity(Vm(name=vm_name), conflict), files, writable)


def explain(policy: Policy, state: State, context: Context) -> tuple[Explanation, ...]:
    """Return the decisions with all checks of each event."""
    return tuple(explain_decision(policy, state, context, decision) for decision in decide(policy, state, context))


body = factories.document


def parsed(*events: Any, number: int = 1) -> Document:
    """Return the document of these events."""
    return parse_document(body(number, *events))


def outcome(raw: bytes) -> str:
    """Return the parsed document, or why it is invalid."""
    try:
        parse_document(raw)
    except DocumentError as error:
        return error.reason
    return "read"


def one(**fields: Any) -> Event:
    """Return the one event of a document, as parsed."""
    (found,) = parsed(event(**fields)).events
    return found


@dataclass
class Watcher:
    """Reads documents a second apart by default. `number` goes up by one with each of them."""

    state: State
    wall: datetime = NOON
    mono: float | None = 100.0
    number: int = 0

    @classmethod
    def fresh(cls, *, watching: bool = True) -> Watcher:
        """Return a watcher with an empty state; `watching`: it has read an empty document already."""
        made = cls(State(birth=NOON, vm_key="vm-key"))
        if watching:
            made.sees()
        return made

    def sees(self, *events: Any, after: float = 1.0, wall: float | None = None, up: int = 1) -> tuple[Transition, ...]:
        return self.step(*events, after=after, wall=wall, up=up).transitions

    def step(self, *events: Any, after: float = 1.0, wall: float | None = None, up: int = 1) -> DocumentStep:
        self.wall += timedelta(seconds=after if wall is None else wall)
        self.mono = None if self.mono is None else self.mono + after
        self.number += up
        found = advance(self.state, parsed(*events, number=self.number), Instant(self.wall, self.mono))
        self.state = found.state
        return found

    def publishes(self) -> None:
        """Write a record about each event of the document."""
        for tracked in self.state.tracked.values():
            self.state = with_tracked(self.state, number(tracked, "scheduled")[1])

    def restarts(self) -> None:
        """Start another process: the previous monotonic clock is meaningless to it."""
        last = self.state.last_good
        self.state = replace(self.state, last_good=Instant(last.wall) if last else None)


def kinds(transitions: tuple[Transition, ...]) -> list[str]:
    """Return the kinds of these transitions, in order."""
    return [transition.kind.value for transition in transitions]


def changed(transition: Transition) -> Mapping[str, tuple[Any, Any]]:
    """Return the fields that changed, each with its value before and after."""
    return transition.changed


def only(transitions: tuple[Transition, ...]) -> Transition:
    """Return the one transition; fail unless there is exactly one."""
    (found,) = transitions
    return found


def approved(watcher: Watcher, **fields: Any) -> None:
    """Return the state after an accepted POST of this VM."""
    tracked = watcher.state.tracked[KEY]
    approval = Approval(attempts=1, rule="all", **fields)
    watcher.state = with_tracked(watcher.state, replace(tracked, approval=approval))
