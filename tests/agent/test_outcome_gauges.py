"""The outcome of an event in `/metrics`: as in its closing record, until 15 minutes after its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.core.cycle import CLOSED_REMEMBERED
from exporter.core.records import VmIdentity
from exporter.core.state import Interruption, InterruptionKind
from exporter.sinks.prometheus.catalogue import PREFIX
from exporter.sinks.prometheus.gauges import CLOSED_SECONDS
from tests.support.agent_environment import FREEZE, NAME, AgentEnvironment, document, event, started
from tests.support.metrics_reading import ids, samples

MIGRATION: Final = event(FREEZE, "Freeze", DurationInSeconds=5)
FAMILIES: Final = (
    "event_began_timestamp_seconds",
    "event_notice_seconds",
    "event_interruption_seconds",
)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[AgentEnvironment]:
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1), 5)
        yield environment


def outcomes(environment: AgentEnvironment) -> dict[str, tuple[str, str, str]]:
    """Return what started each event, the rule, and the outcome, by the event's id."""
    found = [s.labels for s in samples(environment.sink) if s.name == PREFIX + "event_began_timestamp_seconds"]
    assert len({labels["event_id"] for labels in found}) == len(found)
    return {labels["event_id"]: (labels["started_by"], labels["rule"], labels["outcome"]) for labels in found}


def numbers(environment: AgentEnvironment, event_id: str = FREEZE) -> list[float | None]:
    """Return when the event began, its notice, and its interruption."""
    found = {s.name: s.value for s in samples(environment.sink) if s.labels.get("event_id") == event_id}
    return [found.get(PREFIX + name) for name in FAMILIES]


def summary(environment: AgentEnvironment) -> dict[str, Any]:
    """Return the summary in the last closing record."""
    found: dict[str, Any] = environment.records("completed", "canceled", "ended")[-1].data["summary"]
    return found


def pause(environment: AgentEnvironment, seconds: float) -> None:
    """Let the observer return a clock step that it observed just now."""
    step = Interruption(InterruptionKind.CLOCK_STEP, seconds, environment.clock.instant())
    environment.observed_interruptions.append(step)


def freezes(environment: AgentEnvironment) -> float:
    """Approve a freeze, start it, and pause the VM for 4.2 s. Return the time of the start."""
    environment.see(document(2, MIGRATION), 10)
    began = environment.clock.wall
    environment.see(document(3, started(MIGRATION)))
    pause(environment, 4.2)
    environment.live(2)
    return began


def test_vm_without_events_has_no_outcome(environment: AgentEnvironment) -> None:
    assert not any(ids(environment.sink, name) for name in FAMILIES)


def test_outcome_is_that_of_the_closing_record(environment: AgentEnvironment) -> None:
    """While the event is open, it has none; what is known by then has its value."""
    began = freezes(environment)
    assert outcomes(environment) == {FREEZE: ("this_vm", "short-freeze", "")}
    environment.see(document(4))
    closing = summary(environment)
    assert outcomes(environment) == {FREEZE: (closing["started_by"], closing["rule"], closing["outcome"])}
    assert closing["outcome"] == "completed"
    assert numbers(environment) == [
        pytest.approx(began, abs=1),
        closing["notice_seconds"],
        closing["interruption_seconds"],
    ]
    assert closing["interruption_seconds"] == 4.2


def test_outcome_stays_for_fifteen_minutes(environment: AgentEnvironment) -> None:
    """By the clock that can't be set."""
    freezes(environment)
    environment.see(document(4))
    environment.clock.wall += 7200
    environment.live(CLOSED_SECONDS - 2)
    assert all(ids(environment.sink, name) == {FREEZE} for name in FAMILIES)
    environment.live(2)
    assert not any(ids(environment.sink, name) for name in FAMILIES)


def test_rule_is_known_after_a_restart(environment: AgentEnvironment) -> None:
    """The process that approved the event isn't the one that sees its end; one after its end shows nothing."""
    freezes(environment)
    environment.restart(60)
    environment.see(document(4))
    assert outcomes(environment) == {FREEZE: ("this_vm", "short-freeze", "completed")}
    environment.restart()
    environment.live(5)
    assert outcomes(environment) == {}


def test_event_that_never_started_has_no_starter(environment: AgentEnvironment) -> None:
    """It began when it was first seen, and a rule that didn't approve it isn't named."""
    seen = environment.clock.wall
    environment.see(document(2, event(FREEZE, "Freeze", DurationInSeconds=60)), 5)
    environment.see(document(3))
    assert outcomes(environment) == {FREEZE: ("", "", "canceled")}
    assert numbers(environment) == [pytest.approx(seen, abs=1), summary(environment)["notice_seconds"], None]


def test_late_interruption_is_added(environment: AgentEnvironment) -> None:
    """The host may correct the clock after the event has ended."""
    freezes(environment)
    environment.see(document(4))
    pause(environment, 2.0)
    environment.live(5)
    assert environment.value("event_interruption_seconds", event_id=FREEZE) == pytest.approx(6.2)


def test_event_that_no_longer_names_this_vm_has_ended(environment: AgentEnvironment) -> None:
    """It's still in the document, for its other VMs."""
    both = event("both", "Redeploy", NAME, "web-2", EventSource="Platform")
    environment.see(document(2, both), 5)
    environment.see(document(3, {**both, "Resources": ["web-2"]}), 5)
    assert outcomes(environment) == {"both": ("", "", "ended")}
    assert summary(environment)["outcome"] == "ended"
    environment.see(document(4, both), 5)
    assert outcomes(environment) == {"both": ("", "", "")}


def test_event_of_another_vm_has_no_outcome(environment: AgentEnvironment) -> None:
    environment.see(document(2, event("neighbour", "Reboot", "web-2")), 5)
    environment.see(document(3), 5)
    assert outcomes(environment) == {}


def test_outcomes_are_limited_to_the_last_events(environment: AgentEnvironment) -> None:
    crowd = [event(f"e-{number:02}", "Redeploy", EventSource="Platform") for number in range(CLOSED_REMEMBERED + 9)]
    environment.see(document(2, *crowd), 3)
    environment.see(document(3, *crowd[:1]), 3)
    environment.see(document(4), 3)
    assert len(outcomes(environment)) == CLOSED_REMEMBERED
    assert "e-00" in outcomes(environment)


def test_outcome_is_shown_while_the_name_is_unknown(environment: AgentEnvironment) -> None:
    """An event that ended was this VM's."""
    freezes(environment)
    environment.see(document(4))
    environment.identity = VmIdentity()
    environment.live(2)
    assert set(outcomes(environment)) == {FREEZE}
