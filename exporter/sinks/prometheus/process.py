"""The process metrics that every exporter has, on Windows too: the client library reads them from /proc alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exporter.windows.system import ProcessUsage, process_usage


class WindowsProcessCollector(Collector):
    """`process_*` under the names that the client libraries give them. Nothing where `read` raises OSError."""

    def __init__(self, read: Callable[[], ProcessUsage] = process_usage) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        try:
            usage = self._read()
        except OSError:
            return
        yield GaugeMetricFamily("process_virtual_memory_bytes", "Virtual memory size in bytes.", usage.virtual_bytes)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory size in bytes.", usage.resident_bytes)
        yield GaugeMetricFamily(
            "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", usage.start_time
        )
        yield CounterMetricFamily(
            "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", usage.cpu_seconds
        )


def register_process_metrics(registry: CollectorRegistry, platform: str = sys.platform) -> None:
    """Add the metrics of this process to a registry."""
    if platform == "win32":
        registry.register(WindowsProcessCollector())
    else:
        ProcessCollector(registry=registry)
