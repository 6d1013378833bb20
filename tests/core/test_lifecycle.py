"""The machine: every pair of the table of moves, each documented surprise, what is a change, and what is remembered."""

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


def test_the_table_is_total() -> None:
    """Every last phase and every next one, also "not in the document", has its entry."""
    phases = (None, *Phase)
    assert set(MOVES) == {(last, following) for last in phases for following in phases}


@pytest.mark.parametrize(("last", "following"), MOVES, ids=lambda phase: phase.value if phase else "absent")
def test_every_pair_of_phases_gives_the_transition_of_the_table(last: Phase | None, following: Phase | None) -> None:
    """Each move, also those that cannot happen, is told once and leaves a state that the next document can follow."""
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
def test_a_changed_field_without_a_move_is_an_update(phase: Phase) -> None:
    """In every phase, with the old value and the new one."""
    watcher = Watcher.fresh()
    watcher.sees(*SHOWN[phase])
    (shown,) = SHOWN[phase]
    found = only(watcher.sees({**shown, "Description": "Sooner."}))
    assert (found.kind, found.unexpected, found.newly_seen) == (TransitionKind.UPDATED, False, False)
    assert changed(found) == {"Description": (shown["Description"], "Sooner.")}


@pytest.mark.parametrize("status", ["Paused", "scheduled", "SCHEDULED", "", "Started ", None, 5, ...])
def test_a_status_that_is_no_known_word_is_unknown(status: Any) -> None:
    """Words match exactly; what is missing or mistyped is as unknown as a new word."""
    assert phase_of(one(EventStatus=status)) is Phase.UNKNOWN


# -- the way of an event


def test_the_documented_live_migration() -> None:
    """Scheduled, Started without its NotBefore, gone: three transitions and nothing else."""
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
def test_first_sights_say_what_was_seen_before(first: dict[str, Any]) -> None:
    """Unbroken after a recent document, a gap after an old one, a start of the agent when there was none."""
    at_start, after_gap, seen = Watcher.fresh(watching=False), Watcher.fresh(), Watcher.fresh()
    after_restart = Watcher.fresh()
    after_restart.restarts()
    at_start.sees(first)
    after_gap.sees(first, after=60)
    seen.sees(first)
    after_restart.sees(first)
    found = [watcher.state.tracked[KEY].seen_before for watcher in (at_start, after_gap, seen, after_restart)]
    assert found == [Seen.AGENT_START, Seen.GAP, Seen.UNBROKEN, Seen.AGENT_START]


def test_an_event_first_seen_with_an_unknown_status_is_announced_once_it_is_known() -> None:
    """It is told as rejected at once and as scheduled when it is, with how its first sight came about."""
    watcher = Watcher.fresh()
    step = watcher.step(event(EventStatus="Paused"))
    assert step.transitions == ()
    assert [(found.key, found.fault) for found in step.rejections] == [(KEY, "EventStatus")]
    found = only(watcher.sees(event()))
    assert (found.kind, found.newly_seen) == (TransitionKind.SCHEDULED, True)


def test_a_host_failure_is_first_seen_started() -> None:
    """Scheduled is skipped: `started`, a first sight, and nobody knows who let it start."""
    found = only(Watcher.fresh().sees(started()))
    assert (found.kind, found.newly_seen, found.tracked.started_by) == (TransitionKind.STARTED, True, StartedBy.UNKNOWN)
    assert not found.tracked.scheduled_seen


def test_started_that_goes_back_to_scheduled_is_an_unexpected_update() -> None:
    """It cannot happen, and when it does it is said; the next start is a second `started`."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    found = only(watcher.sees(event()))
    assert (found.kind, found.unexpected) == (TransitionKind.UPDATED, True)
    assert kinds(watcher.sees(started())) == ["started"]
    assert only(watcher.sees()).tracked.started_at == found.tracked.started_at


def test_an_id_that_comes_back_is_a_new_life_with_its_numbers_going_on() -> None:
    """The second `scheduled` of an id is another fact than the first, so it must get another number."""
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


def test_an_id_in_another_case_is_the_same_event() -> None:
    """Compared case-insensitively, published as received."""
    watcher = Watcher.fresh()
    watcher.sees(event(EVENT_ID))
    assert watcher.sees(event(EVENT_ID.lower())) == ()
    assert watcher.state.tracked[KEY].event.event_id == EVENT_ID.lower()
    assert kinds(watcher.sees()) == ["canceled"]


def test_several_events_move_in_one_document() -> None:
    """Each by its own row, in whatever order they stand; what is gone is told first."""
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"), started("c"))
    found = watcher.sees(started("d"), event("b", Description="New."), started("a"))
    assert [(each.tracked.event.event_id, each.kind.value) for each in found] == [
        ("c", "completed"),
        ("d", "started"),
        ("b", "updated"),
        ("a", "started"),
    ]


def test_reordered_events_are_no_change() -> None:
    """The order in the document means nothing."""
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"))
    assert watcher.sees(event("b"), event("a")) == ()


# -- what is a change


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
    """A time written otherwise is the same time; 5 and 5.0 are not the same, since one of them can't be read."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    found = watcher.sees(event(**fields))
    assert [list(changed(each)) for each in found] == ([names] if names else [])


