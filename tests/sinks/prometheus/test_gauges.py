"""Families and gauges of `/metrics` for a status."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from exporter.core.facts import Polled, UnknownValueObserved
from exporter.core.policy import DEFAULT_RULES, Mode
from exporter.core.records import Vm
from exporter.core.snapshot import DESTINATIONS, DestinationStatus, OutboxStatus
from exporter.core.state import Instant
from exporter.metadata.errors import REASONS
from exporter.sinks.prometheus.catalogue import FAMILIES, PREFIX, metrics_table
from exporter.sinks.prometheus.gauges import MAX_EVENT_SERIES
from exporter.sinks.prometheus.sink import OPENMETRICS, TEXT, PrometheusSink
from tests.support import statuses
from tests.support.metrics_reading import ids, make_sink, samples, scraped, value
from tests.support.statuses import FREEZE, NOON, REBOOT, EventScenario, started


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_family_has_help_and_type_at_the_start(openmetrics: bool) -> None:
    """In the order of the catalogue."""
    body = scraped(make_sink(), openmetrics)
    helps = [line.split(" ", 3)[2] for line in body.splitlines() if line.startswith("# HELP ")]
    types = [line.split(" ", 3)[2] for line in body.splitlines() if line.startswith("# TYPE ")]
    expected = [family.full_name for family in FAMILIES]
    if openmetrics:
        suffixes = {"counter": "_total", "info": "_info"}
        expected = [family.full_name.removesuffix(suffixes.get(family.type, "")) for family in FAMILIES]
    assert helps == types == expected


def test_openmetrics_has_the_types_of_the_catalogue() -> None:
    """The gauge `event_info` isn't an info."""
    body = scraped(make_sink(), True)
    assert f"# TYPE {PREFIX}vm info" in body
    assert f"# TYPE {PREFIX}build info" in body
    assert f"# TYPE {PREFIX}event_info gauge" in body
    assert body.endswith("# EOF\n")


def test_content_types_name_their_versions() -> None:
    sink = make_sink()
    assert sink.render(False)[0] == TEXT == "text/plain; version=0.0.4; charset=utf-8"
    assert sink.render(True)[0] == OPENMETRICS == "application/openmetrics-text; version=1.0.0; charset=utf-8"


def test_unknown_values_are_absent_before_the_first_status() -> None:
    """`up` is 0, there is no poll time, document, or VM; closed label sets exist."""
    sink = make_sink()
    assert value(sink, "up") == 0
    for name in ("last_poll_timestamp_seconds", "document_events", "document_incarnation", "source_warming"):
        assert value(sink, name) is None
    assert value(sink, "events", event_type="Freeze", event_status="Scheduled") == 0
    assert not [s for s in samples(sink) if s.name == PREFIX + "vm_info"]


def test_no_counter_is_ahead_of_the_gauges_of_its_scrape() -> None:
    """Facts counted during the computation of gauges are in the next scrape."""

    def now() -> Instant:
        sink.observe(UnknownValueObserved("EventType"))
        return Instant(scenario.now)

    scenario = statuses.scheduled_scenario()
    sink = PrometheusSink("1.0.0", now=now, include_process_metrics=False)
    sink.publish(scenario.status())
    assert [value(sink, "unknown_values_total", field="EventType") for _ in range(2)] == [0, 1]


def test_configured_tags_are_labels_of_vm_info() -> None:
    """Empty for a tag that the VM doesn't have."""
    sink = make_sink()
    names = {"vm_name", "vm_id", "subscription_id", "resource_group", "vmss_name", "location", "zone", "vm_size"}
    names |= {"priority", "node"}
    for vm, tags in (
        (
            Vm(name="vm-0", tags=(("owner", 'w"e\nb'), ("Cost center", ""))),
            {"tag_owner": 'w"e\\nb', "tag_Cost_center": ""},
        ),
        (Vm(name="vm-0"), {}),
    ):
        sink.publish(replace(statuses.scheduled_scenario().status(), vm=vm))
        (labels,) = [sample.labels for sample in samples(sink) if sample.name == PREFIX + "vm_info"]
        assert labels.keys() == names | tags.keys()
        assert labels.items() >= tags.items()
    sink.publish(replace(statuses.scheduled_scenario().status(), vm=Vm(tags=(("owner", ""),))))
    assert not [sample for sample in samples(sink) if sample.name == PREFIX + "vm_info"]


