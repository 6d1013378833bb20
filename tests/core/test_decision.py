"""The policy: each hold reason, the order of all, the rules, and who of several VMs approves."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from exporter.core.policy import (
    DEFAULT_RULES,
    Coordination,
    Mode,
    Policy,
    Reason,
    Rule,
    Verdict,
)
from exporter.core.state import Approval
from tests.support.approval_case import ANY_REBOOT, ENFORCE, SPOILERS, Case, at_place, recorded
from tests.support.core_documents import EVENT_ID, NOON, event


def test_an_event_that_nothing_stands_against_is_approved() -> None:
    """By the rule that is named, with the fields that it used."""
    found = Case().decision()
    assert (found.verdict, found.reason, found.rule) == (Verdict.APPROVE, Reason.NONE, "all")
    assert found.fields["Resources"] == ["vm-0"]
    assert json.dumps(dict(found.fields))


CONTRACT = [
    "off",
    "not-scheduled",
    "identity-unknown",
    "identity-conflict",
    "not-this-vm",
    "malformed",
    "unknown-type",
    "already-approved",
    "source-reset",
    "no-rule",
    "several-resources",
    "not-leader",
    "settling",
    "not-prepared",
    "not-quiet",
    "too-many-resources",
    "out-of-hours",
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
    assert [reason.value for reason in list(Reason)[:-1]] == CONTRACT
    assert [reason.value for reason in SPOILERS] == CONTRACT


@pytest.mark.parametrize("reason", SPOILERS)
def test_each_reason_alone_holds(reason: Reason) -> None:
    """One thing that stands against it is enough, and is the one that is named."""
    assert recorded(SPOILERS[reason](Case())) == reason.value


@pytest.mark.parametrize(("first", "second"), list(combinations(SPOILERS, 2)))
def test_of_two_reasons_the_first_is_told(first: Reason, second: Reason) -> None:
    """Every pair in the contract's order, the adjacent ones among them."""
    if frozenset({first, second}) in EXCLUSIVE:
        return
    both = SPOILERS[first](SPOILERS[second](Case()))
    assert recorded(both) == first.value


def test_all_reasons_at_once_are_the_first() -> None:
    """Whatever stands against an event, the answer is one word."""
    case = Case()
    for spoil in reversed(list(SPOILERS.values())):
        case = spoil(case)
    assert recorded(case) == "off"


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
    assert recorded(Case(fields)) == "malformed"


def test_two_events_with_one_id_are_both_held() -> None:
    """An approval by id would be for either."""
    assert recorded(Case(others=(event(EVENT_ID.lower(), Resources=["vm-9"]),))) == "malformed"


@pytest.mark.parametrize("value", [..., None, True, False, 5.0, "5", [5], 2**63])
@pytest.mark.parametrize("bounds", [{"min_duration": 0}, {"max_duration": 8}, {"min_duration": 0, "max_duration": 8}])
def test_a_duration_that_a_rule_asks_for_must_be_an_integer(value: Any, bounds: dict[str, int]) -> None:
    """No bool, no float, no string: True is not one second."""
    assert recorded(Case({"DurationInSeconds": value}).rules(**bounds)) == "malformed"


@pytest.mark.parametrize("value", [..., None, True, {}, []])
def test_a_source_that_a_rule_asks_for_must_be_a_word(value: Any) -> None:
    """An older api-version has none: such a rule can't be answered."""
    assert recorded(Case({"EventSource": value}).rules(event_source=("User",))) == "malformed"


def test_a_field_that_an_earlier_rule_asks_for_holds_although_a_later_one_would_match() -> None:
    """The first match approves: without the field nobody knows whether the earlier rule was the first."""
    asking = Rule("asking", ("Reboot",), min_duration=0)
    case = Case({"DurationInSeconds": "5"}, policy=replace(ENFORCE, rules=(asking, ANY_REBOOT)))
    assert recorded(case) == "malformed"
    assert recorded(replace(case, policy=replace(ENFORCE, rules=(ANY_REBOOT, asking)))) == ""


@pytest.mark.parametrize("spoiled", [{"ResourceType": "Disk"}, {"EventType": "Hibernate"}])
def test_a_field_that_the_rules_cannot_read_comes_before_an_unknown_type(spoiled: dict[str, Any]) -> None:
    """The contract's row `malformed` has it, and stands before `unknown-type` and `already-approved`."""
    asking = replace(ENFORCE, rules=(Rule("asking", ("Reboot",), min_duration=0),))
    assert recorded(Case({"DurationInSeconds": "5"} | spoiled, policy=asking)) == "malformed"
    assert recorded(Case({"DurationInSeconds": "5"}, policy=asking, approval=Approval(accepted_at=NOON))) == "malformed"


def test_a_field_that_nobody_asks_for_may_be_odd() -> None:
    """What the decision does not need does not stop it."""
    odd = {"DurationInSeconds": "soon", "EventSource": 5, "Description": ["x"], "More": {}}
    assert recorded(Case(odd)) == ""


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
    assert recorded(Case(policy=Policy())) == "dry-run"


@pytest.mark.parametrize(("low", "high"), [(0, None), (None, 100), (0, 100), (None, 0), (-1, -1), (-5, None)])
def test_an_unknown_duration_matches_no_bound(low: int | None, high: int | None) -> None:
    """-1 is not a small number."""
    assert recorded(Case({"DurationInSeconds": -1}).rules(min_duration=low, max_duration=high)) == "no-rule"


def test_no_rules_hold_everything() -> None:
    """An empty list is the owner's word."""
    assert recorded(Case(policy=replace(ENFORCE, rules=()))) == "no-rule"


def test_the_leader_is_the_first_name() -> None:
    """In whatever case; everybody else waits for it for ever, unless told otherwise."""
    assert recorded(Case({"Resources": ["VM-0", "vm-1"]})) == ""
    assert recorded(replace(at_place(2), known_for=50)) == "not-leader"


@pytest.mark.parametrize("place", [2, 3, 5])
def test_the_next_takes_over_after_its_time_and_not_before(place: int) -> None:
    """The k-th name after (k - 1) times the setting, of good polling since its own first sight."""
    case = at_place(place, takeover_after=10.0)
    due = (place - 1) * 10
    assert recorded(replace(case, known_for=due - 1)) == "not-leader"
    assert recorded(replace(case, known_for=due)) == ""


@pytest.mark.parametrize("source", ["Platform", "user", "Robot", 5, ...])
def test_nobody_takes_over_what_the_owner_did_not_ask_for(source: Any) -> None:
    """Only for events of source User."""
    case = at_place(2, takeover_after=1.0)
    assert recorded(replace(case, fields={**case.fields, "EventSource": source}, known_for=60)) == "not-leader"


def test_a_name_that_stands_there_twice_has_its_first_place() -> None:
    """A repetition is no second VM."""
    assert recorded(Case({"Resources": ["vm-0", "VM-0"]})) == ""


@pytest.mark.parametrize(("names", "reason"), [(["vm-0"], ""), (["vm-0", "vm-1"], "several-resources")])
def test_single_approves_what_touches_this_vm_alone(names: list[str], reason: str) -> None:
    """Whoever comes first."""
    assert recorded(Case({"Resources": names}, policy=replace(ENFORCE, coordination=Coordination.SINGLE))) == reason


def test_any_knows_no_order() -> None:
    """The third of three approves at once."""
    assert recorded(at_place(3, coordination=Coordination.ANY)) == ""
