"""The state machine: every pair of the table, each documented anomaly, changes, and memory."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from exporter.core.lifecycle import MAX_REJECTIONS_RECORDED, MOVES, phase_of
from exporter.core.memory import CLOSED_KEPT, number, with_tracked
from exporter.core.state import CLOSING, Instant, Phase, Seen, StartedBy, TrackedEvent, TransitionKind
from tests.support.core_documents import EVENT_ID, KEY, Watcher, approved, changed, event, kinds, one, only, started

SHOWN: dict[Phase | None, tuple[dict[str, Any], ...]] = {
    None: (),
    Phase.SCHEDULED: (event(),),
    Phase.STARTED: (started(),),
    Phase.UNKNOWN: (event(EventStatus="Paused"),),
}


# -- the table


def test_table_of_moves_is_total() -> None:
    """Every last phase and every next one, including "not in the document", has an entry."""
    phases = (None, *Phase)
    assert set(MOVES) == {(last, following) for last in phases for following in phases}


@pytest.mark.parametrize(("last", "following"), MOVES, ids=lambda phase: phase.value if phase else "absent")
def test_every_pair_of_phases_gives_the_transition_of_the_table(last: Phase | None, following: Phase | None) -> None:
    """Each move, even an impossible one, is recorded once, and the next document can follow it."""
    watcher = Watcher.fresh()
    watcher.sees(*SHOWN[last])
    found = watcher.sees(*SHOWN[following])
    expected = MOVES[last, following]
    assert [transition.kind for transition in found] == ([expected] if expected else [])
    assert watcher.sees(*SHOWN[following]) == ()
    assert set(watcher.state.tracked) == ({KEY} if following else set())
    end = watcher.sees()
    assert all(transition.kind in CLOSING for transition in end)
    assert len(end) == (1 if following else 0)


@pytest.mark.parametrize("phase", Phase)
def test_changed_field_without_a_move_is_an_update(phase: Phase) -> None:
    """In every phase, with the old and the new value."""
    watcher = Watcher.fresh()
    watcher.sees(*SHOWN[phase])
    (shown,) = SHOWN[phase]
    found = only(watcher.sees({**shown, "Description": "Sooner."}))
    assert (found.kind, found.unexpected, found.newly_seen) == (TransitionKind.UPDATED, False, False)
    assert changed(found) == {"Description": (shown["Description"], "Sooner.")}


@pytest.mark.parametrize("status", ["Paused", "scheduled", "SCHEDULED", "", "Started ", None, 5, ...])
def test_unrecognized_status_is_unknown(status: Any) -> None:
    """Values match exactly; a missing or mistyped one is as unknown as a new one."""
    assert phase_of(one(EventStatus=status)) is Phase.UNKNOWN


# -- the life cycle of an event


def test_documented_live_migration_has_three_transitions() -> None:
    """Scheduled, Started without its NotBefore, removed."""
    watcher = Watcher.fresh()
    assert kinds(watcher.sees(event())) == ["scheduled"]
    assert kinds(watcher.sees(event(), up=0)) == []
    begun = only(watcher.sees(started()))
    assert (begun.kind, dict(begun.changed), begun.unexpected) == (TransitionKind.STARTED, {}, False)
    over = only(watcher.sees())
    assert (over.kind, over.unseen) == (TransitionKind.COMPLETED, ())
    assert over.tracked.not_before is not None
    assert over.tracked.closed is not None
    assert over.tracked.closed.wall == watcher.wall


@pytest.mark.parametrize("first", [event(), started(), event(EventStatus="Paused")])
def test_first_record_shows_how_well_the_time_before_was_observed(first: dict[str, Any]) -> None:
    """Unbroken after a recent document, a gap after an old one, a start of the agent without one."""
    at_start, after_gap, seen = Watcher.fresh(watching=False), Watcher.fresh(), Watcher.fresh()
    after_restart = Watcher.fresh()
    after_restart.restarts()
    at_start.sees(first)
    after_gap.sees(first, after=60)
    seen.sees(first)
    after_restart.sees(first)
    found = [watcher.state.tracked[KEY].seen_before for watcher in (at_start, after_gap, seen, after_restart)]
    assert found == [Seen.AGENT_START, Seen.GAP, Seen.UNBROKEN, Seen.AGENT_START]


def test_event_with_an_unknown_status_is_scheduled_once_the_status_is_known() -> None:
    """It's recorded as rejected at once, and as scheduled later, with how it was first seen."""
    watcher = Watcher.fresh()
    step = watcher.step(event(EventStatus="Paused"))
    assert step.transitions == ()
    assert [(found.key, found.fault) for found in step.rejections] == [(KEY, "EventStatus")]
    found = only(watcher.sees(event()))
    assert (found.kind, found.newly_seen) == (TransitionKind.SCHEDULED, True)


