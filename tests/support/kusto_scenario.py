"""A month of a small fleet as records: three VMs, and what a query must find of each event.

Each VM has the real core: documents are read, transitions become records. The clocks are the scenario's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from exporter.core.decision import decide
from exporter.core.document import folded
from exporter.core.memory import with_tracked
from exporter.core.policy import Mode, Policy
from exporter.core.record_factory import RecordFactory
from exporter.core.records import Record, RecordKind, Vm
from exporter.core.state import Approval, Instant, Interruption, InterruptionKind, InterruptionTotals, State
from tests.support.core_documents import Watcher, context_of
from tests.support.factories import as_started, azure_event

SUBSCRIPTION: Final = "8d10da13-8125-4ba9-a717-bf7490507b3d"
FREEZE: Final = "11111111-AAAA-4AAA-8AAA-AAAAAAAAAAAA"
"""Of web-0 and web-1; announced 9 s. It is not approved: it starts at NotBefore. web-0 is interrupted for 4 s."""
APPROVED: Final = "22222222-BBBB-4BBB-8BBB-BBBBBBBBBBBB"
"""A Freeze of web-0 and web-1, announced 5 s. web-0 approves it; it is interrupted for 5 s and for 2.5 s more."""
CANCELED: Final = "33333333-CCCC-4CCC-8CCC-CCCCCCCCCCCC"
"""A Reboot of web-1 with ten minutes of notice, under the documented minimum; canceled."""
DELETED: Final = "44444444-DDDD-4DDD-8DDD-DDDDDDDDDDDD"
"""A Terminate of web-2, which no longer exists after that."""
LATE: Final = "55555555-EEEE-4EEE-8EEE-EEEEEEEEEEEE"
"""A Reboot of web-1, by a failed host: Started when first seen, and web-1's agent had just begun."""
EARLIER: Final = "66666666-FFFF-4FFF-8FFF-FFFFFFFFFFFF"
"""A Freeze of web-0 that was first seen before the month, and ended in it."""
LOST: Final = "77777777-ABCD-4ABC-8ABC-ABCDABCDABCD"
"""A Freeze of web-0 without a closing record, although web-0 sends later records."""


def at(day: int, clock: str, *, month: int = 11) -> datetime:
    """Return a moment of the scenario."""
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return datetime(2026, month, day, hours, minutes, seconds, tzinfo=UTC)


class Member:
    """One VM of the fleet; `recorded` are its records so far, as parsed from their JSON."""

    def __init__(self, name: str, mode: Mode = Mode.DRY_RUN) -> None:
        self.vm = Vm(
            name=name,
            id=name,
            resource_id=f"/subscriptions/{SUBSCRIPTION}/resourceGroups/shop/providers/Microsoft.Compute/virtualMachines/{name}",
            subscription_id=SUBSCRIPTION,
            resource_group="shop",
            vmss_name="web",
            location="westeurope",
            zone="1",
        )
        self.mode = mode
        self.recorded: list[dict[str, Any]] = []
        begin = at(30, "12:00:00", month=10)
        self._watcher = Watcher(State(birth=begin, vm_key=name), wall=begin)
        self._shown: tuple[dict[str, Any], ...] = ()

    def starts(self, moment: datetime, version: str) -> None:
        """Start the agent."""
        self._go(moment)
        more = {"version": version, "mode": self.mode.value, "rebooted": False}
        self._record(
            self._writer.about_vm(self._watcher.state, RecordKind.AGENT_STARTED, "INFO", "The agent started", more)
        )

    def stops(self, moment: datetime) -> None:
        """Stop the agent."""
        self._go(moment)
        self._record(
            self._writer.about_vm(self._watcher.state, RecordKind.AGENT_STOPPED, "INFO", "The agent stopped", {})
        )

    def sees(self, moment: datetime, *events: dict[str, Any], unbroken: bool = True) -> None:
        """Read this document at a moment; `unbroken`: the previous one was read a second earlier."""
        if unbroken:
            self._go(moment - timedelta(seconds=1))
            self._read(*self._shown)
        self._go(moment)
        self._read(*events)

    def decides(self, moment: datetime, event_id: str) -> None:
        """Record the decision about an event that it saw."""
        self._go(moment)
        found = decide(Policy(self.mode), self._watcher.state, context_of(self.vm.name))
        for decision in found:
            if decision.key == folded(event_id):
                self._record(self._writer.decision(self._watcher.state, decision))

    def approves(self, moment: datetime, event_id: str, rule: str) -> None:
        """Record that Azure accepts the approval, at the second attempt."""
        self._go(moment)
        tracked = self._watcher.state.tracked[folded(event_id)]
        failed = Approval(attempts=1, rule=rule, failures={"timeout": 1})
        state = with_tracked(self._watcher.state, replace(tracked, approval=failed))
        tracked = state.tracked[folded(event_id)]
        self._record(self._writer.failed(state, tracked, "timeout", None, "no answer in 5 s"))
        tracked = self._watcher.state.tracked[folded(event_id)]
        approval = Approval(attempts=2, rule=rule, accepted_at=moment)
        state = with_tracked(self._watcher.state, replace(tracked, approval=approval))
        self._record(self._writer.accepted(state, state.tracked[folded(event_id)]))

    def stands_still(self, moment: datetime, event_id: str, seconds: float) -> None:
        """Record an interruption while an event is Started."""
        self._go(moment)
        tracked = self._watcher.state.tracked[folded(event_id)]
        before = tracked.interruptions
        totals = InterruptionTotals(before.count + 1, before.total + seconds, max(before.longest, seconds))
        state = with_tracked(self._watcher.state, replace(tracked, interruptions=totals))
        recorded = state.tracked[folded(event_id)]
        step = Interruption(InterruptionKind.CLOCK_STEP, seconds, Instant(moment))
        self._record(self._writer.interruption(state, step, recorded))

    @property
    def _writer(self) -> RecordFactory:
        return RecordFactory(self.vm, self._watcher.wall, self._watcher.number, self.mode)

    def _go(self, moment: datetime) -> None:
        seconds = (moment - self._watcher.wall).total_seconds()
        assert seconds >= 0, f"the scenario of {self.vm.name} goes back to {moment}"
        self._watcher.wall = moment
        if self._watcher.mono is not None:
            self._watcher.mono += seconds

    def _read(self, *events: dict[str, Any]) -> None:
        self._shown = events
        for transition in self._watcher.sees(*events, after=0.0):
            self._record(self._writer.transition(self._watcher.state, transition))

    def _record(self, recorded: tuple[State, Record]) -> None:
        self._watcher.state, record = recorded
        self.recorded.append(json.loads(record.to_json()))


