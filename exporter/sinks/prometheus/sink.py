"""The Prometheus output: gauges computed at scrape from the last published status, counters bumped by facts.

Any thread may publish, bump or render. Nothing here fails because of what an event says: a word outside of its closed
set counts as `other`, and text from outside only ever stands in a label of a gauge that vanishes with its event.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import generate_latest as text_format
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from exporter.core import facts
from exporter.core.continuity import ANOMALIES
from exporter.core.facts import Fact
from exporter.core.policy import AFTER_A_RULE, BEFORE_A_RULE, Decision, Reason, Verdict
from exporter.core.snapshot import DESTINATIONS, Status
from exporter.core.state import CLOSING, Instant, Kind, Phase, Seen, Transition
from exporter.sinks.prometheus import catalogue
from exporter.sinks.prometheus.catalogue import EVENT_SOURCES, EVENT_TYPES, OTHER
from exporter.sinks.prometheus.gauges import Samples, before_the_first_status, label, state_of, word
from exporter.sinks.prometheus.tallies import Labels, Spread, Tally
from exporter.sinks.reasons import REASONS as SEND_REASONS

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_EXEMPLAR_ID: Final = 100
"""OpenMetrics allows an exemplar's labels 128 characters, names included; an EventId has at most 100."""
_ESCAPED: Final = frozenset('"\\{}')


def _closed(words: Sequence[str]) -> tuple[str, ...]:
    return (*dict.fromkeys((*words, OTHER)),)


SEND_FAILURES: Final = _closed(SEND_REASONS)
DROP_REASONS: Final = _closed(("outbox-full", "outbox-unwritable"))


def _openmetrics_format() -> Callable[[Collector], bytes]:
    """The library's encoder. Its default escaping walks each character of each name, which doubles the time of a
    scrape; our names need no escaping in any scheme, and libraries that know no schemes don't walk.
    """
    encode: Callable[..., bytes] = openmetrics_exposition.generate_latest
    scheme = getattr(openmetrics_exposition, "ALLOWUTF8", None)
    return partial(encode, escaping=scheme) if scheme else encode


_openmetrics: Final = _openmetrics_format()


def _now() -> Instant:
    return Instant(datetime.now(UTC), time.monotonic())


def _nothing() -> float | None:
    return None


def _none_failed() -> int:
    return 0


