"""Conditions of a matching rule, explanations of decisions, and the backoff between attempts."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.core.attempts import POST_BACKOFF, attempt_due, begin_attempt
from exporter.core.decision import MatchResult, decide, decision_change_points, files_to_check, outdated_reason
from exporter.core.policy import Mode, Presence, Reason, prepared_path
from exporter.core.state import Approval, Instant
from tests.support.approval_case import ANY_REBOOT, ENFORCE, SPOILERS, Case, at_place, hours, recorded
from tests.support.core_documents import EVENT_ID, KEY, NOON, Watcher, context_of, event, explain, one, parsed, started

# -- conditions of a rule


def test_settle_holds_until_the_event_is_unchanged_for_its_seconds() -> None:
    """Approved at exactly the configured time."""
    case = Case().rules(settle=5.0)
    assert [recorded(replace(case, known_for=seconds)) for seconds in (0, 4, 5)] == ["settling", "settling", ""]


@pytest.mark.parametrize(
    ("presence", "reason"),
    [
        (Presence.PRESENT, ""),
        (Presence.ABSENT, "not-prepared"),
        (Presence.UNKNOWN, "not-prepared"),
        (Presence.UNTRUSTED, "not-prepared"),
    ],
)
def test_only_a_ready_file_known_to_exist_approves(presence: Presence, reason: str) -> None:
    path = f"/run/ready/{EVENT_ID}"
    case = Case(context=context_of(files={path: presence})).rules(require_file="/run/ready/{event_id}")
    assert files_to_check(case.policy, parsed(event())) == {path}
    assert recorded(case) == reason


@pytest.mark.parametrize(
    ("presence", "reason"),
    [(Presence.PRESENT, "held"), (Presence.ABSENT, ""), (Presence.UNKNOWN, "held"), (Presence.UNTRUSTED, "held")],
)
def test_hold_file_holds_unless_known_to_be_absent(presence: Presence, reason: str) -> None:
    """A hold file whose presence is unknown or untrusted holds the event."""
    policy = replace(ENFORCE, hold_file="/etc/hold")
    assert recorded(Case(policy=policy, context=context_of(files={"/etc/hold": presence}))) == reason
    assert recorded(Case(policy=policy)) == "held"


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ((), ""),
        ((event("b"),), ""),
        ((started("b"),), "not-quiet"),
        ((started("b", Resources=["vm-9"]),), "not-quiet"),
        ((started("b", EventStatus="Paused"),), "not-quiet"),
        ((event("b", EventStatus=...),), "not-quiet"),
        ((started(""),), "not-quiet"),
        ((event(""),), ""),
        ((None,), "not-quiet"),
    ],
)
def test_when_quiet_holds_if_another_event_may_be_started(others: tuple[Any, ...], reason: str) -> None:
    """Events of any VM count, and so do elements that can't be read."""
    assert recorded(replace(Case().rules(when_quiet=True), others=others)) == reason


HOSTILE_IDS = [
    ".",
    "..",
    "../../etc/passwd",
    "a/../../b",
    "..\\..\\b",
    "/etc/passwd",
    "C:\\x",
    "C:x",
    "a/b",
    "a\nb",
    " ",
    "~",
    "$HOME",
    "{event_id}",
    "ａ",
    "․․",
]


@pytest.mark.parametrize("template", ["/run/ready/{event_id}", "/run/{event_id}/ready", "/run/x-{event_id}.ok"])
@given(
    event_id=st.sampled_from(HOSTILE_IDS)
    | st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=100)
)
@example(event_id="..")
def test_event_id_never_leaves_the_directory_of_its_file(template: str, event_id: str) -> None:
    """On POSIX and Windows, only the part with the event id differs from the template."""
    rule = replace(ANY_REBOOT, require_file=template)
    path = prepared_path(rule, one(EventId=event_id.replace("\0", "x")))
    if path is None:
        return
    for kind in (PurePosixPath, PureWindowsPath):
        assert len(kind(path).parts) == len(kind(template).parts)
        assert ".." not in kind(path).parts
        assert kind(path).parts[0] == kind(template).parts[0]
    assert path == template.replace("{event_id}", event_id)


def test_event_id_that_cannot_be_a_file_name_is_not_prepared(tmp_path: Path) -> None:
    """Even if the file that the path would lead to exists."""
    (tmp_path / "there").touch()
    template = f"{tmp_path}/ready/{{event_id}}"
    watcher = Watcher.fresh()
    watcher.sees(event("../there"))
    policy = replace(ENFORCE, rules=(replace(ANY_REBOOT, require_file=template),))
    files = {f"{tmp_path}/ready/../there": Presence.PRESENT, f"{tmp_path}/there": Presence.PRESENT}
    assert [found.reason for found in decide(policy, watcher.state, context_of(files=files))] == [Reason.NOT_PREPARED]
    assert files_to_check(policy, parsed(event("../there"))) == frozenset()


