"""How an event ends, who let it start, and the clocks by which both are told."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from exporter.core.record_factory import RecordFactory
from exporter.core.records import Vm
from exporter.core.state import Instant, StartedBy, TransitionKind
from exporter.text.timeline import record_lines
from tests.support.core_documents import KEY, NOON, Watcher, approved, event, kinds, only, started

SCHEMA: Final = json.loads(
    (Path(__file__).parents[2] / "exporter" / "schema" / "record.v1.json").read_text(encoding="utf-8")
)

# -- how an event ends


def test_scheduled_and_gone_under_our_eyes_is_canceled() -> None:
    """Unbroken, before its NotBefore, the number up by one, not approved by us: nothing else can have happened."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    found = only(watcher.sees())
    assert (found.kind, found.unseen, found.tracked.outcome) == (TransitionKind.CANCELED, (), TransitionKind.CANCELED)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"Resources": ["VM-1", "vm-0"]},
        {"EventSource": "Platform"},
        {"EventSource": ...},
        {"Description": "Otherwise.", "DurationInSeconds": 5},
    ],
)
def test_what_comes_started_under_a_new_id_in_the_same_document_was_not_canceled(fields: dict[str, Any]) -> None:
    """Some stand-ins give each state of an event a new id: the same type and names, in any order and case."""
    known: dict[str, Any] = {"Resources": ["vm-0", "vm-1"]}
    watcher = Watcher.fresh()
    watcher.sees(event(**known), event("stays", **known))
    gone, came = watcher.sees(started("Second", **known | fields), event("stays", **known))
    assert (gone.kind, gone.unseen, gone.replaced_by) == (TransitionKind.ENDED, ("replaced",), "Second")
    assert (came.kind, came.tracked.outcome) == (TransitionKind.STARTED, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"EventType": "Redeploy"},
        {"Resources": ["vm-0"]},
        {"Resources": ["vm-0", "vm-1", "vm-2"]},
        {"Resources": ["vm-0", "vm-\u0131"]},
        {"Resources": "vm-0"},
        {"EventType": ...},
        {"EventStatus": "Scheduled", "NotBefore": "Fri, 21 Nov 2025 12:15:00 GMT"},
    ],
)
def test_what_comes_otherwise_takes_no_events_place(fields: dict[str, Any]) -> None:
    """Another type or set of names, or not Started: the one that is gone was canceled."""
    watcher = Watcher.fresh()
    watcher.sees(event(Resources=["vm-0", "vm-I"]))
    gone = watcher.sees(started("second", **{"Resources": ["vm-0", "vm-I"]} | fields))[0]
    assert (gone.kind, gone.unseen, gone.replaced_by) == (TransitionKind.CANCELED, (), "")


def test_one_that_was_there_before_takes_no_events_place() -> None:
    """Its start has nothing to do with the other's end; nor has what comes Started when a Started one goes."""
    watcher = Watcher.fresh()
    watcher.sees(event(), event("second"))
    gone = watcher.sees(started("second"))[0]
    assert (gone.kind, gone.replaced_by) == (TransitionKind.CANCELED, "")
    gone = watcher.sees(started("third"))[0]
    assert (gone.kind, gone.unseen, gone.replaced_by) == (TransitionKind.COMPLETED, (), "")


def test_a_record_names_the_event_that_came_in_its_place() -> None:
    """For programs, in the summary and for a person."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    gone, _ = watcher.sees(started("Second"))
    record = RecordFactory(Vm(name="vm-0"), watcher.wall).transition(watcher.state, gone)[1]
    assert record.data["replaced_by"] == "Second"
    assert record.data["unseen"] == record.data["summary"]["unseen"] == ["replaced"]
    assert record.data["message"] == "Reboot of this VM is no longer in the document; it seems to continue as Second"
    assert any("under a new id" in line for line in record_lines(record))
    jsonschema.validate(json.loads(record.to_json()), SCHEMA)


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        ({"after": 5.1}, ["gap"]),
        ({"after": 1.0, "wall": 5.1}, ["gap"]),
        ({"after": 5.1, "wall": 1.0}, ["gap"]),
        ({"after": 1.0, "wall": -5.1}, ["gap"]),
        ({"up": 0}, ["incarnation-unchanged"]),
        ({"up": 2}, ["incarnation-skipped"]),
        ({"up": -1}, ["incarnation-restarted"]),
    ],
)
def test_any_doubt_about_our_sight_makes_it_ended(gone: dict[str, Any], why: list[str]) -> None:
    """Either clock, or a number that is not the next: what happened in between was not seen, and is not claimed."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    found = only(watcher.sees(**gone))
    assert (found.kind, list(found.unseen)) == (TransitionKind.ENDED, why)


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
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, ("restart",))


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
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, (why,))


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
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, (why,))


