"""The stored state of an unknown owner: a copied disk has the state of another VM. It is used once this VM is known."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from exporter.agent.persistence import OWNER_SECONDS
from exporter.core.records import KINDS, Record, Vm, VmIdentity
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
NAMELESS: Final = VmIdentity(confirmed=False)
"""No name is configured, and the metadata service does not return the identity."""
BOOT: Final = "0b2c7b5f-5d5b-4b39-9d38-dd3b8f6a1f4e"
NEXT_BOOT: Final = "57fb6e2e-93e5-4ba6-9a4c-3b9c9e3d4b0d"


def taken(world: World) -> list[Record]:
    """All that a destination gets now."""
    found: list[Record] = []
    while batch := world.outbox.next("otlp", 100):
        found += [queued.record for queued in batch]
        world.outbox.delivered("otlp", [queued.seq for queued in batch])
    return found


def logged_ids(world: World) -> set[str]:
    """The ids of the records that the log has."""
    return {found for kind in KINDS for line in world.said(kind) for found in re.findall(r" id=(\S+)", line)}


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
        assert not world.agent.status.state.process.decisions
        world.live(40)
        assert world.value("events", event_type="Reboot", event_status="Started") == 0


@pytest.mark.parametrize("who", [SILENT, NAMELESS], ids=["a configured name", "no name"])
def test_state_of_the_same_boot_is_used_without_the_identity(tmp_path: Path, who: VmIdentity) -> None:
    """No copied disk is in the same boot. So an event that comes and goes before the identity is known is recorded."""
    with World(tmp_path, boot_id=BOOT) as world:
        world.see(document(2), 3)
        begins_again(world, who)
        world.see(document(3, event()), 2)
        world.see(document(4, started(event())), 2)
        world.see(document(5), 2)
        world.who = VmIdentity(VM)
        world.live(3)
        kinds = [record.kind for record in world.records() if record.subject == REBOOT]
        assert [kind for kind in kinds if kind != "approval.decided"] == ["scheduled", "started", "completed"]
        assert not world.source.posts
        assert world.kinds().count("agent.started") == 2
        assert len(world.said("agent.started")) == 2
        assert logged_ids(world) == {record.id for record in world.records()}


def test_interruption_in_the_same_boot_is_on_disk_and_in_the_summary_without_the_identity(tmp_path: Path) -> None:
    """The metadata service is silent on both paths: a stall of a Started event is written within two polls and a
    second, and a kill does not lose it."""
    with World(tmp_path, policy(mode="dry-run"), boot_id=BOOT) as world:
        world.see(document(2, started(event())), 3)
        begins_again(world, NAMELESS)
        world.see(TIMEOUT, 4)
        world.felt.append(Interruption(InterruptionKind.STALL, 2.0, world.clock.instant()))
        world.live(4)
        (interruption,) = world.records("interruption.observed")
        assert interruption.subject == REBOOT
        begins_again(world, NAMELESS)
        world.live(12)
        assert len(world.records("source.unavailable")) == 1
        world.see(document(2, started(event())), 3)
        assert len(world.records("source.recovered")) == 1
        world.who = VmIdentity(VM)
        world.see(document(3), 3)
        (completed,) = world.records("completed")
        assert completed.data["summary"]["interruptions_observed"] == 1
        assert len(world.records("interruption.observed")) == 1


@pytest.mark.parametrize("boots", [(BOOT, NEXT_BOOT), ("windows-7", "windows-7"), ("", "")])
def test_state_of_another_or_unproven_boot_waits_for_the_identity(tmp_path: Path, boots: tuple[str, str]) -> None:
    """What the log then has before it is no record yet, and has no id."""
    with World(tmp_path, boot_id=boots[0]) as world:
        world.see(document(2), 3)
        world.who = NAMELESS
        world.restart(boot_id=boots[1])
        world.see(document(3, event()), 2)
        world.see(document(4), 2)
        assert world.records("scheduled") == []
        world.who = VmIdentity(VM)
        world.live(3)
        assert world.said("scheduled")
        assert logged_ids(world) <= {record.id for record in world.records()}
        assert len([line for line in world.said("agent.started") if " id=" in line]) == 2
