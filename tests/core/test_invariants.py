"""Invariants for every document, policy, and history, tested on hostile random ones (longer: HYPOTHESIS_PROFILE=long).

The decisions are compared with `oracle`, an implementation of the rules that shares nothing with the code. The states
are those of a random platform, watched by an agent's core that is restarted at any step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hypothesis import event as seen
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.core.attempts import attempt_due, begin_attempt, mark_accepted, mark_failed
from exporter.core.continuity import DocumentStep
from exporter.core.decision import decide, files_to_check
from exporter.core.document import Document, folded, parse_document, parse_time
from exporter.core.hours import Hours
from exporter.core.lifecycle import advance
from exporter.core.memory import with_tracked
from exporter.core.policy import Context, Coordination, Decision, Mode, Policy, Presence, Rule, Verdict
from exporter.core.record_factory import RecordFactory
from exporter.core.records import Record, Vm
from exporter.core.scope import apply_scope
from exporter.core.state import CLOSING, Approval, Instant, Reset, State, TrackedEvent, TransitionKind
from exporter.core.state_codec import dump_state, load_state
from tests.support import oracle
from tests.support.approval_case import hours
from tests.support.core_documents import NOON, context_of, event
from tests.support.effort import LONG, Tried, examples
from tests.support.records_reading import unknown_value_fields

HOLD: Final = "/etc/hold"

# -- hostile documents

IDS = ("a", "A", "b-1", "B-1", "c.2", "..", "a/b", "é", "s", "ſ", "x" * 100)
NAMES = ("vm-0", "VM-0", "vm-1", "vm-2", "vm", "vm-00")
ANOMALY_MESSAGES: Any = st.one_of(
    st.sampled_from([None, True, False, 0, 1, -1, 5, 8.0, -1.0, "", " ", "5", "vm-0", "Scheduled", [], {}, ["vm-0"]]),
    st.sampled_from(["a\ud800", "a\0", 2**63, -(2**63), 10**30, 1e308, ["vm-0", 1], [["vm-0"]], [""]]),
    st.text(max_size=5),
)
TIMES = (
    "Fri, 21 Nov 2025 12:15:00 GMT",
    "Mon, 21 Nov 2025 12:15:00 GMT",
    "21 Nov 2025 12:15:00 +0100",
    "2025-11-21T12:15:00Z",
    "2025-11-21T12:15:00.1234567Z",
    "2025-11-21 12:15:00+01:00",
)
NO_TIMES = (
    "",
    "soon",
    "Fri, 31 Feb 2025 12:15:00 GMT",
    "2025-11-21",
    "Fri, 21 Nov 2025 12:15 GMT",
    "2025-11-21T25:00:00Z",
)
MISSING: Any = object()


def mostly(good: Any, bad: Any = ANOMALY_MESSAGES) -> Any:
    """Return mostly valid values, sometimes an invalid one, sometimes none."""
    return st.integers(0, 29).flatmap(lambda roll: {7: bad, 23: st.just(MISSING)}.get(roll, good))


TYPES = ["Reboot", "Redeploy", "Freeze"] * 2 + ["Preempt", "Terminate", "reboot", "Nap"]
EVENTS = st.fixed_dictionaries(
    {
        "EventId": mostly(st.sampled_from(IDS)),
        "EventType": mostly(st.sampled_from(TYPES)),
        "ResourceType": mostly(st.just("VirtualMachine")),
        "Resources": mostly(st.lists(st.sampled_from(NAMES), max_size=4).map(lambda names: names or ["vm-0"])),
        "EventStatus": mostly(st.sampled_from(["Scheduled"] * 6 + ["Started", "Paused"])),
        "NotBefore": mostly(st.sampled_from(TIMES), st.sampled_from(NO_TIMES) | ANOMALY_MESSAGES),
        "Description": mostly(st.just("Words.")),
        "EventSource": mostly(st.sampled_from(["User", "Platform"])),
        "DurationInSeconds": mostly(st.integers(-3, 12)),
    }
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return a document whose objects may contain a field twice."""
    items = draw(st.lists(mostly(EVENTS).filter(lambda item: item is not MISSING), min_size=1, max_size=4))
    texts = []
    for item in items:
        if not isinstance(item, dict) or not item:
            texts.append(json.dumps(item))
            continue
        pairs = [(name, value) for name, value in item.items() if value is not MISSING]
        if pairs and draw(st.integers(0, 11)) == 0:
            name, value = draw(st.sampled_from(pairs))
            pairs.insert(draw(st.integers(0, len(pairs))), (name, draw(st.just(value) | ANOMALY_MESSAGES)))
        texts.append("{" + ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs) + "}")
    return f'{{"DocumentIncarnation": 2, "Events": [{", ".join(texts)}]}}'.encode()


