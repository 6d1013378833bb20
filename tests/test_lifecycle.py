"""The machine: every pair of the table of moves, each documented surprise, and when it may say `canceled`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from exporter.lifecycle import (
    CLOSED_KEPT,
    CLOSING,
    MOVES,
    REJECTIONS_TOLD,
    Approval,
    Instant,
    Kind,
    Phase,
    Seen,
    StartedBy,
    Tracked,
    Transition,
    number,
    phase_of,
    with_tracked,
)
from tests.core_documents import EVENT_ID, NOON, Watcher, changed, event, kinds, one, started

KEY = EVENT_ID.casefold()
SHOWN: dict[Phase | None, tuple[dict[str, Any], ...]] = {
    None: (),
    Phase.SCHEDULED: (event(),),
    Phase.STARTED: (started(),),
    Phase.UNKNOWN: (event(EventStatus="Paused"),),
}


def approved(watcher: Watcher, **fields: Any) -> None:
    """As after our POST."""
    tracked = watcher.state.tracked[KEY]
    approval = Approval(attempts=1, rule="all", **fields)
    watcher.state = with_tracked(watcher.state, replace(tracked, approval=approval))


def only(transitions: tuple[Transition, ...]) -> Transition:
    (found,) = transitions
    return found


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
    assert (found.kind, found.unexpected, found.first_sight) == (Kind.UPDATED, False, False)
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
    assert (begun.kind, dict(begun.changed), begun.unexpected) == (Kind.STARTED, {}, False)
    over = only(watcher.sees())
    assert (over.kind, over.unseen) == (Kind.COMPLETED, ())
    assert over.tracked.not_before is not None
    assert over.tracked.closed_at == watcher.wall


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
    assert (found.kind, found.first_sight) == (Kind.SCHEDULED, True)


def test_a_host_failure_is_first_seen_started() -> None:
    """Scheduled is skipped: `started`, a first sight, and nobody knows who let it start."""
    found = only(Watcher.fresh().sees(started()))
    assert (found.kind, found.first_sight, found.tracked.started_by) == (Kind.STARTED, True, StartedBy.UNKNOWN)
    assert not found.tracked.scheduled_seen


def test_started_that_goes_back_to_scheduled_is_an_unexpected_update() -> None:
    """It cannot happen, and when it does it is said; the next start is a second `started`."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    found = only(watcher.sees(event()))
    assert (found.kind, found.unexpected) == (Kind.UPDATED, True)
    assert kinds(watcher.sees(started())) == ["started"]


def test_an_id_that_comes_back_is_a_new_life_with_its_numbers_going_on() -> None:
    """The second `scheduled` of an id is another fact than the first, so it must get another number."""
    watcher = Watcher.fresh()
    first = only(watcher.sees(event()))
    count, numbered = number(first.tracked, "scheduled")
    watcher.state = with_tracked(watcher.state, numbered)
    watcher.sees()
    again = only(watcher.sees(event()))
    assert (again.kind, again.first_sight) == (Kind.SCHEDULED, True)
    assert again.tracked.first_seen == watcher.wall
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
    assert (kinds(step.transitions), step.anomalies) == (["updated"], ("content-without-number",))
    assert watcher.step(event(Description="New."), up=0).anomalies == ()


def test_a_number_that_went_down_is_told_and_starts_the_warming_anew() -> None:
    """After a day without a request the service switches off and the number starts again."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    first = watcher.state.first_answer
    step = watcher.step(event(), up=-1)
    assert (kinds(step.transitions), step.anomalies) == ([], ("number-restarted",))
    assert watcher.state.first_answer == watcher.wall != first


@pytest.mark.parametrize(("up", "anomalies"), [(2, ("number-skipped",)), (1, ("number-without-content",)), (0, ())])
def test_other_oddities_of_the_number(up: int, anomalies: tuple[str, ...]) -> None:
    """A number that goes up without a change, or by more than one."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    assert watcher.step(event(), up=up).anomalies == anomalies


# -- how an event ends


