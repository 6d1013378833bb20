"""Durations under clock changes, driven by hand, with the real core, outbox, metrics, and page.

A duration is measured by the monotonic clock. After a restart only the wall clock is left: a duration that it can't
prove is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from exporter.core.state import Interruption, InterruptionKind
from exporter.metadata.errors import MetadataError
from exporter.page.view import render_page
from exporter.text.timeline import record_lines
from tests.support.agent_environment import FREEZE, REBOOT, TIMEOUT, AgentEnvironment, document, event, policy, started
from tests.support.status_reading import answered

STEPS = pytest.mark.parametrize("step", [-86_400.0, -3_600.0, -30.0, 0.0, 30.0, 86_400.0])
"""Seconds by which an operator sets the clock of the VM."""
DAY = 86_400.0


def page_of(environment: AgentEnvironment) -> str:
    return render_page(answered(environment.agent.status, environment.clock.instant())).decode().replace("\u00a0", " ")


def only(environment: AgentEnvironment, kind: str) -> Mapping[str, Any]:
    (record,) = environment.records(kind)
    return record.data


def spans(found: Any, under: str = "") -> Mapping[str, float]:
    """Return every duration in a record. The step of the clock itself may be negative."""
    if not isinstance(found, Mapping):
        return {}
    announced = ("announced_duration_seconds", "documented_minimum_notice_seconds")
    here = {
        f"{under}{name}": value
        for name, value in found.items()
        if name.endswith("_seconds") and name not in announced and value is not None
    }
    for name, value in found.items():
        if name not in ("event", "interruption"):
            here |= spans(value, f"{name}.")
    return here


# -- warming


@STEPS
def test_warmup_takes_five_minutes_on_the_monotonic_clock(tmp_path: Path, step: float) -> None:
    """Whatever the wall clock is set to."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 60)
        environment.clock.wall += step
        environment.live(230)
        assert environment.value("source_warming") == 1
        assert "Azure may still be enabling" in page_of(environment)
        environment.live(20)
        assert environment.value("source_warming") == 0
        assert "Nothing is planned" in page_of(environment)


@STEPS
@pytest.mark.parametrize("answers", [True, False])
def test_warmup_after_a_restart_ends_within_five_minutes(tmp_path: Path, step: float, answers: bool) -> None:
    """After a restart, the wall clock can only shorten it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 120)
        environment.clock.wall += step
        if not answers:
            environment.source.answer = TIMEOUT
        environment.restart(60)
        environment.live(110)
        assert environment.value("source_warming") == (max(0.0, 180 + step) + 110 < 300)
        environment.live(200)
        assert environment.value("source_warming") == 0


def test_restarted_incarnation_starts_a_new_warmup(tmp_path: Path) -> None:
    """The service may have been disabled and enabled again."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(7, event()), 5)
        environment.see(document(8), 400)
        assert environment.value("source_warming") == 0
        environment.see(document(1), 200)
        assert environment.value("source_warming") == 1
        environment.live(110)
        assert environment.value("source_warming") == 0


def test_event_ends_the_warmup_at_once(tmp_path: Path) -> None:
    """A neighbour's event too; also after it is removed, and after a restart."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 5)
        assert environment.value("source_warming") == 1
        environment.see(document(2, event(REBOOT, "Reboot", "web-2")), 2)
        assert environment.value("source_warming") == 0
        environment.see(document(3), 2)
        assert environment.value("source_warming") == 0
        assert "Nothing is planned" in page_of(environment)
        environment.restart(2)
        environment.live(2)
        assert environment.value("source_warming") == 0


# -- outages


@STEPS
def test_outage_duration_ignores_clock_changes(tmp_path: Path, step: float) -> None:
    """Within one process, forty seconds are recorded as forty, once."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 400)
        environment.see(TIMEOUT, 20)
        environment.clock.wall += step
        environment.live(20)
        environment.see(document(1), 3)
        found = only(environment, "source.recovered")
        assert found["gap_seconds"] == pytest.approx(40, abs=4)
        (message,) = [record.data["message"] for record in environment.records("source.unavailable")]
        assert message.startswith("The metadata service has been failing for 1")


def test_gap_is_unknown_if_the_clock_was_set_back_during_a_restart(tmp_path: Path) -> None:
    """The observed part of the outage is still known."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(TIMEOUT, 20)
        environment.clock.wall -= 3600
        environment.restart(5)
        environment.live(20)
        environment.see(document(1), 3)
        found = only(environment, "source.recovered")
        assert found["absent_seconds"] is None
        assert found["gap_seconds"] == pytest.approx(36, abs=5)
        assert found["message"].endswith(
            "; the agent was not running in between, for an unknown time because the clock was set back"
        )


@STEPS
def test_outage_over_a_restart_is_separate_from_the_gap(tmp_path: Path, step: float) -> None:
    """The outage is measured by the monotonic clock between failed polls, the gap by the wall clock."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(TIMEOUT, 20)
        environment.restart(100)
        environment.live(20)
        environment.clock.wall += step
        environment.live(20)
        environment.see(document(1), 3)
        found = only(environment, "source.recovered")
        assert found["gap_seconds"] == pytest.approx(55, abs=5)
        assert found["absent_seconds"] == pytest.approx(105, abs=8)


