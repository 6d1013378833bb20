"""The Prometheus output: gauges computed at scrape from the last published status, counters incremented by facts.

Any thread may publish, observe, or render. No event content causes an error: a value outside its closed set counts as
`other`, and external text is only used in labels of gauges, which are removed with their event.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Final, assert_never

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest as text_format
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector

from exporter.core import facts
from exporter.core.policy import Decision
from exporter.core.records import tag_label
from exporter.core.snapshot import Status
from exporter.core.state import CLOSING, Instant, Phase, Seen, StartedBy, Transition, TransitionKind
from exporter.sinks.prometheus import catalogue
from exporter.sinks.prometheus.catalogue import EVENT_SOURCES, EVENT_TYPES, OTHER
from exporter.sinks.prometheus.gauges import Samples, gauges_before_first_status, gauges_of, known_value, label_value
from exporter.sinks.reasons import REASONS as SEND_REASONS
from exporter.text.terminal import visible
from exporter.windows.system import ProcessUsage, process_usage

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_EXEMPLAR_ID: Final = 100
"""OpenMetrics allows an exemplar's labels 128 characters, names included; an EventId has at most 100."""
_ESCAPED: Final = frozenset('"\\{}')
_ASKED_AT_SCRAPE: Final = "web_config_reload_failures_total"


def _closed(words: Sequence[str]) -> tuple[str, ...]:
    return (*dict.fromkeys((*words, OTHER)),)


SEND_FAILURES: Final = _closed(SEND_REASONS)
DROP_REASONS: Final = _closed(("outbox-full", "outbox-unwritable", "outbox-corrupt", "rejected"))


_openmetrics: Callable[..., bytes] = openmetrics_exposition.generate_latest
if hasattr(openmetrics_exposition, "ALLOWUTF8"):  # older versions of the library have no escaping schemes
    # The default scheme tests each character of each name, which doubles the time of a scrape; these names need no
    # escaping in any scheme.
    _openmetrics = partial(_openmetrics, escaping=openmetrics_exposition.ALLOWUTF8)