def test_files_are_checked_only_if_they_matter() -> None:
    """A rule's file isn't checked in mode off or for other events; the hold file always is, for its gauge."""
    rules = (replace(ANY_REBOOT, require_file="/run/ready"),)
    policy = replace(ENFORCE, hold_file="/etc/hold", rules=rules)
    assert files_to_check(policy, parsed(event())) == {"/etc/hold", "/run/ready"}
    assert files_to_check(policy, parsed(event(EventType="Freeze"))) == {"/etc/hold"}
    assert files_to_check(replace(policy, mode=Mode.OFF), parsed(event())) == {"/etc/hold"}
    assert files_to_check(policy, None) == {"/etc/hold"}


# -- number of resources, and hours


@pytest.mark.parametrize(("names", "reason"), [(1, ""), (2, ""), (3, "too-many-resources")])
def test_more_resources_than_the_rule_allows_hold(names: int, reason: str) -> None:
    """An approval is for all VMs in Resources."""
    resources = [f"vm-{number}" for number in range(names)]
    assert recorded(Case({"Resources": resources}).rules(max_resources=2)) == reason


def test_event_is_approved_within_hours_and_held_outside() -> None:
    """The start is within the hours, the end isn't."""
    case = Case().rules(hours=hours("22:00-05:00", "Sat", timezone="Europe/Berlin"))
    for moment, reason in (
        ("2026-11-28T20:59:59.999999+00:00", "out-of-hours"),
        ("2026-11-28T21:00:00+00:00", ""),
        ("2026-11-28T22:00:00+01:00", ""),
        ("2026-11-29T03:59:59.999999+00:00", ""),
        ("2026-11-29T04:00:00+00:00", "out-of-hours"),
        ("2026-11-29T21:30:00+00:00", "out-of-hours"),
    ):
        assert recorded(replace(case, context=context_of(now=datetime.fromisoformat(moment)))) == reason, moment


def test_unknown_time_is_within_no_hours() -> None:
    """A time without a zone is unknown: it is not even within hours that span the whole day."""
    case = Case().rules(hours=hours())
    (explained,) = explain(case.policy, case.state(), context_of(now=NOON.replace(tzinfo=None)))
    assert explained.decision.reason is Reason.OUT_OF_HOURS
    assert [each.finding for each in explained.conditions if not each.met] == ["the current time is unknown"]
    assert recorded(case) == ""


def test_finding_shows_when_hours_begin_or_end_in_local_time() -> None:
    """With the UTC offset: on the day on which clocks are set back, 02:30 occurs twice."""

    def finding(now: str) -> str:
        case = Case().rules(hours=hours("02:15-02:45", timezone="Europe/Berlin"))
        (explained,) = explain(case.policy, case.state(), context_of(now=datetime.fromisoformat(now)))
        return next(each.finding for each in explained.conditions if each.reason is Reason.OUT_OF_HOURS)

    first, second = "Sun 2026-10-25 02:15+02:00", "Sun 2026-10-25 02:15+01:00"
    hours_in = "02:15-02:45 in Europe/Berlin until"
    assert finding("2026-10-24T23:00:00Z") == f"outside {hours_in} {first}"
    assert finding("2026-10-25T00:50:00Z") == f"outside {hours_in} {second}"
    assert finding("2026-10-25T01:20:00Z") == f"within {hours_in} Sun 2026-10-25 02:45+01:00"


# -- explanations


@pytest.mark.parametrize("reason", [*SPOILERS, Reason.NONE])
def test_explanation_agrees_with_its_decision(reason: Reason) -> None:
    """The first unmet condition is the reason, and a rule that matched is among the evaluations."""
    case = SPOILERS[reason](Case()) if reason is not Reason.NONE else Case()
    explained = next(found for found in explain(case.policy, case.state(), case.context) if found.decision.key == KEY)
    assert explained.decision == case.decision()
    unmet = [condition.reason for condition in explained.conditions if not condition.met]
    reasons = list(Reason)
    after_a_rule = reason is not Reason.NONE and reasons.index(reason) > reasons.index(Reason.NO_RULE)
    assert unmet[:1] == ([reason] if after_a_rule else [])
    matched = [trial.rule.name for trial in explained.evaluations if trial.outcome is MatchResult.MATCHES]
    assert matched == ([explained.decision.rule] if explained.decision.rule else [])


def test_explanation_names_the_field_that_a_rule_cannot_read() -> None:
    """A decision `malformed` by a rule contains the evaluation of that rule."""
    case = Case({"DurationInSeconds": "5"}).rules(min_duration=0)
    (explained,) = explain(case.policy, case.state(), case.context)
    assert [(trial.outcome, trial.field) for trial in explained.evaluations] == [
        (MatchResult.UNREADABLE, "DurationInSeconds")
    ]


def test_change_points_are_the_future_times_of_takeover_and_settling() -> None:
    case = at_place(3, takeover_after=10.0).rules(settle=15.0)
    state = case.state()
    assert decision_change_points(case.policy, state, "vm-0") == (
        state.observed_seconds + 15.0,
        state.observed_seconds + 20.0,
    )
    assert decision_change_points(ENFORCE, state, "vm-0") == ()