@pytest.mark.parametrize("mono", [0.0, 1_000.0])
def test_outage_is_recorded_after_exactly_ten_seconds(tmp_path: Path, mono: float) -> None:
    """Also if a pass runs at that moment, and right after the machine was switched on; no pass is wasted."""
    with AgentEnvironment(tmp_path) as environment:
        environment.clock.mono = mono
        environment.start_again()
        environment.live(400)
        environment.source.answer = TIMEOUT
        turns = 0
        began = environment.clock.mono
        while environment.clock.mono < began + 30 and turns < 1000:
            environment.clock.go(environment.agent.tick())
            turns += 1
        assert turns < 100
        assert len(environment.records("source.unavailable")) == 1


# -- life cycle of an event


def whole_life(environment: AgentEnvironment, *steps: float) -> None:
    """Run an event: Scheduled for 30 s, Started for 20 s, removed; the clock is set in each part."""
    first, second = steps
    environment.see(document(2, event()), 15)
    environment.clock.wall += first
    environment.live(15)
    environment.see(document(3, started(event())), 10)
    environment.clock.wall += second
    environment.live(10)
    environment.see(document(4), 3)


@STEPS
def test_summary_durations_ignore_clock_changes(tmp_path: Path, step: float) -> None:
    """In the record, the timeline, and the page."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        whole_life(environment, step, step)
        summary = only(environment, "completed")["summary"]
        assert summary["scheduled_duration_seconds"] == pytest.approx(30, abs=1.1)
        assert summary["started_duration_seconds"] == pytest.approx(20, abs=1.1)
        assert summary["gap_seconds"] < 5
        recorded = "\n".join(record_lines(environment.records("completed")[0]))
        waited = re.findall(r"started .*, ([^,]*) after ", recorded)
        assert len(waited) == (0 if step == -30 else 1)  # Started at the same wall-clock time as first seen
        assert "-" not in "".join(waited)
        assert "20 s" in page_of(environment)


@STEPS
def test_durations_in_records_are_plausible(tmp_path: Path, step: float) -> None:
    """No duration is negative or longer than the minute that passed; the notice is Azure's time minus the VM's."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        environment.see(TIMEOUT, 15)
        whole_life(environment, step, -step)
        for record in environment.records():
            for name, value in spans(record.data).items():
                assert value >= 0 or name.endswith("notice_seconds"), (record.kind, name)
                assert value <= 900 or name.endswith("notice_seconds"), (record.kind, name)


@pytest.mark.parametrize("step", [-3_600.0, -100.0])
def test_durations_are_unknown_after_a_restart_and_a_clock_set_back(tmp_path: Path, step: float) -> None:
    """Null in the record, and a text elsewhere."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        environment.see(document(2, event(EventSource="Platform")), 15)
        environment.see(document(3, started(event())), 10)
        environment.clock.wall += step
        environment.restart(5)
        environment.live(10)
        assert "ago" not in page_of(environment).split("EventId")[0].split("Approved by")[0].split("Started")[-1]
        environment.see(document(4), 3)
        found = only(environment, "completed")
        assert found["summary"]["started_duration_seconds"] is None
        assert found["summary"]["gap_seconds"] is None
        assert found["summary"]["scheduled_duration_seconds"] == pytest.approx(15, abs=0.1)
        recorded = "\n".join(record_lines(environment.records("completed")[0]))
        assert "not monitored for an unknown time" in recorded.replace("\n", " ")
        assert "None" not in recorded
        assert "None" not in page_of(environment)


def test_summary_after_a_restart_uses_the_wall_clock(tmp_path: Path) -> None:
    """It contains the gap too."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        environment.see(document(2, started(event())), 10)
        environment.restart(100)
        environment.live(10)
        environment.see(document(3), 3)
        summary = only(environment, "completed")["summary"]
        assert summary["started_duration_seconds"] == pytest.approx(120, abs=2)
        assert summary["gaps"] == 1
        assert summary["gap_seconds"] == pytest.approx(100, abs=6)


# -- histograms


def counted(environment: AgentEnvironment, name: str, kind: str = "Reboot") -> tuple[float, float]:
    return environment.value(f"{name}_count", event_type=kind) or 0.0, environment.value(
        f"{name}_sum", event_type=kind
    ) or 0.0


