"""`/metrics` as read by reviewers of diffs, both parsers, promtool, and a real Prometheus."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest

from exporter.core.facts import DecisionMade, EventTransitioned, InterruptionObserved, Polled
from exporter.core.scope import EventNow
from exporter.core.snapshot import DESTINATIONS, DestinationStatus
from exporter.core.state import Ownership
from exporter.sinks.prometheus.catalogue import PREFIX
from exporter.sinks.prometheus.gauges import MAX_LABEL
from exporter.sinks.prometheus.sink import PrometheusSink, WindowsProcessCollector
from exporter.web.responses import Accept, WebResponse
from exporter.web.server import WebServer
from exporter.windows.system import ProcessUsage, process_usage
from tests.support import statuses
from tests.support.metrics_reading import RULES, ids, lint, make_sink, parse_openmetrics, samples, scraped, value
from tests.support.peers import prometheus, scrape, until
from tests.support.statuses import FREEZE, REBOOT, EventScenario

GOLDEN = Path(__file__).parents[2] / "golden"


GOLDEN_SCENARIOS = ("empty", "scheduled", "started", "failing", "crowded")


QUIET = [DestinationStatus(name, configured=True) for name in DESTINATIONS]


def golden_sink(name: str) -> PrometheusSink:
    """Return a sink in the middle of a scenario."""
    scenario = {
        "empty": statuses.empty_scenario,
        "scheduled": statuses.scheduled_scenario,
        "started": statuses.started_scenario,
        "failing": statuses.scheduled_scenario,
        "crowded": statuses.crowded_scenario,
    }[name]()
    status = statuses.failing_status(scenario) if name == "failing" else scenario.status(destinations=QUIET)
    sink = make_sink(scenario.now)
    sink.observe(Polled(0.004))
    for transition in scenario.transitions:
        if EventNow(transition.tracked, status.vm.name).ownership is not Ownership.THEIRS:
            sink.observe(EventTransitioned(transition))
    for decision in status.state.process.decisions.values():
        if decision.now.ownership is not Ownership.THEIRS:
            sink.observe(DecisionMade(decision))
    if name == "failing":
        sink.observe(Polled(5.0, "timeout"))
    sink.publish(status)
    return sink


EXEMPLAR = re.compile(r"^(.+ # \{.+\} \S+) \S+$", re.M)


def published(name: str, openmetrics: bool) -> str:
    """Return the exposition of a scenario, with its time in the exemplars instead of the real time."""
    sink = golden_sink(name)
    at = sink._now().wall.timestamp()
    return EXEMPLAR.sub(rf"\1 {at}", scraped(sink, openmetrics))


def check_golden(name: str, text: str) -> None:
    """Compare with the golden file; UPDATE_GOLDEN=1 writes it instead."""
    path = GOLDEN / f"metrics.{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
def test_output_of_a_quiet_agent_matches_the_golden_file(openmetrics: bool) -> None:
    """UPDATE_GOLDEN=1 writes it."""
    check_golden("empty.openmetrics" if openmetrics else "empty", published("empty", openmetrics))


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
@pytest.mark.parametrize("name", GOLDEN_SCENARIOS[1:])
def test_output_during_an_event_matches_the_golden_file(name: str, openmetrics: bool) -> None:
    """Only the differences from a quiet agent."""
    quiet = set(published("empty", openmetrics).splitlines())
    lines = [line for line in published(name, openmetrics).splitlines() if line not in quiet]
    check_golden(f"{name}.openmetrics" if openmetrics else name, "\n".join(lines) + "\n")


@pytest.mark.peer("promtool")
@pytest.mark.parametrize("name", GOLDEN_SCENARIOS)
def test_promtool_reports_nothing(name: str) -> None:
    """Neither errors nor warnings."""
    lint(scraped(golden_sink(name)))


@pytest.mark.peer("promtool")
def test_process_metrics_have_their_usual_names() -> None:
    """CPU, memory, and descriptors of the agent."""
    body = scraped(PrometheusSink("1.2.3", RULES))
    lint(body)
    assert "\nprocess_resident_memory_bytes " in body


def test_windows_has_the_process_metrics_of_linux() -> None:
    """With values of Windows, and none if Windows returns an error."""

    def exposed(read: Callable[[], ProcessUsage]) -> str:
        registry = CollectorRegistry()
        registry.register(WindowsProcessCollector(read))
        return generate_latest(registry).decode()

    def refused() -> ProcessUsage:
        raise OSError("access denied")

    body = exposed(lambda: ProcessUsage(1.5, 40_000_000, 50_000_000, 1_700_000_000.25))
    lines = [line for line in body.splitlines() if not line.startswith("#")]
    assert lines == [
        "process_virtual_memory_bytes 5e+07",
        "process_resident_memory_bytes 4e+07",
        "process_start_time_seconds 1.70000000025e+09",
        "process_cpu_seconds_total 1.5",
    ]
    assert exposed(refused) == ""


@pytest.mark.windows
def test_windows_process_usage_is_plausible() -> None:
    """Memory in megabytes, and a start in the past."""
    usage = process_usage()
    assert usage.resident_bytes > 1_000_000
    assert 0 < usage.start_time <= time.time() + 1
    assert usage.cpu_seconds > 0


def test_multiprocess_directory_of_the_environment_is_ignored(tmp_path: Path) -> None:
    """The client library would keep counters in files there, and fail if it doesn't exist."""
    code = (
        "from exporter.sinks.prometheus.sink import *; s = PrometheusSink('1')\n"
        "s.observe(facts.Polled(1.0)); s.render(True)"
    )
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "missing")}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    subprocess.run([sys.executable, "-c", code], env={**environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}, check=True)
    assert not list(tmp_path.iterdir())


