"""The join of a fleet's records: one summary per event, from any VMs, in any order, and with duplicates."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.consumers.python.event_summaries.join import OUTCOMES, due, event_summary
from deploy.consumers.python.event_summaries.record import AzureEvent, Fact, Place
from exporter.core.records import Record, timestamp
from tests.support.core_documents import NOON
from tests.support.fleet_records import NOW, recorded_by_a_fleet, summaries

EVENT: Final = AzureEvent("E-1", "Freeze", "Platform", "Scheduled", "", 5, ("web_0", "web_1"))
KINDS: Final = (
    "scheduled", "updated", "started", *OUTCOMES, "approval.decided", "approval.accepted", "approval.failed",
    "approval.outdated", "interruption.observed", "event.rejected",
)  # fmt: skip


def at(seconds: float) -> str:
    return timestamp(NOON.fromtimestamp(NOON.timestamp() + seconds, tz=NOON.tzinfo))


def fact(kind: str, seconds: float, vm: str = "web_0", **further: Any) -> Fact:
    """A fact of that VM. The same arguments give the same id."""
    known: dict[str, Any] = {"event": EVENT, "affects_self": vm in EVENT.resources, **further}
    if kind in {"scheduled", "started"}:
        known = {"first_seen": at(seconds), "seen_before": "unbroken", **known}
    if kind == "started":
        known = {"started_at": at(seconds), **known}
    source = f"urn:azure-vm:{vm}"
    name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{source} {kind} {seconds} {further}"))
    return Fact(source, name, kind, "e-1", at(seconds), vm, **known)


def closing(kind: str, seconds: float, vm: str = "web_0", **further: Any) -> Fact:
    known: dict[str, Any] = {
        "first_seen": at(0),
        "seen_before": "unbroken",
        "gone_at": at(seconds),
        "watched": True,
        **further,
    }
    return fact(kind, seconds, vm, **known)


def life(vm: str, begin: float = 0.0) -> list[Fact]:
    return [
        fact("scheduled", begin, vm, notice_seconds=900.0 - begin),
        fact("started", begin + 100, vm, started_by="not_before"),
        closing(
            "completed", begin + 110, vm, first_seen=at(begin), started_at=at(begin + 100), started_by="not_before"
        ),
    ]


def recorded(facts: Sequence[Fact], give_up: float | None = None, now: str = NOW) -> dict[str, Any]:
    return event_summary(facts, now, give_up)


# -- any order, any number of copies


def _times() -> st.SearchStrategy[str]:
    return st.integers(0, 6).map(lambda seconds: at(seconds * 10))


@st.composite
def any_fact(draw: st.DrawFn) -> Fact:
    """Whatever members a record can have, in few values, so that they meet."""
    vm = draw(st.sampled_from(["web_0", "web_1", "WEB_0", "other"]))
    kind = draw(st.sampled_from(KINDS))
    maybe = st.none() | _times()
    event = replace(
        EVENT,
        event_type=draw(st.sampled_from(["Freeze", "Reboot", None])),
        resources=tuple(draw(st.lists(st.sampled_from(["web_0", "WEB_0", "web_7"]), max_size=2))),
    )
    return Fact(
        source=f"urn:{vm}",
        id=str(uuid.UUID(int=draw(st.integers(0, 1 << 60)))),
        kind=kind,
        event_id="e-1",
        time=draw(_times()),
        vm=vm,
        place=Place(vmss_name=draw(st.sampled_from(["", "web"])), tags=(("owner", draw(st.sampled_from("ab"))),)),
        event=draw(st.sampled_from([None, event])),
        not_before=draw(maybe),
        affects_self=draw(st.none() | st.booleans()),
        seen_before=draw(st.sampled_from([None, "unbroken", "gap", "agent_start", "new-word"])),
        first_seen=draw(maybe),
        notice_seconds=draw(st.none() | st.integers(-5, 5).map(float)),
        started_at=draw(maybe),
        started_by=draw(st.sampled_from([None, "this_vm", "other", "not_before", "unknown", "new-word"])),
        approved_at=draw(maybe),
        rule=draw(st.sampled_from([None, "rule"])),
        attempts=draw(st.none() | st.integers(0, 3)),
        verdict=draw(st.sampled_from([None, "approve", "hold"])),
        reason=draw(st.sampled_from([None, "no-rule"])),
        interruption_seconds=draw(st.none() | st.integers(-1, 3).map(float)),
        interruption_longest_seconds=draw(st.none() | st.integers(0, 3).map(float)),
        watched=draw(st.none() | st.booleans()),
        gone_at=draw(maybe),
        gaps=draw(st.integers(0, 2)),
        gap_seconds=draw(st.integers(0, 2).map(float)),
        unseen=tuple(draw(st.lists(st.sampled_from(["gap", "restart"]), max_size=2))),
        replaced_by=draw(st.sampled_from([None, "e-2"])),
    )


FACTS: Final = st.lists(any_fact(), min_size=1, max_size=12, unique_by=lambda one: (one.source, one.id))


@given(FACTS, st.randoms(use_true_random=False), st.sampled_from([None, 0.0, 30.0]))
def test_order_and_copies_change_nothing(facts: list[Fact], chance: random.Random, give_up: float | None) -> None:
    """The summary depends on the set of records, not on their order."""
    shuffled = facts + chance.choices(facts, k=len(facts))
    chance.shuffle(shuffled)
    assert recorded(shuffled, give_up) == recorded(facts, give_up)


@given(FACTS)
def test_every_summary_is_consistent_json(facts: list[Fact]) -> None:
    """For any records: one of the four states, an outcome only if closed, and no record counted twice."""
    found = recorded(facts, 30.0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["state"] in {"scheduled", "started", "no-end", "closed"}
    assert (found["outcome"] is not None) == (found["state"] == "closed")
    assert found["records"] == len(facts)
    assert due(found) >= found["last_record_at"]


@given(FACTS)
def test_every_resource_is_reported_by_or_not_reported_by(facts: list[Fact]) -> None:
    """A VM that Azure names is in `reported_by` or in `not_reported_by`; names are compared without case."""
    found = recorded(facts)
    heard = {name.lower() for name in found["reported_by"]}
    assert {name.lower() for name in found["resources"]} - heard == {name.lower() for name in found["not_reported_by"]}
    assert heard == {one.vm.lower() for one in facts}


@pytest.mark.parametrize("seed", range(3))
def test_a_real_fleet_gives_one_summary_in_any_order(seed: int, tmp_path: Path) -> None:
    """Two events of four VMs give two summaries, each with four reporting VMs, approved by the leader."""
    bodies = [record.to_json() for record in _real(tmp_path)]
    expected = summaries(bodies)
    chance = random.Random(seed)  # noqa: S311  # an order, no secret
    bodies += chance.choices(bodies, k=20)
    chance.shuffle(bodies)
    assert summaries(bodies) == expected
    assert len(expected) == 2
    for found in expected.values():
        assert (found["state"], found["outcome"], found["started_by"]) == ("closed", "completed", "this_vm")
        assert found["reported_by"] == found["resources"] == ["web_0", "web_1", "web_2", "web_3"]
        assert (found["approved_by_vm"], found["rule"], found["conflicts"]) == ("web_0", "user-initiated", [])
        assert found["decisions"] == {"approve": 1, "hold: not-leader": 3}


def _real(folder: Path) -> list[Record]:
    return recorded_by_a_fleet(folder, 4, events=2)


# -- scenarios


def test_first_seen_is_the_earliest_of_all_vms() -> None:
    """The summary has the notice of that VM."""
    found = recorded([*life("web_1", 3.0), *life("web_0", 1.0)])
    assert (found["first_seen"], found["first_seen_by"], found["notice_seconds"]) == (at(1.0), "web_0", 899.0)
    assert found["started_at"] == at(101.0)


def test_one_reporting_vm_is_enough() -> None:
    """A VM that lost its disk reports nothing; its neighbour with scope=all does."""
    found = recorded(life("neighbour"))
    assert (found["state"], found["outcome"], found["reported_by"]) == ("closed", "completed", ["neighbour"])
    assert found["not_reported_by"] == ["web_0", "web_1"]


def test_a_vm_that_saw_the_start_takes_precedence() -> None:
    """The outcome is that of the most complete observation, and contradictions are visible."""
    found = recorded([*life("web_0"), fact("scheduled", 0, "web_1"), closing("canceled", 105, "web_1")])
    assert (found["outcome"], found["outcome_by"]) == ("completed", "web_0")
    assert found["conflicts"] == [{"field": "outcome", "values": {"canceled": ["web_1"], "completed": ["web_0"]}}]


def test_the_vm_with_the_fewest_gaps_takes_precedence() -> None:
    """Of two with the same observation, the one without a gap in polling."""
    begun = [fact("started", 0, "web_0"), fact("started", 0, "web_1")]
    for worse in ({"gaps": 2}, {"gap_seconds": 40.0}, {"seen_before": "gap"}, {"unseen": ("gap",)}):
        found = recorded([*begun, closing("completed", 105, "web_0", **worse), closing("completed", 106, "web_1")])
        assert (found["outcome_by"], found["gone_at"]) == ("web_1", at(106))


def test_an_unseen_end_is_not_a_contradiction() -> None:
    """`ended` means that a VM does not know; a later record of one that knows revises the summary."""
    without_data = [fact("scheduled", 0, "web_1"), closing("ended", 500, "web_1", unseen=("restart",))]
    alone = recorded(without_data)
    assert (alone["state"], alone["outcome"], alone["unseen"]) == ("closed", "ended", ["restart"])
    found = recorded([*without_data, *life("web_0")])
    assert (found["outcome"], found["unseen"], found["conflicts"]) == ("completed", [], [])


def test_an_event_stays_open_while_one_vm_has_it() -> None:
    """`ended` of one VM while another still has the event: it is open."""
    left = [fact("scheduled", 0, "web_0"), closing("ended", 5, "web_0", unseen=("not-this-vm",))]
    assert recorded([*left, fact("scheduled", 0, "web_1")])["state"] == "scheduled"
    assert recorded(left)["outcome"] == "ended"
    assert recorded([*left, fact("started", 9, "web_0", started_by="not_before")])["state"] == "started"


def test_a_cancellation_waits_for_the_vm_that_saw_the_start() -> None:
    """Of two VMs that contradict each other, the one with the more complete observation has not finished."""
    facts = [fact("scheduled", 0, "web_0"), closing("canceled", 50, "web_0"), fact("started", 40, "web_1")]
    assert recorded(facts)["state"] == "started"


def test_an_approval_by_an_agent_is_not_contradicted_by_its_neighbours() -> None:
    """They can only report that they did not approve it."""
    own = [fact("scheduled", 0), fact("approval.accepted", 1, approved_at=at(1), rule="freeze", attempts=1)]
    neighbours = [
        fact("started", 3, f"web_{number}", started_by=word) for number, word in ((1, "other"), (2, "not_before"))
    ]
    found = recorded([*own, fact("started", 3, started_by="this_vm"), *neighbours])
    assert (found["started_by"], found["approved_by_vm"], found["rule"]) == ("this_vm", "web_0", "freeze")
    assert found["conflicts"] == []


def test_started_by_can_be_in_conflict() -> None:
    """Without an approval by an agent, one clock shows an early start and another a late one."""
    found = recorded([fact("started", 3, started_by="other"), fact("started", 3, "web_1", started_by="not_before")])
    assert found["started_by"] == "other"
    assert found["conflicts"] == [{"field": "started_by", "values": {"other": ["web_0"], "not_before": ["web_1"]}}]


def test_interruption_of_a_vm_is_its_largest_reported_total() -> None:
    """A VM that measured no interruption has null; a VM that didn't measure is missing."""
    observed = [fact("interruption.observed", 101, interruption_seconds=2.0, interruption_longest_seconds=2.0)]
    observed += [fact("interruption.observed", 104, interruption_seconds=5.5, interruption_longest_seconds=3.5)]
    found = recorded([*life("web_0"), *life("web_1"), *observed, *life("neighbour")])
    assert found["interruption_seconds"] == {"web_0": 5.5, "web_1": None}
    assert found["interruption_longest_seconds"] == 3.5


