"""Regressions that property tests found, each as a short scenario."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from exporter.core.document import folded
from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import MetadataError
from tests.support.agent_environment import REBOOT, AgentEnvironment, Source, document, event, policy, started


class Paused(Source):
    """A VM that is paused for nine seconds right after the response was read; then its clock is set."""

    pause = 9.0

    def fetch(self) -> MetadataResponse:
        answer = super().fetch()
        self.clock.wall += self.pause
        return answer


def test_document_from_before_a_pause_postpones_the_approval(tmp_path: Path) -> None:
    """Only the wall clock shows that the document is old."""
    with AgentEnvironment(tmp_path, source=Paused) as environment:
        environment.source.answer = document(2, event())
        environment.agent.tick()
        assert environment.source.posts == []
        assert len(environment.said("approval.postponed")) == 1
        assert isinstance(environment.source, Paused)
        environment.source.pause = 0.0
        environment.live(3)
        assert len(environment.source.posts) == 1


def lose(environment: AgentEnvironment, folder: Path, away: Path) -> None:
    """End the process, and start another before the volume with its outbox is available."""
    environment.outbox.close()
    shutil.move(folder, away)
    folder.write_text("no folder")
    environment.restart(1)


def find(folder: Path, away: Path) -> None:
    folder.unlink()
    shutil.move(away, folder)


@pytest.mark.parametrize("while_away", ["updated", "started"])
def test_change_before_a_late_outbox_is_recorded_with_its_own_id(tmp_path: Path, while_away: str) -> None:
    """The event isn't announced twice."""
    folder, away = tmp_path / "state", tmp_path / "away"
    with AgentEnvironment(tmp_path, path=folder / "outbox.db") as environment:
        environment.see(document(2, event(EventSource="Platform")), 2)
        environment.see(document(3, event(EventSource="Platform", Description="b")), 2)
        lose(environment, folder, away)
        environment.see(document(3, event(EventSource="Platform", Description="b")), 2)
        last = event(EventSource="Platform", Description="c")
        last = started(last) if while_away == "started" else last
        environment.see(document(4, last), 2)
        find(folder, away)
        environment.live(3)
        recorded = [record.kind for record in environment.records("scheduled", "updated", "started")]
        assert recorded == ["scheduled", "updated", while_away]
        environment.see(document(5), 2)
        closing = environment.records("completed", "canceled", "ended")
        assert [record.kind for record in closing] == ["completed" if while_away == "started" else "canceled"]
        ids = [record.id for record in environment.records()]
        assert len(ids) == len(set(ids))


@pytest.mark.linux("removes a folder with an open file")
def test_disk_failure_on_a_quiet_vm_is_on_metrics_within_a_minute(tmp_path: Path) -> None:
    """The heartbeat finds it, without a record to write."""
    folder = tmp_path / "state"
    with AgentEnvironment(tmp_path, path=folder / "outbox.db") as environment:
        environment.live(3)
        assert environment.value("outbox_writable") == 1
        shutil.rmtree(folder)
        folder.write_text("no folder")
        environment.live(65)
        for _ in range(30):
            assert environment.value("outbox_writable") == 0
            environment.live(20)
        folder.unlink()
        environment.live(3)
        assert environment.value("outbox_writable") == 1


@pytest.mark.parametrize("while_away", ["still", "gone"])
def test_started_duration_is_not_observed_over_a_process_without_the_outbox(tmp_path: Path, while_away: str) -> None:
    folder, away = tmp_path / "state", tmp_path / "away"
    given = event(EventSource="Platform")
    with AgentEnvironment(tmp_path, path=folder / "outbox.db") as environment:
        environment.see(document(2, given), 2)
        environment.see(document(3, started(given)), 2)
        lose(environment, folder, away)
        environment.clock.go(86_400)
        environment.see(document(3, started(given)) if while_away == "still" else document(4), 2)
        find(folder, away)
        environment.live(3)
        environment.see(document(4), 3)
        (completed,) = environment.records("completed")
        assert completed.data["summary"]["gaps"] == 1
        assert environment.value("events_closed_total", event_type="Reboot", outcome="completed") == 1
        assert environment.value("started_duration_seconds_count", event_type="Reboot") is None