def test_next_edge_of_the_hours_is_a_change_point() -> None:
    """Only for the rule that matches."""
    case = Case().rules(hours=hours("22:00-05:00"))
    state = case.state()
    assert state.last_good is not None
    seconds = (NOON.replace(hour=22) - state.last_good.wall).total_seconds()
    assert decision_change_points(case.policy, state, "vm-0") == (state.observed_seconds + seconds,)
    assert decision_change_points(case.rules(event_type=("Freeze",)).policy, state, "vm-0") == ()


# -- outdated


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"EventStatus": "Started", "NotBefore": ""}, ""),
        ({"EventStatus": "Paused"}, ""),
        ({"NotBefore": "soon"}, "malformed"),
        ({"EventStatus": "Started", "NotBefore": "soon"}, ""),
        ({"Description": "New."}, ""),
        ({"EventType": "Redeploy"}, "no-rule"),
        ({"EventType": "Hibernate"}, "unknown-type"),
        ({"ResourceType": "Disk"}, "unknown-type"),
        ({"EventType": 5}, "malformed"),
        ({"Resources": ["vm-1"]}, "not-this-vm"),
        ({"Resources": ["vm-1", "vm-0"]}, "not-leader"),
        ({"Resources": "vm-0"}, "malformed"),
    ],
)
def test_approved_event_is_outdated_if_its_content_would_now_be_held(fields: dict[str, Any], reason: str) -> None:
    """Conditions that only time changes, for example the status, aren't checked again."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(**fields))
    tracked = replace(watcher.state.tracked[KEY], approval=Approval(1, accepted_at=NOON))
    for mode in Mode:
        assert outdated_reason(replace(ENFORCE, mode=mode, hold_file="/etc/hold"), tracked, "vm-0").value == reason


@pytest.mark.parametrize("status", ["Scheduled", "Started"])
def test_approved_event_is_outdated_by_more_vms_but_not_by_the_end_of_hours(
    status: str,
) -> None:
    """The approval was sent within the hours, but was not decided for the VMs that joined."""
    rules = Case().rules(max_resources=1, hours=hours("00:00-01:00")).policy
    watcher = Watcher.fresh()
    watcher.sees(event())
    for names, reason in ((["vm-0"], ""), (["vm-0", "vm-1"], "too-many-resources")):
        watcher.sees(event(Resources=names, EventStatus=status))
        tracked = replace(watcher.state.tracked[KEY], approval=Approval(1, accepted_at=NOON))
        assert outdated_reason(rules, tracked, "vm-0").value == reason


# -- attempts


def test_backoff_doubles_from_five_seconds_to_a_minute() -> None:
    assert [POST_BACKOFF.after(attempts) for attempts in (1, 2, 3, 4, 5, 6, 10**9)] == [5, 10, 20, 40, 60, 60, 60]


START = Instant(NOON, 100.0)


@pytest.mark.parametrize(
    ("attempts", "last", "now", "due"),
    [
        (0, None, START, True),
        (1, (0, 100.0), (4.9, 104.9), False),
        (1, (0, 100.0), (5, 105.0), True),
        (3, (0, 100.0), (19, 119.0), False),
        (3, (0, 100.0), (20, 120.0), True),
        (1, (0, 100.0), (3600, 101.0), False),
        (1, (0, 100.0), (-3600, 105.0), True),
        (1, (-3, None), (0, 100.0), False),
        (1, (-3600, None), (0, 104.0), False),
        (1, (-3600, None), (0, 105.0), True),
        (3, (-3600, None), (0, 119.0), False),
        (3, (-3600, None), (0, 120.0), True),
        (1, (3600, None), (0, 104.0), False),
        (1, (3600, None), (0, 105.0), True),
    ],
)
def test_attempt_is_due_only_after_its_backoff(attempts: int, last: Any, now: Any, due: bool) -> None:
    """By the monotonic clock. Across a restart the backoff starts again, whatever the wall clock shows."""

    def moment(given: Any) -> Instant | None:
        if given is None or isinstance(given, Instant):
            return given
        return Instant(NOON + timedelta(seconds=given[0]), given[1])

    watcher = Watcher.fresh()
    watcher.sees(event())
    tracked = replace(watcher.state.tracked[KEY], approval=Approval(attempts, moment(last)))
    at = moment(now)
    assert at is not None
    assert attempt_due(tracked, at, START) is due


def test_interrupted_post_remains_doubtful() -> None:
    """The process died during the POST; a later rejection doesn't show whether Azure accepted it."""
    first = begin_attempt(Approval(), START, "all")
    second = begin_attempt(first, Instant(NOON, 110.0), "all")
    assert (first.in_flight, first.unanswered, first.attempts) == (True, False, 1)
    assert (second.in_flight, second.unanswered, second.attempts) == (True, True, 2)
    assert replace(second, in_flight=False).doubtful
