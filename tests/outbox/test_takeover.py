"""A file of the version before is taken over: its records are delivered, its events go on, no id is given twice."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from exporter.core.record_factory import NAMESPACE
from exporter.core.records import Record
from tests.support.agent_world import (
    DESTINATIONS,
    FREEZE,
    VM,
    Clock,
    Source,
    World,
    document,
    event,
    queued_in,
    started,
)
from tests.support.metrics_reading import value

BEFORE: Final = Path(__file__).parents[1] / "testdata" / "outbox" / "outbox.db"
"""See the README beside it."""
AWAY_SECONDS: Final = 120.0
DOUBT: Final = "33333333-0000-4000-8000-000000000003"
STARTED: Final = "44444444-0000-4000-8000-000000000004"
CHANGED_FREEZE: Final = event(FREEZE, "Freeze", EventSource="Platform", DurationInSeconds=9)


def later(clock: Clock) -> Source:
    """The source of an agent that starts a while after the last one ended."""
    clock.go(AWAY_SECONDS)
    return Source(clock)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """This version's agent on a copy of the file."""
    shutil.copy(BEFORE, tmp_path / "outbox.db")
    with World(tmp_path, source=later) as made:
        yield made


def ids(records: list[Record]) -> list[str]:
    return [record.id for record in records]


def number_id(event_id: str, kind: str, number: int) -> str:
    """The id of an event's record by the documented derivation."""
    return str(uuid.uuid5(NAMESPACE, f"{VM.id}\n{event_id.lower()}\n{kind}\n{number}"))


def test_the_file_is_used_as_it_is(world: World) -> None:
    """Nothing of it is set aside, and its state is the one that the agent goes on from."""
    assert world.outbox.notes == []
    assert sorted(path.name for path in world.path.parent.iterdir() if "corrupt" in path.name) == []
    state = world.agent.status.state
    assert state.vm_key == VM.id
    assert {key for key, approval in state.sent.items() if approval.accepted_at} == {
        f"0ld{number:05}-0000-4000-8000-000000000000" for number in range(6)
    }
    assert len(state.started_ids) == 9
    assert state.tracked[DOUBT].approval.doubtful
    assert state.outage is not None
    assert state.outage.recorded
    assert state.reset is not None


@pytest.mark.parametrize("destination", DESTINATIONS)
def test_what_was_not_delivered_is(world: World, destination: str) -> None:
    """Each destination gets what it had not taken, once, each event's records in order, and before what comes now."""
    waiting = queued_in(BEFORE, destination)
    assert len(waiting) == {"event_hubs": 23, "otlp": 21}[destination]
    queue = world.outbox.queues()[destination]
    assert (queue.records, queue.parked, queue.error) == (
        (23, 1, "connect") if destination == "event_hubs" else (21, 0, "")
    )
    world.live(2)
    taken: list[Record] = []
    while batch := world.outbox.next(destination, 100):
        taken += [queued.record for queued in batch]
        world.outbox.delivered(destination, [queued.seq for queued in batch])
    assert Counter(ids(taken)) & Counter(ids(waiting)) == Counter(ids(waiting))
    assert max(Counter(ids(taken)).values()) == 1
    for subject in {record.subject for record in waiting}:
        mine = [record.id for record in waiting if record.subject == subject]
        assert [record.id for record in taken if record.subject == subject][: len(mine)] == mine
    assert world.outbox.queues()[destination].parked == queue.parked


def test_nothing_is_told_twice(world: World) -> None:
    """The same events go on: no second beginning, no second approval of what was accepted; only the outage ends."""
    before = len(world.records())
    world.see(document(3, event(DOUBT), CHANGED_FREEZE, started(event(STARTED))), 30)
    now = world.records()[before:]
    assert not {"scheduled", "started", "updated", "ended", "canceled", "completed"} & {record.kind for record in now}
    assert [record.kind for record in now].count("source.recovered") == 1
    assert FREEZE not in [event_id for _, event_id in world.source.posts]
    assert len(set(ids(world.records()))) == len(world.records())


def test_a_forgotten_approval_is_remembered(world: World) -> None:
    """An id whose history is gone, but that was approved or seen started, is not approved again."""
    forgotten = "0LD00003-0000-4000-8000-000000000000"
    world.see(document(4, event(DOUBT), CHANGED_FREEZE, started(event(STARTED)), event(forgotten)), 60)
    assert forgotten not in [event_id for _, event_id in world.source.posts]


def test_the_numbers_go_on(world: World) -> None:
    """The next record of an event has the id that the version before would have given it."""
    world.see(document(4, event(DOUBT), event(FREEZE, "Freeze", DurationInSeconds=7), started(event(STARTED))), 5)
    (again,) = (record for record in world.records("updated")[1:] if record.subject == FREEZE)
    assert again.id == number_id(FREEZE, "updated", 9_000_002)
    world.see(document(5, event(DOUBT)), 5)
    (over,) = (record for record in world.records("completed") if record.subject == STARTED)
    assert over.id == number_id(STARTED, "completed", 9_000_001)
    assert len(set(ids(world.records()))) == len(world.records())
    assert value(world.sink, "outbox_records", destination="event_hubs") == len(world.records())
