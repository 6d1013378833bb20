"""Detection of growth in the soak test, on generated samples. `make -C tests soak` runs it, not `make test`."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from benchmarks.growth import KIB, LEAK, LEAKED_BLOCKS, MIB, RSS_GROWTH, Sample, judge, slope
from benchmarks.usage import Usage

Grown = Callable[[int], dict[str, int]]


def samples(count: int, grown: Grown = lambda _: {}, seed: int = 1) -> list[Sample]:
    """Return realistic cycles: memory in use varies by a twentieth, and malloc keeps more in steps."""
    chance = random.Random(seed)  # noqa: S311  # noise, not a secret
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
def test_memory_kept_by_malloc_is_not_growth(seed: int) -> None:
    """Noise and memory that malloc keeps pass after ten minutes of cycles."""
    reported: list[str] = []
    assert judge(samples(50, seed=seed), reported.append), reported


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
def test_growth_is_detected(what: str, seed: int) -> None:
    """Each kind of growth fails the run and is reported by name."""
    reported: list[str] = []
    assert not judge(samples(50, GROWING[what], seed), reported.append)
    assert sum(line.startswith("WRONG") for line in reported) == 1, reported


def test_short_runs_fail() -> None:
    """A run without enough cycles to exclude a leak fails."""
    for count in (0, 11, 13):
        reported: list[str] = []
        assert not judge(samples(count), reported.append)
        assert any("too few" in line or "too short" in line for line in reported)


def test_slope_ignores_outliers() -> None:
    """The slope of a line is exact, even if a fifth of its points are outliers."""
    assert slope([3.0 * number for number in range(10)]).each == 3.0
    assert slope([3.0 * number + (1e9 if number % 5 == 0 else 0) for number in range(40)]).each == pytest.approx(3.0)
