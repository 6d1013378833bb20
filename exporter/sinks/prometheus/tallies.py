"""Counters and histograms that facts bump and a scrape reads, from any thread.

The client library's own `Counter` and `Histogram` stamp exemplars with the clock of the process and add `_created`
series unless a switch for the whole process is turned. These few lines need neither, and their label sets exist at 0
from birth: a counter that is born at 1 is invisible to `increase()`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

from exporter.sinks.prometheus.catalogue import BY_NAME

Labels = tuple[str, ...]


class Tally:
    """One counter family. `labels` are all label sets that it has from the start."""

    def __init__(self, name: str, labels: Iterable[Labels] = ((),)) -> None:
        self._family = BY_NAME[name]
        self._lock = Lock()
        self._values: dict[Labels, float] = dict.fromkeys(labels, 0.0)

    def add(self, *labels: str, amount: float = 1.0) -> None:
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def collect(self) -> Metric:
        family = self._family
        metric = CounterMetricFamily(family.full_name, family.help, labels=family.labels)
        with self._lock:
            values = list(self._values.items())
        for labels, value in values:
            metric.add_metric(labels, value)
        return metric


@dataclass(slots=True)
class _Series:
    counts: list[int]
    exemplars: list[Exemplar | None]
    total: float = 0.0


class Spread:
    """One histogram family. `labels` are all label sets that it has from the start."""

    def __init__(self, name: str, labels: Iterable[Labels] = ((),)) -> None:
        self._family = BY_NAME[name]
        self._bounds = (*self._family.buckets, math.inf)
        self._names = (*map(str, self._family.buckets), "+Inf")
        self._lock = Lock()
        self._series = {key: self._new() for key in labels}

    def _new(self) -> _Series:
        return _Series([0] * len(self._bounds), [None] * len(self._bounds))

    def observe(self, *labels: str, seconds: float, exemplar: Exemplar | None = None) -> None:
        """Count one observation. A negative one (clocks differ) counts as 0, or the sum would look like a restart."""
        seconds = max(0.0, seconds)
        place = bisect_left(self._bounds, seconds)
        with self._lock:
            series = self._series.setdefault(labels, self._new())
            series.counts[place] += 1
            series.total += seconds
            if exemplar is not None:
                series.exemplars[place] = exemplar

    def collect(self) -> Metric:
        family = self._family
        metric = HistogramMetricFamily(family.full_name, family.help, labels=family.labels)
        with self._lock:
            found = [(key, list(s.counts), list(s.exemplars), s.total) for key, s in self._series.items()]
        for key, counts, exemplars, total in found:
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            below = 0
            for name, count, exemplar in zip(self._names, counts, exemplars, strict=True):
                below += count
                buckets.append((name, below) if exemplar is None else (name, below, exemplar))
            metric.add_metric(key, buckets, total)
        return metric