def test_a_not_before_that_became_unreadable_is_not_known_any_more() -> None:
    """The last readable one may have been moved: it still shows, but proves no cancellation."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(NotBefore="soon"))
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, ("not-before-unknown",))


def test_an_event_last_seen_with_an_unknown_status_is_not_canceled() -> None:
    """Scheduled, then a word we don't know, then gone: the word may have meant that it runs."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(EventStatus="InProgress"))
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, ("unknown-status",))


def test_an_event_that_was_started_and_went_back_is_not_canceled() -> None:
    """It has had its impact, or a part of it."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    watcher.sees(event())
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, ("was-started",))


@pytest.mark.parametrize("gone", [{"after": 3600.0}, {"up": -1}, {"up": 5}, {"wall": -3600.0}])
def test_started_and_gone_is_completed_whatever_the_gap(gone: dict[str, Any]) -> None:
    """Gone means over; the length of the gap is with it."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    found = only(watcher.sees(**gone))
    assert found.kind is TransitionKind.COMPLETED
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
        (None, 1.0, StartedBy.OTHER),
        ({"accepted_at": NOON + timedelta(seconds=60)}, 1.0, StartedBy.THIS_VM),
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
    assert only(watcher.sees(started())).tracked.started_by is StartedBy.NOT_BEFORE


def test_an_approval_counts_also_where_the_event_was_away_in_between() -> None:
    """An id is of one event alone: what Azure took of us before one answer without it let it start."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    approved(watcher, accepted_at=watcher.wall)
    watcher.publishes()
    watcher.sees()
    watcher.sees(event())
    assert only(watcher.sees(started())).tracked.started_by is StartedBy.THIS_VM


def test_an_approval_counts_whatever_the_clock_did_since() -> None:
    """A clock set back by two minutes between the first sight and the approval takes nothing back."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(), wall=-120.0, up=0)
    approved(watcher, accepted_at=watcher.wall)
    assert only(watcher.sees(started())).tracked.started_by is StartedBy.THIS_VM


@pytest.mark.parametrize(("early", "by"), [(11, StartedBy.OTHER), (9, StartedBy.UNKNOWN), (0, StartedBy.NOT_BEFORE)])
def test_somebody_else_let_it_start_only_well_before_its_time(early: int, by: StartedBy) -> None:
    """Two clocks may differ by some seconds: within ten of NotBefore nobody is accused."""
    watcher = Watcher.fresh()
    watcher.sees(event(NotBefore="Fri, 21 Nov 2025 12:00:30 GMT"))  # it is 12:00:02
    for _ in range(27 - early):
        watcher.sees(event(NotBefore="Fri, 21 Nov 2025 12:00:30 GMT"), up=0)
    assert only(watcher.sees(started())).tracked.started_by is by


# -- clocks


def test_observed_time_counts_gaps_of_up_to_a_minute_between_equal_documents() -> None:
    """The clock of takeover and settling stops in other gaps, at a restart, and when a clock is set."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    base = watcher.state.observed_seconds
    for after, wall, up, passed in (
        (4.0, 4.0, 0, 4.0),
        (60.0, 60.0, 0, 64.0),
        (60.0, 60.0, 1, 64.0),  # another number: what it was in between is not known
        (1.0, -2.0, 0, 64.0),
        (1.0, 50.0, 0, 65.0),
        (61.0, 61.0, 0, 65.0),
    ):
        watcher.sees(event(), after=after, wall=wall, up=up)
        assert watcher.state.observed_seconds - base == passed
    watcher.restarts()
    watcher.sees(event(), after=1.0, up=0)
    assert watcher.state.observed_seconds - base == 65.0
    tracked = watcher.state.tracked[KEY]
    assert (tracked.gaps, tracked.gap_seconds) == (5, 183.0)


@pytest.mark.parametrize(("away", "begun"), [(60.0, 0.0), (61.0, 65.0), (-5.0, 65.0)])
def test_observed_time_of_an_event_begins_anew_after_a_gap_of_over_a_minute(away: float, begun: float) -> None:
    """Also over a restart, where a clock that was set back hides how long it was."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    base = watcher.state.observed_seconds
    for _ in range(13):
        watcher.sees(event(), after=5.0, up=0)
    watcher.restarts()
    watcher.sees(event(), after=1.0, wall=away, up=0)
    tracked = watcher.state.tracked[KEY]
    assert (tracked.first_seen_at - base, tracked.unchanged_at - base) == (begun, begun)


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
    found = watcher.state.observed_seconds - watcher.state.tracked[KEY].unchanged_at
    assert found == (0.0 if resets else 4.0)


def test_a_poll_interval_above_two_seconds_stretches_the_limit() -> None:
    """Three polls may lie between two good documents, if that is more than five seconds."""
    from exporter.core.lifecycle import advance
    from tests.support.core_documents import parsed

    watcher = Watcher.fresh()
    watcher.sees(event())
    later = Instant(watcher.wall + timedelta(seconds=30), (watcher.mono or 0.0) + 30)
    assert kinds(advance(watcher.state, parsed(number=3), later, 10.0).transitions) == ["canceled"]
    assert kinds(advance(watcher.state, parsed(number=3), later, 9.9).transitions) == ["ended"]
