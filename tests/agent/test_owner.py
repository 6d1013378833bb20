"""Adoption of the stored state: a copied disk contains the state of another VM, so it waits for the identity."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from exporter.agent.persistence import OWNER_SECONDS
from exporter.core.records import KINDS, Record, Vm, VmIdentity
from exporter.core.state import Interruption, InterruptionKind
from tests.support.agent_environment import (
    FREEZE,
    NAME,
    OTHER_VM,
    REBOOT,
    TIMEOUT,
    VM,
    AgentEnvironment,
    document,
    event,
    policy,
    started,
)

SILENT: Final = VmIdentity(Vm(name=NAME), confirmed=False)
"""The configured name, while the metadata service doesn't return the identity."""
NO_ID: Final = VmIdentity(Vm(name=NAME))
"""The same after a 404."""
NAMELESS: Final = VmIdentity(confirmed=False)
"""No configured name, and the metadata service doesn't return the identity."""
BOOT: Final = "0b2c7b5f-5d5b-4b39-9d38-dd3b8f6a1f4e"
NEXT_BOOT: Final = "57fb6e2e-93e5-4ba6-9a4c-3b9c9e3d4b0d"


def available(environment: AgentEnvironment) -> list[Record]:
    """Return all records that a destination can get now."""
    found: list[Record] = []
    while batch := environment.outbox.next("otlp", 100):
        found += [queued.record for queued in batch]
        environment.outbox.delivered("otlp", [queued.seq for queued in batch])
    return found


def logged_ids(environment: AgentEnvironment) -> set[str]:
    """Return the ids of the records in the log."""
    return {found for kind in KINDS for line in environment.said(kind) for found in re.findall(r" id=(\S+)", line)}


def restart_process(environment: AgentEnvironment, given: VmIdentity) -> None:
    """Start another process with the same disk."""
    environment.identity = given
    environment.restart()


def test_state_and_records_of_another_vm_are_not_used(tmp_path: Path) -> None:
    """Its event isn't shown, its records aren't sent, and the file is quarantined once this VM is known."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 3)
        environment.clock.go(60)
        restart_process(environment, SILENT)
        assert not environment.agent.status.state.tracked
        environment.see(document(3, event(FREEZE, "Freeze", EventSource="Platform")), OWNER_SECONDS - 10)
        assert environment.outbox.next("otlp", 100) == []
        assert environment.outbox.needs_polling("otlp")
        assert list(environment.agent.status.state.tracked) == [FREEZE.lower()]
        assert environment.writable
        environment.identity = VmIdentity(OTHER_VM)
        environment.live(3)
        assert {record.subject for record in available(environment)} == {FREEZE, NAME}
        assert list(tmp_path.glob("outbox.db.other-vm-*"))


@pytest.mark.parametrize("given", [VmIdentity(VM), NO_ID], ids=["the same vmId", "a 404"])
def test_state_is_adopted_once_the_identity_is_known(tmp_path: Path, given: VmIdentity) -> None:
    """The event continues: it is neither recorded nor approved again."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 3)
        restart_process(environment, SILENT)
        environment.live(20)
        environment.identity = given
        environment.live(3)
        kinds = [record.kind for record in available(environment)]
        assert kinds.count("scheduled") == kinds.count("approval.accepted") == 1
        assert kinds.count("agent.started") == 2
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]


def test_state_is_adopted_after_a_minute_without_an_identity(tmp_path: Path) -> None:
    """Until then records stay in memory, and no approval is sent."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, event()), 3)
        restart_process(environment, SILENT)
        environment.see(document(3, event(), event(FREEZE, "Freeze")), OWNER_SECONDS - 5)
        assert FREEZE not in {record.subject for record in environment.records()}
        environment.live(10)
        assert FREEZE in {record.subject for record in environment.records("scheduled")}
        assert [event_id for _, event_id in environment.source.posts] == [REBOOT]
        ids = [record.id for record in available(environment)]
        assert len(ids) == len(set(ids)) > 0


def test_interruption_and_outage_before_the_adoption_are_recorded(tmp_path: Path) -> None:
    """The interruption at its time of observation, the outage from its beginning; each once."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run")) as environment:
        environment.see(document(2, started(event())), 3)
        restart_process(environment, SILENT)
        began = environment.clock.utc()
        environment.observed_interruptions.append(
            Interruption(InterruptionKind.STALL, 2.0, environment.clock.instant())
        )
        environment.live(8)
        failing = environment.clock.utc()
        environment.see(TIMEOUT, OWNER_SECONDS)
        (interruption,) = environment.records("interruption.observed")
        noticed = datetime.fromisoformat(interruption.data["interruption"]["noticed_at"])
        assert abs(noticed - began) < timedelta(seconds=1)
        (unavailable,) = environment.records("source.unavailable")
        assert abs(datetime.fromisoformat(unavailable.data["since"]) - failing) < timedelta(seconds=3)
        environment.see(document(2, started(event())), 15)
        assert environment.kinds().count("agent.started") == 2
        assert environment.kinds().count("source.unavailable") == environment.kinds().count("source.recovered") == 1
        ids = [record.id for record in environment.records()]
        assert len(ids) == len(set(ids))