class PrometheusSink(Collector):
    """Everything that `/metrics` says.

    `rules` are the configured rules' names; `rule_event_types` may say which types each of them can match, which spares
    a fleet the series that can't happen. `poll_failure_reasons` are the words for what the metadata service does wrong,
    at a poll or at an approval; a word outside of them counts as `other`. `certificate_not_after` (seconds since the
    epoch) and `config_reload_failures` are asked at scrape; whoever serves the endpoint replaces them.
    """

    def __init__(
        self,
        version: str,
        rules: Sequence[str] = (),
        *,
        rule_event_types: Mapping[str, Collection[str]] | None = None,
        poll_failure_reasons: Sequence[str] = (),
        now: Callable[[], Instant] = _now,
        include_process_metrics: bool = True,
        python_version: str = platform.python_version(),
    ) -> None:
        self.certificate_not_after: Callable[[], float | None] = _nothing
        self.config_reload_failures: Callable[[], int] = _none_failed
        self._now = now
        self._build = (label(version), python_version)
        self._status: Status | None = None
        self._rules = (*dict.fromkeys(rules),)
        self._failure_reasons = _closed(poll_failure_reasons)
        self._tallies = {tally: Tally(tally, labels) for tally, labels in self._born(rule_event_types or {})}
        self._spreads = {
            "poll_duration_seconds": Spread("poll_duration_seconds"),
            "notice_seconds": Spread("notice_seconds", product(EVENT_TYPES)),
            "started_seconds": Spread("started_seconds", product(EVENT_TYPES)),
            "observed_interruption_seconds": Spread(
                "observed_interruption_seconds", product(catalogue.INTERRUPTION_KINDS, catalogue.BOOLEANS)
            ),
            "destination_send_duration_seconds": Spread("destination_send_duration_seconds", product(DESTINATIONS)),
        }
        self._registry = CollectorRegistry(auto_describe=True)
        self._registry.register(self)
        if include_process_metrics:
            ProcessCollector(registry=self._registry)

    def _born(self, rule_event_types: Mapping[str, Collection[str]]) -> Iterator[tuple[str, Iterable[Labels]]]:
        """Every counter that facts bump, with the label sets that exist from the start."""
        for name in ("polls_total", "document_changes_total", "approval_requests_total"):
            yield name, ((),)
        for name in ("approvals_outdated_total", "approvals_postponed_total"):
            yield name, ((),)
        yield "poll_failures_total", product(self._failure_reasons)
        yield "unknown_values_total", product(catalogue.FIELDS)
        yield "document_anomalies_total", product(ANOMALIES)
        yield "events_observed_total", product(EVENT_TYPES, EVENT_SOURCES)
        yield "events_started_total", product(EVENT_TYPES, catalogue.APPROVED_BY)
        yield "events_closed_total", product(EVENT_TYPES, catalogue.OUTCOMES)
        yield "approval_decisions_total", decision_labels(self._rules, rule_event_types)
        yield "approval_request_failures_total", product(self._failure_reasons)
        for name in ("destination_sends_total", "destination_records_sent_total"):
            yield name, product(DESTINATIONS)
        yield "destination_send_failures_total", product(DESTINATIONS, SEND_FAILURES)
        yield "destination_records_dropped_total", product(DESTINATIONS, DROP_REASONS)

    # --- what stands -------------------------------------------------------------------------------------------------

    def publish(self, status: Status) -> None:
        """From now on scrapes tell this status."""
        self._status = status

    def render(self, openmetrics: bool) -> tuple[str, bytes]:
        """The content type and the body of `/metrics`."""
        if openmetrics:
            return OPENMETRICS, _openmetrics(self._registry)
        return TEXT, text_format(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every family in the order of the catalogue, those without series included."""
        samples = self._gauges()
        for family in catalogue.FAMILIES:
            if family.name in self._tallies:
                yield self._tallies[family.name].collect()
            elif family.name in self._spreads:
                yield self._spreads[family.name].collect()
            elif family.name == "web_config_reload_failures_total":
                failures = Tally(family.name)
                failures.add(amount=self.config_reload_failures())
                yield failures.collect()
            else:
                yield _standing(family, samples)

    def _gauges(self) -> Samples:
        status = self._status
        samples = dict(before_the_first_status() if status is None else state_of(status, self._now()))
        samples["build_info"] = [(self._build, 1.0)]
        not_after = self.certificate_not_after()
        if not_after is not None:
            samples["web_certificate_not_after_timestamp_seconds"] = [((), not_after)]
        return samples

    # --- what happened -----------------------------------------------------------------------------------------------

    def observe(self, fact: Fact) -> None:
        """Counts a fact."""
        match fact:
            case facts.Polled():
                self.polled(fact.duration, fact.failure)
            case facts.DocumentChanged():
                self.document_changed()
            case facts.AnomalyObserved():
                self.anomaly(fact.anomaly)
            case facts.UnknownValueObserved():
                self.unknown_value(fact.field)
            case facts.EventTransitioned():
                self.transition(fact.transition)
            case facts.DecisionMade():
                self.decided(fact.decision)
            case facts.ApprovalRequested():
                self.approval_requested()
            case facts.ApprovalFailed():
                self.approval_failed(fact.reason)
            case facts.ApprovalOutdated():
                self.approval_outdated()
            case facts.ApprovalPostponed():
                self.approval_postponed()
            case facts.InterruptionObserved():
                self.interruption(fact.kind, fact.attributed, fact.seconds, fact.event_id)
            case facts.RecordsDropped():
                self.dropped(fact.destination, fact.reason, fact.records)
            case _:
                assert_never(fact)

    def polled(self, duration: float, failure: str | None) -> None:
        """A poll ended after so many seconds; `failure` is its reason, None when it gave a good document."""
        self._tallies["polls_total"].add()
        self._spreads["poll_duration_seconds"].observe(seconds=duration)
        if failure:
            self._tallies["poll_failures_total"].add(word(failure, self._failure_reasons))

    def document_changed(self) -> None:
        self._tallies["document_changes_total"].add()

    def anomaly(self, word: str) -> None:
        """The source did something odd, one of `lifecycle.ANOMALIES`."""
        self._tallies["document_anomalies_total"].add(word)

    def unknown_value(self, field: str) -> None:
        """A document holds a word that this version does not know, in this one of Azure's fields."""
        if field in catalogue.FIELDS:
            self._tallies["unknown_values_total"].add(field)

    def transition(self, transition: Transition) -> None:
        """An event that names this VM moved. Its first sight is the first move that we count of it."""
        kind, tracked = transition.kind, transition.tracked
        event_type = word(tracked.event.event_type, EVENT_TYPES)
        if came_into_sight(transition):
            self._tallies["events_observed_total"].add(event_type, word(tracked.event.source, EVENT_SOURCES))
        noticed = tracked.first_not_before if kind is Kind.SCHEDULED else None
        if noticed is not None and tracked.seen_before is Seen.UNBROKEN:
            self._observe("notice_seconds", event_type, (noticed - tracked.first_seen).total_seconds(), transition)
        if kind is Kind.STARTED:
            by = tracked.started_by.value if tracked.started_by else "unknown"
            self._tallies["events_started_total"].add(event_type, by)
        if kind in CLOSING:
            self._tallies["events_closed_total"].add(event_type, kind.value)
        if kind is Kind.COMPLETED and tracked.started_seconds is not None and tracked.observed_since_started:
            self._observe("started_seconds", event_type, tracked.started_seconds, transition)

    def _observe(self, family: str, event_type: str, seconds: float, transition: Transition) -> None:
        exemplar = self._exemplar(transition.tracked.event.event_id, seconds)
        self._spreads[family].observe(event_type, seconds=seconds, exemplar=exemplar)

    def _exemplar(self, event_id: str, seconds: float) -> Exemplar | None:
        """None also for an id that would need escapes: real readers don't undo them in exemplars, or trip over them."""
        if not event_id or not event_id.isprintable() or not _ESCAPED.isdisjoint(event_id):
            return None
        return Exemplar({"event_id": event_id[:MAX_EXEMPLAR_ID]}, max(0.0, seconds), self._now().wall.timestamp())

    def interruption(self, kind: str, attributed: bool, seconds: float, event_id: str) -> None:
        """This VM stood still for so long; `event_id` is empty when no event is to blame. A clock set back is none."""
        if kind not in catalogue.INTERRUPTION_KINDS or seconds <= 0:
            return
        self._spreads["observed_interruption_seconds"].observe(
            kind,
            "true" if attributed else "false",
            seconds=seconds,
            exemplar=self._exemplar(event_id if attributed else "", seconds),
        )

    def decided(self, decision: Decision) -> None:
        """A decision about an event is another than before."""
        rule = decision.rule if not decision.rule or decision.rule in self._rules else OTHER
        event_type = word(decision.event.event_type, EVENT_TYPES)
        self._tallies["approval_decisions_total"].add(event_type, decision.verdict.value, decision.reason.value, rule)

    def approval_requested(self) -> None:
        """An approval is on its way to the metadata service."""
        self._tallies["approval_requests_total"].add()

    def approval_failed(self, reason: str) -> None:
        self._tallies["approval_request_failures_total"].add(word(reason, self._failure_reasons))

    def approval_outdated(self) -> None:
        self._tallies["approvals_outdated_total"].add()

    def approval_postponed(self) -> None:
        """An approval was due and, after a last look, not sent. The next good document decides anew."""
        self._tallies["approvals_postponed_total"].add()

    def sent(self, destination: str, records: int, duration: float) -> None:
        """A destination acknowledged so many records, after so many seconds."""
        self._tallies["destination_sends_total"].add(destination)
        self._tallies["destination_records_sent_total"].add(destination, amount=records)
        self._spreads["destination_send_duration_seconds"].observe(destination, seconds=duration)

    def send_failed(self, destination: str, reason: str) -> None:
        self._tallies["destination_sends_total"].add(destination)
        self._tallies["destination_send_failures_total"].add(destination, word(reason, SEND_FAILURES))

    def dropped(self, destination: str, reason: str, records: int) -> None:
        """So many records will never reach a destination."""
        labels = (destination, word(reason, DROP_REASONS))
        self._tallies["destination_records_dropped_total"].add(*labels, amount=records)


def came_into_sight(transition: Transition) -> bool:
    """Whether this move is the first of its event that we count; a status never understood counts at its end."""
    never_understood = transition.kind is Kind.ENDED and transition.tracked.phase is Phase.UNKNOWN
    return transition.first_sight or never_understood


def decision_labels(rules: Sequence[str], rule_event_types: Mapping[str, Collection[str]]) -> Iterator[Labels]:
    """Every decision that can be: before a rule is reached none is named, after it the one that was."""
    hold, approve = Verdict.HOLD.value, Verdict.APPROVE.value
    for event_type in EVENT_TYPES:
        for reason in BEFORE_A_RULE:
            yield event_type, hold, reason.value, ""
        for rule in rules:
            if event_type not in rule_event_types.get(rule, EVENT_TYPES):
                continue
            for reason in AFTER_A_RULE:
                yield event_type, hold, reason.value, rule
            yield event_type, approve, Reason.NONE.value, rule


def _standing(family: catalogue.Family, samples: Samples) -> Metric:
    found = samples.get(family.name, ())
    if family.type == "info":
        info = InfoMetricFamily(family.full_name.removesuffix("_info"), family.help, labels=family.labels)
        for labels, _ in found:
            info.add_metric(labels, {})
        return info
    gauge = GaugeMetricFamily(family.full_name, family.help, labels=family.labels)
    for labels, value in found:
        gauge.add_metric(labels, value)
    return gauge
