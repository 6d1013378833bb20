"""Counters and histograms for each fact."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.core.document import folded
from exporter.core.facts import (
    AnomalyObserved,
    ApprovalFailed,
    ApprovalOutdated,
    ApprovalPostponed,
    ApprovalRequested,
    DecisionMade,
    DocumentChanged,
    EventTransitioned,
    InterruptionObserved,
    Polled,
    RecordsDropped,
)
from exporter.core.state import TransitionKind
from exporter.sinks.prometheus.catalogue import BY_NAME, FAMILIES
from tests.support import statuses
from tests.support.metrics_reading import make_sink, samples, scraped, value
from tests.support.statuses import FREEZE, EventScenario, started


def test_counters_start_at_zero_unless_they_are_rare() -> None:
    """Rare ones have only HELP and TYPE."""
    sink = make_sink()
    all_samples = samples(sink)
    for family in FAMILIES:
        if family.type not in ("counter", "histogram"):
            continue
        values = [s.value for s in all_samples if s.name.startswith(family.full_name)]
        assert bool(values) != family.rare, family.name
        assert not any(values), family.name
        assert f"# HELP {family.full_name} " in scraped(sink)


def test_rare_counters_have_only_observed_series() -> None:
    sink = make_sink()
    before = len(samples(sink))
    sink.observe(ApprovalFailed("timeout", "a", 1))
    sink.observe(AnomalyObserved("incarnation-skipped"))
    sink.observe(InterruptionObserved("stall", 0.3))
    assert value(sink, "approval_request_failures_total", reason="timeout") == 1
    assert value(sink, "document_anomalies_total", anomaly="incarnation-skipped") == 1
    assert value(sink, "observed_interruption_seconds_count", kind="stall", attributed="false") == 1
    histogram = len(BY_NAME["observed_interruption_seconds"].buckets) + len(("+Inf", "count", "sum"))
    assert len(samples(sink)) == before + 2 + histogram


@pytest.mark.parametrize("configured", [(), ("otlp",), ("event_hubs",)])
def test_unconfigured_destination_has_no_series(configured: tuple[str, ...]) -> None:
    """Its families have HELP and TYPE; counters of a configured one are 0."""
    sink = make_sink(destinations=configured)
    assert {s.labels["destination"] for s in samples(sink) if "destination" in s.labels} == set(configured)
    for destination in configured:
        assert value(sink, "destination_sends_total", destination=destination) == 0
        assert value(sink, "destination_records_dropped_total", destination=destination, reason="outbox-full") == 0


def test_each_phase_of_an_event_is_counted_once() -> None:
    """Seen, started by this VM, and completed, with notice and duration."""
    scenario = EventScenario()
    sink = make_sink(scenario.now)
    scenario.read()
    scenario.read(FREEZE, after=2)
    scenario.approved(FREEZE["EventId"], "short-freeze")
    scenario.read(started(FREEZE), after=10)
    scenario.read(after=7)
    for transition in scenario.transitions:
        sink.observe(EventTransitioned(transition))
    assert value(sink, "events_observed_total", event_type="Freeze", event_source="Platform") == 1
    assert value(sink, "events_started_total", event_type="Freeze", started_by="this_vm") == 1
    assert value(sink, "events_closed_total", event_type="Freeze", outcome="completed") == 1
    assert value(sink, "notice_seconds_sum", event_type="Freeze") == 15 * 60 - 3
    assert value(sink, "started_duration_seconds_sum", event_type="Freeze") == 7
    assert value(sink, "started_duration_seconds_bucket", event_type="Freeze", le="5.0") == 0
    assert value(sink, "started_duration_seconds_bucket", event_type="Freeze", le="10.0") == 1


def test_notice_is_measured_only_during_unbroken_polling() -> None:
    """An event that existed at the start, or appeared in a gap, isn't measured."""
    at_start, gap = EventScenario(), EventScenario()
    at_start.read(FREEZE)
    gap.read()
    gap.seconds += 100
    gap.read(FREEZE)
    sink = make_sink()
    for transition in (*at_start.transitions, *gap.transitions):
        sink.observe(EventTransitioned(transition))
    assert value(sink, "notice_seconds_count", event_type="Freeze") is None
    assert value(sink, "events_observed_total", event_type="Freeze", event_source="Platform") == 2


def test_started_duration_needs_unbroken_polling() -> None:
    """A gap or restart after Started prevents it; one before doesn't."""

    def measured(*doings: Callable[[EventScenario], object]) -> tuple[float | None, float | None]:
        scenario = EventScenario()
        scenario.read()
        for do in doings:
            do(scenario)
        sink = make_sink()
        for transition in scenario.transitions:
            sink.observe(EventTransitioned(transition))
        assert value(sink, "events_closed_total", event_type="Freeze", outcome="completed") == 1
        seconds = value(sink, "started_duration_seconds_sum", event_type="Freeze")
        return value(sink, "started_duration_seconds_count", event_type="Freeze"), seconds

    def announced(scenario: EventScenario) -> object:
        return scenario.read(FREEZE)

    def begun(scenario: EventScenario) -> object:
        return scenario.read(started(FREEZE), after=10)

    def again(scenario: EventScenario) -> object:
        return scenario.read(started({**FREEZE, "Description": "again"}))

    def gone(scenario: EventScenario) -> object:
        return scenario.read(after=7)

    assert measured(announced, begun, gone) == (1, 7)
    assert measured(announced, begun, EventScenario.blink, gone) == (None, None)
    assert measured(announced, begun, EventScenario.blink, again, gone) == (None, None)
    assert measured(announced, begun, EventScenario.restart, gone) == (None, None)
    assert measured(announced, begun, EventScenario.restart, again, gone) == (None, None)
    assert measured(announced, EventScenario.blink, begun, gone) == (1, 7)
    assert measured(announced, EventScenario.restart, begun, gone) == (1, 7)


