"""Elements with an unreadable id may be any missing event, and duplicate ids are ambiguous."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import pytest
from msgspec.structs import replace

from exporter.core.decision import decide, reconsidered
from exporter.core.document import MAX_EVENTS
from exporter.core.lifecycle import EVENT_MEMORY_BYTES
from exporter.core.policy import Coordination, Reason
from exporter.core.scope import EventNow
from exporter.core.state import Ownership, Phase, TransitionKind
from exporter.core.state_codec import dump_state, load_state
from tests.support.approval_case import ANY_REBOOT, ENFORCE, OURS
from tests.support.core_documents import EVENT_ID, KEY, NOON, Watcher, approved, event, kinds, only, parsed, started

HIDING: Final[Mapping[str, Any]] = {
    "no id": event(EventId=...),
    "an id of null": event(EventId=None),
    "an empty id": event(EventId=""),
    "half a surrogate pair": event(EventId="a\ud800"),
    "Started": started(EventId=None),
}


def restarted(watcher: Watcher) -> None:
    """Return the state as the next process reads it."""
    watcher.state = load_state(dump_state(watcher.state))


@pytest.mark.parametrize("element", HIDING.values(), ids=HIDING)
@pytest.mark.parametrize("was_started", [False, True])
def test_event_that_an_element_may_hide_does_not_end(element: Any, *, was_started: bool) -> None:
    """Not while the element is there, in later documents or after a restart, and it continues unchanged."""
    shown = started() if was_started else event()
    watcher = Watcher.fresh()
    watcher.sees(event("other"), shown)
    phase = EventNow(watcher.state.tracked[KEY], "vm-0").phase
    assert kinds(watcher.sees(event("other"), element)) == []
    restarted(watcher)
    assert kinds(watcher.sees(event("other"), element, event("third"))) == ["scheduled"]
    now = EventNow(watcher.state.tracked[KEY], "vm-0")
    assert (now.phase, now.ownership, now.tracked.event_type) == (phase, Ownership.OURS, "Reboot")
    assert watcher.state.document is not None
    assert watcher.state.document.elements == 3
    assert kinds(watcher.sees(event("other"), event("third"), shown)) == []
    assert only(watcher.sees(event("other"), event("third"))).kind is (
        TransitionKind.COMPLETED if was_started else TransitionKind.CANCELED
    )


def test_end_of_a_hidden_event_is_not_canceled() -> None:
    """It may have been Started in between."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(EventId=None))
    gone = only(watcher.sees())
    assert (gone.kind, gone.unseen) == (TransitionKind.ENDED, ("unknown-status",))


def test_element_that_was_there_before_hides_nothing() -> None:
    """The event was next to it, so it's another one: a permanent unreadable element delays no end."""
    watcher = Watcher.fresh()
    watcher.sees(event(), event(EventId=None))
    assert only(watcher.sees(event(EventId=None))).kind is TransitionKind.CANCELED


OTHERS: Final[Mapping[str, Any]] = {
    "no object": None,
    "an empty object": {},
    "another type": event(EventId=None, EventType="Freeze"),
    "other resources": event(EventId=None, Resources=["vm-1"]),
    "no resources": event(EventId=None, Resources=None),
    "an id that is too long": event("x" * 101),
    "an id that is there twice": event("Other"),
}


@pytest.mark.parametrize("element", OTHERS.values(), ids=OTHERS)
def test_element_that_differs_from_the_event_hides_nothing(element: Any) -> None:
    """It has another type, other resources, or a separate id."""
    watcher = Watcher.fresh()
    watcher.sees(event(), event("other"))
    assert only(watcher.sees(event("other"), element)).kind is TransitionKind.CANCELED


def test_event_beyond_the_limit_of_a_document_does_not_end() -> None:
    """It was read before; only elements up to the limit are read."""
    many = [event(f"n-{number}", Resources=["n"]) for number in range(MAX_EVENTS)]
    watcher = Watcher.fresh()
    watcher.sees(*many[1:], started())
    assert kinds(watcher.sees(*many, started())) == ["scheduled"]
    assert EventNow(watcher.state.tracked[KEY], "vm-0").phase is Phase.STARTED


def test_each_element_hides_one_event() -> None:
    """Two equal elements hide two events. A third event ends, and already hidden ones have priority."""
    element = event(EventId=None)
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"), event("c"))
    assert kinds(watcher.sees(event("a"), event("c"), element)) == []
    assert kinds(watcher.sees(event("c"), element, element)) == []
    restarted(watcher)
    gone = only(watcher.sees(element, element))
    assert gone.tracked.event.event_id == "c"
    assert kinds(watcher.sees(event("a"), event("b"))) == []


def test_element_that_changes_next_to_an_event_does_not_hide_it() -> None:
    """It's another event, whatever its content becomes."""
    watcher = Watcher.fresh()
    watcher.sees(event(), event(EventId=None))
    assert only(watcher.sees(started(EventId=None))).kind is TransitionKind.CANCELED


