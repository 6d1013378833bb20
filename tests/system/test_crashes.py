"""The agent is killed with SIGKILL at every step and restarted until the scenario ends; the invariants must hold
then."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.support.agent_environment import DESTINATIONS
from tests.support.crash_scenario import APPROVED
from tests.support.effort import Tried, examples

pytestmark = pytest.mark.linux("forks a life for each crash")

SEED: Final = int(os.environ.get("CRASH_SEED", "20260304"))
RANDOM_SCENARIOS: Final = int(os.environ.get("CRASH_SCENARIOS", examples(8)))


class CrashScenarios:
    """The program of `crash_scenario`; runs one scenario at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crash_scenario"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *kills: int) -> dict[str, Any]:
        Tried.example(steps=len(kills))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"kills": kills}), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the program ended"
        recorded: dict[str, Any] = json.loads(answer)
        return recorded

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def scenarios() -> Iterator[CrashScenarios]:
    recorded = CrashScenarios()
    yield recorded
    recorded.close()


@pytest.fixture(scope="module")
def undisturbed(scenarios: CrashScenarios) -> dict[str, Any]:
    return scenarios.run()


def facts(sent: Sequence[Sequence[Any]]) -> dict[str, list[tuple[str, ...]]]:
    """Return the first copies of each subject's records in order of arrival, as kinds. An event that is canceled
    without a gap has `ended` if a restart was in between; how often an agent started isn't compared."""
    found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    seen = set()
    for record_id, kind, subject, words in sent:
        if record_id in seen or kind == "agent.started":
            continue
        seen.add(record_id)
        word = "ended" if kind == "canceled" else kind
        found[subject].append((word, *(str(each) for each in words)))
    return dict(found)


def check(recorded: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    """Assert the invariants of one scenario."""
    for name in DESTINATIONS:
        found = facts(recorded["sent"][name])
        assert found == facts(undisturbed["sent"][name]), "lost, doubled under another id, or out of order"
        copies = len(recorded["sent"][name]) - len({line[0] for line in recorded["sent"][name]})
        assert copies <= 3 * (recorded["lives"] - 1), "an acknowledged record was sent again without a crash"
    ids = {name: {line[0] for line in recorded["sent"][name]} for name in DESTINATIONS}
    assert ids["event_hubs"] == ids["otlp"]
    posts = recorded["posts"]
    assert {post[0] for post in posts} == set(APPROVED.values()), "an approval was lost, or one too many"
    for event_id, _, decided, accepted in posts:
        assert decided, f"{event_id} was POSTed before its decision was on disk"
        assert not accepted, f"{event_id} was POSTed after its 200 was on disk"
    for event_id in APPROVED.values():
        times = [at for found, at, _, _ in posts if found == event_id]
        assert all(later - earlier >= 5 for earlier, later in pairwise(times)), "sooner than its backoff"
        assert len(times) <= recorded["lives"]
    assert not [name for name in recorded["left"] if ".corrupt-" in name]


def test_scenario_without_a_crash_is_recorded_once(undisturbed: dict[str, Any]) -> None:
    """Without a crash each approval is one POST, each record is sent once, and every kind occurs."""
    assert undisturbed["lives"] == 1
    assert [post[0] for post in undisturbed["posts"]] == list(APPROVED.values())
    for sent in undisturbed["sent"].values():
        assert len(sent) == len({line[0] for line in sent})
        assert {"scheduled", "updated", "started", "completed", "approval.decided"} <= {line[1] for line in sent}
        assert {"approval.accepted", "source.unavailable", "source.recovered"} <= {line[1] for line in sent}
    check(undisturbed, undisturbed)


def test_a_kill_at_any_boundary_loses_nothing(scenarios: CrashScenarios, undisturbed: dict[str, Any]) -> None:
    """No record is lost at the first and the last crossing of each boundary, and at each one around an approval."""
    trace: list[str] = undisturbed["trace"]
    points = {trace.index(name) + 1 for name in set(trace)}
    points |= {len(trace) - trace[::-1].index(name) for name in set(trace)}
    for index, name in enumerate(trace):
        if name.endswith("approve"):
            points |= set(range(index - 5, index + 8))
    assert len(points) >= 20
    for point in sorted(points):
        recorded = scenarios.run(point)
        assert recorded["lives"] == 2, point
        check(recorded, undisturbed)


def test_a_kill_at_any_second_loses_nothing(scenarios: CrashScenarios, undisturbed: dict[str, Any]) -> None:
    """The kills are spread evenly over the whole scenario."""
    boundaries = len(undisturbed["trace"])
    for point in range(3, boundaries, max(1, boundaries // 25)):
        check(scenarios.run(point), undisturbed)


def test_repeated_kills_lose_nothing(scenarios: CrashScenarios, undisturbed: dict[str, Any]) -> None:
    """Several crashes in one scenario, at random boundaries (CRASH_SEED, CRASH_SCENARIOS)."""
    chance = random.Random(SEED)  # noqa: S311  # where to crash is no secret
    boundaries = len(undisturbed["trace"])
    for number in range(RANDOM_SCENARIOS):
        kills = [chance.randint(1, boundaries) for _ in range(chance.randint(2, 6))]
        recorded = scenarios.run(*kills)
        try:
            check(recorded, undisturbed)
        except AssertionError as error:
            raise AssertionError(f"scenario {number}: kills {kills}: {error}") from error