def test_an_event_without_an_end_gets_the_state_no_end() -> None:
    """After its last record and its NotBefore; a late end still closes it."""
    open_event = [fact("scheduled", 0, not_before=at(900))]
    assert recorded(open_event, 60.0, at(930))["state"] == "scheduled"
    assert recorded(open_event, 60.0, at(961))["state"] == "no-end"
    assert recorded(open_event, None, at(99_999))["state"] == "scheduled"
    assert recorded([*open_event, closing("completed", 99_999)], 60.0, at(99_999))["state"] == "closed"
    assert due(recorded(open_event)) == at(900)


def test_places_and_tags_are_those_of_the_named_vms() -> None:
    """For routing: a neighbour's owner is not the event's."""
    own = Place("sub", "group", "web", "westeurope", (("owner", "team-a"),))
    other = Place("sub", "group", "batch", "westeurope", (("owner", "team-b"),))
    found = recorded([fact("scheduled", 0, place=own), fact("scheduled", 0, "neighbour", place=other)])
    assert (found["vmss_name"], found["tags"], found["location"]) == (["web"], {"owner": ["team-a"]}, ["westeurope"])
    assert recorded([fact("scheduled", 0, "neighbour", place=other)])["tags"] == {"owner": ["team-b"]}


def test_summary_has_the_last_values_and_all_resources() -> None:
    """A VM that an update removed is listed as well."""
    later = replace(EVENT, resources=("web_1",), status="Started")
    found = recorded([fact("scheduled", 0), fact("updated", 5, event=later)])
    assert (found["event_status"], found["resources"]) == ("Started", ["web_0", "web_1"])


def test_a_failed_approval_is_a_warning() -> None:
    """Failed, outdated, not understood."""
    found = recorded([fact("scheduled", 0), fact("approval.failed", 1, attempts=3), fact("approval.outdated", 2)])
    assert (found["warnings"], found["approval_attempts"]) == (["approval.failed", "approval.outdated"], 3)