@pytest.mark.parametrize("shown", [(event(EventId=None),), (event(), event()), (event(), event(Resources=["vm-1"]))])
def test_approved_event_with_an_ambiguous_id_has_not_changed(shown: tuple[dict[str, Any], ...]) -> None:
    """Nothing shows that the rules would hold it now."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    approved(watcher, accepted_at=NOON)
    watcher.sees(*shown)
    assert reconsidered(replace(ENFORCE, coordination=Coordination.ANY), watcher.state.tracked[KEY], "vm-0") is None


@pytest.mark.parametrize("element", HIDING.values(), ids=HIDING)
def test_hidden_approved_event_is_not_quiet(element: Any) -> None:
    """And no hidden event is approved."""
    quiet = replace(ENFORCE, coordination=Coordination.ANY, rules=(replace(ANY_REBOOT, when_quiet=True),))
    watcher = Watcher.fresh()
    watcher.sees(event(), event("other"))
    approved(watcher, accepted_at=NOON)
    for shown in ((event("other"), element), (event("other"), element, event("third", EventType="Freeze"))):
        watcher.sees(*shown)
        decisions = {decision.key: decision for decision in decide(quiet, watcher.state, OURS)}
        assert decisions["other"].reason is Reason.NOT_QUIET
        assert decisions[KEY].reason is Reason.MALFORMED


TWINS: Final[Mapping[str, dict[str, Any]]] = {
    "another type": {"EventType": "Freeze"},
    "other resources": {"Resources": ["vm-0", "vm-1"]},
    "another time": {"NotBefore": "Fri, 21 Nov 2025 12:16:00 GMT"},
}


@pytest.mark.parametrize("fields", TWINS.values(), ids=TWINS)
def test_duplicate_id_with_other_content_is_a_change(fields: dict[str, Any]) -> None:
    """`settle` starts again once the id is unique."""
    policy = replace(ENFORCE, rules=(replace(ANY_REBOOT, settle=8.0),))
    watcher = Watcher.fresh()
    watcher.sees(event())
    for _ in range(9):
        watcher.sees(event(), event(**fields))
    reasons: list[Reason] = []
    for _ in range(9):
        watcher.sees(event(), up=0 if reasons else 1)
        (decision,) = decide(policy, watcher.state, OURS)
        reasons.append(decision.reason)
    assert reasons == [Reason.SETTLING] * 8 + [Reason.NONE]


def test_duplicate_id_with_one_started_has_a_start() -> None:
    """Every output shows it as Started, so it's recorded and counted, when first seen and later."""
    watcher = Watcher.fresh()
    first = only(watcher.sees(event(), started()))
    assert (first.kind, first.tracked.started_at) == (TransitionKind.STARTED, watcher.wall)
    assert kinds(watcher.sees(event(), started(), up=0)) == []
    assert kinds(watcher.sees(started())) == []
    watcher.sees()
    assert kinds(watcher.sees(event())) == ["scheduled"]
    assert kinds(watcher.sees(event(), started())) == ["started"]


def test_duplicate_successor_replaces_the_event() -> None:
    """The event continues under another id, so it wasn't canceled."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    gone = watcher.sees(event("new"), started("new"))[0]
    assert (gone.kind, gone.replaced_by) == (TransitionKind.ENDED, "new")


def test_disputed_not_before_is_not_in_the_future() -> None:
    """It had passed before a duplicate id moved it."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.wall += timedelta(minutes=20)
    later = event(NotBefore="Fri, 21 Nov 2025 13:15:00 GMT")
    watcher.sees(event(), wall=1.0)
    watcher.sees(later, event())
    gone = only(watcher.sees())
    assert gone.kind is TransitionKind.ENDED
    assert "not-before-unknown" in gone.unseen


def test_two_spellings_of_a_time_are_not_disputed() -> None:
    (found,) = parsed(event(), event(NotBefore="2025-11-21T12:15:00Z")).events
    assert found.disputed == ()
    (found,) = parsed(event(), event(NotBefore="2025-11-21T12:15:01Z")).events
    assert found.disputed == ("NotBefore",)


def test_smallest_earlier_fields_are_kept() -> None:
    """Neighbours with many resources don't displace the fields of this VM's events."""
    names = ["n" * 1000] * (EVENT_MEMORY_BYTES // 1500)
    watcher = Watcher.fresh()
    watcher.sees(event("a", Resources=names), event("b", Resources=names), started(EVENT_ID))
    watcher.sees(event("a", Resources=None), event("b", Resources=None), started(EVENT_ID, Resources=None))
    assert EventNow(watcher.state.tracked[KEY], "vm-0").ownership is Ownership.OURS
    assert sum(tracked.resources is None for tracked in watcher.state.tracked.values()) == 1
