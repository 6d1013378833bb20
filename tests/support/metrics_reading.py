"""Reads the output of a sink, for the tests of `/metrics`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from exporter.core.snapshot import DESTINATIONS
from exporter.core.state import Instant
from exporter.sinks.prometheus.catalogue import PREFIX
from exporter.sinks.prometheus.sink import PrometheusSink
from tests.support.peers import need
from tests.support.statuses import NOON

RULES = ("user-initiated", "short-freeze")


parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families


def make_sink(now: datetime = NOON, destinations: Sequence[str] = DESTINATIONS) -> PrometheusSink:
    """Return a sink with the default rules' names and few reasons for failed polls, on a clock that doesn't move."""
    return PrometheusSink(
        "1.2.3",
        RULES,
        destinations=destinations,
        poll_failure_reasons=("timeout", "connect"),
        now=lambda: Instant(now),
        include_process_metrics=False,
        python_version="3.11.0",
    )


def scraped(sink: PrometheusSink, openmetrics: bool = False) -> str:
    """Return the text of `/metrics`."""
    return sink.render(openmetrics)[1].decode()


def samples(sink: PrometheusSink) -> list[Sample]:
    """Return every sample of `/metrics` in text format."""
    return [sample for family in parse_text(scraped(sink)) for sample in family.samples]


def value(sink: PrometheusSink, name: str, **labels: str) -> float | None:
    """Return the one sample with this name and exactly these labels; None if there is none."""
    values = [s.value for s in samples(sink) if s.name == PREFIX + name and s.labels == labels]
    assert len(values) <= 1
    return values[0] if values else None


def ids(sink: PrometheusSink, name: str) -> set[str]:
    """Return the events that have a series of this family."""
    return {s.labels["event_id"] for s in samples(sink) if s.name == PREFIX + name}


def lint(body: str) -> None:
    """Fail with promtool's findings about an exposition."""
    done = subprocess.run(
        [need("promtool"), "check", "metrics"], input=body, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