def test_event_series_are_removed_with_the_event() -> None:
    """Known values have series, unknown ones don't."""
    scenario = statuses.scheduled_scenario()
    sink = make_sink(scenario.now)
    sink.publish(scenario.status())
    freeze, reboot = FREEZE["EventId"], REBOOT["EventId"]
    assert ids(sink, "event_info") == {freeze, reboot}
    not_before = datetime.fromisoformat("2025-11-21T12:15:00Z").timestamp()
    assert value(sink, "event_not_before_timestamp_seconds", event_id=freeze) == not_before
    assert value(sink, "event_advertised_duration_seconds", event_id=freeze) == 5
    assert value(sink, "event_advertised_duration_seconds", event_id=reboot) is None
    assert value(sink, "event_resources", event_id=reboot) == 2
    assert value(sink, "event_status", event_id=freeze, event_status="Scheduled") == 1
    assert value(sink, "event_status", event_id=freeze, event_status="Started") == 0
    assert value(sink, "event_started_timestamp_seconds", event_id=freeze) is None
    assert value(sink, "events", event_type="Reboot", event_status="Scheduled") == 1
    assert value(sink, "document_events") == 3

    scenario.read(started(FREEZE))
    sink.publish(scenario.status())
    assert ids(sink, "event_info") == {freeze}
    assert value(sink, "event_not_before_timestamp_seconds", event_id=freeze) is None
    assert value(sink, "event_started_timestamp_seconds", event_id=freeze) == scenario.now.timestamp()
    assert value(sink, "event_status", event_id=freeze, event_status="Started") == 1

    scenario.read()
    sink.publish(scenario.status())
    assert not [s for s in samples(sink) if "event_id" in s.labels]
    assert value(sink, "events", event_type="Freeze", event_status="Started") == 0


def test_started_event_has_no_not_before_series() -> None:
    """Also if Azure still lists NotBefore."""
    scenario = EventScenario()
    scenario.read()
    scenario.read({**FREEZE, "EventStatus": "Started"})
    sink = make_sink(scenario.now)
    sink.publish(scenario.status())
    assert ids(sink, "event_started_timestamp_seconds") == {FREEZE["EventId"]}
    assert not ids(sink, "event_not_before_timestamp_seconds")


def test_unknown_vm_name_has_no_event_series() -> None:
    """Only `document_events` shows that there are events."""
    scenario = statuses.scheduled_scenario()
    sink = make_sink(scenario.now)
    sink.publish(scenario.status(vm=Vm()))
    assert not [s for s in samples(sink) if "event_id" in s.labels]
    counted = [s.value for s in samples(sink) if s.name == PREFIX + "events"]
    assert counted
    assert not any(counted)
    assert value(sink, "event_series_dropped") == 0
    assert value(sink, "document_events") == 3
    assert "vm_info{" not in scraped(sink)
    sink.publish(scenario.status())
    assert ids(sink, "event_info") == {FREEZE["EventId"], REBOOT["EventId"]}


@pytest.mark.parametrize("resources", [None, [], "shop-web_3", [5], ["shop-web_33"]])
def test_event_with_unreadable_resources_has_no_series(resources: object) -> None:
    """It counts only in `document_events`."""
    scenario = EventScenario()
    scenario.read()
    scenario.read({**FREEZE, "Resources": resources})
    sink = make_sink(scenario.now)
    sink.publish(scenario.status())
    assert not [s for s in samples(sink) if "event_id" in s.labels]
    assert not any(s.value for s in samples(sink) if s.name == PREFIX + "events")
    assert value(sink, "document_events") == 1


DECISION = "event_decision"


def decisions(sink: PrometheusSink) -> dict[str, tuple[str, str, str]]:
    """Return the decision on each event; fail if an event has several."""
    series = [s for s in samples(sink) if s.name == PREFIX + DECISION]
    assert all(s.value == 1 for s in series)
    assert len({s.labels["event_id"] for s in series}) == len(series)
    return {s.labels["event_id"]: (s.labels["decision"], s.labels["reason"], s.labels["rule"]) for s in series}


def test_each_own_event_has_its_current_decision() -> None:
    """A new decision replaces it, and it is removed with the event."""
    scenario = statuses.scheduled_scenario()
    sink = make_sink(scenario.now)
    freeze, reboot = FREEZE["EventId"], REBOOT["EventId"]
    sink.publish(scenario.status())
    assert decisions(sink) == {freeze: ("hold", "dry-run", "short-freeze"), reboot: ("hold", "no-rule", "")}
    sink.publish(scenario.status(mode=Mode.ENFORCE))
    assert decisions(sink)[freeze] == ("approve", "", "short-freeze")
    scenario.read(started(FREEZE), REBOOT)
    sink.publish(scenario.status(mode=Mode.ENFORCE))
    assert decisions(sink) == {freeze: ("hold", "not-scheduled", ""), reboot: ("hold", "no-rule", "")}
    scenario.read()
    sink.publish(scenario.status())
    assert decisions(sink) == {}


