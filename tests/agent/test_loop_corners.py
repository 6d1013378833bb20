"""What the properties of a random world found, each as a short story."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from exporter.core.document import folded
from exporter.metadata.client import Answer
from exporter.metadata.errors import MetadataError
from tests.support.agent_world import REBOOT, Source, World, document, event, policy, started


class Paused(Source):
    """The VM stands still for nine seconds just after the answer was read; its clock is set right at once."""

    pause = 9.0

    def fetch(self) -> Answer:
        answer = super().fetch()
        self.clock.wall += self.pause
        return answer


def test_a_document_from_before_a_pause_is_not_acted_on(tmp_path: Path) -> None:
    """A VM that stood still during its poll has an old document, by the wall clock alone: the next one counts."""
    with World(tmp_path, source=Paused) as world:
        world.source.answer = document(2, event())
        world.agent.tick()
        assert world.source.posts == []
        assert len(world.said("approval.postponed")) == 1
        assert isinstance(world.source, Paused)
        world.source.pause = 0.0
        world.live(3)
        assert len(world.source.posts) == 1


def lose(world: World, folder: Path, away: Path) -> None:
    """The process ends, and begins again before the volume with its outbox is there."""
    world.outbox.close()
    shutil.move(folder, away)
    folder.write_text("no folder")
    world.restart(1)


def find(folder: Path, away: Path) -> None:
    folder.unlink()
    shutil.move(away, folder)


@pytest.mark.parametrize("while_away", ["updated", "started"])
def test_what_was_seen_without_the_disk_is_told_beside_what_it_held(tmp_path: Path, while_away: str) -> None:
    """A change seen while the file could not be read has an id of its own; an event is not announced twice."""
    folder, away = tmp_path / "state", tmp_path / "away"
    with World(tmp_path, path=folder / "outbox.db") as world:
        world.see(document(2, event(EventSource="Platform")), 2)
        world.see(document(3, event(EventSource="Platform", Description="b")), 2)
        lose(world, folder, away)
        world.see(document(3, event(EventSource="Platform", Description="b")), 2)
        last = event(EventSource="Platform", Description="c")
        last = started(last) if while_away == "started" else last
        world.see(document(4, last), 2)
        find(folder, away)
        world.live(3)
        told = [record.kind for record in world.records("scheduled", "updated", "started")]
        assert told == ["scheduled", "updated", while_away]
        world.see(document(5), 2)
        closing = world.records("completed", "canceled", "ended")
        assert [record.kind for record in closing] == ["completed" if while_away == "started" else "canceled"]
        ids = [record.id for record in world.records()]
        assert len(ids) == len(set(ids))


@pytest.mark.linux("removes a folder with an open file")
def test_a_disk_that_fails_on_a_quiet_vm_is_told(tmp_path: Path) -> None:
    """Nothing is to be recorded for hours: that it could not be is on `/metrics` all the same, in about a minute."""
    folder = tmp_path / "state"
    with World(tmp_path, path=folder / "outbox.db") as world:
        world.live(3)
        assert world.value("outbox_writable") == 1
        shutil.rmtree(folder)
        folder.write_text("no folder")
        world.live(65)
        for _ in range(30):
            assert world.value("outbox_writable") == 0
            world.live(20)
        folder.unlink()
        world.live(3)
        assert world.value("outbox_writable") == 1


@pytest.mark.parametrize("while_away", ["still", "gone"])
def test_the_time_started_is_not_told_over_a_life_without_the_disk(tmp_path: Path, while_away: str) -> None:
    """Started before the restart, and known to be so only when the file could be read: nobody watched all the time."""
    folder, away = tmp_path / "state", tmp_path / "away"
    given = event(EventSource="Platform")
    with World(tmp_path, path=folder / "outbox.db") as world:
        world.see(document(2, given), 2)
        world.see(document(3, started(given)), 2)
        lose(world, folder, away)
        world.clock.go(86_400)
        world.see(document(3, started(given)) if while_away == "still" else document(4), 2)
        find(folder, away)
        world.live(3)
        world.see(document(4), 3)
        (completed,) = world.records("completed")
        assert completed.data["summary"]["gaps"] == 1
        assert world.value("events_closed_total", event_type="Reboot", outcome="completed") == 1
        assert world.value("started_duration_seconds_count", event_type="Reboot") is None


def test_what_came_and_went_without_the_disk_is_not_recorded(tmp_path: Path) -> None:
    """The state that is found replaces what was observed without it, as at a restart."""
    folder, away = tmp_path / "state", tmp_path / "away"
    given = event(EventSource="Platform")
    with World(tmp_path, path=folder / "outbox.db") as world:
        for number, there in enumerate([given, None, given, None]):
            if number == 2:
                lose(world, folder, away)
            world.see(document(2 + number, *([there] if there else [])), 2)
        find(folder, away)
        world.live(3)
        assert [record.kind for record in world.records("scheduled", "canceled", "ended")] == ["scheduled", "canceled"]


def test_an_event_that_was_taken_for_ours_is_told_to_be_another_vms(tmp_path: Path) -> None:
    """Resources that could not be read are published, being perhaps ours; that they turn out not to be is the end."""
    with World(tmp_path) as world:
        world.see(document(2, event(Resources="web-1")), 2)
        world.see(document(3, event(Resources=["web-2"])), 2)
        assert [record.kind for record in world.records("scheduled", "updated", "ended")] == ["scheduled", "ended"]


def test_an_id_in_another_spelling_keeps_its_place(tmp_path: Path) -> None:
    """Ids are compared without regard to case: records of one event wait in one line, however each spells it."""
    with World(tmp_path) as world:
        for number, spelt in enumerate((REBOOT, REBOOT.lower(), REBOOT), start=2):
            world.see(document(number, event(spelt, EventSource="Platform", Description=str(number))), 2)
        sent: list[str] = []
        while waiting := world.outbox.next("otlp", 100):
            sent += [queued.record.id for queued in waiting]
            world.outbox.delivered("otlp", [queued.seq for queued in waiting])
        told = [record.id for record in world.records() if folded(record.subject) == folded(REBOOT)]
        assert [record for record in sent if record in told] == told


def test_after_a_clock_set_back_the_age_is_still_true(tmp_path: Path) -> None:
    """A restart with a source that fails shows when the last document was read, by the clock as it was then set."""
    with World(tmp_path) as world:
        world.live(3)
        world.clock.wall -= 3600
        world.live(3)
        read = world.clock.wall
        world.source.answer = MetadataError("timeout")
        world.restart(1)
        world.live(1)
        shown = world.value("last_successful_poll_timestamp_seconds")
        assert shown is not None
        assert read - 5 <= shown <= read


def test_a_clock_that_runs_ahead_brings_no_turn_forward(tmp_path: Path) -> None:
    """The second name waits by both clocks: steps too small to be a gap do not count as time that it watched."""
    with World(tmp_path, policy(takeover_after=20.0)) as world:
        world.source.answer = document(2, event(REBOOT, "Reboot", "web-2", "web-1"))
        began = world.clock.mono
        for _ in range(15):
            world.live(1)
            world.clock.wall += 3
        assert world.source.posts == []
        world.live(25 - (world.clock.mono - began))
        assert len(world.source.posts) == 1


def test_what_a_started_event_says_of_its_time_and_takes_back_is_told(tmp_path: Path) -> None:
    """Losing NotBefore is part of the start and of nothing else: later it is a field that changed."""
    with World(tmp_path) as world:
        given = started(event(EventSource="Platform"))
        for number, not_before in enumerate(("", "soon", ""), start=2):
            world.see(document(number, {**given, "NotBefore": not_before}), 2)
        assert [record.kind for record in world.records("started", "updated")] == ["started", "updated", "updated"]


@pytest.mark.parametrize("while_away", ["started", "number down"])
def test_what_holds_an_approval_is_known_after_the_disk_is_found(tmp_path: Path, while_away: str) -> None:
    """An id that was seen Started without the disk is never approved; a number that went down holds as ever."""
    folder, away = tmp_path / "state", tmp_path / "away"
    given = event()
    with World(tmp_path, policy(hold_file=str(tmp_path / "hold")), path=folder / "outbox.db") as world:
        (tmp_path / "hold").touch()
        world.see(document(2, given), 2)
        lose(world, folder, away)
        world.see(document(30, started(given) if while_away == "started" else given), 12)
        world.see(document(31 if while_away == "started" else 20, given), 2)
        find(folder, away)
        (tmp_path / "hold").unlink()
        world.live(2)
        assert world.source.posts == []
        world.live(15)
        assert len(world.source.posts) == (while_away != "started")