BOUND = st.integers(-1, 10)
RULES = st.fixed_dictionaries(
    {"event_type": st.lists(st.sampled_from(["Reboot", "Redeploy", "Freeze", "Terminate", "Nap"]), min_size=1)},
    optional={
        "event_source": st.lists(st.sampled_from(["User", "Platform"]), min_size=1),
        "min_duration": BOUND,
        "max_duration": BOUND,
        "settle": st.sampled_from([1.0, 5.0, 30.0]),
        "require_file": st.sampled_from(["/run/ready/{event_id}", "/run/{event_id}/ready", "/run/ready"]),
        "when_quiet": st.booleans(),
        "max_resources": st.integers(1, 3),
        "between": st.sampled_from(["11:00-13:00", "13:00-12:00", "22:00-12:01", "12:01-24:00"]),
        "days": st.lists(st.sampled_from(oracle.WEEK), min_size=1, unique=True),
        "timezone": st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Apia"]),
    },
)
DEFAULT = (
    {"event_type": ["Reboot", "Redeploy"], "event_source": ["User"]},
    {"event_type": ["Freeze"], "min_duration": 0, "max_duration": 8},
)
GENEROUS = st.just({"event_type": ["Reboot", "Redeploy", "Freeze"]})
# Files exist by a fixed but arbitrary rule, so that both readings find the same ones.
FILES = ("present", "absent", "unknown")


@dataclass(frozen=True)
class Files:
    salt: int

    def __call__(self, path: str) -> str:
        return FILES[(sum(path.encode()) + self.salt) % len(FILES)]


HOUSES = st.builds(
    oracle.PolicySetup,
    mode=st.sampled_from(["enforce"] * 5 + ["dry-run", "off"]),
    coordination=st.sampled_from(["leader", "any", "single"]),
    takeover_after=st.sampled_from([None, 0.5, 10.0]),
    hold_file=st.sampled_from(["", "", HOLD]),
    rules=st.lists(GENEROUS | RULES, max_size=4).map(lambda rules: tuple(rules) or DEFAULT),
    vm_name=st.sampled_from(["vm-0"] * 6 + ["VM-0", "vm-1", ""]),
    conflict=st.sampled_from([False] * 7 + [True]),
    file=st.builds(Files, st.integers(0, 2)),
    writable=st.sampled_from([True] * 5 + [False]),
    now=st.sampled_from([None, NOON, NOON]) | st.datetimes(datetime(2011, 12, 28), timezones=st.just(UTC)),  # noqa: DTZ001  # a bound, which has none
)


def policy_of(setup: oracle.PolicySetup) -> Policy:
    """Return the same policy as the code's types."""
    rules = []
    for number, asked in enumerate(setup.rules):
        source = asked.get("event_source")
        rules.append(
            Rule(
                name=f"rule-{number}",
                event_type=tuple(asked["event_type"]),
                event_source=tuple(source) if source else None,
                min_duration=asked.get("min_duration"),
                max_duration=asked.get("max_duration"),
                settle=asked.get("settle"),
                require_file=asked.get("require_file", ""),
                when_quiet=asked.get("when_quiet", False),
                max_resources=asked.get("max_resources"),
                hours=hours_of(**{key: asked[key] for key in oracle.HOURS if key in asked}),
            )
        )
    mode, coordination = Mode(setup.mode), Coordination(setup.coordination)
    return Policy(mode, coordination, setup.takeover_after, setup.hold_file, tuple(rules))


