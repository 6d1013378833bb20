"""What the soak takes for growth, on made-up samples: run by `make bench`, not with the tests of the product."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from benchmarks.growth import KIB, LEAK, LEAKED_BLOCKS, MIB, RSS_GROWTH, Sample, judge, slope
from benchmarks.usage import Usage

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
