"""The policy: each hold reason, their order, the rules, and which of several VMs approves."""

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


def test_event_without_a_reason_to_hold_is_approved() -> None:
    """The decision has the name of the matching rule and the fields that it used."""
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
# Two results of one check exclude each other, so no event has both.
EXCLUSIVE = {
    frozenset({Reason.OFF, Reason.DRY_RUN}),
    frozenset({Reason.SEVERAL_RESOURCES, Reason.NOT_LEADER}),
}


def test_reasons_are_those_of_the_contract_in_order() -> None:
    """Consumers depend on these values as labels and fields."""
    assert [reason.value for reason in Reason if reason is not Reason.NONE] == CONTRACT
    assert [reason.value for reason in list(Reason)[:-1]] == CONTRACT
    assert [reason.value for reason in SPOILERS] == CONTRACT


@pytest.mark.parametrize("reason", SPOILERS)
def test_each_single_reason_holds(reason: Reason) -> None:
    assert recorded(SPOILERS[reason](Case())) == reason.value


@pytest.mark.parametrize(("first", "second"), list(combinations(SPOILERS, 2)))
def test_first_applicable_reason_wins(first: Reason, second: Reason) -> None:
    """Checks every pair in the contract's order."""
    if frozenset({first, second}) in EXCLUSIVE:
        return
    both = SPOILERS[first](SPOILERS[second](Case()))
    assert recorded(both) == first.value


def test_first_reason_wins_if_all_apply() -> None:
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
def test_unreadable_required_field_holds(fields: dict[str, Any]) -> None:
    """A missing, mistyped, or unparsable field holds the event, whatever the rules need."""
    assert recorded(Case(fields)) == "malformed"


def test_duplicate_event_id_holds_both_events() -> None:
    """An approval by id could be for either event."""
    assert recorded(Case(others=(event(EVENT_ID.lower(), Resources=["vm-9"]),))) == "malformed"


@pytest.mark.parametrize("value", [..., None, True, False, 5.0, "5", [5], 2**63])
@pytest.mark.parametrize("bounds", [{"min_duration": 0}, {"max_duration": 8}, {"min_duration": 0, "max_duration": 8}])
def test_duration_that_a_rule_needs_must_be_an_integer(value: Any, bounds: dict[str, int]) -> None:
    """Booleans, floats, and strings are rejected: True is not one second."""
    assert recorded(Case({"DurationInSeconds": value}).rules(**bounds)) == "malformed"


@pytest.mark.parametrize("value", [..., None, True, {}, []])
def test_source_that_a_rule_needs_must_be_a_string(value: Any) -> None:
    """An older API version has no EventSource, so such a rule can't be evaluated."""
    assert recorded(Case({"EventSource": value}).rules(event_source=("User",))) == "malformed"


def test_unreadable_field_of_an_earlier_rule_holds_even_if_a_later_rule_matches() -> None:
    """The first matching rule decides. Without the field, it's unknown whether the earlier rule matches."""
    asking = Rule("asking", ("Reboot",), min_duration=0)
    case = Case({"DurationInSeconds": "5"}, policy=replace(ENFORCE, rules=(asking, ANY_REBOOT)))
    assert recorded(case) == "malformed"
    assert recorded(replace(case, policy=replace(ENFORCE, rules=(ANY_REBOOT, asking)))) == ""


@pytest.mark.parametrize("spoiled", [{"ResourceType": "Disk"}, {"EventType": "Hibernate"}])
def test_unreadable_field_of_a_rule_precedes_unknown_type(spoiled: dict[str, Any]) -> None:
    """In the contract, `malformed` precedes `unknown-type` and `already-approved`."""
    asking = replace(ENFORCE, rules=(Rule("asking", ("Reboot",), min_duration=0),))
    assert recorded(Case({"DurationInSeconds": "5"} | spoiled, policy=asking)) == "malformed"
    assert recorded(Case({"DurationInSeconds": "5"}, policy=asking, approval=Approval(accepted_at=NOON))) == "malformed"


def test_unreadable_field_that_no_rule_needs_is_ignored() -> None:
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
def test_default_rules_match_user_reboots_and_short_freezes(fields: dict[str, Any], rule: str) -> None:
    """User-initiated reboots and redeploys, and freezes of at most eight seconds."""
    found = Case(fields, policy=Policy(Mode.ENFORCE)).decision()
    assert (found.rule, found.reason.value) == (rule, "" if rule else "no-rule")
    assert Policy().rules == DEFAULT_RULES


def test_dry_run_is_the_default_mode() -> None:
    """Without configuration, nothing is approved."""
    assert Policy().mode is Mode.DRY_RUN
    assert recorded(Case(policy=Policy())) == "dry-run"


@pytest.mark.parametrize(("low", "high"), [(0, None), (None, 100), (0, 100), (None, 0), (-1, -1), (-5, None)])
def test_unknown_duration_matches_no_bound(low: int | None, high: int | None) -> None:
    """-1 is not a small number."""
    assert recorded(Case({"DurationInSeconds": -1}).rules(min_duration=low, max_duration=high)) == "no-rule"


def test_empty_rules_hold_everything() -> None:
    assert recorded(Case(policy=replace(ENFORCE, rules=()))) == "no-rule"


def test_first_name_in_resources_is_the_leader() -> None:
    """Names ignore case. Without a takeover setting, the other VMs hold the event permanently."""
    assert recorded(Case({"Resources": ["VM-0", "vm-1"]})) == ""
    assert recorded(replace(at_place(2), known_for=50)) == "not-leader"


@pytest.mark.parametrize("place", [2, 3, 5])
def test_takeover_happens_at_its_time_and_not_before(place: int) -> None:
    """The k-th name waits (k - 1) times the setting, counted in gapless polling since it first saw the event."""
    case = at_place(place, takeover_after=10.0)
    due = (place - 1) * 10
    assert recorded(replace(case, known_for=due - 1)) == "not-leader"
    assert recorded(replace(case, known_for=due)) == ""


@pytest.mark.parametrize("source", ["Platform", "user", "Robot", 5, ...])
def test_takeover_is_only_for_events_of_source_user(source: Any) -> None:
    case = at_place(2, takeover_after=1.0)
    assert recorded(replace(case, fields={**case.fields, "EventSource": source}, known_for=60)) == "not-leader"


def test_repeated_name_has_its_first_place() -> None:
    """A repetition is not a second VM."""
    assert recorded(Case({"Resources": ["vm-0", "VM-0"]})) == ""


@pytest.mark.parametrize(("names", "reason"), [(["vm-0"], ""), (["vm-0", "vm-1"], "several-resources")])
def test_single_approves_only_events_of_this_vm(names: list[str], reason: str) -> None:
    """The order of names doesn't matter."""
    assert recorded(Case({"Resources": names}, policy=replace(ENFORCE, coordination=Coordination.SINGLE))) == reason


def test_any_ignores_the_order_of_names() -> None:
    """The third of three VMs approves at once."""
    assert recorded(at_place(3, coordination=Coordination.ANY)) == ""