def hours_of(between: str = "", days: Sequence[str] = (), timezone: str = "UTC") -> Hours | None:
    return hours(between or "00:00-24:00", *days, timezone=timezone) if between or days else None


def situation_of(setup: oracle.PolicySetup, policy: Policy, document: Document) -> Context:
    files = {path: Presence(setup.file(path)) for path in files_to_check(policy, document)}
    now = setup.now or NOON.replace(tzinfo=None)  # a time without a zone is unknown
    return context_of(setup.vm_name, files, conflict=setup.conflict, writable=setup.writable, now=now)


def places(events: list[Any]) -> dict[str, int]:
    """Return the first index of each trackable id."""
    found: dict[str, int] = {}
    for place, item in enumerate(events):
        event_id = item.get("EventId") if isinstance(item, dict) else None
        if isinstance(event_id, str) and oracle.clean(event_id) and 0 < len(event_id) <= 100:
            found.setdefault(folded(event_id), place)
    return found


SECONDS = st.sampled_from([0.0, 0.4, 0.5, 1.0, 5.0, 9.0, 10.0, 20.0, 30.0, 100.0])


@settings(max_examples=examples(1_000))
@given(bodies(), HOUSES, st.booleans(), SECONDS, SECONDS, st.sampled_from(["", "", "", "started", "reset"]))
def test_every_decision_agrees_with_the_oracle(  # noqa: PLR0917  # all that a decision depends on
    raw: bytes, setup: oracle.PolicySetup, approved: bool, known: float, unchanged: float, before: str
) -> None:
    """For any document, policy, and past: the same verdict and reason for the same events."""
    Tried.example()
    document = parse_document(raw)
    events = oracle.read(raw)
    state = advance(State(NOON), document, Instant(NOON, 0.0)).state
    past = oracle.Past(approved, known, min(known, unchanged), before == "started", before == "reset")
    approval = Approval(accepted_at=NOON if approved else None)
    tracked = {
        key: replace(
            entry,
            first_seen_at=100 - known,
            unchanged_at=100 - past.seconds_unchanged,
            approval=approval,
            started_before=past.started,
        )
        for key, entry in state.tracked.items()
    }
    state = replace(state, tracked=tracked, observed_seconds=100.0, reset=Reset(100.0) if past.reset else None)
    policy = policy_of(setup)
    decisions = decide(policy, state, situation_of(setup, policy, document))
    found = {decision.key: (decision.verdict.value, decision.reason.value) for decision in decisions}
    approving = {key for key, (verdict, _) in found.items() if verdict == "approve"}
    expected = {
        key: oracle.judge(events, place, setup, replace(past, others=bool(approving - {key})))
        for key, place in places(events).items()
    }
    for _, reason in expected.values():
        seen(reason or "approved")
    assert found == expected


# -- a platform, and the core that watches it

VMS = ("vm-0", "vm-1", "vm-2")
IDENTS = st.sampled_from(["a", "b", "c"])
Look = tuple[int, float, bool, int]
LOOKS = st.tuples(
    st.sampled_from([1, 1, 2, 0, 7, 20]),
    st.sampled_from([1.0, 1.0, 0.25, 4.0]),
    st.sampled_from([False] * 4 + [True]),
    st.sampled_from([200, 400, 503, 0]),
)
"""Polls after a change: their number, the seconds between them, whether the document then contains an id twice, and the
HTTP status of a POST (0: no response)."""
POLL = 1.0


@dataclass
class ExpectedEvent:
    """The test's independent notes of one event."""

    first_seen: float
    unchanged_since: float
    last: dict[str, Any] = field(default_factory=dict)
    ownership: str = ""
    """Last known ownership: "ours", "theirs", or unknown."""
    names: list[str] | None = None
    """The last readable one."""