def test_both_formats_have_the_same_samples() -> None:
    sink = golden_sink("started")
    text = {(s.name, tuple(s.labels.items()), s.value) for s in samples(sink)}
    families = parse_openmetrics(scraped(sink, True))
    openmetrics = {(s.name, tuple(s.labels.items()), s.value) for family in families for s in family.samples}
    assert text == openmetrics
    assert not [name for name, _, _ in text if name.endswith("_created")]


HOSTILE = {
    'quote"} 1\nazure_scheduled_events_up 1': 'quote"} 1\\nazure_scheduled_events_up 1',
    "back\\slash\\": "back\\slash\\",
    "line\r\nfeed\x0b\x00\x1b[31m": "line\\r\\nfeed\\u000b\\u001b[31m",
    "\x01\x1f\x7f\x80\x9f": "\\u0001\\u001f\\u007f\\u0080\\u009f",
    "Grüße 日本 \u202egnp.exe 🚀": "Grüße 日本 \\u202egnp.exe 🚀",
    "\u200b\u2066\u2028\ufeff\ufe0f\U000e0041": "\\u200b\\u2066\\u2028\\ufeff\\ufe0f\\udb40\\udc41",
    "{}=,#": "{}=,#",
    "x" * 100: "x" * 100,
}
"""Texts from outside, and the label values that they become; a NUL is left out, since no id has one."""


@pytest.mark.peer("promtool")
@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_is_escaped_within_its_label(hostile: str) -> None:
    """Any id or name is parsed equally in both formats, and adds no series."""
    label = HOSTILE[hostile]
    event_id = hostile.replace("\x00", "")  # an id with a NUL can't be tracked at all
    events = [{**FREEZE, "EventId": event_id, "Description": hostile}]
    scenario = EventScenario()
    scenario.read()
    scenario.read(*events)
    sink = make_sink(scenario.now)
    sink.publish(scenario.status(vm=replace(statuses.VM, node=hostile * 9, name="shop-web_3")))
    for transition in scenario.transitions:
        sink.observe(EventTransitioned(transition))
    sink.observe(InterruptionObserved("stall", 1.0, event_id))
    text, openmetrics = scraped(sink), scraped(sink, True)
    lint(text)
    assert ids(sink, "event_info") == {label}
    openmetrics_samples = [s for family in parse_openmetrics(openmetrics) for s in family.samples]
    assert {s.labels["event_id"] for s in openmetrics_samples if "event_id" in s.labels} == {label}
    assert value(sink, "up") == 1
    node = next(s for s in openmetrics_samples if s.name == PREFIX + "vm_info").labels["node"]
    assert node.isprintable()
    assert len(node) <= MAX_LABEL
    exemplars = [s.exemplar.labels for s in openmetrics_samples if s.exemplar]
    assert exemplars == ([{"event_id": event_id}] * 2 if event_id == "x" * 100 else [])