def test_a_change_without_a_number_is_told_and_called_odd() -> None:
    """The service promises the same events for the same number; the content decides all the same."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    step = watcher.step(event(Description="New."), up=0)
    assert (kinds(step.transitions), step.anomaly) == (["updated"], "changed-without-incarnation")
    assert watcher.step(event(Description="New."), up=0).anomaly == ""


def test_another_order_of_the_events_is_no_change() -> None:
    """Neither a transition nor a document that changed, nor an oddity where the number is the same."""
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"))
    step = watcher.step(event("b"), event("a"), up=0)
    assert (step.transitions, step.changed, step.anomaly) == ((), False, "")
    assert watcher.step(event("b"), event("a"), up=1).anomaly == "incarnation-without-change"
    assert kinds(watcher.sees(event("a"), event("b", Description="New."))) == ["updated"]


def test_a_number_that_went_down_is_told_and_starts_the_warming_anew() -> None:
    """After a day without a request the service switches off and the number starts again."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    first = watcher.state.first_answer
    step = watcher.step(event(), up=-1)
    assert (kinds(step.transitions), step.anomaly) == ([], "incarnation-restarted")
    assert watcher.state.first_answer == Instant(watcher.wall, watcher.mono) != first


@pytest.mark.parametrize(("up", "anomaly"), [(2, "incarnation-skipped"), (1, "incarnation-without-change"), (0, "")])
def test_other_oddities_of_the_number(up: int, anomaly: str) -> None:
    """A number that goes up without a change, or by more than one."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    assert watcher.step(event(), up=up).anomaly == anomaly


# -- memory


def test_what_is_gone_is_remembered_for_a_while_and_then_forgotten_without_a_repeated_number() -> None:
    """Only so many histories are kept; an id that comes back after that starts with numbers nobody had."""
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


def test_a_rejection_is_told_once_while_it_stands_there() -> None:
    """Each poll shows it again; only its coming is news, and its coming back."""
    watcher = Watcher.fresh()
    assert [found.fault for found in watcher.step(event(), None).rejections] == ["not-an-object"]
    assert watcher.step(event(), None).rejections == ()
    assert watcher.step(event(Description="New."), None).rejections == ()
    assert watcher.step(event()).rejections == ()
    assert [found.fault for found in watcher.step(event(), None).rejections] == ["not-an-object"]


def test_a_flood_of_rejections_is_told_in_part() -> None:
    """A document of nonsense must not fill the outbox."""
    watcher = Watcher.fresh()
    assert len(watcher.step(*range(100)).rejections) == MAX_REJECTIONS_RECORDED


def test_a_fault_of_a_tracked_event_is_told_when_it_comes() -> None:
    """Not at every poll, and not when it goes; a further fault is news again."""
    watcher = Watcher.fresh()
    assert watcher.step(event()).rejections == ()
    recorded = [found.fault for found in watcher.step(event(Resources=5)).rejections]
    assert recorded == ["Resources"]
    assert watcher.step(event(Resources=5)).rejections == ()
    assert [found.fault for found in watcher.step(event(Resources=5, NotBefore="")).rejections] == [
        "NotBefore, Resources"
    ]
    assert watcher.step(event(NotBefore="")).rejections == ()


def test_a_history_that_was_forgotten_is_not_brought_back() -> None:
    """A late answer about an event that is long gone changes nothing."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    stranger: TrackedEvent = replace(watcher.state.tracked[KEY], event=one(EventId="stranger"))
    assert with_tracked(watcher.state, stranger) is watcher.state


def test_an_attempt_of_an_earlier_life_is_remembered() -> None:
    """An id that flaps must not be a way around the waiting between two POSTs."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    last = Instant(watcher.wall, watcher.mono)
    approved(watcher, last_attempt=last)
    watcher.sees()
    watcher.sees(event())
    approval = watcher.state.tracked[KEY].approval
    assert (approval.attempts, approval.last_attempt) == (1, last)


def test_the_history_of_an_event_that_did_not_change_stays_the_same_object() -> None:
    """What is written of it is then kept from one commit to the next, however many other events there are."""
    watcher = Watcher.fresh()
    watcher.sees(event("a"), event("b"))
    before = dict(watcher.state.tracked)
    watcher.sees(event("a"), event("b", Description="another"))
    assert watcher.state.tracked["a"] is before["a"]
    assert watcher.state.tracked["b"] != before["b"]