class Life:
    """A platform with several events and VMs, read with gaps, resets, repeats, and restarts, and approved by policy.

    The test counts the time: `true` never stops or jumps. Each valid document is processed twice, first as if the
    process died before its commit: whatever it wrote then must be written again with the same ids.
    """

    def __init__(self, setup: oracle.PolicySetup) -> None:
        self.setup = setup
        self.policy = policy_of(setup)
        self.platform: dict[str, dict[str, Any]] = {}
        self.true = 0.0
        self.wall: datetime = NOON
        self.mono: float = 50.0
        self.number = 1
        self.state = State(NOON, vm_key="vm-key")
        self.start = Instant(self.wall, self.mono)
        self.restarted = True
        self.killed_at = self.set_at = -1.0
        self.observed_seconds = 0.0
        self.last_read: tuple[datetime, float, int] | None = None
        self.last_items: list[str] = []
        self.expected: dict[str, ExpectedEvent] = {}
        self.approved_ever: set[str] = set()
        self.started_ever: set[str] = set()
        self.reset: tuple[float, int] | None = None
        """When the number went down last, in seconds of good polling, and how many documents came since."""
        self.doubted_ever: set[str] = set()
        self.posts_ever: dict[str, list[float]] = {}
        self.facts: dict[str, str] = {}
        self.open: dict[str, list[str]] = {}
        self.named = True

    @property
    def setup_now(self) -> oracle.PolicySetup:
        """Return the setup as the process knows it: its name may come late, and the time of day advances."""
        return replace(self.setup, vm_name=self.setup.vm_name if self.named else "", now=self.wall)

    # -- the platform

    def announces(self, event_id: str, names: list[str], notice: int, fields: dict[str, Any]) -> None:
        status = fields["EventStatus"]
        when = self.wall + timedelta(seconds=notice)
        not_before = "" if status == "Started" else f"{when:%a, %d %b %Y %H:%M:%S} GMT"
        self.platform[event_id] = event(event_id, Resources=names, NotBefore=not_before, **fields)
        self.number += 1

    def moves(self, event_id: str, status: str, numbered: bool) -> None:
        """Change an event by an approval, by time, or impossibly; sometimes without a new DocumentIncarnation."""
        if event_id in self.platform:
            not_before = "" if status == "Started" else TIMES[0]
            self.platform[event_id] |= {"EventStatus": status, "NotBefore": not_before}
            self.number += numbered

    def changes(self, event_id: str, fields: dict[str, Any]) -> None:
        if event_id in self.platform:
            self.platform[event_id] |= fields
            self.number += 1

    def speaks_an_older_version(self, event_id: str) -> None:
        for name in ("Description", "EventSource", "DurationInSeconds"):
            self.platform.get(event_id, {}).pop(name, None)
        self.number += 1

    def changes_the_case_of_an_id(self, event_id: str) -> None:
        if event_id in self.platform:
            self.platform[event_id]["EventId"] = self.platform[event_id]["EventId"].swapcase()

    def is_over(self, event_id: str) -> None:
        if self.platform.pop(event_id, None):
            self.number += 1

    def starts_its_number_again(self, down: int) -> None:
        self.number -= down

    def shows_its_events_backwards(self) -> None:
        self.platform = dict(reversed(self.platform.items()))

    def does_nothing(self) -> None:
        pass

    # -- time and process

    def passes(self, seconds: float, *, mono: float | None = None, wall: float | None = None) -> None:
        self.true += seconds
        self.mono += seconds if mono is None else mono
        self.wall += timedelta(seconds=seconds if wall is None else wall)

    def polling_pauses(self, seconds: float) -> None:
        self.passes(seconds)

    def the_vm_is_frozen(self, seconds: float) -> None:
        self.passes(seconds, mono=0.0)

    def the_clock_is_set(self, seconds: float) -> None:
        self.passes(0.0, wall=seconds)
        self.set_at = self.true

    def the_name_becomes_known(self) -> None:
        self.named = True

    def the_process_is_killed_and_starts_again(self, seconds: float, named: bool = True) -> None:
        """Keep only the text of the state; POSTs in flight stay without a response."""
        text = dump_state(self.state)
        self.state = load_state(text)
        assert dump_state(self.state) == text
        self.named = named
        self.passes(seconds)
        self.mono = 7.0
        self.restarted = True
        self.killed_at = self.true
        self.start = Instant(self.wall, self.mono)

    # -- a poll

    def looks(self, look: Look) -> None:
        often, after, doubled, answer = look
        for _ in range(often):
            self.polls(after, doubled, answer)
            self.keeps()

    def polls(self, after: float, doubled: bool, answer: int) -> None:
        """Read a document, record and decide, commit, and POST what is due."""
        self.passes(after)
        items: list[Any] = list(self.platform.values())
        if doubled and items:
            items.append({**items[0], "EventId": items[0]["EventId"].upper(), "Description": "Twin."})
        raw = json.dumps({"DocumentIncarnation": self.number, "Events": items}).encode()
        document, now = parse_document(raw), Instant(self.wall, self.mono)
        self.notes(items, now)
        before = self.state
        lost = self.works(before, document, now)[1]
        step, records = self.works(before, document, now)
        assert [record.id for record in lost] == [record.id for record in records]
        self.honest(before, step, now)
        self.recorded(records)
        self.last_read = (self.wall, self.mono, self.number)
        self.restarted = False
        self.posts(oracle.read(raw), document, now, answer)

    def notes(self, items: list[dict[str, Any]], now: Instant) -> None:
        """Note independently since when each event is there, and since when it is unchanged."""
        anew = self.counts_time(items, now)
        if self.last_read is not None and (self.number < self.last_read[2] or (anew and self.reset is not None)):
            self.reset = (self.observed_seconds, 0)
        elif self.reset is not None:
            self.reset = (self.reset[0], self.reset[1] + 1)
            over = self.observed_seconds - self.reset[0] >= 10 or self.reset[1] >= 3
            self.reset = None if over else self.reset
        if anew:
            for event in self.expected.values():
                event.first_seen = event.unchanged_since = self.observed_seconds
        present = {folded(item["EventId"]): item for item in reversed(items)}
        self.started_ever |= {key for key, item in present.items() if item["EventStatus"] == "Started"}
        for key in set(self.expected) - set(present):
            del self.expected[key]
        for key, item in present.items():
            event = self.expected.setdefault(key, ExpectedEvent(self.observed_seconds, self.observed_seconds))
            meaning = {**item, "EventId": key, "NotBefore": str(parse_time(str(item.get("NotBefore"))))}
            if event.last and meaning != event.last:
                event.unchanged_since = self.observed_seconds
            owner = self.ownership(event, item)
            if event.ownership == "theirs" != owner:  # it now names this VM: first seen now
                event.first_seen = event.unchanged_since = self.observed_seconds
            event.ownership, event.last = owner, meaning

    def counts_time(self, items: list[dict[str, Any]], now: Instant) -> bool:
        """Add the time since the last document if observed, or if both documents agree within a minute.

        Return whether they are further apart, or the distance is unknown: then everything starts again.
        """
        last, self.last_items = self.last_items, sorted(json.dumps(item, sort_keys=True) for item in items)
        if self.last_read is None:
            return False
        wall = (now.wall - self.last_read[0]).total_seconds()
        if self.restarted:
            return not 0 <= wall <= 60
        mono = (now.mono or 0.0) - self.last_read[1]
        agree = last == self.last_items and self.number == self.last_read[2]
        if self.steady(now) or (agree and max(wall, mono) <= 60):
            self.observed_seconds += max(0.0, min(wall, mono))
        return max(wall, mono) > 60

    def ownership(self, expected_event: ExpectedEvent, item: dict[str, Any]) -> str:
        """Return ownership by the last readable names; as before if unknown.

        An event of another VM that now names different VMs may be this VM's.
        """
        found, name = item["Resources"], self.setup_now.vm_name
        moved = isinstance(found, list) and found != expected_event.names
        expected_event.names = found if isinstance(found, list) else expected_event.names
        if name and expected_event.names is not None:
            return "ours" if any(oracle.same(each, name) for each in expected_event.names) else "theirs"
        return "" if expected_event.ownership == "theirs" and moved else expected_event.ownership

    def steady(self, now: Instant) -> bool:
        if self.last_read is None or self.restarted:
            return False
        wall = abs((now.wall - self.last_read[0]).total_seconds())
        return wall <= 5.0 and (now.mono or 0.0) - self.last_read[1] <= 5.0

    def works(self, state: State, document: Document, now: Instant) -> tuple[DocumentStep, list[Record]]:
        """Run the steps up to the commit: every fact gets its record and its number."""
        step = advance(state, document, now, POLL)
        name = self.setup_now.vm_name
        scoped = apply_scope(state, step, name, False)
        writer = RecordFactory(Vm(name=name), now.wall, document.incarnation, self.policy.mode)
        state, records = scoped.state, []
        for transition in scoped.transitions:
            state, record = writer.transition(state, transition)
            records.append(record)
        for rejection in scoped.rejections:
            state, record = writer.rejection(state, rejection)
            records.append(record)
        for decision in decide(self.policy, state, situation_of(self.setup_now, self.policy, document)):
            tracked = state.tracked[decision.key]
            if tracked.decided != decision.published_values:
                state, record = writer.decision(
                    with_tracked(state, replace(tracked, decided=decision.published_values)), decision
                )
                records.append(record)
        self.state = state
        return step, records

    def recorded(self, records: list[Record]) -> None:
        """Check that ids are unique and that no committed fact is recorded again."""
        for record in records:
            assert record.id not in self.facts, f"{record.kind} has the id of {self.facts[record.id]}"
            self.facts[record.id] = record.kind
            assert Record.from_json(record.to_json()) == record
            assert unknown_value_fields(record.data) == [], record.data
            assert record.data["kind"] == record.kind
            assert record.data["event_id"] in {None, folded(record.subject)}
        self.whole(records)

    def whole(self, records: list[Record]) -> None:
        """Check that each recorded beginning has exactly one recorded end, and each end a beginning.

        An event in the document that is known to be this VM's is open; one known to be another's isn't. An unknown
        status begins with its rejection.
        """
        for record in records:
            if (
                record.kind == "event.rejected"
                and record.data["affects_self"] is None
                and "not_before" not in record.data
            ):
                continue  # of an element that can't be tracked
            life = self.open.setdefault(folded(record.subject), [])
            if record.kind in ("completed", "canceled", "ended"):
                assert life, "an end without a beginning"
                life.clear()
            elif record.kind in ("scheduled", "started", "event.rejected"):
                begun = {"scheduled", "started"} & {*life}
                assert not begun or not (record.kind == "scheduled" or record.data.get("joined")), "begun twice"
                life.append(record.kind)
        is_open = {key for key, life in self.open.items() if life}
        named = {key: expected_event.ownership for key, expected_event in self.expected.items()}
        assert is_open <= set(named)
        assert not {key for key in is_open if named[key] == "theirs"}
        assert {key for key, owner in named.items() if owner == "ours"} <= is_open

    def honest(self, before: State, step: DocumentStep, now: Instant) -> None:
        """Check the order per event, and that nothing is claimed that was not observed."""
        assert set(step.state.tracked) == {each.key for each in (step.state.document or Document(0)).events}
        for found in step.transitions:
            seen(f"told {found.kind.value}")
            key = found.tracked.key
            last = before.tracked.get(key)
            if found.kind in CLOSING:
                assert last is not None
                assert key not in step.state.tracked
            if found.newly_seen:
                assert last is None or last.phase.value == "unknown"
            if found.kind is TransitionKind.COMPLETED:
                assert last is not None
                assert last.started_at is not None
            if found.kind is TransitionKind.CANCELED:
                self.really_canceled(before.tracked[key], now)

    def really_canceled(self, last: TrackedEvent, now: Instant) -> None:
        shown = last.event
        assert shown.status == "Scheduled"
        assert self.steady(now)
        assert self.last_read is not None
        assert self.number == self.last_read[2] + 1
        assert shown.not_before is not None
        assert now.wall < shown.not_before
        assert last.key not in self.approved_ever
        assert last.key not in self.doubted_ever

    def posts(self, events: list[Any], document: Document, now: Instant, answer: int) -> None:
        """Send what is approved and due; before each POST compare with the oracle."""
        decisions = decide(self.policy, self.state, situation_of(self.setup_now, self.policy, document))
        approving = {decision.key for decision in decisions if decision.verdict is Verdict.APPROVE}
        busy = {*approving, *self.approved_ever, *self.doubted_ever, *self.started_ever}
        for decision in decisions:
            self.agrees(decision, events, {each.key for each in decisions} & busy - {decision.key})
        for decision in decisions:
            tracked = self.state.tracked[decision.key]
            if decision.verdict is not Verdict.APPROVE or not attempt_due(tracked, now, self.start):
                continue
            self.in_time(decision.key, decision)
            approval = begin_attempt(tracked.approval, now, decision.rule)
            if answer == 200:
                approval = mark_accepted(approval, now.wall)
            elif answer:  # without one the process died during the POST
                approval = mark_failed(approval, f"status-{answer}", answer)
            self.state = with_tracked(self.state, replace(tracked, approval=approval))
            self.posts_ever.setdefault(decision.key, []).append(self.true)
            seen(f"posted {answer} after {len(self.posts_ever[decision.key]) - 1}")
            if answer == 200:
                self.approved_ever.add(decision.key)
            elif answer != 400:
                self.doubted_ever.add(decision.key)

    def agrees(self, decision: Decision, events: list[Any], others: set[str]) -> None:
        """Check that the oracle, with the test's account of the past, gives the same verdict and reason.

        `others` are approved or were Started.
        """
        expected_event = self.expected[decision.key]
        known, unchanged = (
            self.observed_seconds - expected_event.first_seen,
            self.observed_seconds - expected_event.unchanged_since,
        )
        reset = self.reset is not None and (self.observed_seconds - self.reset[0] < 10 and self.reset[1] < 3)
        approved, started = decision.key in self.approved_ever, decision.key in self.started_ever
        theirs = expected_event.ownership == "theirs"
        past = oracle.Past(approved, known, unchanged, started, reset, bool(others), theirs)
        place = places(events)[decision.key]
        seen(f"decided {decision.reason.value or 'approve'}")
        assert (decision.verdict.value, decision.reason.value) == oracle.judge(events, place, self.setup_now, past)

    def in_time(self, key: str, decision: Decision) -> None:
        """Check that no POST follows a 200, precedes the end of its backoff, or is out of turn."""
        assert key not in self.approved_ever
        earlier = self.posts_ever.get(key, [])
        lost_time = bool(earlier) and min(self.killed_at, self.set_at) >= earlier[-1]
        if earlier and not lost_time:  # a clock that is set while no process runs hides the length
            assert self.true - earlier[-1] >= min(60.0, 5.0 * 2 ** (len(earlier) - 1))
        if self.setup.coordination != "leader" or decision.event.resources is None:
            return
        place = [folded(name) for name in decision.event.resources].index(folded(self.setup.vm_name))
        if place > 0:
            assert decision.event.source == "User"
            assert self.setup.takeover_after is not None
            waited = self.observed_seconds - self.expected[key].first_seen
            assert waited >= place * self.setup.takeover_after

    # -- invariants of each step

    def keeps(self) -> None:
        """Check that the state round-trips except for monotonic times, and that no closed event is tracked."""
        text = dump_state(self.state)
        assert dump_state(load_state(text)) == text
        assert not set(self.state.tracked) & set(self.state.closed)