def test_host_failure_is_first_seen_started() -> None:
    """There is no `scheduled`, only a newly seen `started`, and what started it is unknown."""
    found = only(Watcher.fresh().sees(started()))
    assert (found.kind, found.newly_seen, found.tracked.started_by) == (TransitionKind.STARTED, True, StartedBy.UNKNOWN)
    assert not found.tracked.scheduled_seen


def test_scheduled_after_started_is_an_unexpected_update() -> None:
    """It's documented as impossible; the next start is a second `started`."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    found = only(watcher.sees(event()))
    assert (found.kind, found.unexpected) == (TransitionKind.UPDATED, True)
    assert kinds(watcher.sees(started())) == ["started"]
    assert only(watcher.sees()).tracked.started_at == found.tracked.started_at


def test_returning_id_is_a_new_event_with_continued_numbers() -> None:
    """The second `scheduled` of an id is another fact, so it needs another number."""
    watcher = Watcher.fresh()
    first = only(watcher.sees(event()))
    count, numbered = number(first.tracked, "scheduled")
    watcher.state = with_tracked(watcher.state, numbered)
    watcher.sees()
    again = only(watcher.sees(event()))
    assert (again.kind, again.newly_seen) == (TransitionKind.SCHEDULED, True)
    assert again.tracked.first_seen.wall == watcher.wall
    assert (count, number(again.tracked, "scheduled")[0]) == (1, 2)
    assert watcher.state.closed == {}


def test_id_in_another_case_is_the_same_event() -> None:
    """Compared case-insensitively, published as received."""
    watcher = Watcher.fresh()
    watcher.sees(event(EVENT_ID))
    assert watcher.sees(event(EVENT_ID.lower())) == ()
    assert watcher.state.tracked[KEY].event.event_id == EVENT_ID.lower()
    assert kinds(watcher.sees()) == ["canceled"]


def test_several_events_move_in_one_document() -> None:
    """Each by its own row, in any order; ended events come first."""
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"), started("c"))
    found = watcher.sees(started("d"), event("b", Description="New."), started("a"))
    assert [(each.tracked.event.event_id, each.kind.value) for each in found] == [
        ("c", "completed"),
        ("d", "started"),
        ("b", "updated"),
        ("a", "started"),
    ]


def test_reordered_events_are_unchanged() -> None:
    """The order in the document has no meaning."""
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"))
    assert watcher.sees(event("b"), event("a")) == ()


# -- changes


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"NotBefore": "2025-11-21T12:15:00.0000000Z"}, []),
        ({"NotBefore": "Mon, 21 Nov 2025 12:15:00 GMT"}, []),
        ({"NotBefore": "Fri, 21 Nov 2025 12:15:01 GMT"}, ["NotBefore"]),
        ({"NotBefore": "soon"}, ["NotBefore"]),
        ({"NotBefore": ...}, ["NotBefore"]),
        ({"Resources": ["vm-0", "vm-1"]}, ["Resources"]),
        ({"Resources": ["VM-0"]}, ["Resources"]),
        ({"DurationInSeconds": 5}, ["DurationInSeconds"]),
        ({"DurationInSeconds": -1.0}, ["DurationInSeconds"]),
        ({"DurationInSeconds": ...}, ["DurationInSeconds"]),
        ({"EventSource": "Platform", "EventType": "Redeploy"}, ["EventSource", "EventType"]),
        ({"Description": None}, ["Description"]),
        ({"New": {"deep": [1]}}, ["New"]),
        ({"EventStatus": "Paused"}, ["EventStatus"]),
    ],
)
def test_changes_are_of_meaning_and_not_of_spelling(fields: dict[str, Any], names: list[str]) -> None:
    """Two spellings of a time are equal; 5 and 5.0 differ, since one of them can't be read."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    found = watcher.sees(event(**fields))
    assert [list(changed(each)) for each in found] == ([names] if names else [])