def test_past_not_before_has_no_negative_notice() -> None:
    """A decreasing sum would look like a restart."""
    scenario = EventScenario()
    scenario.read()
    scenario.read({**FREEZE, "NotBefore": "Fri, 21 Nov 2025 11:00:00 GMT"})
    sink = make_sink()
    for transition in scenario.transitions:
        sink.observe(EventTransitioned(transition))
    assert value(sink, "notice_seconds_sum", event_type="Freeze") == 0
    assert value(sink, "notice_seconds_bucket", event_type="Freeze", le="30.0") == 1


def test_event_is_counted_as_observed_once() -> None:
    """An event of unknown status counts when its status is known, or when it ends."""
    pondering = {**FREEZE, "EventStatus": "Pondering"}
    for documents in ([pondering, FREEZE, started(FREEZE)], [pondering], [started(FREEZE), FREEZE, started(FREEZE)]):
        scenario = EventScenario()
        scenario.read()
        for event in documents:
            scenario.read(event)
        scenario.read()
        sink = make_sink()
        for transition in scenario.transitions:
            sink.observe(EventTransitioned(transition))
        assert value(sink, "events_observed_total", event_type="Freeze", event_source="Platform") == 1, documents
    assert scenario.transitions[-1].kind is TransitionKind.COMPLETED


def test_facts_increment_their_counters() -> None:
    """A reason outside its closed set is `other`."""
    sink = make_sink()
    for failure in (None, "timeout", "never heard of"):
        sink.observe(Polled(0.5, failure))
    sink.observe(DocumentChanged())
    sink.observe(ApprovalRequested("a"))
    sink.observe(ApprovalFailed("timeout", "a", 1))
    sink.observe(ApprovalOutdated())
    sink.observe(ApprovalPostponed("a", "held"))
    sink.sent("otlp", 3, 0.02)
    sink.send_failed("otlp", "throttled")
    sink.send_failed("event_hubs", "out of paper")
    sink.observe(RecordsDropped("event_hubs", "outbox-full", 7))
    sink.observe(InterruptionObserved("clock_step", 5.0, "abc"))
    sink.observe(InterruptionObserved("sleepwalk", 5.0, "abc"))
    sink.observe(InterruptionObserved("clock_step", -5.0, "abc"))
    scenario = statuses.scheduled_scenario()
    decision = scenario.status().state.process.decisions[folded(FREEZE["EventId"])]
    sink.observe(DecisionMade(decision))
    sink.observe(DecisionMade(replace(decision, rule="a rule of yesterday")))
    assert value(sink, "polls_total") == 3
    assert value(sink, "poll_failures_total", reason="timeout") == 1
    assert value(sink, "poll_failures_total", reason="other") == 1
    assert value(sink, "poll_duration_seconds_count") == 3
    assert value(sink, "document_changes_total") == 1
    assert value(sink, "approval_requests_total") == 1
    assert value(sink, "approval_request_failures_total", reason="timeout") == 1
    assert value(sink, "approvals_outdated_total") == 1
    assert value(sink, "approvals_postponed_total") == 1
    assert value(sink, "destination_sends_total", destination="otlp") == 2
    assert value(sink, "destination_records_sent_total", destination="otlp") == 3
    assert value(sink, "destination_send_failures_total", destination="otlp", reason="throttled") == 1
    assert value(sink, "destination_send_failures_total", destination="event_hubs", reason="other") == 1
    assert value(sink, "destination_records_dropped_total", destination="event_hubs", reason="outbox-full") == 7
    assert value(sink, "observed_interruption_seconds_sum", kind="clock_step", attributed="true") == 5
    labels = {"event_type": "Freeze", "decision": "hold", "reason": "dry-run"}
    assert value(sink, "approval_decisions_total", **labels, rule="short-freeze") == 1
    assert value(sink, "approval_decisions_total", **labels, rule="other") == 1


def test_threads_count_and_scrape_concurrently() -> None:
    """No count is lost, and no scrape fails."""
    sink = make_sink()

    def bump() -> None:
        for _ in range(2000):
            sink.observe(Polled(0.001))
            sink.observe(InterruptionObserved("stall", 0.3))

    threads = [threading.Thread(target=bump) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        list(parse_text(scraped(sink)))
    for thread in threads:
        thread.join()
    assert value(sink, "polls_total") == 8000
    assert value(sink, "poll_duration_seconds_bucket", le="+Inf") == 8000
