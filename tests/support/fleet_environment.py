"""A scale set that a test advances: one platform, and on each VM a whole agent with its disk, clocks, and backends.

Agent, outbox, and deliveries are the real ones. A process is killed at a boundary of the line by an exception that
nothing in it catches; the next one finds what was committed. Only the test counts the true time.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from exporter.agent.delivery import Delivery
from exporter.agent.loop import Agent
from exporter.agent.ports import AgentOptions, Environment
from exporter.core.document import folded
from exporter.core.policy import Presence
from exporter.core.records import Record, Vm, VmIdentity
from exporter.core.state import Instant
from exporter.log.log import Log
from exporter.sinks.prometheus.sink import PrometheusSink
from tests.support import oracle
from tests.support.agent_environment import DESTINATIONS, START
from tests.support.fleet_edges import Azure, Backend, Disk, Killed, Source
from tests.support.fleet_reading import LIFE, Post, Reading

VMS: Final = ("vm-0", "vm-1", "vm-2")
EVER: Final = 90.0
"""Seconds after which nothing waits any more: the longest backoff is 60, and `settle` at most 30."""


class Member:
    """One VM: the faults around it, and the process that runs on it."""

    def __init__(self, azure: Azure, name: str, root: Path, setup: oracle.PolicySetup, options: AgentOptions) -> None:
        self.azure, self.name, self.setup = azure, name, setup
        self.options = options
        self.folder, self.away = root / name, root / f"{name}-away"
        self.offset = self.stood_still = 0.0
        self.touched = self.life = 0
        self.source, self.answer, self.disk, self.hold = "fine", "200", "", "absent"
        self.linger, self.frozen_until, self.knows_at = 0.0, 0.0, 0.0
        self.fate = ("", 0)
        self.back_at: float | None = 0.0
        self.reading = Reading(options.all_events)
        self.backends = [Backend(destination, self) for destination in DESTINATIONS]

    # -- observations

    def utc(self) -> datetime:
        return datetime.fromtimestamp(START + self.azure.true + self.offset, UTC)

    @property
    def mono(self) -> float:
        return self.azure.true - self.stood_still

    @property
    def name_known(self) -> str:
        return self.name if self.azure.true >= self.knows_at else ""

    def identity(self) -> VmIdentity:
        known = self.name_known
        return VmIdentity(Vm(name=known, id=f"id-of-{known}") if known else Vm(), self.setup.conflict)

    def file(self, path: str) -> str:
        return self.hold if path == self.setup.hold_file else self.setup.file(path)

    def setup_now(self) -> oracle.PolicySetup:
        return replace(self.setup, vm_name=self.name_known, file=self.file)

    # -- faults

    def cross(self, boundary: str) -> None:
        """Kill the process if this is its chosen boundary."""
        if self.fate[0] == boundary:
            self.fate = (boundary, self.fate[1] - 1)
            if self.fate[1] == 0:
                raise Killed

    def lingers(self) -> None:
        """Delay the response; below zero the VM is frozen meanwhile, and its clock is corrected afterwards."""
        self.azure.true += abs(self.linger)
        if self.linger < 0:
            self.stood_still -= self.linger
            self.touched += 1

    def clock_is_set(self, seconds: float) -> None:
        self.offset += seconds
        self.touched += 1

    def freezes(self, seconds: float, set_right: bool) -> None:
        """Stop the process and its monotonic clock; the time of day may stay behind."""
        self.frozen_until = self.azure.true + seconds
        self.stood_still += seconds
        self.clock_is_set(0.0 if set_right else -seconds)

    def disk_is(self, word: str) -> None:
        """Set the disk to `full`, to `gone` with its content, or to working."""
        if (word == "gone") != (self.disk == "gone"):
            if word == "gone":
                shutil.move(self.folder, self.away) if self.folder.exists() else self.away.mkdir()
                self.folder.write_text("no folder")
            else:
                self.folder.unlink()
                shutil.move(self.away, self.folder)
        self.disk = word

    def posts(self, event_id: str) -> None:
        """Receive a POST: no reason may be against it, and its decision must be on disk."""
        self.azure.posts.append((self.azure.true, self.name, event_id))
        assert not self.disk, "without a disk"
        self.reading.judges(event_id, self.setup_now(), Post(self.azure.true, self.life, self.offset))
        about = [record for record in self.on_disk() if folded(record.subject) == folded(event_id)]
        verdicts = [record.data["decision"]["verdict"] for record in about if record.kind == "approval.decided"]
        assert verdicts[-1:] == ["approve"], "before its decision was on disk"

    def on_disk(self) -> list[Record]:
        """Return every record that was written, in that order."""
        with closing(sqlite3.connect(self.folder / "outbox.db")) as db:
            return [Record.from_json(body) for (body,) in db.execute("SELECT body FROM records ORDER BY seq")]

    # -- the process

    def begins(self) -> None:
        self.back_at = None
        self.life += 1
        self.reading.begins()
        self.outbox = Disk(self)
        sink = PrometheusSink("1", (), include_process_metrics=False)
        environment = Environment(
            clock=lambda: Instant(self.utc(), self.mono),
            identity=self.identity,
            check_files=lambda paths: {path: Presence(self.file(path)) for path in paths},
        )
        self.agent = Agent(self.options, Source(self), self.outbox, sink, log=Log(None), environment=environment)
        self.deliveries = [self._delivery(backend, sink) for backend in self.backends]

    def _delivery(self, backend: Backend, sink: PrometheusSink) -> Delivery:
        return Delivery(backend, self.outbox, sink, Log(None), monotonic=lambda: self.mono, jitter=lambda: 0.0)

    def turns(self) -> None:
        """Run the loops once; a dead or frozen process does not."""
        if self.back_at is not None and self.azure.true >= self.back_at:
            self.begins()
        if self.back_at is not None or self.azure.true < self.frozen_until:
            return
        try:
            self.agent.tick()
            self.reading.is_read(self.name_known)
            for delivery in self.deliveries:
                for _ in range(12):
                    if delivery.tick() > 0:
                        break
        except Killed:
            self.dies(1.0)

    def dies(self, away: float, *, rebooted: bool = False, unknown: float = 0.0) -> None:
        """Restart after this many seconds; the VM knows its name this many seconds later."""
        if self.back_at is None:
            self.outbox.close()
            self.fate = ("", 0)
            self.back_at = self.azure.true + away
            self.knows_at = self.back_at + unknown
            if rebooted:
                self.stood_still = self.back_at - 7.0

    def stops(self, away: float) -> None:
        """Stop as on SIGTERM."""
        if self.back_at is not None or self.azure.true < self.frozen_until:
            return
        with suppress(Killed):
            self.agent.stop()
        self.dies(away)

    def rests(self) -> None:
        """End all faults from now on."""
        self.disk_is("")
        self.source, self.linger, self.answer, self.hold, self.fate = "fine", 0.0, "200", "absent", ("", 0)
        for backend in self.backends:
            backend.mood = "fine"


class Fleet:
    """The scale set, and what may happen to it."""

    def __init__(self, setup: oracle.PolicySetup, options: AgentOptions, size: int, root: Path) -> None:
        self.azure = Azure()
        self.members = [Member(self.azure, name, root, setup, options) for name in VMS[:size]]

    def happens(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Apply an action to the platform, or to the member that is named first."""
        if hasattr(self.azure, name):
            getattr(self.azure, name)(*arguments)
            return
        member = self.members[arguments[0] % len(self.members)]
        getattr(self, name)(member, *arguments[1:])

    def runs(self, often: int, after: float) -> None:
        for _ in range(often):
            self.azure.true += after
            for member in self.members:
                member.turns()

    # -- actions on one member

    def source_is(self, member: Member, mood: str, linger: float) -> None:
        member.source, member.linger = mood, linger

    def answers(self, member: Member, answer: str) -> None:
        member.answer = answer

    def disk_is(self, member: Member, word: str) -> None:
        member.disk_is(word)

    def starts_without_its_disk(self, member: Member, away: float) -> None:
        """Remove the volume and kill the process; it comes back before the volume does."""
        member.dies(away)
        member.disk_is("gone")

    def backend_is(self, member: Member, which: int, mood: str) -> None:
        member.backends[which].mood = mood

    def holds(self, member: Member, presence: str) -> None:
        member.hold = presence

    def is_doomed(self, member: Member, boundary: str, crossing: int) -> None:
        member.fate = (boundary, crossing)

    def is_killed(self, member: Member, away: float, rebooted: bool, unknown: float) -> None:
        member.dies(away, rebooted=rebooted, unknown=unknown)

    def is_stopped(self, member: Member, away: float) -> None:
        member.stops(away)

    def clock_is_set(self, member: Member, seconds: float) -> None:
        member.clock_is_set(seconds)

    def freezes(self, member: Member, seconds: float, set_right: bool) -> None:
        member.freezes(seconds, set_right)

    # -- the end

    def ends(self) -> None:
        for member in self.members:
            member.dies(0.0)

    def comes_to_rest(self) -> None:
        """End all faults, and let time pass."""
        for member in self.members:
            member.rests()
        self.runs(int(EVER / 2.5) + 20, 2.5)
        for member in self.members:
            self.all_is_recorded(member)
            self.all_is_approved(member)
        self.ids_are_facts()

    def all_is_recorded(self, member: Member) -> None:
        """Assert that every destination has every transition, in order; parked ones count, because they are kept for
        review."""
        expected = {key: recorded for key, recorded in member.reading.lived.recorded.items() if recorded}
        for backend in member.backends:
            firsts = list({record.id: record for record in backend.recorded}.values())
            found: dict[str, list[str]] = {}
            for record in firsts:
                kind = "ended" if record.kind == "canceled" else record.kind
                if kind in LIFE:
                    found.setdefault(folded(record.subject), []).append(kind)
            assert found == expected, f"{member.name} to {backend.name}"
            accepted = [folded(record.subject) for record in firsts if record.kind == "approval.accepted"]
            assert sorted(accepted) == sorted(member.reading.lived.accepted)
            assert in_order(firsts) == in_order(member.on_disk()), f"{member.name} to {backend.name}"

    def all_is_approved(self, member: Member) -> None:
        """Assert that every event without a reason against it was approved in the end, and accepted."""
        assert member.reading.ought_to_be_accepted(member.setup_now()) <= member.reading.lived.accepted

    def ids_are_facts(self) -> None:
        """Assert that one id is one fact of one VM, no matter which agent sends it and how often."""
        facts: dict[str, bytes] = {}
        for member in self.members:
            ids = [{record.id for record in backend.recorded} for backend in member.backends]
            assert ids[0] == ids[1]
            mine = {record.id: record.to_json() for backend in member.backends for record in backend.recorded}
            assert not facts.keys() & mine.keys(), "an id of two VMs"
            for backend in member.backends:
                assert all(mine[record.id] == record.to_json() for record in backend.recorded), "an id of two facts"
            facts |= mine


def in_order(records: list[Record]) -> dict[str, list[str]]:
    """Return the ids of each event's records, in order."""
    found: dict[str, list[str]] = {}
    for record in records:
        found.setdefault(folded(record.subject), []).append(record.id)
    return found