def test_change_without_a_new_incarnation_is_recorded_as_an_anomaly() -> None:
    """The service guarantees the same events for the same DocumentIncarnation; the content decides anyway."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    step = watcher.step(event(Description="New."), up=0)
    assert (kinds(step.transitions), step.anomaly) == (["updated"], "changed-without-incarnation")
    assert watcher.step(event(Description="New."), up=0).anomaly == ""


def test_reordered_events_cause_no_transition_and_no_anomaly() -> None:
    """Even if DocumentIncarnation is the same."""
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"))
    step = watcher.step(event("b"), event("a"), up=0)
    assert (step.transitions, step.changed, step.anomaly) == ((), False, "")
    assert watcher.step(event("b"), event("a"), up=1).anomaly == "incarnation-without-change"
    assert kinds(watcher.sees(event("a"), event("b", Description="New."))) == ["updated"]


def test_decreased_incarnation_is_recorded_and_restarts_warming() -> None:
    """After a day without a request the service is disabled and DocumentIncarnation starts again."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    first = watcher.state.first_answer
    step = watcher.step(event(), up=-1)
    assert (kinds(step.transitions), step.anomaly) == ([], "incarnation-restarted")
    assert watcher.state.first_answer == Instant(watcher.wall, watcher.mono) != first


@pytest.mark.parametrize(("up", "anomaly"), [(2, "incarnation-skipped"), (1, "incarnation-without-change"), (0, "")])
def test_other_anomalies_of_the_incarnation_are_detected(up: int, anomaly: str) -> None:
    """An increase without a change, or by more than one."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    assert watcher.step(event(), up=up).anomaly == anomaly


# -- memory


def test_dropped_events_never_repeat_record_numbers() -> None:
    """A limited number of closed events is kept; an id that returns after that starts with unused numbers."""
    watcher = Watcher.fresh()
    watcher.sees(event("old"))
    watcher.publishes()
    watcher.sees()
    crowd = [event(str(number)) for number in range(CLOSED_KEPT)]
    watcher.sees(*crowd)
    watcher.publishes()
    watcher.sees()
    assert "old" not in watcher.state.closed
    assert len(watcher.state.closed) == CLOSED_KEPT
    again = only(watcher.sees(event("old")))
    assert number(again.tracked, "scheduled")[0] > 1_000_000


def test_rejection_is_recorded_once_while_it_remains() -> None:
    """Each poll contains it; it's recorded when it appears and when it reappears."""
    watcher = Watcher.fresh()
    assert [found.fault for found in watcher.step(event(), None).rejections] == ["not-an-object"]
    assert watcher.step(event(), None).rejections == ()
    assert watcher.step(event(Description="New."), None).rejections == ()
    assert watcher.step(event()).rejections == ()
    assert [found.fault for found in watcher.step(event(), None).rejections] == ["not-an-object"]


def test_number_of_recorded_rejections_is_limited() -> None:
    """An invalid document must not fill the outbox."""
    watcher = Watcher.fresh()
    assert len(watcher.step(*range(100)).rejections) == MAX_REJECTIONS_RECORDED


def test_new_fault_of_a_tracked_event_is_recorded() -> None:
    """Not at every poll, and not when it disappears; a further fault is recorded again."""
    watcher = Watcher.fresh()
    assert watcher.step(event()).rejections == ()
    recorded = [found.fault for found in watcher.step(event(Resources=5)).rejections]
    assert recorded == ["Resources"]
    assert watcher.step(event(Resources=5)).rejections == ()
    assert [found.fault for found in watcher.step(event(Resources=5, NotBefore="")).rejections] == [
        "NotBefore, Resources"
    ]
    assert watcher.step(event(NotBefore="")).rejections == ()


def test_late_response_does_not_restore_a_dropped_event() -> None:
    watcher = Watcher.fresh()
    watcher.sees(event())
    stranger: TrackedEvent = replace(watcher.state.tracked[KEY], event=one(EventId="stranger"))
    assert with_tracked(watcher.state, stranger) is watcher.state


def test_attempt_of_an_earlier_event_with_this_id_is_kept() -> None:
    """An id that flaps must not evade the backoff between two POSTs."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    last = Instant(watcher.wall, watcher.mono)
    approved(watcher, last_attempt=last)
    watcher.sees()
    watcher.sees(event())
    approval = watcher.state.tracked[KEY].approval
    assert (approval.attempts, approval.last_attempt) == (1, last)


def test_unchanged_tracked_event_stays_the_same_object() -> None:
    """Its text is then reused from one commit to the next, however many other events there are."""
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"))
    before = dict(watcher.state.tracked)
    watcher.sees(event("a"), event("b", Description="another"))
    assert watcher.state.tracked["a"] is before["a"]
    assert watcher.state.tracked["b"] != before["b"]