class PrometheusSink(Collector):
    """The content of `/metrics`.

    `rules` and `destinations` are the configured names; other destinations have no series before their first count.
    `poll_failure_reasons` is the closed set of reasons of failed polls and approvals; other values count as `other`.
    `certificate_not_after` (POSIX seconds) and `config_reload_failures` are called at each scrape; the owner of the web
    server replaces them.
    """

    def __init__(
        self,
        version: str,
        rules: Sequence[str] = (),
        *,
        destinations: Sequence[str] = (),
        poll_failure_reasons: Sequence[str] = (),
        now: Callable[[], Instant] = lambda: Instant(datetime.now(UTC), time.monotonic()),
        include_process_metrics: bool = True,
        python_version: str = platform.python_version(),
    ) -> None:
        # Otherwise a PROMETHEUS_MULTIPROC_DIR set for another program would create files and lose the exemplars.
        values.ValueClass = values.MutexValue
        disable_created_metrics()  # type: ignore[no-untyped-call]  # `_created` doubles the series of the counters
        self.certificate_not_after: Callable[[], float | None] = lambda: None
        self.config_reload_failures: Callable[[], int] = lambda: 0
        self._now = now
        self._build = (label_value(version), python_version)
        self._status: Status | None = None
        self._rules = (*dict.fromkeys(rules),)
        self._failure_reasons = _closed(poll_failure_reasons)
        # Not in a registry of the library: `collect` yields them in the order of the catalogue.
        self._counters = {
            family.name: Counter(family.full_name, family.help, family.labels, registry=None)
            for family in catalogue.FAMILIES
            if family.type == "counter" and family.name != _ASKED_AT_SCRAPE
        }
        self._histograms = {
            family.name: Histogram(family.full_name, family.help, family.labels, registry=None, buckets=family.buckets)
            for family in catalogue.FAMILIES
            if family.type == "histogram"
        }
        self._start_at_zero(destinations)
        self._registry = CollectorRegistry(auto_describe=True)
        self._registry.register(self)
        if include_process_metrics:
            process = WindowsProcessCollector() if sys.platform == "win32" else ProcessCollector(registry=None)
            self._registry.register(process)

    def _start_at_zero(self, destinations: Sequence[str]) -> None:
        """Create every series of the families that are not rare."""
        reasons = {
            "poll_failures_total": self._failure_reasons,
            "destination_send_failures_total": SEND_FAILURES,
            "destination_records_dropped_total": DROP_REASONS,
        }
        for family in catalogue.FAMILIES:
            metric = self._counters.get(family.name) or self._histograms.get(family.name)
            if metric is None or not family.labels or family.rare:
                continue
            words = {**catalogue.LABEL_VALUES, "destination": destinations, "reason": reasons.get(family.name, ())}
            for labels in product(*(words[label] for label in family.labels)):
                metric.labels(*labels)

    # -- the exposition

    def publish(self, status: Status) -> None:
        """Set the status for later scrapes."""
        self._status = status

    def render(self, openmetrics: bool) -> tuple[str, bytes]:
        """Return the content type and the body of `/metrics`."""
        if openmetrics:
            return OPENMETRICS, _openmetrics(self._registry)
        return TEXT, text_format(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every family in the order of the catalogue, including those without series."""
        # Counters first: if another thread publishes meanwhile, the gauges already include everything counted here.
        counted = {name: list(metric.collect()) for name, metric in (self._counters | self._histograms).items()}
        samples = self._gauges()
        for family in catalogue.FAMILIES:
            if family.name in counted:
                yield from counted[family.name]
            elif family.name == _ASKED_AT_SCRAPE:
                yield CounterMetricFamily(family.full_name, family.help, value=self.config_reload_failures())
            else:
                yield _gauge_or_info(self._with_tags(family), samples)

    def _with_tags(self, family: catalogue.Family) -> catalogue.Family:
        """Return the family, for `vm_info` with a label for each published tag."""
        if family.name != "vm_info" or self._status is None or not self._status.vm.tags:
            return family
        return replace(family, labels=(*family.labels, *(tag_label(name) for name, _ in self._status.vm.tags)))

    def _gauges(self) -> Samples:
        status = self._status
        samples = dict(gauges_before_first_status() if status is None else gauges_of(status, self._now()))
        samples["build_info"] = [(self._build, 1.0)]
        not_after = self.certificate_not_after()
        if not_after is not None:
            samples["web_certificate_not_after_timestamp_seconds"] = [((), not_after)]
        return samples

    # -- counting

    def observe(self, fact: facts.Fact) -> None:  # noqa: PLR0912  # one case for each type of fact
        """Count one fact."""
        match fact:
            case facts.Polled():
                self._count("polls_total")
                self._measure("poll_duration_seconds", seconds=fact.duration)
                if fact.failure:
                    self._count("poll_failures_total", known_value(fact.failure, self._failure_reasons))
            case facts.DocumentChanged():
                self._count("document_changes_total")
            case facts.AnomalyObserved():
                self._count("document_anomalies_total", fact.anomaly)
            case facts.UnknownValueObserved():
                if fact.field in catalogue.FIELDS:
                    self._count("unknown_values_total", fact.field)
            case facts.EventTransitioned():
                self._transitioned(fact.transition)
            case facts.DecisionMade():
                self._decided(fact.decision)
            case facts.ApprovalRequested():
                self._count("approval_requests_total")
            case facts.ApprovalFailed():
                self._count("approval_request_failures_total", known_value(fact.reason, self._failure_reasons))
            case facts.ApprovalOutdated():
                self._count("approvals_outdated_total")
            case facts.ApprovalPostponed():
                self._count("approvals_postponed_total")
            case facts.InterruptionObserved():
                self._interrupted(fact)
            case facts.RecordsDropped():
                self.dropped(fact.destination, fact.reason, fact.records)
            case _:
                assert_never(fact)

    def sent(self, destination: str, records: int, duration: float) -> None:
        """Count a send: the destination acknowledged this many records after `duration` seconds."""
        self._count("destination_sends_total", destination)
        self._count("destination_records_sent_total", destination, amount=records)
        self._measure("destination_send_duration_seconds", destination, seconds=duration)

    def send_failed(self, destination: str, reason: str) -> None:
        """Count a failed send to a destination; `reason` is one of `sinks.reasons`."""
        self._count("destination_sends_total", destination)
        self._count("destination_send_failures_total", destination, known_value(reason, SEND_FAILURES))

    def dropped(self, destination: str, reason: str, records: int) -> None:
        """Count records that were dropped undelivered."""
        self._count("destination_records_dropped_total", destination, known_value(reason, DROP_REASONS), amount=records)

    def _transitioned(self, transition: Transition) -> None:
        kind, tracked = transition.kind, transition.tracked
        event_type, event_id = known_value(tracked.event_type, EVENT_TYPES), tracked.event.event_id
        if is_first_counted(transition):
            self._count("events_observed_total", event_type, known_value(tracked.event.source, EVENT_SOURCES))
        not_before = tracked.first_not_before if kind is TransitionKind.SCHEDULED else None
        if not_before is not None and tracked.seen_before is Seen.UNBROKEN:
            notice = (not_before - tracked.first_seen.wall).total_seconds()
            self._measure("notice_seconds", event_type, seconds=notice, event_id=event_id)
        if kind is TransitionKind.STARTED:
            self._count("events_started_total", event_type, (tracked.started_by or StartedBy.UNKNOWN).value)
        if kind in CLOSING:
            self._count("events_closed_total", event_type, kind.value)
        seconds = tracked.started_duration_seconds if kind is TransitionKind.COMPLETED else None
        if seconds is not None and tracked.observed_since_started:
            self._measure("started_duration_seconds", event_type, seconds=seconds, event_id=event_id)

    def _decided(self, decision: Decision) -> None:
        rule = decision.rule if not decision.rule or decision.rule in self._rules else OTHER
        event_type = known_value(decision.now.tracked.event_type, EVENT_TYPES)
        self._count("approval_decisions_total", event_type, decision.verdict.value, decision.reason.value, rule)

    def _interrupted(self, interruption: facts.InterruptionObserved) -> None:
        """Measure an interruption; ignore a clock that was set back."""
        kind, seconds = interruption.kind, interruption.seconds
        if kind not in catalogue.INTERRUPTION_KINDS or seconds <= 0:
            return
        attributed = "true" if interruption.event_id else "false"
        family = "observed_interruption_seconds"
        self._measure(family, kind, attributed, seconds=seconds, event_id=interruption.event_id)

    def _count(self, name: str, *labels: str, amount: float = 1.0) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def _measure(self, name: str, *labels: str, seconds: float, event_id: str = "") -> None:
        """Add one observation to a histogram, with the event as its exemplar.

        A negative value (from differing clocks) counts as 0, because readers interpret a decreasing sum as a restart.
        """
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(max(0.0, seconds), _exemplar(event_id))


def is_first_counted(transition: Transition) -> bool:
    """Return whether this transition is the first counted one of its event.

    An event whose status was always unknown is counted when it ends.
    """
    never_understood = transition.kind is TransitionKind.ENDED and transition.tracked.phase is Phase.UNKNOWN
    return transition.newly_seen or never_understood


def _exemplar(event_id: str) -> dict[str, str] | None:
    """Return the exemplar of an event; None without an id, or if it needs escaping, which readers don't support."""
    if not event_id or not visible(event_id) or not _ESCAPED.isdisjoint(event_id):
        return None
    return {"event_id": event_id[:MAX_EXEMPLAR_ID]}


def _gauge_or_info(family: catalogue.Family, samples: Samples) -> Metric:
    series = samples.get(family.name, ())
    if family.type == "info":
        info = InfoMetricFamily(family.full_name.removesuffix("_info"), family.help, labels=family.labels)
        for labels, _ in series:
            info.add_metric(labels, {})
        return info
    gauge = GaugeMetricFamily(family.full_name, family.help, labels=family.labels)
    for labels, value in series:
        gauge.add_metric(labels, value)
    return gauge


class WindowsProcessCollector(Collector):
    """The `process_*` metrics on Windows, with the names of the client libraries, which read only /proc.

    Yields nothing if `read` raises OSError.
    """

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
