"""Interruptions in the whole agent: their attribution to events, their counts, and the next poll."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from exporter.core.cycle import INTERRUPTION_RECORDS_AN_HOUR, interruption_patience
from exporter.core.records import Record, Vm
from exporter.core.state import Interruption, InterruptionKind
from exporter.errors import Failure
from exporter.metadata.errors import MetadataError
from exporter.page.view import render_page
from exporter.text.timeline import observed_interruption
from tests.support.agent_environment import FREEZE, NAME, TIMEOUT, AgentEnvironment, document, event, started
from tests.support.status_reading import answered

STEP, STALL = InterruptionKind.CLOCK_STEP, InterruptionKind.STALL
MIGRATION = event(FREEZE, "Freeze", DurationInSeconds=9)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[AgentEnvironment]:
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(1))
        yield environment


def notice(environment: AgentEnvironment, seconds: float, kind: InterruptionKind = STALL) -> None:
    """Let the observer return an interruption that it observed just now."""
    environment.observed_interruptions.append(Interruption(kind, seconds, environment.clock.instant()))


def starts(environment: AgentEnvironment) -> None:
    environment.see(document(2, MIGRATION), 60)
    environment.see(document(3, started(MIGRATION)), 3)


def recorded(environment: AgentEnvironment) -> list[dict[str, Any]]:
    return [record.data["interruption"] for record in environment.records("interruption.observed")]


def counted(environment: AgentEnvironment, kind: InterruptionKind, attributed: bool) -> tuple[float, float]:
    labels = {"kind": kind.value, "attributed": "true" if attributed else "false"}
    name = "observed_interruption_seconds"
    return environment.value(f"{name}_count", **labels) or 0.0, environment.value(f"{name}_sum", **labels) or 0.0


def summary(environment: AgentEnvironment) -> dict[str, Any]:
    (record,) = environment.records("completed")
    found: dict[str, Any] = record.data["summary"]
    return found


def test_observer_slows_down_only_without_an_own_event(environment: AgentEnvironment) -> None:
    """Not during an event of this VM, a failure, or while the name is unknown."""
    answers: list[bytes | Failure] = [
        document(2, event("neighbour", Resources=["other"])),
        document(3, MIGRATION),
        document(4),
        TIMEOUT,
    ]
    found = []
    for answer in answers:
        environment.see(answer, 2)
        found.append(environment.agent.status.may_hold_own_event)
        assert replace(environment.agent.status, vm=Vm()).may_hold_own_event
    assert found == [False, True, False, True]


def test_interruption_record_contains_its_length_and_the_totals_of_the_event(environment: AgentEnvironment) -> None:
    starts(environment)
    notice(environment, 3.0)
    environment.live(1)
    notice(environment, 5.5, STEP)
    environment.live(1)
    first, second = environment.records("interruption.observed")
    assert (first.subject, second.subject) == (FREEZE, FREEZE)
    assert first.id != second.id
    assert [(one["kind"], one["seconds"], one["attributed"]) for one in recorded(environment)] == [
        ("stall", 3.0, True),
        ("clock_step", 5.5, True),
    ]
    last = recorded(environment)[-1]
    assert (last["count"], last["total_seconds"], last["longest_seconds"]) == (2, 8.5, 5.5)
    assert last["announced_seconds"] == 9
    assert counted(environment, STALL, True) == (1, 3.0)
    assert counted(environment, STEP, True) == (1, 5.5)
    assert counted(environment, STEP, False) == (0, 0)


def test_interruption_observed_before_the_end_is_in_the_summary(environment: AgentEnvironment) -> None:
    """Its record comes before the closing record."""
    starts(environment)
    notice(environment, 4.2, STEP)
    environment.see(document(4))
    kinds = environment.kinds()
    assert kinds.index("interruption.observed") < kinds.index("completed")
    assert summary(environment)["interruption_seconds"] == 4.2
    assert summary(environment)["interruption_longest_seconds"] == 4.2


@pytest.mark.parametrize("kind", list(InterruptionKind))
def test_interruption_that_ends_with_the_event_is_in_the_summary(
    environment: AgentEnvironment, kind: InterruptionKind
) -> None:
    """The observer is asked after the document was read and before the event is closed."""
    starts(environment)
    environment.ending.append((kind, 4.2))
    environment.see(document(4))
    kinds = environment.kinds()
    assert kinds.index("interruption.observed") < kinds.index("completed")
    assert summary(environment)["interruption_seconds"] == 4.2


def test_interruption_after_the_end_has_a_separate_record_with_the_totals(environment: AgentEnvironment) -> None:
    """A clock is corrected some seconds after the event disappears."""
    starts(environment)
    notice(environment, 3.0)
    environment.see(document(4), 20)
    notice(environment, 5.0, STEP)
    environment.live(2)
    assert summary(environment)["interruption_seconds"] == 3.0
    late = environment.records("interruption.observed")[-1]
    assert late.subject == FREEZE
    assert (late.data["interruption"]["count"], late.data["interruption"]["total_seconds"]) == (2, 8.0)
    (closed,) = environment.agent.status.state.closed.values()
    assert closed.interruptions.total == 8.0
    page = render_page(answered(environment.agent.status, environment.clock.instant())).decode().replace("\u00a0", " ")
    assert "8 s in 2 interruptions, the longest 5 s" in page


def test_event_without_interruption_has_count_zero_and_no_seconds(environment: AgentEnvironment) -> None:
    starts(environment)
    environment.see(document(4))
    found = summary(environment)
    assert found["interruptions_observed"] == 0
    assert found["interruption_seconds"] is None
    assert found["interruption_longest_seconds"] is None
    assert observed_interruption(found).replace("\u00a0", " ") == "none observed (≥ 0.2 s)"


def test_interruption_waits_two_polls_for_its_event(environment: AgentEnvironment) -> None:
    """A freeze can end before the document shows its start."""
    environment.see(document(2, MIGRATION), 60)
    notice(environment, 5.0, STEP)
    environment.live(1)
    assert recorded(environment) == []
    environment.see(document(3, started(MIGRATION)))
    (found,) = recorded(environment)
    assert found["attributed"] is True


def test_interruption_during_an_outage_is_in_the_summary_of_its_event(environment: AgentEnvironment) -> None:
    """A host that moves the VM doesn't respond either. The record doesn't wait for the document with the start."""
    environment.see(document(2, MIGRATION), 60)
    environment.source.answer = MetadataError("timeout", "no answer")
    environment.live(1)
    notice(environment, 5.0, STEP)
    observed = environment.clock.utc()
    environment.live(5)
    (record,) = environment.records("interruption.observed")
    assert record.time == observed
    assert record.data["interruption"]["attributed"] is False
    assert record.data["message"].endswith("while the metadata service was unavailable")
    environment.live(9)
    environment.see(document(3, started(MIGRATION)), 12)
    environment.see(document(4), 3)
    assert (summary(environment)["interruptions_observed"], summary(environment)["interruption_seconds"]) == (1, 5.0)
    assert len(recorded(environment)) == 1


@pytest.mark.parametrize("started_before", [True, False])
def test_interruption_is_committed_in_time_during_an_outage(
    environment: AgentEnvironment, started_before: bool
) -> None:
    """Under the time of observation; a killed process doesn't lose it."""
    environment.see(document(2, MIGRATION), 60)
    if started_before:
        environment.see(document(3, started(MIGRATION)), 5)
    environment.source.answer = MetadataError("timeout", "no answer")
    environment.live(20)
    notice(environment, 5.0, STEP)
    observed = environment.clock.utc()
    environment.live(interruption_patience(1.0) + 0.1)
    environment.restart(60)
    environment.live(20)
    (record,) = environment.records("interruption.observed")
    assert record.time == observed
    assert record.data["interruption"]["attributed"] is started_before
    assert counted(environment, STEP, started_before) == (0, 0)  # counted by the previous process