def month() -> list[dict[str, Any]]:
    """Return the records of the scenario, in the order of their times."""
    fleet = {
        "web-0": Member("web-0", Mode.ENFORCE),
        "web-1": Member("web-1", Mode.ENFORCE),
        "web-2": Member("web-2"),
    }
    _record(fleet)
    return sorted((record for member in fleet.values() for record in member.recorded), key=lambda found: found["time"])


def _record(fleet: dict[str, Member]) -> None:
    web_0, web_1, web_2 = fleet.values()
    web_0.starts(at(31, "08:00:00", month=10), "0.9.0")
    for member in (web_1, web_2):
        member.starts(at(31, "08:00:00", month=10), "1.0.0")
    freeze = azure_event(EARLIER, "Freeze", ["web-0"], at(1, "00:05:00"), DurationInSeconds=2)
    web_0.sees(at(31, "23:50:00", month=10), freeze)
    web_0.sees(at(1, "00:05:00"), as_started(freeze))
    web_0.sees(at(1, "00:06:00"))
    web_0.stops(at(2, "07:59:00"))
    web_0.starts(at(2, "08:00:00"), "1.0.0")

    freeze = azure_event(FREEZE, "Freeze", ["web-0", "web-1"], at(3, "10:15:00"), DurationInSeconds=9)
    for member in fleet.values():
        member.sees(at(3, "10:00:01" if member is web_1 else "10:00:00"), freeze)
        member.sees(at(3, "10:15:00"), as_started(freeze))
        if member is web_0:
            member.stands_still(at(3, "10:16:00"), FREEZE, 4.0)
        member.sees(at(3, "10:20:00"))

    freeze = azure_event(APPROVED, "Freeze", ["web-0", "web-1"], at(5, "12:15:00"), DurationInSeconds=5)
    lower = freeze | {"EventId": APPROVED.lower()}
    web_0.sees(at(5, "12:00:00"), freeze)
    web_1.sees(at(5, "12:00:00"), lower)
    web_1.decides(at(5, "12:00:00"), APPROVED)
    web_0.approves(at(5, "12:05:00"), APPROVED, "short-freeze")
    web_0.sees(at(5, "12:06:00"), as_started(freeze))
    web_1.sees(at(5, "12:06:00"), as_started(lower))
    web_0.stands_still(at(5, "12:06:30"), APPROVED, 5.0)
    web_0.stands_still(at(5, "12:06:40"), APPROVED, 2.5)
    web_0.sees(at(5, "12:10:00"))
    web_1.sees(at(5, "12:10:01"))

    reboot = azure_event(CANCELED, "Reboot", ["web-1"], at(7, "09:10:00"))
    web_1.sees(at(7, "09:00:00"), reboot)
    web_1.sees(at(7, "09:00:01"), unbroken=False)

    delete = azure_event(DELETED, "Terminate", ["web-2"], at(9, "15:10:00"), EventSource="User")
    web_2.sees(at(9, "15:05:00"), delete)
    web_2.sees(at(9, "15:10:00"), as_started(delete))

    web_1.starts(at(12, "04:00:00"), "1.0.0")
    late = azure_event(LATE, "Reboot", ["web-1"], at(12, "04:00:00"))
    web_1.sees(at(12, "04:00:01"), as_started(late), unbroken=False)
    web_1.sees(at(12, "04:09:01"))

    freeze = azure_event(LOST, "Freeze", ["web-0"], at(20, "18:15:00"), DurationInSeconds=0)
    web_0.sees(at(20, "18:00:00"), freeze)
    before = len(web_0.recorded)
    web_0.sees(at(20, "18:15:00"), as_started(freeze))
    web_0.sees(at(20, "18:16:00"))
    assert len(web_0.recorded) == before + 2
    del web_0.recorded[-1]
    web_0.stops(at(28, "06:00:00"))


def shuffled(records: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Return the same records as consumers may get them: backwards, each twice, and the copies a batch later."""
    yield records[::-1]
    yield [record for record in records for _ in range(2)]
    yield records[1::2] + records + records[::3]
