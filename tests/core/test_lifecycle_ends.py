"""How an event ends, what started it, and the clocks that determine both."""

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

# -- ends


def test_removal_observed_without_doubt_is_canceled() -> None:
    """Gapless, before NotBefore, DocumentIncarnation up by one, no approval by this VM."""
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
def test_event_started_under_a_new_id_in_the_same_document_is_not_canceled(fields: dict[str, Any]) -> None:
    """Some simulators give each status a new id: the same type and names, in any order and case."""
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
def test_different_new_event_does_not_replace_the_removed_one(fields: dict[str, Any]) -> None:
    """With another type or set of names, or not Started, the removed event is canceled."""
    watcher = Watcher.fresh()
    watcher.sees(event(Resources=["vm-0", "vm-I"]))
    gone = watcher.sees(started("second", **{"Resources": ["vm-0", "vm-I"]} | fields))[0]
    assert (gone.kind, gone.unseen, gone.replaced_by) == (TransitionKind.CANCELED, (), "")


def test_event_that_was_there_before_does_not_replace_the_removed_one() -> None:
    """Its start is unrelated to the other's end; so is an event that comes Started when a Started one ends."""
    watcher = Watcher.fresh()
    watcher.sees(event(), event("second"))
    gone = watcher.sees(started("second"))[0]
    assert (gone.kind, gone.replaced_by) == (TransitionKind.CANCELED, "")
    gone = watcher.sees(started("third"))[0]
    assert (gone.kind, gone.unseen, gone.replaced_by) == (TransitionKind.COMPLETED, (), "")


def test_record_names_the_replacing_event() -> None:
    """As a member, in the summary, and in the message."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    gone, _ = watcher.sees(started("Second"))
    record = RecordFactory(Vm(name="vm-0"), watcher.wall).transition(watcher.state, gone)[1]
    assert record.data["replaced_by"] == "Second"
    assert record.data["unseen"] == record.data["summary"]["unseen"] == ["replaced"]
    assert record.data["message"] == "Reboot of this VM is no longer in the document; it seems to continue as Second"
    assert any("a new event, already Started, replaced it" in line for line in record_lines(record))
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
def test_incomplete_observation_makes_it_ended(gone: dict[str, Any], why: list[str]) -> None:
    """By either clock, or a DocumentIncarnation that isn't the next: the time in between was not observed."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    found = only(watcher.sees(**gone))
    assert (found.kind, list(found.unseen)) == (TransitionKind.ENDED, why)


def test_continuity_limit_is_inclusive() -> None:
    """At most five seconds between valid documents, on both clocks."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    assert kinds(watcher.sees(after=5.0)) == ["canceled"]


def test_restart_breaks_continuity() -> None:
    """Whatever the wall clock shows."""
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
def test_event_that_may_be_approved_is_never_canceled(approval: dict[str, Any], why: str) -> None:
    """It may have started and ended within a second."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    approved(watcher, **approval)
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, (why,))


def test_approval_of_an_earlier_event_with_this_id_prevents_canceled() -> None:
    """An id that disappeared and returned was approved: its end may not be a cancellation."""
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
def test_event_without_a_future_not_before_is_never_canceled(fields: dict[str, Any], why: str) -> None:
    """From NotBefore on it may have started between two polls; an unreadable NotBefore may be any time."""
    watcher = Watcher.fresh()
    watcher.sees(event(**fields))
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, (why,))


def test_not_before_that_became_unreadable_is_unknown() -> None:
    """The last readable one may have moved: it's still shown, but proves no cancellation."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(NotBefore="soon"))
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, ("not-before-unknown",))


def test_event_with_an_unknown_last_status_is_not_canceled() -> None:
    """The unknown status may have meant that it runs."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(EventStatus="InProgress"))
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, ("unknown-status",))


