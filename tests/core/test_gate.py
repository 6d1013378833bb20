"""The gate: when it closes, its sentences, and that it fails open; compared with an independent reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import event as seen
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.core.memory import with_tracked
from exporter.core.records import Vm
from exporter.core.snapshot import CLOSED, STARTING, Gate, GatePolicy, GateReason, Status, gate_of
from exporter.core.state import Approval, Instant, State
from exporter.core.state_codec import dump_state, load_state
from tests.support.core_documents import KEY, NOON, Watcher, event, started
from tests.support.effort import Tried, examples

POLICY: Final = GatePolicy()
DUE: Final = NOON + timedelta(minutes=15)
"""`NotBefore` of `event()`."""


def http_time(at: datetime) -> str:
    return f"{at:%a, %d %b %Y %H:%M:%S} GMT"


def accepted(watcher: Watcher, key: str) -> State:
    """Return the state after Azure accepted a POST for this event (HTTP 200)."""
    now = Instant(watcher.wall, watcher.mono)
    tracked = replace(watcher.state.tracked[key], approval=Approval(1, now, watcher.wall, "rule"))
    return with_tracked(watcher.state, tracked)


@dataclass
class Probed:
    """A watcher with a gate. It is vm-0, and has read an empty document a second after noon."""

    watcher: Watcher = field(default_factory=Watcher.fresh)
    name: str = "vm-0"
    poll_interval: float = 1.0
    policy: GatePolicy = POLICY
    not_read: float = 0.0
    """Seconds since the last valid document, by both clocks."""

    def sees(self, *events: Any, at: datetime | None = None) -> None:
        """Read a valid document, a second later or at that time."""
        seconds = 1.0 if at is None else (at - self.watcher.wall).total_seconds()
        self.watcher.sees(*events, after=seconds)
        self.not_read = 0.0

    def approved(self) -> None:
        """Accept this VM's POST for the event (HTTP 200)."""
        self.watcher.state = accepted(self.watcher, KEY)

    def restarts(self, after: float = 1.0) -> None:
        """Start another process with the state on disk and another monotonic clock."""
        self.watcher.state = load_state(dump_state(self.watcher.state))
        self.watcher.mono = 5.0
        self.not_read += after

    @property
    def now(self) -> Instant:
        wall, mono = self.watcher.wall, self.watcher.mono
        return Instant(wall + timedelta(seconds=self.not_read), None if mono is None else mono + self.not_read)

    @property
    def gate(self) -> Gate:
        status = Status(Instant(NOON, 0.0), self.watcher.state, vm=Vm(name=self.name), poll_interval=self.poll_interval)
        return gate_of(status, self.now, self.policy)

    @property
    def reason(self) -> str:
        return self.gate.reason.name.lower().replace("_", "-")


def seen_at(seconds_before: float, *events: Any) -> Probed:
    """Return a watcher that read a document this long before `NotBefore` of `event()`."""
    probed = Probed()
    probed.sees(*events, at=DUE - timedelta(seconds=seconds_before))
    return probed


# -- a closed gate


@pytest.mark.parametrize(
    ("before", "reason"), [(600, "no-event"), (121, "no-event"), (120, "not-before"), (0, "not-before")]
)
def test_gate_closes_lead_seconds_before_not_before(before: float, reason: str) -> None:
    """It stays closed as long as the event stays Scheduled."""
    assert seen_at(before, event()).reason == reason


@pytest.mark.parametrize(("lead", "closes"), [(0.0, 0.0), (3600.0, 3600.0)])
def test_lead_is_configurable(lead: float, closes: float) -> None:
    """With 0, the gate closes at `NotBefore`."""
    for before, reason in ((closes + 1, "no-event"), (closes, "not-before"), (-86400, "not-before")):
        if before <= (DUE - NOON).total_seconds():
            probed = seen_at(before, event())
            probed.policy = GatePolicy(lead)
            assert probed.reason == reason


def test_started_event_closes_the_gate_until_it_is_removed() -> None:
    """Whatever status it had before, and whatever status follows."""
    probed = seen_at(600, event())
    reasons = [probed.reason]
    for events in ([started()], [started(EventStatus="Paused")], [event()], [started()], []):
        probed.sees(*events)
        reasons.append(probed.reason)
    assert reasons == ["no-event", "started", "started", "started", "started", "no-event"]