def test_late_outbox_replaces_observations_of_removed_events(tmp_path: Path) -> None:
    folder, away = tmp_path / "state", tmp_path / "away"
    given = event(EventSource="Platform")
    with AgentEnvironment(tmp_path, path=folder / "outbox.db") as environment:
        for number, there in enumerate([given, None, given, None]):
            if number == 2:
                lose(environment, folder, away)
            environment.see(document(2 + number, *([there] if there else [])), 2)
        find(folder, away)
        environment.live(3)
        assert [record.kind for record in environment.records("scheduled", "canceled", "ended")] == [
            "scheduled",
            "canceled",
        ]


def test_event_with_unreadable_resources_ends_when_it_is_a_neighbours(tmp_path: Path) -> None:
    """It was published because it might have been the VM's own."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event(Resources="web-1")), 2)
        environment.see(document(3, event(Resources=["web-2"])), 2)
        assert [record.kind for record in environment.records("scheduled", "updated", "ended")] == [
            "scheduled",
            "ended",
        ]


def test_id_in_another_letter_case_keeps_its_place_in_the_queue(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        for number, spelt in enumerate((REBOOT, REBOOT.lower(), REBOOT), start=2):
            environment.see(document(number, event(spelt, EventSource="Platform", Description=str(number))), 2)
        sent: list[str] = []
        while waiting := environment.outbox.next("otlp", 100):
            sent += [queued.record.id for queued in waiting]
            environment.outbox.delivered("otlp", [queued.seq for queued in waiting])
        recorded = [record.id for record in environment.records() if folded(record.subject) == folded(REBOOT)]
        assert [record for record in sent if record in recorded] == recorded


def test_document_age_is_right_after_a_restart_and_a_clock_set_back(tmp_path: Path) -> None:
    with AgentEnvironment(tmp_path) as environment:
        environment.live(3)
        environment.clock.wall -= 3600
        environment.live(3)
        read = environment.clock.wall
        environment.source.answer = MetadataError("timeout")
        environment.restart(1)
        environment.live(1)
        shown = environment.value("last_successful_poll_timestamp_seconds")
        assert shown is not None
        assert read - 5 <= shown <= read


def test_fast_wall_clock_does_not_shorten_the_wait_of_the_second_name(tmp_path: Path) -> None:
    """Steps too small to count as a gap don't count as observed time."""
    with AgentEnvironment(tmp_path, policy(takeover_after=20.0)) as environment:
        environment.source.answer = document(2, event(REBOOT, "Reboot", "web-2", "web-1"))
        began = environment.clock.mono
        for _ in range(15):
            environment.live(1)
            environment.clock.wall += 3
        assert environment.source.posts == []
        environment.live(25 - (environment.clock.mono - began))
        assert len(environment.source.posts) == 1


def test_not_before_of_a_started_event_is_recorded_as_an_update(tmp_path: Path) -> None:
    """Only its removal with the start isn't a change."""
    with AgentEnvironment(tmp_path) as environment:
        given = started(event(EventSource="Platform"))
        for number, not_before in enumerate(("", "soon", ""), start=2):
            environment.see(document(number, {**given, "NotBefore": not_before}), 2)
        assert [record.kind for record in environment.records("started", "updated")] == [
            "started",
            "updated",
            "updated",
        ]


@pytest.mark.parametrize("while_away", ["started", "number down"])
def test_reasons_to_hold_are_kept_when_a_late_outbox_is_adopted(tmp_path: Path, while_away: str) -> None:
    """An id seen Started is never approved; a lower incarnation holds as usual."""
    folder, away = tmp_path / "state", tmp_path / "away"
    given = event()
    with AgentEnvironment(tmp_path, policy(hold_file=str(tmp_path / "hold")), path=folder / "outbox.db") as environment:
        (tmp_path / "hold").touch()
        environment.see(document(2, given), 2)
        lose(environment, folder, away)
        environment.see(document(30, started(given) if while_away == "started" else given), 12)
        environment.see(document(31 if while_away == "started" else 20, given), 2)
        find(folder, away)
        (tmp_path / "hold").unlink()
        environment.live(2)
        assert environment.source.posts == []
        environment.live(15)
        assert len(environment.source.posts) == (while_away != "started")
