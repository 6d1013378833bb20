"""Whether a process that does the same work over and over grows: by one sample for each cycle of that work.

What is in use is judged by its slope, since a leak grows with the work: the median of the slopes between any two
cycles (Theil and Sen), which a few odd cycles do not move, and three times its standard error on top. A run passes when
that is less than what is allowed: when it was shown that no such leak is there. One too short to show it does not pass.
What else is held (memory that nobody uses, threads, descriptors, disk) is judged by its lowest values, those of the
last quarter against the second.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from benchmarks.usage import Usage

KIB: Final = 1 << 10
MIB: Final = 1 << 20
LEAK: Final = 32 * KIB
"""Bytes in use for each cycle. A cycle is three disturbances and two maintenances: no VM sees that in a day."""
LEAKED_BLOCKS: Final = 64
"""Objects of Python for each cycle, which has some hundred and twenty polls."""
ERRORS: Final = 3.0
RSS_GROWTH: Final = 4 * MIB
"""Of what `malloc` does not keep for later."""
RSS_MOST: Final = 128 * MIB
"""Whatever it is made of: a third of the limit that deploy/ ships."""
DISK_GROWTH: Final = 4 * MIB
"""What SQLite's journal may keep: it grows by steps, when a reader is in the way of a checkpoint, and up to this."""
LEAST_CYCLES: Final = 12


@dataclass(frozen=True, slots=True)
class Sample:
    """One cycle: the least that was in use during it, and the process and its disk at its end, when all was well."""

    usage: Usage
    disk: int
    used: int
    blocks: int
    kept: int


@dataclass(frozen=True, slots=True)
class Slope:
    """By how much something grows for each cycle, and how sure that is."""

    each: float
    error: float

    @property
    def most(self) -> float:
        """It is not more than this, as good as surely."""
        return self.each + ERRORS * self.error

    @property
    def grows(self) -> bool:
        return self.each - ERRORS * self.error > 0


def slope(values: Sequence[float]) -> Slope:
    """Of values at equal distances; at least three of them."""
    pairs = combinations(enumerate(values), 2)
    each = statistics.median((after - before) / (later - earlier) for (earlier, before), (later, after) in pairs)
    rest = [value - each * number for number, value in enumerate(values)]
    middle = statistics.median(rest)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in rest)
    return Slope(each, deviation * (12 / len(values) ** 3) ** 0.5)


def judge(samples: Sequence[Sample], say: Callable[[str], None] = print) -> bool:
    """Whether it was shown that nothing grows; says why."""
    if len(samples) < LEAST_CYCLES:
        say(f"WRONG: {len(samples)} cycles are too few to see growth: give it a few minutes")
        return False
    _course(samples, say)
    warm = samples[len(samples) // 4 :]
    fine = [
        _leaks_less("bytes in use", [sample.used for sample in warm], LEAK, say),
        _leaks_less("objects", [sample.blocks for sample in warm], LEAKED_BLOCKS, say),
        _held("RSS without what malloc keeps", [s.usage.rss - s.kept for s in samples], RSS_GROWTH, say),
        _held("threads", [sample.usage.threads for sample in samples], 1, say),
        _held("descriptors", [sample.usage.descriptors for sample in samples], 3, say),
        _held("bytes on disk", [sample.disk for sample in samples], DISK_GROWTH, say),
    ]
    most = max(sample.usage.rss for sample in samples)
    if most > RSS_MOST:
        say(f"WRONG: an RSS of {most / MIB:.1f} MiB, {RSS_MOST / MIB:.0f} are allowed")
    return all(fine) and most <= RSS_MOST


def _leaks_less(what: str, values: Sequence[float], allowed: float, say: Callable[[str], None]) -> bool:
    found = slope(values)
    text = f"{what}: {found.each:+,.0f} per cycle, surely not more than {found.most:+,.0f}; {allowed:,.0f} are allowed"
    if found.most < allowed:
        say(text)
        return True
    say(f"WRONG: {text}: {'it grows' if found.grows else 'too short a run to show it'}")
    return False


def _held(what: str, values: Sequence[float], allowed: float, say: Callable[[str], None]) -> bool:
    quarter = len(values) // 4
    before, after = min(values[quarter : 2 * quarter]), min(values[-quarter:])
    text = f"{what}: {before:,.0f} in the second quarter, {after:,.0f} in the last; {allowed:,.0f} more are allowed"
    say(text if after - before <= allowed else f"WRONG: {text}")
    return after - before <= allowed


def _course(samples: Sequence[Sample], say: Callable[[str], None]) -> None:
    """The whole of it in eighths, by medians."""
    say("        RSS MiB   kept by malloc   in use     objects   threads   descriptors   disk MiB   CPU of a core")
    for number in range(8):
        part = samples[number * len(samples) // 8 : (number + 1) * len(samples) // 8 + 1]
        first, last = part[0].usage, part[-1].usage
        cpu = (last.running - first.running) / max(last.at - first.at, 1e-9)
        rss, kept, used, blocks, threads, descriptors, disk = (
            statistics.median(values) for values in zip(*map(_figures, part), strict=True)
        )
        say(
            f"  {number + 1}/8{rss / MIB:>10.1f}{kept / MIB:>17.1f}{used / MIB:>9.2f}{blocks:>12,.0f}{threads:>10.0f}"
            f"{descriptors:>14.0f}{disk / MIB:>11.2f}{cpu:>16.1%}"
        )


def _figures(sample: Sample) -> tuple[float, ...]:
    usage = sample.usage
    return usage.rss, sample.kept, sample.used, sample.blocks, usage.threads, usage.descriptors, sample.disk