def test_stored_document_is_shown_after_a_quick_restart(tmp_path: Path) -> None:
    """At most 30 s: the gauges have no hole, and the gate doesn't open. No decision uses it."""
    with AgentEnvironment(tmp_path) as environment:
        environment.see(document(2, started(event())), 3)
        restart_process(environment, SILENT)
        assert environment.value("events", event_type="Reboot", event_status="Started") == 1
        environment.see(TIMEOUT, 5)
        assert environment.value("events", event_type="Reboot", event_status="Started") == 1
        assert environment.value("up") == 0
        assert not environment.agent.status.state.process.decisions
        environment.live(40)
        assert environment.value("events", event_type="Reboot", event_status="Started") == 0


@pytest.mark.parametrize("given", [SILENT, NAMELESS], ids=["a configured name", "no name"])
def test_state_of_the_same_boot_is_adopted_without_the_identity(tmp_path: Path, given: VmIdentity) -> None:
    """A copied disk is never in the same boot. A short event before the identity is known is recorded."""
    with AgentEnvironment(tmp_path, boot_id=BOOT) as environment:
        environment.see(document(2), 3)
        restart_process(environment, given)
        environment.see(document(3, event()), 2)
        environment.see(document(4, started(event())), 2)
        environment.see(document(5), 2)
        environment.identity = VmIdentity(VM)
        environment.live(3)
        kinds = [record.kind for record in environment.records() if record.subject == REBOOT]
        assert [kind for kind in kinds if kind != "approval.decided"] == ["scheduled", "started", "completed"]
        assert not environment.source.posts
        assert environment.kinds().count("agent.started") == 2
        assert len(environment.said("agent.started")) == 2
        assert logged_ids(environment) == {record.id for record in environment.records()}


def test_interruption_in_the_same_boot_is_committed_without_the_identity(tmp_path: Path) -> None:
    """Without any response, a stall of a Started event is on disk within two polls and a second."""
    with AgentEnvironment(tmp_path, policy(mode="dry-run"), boot_id=BOOT) as environment:
        environment.see(document(2, started(event())), 3)
        restart_process(environment, NAMELESS)
        environment.see(TIMEOUT, 4)
        environment.observed_interruptions.append(
            Interruption(InterruptionKind.STALL, 2.0, environment.clock.instant())
        )
        environment.live(4)
        (interruption,) = environment.records("interruption.observed")
        assert interruption.subject == REBOOT
        restart_process(environment, NAMELESS)
        environment.live(12)
        assert len(environment.records("source.unavailable")) == 1
        environment.see(document(2, started(event())), 3)
        assert len(environment.records("source.recovered")) == 1
        environment.identity = VmIdentity(VM)
        environment.see(document(3), 3)
        (completed,) = environment.records("completed")
        assert completed.data["summary"]["interruptions_observed"] == 1
        assert len(environment.records("interruption.observed")) == 1


@pytest.mark.parametrize("boots", [(BOOT, NEXT_BOOT), ("windows-7", "windows-7"), ("", "")])
def test_state_of_another_or_unproven_boot_waits_for_the_identity(tmp_path: Path, boots: tuple[str, str]) -> None:
    """Log lines before the adoption have no record id."""
    with AgentEnvironment(tmp_path, boot_id=boots[0]) as environment:
        environment.see(document(2), 3)
        environment.identity = NAMELESS
        environment.restart(boot_id=boots[1])
        environment.see(document(3, event()), 2)
        environment.see(document(4), 2)
        assert environment.records("scheduled") == []
        environment.identity = VmIdentity(VM)
        environment.live(3)
        assert environment.said("scheduled")
        assert logged_ids(environment) <= {record.id for record in environment.records()}
        assert len([line for line in environment.said("agent.started") if " id=" in line]) == 2