def test_approval_of_this_vm_closes_the_gate_until_the_event_is_removed() -> None:
    """Azure may start the event at once, long before `NotBefore`."""
    probed = seen_at(600, event())
    probed.approved()
    assert probed.reason == "approved"
    probed.sees(event(NotBefore=http_time(DUE + timedelta(days=1))))
    assert probed.reason == "approved"
    probed.sees(started())
    assert probed.reason == "started"
    probed.sees()
    assert probed.reason == "no-event"


def test_attempt_that_was_not_accepted_closes_nothing() -> None:
    """Only HTTP 200 means that Azure accepted the approval."""
    probed = seen_at(600, event())
    attempt = Approval(attempts=1, unanswered=True, in_flight=True)
    tracked = replace(probed.watcher.state.tracked[KEY], approval=attempt)
    probed.watcher.state = with_tracked(probed.watcher.state, tracked)
    assert probed.reason == "no-event"


def test_returning_id_with_an_accepted_approval_closes_the_gate() -> None:
    """An id belongs to one event. The gate is open while the event is absent."""
    probed = seen_at(600, event())
    probed.approved()
    reasons = []
    for events in ([], [event()]):
        probed.sees(*events)
        reasons.append(probed.reason)
    assert reasons == ["no-event", "approved"]


def test_returning_id_of_a_started_event_is_a_new_event() -> None:
    """Its own status and time decide."""
    probed = seen_at(600, started())
    reasons = [probed.reason]
    for events in ([], [event()], [started()]):
        probed.sees(*events)
        reasons.append(probed.reason)
    assert reasons == ["started", "no-event", "no-event", "started"]


def test_canceled_event_opens_the_gate() -> None:
    probed = seen_at(60, event())
    assert probed.reason == "not-before"
    probed.sees()
    assert probed.reason == "no-event"


def test_moved_not_before_moves_the_gate() -> None:
    """A later time opens the gate again, an earlier one closes it."""
    probed = seen_at(60, event())
    reasons = [probed.reason]
    for minutes in (60, 16, 59):
        probed.sees(event(NotBefore=http_time(DUE + timedelta(minutes=minutes - 15))))
        reasons.append(probed.reason)
    assert reasons == ["not-before", "no-event", "not-before", "no-event"]


@pytest.mark.parametrize("not_before", ["", "soon", None, ..., 5])
def test_event_without_a_time_closes_the_gate_when_it_starts(not_before: object) -> None:
    """For an unreadable time, the last readable one counts."""
    probed = seen_at(60, event(NotBefore=not_before))
    assert probed.reason == "no-event"
    probed.sees(event())
    assert probed.reason == "not-before"
    probed.sees(event(NotBefore=not_before))
    assert probed.reason == "not-before"
    probed.sees(started())
    assert probed.reason == "started"


