"""The stored state of an unknown owner: a copied disk has the state of another VM. It is used once this VM is known."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from exporter.agent.persistence import OWNER_SECONDS
from exporter.core.records import Record, Vm, VmIdentity
from exporter.core.state import Interruption, InterruptionKind
from tests.support.agent_world import (
    FREEZE,
    NAME,
    OTHER_VM,
    REBOOT,
    TIMEOUT,
    VM,
    World,
    document,
    event,
    policy,
    started,
)

SILENT: Final = VmIdentity(Vm(name=NAME), confirmed=False)
"""The configured name, while the metadata service does not return the identity."""
NO_ID: Final = VmIdentity(Vm(name=NAME))
"""The same after a 404."""


def taken(world: World) -> list[Record]:
    """All that a destination gets now."""
    found: list[Record] = []
    while batch := world.outbox.next("otlp", 100):
        found += [queued.record for queued in batch]
        world.outbox.delivered("otlp", [queued.seq for queued in batch])
    return found


def begins_again(world: World, who: VmIdentity) -> None:
    """Another process on the disk that this world has written."""
    world.who = who
    world.restart()


def test_nothing_of_another_vms_disk_is_used_or_delivered(tmp_path: Path) -> None:
    """Its event isn't shown, its records aren't sent, and once this VM is known the file is set aside."""
    with World(tmp_path) as world:
        world.see(document(2, event()), 3)
        world.clock.go(60)
        begins_again(world, SILENT)
        assert not world.agent.status.state.tracked
        world.see(document(3, event(FREEZE, "Freeze", EventSource="Platform")), OWNER_SECONDS - 10)
        assert world.outbox.next("otlp", 100) == []
        assert world.outbox.must_look_again("otlp")
        assert list(world.agent.status.state.tracked) == [FREEZE.lower()]
        assert world.writable
        world.who = VmIdentity(OTHER_VM)
        world.live(3)
        assert {record.subject for record in taken(world)} == {FREEZE, NAME}
        assert list(tmp_path.glob("outbox.db.other-vm-*"))


@pytest.mark.parametrize("who", [VmIdentity(VM), NO_ID], ids=["the same vmId", "a 404"])
def test_the_state_is_used_as_soon_as_the_identity_is_answered(tmp_path: Path, who: VmIdentity) -> None:
    """The event goes on: it is not recorded again, and its approval is not sent again."""
    with World(tmp_path) as world:
        world.see(document(2, event()), 3)
        begins_again(world, SILENT)
        world.live(20)
        world.who = who
        world.live(3)
        kinds = [record.kind for record in taken(world)]
        assert kinds.count("scheduled") == kinds.count("approval.accepted") == 1
        assert kinds.count("agent.started") == 2
        assert [event_id for _, event_id in world.source.posts] == [REBOOT]


def test_a_silent_identity_keeps_records_in_memory_for_a_minute_only(tmp_path: Path) -> None:
    """Then the state is used, and what is new is on disk. Until then no approval is sent."""
    with World(tmp_path) as world:
        world.see(document(2, event()), 3)
        begins_again(world, SILENT)
        world.see(document(3, event(), event(FREEZE, "Freeze")), OWNER_SECONDS - 5)
        assert FREEZE not in {record.subject for record in world.records()}
        world.live(10)
        assert FREEZE in {record.subject for record in world.records("scheduled")}
        assert [event_id for _, event_id in world.source.posts] == [REBOOT]
        ids = [record.id for record in taken(world)]
        assert len(ids) == len(set(ids)) > 0


def test_an_interruption_and_an_outage_before_that_are_recorded(tmp_path: Path) -> None:
    """An interruption under the time at which it was observed, the outage from its beginning; each once."""
    with World(tmp_path, policy(mode="dry-run")) as world:
        world.see(document(2, started(event())), 3)
        begins_again(world, SILENT)
        began = world.clock.utc()
        world.felt.append(Interruption(InterruptionKind.STALL, 2.0, world.clock.instant()))
        world.live(8)
        failing = world.clock.utc()
        world.see(TIMEOUT, OWNER_SECONDS)
        (interruption,) = world.records("interruption.observed")
        noticed = datetime.fromisoformat(interruption.data["interruption"]["noticed_at"])
        assert abs(noticed - began) < timedelta(seconds=1)
        (unavailable,) = world.records("source.unavailable")
        assert abs(datetime.fromisoformat(unavailable.data["since"]) - failing) < timedelta(seconds=3)
        world.see(document(2, started(event())), 15)
        assert world.kinds().count("agent.started") == 2
        assert world.kinds().count("source.unavailable") == world.kinds().count("source.recovered") == 1
        ids = [record.id for record in world.records()]
        assert len(ids) == len(set(ids))


def test_what_was_read_just_before_a_restart_is_shown_until_it_is_read_again(tmp_path: Path) -> None:
    """A restart of half a minute at most leaves no hole in the gauges and opens no gate. Nothing is decided on it."""
    with World(tmp_path) as world:
        world.see(document(2, started(event())), 3)
        begins_again(world, SILENT)
        assert world.value("events", event_type="Reboot", event_status="Started") == 1
        world.see(TIMEOUT, 5)
        assert world.value("events", event_type="Reboot", event_status="Started") == 1
        assert world.value("up") == 0
        assert not world.agent.status.decisions
        world.live(40)
        assert world.value("events", event_type="Reboot", event_status="Started") == 0
