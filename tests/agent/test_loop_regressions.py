"""What the properties of a random world found, each as a short story."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from exporter.core.document import folded
from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import MetadataError
from tests.support.agent_environment import REBOOT, AgentEnvironment, Source, document, event, policy, started


class Paused(Source):
    """The VM stands still for nine seconds just after the answer was read; its clock is set right at once."""

    pause = 9.0

    def fetch(self) -> MetadataResponse:
        answer = super().fetch()
        self.clock.wall += self.pause
        return answer


def test_a_document_from_before_a_pause_is_not_acted_on(tmp_path: Path) -> None:
    """A VM that stood still during its poll has an old document, by the wall clock alone: the next one counts."""
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
    """The process ends, and begins again before the volume with its outbox is there."""
    environment.outbox.close()
    shutil.move(folder, away)
    folder.write_text("no folder")
    environment.restart(1)


def find(folder: Path, away: Path) -> None:
    folder.unlink()
    shutil.move(away, folder)


@pytest.mark.parametrize("while_away", ["updated", "started"])
def test_what_was_seen_without_the_disk_is_told_beside_what_it_held(tmp_path: Path, while_away: str) -> None:
    """A change seen while the file could not be read has an id of its own; an event is not announced twice."""
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
def test_a_disk_that_fails_on_a_quiet_vm_is_told(tmp_path: Path) -> None:
    """Nothing is to be recorded for hours: that it could not be is on `/metrics` all the same, in about a minute."""
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
def test_the_time_started_is_not_told_over_a_life_without_the_disk(tmp_path: Path, while_away: str) -> None:
    """Started before the restart, and known to be so only when the file could be read: nobody watched all the time."""
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


def test_what_came_and_went_without_the_disk_is_not_recorded(tmp_path: Path) -> None:
    """The state that is found replaces what was observed without it, as at a restart."""
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


def test_an_event_that_was_taken_for_ours_is_told_to_be_another_vms(tmp_path: Path) -> None:
    """Resources that could not be read are published, being perhaps ours; that they turn out not to be is the end."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event(Resources="web-1")), 2)
        environment.see(document(3, event(Resources=["web-2"])), 2)
        assert [record.kind for record in environment.records("scheduled", "updated", "ended")] == [
            "scheduled",
            "ended",
        ]


def test_an_id_in_another_spelling_keeps_its_place(tmp_path: Path) -> None:
    """Ids are compared without regard to case: records of one event wait in one line, however each spells it."""
    with AgentEnvironment(tmp_path) as environment:
        for number, spelt in enumerate((REBOOT, REBOOT.lower(), REBOOT), start=2):
            environment.see(document(number, event(spelt, EventSource="Platform", Description=str(number))), 2)
        sent: list[str] = []
        while waiting := environment.outbox.next("otlp", 100):
            sent += [queued.record.id for queued in waiting]
            environment.outbox.delivered("otlp", [queued.seq for queued in waiting])
        recorded = [record.id for record in environment.records() if folded(record.subject) == folded(REBOOT)]
        assert [record for record in sent if record in recorded] == recorded


def test_after_a_clock_set_back_the_age_is_still_true(tmp_path: Path) -> None:
    """A restart with a source that fails shows when the last document was read, by the clock as it was then set."""
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


def test_a_clock_that_runs_ahead_brings_no_turn_forward(tmp_path: Path) -> None:
    """The second name waits by both clocks: steps too small to be a gap do not count as time that it watched."""
    with AgentEnvironment(tmp_path, policy(takeover_after=20.0)) as environment:
        environment.source.answer = document(2, event(REBOOT, "Reboot", "web-2", "web-1"))
        began = environment.clock.mono
        for _ in range(15):
            environment.live(1)
            environment.clock.wall += 3
        assert environment.source.posts == []
        environment.live(25 - (environment.clock.mono - began))
        assert len(environment.source.posts) == 1


def test_what_a_started_event_says_of_its_time_and_takes_back_is_told(tmp_path: Path) -> None:
    """Losing NotBefore is part of the start and of nothing else: later it is a field that changed."""
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
def test_what_holds_an_approval_is_known_after_the_disk_is_found(tmp_path: Path, while_away: str) -> None:
    """An id that was seen Started without the disk is never approved; a number that went down holds as ever."""
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
