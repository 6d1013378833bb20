"""The benchmarks run. What they measure is theirs to print: no figure is asserted here."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import weighed
from benchmarks.agent import Agent, Usage, metadata_service, usage
from benchmarks.drain import backlog, fill
from benchmarks.fleet import ANNOUNCED_AFTER, Fleet, name, story
from benchmarks.growth import KIB, LEAK, LEAKED_BLOCKS, MIB, RSS_GROWTH, Sample, judge, slope
from benchmarks.peers import Peers
from benchmarks.reaction import of_agent, of_bare_loop
from exporter.outbox.store import Outbox


def test_reactions_are_measured_for_the_agent_and_the_bare_loop() -> None:
    """Each change gives one time, of both kinds of reader."""
    assert len(of_bare_loop(2)) == 2
    assert len(of_agent(2, outputs=False)) == 2


def test_only_the_leader_of_a_fleet_approves_and_its_successor_after_its_death(tmp_path: Path) -> None:
    """The fleet of the benchmarks is real: one POST, by the first VM alive, not before its turn."""
    scenario = story(5, 1, shared=True)
    for dead, first, earliest in (((), 0, 0.0), ((0, 1), 2, 10.0)):
        folder = tmp_path / name(first)
        folder.mkdir()
        fleet = Fleet(folder, scenario, takeover_after=5.0, dead=dead)
        fleet.run(16)
        fleet.close()
        ((at, vm, _),) = fleet.platform.posts
        assert vm == name(first)
        assert at - ANNOUNCED_AFTER >= earliest


def test_the_peers_of_the_benchmarks_answer_and_end() -> None:
    """The process that stands for both destinations starts, tells what it received, and ends."""
    with Peers() as peers:
        assert peers.copies() == ({}, {})
        assert usage(peers.pid).threads >= 1


def test_a_backlog_is_filled_as_the_agent_would(tmp_path: Path) -> None:
    """All records of a backlog wait in the outbox, in order."""
    path = tmp_path / "outbox.db"
    fill(path, "otlp", 12)
    outbox = Outbox(path, 1 << 20, ("otlp",))
    assert outbox.queues()["otlp"].records == 12
    assert [queued.record.id for queued in outbox.next("otlp", 5)] == [record.id for record in backlog(5)]
    outbox.close()
    assert usage(os.getpid()).rss > 0


# -- whether something grows

Grown = Callable[[int], dict[str, int]]


def samples(count: int, grown: Grown = lambda _: {}, seed: int = 1) -> list[Sample]:
    """Cycles as they were measured: what is in use goes up and down by a twentieth, malloc keeps more by steps."""
    chance = random.Random(seed)  # noqa: S311  # weather, no secret
    found = []
    for number in range(count):
        kept = (6 + 6 * (number > count // 3) + 6 * (number > count // 2)) * MIB
        values = {"rss": 52 * MIB + kept, "threads": 9, "descriptors": 20, "disk": 5 * MIB, "kept": kept}
        values |= {"used": 13 * MIB + chance.randint(-600, 600) * KIB, "blocks": 251_000 + chance.randint(-400, 400)}
        for word, more in grown(number).items():
            values[word] += more
        of_process = {"at": 12.0 * number, "cpu": 0.0, "running": 0.1 * number, "peak_rss": 0}
        of_process |= {name: values.pop(name) for name in ("rss", "threads", "descriptors")}
        found.append(Sample(Usage(**of_process), **values))  # type: ignore[arg-type]  # one dict holds seconds and bytes
    return found


@pytest.mark.parametrize("seed", range(20))
def test_what_malloc_keeps_is_no_growth(seed: int) -> None:
    """What goes up and down and what malloc keeps for later passes, after ten minutes' worth of cycles."""
    said: list[str] = []
    assert judge(samples(50, seed=seed), said.append), said


GROWING: dict[str, Grown] = {
    "bytes": lambda cycle: {"used": cycle * 2 * LEAK, "rss": cycle * 2 * LEAK},
    "objects": lambda cycle: {"blocks": cycle * 2 * LEAKED_BLOCKS},
    "unknown to malloc": lambda cycle: {"rss": cycle * 3 * RSS_GROWTH // 50},
    "threads": lambda cycle: {"threads": cycle // 10},
    "descriptors": lambda cycle: {"descriptors": cycle // 5},
    "disk": lambda cycle: {"disk": cycle * MIB // 5},
    "far too much": lambda _: {"rss": 100 * MIB},
}


@pytest.mark.parametrize("what", GROWING)
@pytest.mark.parametrize("seed", range(3))
def test_growth_is_found(what: str, seed: int) -> None:
    """Each kind of growth fails the run and is named."""
    said: list[str] = []
    assert not judge(samples(50, GROWING[what], seed), said.append)
    assert sum(line.startswith("WRONG") for line in said) == 1, said


def test_a_run_too_short_shows_nothing() -> None:
    """Without enough cycles to show that nothing leaks, a run does not pass."""
    for count in (0, 11, 13):
        said: list[str] = []
        assert not judge(samples(count), said.append)
        assert any("too few" in line or "too short" in line for line in said)


def test_a_slope_is_not_moved_by_odd_cycles() -> None:
    """Exact on a line, also with a fifth of it far away."""
    assert slope([3.0 * number for number in range(10)]).each == 3.0
    assert slope([3.0 * number + (1e9 if number % 5 == 0 else 0) for number in range(40)]).each == pytest.approx(3.0)


def test_the_agent_is_weighed_and_a_seeded_leak_seen(tmp_path: Path) -> None:
    """The agent tells what it has in use, and what it is made to lose is in that."""
    lines: list[dict[str, Any]] = []
    enough = threading.Event()

    def on_line(found: dict[str, Any]) -> None:
        if found.get("event") == weighed.WEIGHED:
            lines.append(found)
        if len(lines) == 3:
            enough.set()

    environ, program = {weighed.LEAK: str(8 * MIB)}, ("-m", "benchmarks.weighed")
    with (
        metadata_service() as service,
        Agent(tmp_path, service.url, environ=environ, program=program, on_line=on_line) as agent,
    ):
        agent.started()
        assert enough.wait(60)
        assert agent.stop()[0] == 0
    assert lines[2]["used"] - lines[1]["used"] > 7 * MIB
    assert lines[2]["blocks"] > 10_000