def test_scheduled_and_gone_under_our_eyes_is_canceled() -> None:
    """Unbroken, before its NotBefore, the number up by one, not approved by us: nothing else can have happened."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    found = only(watcher.sees())
    assert (found.kind, found.unseen, found.tracked.outcome) == (Kind.CANCELED, (), Kind.CANCELED)


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        ({"after": 5.1}, ["gap"]),
        ({"after": 1.0, "wall": 5.1}, ["gap"]),
        ({"after": 5.1, "wall": 1.0}, ["gap"]),
        ({"after": 1.0, "wall": -5.1}, ["gap"]),
        ({"up": 0}, ["number-unchanged"]),
        ({"up": 2}, ["number-skipped"]),
        ({"up": -1}, ["number-restarted"]),
    ],
)
def test_any_doubt_about_our_sight_makes_it_ended(gone: dict[str, Any], why: list[str]) -> None:
    """Either clock, or a number that is not the next: what happened in between was not seen, and is not claimed."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    found = only(watcher.sees(**gone))
    assert (found.kind, list(found.unseen)) == (Kind.ENDED, why)


def test_the_limit_of_unbroken_is_within() -> None:
    """At most five seconds between good documents, on both clocks."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    assert kinds(watcher.sees(after=5.0)) == ["canceled"]


def test_a_restart_breaks_the_sight() -> None:
    """Whatever the wall clock says."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.restarts()
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (Kind.ENDED, ("restart",))


@pytest.mark.parametrize(
    ("approval", "why"),
    [
        ({"accepted_at": NOON}, "approved"),
        ({"in_flight": True}, "approval-unanswered"),
        ({"unanswered": True}, "approval-unanswered"),
    ],
)
def test_what_we_approved_or_may_have_approved_is_never_canceled(approval: dict[str, Any], why: str) -> None:
    """It may have started and ended within a second."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    approved(watcher, **approval)
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (Kind.ENDED, (why,))


def test_an_approval_of_an_earlier_life_still_counts() -> None:
    """An id that went and came back was approved: its end is not known to be a cancellation."""
    for approval in ({"accepted_at": NOON}, {"unanswered": True}):
        watcher = Watcher.fresh()
        watcher.sees(event())
        approved(watcher, **approval)
        watcher.sees()
        watcher.sees(event())
        assert kinds(watcher.sees()) == ["ended"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"NotBefore": "Fri, 21 Nov 2025 12:00:03 GMT"}, "not-before-passed"),
        ({"NotBefore": "Fri, 21 Nov 2025 11:00:00 GMT"}, "not-before-passed"),
        ({"NotBefore": "soon"}, "not-before-unknown"),
        ({"NotBefore": ...}, "not-before-unknown"),
        ({"NotBefore": ""}, "not-before-unknown"),
    ],
)
def test_without_a_not_before_ahead_nothing_is_canceled(fields: dict[str, Any], why: str) -> None:
    """From NotBefore on it may have started between two polls; a NotBefore that can't be read may be any time."""
    watcher = Watcher.fresh()
    watcher.sees(event(**fields))
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (Kind.ENDED, (why,))


def test_a_not_before_that_became_unreadable_is_not_known_any_more() -> None:
    """The last readable one may have been moved: it still shows, but proves no cancellation."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(NotBefore="soon"))
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (Kind.ENDED, ("not-before-unknown",))


def test_an_event_last_seen_with_an_unknown_status_is_not_canceled() -> None:
    """Scheduled, then a word we don't know, then gone: the word may have meant that it runs."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(EventStatus="InProgress"))
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (Kind.ENDED, ("unknown-status",))


def test_an_event_that_was_started_and_went_back_is_not_canceled() -> None:
    """It has had its impact, or a part of it."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    watcher.sees(event())
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (Kind.ENDED, ("was-started",))


@pytest.mark.parametrize("gone", [{"after": 3600.0}, {"up": -1}, {"up": 5}, {"wall": -3600.0}])
def test_started_and_gone_is_completed_whatever_the_gap(gone: dict[str, Any]) -> None:
    """Gone means over; the length of the gap is with it."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    found = only(watcher.sees(**gone))
    assert found.kind is Kind.COMPLETED
    assert found.gap == max(gone.get("after", 1.0), gone.get("wall", 0.0))


def test_started_then_an_unknown_word_then_gone_is_completed() -> None:
    """What has started and is gone is over, whatever it was called in between."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    watcher.sees(started(EventStatus="Finishing"))
    assert kinds(watcher.sees()) == ["completed"]


# -- who let it start


@pytest.mark.parametrize(
    ("approval", "after", "expected"),
    [
        (None, 1.0, StartedBy.NOT_US),
        ({"accepted_at": NOON + timedelta(seconds=60)}, 1.0, StartedBy.US),
        ({"in_flight": True}, 1.0, StartedBy.UNKNOWN),
        ({"unanswered": True}, 1.0, StartedBy.UNKNOWN),
        (None, 900.0, StartedBy.UNKNOWN),
    ],
)
def test_who_let_it_start(approval: dict[str, Any] | None, after: float, expected: StartedBy) -> None:
    """Before NotBefore and not by us is somebody else; an unanswered POST or a gap over NotBefore is not known."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    if approval:
        approved(watcher, **approval)
    assert only(watcher.sees(started(), after=after)).tracked.started_by is expected


