"""Random scenarios of a scale set: several agents on one platform, each with its own faults, crashes, and clocks.

`fleet_reading`, which shares nothing with the code, judges what reaches the platform and the backends.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.agent.ports import AgentOptions
from tests.core.test_invariants import DEFAULT, GENEROUS, HOLD, RULES, Files, policy_of
from tests.support import oracle
from tests.support.effort import LONG, MEMORY, Tried, examples
from tests.support.fleet_edges import BOUNDARIES
from tests.support.fleet_environment import Fleet

Happening = tuple[str, tuple[Any, ...]]
Scenario = list[tuple[Happening, tuple[int, float]]]

MEMBERS: Final = st.integers(0, 2)
IDENTS: Final = st.sampled_from(["a", "b", "c"])
ORDERS: Final = st.sampled_from(
    [["vm-0", "vm-1", "vm-2"], ["vm-1", "vm-0"], ["vm-2", "vm-1", "vm-0"], ["VM-1", "vm-0"], ["vm-0"], ["vm-9"]]
)
FIELDS: Final = st.fixed_dictionaries(
    {
        "EventType": st.sampled_from(["Reboot", "Redeploy", "Freeze", "Reboot", "Redeploy", "Nap"]),
        "EventSource": st.sampled_from(["User", "User", "User", "Platform"]),
        "DurationInSeconds": st.sampled_from([-1, 0, 5, 9]),
        "EventStatus": st.sampled_from(["Scheduled"] * 6 + ["Started", "Paused"]),
    }
)
CHANGES: Final = st.sampled_from(
    [
        {"Description": "One."},
        {"Description": "Other."},
        {"Resources": ["vm-1", "vm-0"]},
        {"Resources": ["vm-2"]},
        {"Resources": "vm-0"},
        {"NotBefore": "soon"},
        {"EventSource": 5},
        {"DurationInSeconds": 4},
        {"Newer": [1]},
    ]
)


def happening(name: str, *arguments: Any) -> st.SearchStrategy[Happening]:
    return st.tuples(st.just(name), st.tuples(*arguments))


PLATFORM: Final = (
    happening("announces", IDENTS, ORDERS, st.sampled_from([900, 900, 20, 3, -10]), FIELDS),
    happening("announces", IDENTS, ORDERS, st.sampled_from([900]), FIELDS),
    happening("moves", IDENTS, st.sampled_from(["Started", "Started", "Scheduled", "Paused"]), st.booleans()),
    happening("changes", IDENTS, CHANGES, st.sampled_from([False, False, True])),
    happening("changes", IDENTS, CHANGES, st.booleans()),
    happening("is_over", IDENTS),
    happening("speaks_an_older_version", IDENTS),
    happening("starts_its_number_again", st.integers(1, 3)),
    happening("shows_its_events_backwards"),
    happening("shows_twins", st.booleans()),
)
AWAY: Final = st.sampled_from([0.25, 2.0, 30.0])
TROUBLE: Final = (
    happening("source_is", MEMBERS, st.sampled_from(["fine", "timeout", "html", "old"]), st.sampled_from([0, 0, 3, 6])),
    happening("source_is", MEMBERS, st.just("fine"), st.sampled_from([0.0, -9.0])),
    happening("answers", MEMBERS, st.sampled_from(["200", "200", "400", "503", "lost", "refused"])),
    happening("disk_is", MEMBERS, st.sampled_from(["", "", "full", "gone"])),
    happening("starts_without_its_disk", MEMBERS, AWAY),
    happening(
        "backend_is", MEMBERS, st.integers(0, 1), st.sampled_from(["fine", "down", "busy", "denied", "picky", "half"])
    ),
    happening("backend_is", MEMBERS, st.integers(0, 1), st.sampled_from(["fine", "mute"])),
    happening("holds", MEMBERS, st.sampled_from(["absent", "absent", "present", "unknown"])),
    happening("is_doomed", MEMBERS, st.sampled_from(BOUNDARIES), st.integers(1, 3)),
    happening("is_killed", MEMBERS, AWAY, st.booleans(), st.sampled_from([0.0, 0.0, 3.0, 15.0])),
    happening("is_stopped", MEMBERS, AWAY),
    happening("clock_is_set", MEMBERS, st.sampled_from([-3600.0, -2.0, 2.0, 8.0, 3600.0])),
    happening("freezes", MEMBERS, st.sampled_from([1.0, 9.0]), st.booleans()),
)
HOMES: Final = st.builds(
    oracle.PolicySetup,
    mode=st.sampled_from(["enforce"] * 8 + ["dry-run"]),
    coordination=st.sampled_from(["leader", "leader", "any", "single"]),
    takeover_after=st.sampled_from([2.0, 10.0, None]),
    rules=st.lists(GENEROUS | RULES, max_size=2).map(lambda rules: tuple(rules) or DEFAULT),
    file=st.builds(Files, st.integers(0, 2)),
    hold_file=st.sampled_from(["", HOLD]),
    conflict=st.sampled_from([False] * 9 + [True]),
)
LOOKS: Final = st.tuples(st.sampled_from([1, 1, 2, 0, 7, 20]), st.sampled_from([1.0, 1.0, 0.25, 4.0]))
"""How often the fleet takes a turn after an action, and how many seconds apart."""


def scenarios(*happenings: st.SearchStrategy[Happening], least: int = 12) -> st.SearchStrategy[Scenario]:
    """Draw from a few kinds of actions, so that related ones meet more often than by chance."""
    longest = 50 if LONG else 25

    def of(some: list[st.SearchStrategy[Happening]]) -> st.SearchStrategy[Scenario]:
        return st.lists(st.tuples(st.one_of(happenings[0], *some), LOOKS), min_size=least, max_size=longest)

    return st.lists(st.sampled_from(happenings[1:]), min_size=2, max_size=6, unique_by=id).flatmap(of)


def recorded(setup: oracle.PolicySetup, size: int, everything: bool, scenario: Scenario) -> None:
    """Run the scenario, and then long enough for everything that waits."""
    Tried.example(steps=sum(often for _, (often, _) in scenario))
    options = AgentOptions(policy_of(setup), all_events=everything)
    with tempfile.TemporaryDirectory(prefix="azse-fleet-", dir=MEMORY) as root:
        fleet = Fleet(setup, options, size, Path(root))
        try:
            for (name, arguments), (often, after) in scenario:
                fleet.happens(name, arguments)
                fleet.runs(often, after)
            fleet.comes_to_rest()
        finally:
            fleet.ends()


@settings(max_examples=examples(40))
@given(HOMES, st.integers(1, 3), st.booleans(), scenarios(*PLATFORM, *TROUBLE))
def test_a_fleet_records_everything_and_approves_only_what_is_due(
    setup: oracle.PolicySetup, size: int, everything: bool, scenario: Scenario
) -> None:
    """Under any faults every transition reaches every destination in order and under one id. No POST is one that the
    second reading holds, or too early, out of turn, repeated after a 200, or not on disk; due events are approved in
    the end."""
    recorded(setup, size, everything, scenario)


# -- random scenarios with many approvals

WILLING: Final = st.builds(
    oracle.PolicySetup,
    coordination=st.sampled_from(["leader", "leader", "leader", "leader", "any", "single"]),
    takeover_after=st.sampled_from([2.0, 10.0, 10.0, None]),
    rules=st.sampled_from([DEFAULT, ({"event_type": ["Reboot"]},), ({"event_type": ["Reboot"], "settle": 5.0},)]),
    hold_file=st.sampled_from(["", HOLD]),
)
SHARED: Final = st.sampled_from(
    [["vm-0", "vm-1", "vm-2"], ["vm-2", "vm-1", "vm-0"], ["vm-1", "vm-0"], ["vm-1", "vm-2"], ["vm-0"]]
)
ONE: Final = st.just("a")
PLAIN: Final = st.fixed_dictionaries(
    {"EventType": st.just("Reboot"), "EventStatus": st.just("Scheduled")}
    | {"EventSource": st.sampled_from(["User", "User", "User", "Platform"])}
)
OPENINGS: Final = st.tuples(
    st.lists(
        st.one_of(
            happening("answers", MEMBERS, st.sampled_from(["503", "lost", "400"])),
            happening("holds", MEMBERS, st.sampled_from(["present", "unknown", "unknown"])),
            happening("disk_is", MEMBERS, st.just("full")),
        ),
        max_size=4,
    ),
    happening("announces", ONE, SHARED, st.just(900), PLAIN),
).map(lambda parts: [*parts[0], parts[1]])
"""Return the actions before the first event."""
APPROVING: Final = (
    happening("announces", st.sampled_from(["a", "b"]), SHARED, st.just(900), PLAIN),
    happening("changes", ONE, st.fixed_dictionaries({"Resources": SHARED}), st.just(False)),
    happening("changes", ONE, st.sampled_from([{"Description": "One."}, {"Description": "Other."}]), st.booleans()),
    happening("is_over", ONE),
    happening("shows_twins", st.booleans()),
    happening("source_is", MEMBERS, st.sampled_from(["fine", "timeout", "old"]), st.sampled_from([0, 0, 6, -9])),
    happening("answers", MEMBERS, st.sampled_from(["200", "503", "503", "lost", "refused"])),
    happening("disk_is", MEMBERS, st.sampled_from(["", "full", "full"])),
    happening("starts_without_its_disk", MEMBERS, AWAY) | happening("disk_is", MEMBERS, st.just("")),
    happening("holds", MEMBERS, st.sampled_from(["absent", "present", "unknown"])),
    happening("is_doomed", MEMBERS, st.sampled_from(["commit", "committed", "post", "posted"]), st.integers(1, 2)),
    happening("is_killed", MEMBERS, AWAY, st.booleans(), st.just(0.0)),
    happening("clock_is_set", MEMBERS, st.sampled_from([-3600.0, -4.0, 4.0, 4.0, 3600.0])),
    happening("freezes", MEMBERS, st.sampled_from([1.0, 9.0]), st.booleans()),
)


@settings(max_examples=examples(60))
@given(WILLING, OPENINGS, st.integers(2, 3), scenarios(*APPROVING))
def test_a_fleet_approves_exactly_what_is_due(
    setup: oracle.PolicySetup, opening: list[Happening], size: int, scenario: Scenario
) -> None:
    """As above; most faults are rejections, crashes around the POST, clock changes, takeovers, and full disks."""
    recorded(setup, size, False, [(happened, (2, 1.0)) for happened in opening] + scenario)


# -- random scenarios with many records

TELLING: Final = (
    happening("announces", IDENTS, SHARED, st.just(900), FIELDS),
    happening("changes", IDENTS, CHANGES, st.booleans()),
    happening("changes", IDENTS, CHANGES, st.booleans()),
    happening("moves", IDENTS, st.sampled_from(["Started", "Scheduled"]), st.booleans()),
    happening("is_over", IDENTS),
    happening("disk_is", MEMBERS, st.sampled_from(["", "full", "gone"])),
    happening("starts_without_its_disk", MEMBERS, AWAY) | happening("disk_is", MEMBERS, st.just("")),
    happening("backend_is", MEMBERS, st.integers(0, 1), st.sampled_from(["fine", "down", "picky", "half", "mute"])),
    happening("is_doomed", MEMBERS, st.sampled_from(BOUNDARIES), st.integers(1, 3)),
    happening("is_killed", MEMBERS, AWAY, st.booleans(), st.just(0.0)),
)


@settings(max_examples=examples(40))
@given(st.just(oracle.PolicySetup(rules=DEFAULT)), st.integers(1, 2), st.booleans(), scenarios(*TELLING))
def test_a_fleet_delivers_every_record_once(
    setup: oracle.PolicySetup, size: int, everything: bool, scenario: Scenario
) -> None:
    """As above; most faults are changes, crashes, and backends and disks that fail now and then."""
    recorded(setup, size, everything, scenario)
