"""A scale set in a random world: several agents over one platform, each with its own faults, crashes and clocks.

What reaches the platform and the backends is judged by `fleet_reading`, which shares nothing with the code.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.turn import Options
from tests import oracle
from tests.effort import LONG, MEMORY, examples
from tests.fleet_edges import BOUNDARIES
from tests.fleet_world import Fleet
from tests.test_invariants import DEFAULT, GENEROUS, HOLD, LOOKS, RULES, Files, policy_of

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


def happening(name: str, *arguments: Any) -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
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
    oracle.House,
    mode=st.sampled_from(["enforce"] * 8 + ["dry-run"]),
    coordination=st.sampled_from(["leader", "leader", "any", "single"]),
    takeover_after=st.sampled_from([2.0, 10.0, None]),
    rules=st.lists(GENEROUS | RULES, max_size=2).map(lambda rules: tuple(rules) or DEFAULT),
    file=st.builds(Files, st.integers(0, 2)),
    hold_file=st.sampled_from(["", HOLD]),
    conflict=st.sampled_from([False] * 9 + [True]),
)
STORIES: Final = st.lists(st.tuples(st.one_of(*PLATFORM, *TROUBLE), LOOKS), min_size=6, max_size=60 if LONG else 30)


@settings(max_examples=examples(120))
@given(HOMES, st.integers(1, 3), st.booleans(), STORIES)
def test_a_fleet_in_any_weather_tells_all_and_approves_nothing_wrong(
    house: oracle.House, size: int, everything: bool, story: list[tuple[tuple[str, tuple[Any, ...]], Any]]
) -> None:
    """Whatever breaks: every transition reaches every destination in order and under one id, no POST is one that a
    second reading holds, or too soon, out of turn, after a 200 or not on disk, and what is due is approved at last."""
    options = Options(policy_of(house), all_events=everything)
    with tempfile.TemporaryDirectory(prefix="azse-fleet-", dir=MEMORY) as root:
        fleet = Fleet(house, options, size, Path(root))
        try:
            for (name, arguments), (often, after, *_) in story:
                fleet.happens(name, arguments)
                fleet.runs(often, after)
            fleet.comes_to_rest()
        finally:
            fleet.ends()
