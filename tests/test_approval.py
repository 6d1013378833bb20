"""The policy: each hold reason, the order of all, the rules with their conditions, and the waiting between attempts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import combinations
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exporter.approval import (
    AFTER_A_RULE,
    BEFORE_A_RULE,
    DEFAULT_RULES,
    Coordination,
    Decision,
    Mode,
    Policy,
    Presence,
    Reason,
    Rule,
    Situation,
    Verdict,
    decide,
    explain,
    files_to_look_at,
    outdated,
    turning_points,
)
from exporter.approval_attempts import attempt_due, attempting, retry_delay
from exporter.approval_policy import prepared_path
from exporter.approval_rules import Outcome
from exporter.lifecycle import Approval, Instant, State, with_tracked
from tests.core_documents import EVENT_ID, NOON, Watcher, event, one, parsed, started

KEY = EVENT_ID.casefold()
ANY_REBOOT = Rule("all", frozenset({"Reboot"}))
OURS = Situation("vm-0")
UNTRIED = Approval()
ENFORCE = Policy(Mode.ENFORCE, Coordination.LEADER, rules=(ANY_REBOOT,))


@dataclass(frozen=True)
class Case:
    """An approvable event, its surroundings and its past, to be made unapprovable in one way or two."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[Any, ...] = ()
    policy: Policy = ENFORCE
    situation: Situation = OURS
    approval: Approval = UNTRIED
    known_for: float = 0.0

    def state(self) -> State:
        watcher = Watcher.fresh()
        watcher.sees(event(**self.fields), *self.others)
        for _ in range(int(self.known_for)):
            watcher.sees(event(**self.fields), *self.others, up=0)
        tracked = watcher.state.tracked[KEY]
        return with_tracked(watcher.state, replace(tracked, approval=self.approval))

    def decision(self) -> Decision:
        decisions = decide(self.policy, self.state(), self.situation)
        return next(found for found in decisions if found.key == KEY)

    def rules(self, **more: Any) -> Case:
        return replace(
            self, policy=replace(self.policy, rules=tuple(replace(rule, **more) for rule in self.policy.rules))
        )


def told(case: Case) -> str:
    found = case.decision()
    assert (found.verdict is Verdict.APPROVE) == (found.reason is Reason.NONE)
    return found.reason.value


def test_an_event_that_nothing_stands_against_is_approved() -> None:
    """By the rule that is named, with the fields that it used."""
    found = Case().decision()
    assert (found.verdict, found.reason, found.rule) == (Verdict.APPROVE, Reason.NONE, "all")
    assert found.fields["Resources"] == ["vm-0"]
    assert json.dumps(dict(found.fields))


# -- the order of the reasons

SPOILERS: Mapping[Reason, Callable[[Case], Case]] = {
    Reason.OFF: lambda case: replace(case, policy=replace(case.policy, mode=Mode.OFF)),
    Reason.NOT_SCHEDULED: lambda case: replace(case, fields={**case.fields, "EventStatus": "Started"}),
    Reason.IDENTITY_UNKNOWN: lambda case: replace(case, situation=replace(case.situation, vm_name="")),
    Reason.IDENTITY_CONFLICT: lambda case: replace(case, situation=replace(case.situation, conflict=True)),
    Reason.NOT_THIS_VM: lambda case: replace(case, fields={**case.fields, "Resources": ["vm-1", "vm-2"]}),
    Reason.MALFORMED: lambda case: replace(case, fields={**case.fields, "NotBefore": "soon"}),
    Reason.UNKNOWN_TYPE: lambda case: replace(case, fields={**case.fields, "ResourceType": "Disk"}),
    Reason.ALREADY_APPROVED: lambda case: replace(case, approval=Approval(1, accepted_at=NOON)),
    Reason.NO_RULE: lambda case: case.rules(event_type=frozenset({"Freeze"})),
    Reason.SEVERAL_RESOURCES: lambda case: replace(
        case,
        fields={"Resources": ["vm-1", "vm-0"]} | dict(case.fields),
        policy=replace(case.policy, coordination=Coordination.SINGLE),
    ),
    Reason.NOT_LEADER: lambda case: replace(case, fields={"Resources": ["vm-1", "vm-0"]} | dict(case.fields)),
    Reason.SETTLING: lambda case: case.rules(settle=30.0),
    Reason.NOT_PREPARED: lambda case: case.rules(require_file="/run/ready/{event_id}"),
    Reason.NOT_QUIET: lambda case: replace(case.rules(when_quiet=True), others=(started("other"),)),
    Reason.HELD: lambda case: replace(case, policy=replace(case.policy, hold_file="/etc/hold")),
    Reason.OUTBOX_UNWRITABLE: lambda case: replace(case, situation=replace(case.situation, writable=False)),
    Reason.DRY_RUN: lambda case: replace(case, policy=replace(case.policy, mode=Mode.DRY_RUN)),
}
CONTRACT = [
    "off",
    "not-scheduled",
    "identity-unknown",
    "identity-conflict",
    "not-this-vm",
    "malformed",
    "unknown-type",
    "already-approved",
    "no-rule",
    "several-resources",
    "not-leader",
    "settling",
    "not-prepared",
    "not-quiet",
    "held",
    "outbox-unwritable",
    "dry-run",
]
# Two answers to one question: they exclude each other, so no event has both.
EXCLUSIVE = {
    frozenset({Reason.OFF, Reason.DRY_RUN}),
    frozenset({Reason.SEVERAL_RESOURCES, Reason.NOT_LEADER}),
}