def test_lone_surrogate_becomes_a_question_mark() -> None:
    """It never fails a scrape."""
    scenario = statuses.empty_scenario()
    sink = make_sink(scenario.now)
    sink.publish(scenario.status(vm=replace(statuses.VM, zone="\ud800")))
    assert 'zone="?"' in scraped(sink)


@dataclass
class Page:
    """A minimal application: `/metrics` of one sink, in one fixed or in the requested format."""

    sink: PrometheusSink
    always: Accept | None = None

    def respond(self, path: str, accept: Accept) -> WebResponse:
        """Return `/metrics`, or an error for other paths."""
        content_type, body = self.sink.render((self.always or accept) == "openmetrics")
        return WebResponse(200 if path == "/metrics" else 404, content_type, body)


@pytest.fixture
def served() -> Iterator[tuple[PrometheusSink, list[dict[str, object]]]]:
    """Serve a sink on two endpoints, one with text only, and yield the jobs to scrape them."""
    sink = PrometheusSink("1.2.3", RULES)
    servers = {"chosen": WebServer("127.0.0.1:0", Page(sink)), "text": WebServer("127.0.0.1:0", Page(sink, "text"))}
    for server in servers.values():
        server.start()
    try:
        yield sink, [scrape(job, "{}:{}".format(*server.address)) for job, server in servers.items()]
    finally:
        for server in servers.values():
            server.stop()


@pytest.mark.peer("prometheus")
def test_real_prometheus_scrapes_both_formats(
    served: tuple[PrometheusSink, list[dict[str, object]]], tmp_path: Path
) -> None:
    """Series are removed with their event, and an exemplar links a histogram to the event."""
    sink, scrapes = served
    scenario = EventScenario(datetime.now(UTC))
    not_before = format_datetime(scenario.now + timedelta(minutes=15), usegmt=True)
    event = {**FREEZE, "EventId": "Grüße-1", "NotBefore": not_before}
    hostile = {**REBOOT, "EventId": 'new\nline "quoted" \\', "NotBefore": not_before}
    scenario.read()
    scenario.read(event, hostile)
    sink.publish(scenario.status())
    with prometheus(tmp_path, scrapes) as server:
        until(lambda: len(server.query(f"{PREFIX}event_info")) == 4)
        assert {target["health"] for target in server.targets()} == {"up"}
        events = {
            (sample["metric"]["job"], sample["metric"]["event_id"]) for sample in server.query(f"{PREFIX}event_info")
        }
        labels = (event["EventId"], 'new\\nline "quoted" \\')
        assert events == {(job, label) for job in ("chosen", "text") for label in labels}
        for transition in scenario.transitions:
            sink.observe(EventTransitioned(transition))  # only now, so that Prometheus saw the counter at 0
        scenario.read()
        sink.publish(scenario.status())
        until(lambda: not server.query(f"{PREFIX}event_info"))
        observed = f'increase({PREFIX}events_observed_total{{event_type="Freeze",event_source="Platform"}}[1m]) > 0'
        until(lambda: len(server.query(observed)) == 2)
        query = {"query": f'{PREFIX}notice_seconds_bucket{{event_type="Freeze"}}', "start": 0, "end": time.time() + 600}
        exemplars = until(lambda: server.get("/api/v1/query_exemplars", **query)["data"])
        assert [series["seriesLabels"]["job"] for series in exemplars] == ["chosen"]
        assert exemplars[0]["exemplars"][0]["labels"] == {"event_id": event["EventId"]}
        until(lambda: len(server.query(f"{PREFIX}up == 1")) == 2)  # a scrape may be late by its 250 ms