def test_time_lets_it_start_when_it_was_still_scheduled_at_its_time() -> None:
    """Seen Scheduled just before NotBefore and Started just after."""
    watcher = Watcher.fresh()
    watcher.sees(event(NotBefore="Fri, 21 Nov 2025 12:00:03 GMT"))
    assert only(watcher.sees(started())).tracked.started_by is StartedBy.TIME


def test_an_approval_of_an_earlier_life_did_not_start_this_one() -> None:
    """The id came back and started before its time: that was not our approval of the day before."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    approved(watcher, accepted_at=watcher.wall)
    watcher.sees()
    watcher.sees(event())
    assert only(watcher.sees(started())).tracked.started_by is not StartedBy.US


# -- clocks


def test_only_good_polling_counts_as_watched() -> None:
    """The clock of takeover and settling stands still in a gap, at a restart and when a clock is set back."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    base = watcher.state.watched
    watcher.sees(event(), after=4.0, up=0)
    watcher.sees(event(), after=60.0, up=0)
    watcher.sees(event(), after=1.0, wall=-2.0, up=0)
    watcher.sees(event(), after=1.0, wall=100.0, up=0)
    watcher.restarts()
    watcher.sees(event(), after=1.0, up=0)
    assert watcher.state.watched - base == 4.0
    tracked = watcher.state.tracked[KEY]
    assert (tracked.gaps, tracked.gap_seconds) == (3, 161.0)


@pytest.mark.parametrize(
    ("fields", "resets"),
    [
        ({}, False),
        ({"Description": "New."}, True),
        ({"NotBefore": "2025-11-21T12:15:00Z"}, False),
        ({"EventStatus": "Paused"}, True),
    ],
)
def test_settling_begins_anew_with_each_change(fields: dict[str, Any], resets: bool) -> None:
    """Unchanged is about meaning."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(**fields), after=4.0)
    found = watcher.state.watched - watcher.state.tracked[KEY].unchanged_at
    assert found == (0.0 if resets else 4.0)


def test_a_poll_interval_above_two_seconds_stretches_the_limit() -> None:
    """Three polls may lie between two good documents, if that is more than five seconds."""
    from exporter.lifecycle import advance
    from tests.core_documents import parsed

    watcher = Watcher.fresh()
    watcher.sees(event())
    later = Instant(watcher.wall + timedelta(seconds=30), (watcher.mono or 0.0) + 30)
    assert kinds(advance(watcher.state, parsed(number=3), later, 10.0).transitions) == ["canceled"]
    assert kinds(advance(watcher.state, parsed(number=3), later, 9.9).transitions) == ["ended"]


# -- memory


def test_what_is_gone_is_remembered_for_a_while_and_then_forgotten_without_a_repeated_number() -> None:
    """Only so many histories are kept; an id that comes back after that starts with numbers nobody had."""
    watcher = Watcher.fresh()
    watcher.sees(event("old"))
    watcher.sees()
    crowd = [event(str(number)) for number in range(CLOSED_KEPT)]
    watcher.sees(*crowd)
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
    assert len(watcher.step(*range(100)).rejections) == REJECTIONS_TOLD


def test_a_fault_of_a_tracked_event_is_told_when_it_comes() -> None:
    """Not at every poll, and not when it goes; a further fault is news again."""
    watcher = Watcher.fresh()
    assert watcher.step(event()).rejections == ()
    told = [found.fault for found in watcher.step(event(Resources=5)).rejections]
    assert told == ["Resources"]
    assert watcher.step(event(Resources=5)).rejections == ()
    assert [found.fault for found in watcher.step(event(Resources=5, NotBefore="")).rejections] == [
        "NotBefore, Resources"
    ]
    assert watcher.step(event(NotBefore="")).rejections == ()


def test_a_history_that_was_forgotten_is_not_brought_back() -> None:
    """A late answer about an event that is long gone changes nothing."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    stranger: Tracked = replace(watcher.state.tracked[KEY], event=one(EventId="stranger"))
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