@pytest.mark.parametrize(
    "fields",
    [
        {"EventType": ...},
        {"EventType": ""},
        {"Resources": "vm-0"},
        {"Resources": ["vm-0"] * 10_001},
        {"NotBefore": "soon"},
        {"EventStatus": 5},
        {"EventType": 5, "Resources": None, "NotBefore": None, "EventStatus": None},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_unreadable_fields_do_not_open_the_gate(fields: dict[str, Any]) -> None:
    """Their last values count until the event ends, before and after it starts, and across a restart."""
    for shown, reason in ((event, "not-before"), (started, "started")):
        probed = seen_at(60, shown())
        for _ in range(2):
            probed.sees(shown(**fields))
            assert probed.reason == reason
            probed.restarts()
            assert probed.reason == reason
        probed.sees()
        assert probed.reason == "no-event"


def test_unreadable_names_do_not_close_the_gate_for_events_of_others() -> None:
    probed = seen_at(60, event(Resources=["vm-1"]))
    probed.sees(event(Resources="vm-0"))
    assert probed.reason == "no-event"
    probed.sees(event())
    assert probed.reason == "not-before"


@pytest.mark.parametrize("status", ["Paused", "started", None, ..., 7])
def test_unknown_status_is_judged_by_the_time(status: object) -> None:
    """The event isn't Started and has not ended."""
    reasons = [seen_at(before, event(EventStatus=status)).reason for before in (600, 60)]
    assert reasons == ["no-event", "not-before"]


@pytest.mark.parametrize("year", ["0001", "9999"])
def test_minimum_and_maximum_times_are_valid(year: str) -> None:
    """The first and the last possible year cause no overflow."""
    reason = seen_at(600, event(NotBefore=f"{year}-01-01T00:00:00Z")).reason
    assert reason == ("not-before" if year == "0001" else "no-event")


# -- an open gate


@pytest.mark.parametrize(
    "fields",
    [
        {"Resources": ["vm-1"]},
        {"Resources": []},
        {"Resources": "vm-0"},
        {"Resources": ...},
        {"Resources": ["vm-00", "vm-"]},
        {"EventType": "Freeze"},
        {"EventType": "reboot"},
        {"EventType": "Nap"},
        {"EventType": ...},
        {"EventId": ""},
    ],
    ids=str,
)
def test_irrelevant_events_leave_the_gate_open(fields: dict[str, Any]) -> None:
    """Events of other VMs, of unknown ownership, and of other types, in every state."""
    for base in (event, started):
        found = {name: value for name, value in ({**base()} | fields).items() if value is not ...}
        assert seen_at(-60, found).reason == "no-event"


def test_gate_compares_whole_names_without_case() -> None:
    """At any position in Resources."""
    assert seen_at(60, event(Resources=["vm-1", "VM-0"])).reason == "not-before"


def test_event_that_no_longer_names_this_vm_opens_the_gate() -> None:
    probed = seen_at(60, event(Resources=["vm-1", "vm-0"]))
    assert probed.reason == "not-before"
    probed.sees(event(Resources=["vm-1"]))
    assert probed.reason == "no-event"


def test_gate_event_types_are_configurable() -> None:
    """An empty list never closes the gate, whatever else is unknown."""
    probed = seen_at(60, event("a", EventType="Freeze"), event("b", EventType="Nap"))
    for types, reason in (((), "no-event-types"), (("Freeze",), "not-before"), (("Nap",), "not-before")):
        probed.policy = GatePolicy(120.0, types)
        assert probed.reason == reason
    probed.policy, probed.name = GatePolicy(120.0, ()), ""
    assert probed.reason == "no-event-types"


def test_unknown_vm_name_opens_the_gate() -> None:
    """All events may belong to neighbours."""
    probed = seen_at(60, started())
    probed.name = ""
    assert probed.reason == "identity-unknown"


def test_gate_is_open_before_the_first_document() -> None:
    assert Probed(Watcher.fresh(watching=False)).reason == "not-read"


@pytest.mark.parametrize(
    ("poll_interval", "seconds", "reason"),
    [
        (1.0, 5, "started"),
        (1.0, 30, "started"),
        (1.0, 31, "stale"),
        (0.05, 30, "started"),
        (0.05, 31, "stale"),
        (60.0, 600, "started"),
        (60.0, 601, "stale"),
    ],
)
def test_stale_data_opens_the_gate(poll_interval: float, seconds: float, reason: str) -> None:
    """After 30 seconds or ten polls. Until then the last data counts."""
    probed = seen_at(60, started())
    probed.poll_interval, probed.not_read = poll_interval, seconds
    assert probed.reason == reason


@pytest.mark.parametrize(
    ("seconds", "reason"), [(1.0, "started"), (30.0, "started"), (31.0, "stale"), (-1.0, "stale"), (-86400.0, "stale")]
)
def test_gate_stays_closed_across_a_restart_while_the_last_document_is_fresh(seconds: float, reason: str) -> None:
    """By the wall clock, the only one left. If it was set back, the age is unknown."""
    probed = seen_at(60, started())
    probed.restarts(seconds)
    assert probed.reason == reason


def test_setting_the_clock_does_not_make_the_document_stale() -> None:
    """Within one process, the monotonic clock measures the age."""
    probed = seen_at(60, started())
    for hours in (-1, 1):
        probed.watcher.wall += timedelta(hours=hours)
        assert probed.reason == "started"


# -- its sentence


def test_gate_names_the_most_urgent_event() -> None:
    """Started precedes approved, approved precedes scheduled, then the soonest; in any order of the document."""
    soon = event("soon", EventType="Preempt", NotBefore=http_time(DUE - timedelta(seconds=30)))
    later, begun = event("later", EventType="Redeploy"), started("begun", EventType="Terminate")
    recorded = []
    for events in ([later, soon, event(), begun], [event(), later, soon], [later, soon], [later]):
        both = [seen_at(60, *order) for order in (events, events[::-1])]
        for probed in both:
            if KEY in probed.watcher.state.tracked:
                probed.approved()
        first, second = (probed.gate for probed in both)
        assert first == second
        recorded.append((first.reason.name.lower().replace("_", "-"), first.event_type))
    assert recorded == [
        ("started", "Terminate"),
        ("approved", "Reboot"),
        ("not-before", "Preempt"),
        ("not-before", "Redeploy"),
    ]


def test_each_reason_has_its_sentence() -> None:
    """It states open or closed and why, with the type and one time of the event."""
    due, begun = seen_at(60, event()), seen_at(60, started())
    assert due.gate.sentence == "Closed: Reboot of this VM can start from 2025-11-21T12:15:00Z on."
    assert begun.gate.sentence == "Closed: Reboot of this VM has started, seen at 2025-11-21T12:14:00Z."
    due.approved()
    assert due.gate.sentence == (
        "Closed: Reboot of this VM was approved at 2025-11-21T12:14:00Z and can start at any time."
    )
    assert STARTING.open
    for reason in GateReason:
        gate = Gate(reason, "Reboot", NOON)
        assert gate.open is (reason not in CLOSED)
        assert gate.sentence.startswith("Open: " if gate.open else "Closed: ")
        assert gate.sentence.endswith(".")
        assert gate.sentence.count(". ") == 0


def test_sentence_contains_no_ids_names_or_descriptions() -> None:
    """Anyone may read it."""
    probed = seen_at(60, started("secret-id", Description="secret words", Resources=["vm-0", "secret-vm"]))
    assert "secret" not in probed.gate.sentence
    assert "vm-0" not in probed.gate.sentence


# -- an independent reading of the rules, over random life cycles


@dataclass(frozen=True)
class Shown:
    """An event as a test made it. `due`: seconds after noon, or an invalid time."""

    event_id: str
    kind: str | None
    names: tuple[str, ...] | None
    status: str
    due: int | str

    def raw(self) -> dict[str, Any]:
        not_before = http_time(NOON + timedelta(seconds=self.due)) if isinstance(self.due, int) else self.due
        resources = "vm-0" if self.names is None else list(self.names)
        return event(
            self.event_id,
            EventType=self.kind,
            Resources=resources,
            EventStatus=self.status,
            NotBefore="" if self.status == "Started" else not_before,
        )


@dataclass
class Reading:
    """Independent notes, made only from the contract and each document."""

    lead: float
    types: tuple[str, ...]
    named: bool = True
    patience: float = 30.0
    present: dict[str, Shown] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    times: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The last readable times, types, and names."""
    approved: set[str] = field(default_factory=set)
    read_at: float | None = None

    def document(self, events: list[Shown], at: float) -> None:
        self.present, self.read_at = {}, at
        for shown in events:
            self.present.setdefault(shown.event_id.lower(), shown)
        self.begun &= self.present.keys()
        for noted in (self.times, self.kinds, self.names):
            for key in noted.keys() - self.present.keys():
                del noted[key]
        self.begun |= {shown.event_id.lower() for shown in events if shown.status == "Started"}
        for key, shown in self.present.items():
            twins = [each.raw() for each in events if each.event_id.lower() == key]
            # If they differ, it's ambiguous which is meant: only unknown values are set.
            differ = {name for name in twins[0] for twin in twins if twin[name] != twins[0][name]}
            timed = shown.status != "Started" and isinstance(shown.due, int)
            if timed and not ("NotBefore" in differ and key in self.times):
                self.times[key] = int(shown.due)
            if shown.kind is not None and not ("EventType" in differ and key in self.kinds):
                self.kinds[key] = shown.kind
            if shown.names is not None and not ("Resources" in differ and key in self.names):
                self.names[key] = shown.names

    def closed(self, at: float) -> bool:
        """Return whether the gate is closed, by the wall clock: it's correct here, or was set back across a restart."""
        if not self.named or self.read_at is None or not 0 <= at - self.read_at <= self.patience:
            return False
        for key in self.present:
            ours = "vm-0" in [name.lower() for name in self.names.get(key, ())]
            near = key in self.times and at >= self.times[key] - self.lead
            if ours and self.kinds.get(key) in self.types and (key in self.begun or key in self.approved or near):
                return True
        return False


SHOWN = st.builds(
    Shown,
    st.sampled_from(["a", "A", "b"]),
    st.sampled_from(["Reboot", "Reboot", "Preempt", "Freeze", None]),
    st.sampled_from([("vm-0",), ("vm-0",), ("vm-1", "VM-0"), ("vm-1",), None]),
    st.sampled_from(["Scheduled", "Scheduled", "Started", "Paused"]),
    st.integers(0, 100).map(lambda tens: tens * 5) | st.sampled_from(["", "soon"]),
)
STEPS = st.one_of(
    st.tuples(st.just("document"), st.lists(SHOWN, min_size=1, max_size=2)),
    st.tuples(st.just("document"), st.just([])),
    st.tuples(st.just("again"), st.integers(0, 3)),
    st.tuples(st.just("approve"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("silence"), st.sampled_from([1.0, 4.0, 5.0, 9.0, 29.0, 31.0, 100.0])),
    st.tuples(st.just("restart"), st.sampled_from([0.0, 1.0, 10.0, 40.0, -1.0])),
    st.tuples(st.just("name"), st.sampled_from([True, True, False])),
)


@dataclass
class Life:
    """The core next to the independent reading. `at` is the wall clock, in seconds after noon."""

    policy: GatePolicy
    reading: Reading
    watcher: Watcher = field(default_factory=lambda: Watcher(State(NOON, vm_key="vm-key"), mono=100.0))
    at: float = 0.0
    shown: list[list[Shown]] = field(default_factory=list)

    def again(self, back: int) -> None:
        """Read an earlier document: absent ids return."""
        if self.shown:
            self.document(self.shown[-1 - back % len(self.shown)])

    def document(self, events: list[Shown]) -> None:
        self.shown.append(events)
        self.wait(1.0)
        self.watcher.sees(*(shown.raw() for shown in events), after=0.0)
        self.reading.document(events, self.at)

    def approve(self, event_id: str) -> None:
        if event_id in self.watcher.state.tracked:
            self.watcher.state = accepted(self.watcher, event_id)
            self.reading.approved.add(event_id)

    def silence(self, seconds: float) -> None:
        self.wait(seconds)

    def restart(self, seconds: float) -> None:
        self.watcher.state = load_state(dump_state(self.watcher.state))
        self.wait(seconds)
        self.watcher.mono = 5.0

    def name(self, known: bool) -> None:
        self.reading.named = known

    def wait(self, seconds: float) -> None:
        assert self.watcher.mono is not None
        self.at += seconds
        self.watcher.wall += timedelta(seconds=seconds)
        self.watcher.mono += seconds

    @property
    def gate(self) -> Gate:
        vm = Vm(name="vm-0" if self.reading.named else "")
        status = Status(Instant(NOON, 0.0), self.watcher.state, vm=vm)
        return gate_of(status, Instant(self.watcher.wall, self.watcher.mono), self.policy)


@settings(max_examples=examples(300))
@given(
    st.lists(STEPS, min_size=5, max_size=16),
    st.sampled_from([0.0, 120.0, 300.0]),
    st.sampled_from([("Reboot", "Preempt")] * 3 + [("Freeze",), ()]),
)
def test_gate_agrees_with_an_independent_reading_of_the_rules(
    steps: list[tuple[str, Any]], lead: float, types: tuple[str, ...]
) -> None:
    """After each document, approval, failure, restart, and change of what is known, and a second before and after."""
    Tried.example(len(steps))
    life = Life(GatePolicy(lead, types), Reading(lead, types))
    for name, argument in steps:
        step: Callable[[Any], None] = getattr(life, name)
        step(argument)
        gate = life.gate
        seen(gate.reason.name.lower().replace("_", "-"))
        assert gate.open is not life.reading.closed(life.at), (name, argument, gate)
        assert (gate.event_type in types) is not gate.open
        assert (gate.at is None) is gate.open
        assert "vm" not in gate.sentence.replace("this VM", "")