def test_the_reasons_are_those_of_the_contract_in_its_order() -> None:
    """The words are labels and fields that others depend on."""
    assert [reason.value for reason in Reason if reason is not Reason.NONE] == CONTRACT
    assert [reason.value for reason in (*BEFORE_A_RULE, *AFTER_A_RULE)] == CONTRACT
    assert [reason.value for reason in SPOILERS] == CONTRACT


@pytest.mark.parametrize("reason", SPOILERS)
def test_each_reason_alone_holds(reason: Reason) -> None:
    """One thing that stands against it is enough, and is the one that is named."""
    assert told(SPOILERS[reason](Case())) == reason.value


@pytest.mark.parametrize(("first", "second"), list(combinations(SPOILERS, 2)))
def test_of_two_reasons_the_first_is_told(first: Reason, second: Reason) -> None:
    """Every pair in the contract's order, the adjacent ones among them."""
    if frozenset({first, second}) in EXCLUSIVE:
        return
    both = SPOILERS[first](SPOILERS[second](Case()))
    assert told(both) == first.value


def test_all_reasons_at_once_are_the_first() -> None:
    """Whatever stands against an event, the answer is one word."""
    case = Case()
    for spoil in reversed(list(SPOILERS.values())):
        case = spoil(case)
    assert told(case) == "off"


# -- malformed


@pytest.mark.parametrize(
    "fields",
    [
        {"EventType": ...},
        {"EventType": None},
        {"EventType": 5},
        {"EventType": ["Reboot"]},
        {"Resources": ...},
        {"Resources": "vm-0"},
        {"Resources": ["vm-0", 5]},
        {"Resources": [["vm-0"]]},
        {"NotBefore": ...},
        {"NotBefore": ""},
        {"NotBefore": None},
        {"NotBefore": 1763726400},
        {"NotBefore": "soon"},
    ],
)
def test_what_every_decision_needs_must_be_readable(fields: dict[str, Any]) -> None:
    """Missing, mistyped or unparsable: held, whatever the rules ask for."""
    assert told(Case(fields)) == "malformed"


def test_two_events_with_one_id_are_both_held() -> None:
    """An approval by id would be for either."""
    assert told(Case(others=(event(EVENT_ID.lower(), Resources=["vm-9"]),))) == "malformed"


@pytest.mark.parametrize("value", [..., None, True, False, 5.0, "5", [5], 2**63])
@pytest.mark.parametrize("bounds", [{"min_duration": 0}, {"max_duration": 8}, {"min_duration": 0, "max_duration": 8}])
def test_a_duration_that_a_rule_asks_for_must_be_an_integer(value: Any, bounds: dict[str, int]) -> None:
    """No bool, no float, no string: True is not one second."""
    assert told(Case({"DurationInSeconds": value}).rules(**bounds)) == "malformed"


@pytest.mark.parametrize("value", [..., None, True, {}, []])
def test_a_source_that_a_rule_asks_for_must_be_a_word(value: Any) -> None:
    """An older api-version has none: such a rule can't be answered."""
    assert told(Case({"EventSource": value}).rules(event_source=frozenset({"User"}))) == "malformed"