def test_interruption_is_recorded_during_a_hanging_poll(environment: AgentEnvironment) -> None:
    """So is the outage; the response takes as long as the first one may."""
    environment.see(document(2, MIGRATION), 5)
    environment.see(document(3, started(MIGRATION)), 5)

    def hang() -> None:
        for second in range(120):
            environment.clock.go(1.0)
            if second == 40:
                notice(environment, 5.0, STEP)
            environment.agent.while_polling()
            if second == 43:
                assert [found["attributed"] for found in recorded(environment)] == [True]
        raise MetadataError("timeout", "no answer")

    environment.source.polling = hang
    environment.live(1)
    assert len(recorded(environment)) == 1


@pytest.mark.parametrize(
    ("seconds", "kind", "sentence"),
    [
        (5.0, STALL, "Interruption of 5.0 s observed (stall) while no event of this VM was Started"),
        (5.0, STEP, "The clock of this VM was set forward by 5.0 s while no event of this VM was Started"),
        (-3600.0, STEP, "The clock of this VM was set back by 3600.0 s while no event of this VM was Started"),
    ],
)
def test_interruption_without_an_event_is_recorded_as_unattributed(
    environment: AgentEnvironment, seconds: float, kind: InterruptionKind, sentence: str
) -> None:
    """A clock that is set back is recorded, but not in the histogram."""
    notice(environment, seconds, kind)
    environment.live(6)
    (record,) = environment.records("interruption.observed")
    assert (record.subject, record.data["message"], record.data["event"]) == (NAME, sentence, None)
    (found,) = recorded(environment)
    assert (found["seconds"], found["attributed"]) == (seconds, False)
    assert counted(environment, kind, False) == ((1, seconds) if seconds > 0 else (0, 0))
    assert counted(environment, kind, True) == (0, 0)


