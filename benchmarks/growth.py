"""Detect growth of a process that repeats the same work, from one sample for each cycle.

Memory in use is judged by its slope, because a leak grows with the work: the median of the slopes between any two
cycles (Theil-Sen), which outliers don't change, plus three standard errors. A run passes if this sum is below the
limit. A run that is too short to show this fails.

Other values (free memory that is kept, threads, descriptors, disk) are judged by their minimum: the minimum of the last
quarter is compared with that of the second quarter.
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
"""Bytes in use for each cycle. A cycle has three failures and two maintenance events: more than a VM has in a day."""
LEAKED_BLOCKS: Final = 64
"""Python objects for each cycle, which has about 120 polls."""
ERRORS: Final = 3.0
RSS_GROWTH: Final = 4 * MIB
"""Growth of the RSS without free memory that `malloc` keeps."""
RSS_MOST: Final = 128 * MIB
"""Maximum RSS: a third of the limit in deploy/."""
DISK_GROWTH: Final = 4 * MIB
"""Growth of SQLite's journal. It grows in steps up to this size if a reader blocks a checkpoint."""
LEAST_CYCLES: Final = 12


@dataclass(frozen=True, slots=True)
class Sample:
    """One cycle: the minimum of memory in use, and the process and its disk at the end, without failures."""

    usage: Usage
    disk: int
    used: int
    blocks: int
    kept: int


@dataclass(frozen=True, slots=True)
class Slope:
    """The growth of a value for each cycle, and its standard error."""

    each: float
    error: float

    @property
    def most(self) -> float:
        """The upper bound of the growth."""
        return self.each + ERRORS * self.error

    @property
    def grows(self) -> bool:
        return self.each - ERRORS * self.error > 0


def slope(values: Sequence[float]) -> Slope:
    """Return the slope of at least three values at equal distances."""
    pairs = combinations(enumerate(values), 2)
    each = statistics.median((after - before) / (later - earlier) for (earlier, before), (later, after) in pairs)
    rest = [value - each * number for number, value in enumerate(values)]
    middle = statistics.median(rest)
    deviation = 1.4826 * statistics.median(abs(value - middle) for value in rest)
    return Slope(each, deviation * (12 / len(values) ** 3) ** 0.5)


def judge(samples: Sequence[Sample], report: Callable[[str], None] = print) -> bool:
    """Return whether the samples show that nothing grows, and report each value."""
    if len(samples) < LEAST_CYCLES:
        report(f"WRONG: {len(samples)} cycles are too few to detect growth; run it for some minutes")
        return False
    _report_progress(samples, report)
    warm = samples[len(samples) // 4 :]
    fine = [
        _grows_slowly("bytes in use", [sample.used for sample in warm], LEAK, report),
        _grows_slowly("objects", [sample.blocks for sample in warm], LEAKED_BLOCKS, report),
        _stays_level("RSS without what malloc keeps", [s.usage.rss - s.kept for s in samples], RSS_GROWTH, report),
        _stays_level("threads", [sample.usage.threads for sample in samples], 1, report),
        _stays_level("descriptors", [sample.usage.descriptors for sample in samples], 3, report),
        _stays_level("bytes on disk", [sample.disk for sample in samples], DISK_GROWTH, report),
    ]
    most = max(sample.usage.rss for sample in samples)
    if most > RSS_MOST:
        report(f"WRONG: RSS is {most / MIB:.1f} MiB, the limit is {RSS_MOST / MIB:.0f}")
    return all(fine) and most <= RSS_MOST


def _grows_slowly(what: str, values: Sequence[float], allowed: float, report: Callable[[str], None]) -> bool:
    found = slope(values)
    text = f"{what}: {found.each:+,.0f} per cycle, at most {found.most:+,.0f}; the limit is {allowed:,.0f}"
    if found.most < allowed:
        report(text)
        return True
    report(f"WRONG: {text}: {'it grows' if found.grows else 'the run is too short to exclude growth'}")
    return False


def _stays_level(what: str, values: Sequence[float], allowed: float, report: Callable[[str], None]) -> bool:
    quarter = len(values) // 4
    before, after = min(values[quarter : 2 * quarter]), min(values[-quarter:])
    text = f"{what}: {before:,.0f} in the second quarter, {after:,.0f} in the last; the limit is {allowed:,.0f} more"
    report(text if after - before <= allowed else f"WRONG: {text}")
    return after - before <= allowed


def _report_progress(samples: Sequence[Sample], report: Callable[[str], None]) -> None:
    """Report the medians of each eighth of the run."""
    report("        RSS MiB   kept by malloc   in use     objects   threads   descriptors   disk MiB   CPU of a core")
    for number in range(8):
        part = samples[number * len(samples) // 8 : (number + 1) * len(samples) // 8 + 1]
        first, last = part[0].usage, part[-1].usage
        cpu = (last.running - first.running) / max(last.at - first.at, 1e-9)
        rss, kept, used, blocks, threads, descriptors, disk = (
            statistics.median(values) for values in zip(*map(_values, part), strict=True)
        )
        report(
            f"  {number + 1}/8{rss / MIB:>10.1f}{kept / MIB:>17.1f}{used / MIB:>9.2f}{blocks:>12,.0f}{threads:>10.0f}"
            f"{descriptors:>14.0f}{disk / MIB:>11.2f}{cpu:>16.1%}"
        )


def _values(sample: Sample) -> tuple[float, ...]:
    usage = sample.usage
    return usage.rss, sample.kept, sample.used, sample.blocks, usage.threads, usage.descriptors, sample.disk