def test_a_field_that_an_earlier_rule_asks_for_holds_although_a_later_one_would_match() -> None:
    """The first match approves: without the field nobody knows whether the earlier rule was the first."""
    asking = Rule("asking", frozenset({"Reboot"}), min_duration=0)
    case = Case({"DurationInSeconds": "5"}, policy=replace(ENFORCE, rules=(asking, ANY_REBOOT)))
    assert told(case) == "malformed"
    assert told(replace(case, policy=replace(ENFORCE, rules=(ANY_REBOOT, asking)))) == ""


@pytest.mark.parametrize("spoiled", [{"ResourceType": "Disk"}, {"EventType": "Hibernate"}])
def test_a_field_that_the_rules_cannot_read_comes_before_an_unknown_type(spoiled: dict[str, Any]) -> None:
    """The contract's row `malformed` has it, and stands before `unknown-type` and `already-approved`."""
    asking = replace(ENFORCE, rules=(Rule("asking", frozenset({"Reboot"}), min_duration=0),))
    assert told(Case({"DurationInSeconds": "5"} | spoiled, policy=asking)) == "malformed"
    assert told(Case({"DurationInSeconds": "5"}, policy=asking, approval=Approval(accepted_at=NOON))) == "malformed"


def test_a_field_that_nobody_asks_for_may_be_odd() -> None:
    """What the decision does not need does not stop it."""
    odd = {"DurationInSeconds": "soon", "EventSource": 5, "Description": ["x"], "More": {}}
    assert told(Case(odd)) == ""


# -- rules


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({}, "user-initiated"),
        ({"EventType": "Redeploy"}, "user-initiated"),
        ({"EventType": "Freeze", "DurationInSeconds": 0, "EventSource": "Platform"}, "short-freeze"),
        ({"EventType": "Freeze", "DurationInSeconds": 8, "EventSource": "User"}, "short-freeze"),
        ({"EventType": "Freeze", "DurationInSeconds": 9}, ""),
        ({"EventType": "Freeze", "DurationInSeconds": -1}, ""),
        ({"EventType": "Freeze", "DurationInSeconds": -2}, ""),
        ({"EventSource": "Platform"}, ""),
        ({"EventSource": "user"}, ""),
        ({"EventType": "Preempt"}, ""),
        ({"EventType": "Terminate"}, ""),
    ],
)
def test_the_default_rules(fields: dict[str, Any], rule: str) -> None:
    """The owner's own reboots and redeploys, and freezes of at most eight seconds."""
    found = Case(fields, policy=Policy(Mode.ENFORCE)).decision()
    assert (found.rule, found.reason.value) == (rule, "" if rule else "no-rule")
    assert Policy().rules == DEFAULT_RULES


def test_dry_run_is_the_default() -> None:
    """Who configures nothing approves nothing."""
    assert Policy().mode is Mode.DRY_RUN
    assert told(Case(policy=Policy())) == "dry-run"


@pytest.mark.parametrize(("low", "high"), [(0, None), (None, 100), (0, 100), (None, 0), (-1, -1), (-5, None)])
def test_an_unknown_duration_matches_no_bound(low: int | None, high: int | None) -> None:
    """-1 is not a small number."""
    assert told(Case({"DurationInSeconds": -1}).rules(min_duration=low, max_duration=high)) == "no-rule"


def test_no_rules_hold_everything() -> None:
    """An empty list is the owner's word."""
    assert told(Case(policy=replace(ENFORCE, rules=()))) == "no-rule"


# -- coordination


def at_place(place: int, **policy: Any) -> Case:
    names = [f"other-{number}" for number in range(place - 1)] + ["vm-0", "last"]
    return Case({"Resources": names}, policy=replace(ENFORCE, **policy))


def test_the_leader_is_the_first_name() -> None:
    """In whatever case; everybody else waits for it for ever, unless told otherwise."""
    assert told(Case({"Resources": ["VM-0", "vm-1"]})) == ""
    assert told(replace(at_place(2), known_for=50)) == "not-leader"


@pytest.mark.parametrize("place", [2, 3, 5])
def test_the_next_takes_over_after_its_time_and_not_before(place: int) -> None:
    """The k-th name after (k - 1) times the setting, of good polling since its own first sight."""
    case = at_place(place, takeover_after=10.0)
    due = (place - 1) * 10
    assert told(replace(case, known_for=due - 1)) == "not-leader"
    assert told(replace(case, known_for=due)) == ""