STATUSES = st.sampled_from(["Scheduled"] * 6 + ["Started", "Paused"])
HAPPENINGS: Any = st.one_of(
    st.tuples(
        st.just("announces"),
        IDENTS,
        st.lists(st.sampled_from(VMS), max_size=2).map(lambda names: [*names, "vm-0"]) | st.just(["vm-1", "vm-2"]),
        st.sampled_from([900, 900, 900, 20, 3, 0, -10]),
        st.fixed_dictionaries(
            {
                "EventType": st.sampled_from(["Reboot", "Redeploy", "Freeze", "Reboot", "Redeploy", "Freeze", "Nap"]),
                "EventSource": st.sampled_from(["User", "User", "User", "Platform", ...]),
                "DurationInSeconds": st.sampled_from([-1, 0, 5, 9, -1, 0, 5, 9, ..., "5"]),
                "EventStatus": STATUSES,
            }
        ),
    ),
    st.tuples(st.just("moves"), IDENTS, st.sampled_from(["Started", "Started", "Scheduled", "Paused"]), st.booleans()),
    st.tuples(
        st.just("changes"),
        IDENTS,
        st.sampled_from(
            [
                {"Description": "One."},
                {"Description": "Other."},
                {"Resources": ["vm-1", "vm-0"]},
                {"Resources": ["vm-2"]},
                {"Resources": ["vm-2", "VM-0"]},
                {"Resources": "vm-0"},
                {"NotBefore": "soon"},
                {"NotBefore": TIMES[3]},
                {"EventSource": 5},
                {"EventType": None},
                {"DurationInSeconds": True},
                {"DurationInSeconds": 4},
                {"Newer": [1]},
            ]
        ),
    ),
    st.tuples(st.just("is_over"), IDENTS),
    st.tuples(st.just("is_over"), IDENTS),
    st.tuples(st.just("speaks_an_older_version"), IDENTS),
    st.tuples(st.just("changes_the_case_of_an_id"), IDENTS),
    st.tuples(st.just("starts_its_number_again"), st.integers(1, 3)),
    st.tuples(st.just("shows_its_events_backwards")),
    st.tuples(st.just("does_nothing")),
    st.tuples(st.just("polling_pauses"), st.sampled_from([6.0, 60.0, 4000.0])),
    st.tuples(st.just("the_vm_is_frozen"), st.sampled_from([1.0, 9.0])),
    st.tuples(st.just("the_clock_is_set"), st.sampled_from([-3600.0, -2.0, 2.0, 3600.0])),
    st.tuples(
        st.just("the_process_is_killed_and_starts_again"),
        st.sampled_from([0.125, 2.0, 30.0]),
        st.sampled_from([True, True, False]),
    ),
    st.tuples(st.just("the_name_becomes_known")),
)
HOMES = st.builds(
    oracle.PolicySetup,
    mode=st.sampled_from(["enforce"] * 6 + ["dry-run"]),
    coordination=st.sampled_from(["leader", "any", "leader", "single"]),
    takeover_after=st.sampled_from([0.5, 10.0, None]),
    rules=st.lists(GENEROUS | RULES, max_size=3).map(lambda rules: tuple(rules) or DEFAULT),
    file=st.builds(Files, st.integers(0, 2)),
    hold_file=st.sampled_from(["", "", "", HOLD]),
)
LENGTH = 50 if LONG else 20


@settings(max_examples=examples(150))
@given(HOMES, st.lists(st.tuples(HAPPENINGS, LOOKS), min_size=LENGTH // 4, max_size=LENGTH))
def test_random_platform_is_recorded_and_approved_correctly(
    setup: oracle.PolicySetup, scenario: list[tuple[tuple[Any, ...], Look]]
) -> None:
    """In any order of events: no fact is recorded twice, lost in a crash, or claimed without observation. Nothing is
    approved that the oracle holds, that is out of turn, too early, or already approved."""
    Tried.example(steps=sum(often for _, (often, *_) in scenario))
    life = Life(setup)
    for (name, *arguments), look in scenario:
        getattr(life, name)(*arguments)
        life.looks(look)