def test_event_that_was_started_and_went_back_is_not_canceled() -> None:
    """It has had its impact, or a part of it."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    watcher.sees(event())
    found = only(watcher.sees())
    assert (found.kind, found.unseen) == (TransitionKind.ENDED, ("was-started",))


@pytest.mark.parametrize("gone", [{"after": 3600.0}, {"up": -1}, {"up": 5}, {"wall": -3600.0}])
def test_started_event_is_completed_after_any_gap(gone: dict[str, Any]) -> None:
    """The record contains the length of the gap."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    found = only(watcher.sees(**gone))
    assert found.kind is TransitionKind.COMPLETED
    assert found.gap == max(gone.get("after", 1.0), gone.get("wall", 0.0))


def test_started_event_is_completed_after_an_unknown_status() -> None:
    """Whatever its status was in between."""
    watcher = Watcher.fresh()
    watcher.sees(started())
    watcher.sees(started(EventStatus="Finishing"))
    assert kinds(watcher.sees()) == ["completed"]


# -- what started it


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
def test_started_by_is_derived_from_approval_time_and_gaps(
    approval: dict[str, Any] | None, after: float, expected: StartedBy
) -> None:
    """A start before NotBefore without this VM's approval is `other`; a POST without a response or a gap over NotBefore
    is `unknown`."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    if approval:
        approved(watcher, **approval)
    assert only(watcher.sees(started(), after=after)).tracked.started_by is expected


def test_event_scheduled_until_not_before_is_started_by_not_before() -> None:
    """Seen Scheduled just before NotBefore and Started just after."""
    watcher = Watcher.fresh()
    watcher.sees(event(NotBefore="Fri, 21 Nov 2025 12:00:03 GMT"))
    assert only(watcher.sees(started())).tracked.started_by is StartedBy.NOT_BEFORE


def test_approval_counts_even_if_the_event_was_absent_in_between() -> None:
    """An id belongs to one event: an accepted approval started it despite a document without it."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    approved(watcher, accepted_at=watcher.wall)
    watcher.publishes()
    watcher.sees()
    watcher.sees(event())
    assert only(watcher.sees(started())).tracked.started_by is StartedBy.THIS_VM


def test_approval_counts_whatever_the_clock_did_since() -> None:
    """For example a clock set back by two minutes between first seen and approval."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(), wall=-120.0, up=0)
    approved(watcher, accepted_at=watcher.wall)
    assert only(watcher.sees(started())).tracked.started_by is StartedBy.THIS_VM


@pytest.mark.parametrize(("early", "by"), [(11, StartedBy.OTHER), (9, StartedBy.UNKNOWN), (0, StartedBy.NOT_BEFORE)])
def test_started_by_other_needs_a_start_well_before_not_before(early: int, by: StartedBy) -> None:
    """Two clocks may differ by some seconds: within ten seconds of NotBefore the result is `unknown`."""
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
        (60.0, 60.0, 1, 64.0),  # another DocumentIncarnation: the content in between is unknown
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
def test_observed_time_of_an_event_restarts_after_a_gap_of_over_a_minute(away: float, begun: float) -> None:
    """Also across a restart, if a clock that was set back hides the length."""
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
def test_settling_restarts_with_each_change(fields: dict[str, Any], resets: bool) -> None:
    """Spelling doesn't count as a change."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(**fields), after=4.0)
    found = watcher.state.observed_seconds - watcher.state.tracked[KEY].unchanged_at
    assert found == (0.0 if resets else 4.0)


def test_poll_interval_above_two_seconds_extends_the_limit() -> None:
    """Three polls may lie between two valid documents, if that is more than five seconds."""
    from exporter.core.lifecycle import advance
    from tests.support.core_documents import parsed

    watcher = Watcher.fresh()
    watcher.sees(event())
    later = Instant(watcher.wall + timedelta(seconds=30), (watcher.mono or 0.0) + 30)
    assert kinds(advance(watcher.state, parsed(number=3), later, 10.0).transitions) == ["canceled"]
    assert kinds(advance(watcher.state, parsed(number=3), later, 9.9).transitions) == ["ended"]