def test_clock_set_back_during_an_event_is_not_attributed(environment: AgentEnvironment) -> None:
    starts(environment)
    notice(environment, -2.0, STEP)
    environment.live(1)
    assert recorded(environment)[0]["attributed"] is False
    environment.see(document(4))
    assert summary(environment)["interruptions_observed"] == 0


def test_interruption_is_not_attributed_to_a_neighbours_event(environment: AgentEnvironment) -> None:
    theirs = event(FREEZE, "Freeze", "web-9", DurationInSeconds=9)
    environment.see(document(2, theirs), 10)
    environment.see(document(3, started(theirs)), 3)
    notice(environment, 5.0)
    environment.live(6)
    (found,) = recorded(environment)
    assert found["attributed"] is False


def test_interruption_records_are_limited_per_hour(environment: AgentEnvironment) -> None:
    """The histogram counts all; those of an event are recorded beyond the limit."""
    for _ in range(60):
        notice(environment, 0.3)
        environment.live(1)
    environment.live(5)
    assert len(recorded(environment)) == INTERRUPTION_RECORDS_AN_HOUR
    assert counted(environment, STALL, False)[0] == 60
    starts(environment)
    notice(environment, 5.0, STEP)
    environment.live(1)
    assert recorded(environment)[-1]["attributed"] is True
    environment.see(document(4), 3600)
    notice(environment, 0.4)
    environment.live(6)
    assert recorded(environment)[-1]["seconds"] == 0.4


def test_summary_contains_interruptions_beyond_the_record_limit(environment: AgentEnvironment) -> None:
    starts(environment)
    for _ in range(60):
        notice(environment, 0.5)
        environment.live(1)
    assert len(recorded(environment)) == INTERRUPTION_RECORDS_AN_HOUR
    environment.see(document(4), 2)
    found = summary(environment)
    assert (found["interruptions_observed"], found["interruption_seconds"]) == (60, 30.0)
    notice(environment, 1.5)
    environment.live(1)
    assert recorded(environment)[-1]["total_seconds"] == 31.5


def test_stop_records_waiting_interruptions(environment: AgentEnvironment) -> None:
    """Without an event, before the last record of the process."""
    notice(environment, 5.0)
    environment.live(1)
    notice(environment, 6.0)
    environment.agent.stop()
    assert [one["seconds"] for one in recorded(environment)] == [5.0, 6.0]
    assert environment.kinds()[-1] == "agent.stopped"


def test_interruption_record_survives_a_json_round_trip(environment: AgentEnvironment) -> None:
    starts(environment)
    notice(environment, 3.25)
    environment.live(1)
    (record,) = environment.records("interruption.observed")
    assert Record.from_json(record.to_json()) == record


# -- the next poll


@dataclass(frozen=True)
class Jump:
    mono: float
    wall: float


JUMPS = [
    pytest.param(Jump(90.0, 90.0), id="stopped for a minute and a half"),
    pytest.param(Jump(0.5, 90.5), id="paused, and corrected"),
    pytest.param(Jump(0.5, 0.5), id="paused, not yet corrected"),
    pytest.param(Jump(0.5, -3599.5), id="set back by an hour"),
    pytest.param(Jump(0.5, 86400.0), id="set forward by a day"),
]


@pytest.mark.parametrize("jump", JUMPS)
def test_polling_continues_at_its_interval_after_an_interruption(environment: AgentEnvironment, jump: Jump) -> None:
    """However the clocks moved: one poll when it is due, and the next a second later."""
    environment.live(5)
    began = len(environment.kept)
    wait = environment.agent.tick()
    assert 0 < wait <= 1.0
    environment.clock.mono += jump.mono
    environment.clock.wall += jump.wall
    polls = []
    for _ in range(6):
        before = len(environment.kept)
        wait = environment.agent.tick()
        polls.append(len(environment.kept) - before)
        assert 0 <= wait <= 1.0
        environment.clock.go(max(wait, 0.01))
    assert max(polls) == 1
    assert len(environment.kept) - began in {5, 6, 7}
    assert wait == pytest.approx(1.0)