@pytest.mark.parametrize("source", ["Platform", "user", "Robot", 5, ...])
def test_nobody_takes_over_what_the_owner_did_not_ask_for(source: Any) -> None:
    """Only for events of source User."""
    case = at_place(2, takeover_after=1.0)
    assert told(replace(case, fields={**case.fields, "EventSource": source}, known_for=60)) == "not-leader"


def test_a_name_that_stands_there_twice_has_its_first_place() -> None:
    """A repetition is no second VM."""
    assert told(Case({"Resources": ["vm-0", "VM-0"]})) == ""


@pytest.mark.parametrize(("names", "reason"), [(["vm-0"], ""), (["vm-0", "vm-1"], "several-resources")])
def test_single_approves_what_touches_this_vm_alone(names: list[str], reason: str) -> None:
    """Whoever comes first."""
    assert told(Case({"Resources": names}, policy=replace(ENFORCE, coordination=Coordination.SINGLE))) == reason


def test_any_knows_no_order() -> None:
    """The third of three approves at once."""
    assert told(at_place(3, coordination=Coordination.ANY)) == ""


# -- conditions of a rule


def test_settled_is_unchanged_for_so_long() -> None:
    """Not a second earlier."""
    case = Case().rules(settle=5.0)
    assert [told(replace(case, known_for=seconds)) for seconds in (0, 4, 5)] == ["settling", "settling", ""]


@pytest.mark.parametrize(
    ("presence", "reason"),
    [(Presence.PRESENT, ""), (Presence.ABSENT, "not-prepared"), (Presence.UNKNOWN, "not-prepared")],
)
def test_prepared_is_a_file_that_was_seen(presence: Presence, reason: str) -> None:
    """Anything else is not."""
    path = f"/run/ready/{EVENT_ID}"
    case = Case(situation=Situation("vm-0", files={path: presence})).rules(require_file="/run/ready/{event_id}")
    assert files_to_look_at(case.policy, parsed(event())) == {path}
    assert told(case) == reason


@pytest.mark.parametrize(
    ("presence", "reason"), [(Presence.PRESENT, "held"), (Presence.ABSENT, ""), (Presence.UNKNOWN, "held")]
)
def test_held_is_anything_but_a_clear_no_such_file(presence: Presence, reason: str) -> None:
    """A file that can't be looked at holds."""
    policy = replace(ENFORCE, hold_file="/etc/hold")
    assert told(Case(policy=policy, situation=Situation("vm-0", files={"/etc/hold": presence}))) == reason
    assert told(Case(policy=policy)) == "held"


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
def test_quiet_is_that_no_other_event_can_be_started(others: tuple[Any, ...], reason: str) -> None:
    """Of any VM; what can't be read may be."""
    assert told(replace(Case().rules(when_quiet=True), others=others)) == reason


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
def test_no_event_id_leaves_the_folder_of_its_file(template: str, event_id: str) -> None:
    """On neither kind of system: the path has the template's own parts, but for the one that holds the id."""
    rule = replace(ANY_REBOOT, require_file=template)
    path = prepared_path(rule, one(EventId=event_id.replace("\0", "x")))
    if path is None:
        return
    for kind in (PurePosixPath, PureWindowsPath):
        assert len(kind(path).parts) == len(kind(template).parts)
        assert ".." not in kind(path).parts
        assert kind(path).parts[0] == kind(template).parts[0]
    assert path == template.replace("{event_id}", event_id)


def test_an_id_that_cannot_be_a_file_name_is_not_prepared(tmp_path: Path) -> None:
    """Also where the file that it would lead to is there."""
    (tmp_path / "there").touch()
    template = f"{tmp_path}/ready/{{event_id}}"
    watcher = Watcher.fresh()
    watcher.sees(event("../there"))
    policy = replace(ENFORCE, rules=(replace(ANY_REBOOT, require_file=template),))
    files = {f"{tmp_path}/ready/../there": Presence.PRESENT, f"{tmp_path}/there": Presence.PRESENT}
    assert [found.reason for found in decide(policy, watcher.state, Situation("vm-0", files=files))] == [
        Reason.NOT_PREPARED
    ]
    assert files_to_look_at(policy, parsed(event("../there"))) == frozenset()