def test_decisions_of_an_earlier_process_have_no_series() -> None:
    scenario = statuses.scheduled_scenario()
    sink = make_sink(scenario.now)
    status = scenario.status()
    process = replace(status.state.process, decisions={})
    sink.publish(replace(status, state=replace(status.state, process=process)))
    assert ids(sink, "event_info")
    assert decisions(sink) == {}


def test_each_started_event_has_its_started_by() -> None:
    """One event approved by this VM, one by another approver."""
    other = {**FREEZE, "EventId": "stolen"}
    scenario = EventScenario()
    scenario.read()
    scenario.read(FREEZE, other)
    sink = make_sink(scenario.now)
    sink.publish(scenario.status())
    assert not ids(sink, "event_started_by")
    scenario.approved(FREEZE["EventId"], "short-freeze")
    scenario.read(started(FREEZE), started(other))
    sink.publish(scenario.status())
    series = [s for s in samples(sink) if s.name == PREFIX + "event_started_by"]
    starts = {(s.labels["event_id"], s.labels["started_by"], s.value) for s in series}
    assert starts == {(FREEZE["EventId"], "this_vm", 1), ("stolen", "other", 1)}
    scenario.read(started(other))
    sink.publish(scenario.status())
    assert ids(sink, "event_started_by") == {"stolen"}
    scenario.read()
    sink.publish(scenario.status())
    assert not ids(sink, "event_started_by")


def test_hold_and_failing_disk_have_gauges() -> None:
    """Both are 0 or 1 from the first status on."""
    scenario = statuses.empty_scenario()
    sink = make_sink(scenario.now)
    assert value(sink, "approval_held") is None
    assert value(sink, "outbox_writable") is None
    sink.publish(scenario.status())
    assert (value(sink, "approval_held"), value(sink, "outbox_writable")) == (0, 1)
    sink.publish(replace(scenario.status(outbox=OutboxStatus(writable=False)), held=True))
    assert (value(sink, "approval_held"), value(sink, "outbox_writable")) == (1, 0)


def test_series_are_limited_to_the_most_urgent_events() -> None:
    """Fifty events; the others are counted."""
    scenario = statuses.crowded_scenario(80)
    late = {**FREEZE, "EventId": "started-one", "EventStatus": "Started", "NotBefore": ""}
    soonest = {**FREEZE, "EventId": "soonest", "NotBefore": "Fri, 21 Nov 2025 12:00:30 GMT"}
    last = {**FREEZE, "EventId": "last", "NotBefore": "Fri, 28 Nov 2025 12:00:30 GMT"}
    known = [dict(tracked.event.raw) for tracked in scenario.state.tracked.values()]
    scenario.read(last, *known, soonest, late)
    sink = make_sink(scenario.now)
    sink.publish(scenario.status())
    assert len(ids(sink, "event_info")) == MAX_EVENT_SERIES
    assert {"started-one", "soonest"} <= ids(sink, "event_info")
    assert "last" not in ids(sink, "event_info")
    assert value(sink, "event_series_dropped") == 83 - MAX_EVENT_SERIES
    assert sum(s.value for s in samples(sink) if s.name == PREFIX + "events") == 83


def test_two_events_never_share_a_series() -> None:
    """Of two ids that are equal after escaping, the less urgent one has no series and is counted."""
    scenario = statuses.empty_scenario()
    scenario.read({**FREEZE, "EventId": "a\x07"}, {**FREEZE, "EventId": "a\\u0007", "DurationInSeconds": 5})
    sink = make_sink(scenario.now)
    sink.publish(scenario.status())
    assert [s.labels["event_id"] for s in samples(sink) if s.name == PREFIX + "event_info"] == ["a\\u0007"]
    assert value(sink, "event_series_dropped") == 1


def test_thousand_events_have_a_bounded_scrape() -> None:
    scenario = statuses.crowded_scenario(1000)
    sink = make_sink(scenario.now)
    sink.publish(scenario.status())
    assert len(scraped(sink, True)) < 150_000


def test_gauges_keep_their_values_after_a_failed_poll() -> None:
    """`up` is 0."""
    scenario = statuses.scheduled_scenario()
    good = scenario.now.timestamp()
    sink = make_sink(scenario.now)
    sink.publish(statuses.failing_status(scenario))
    assert value(sink, "up") == 0
    assert value(sink, "last_successful_poll_timestamp_seconds") == good
    assert value(sink, "last_poll_timestamp_seconds") == good + 60
    assert value(sink, "events", event_type="Freeze", event_status="Scheduled") == 1