def test_started_duration_without_a_gap_is_in_the_histogram(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        environment.see(document(2, started(event())), 10)
        environment.see(document(3), 3)
        count, total = counted(environment, "started_duration_seconds")
        assert count == 1
        assert total == pytest.approx(10, abs=0.1)


@pytest.mark.parametrize("before", [True, False])
def test_gap_before_the_start_does_not_affect_the_histogram(tmp_path: Path, before: bool) -> None:
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        environment.see(document(2, event()), 5)
        environment.see(TIMEOUT, 30 if before else 0.5)
        environment.see(document(3, started(event())), 10)
        environment.see(TIMEOUT, 0.5 if before else 30)
        environment.see(document(4), 3)
        assert counted(environment, "started_duration_seconds")[0] == (1 if before else 0)


@pytest.mark.parametrize("away", [1.0, 3 * DAY])
@pytest.mark.parametrize("gone", [True, False])
def test_restart_during_a_started_event_keeps_it_out_of_the_histogram(tmp_path: Path, away: float, gone: bool) -> None:
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        environment.see(document(2, started(event())), 10)
        if gone:
            environment.source.answer = document(3)
        environment.restart(away)
        environment.live(5)
        environment.see(document(3), 3)
        assert len(environment.records("completed")) == 1
        assert counted(environment, "started_duration_seconds") == (0, 0)


@STEPS
def test_notice_is_in_the_histogram_only_without_a_gap_before(tmp_path: Path, step: float) -> None:
    """After a gap, a restart, or a clock change, the event may have been in the document earlier."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        environment.clock.wall += step
        environment.see(document(2, event()), 5)
        (record,) = environment.records("scheduled")
        unbroken = record.data["seen_before"] == "unbroken"
        assert unbroken == (step == 0)
        assert counted(environment, "notice_seconds")[0] == unbroken


# -- texts and freshness


@STEPS
def test_page_durations_ignore_clock_changes(tmp_path: Path, step: float) -> None:
    """A past time isn't shown as a future one."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        environment.see(document(2, started(event())), 10)
        environment.clock.wall += step
        environment.live(10)
        page = page_of(environment)
        assert "Reboot started 20 s ago" in page or "Reboot started 19 s ago" in page
        for name in ("Started", "Last successful poll", "Agent started", "First seen"):
            text = page.split(f"<dt>{name}</dt>")[1].split("</dd>")[0]
            assert "(in " not in text, name
            assert " d " not in text, name
            assert "ago)" in text or "now)" in text, name


@STEPS
def test_document_is_fresh_for_thirty_seconds_during_an_outage(tmp_path: Path, step: float) -> None:
    """On the page and for /-/ready."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 400)
        environment.see(TIMEOUT, 10)
        environment.clock.wall += step
        environment.live(10)
        assert environment.agent.status.fresh(environment.clock.instant())
        assert "Nothing is planned" in page_of(environment)
        environment.live(15)
        assert not environment.agent.status.fresh(environment.clock.instant())
        page = page_of(environment)
        assert "Not known at the moment" in page
        assert "UTC (3" in page.split("This page shows data from ")[1].split(".")[0]
        failing = page.split("<dt>Failing since</dt>")[1].split("</dd>")[0]
        assert "(3" in failing
        assert " s ago)" in failing


@STEPS
@pytest.mark.parametrize("kind", list(InterruptionKind))
def test_interruption_is_attributed_whatever_the_clock_is_set_to(
    tmp_path: Path, step: float, kind: InterruptionKind
) -> None:
    """While an event is Started, and a clock step for half a minute after it."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(1), 5)
        freeze = event(FREEZE, "Freeze")
        environment.see(document(2, started(freeze)), 20)
        environment.clock.wall += step
        for number, wait in ((2, 5.0), (3, 20.0), (3, 60.0)):
            environment.see(document(number, *([started(freeze)] if number == 2 else [])), wait)
            environment.observed_interruptions.append(Interruption(kind, 2.0, environment.clock.instant()))
            environment.live(5)
        recorded = [
            record.data["interruption"]["attributed"] for record in environment.records("interruption.observed")
        ]
        assert recorded == [True, kind is InterruptionKind.CLOCK_STEP, False]


# -- wait before the next poll


@pytest.mark.parametrize(
    "bad",
    [TIMEOUT, b"<html>", MetadataError("server-error", status_code=500), MetadataError("connect")],
    ids=["no answer", "no document", "500", "refused"],
)
@pytest.mark.parametrize("poll_interval", [1.0, 60.0])
def test_invalid_documents_delay_the_next_poll_by_two_seconds_at_most(
    tmp_path: Path, bad: bytes | MetadataError, poll_interval: float
) -> None:
    """A Spot eviction comes with 30 s of notice."""
    with AgentEnvironment(tmp_path, poll_interval=poll_interval) as environment:
        environment.live(poll_interval + 1)
        environment.see(bad, poll_interval)
        before = environment.value("polls_total") or 0.0
        environment.live(60)
        assert 30 <= (environment.value("polls_total") or 0.0) - before <= 61


@pytest.mark.parametrize(
    ("bad", "least", "most"),
    [
        (MetadataError("forbidden", status_code=403), 29, 31),
        (MetadataError("throttled", status_code=429, retry_after=17.0), 16, 18),
        (MetadataError("throttled", status_code=429, retry_after=60.0), 59, 61),
    ],
)
def test_refusals_and_retry_after_delay_the_next_poll(
    tmp_path: Path, bad: MetadataError, least: float, most: float
) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.see(bad, 2)
        before = environment.value("polls_total")
        environment.live(least - 2)
        assert environment.value("polls_total") == before
        environment.live(most - least + 1)
        assert environment.value("polls_total") != before