def test_files_are_looked_at_only_where_they_can_matter() -> None:
    """Not with approvals off, nor for events that the rule is not about."""
    rules = (replace(ANY_REBOOT, require_file="/run/ready"),)
    policy = replace(ENFORCE, hold_file="/etc/hold", rules=rules)
    assert files_to_look_at(policy, parsed(event())) == {"/etc/hold", "/run/ready"}
    assert files_to_look_at(policy, parsed(event(EventType="Freeze"))) == {"/etc/hold"}
    assert files_to_look_at(replace(policy, mode=Mode.OFF), parsed(event())) == frozenset()


# -- explaining


@pytest.mark.parametrize("reason", [*SPOILERS, Reason.NONE])
def test_an_explanation_agrees_with_its_decision(reason: Reason) -> None:
    """The first condition that is not met is the reason, and a rule that matched is among the trials."""
    case = SPOILERS[reason](Case()) if reason is not Reason.NONE else Case()
    explained = next(found for found in explain(case.policy, case.state(), case.situation) if found.decision.key == KEY)
    assert explained.decision == case.decision()
    unmet = [condition.reason for condition in explained.conditions if not condition.met]
    assert unmet[:1] == ([reason] if reason in AFTER_A_RULE else [])
    matched = [trial.rule.name for trial in explained.trials if trial.outcome is Outcome.MATCHES]
    assert matched == ([explained.decision.rule] if explained.decision.rule else [])


def test_an_explanation_names_the_field_that_a_rule_could_not_read() -> None:
    """Malformed by a rule shows the rule."""
    case = Case({"DurationInSeconds": "5"}).rules(min_duration=0)
    (explained,) = explain(case.policy, case.state(), case.situation)
    assert [(trial.outcome, trial.field) for trial in explained.trials] == [(Outcome.UNREADABLE, "DurationInSeconds")]


def test_turning_points_are_when_time_alone_changes_a_decision() -> None:
    """The moments of takeover and settling that are still to come."""
    case = at_place(3, takeover_after=10.0).rules(settle=15.0)
    state = case.state()
    assert turning_points(case.policy, state, "vm-0") == (state.watched + 15.0, state.watched + 20.0)
    assert turning_points(ENFORCE, state, "vm-0") == ()


# -- outdated


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, ""),
        ({"EventStatus": "Started", "NotBefore": ""}, ""),
        ({"EventStatus": "Paused"}, ""),
        ({"NotBefore": "soon"}, ""),
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
def test_an_approved_event_is_outdated_when_its_content_would_now_be_held(fields: dict[str, Any], reason: str) -> None:
    """What has simply passed, such as its status, is not asked again."""
    watcher = Watcher.fresh()
    watcher.sees(event())
    watcher.sees(event(**fields))
    tracked = replace(watcher.state.tracked[KEY], approval=Approval(1, accepted_at=NOON))
    for mode in Mode:
        assert outdated(replace(ENFORCE, mode=mode, hold_file="/etc/hold"), tracked, "vm-0").value == reason


# -- attempts


def test_waiting_doubles_from_five_seconds_to_a_minute() -> None:
    """5, 10, 20, 40, 60, 60, whatever the number."""
    assert [retry_delay(attempts) for attempts in (1, 2, 3, 4, 5, 6, 10**9)] == [5, 10, 20, 40, 60, 60, 60]


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
        (1, (-5, None), (0, 100.0), True),
        (1, (3600, None), (0, 104.0), False),
        (1, (3600, None), (0, 105.0), True),
    ],
)
def test_an_attempt_is_due_only_after_its_wait(attempts: int, last: Any, now: Any, due: bool) -> None:
    """By the monotonic clock; across a restart by the wall clock, and if that went back by our own waiting."""

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


def test_a_post_that_was_cut_off_stays_in_doubt() -> None:
    """The process died over it; that the next one is refused does not say what became of the first."""
    first = attempting(Approval(), START, "all")
    second = attempting(first, Instant(NOON, 110.0), "all")
    assert (first.in_flight, first.unanswered, first.attempts) == (True, False, 1)
    assert (second.in_flight, second.unanswered, second.attempts) == (True, True, 2)
    assert replace(second, in_flight=False).doubtful
