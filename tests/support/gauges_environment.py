"""A source that notes the result of each poll on a `Sheet`, and the gauges that `/metrics` then has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import MetadataError
from exporter.sinks.prometheus.catalogue import PREFIX
from exporter.sinks.prometheus.sink import PrometheusSink
from tests.support.agent_environment import START, AgentEnvironment, Source
from tests.support.gauges_reading import Series, Sheet, put
from tests.support.metrics_reading import scraped

EVENTS: Final = (
    *("up", "last_poll_timestamp_seconds", "source_warming", "document_incarnation", "document_events", "events"),
    *("event_series_dropped", "event_info", "event_status", "event_not_before_timestamp_seconds", "event_resources"),
    *("event_advertised_duration_seconds", "event_first_seen_timestamp_seconds", "event_started_timestamp_seconds"),
    "event_approved_timestamp_seconds",
)
"""The families that a sheet calculates."""


def text_of(seconds: int) -> tuple[str, str]:
    """Return a time in both forms that Azure uses."""
    when = datetime.fromtimestamp(START + seconds, UTC)
    return f"{when:%a, %d %b %Y %H:%M:%S} GMT", f"{when:%Y-%m-%dT%H:%M:%SZ}"


TIMES: Final = {text: START + seconds for seconds in (-60, 5, 900, 86400) for text in text_of(seconds)}


class Watched(Source):
    """Notes the result of each poll, and each POST, on the sheet."""

    sheet: Sheet
    environment: AgentEnvironment
    number = 1
    broken = ""
    sheet_body = b""
    """The last input of the sheet."""

    def fetch(self) -> MetadataResponse:
        """Return a document or raise a failure, noted on the sheet."""
        if self.broken:
            self.sheet.fails(self.clock.wall)
            if self.broken == "html":
                return MetadataResponse(b"<html>", self.clock.mono, 0.01)
            raise MetadataError("timeout")
        answer = super().fetch()
        self.sheet_body = answer.body
        self.sheet.reads(answer.body, self.number, self.clock.wall, self.clock.mono, self.environment.identity.vm.name)
        return answer

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        """Send a POST, noted on the sheet if it was accepted."""
        super().approve(event_id, leave, left)
        self.sheet.is_accepted(event_id, self.clock.wall)


def families(sink: PrometheusSink, names: tuple[str, ...]) -> Series:
    """Return the samples of these families that a scraper reads."""
    wanted = {f"{PREFIX}{name}" for name in names}
    lines = [line for line in scraped(sink).splitlines(keepends=True) if line.startswith(tuple(wanted))]
    series: Series = {}
    for family in parse_text("".join(lines)):
        for sample in family.samples:
            if sample.name in wanted:
                put(series, sample.name.removeprefix(PREFIX), sample.value, **sample.labels)
    return series