def test_warming_ends_without_a_new_status() -> None:
    """`source_warming` is 1 for five minutes after the first response."""
    scenario = EventScenario()
    scenario.read()
    moments = iter([Instant(scenario.now + timedelta(minutes=minutes)) for minutes in (4, 6)])
    sink = PrometheusSink("1", now=lambda: next(moments), include_process_metrics=False)
    sink.publish(scenario.status())
    assert value(sink, "source_warming") == 1
    assert value(sink, "source_warming") == 0


def test_unknown_values_count_as_other() -> None:
    strange = {
        **FREEZE,
        "EventType": "Levitate",
        "EventStatus": "Pondering",
        "EventSource": 'Mars"\n',
        "ResourceType": "X",
    }
    scenario = EventScenario()
    scenario.read()
    scenario.read(strange)
    sink = make_sink(scenario.now)
    sink.publish(scenario.status())
    assert value(sink, "events", event_type="other", event_status="other") == 1
    assert value(sink, "event_status", event_id=FREEZE["EventId"], event_status="other") == 1
    info = {"event_type": "other", "event_source": "other", "resource_type": "other"}
    assert value(sink, "event_info", event_id=FREEZE["EventId"], **info) == 1
    sink.observe(UnknownValueObserved("EventType"))
    sink.observe(UnknownValueObserved("Nonsense"))
    assert value(sink, "unknown_values_total", field="EventType") == 1


def test_destinations_and_mode_have_gauges() -> None:
    """Only configured destinations and known times have series; one mode is 1."""
    scenario = statuses.empty_scenario()
    sink = make_sink(scenario.now)
    otlp, event_hubs = DestinationStatus("otlp", True, 4, NOON, 2), DestinationStatus("event_hubs")
    sink.publish(scenario.status(mode=Mode.ENFORCE, destinations=[otlp, event_hubs]))
    assert value(sink, "outbox_records", destination="otlp") == 4
    assert value(sink, "outbox_records", destination="event_hubs") is None
    assert value(sink, "outbox_oldest_record_timestamp_seconds", destination="otlp") == NOON.timestamp()
    assert value(sink, "destination_records_parked", destination="otlp") == 2
    assert value(sink, "destination_records_parked", destination="event_hubs") is None
    assert value(sink, "destination_last_success_timestamp_seconds", destination="otlp") is None
    assert [value(sink, "approval_mode", mode=mode) for mode in ("off", "dry-run", "enforce")] == [0, 0, 1]
    assert value(sink, "web_certificate_not_after_timestamp_seconds") is None


def test_quiet_vm_with_all_outputs_has_at_most_225_series() -> None:
    """With every setting, a certificate, and a waiting record per destination: 214, and 6 of the process."""
    scenario = statuses.empty_scenario()
    rules = tuple(rule.name for rule in DEFAULT_RULES)
    sink = PrometheusSink("1", rules, destinations=DESTINATIONS, poll_failure_reasons=REASONS)
    sink.certificate_not_after = lambda: 1_800_000_000.0
    outputs = [DestinationStatus(name, True, 1, NOON, 0, NOON) for name in DESTINATIONS]
    sink.publish(scenario.status(destinations=outputs))
    for destination in DESTINATIONS:
        sink.sent(destination, 1, 0.02)
    sink.observe(Polled(0.004))
    for openmetrics in (False, True):
        series = [line for line in scraped(sink, openmetrics).splitlines() if not line.startswith("#")]
        assert len([line for line in series if line.startswith(PREFIX)]) == 214
        assert len(series) <= 225


def test_certificate_expiry_and_reload_failures_are_read_at_scrape() -> None:
    sink = make_sink()
    sink.certificate_not_after = lambda: 1_800_000_000.0
    sink.config_reload_failures = lambda: 2
    assert value(sink, "web_certificate_not_after_timestamp_seconds") == 1_800_000_000
    assert value(sink, "web_config_reload_failures_total") == 2


def test_table_has_every_family_and_label_value() -> None:
    """Markdown with one row per family, the rare families, and the closed labels."""
    table = metrics_table()
    for family in FAMILIES:
        assert f"| `{family.full_name}` | {family.type} |" in table
    assert "| `outcome` | `completed` `canceled` `ended` |" in table
    assert "`approval_decisions_total`" in next(line for line in table.splitlines() if "first observation" in line)
    assert {line.count("|") for line in table.splitlines() if line.startswith("|")} == {5, 3}
