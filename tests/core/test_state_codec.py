"""The state as text: complete, and other texts are rejected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.core.document import folded
from exporter.core.memory import with_tracked
from exporter.core.state import Approval, Instant, InterruptionTotals, Outage, StartedBy, State, TrackedEvent
from exporter.core.state_codec import StateWriter, dump_state, load_state
from tests.support.core_documents import EVENT_ID, NOON, Watcher, event, started

KEY = folded(EVENT_ID)


def full() -> State:
    """Return a state in which everything is set."""
    watcher = Watcher.fresh()
    watcher.sees(event("gone", Description="\ud800 ünï\0", More=[1, {"a": None}]), event("z"), event())
    watcher.sees(event("z"), event())
    watcher.sees(started("b", Resources=5), event("z"), event(), None, {"EventId": ""}, event("Z"))
    tracked = watcher.state.tracked[KEY]
    approval = Approval(
        attempts=3,
        last_attempt=Instant(NOON, 5.0),
        accepted_at=NOON + timedelta(seconds=1),
        rule="all",
        in_flight=True,
        unanswered=True,
        last_failure="timeout",
        failures={"timeout": 2},
        outdated=True,
        retry_after_seconds=30.0,
    )
    tracked = replace(
        tracked, approval=approval, decided=("hold", "off", ""), interruptions=InterruptionTotals(1, 2.5, 2.5)
    )
    tracked = replace(
        tracked, started=Instant(NOON, 4.0), started_by=StartedBy.NOT_BEFORE, numbers={"scheduled": 1, "": 7}
    )
    state = with_tracked(watcher.state, tracked)
    return replace(
        state,
        outage=Outage(
            Instant(NOON, 1.0),
            "timeout",
            Instant(NOON, 3.0),
            True,
            True,
            1.0,
            None,
            first_failure_in_process=Instant(NOON, 2.0),
        ),
        stopped=True,
        numbers={"agent.started": 1763726400001},
        vm_id="vm-id",
        document_rejected="empty",
        boot_id="boot",
        evictions=2,
    )


def without_clocks(state: State) -> State:
    """Return the state without monotonic times, which mean nothing to another process."""

    def still(moment: Instant | None) -> Any:
        return Instant(moment.wall) if moment else None

    def kept(entries: Mapping[str, TrackedEvent]) -> dict[str, TrackedEvent]:
        return {
            key: replace(
                entry,
                first_seen=still(entry.first_seen),
                started=still(entry.started),
                closed=still(entry.closed),
                approval=replace(entry.approval, last_attempt=still(entry.approval.last_attempt)),
            )
            for key, entry in entries.items()
        }

    outage = state.outage
    if outage:
        since, last_failure = still(outage.since), still(outage.last_failure)
        outage = replace(outage, since=since, last_failure=last_failure, first_failure_in_process=None)
    return replace(
        state,
        tracked=kept(state.tracked),
        closed=kept(state.closed),
        last_good=still(state.last_good),
        outage=outage,
        first_answer=still(state.first_answer),
    )


@pytest.mark.parametrize("state", [State(NOON), full()], ids=["new", "full"])
def test_state_round_trips_except_for_monotonic_times(state: State) -> None:
    """Everything else is restored with the same types."""
    text = dump_state(state)
    assert load_state(text) == without_clocks(state)
    assert dump_state(load_state(text)) == text


def test_text_contains_each_event_once() -> None:
    """It's UTF-8, whatever Azure wrote; the document is a list of event keys."""
    text = dump_state(full())
    assert text.encode("utf-8")
    assert text.count('"vm-9"') == 0
    assert json.loads(text)["document"]["events"] == ["b", "z", KEY]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Any]:
    """Yield each plain value of a JSON value by its path; times are parsed, since they have several spellings."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {at: leaf for key, item in items for at, leaf in leaves(item, (*path, key)).items()}
    try:
        return {path: datetime.fromisoformat(value)}
    except (TypeError, ValueError):
        return {path: value}


@given(st.lists(st.sets(st.sampled_from(["a", "b", "c", "\u00fc", "E"]), max_size=4), min_size=1, max_size=6))
def test_reused_text_is_never_stale(documents: list[set[str]]) -> None:
    """A writer of many states writes each as a new writer would."""
    watcher, writer = Watcher.fresh(), StateWriter()
    for number, ids in enumerate(documents):
        watcher.sees(*(event(name, Description=str(number if name == "a" else 0)) for name in sorted(ids)))
        assert writer.text(watcher.state) == dump_state(watcher.state)


def test_loaded_state_continues_where_the_other_stopped() -> None:
    """The same document causes no change."""
    watcher = Watcher.fresh()
    watcher.sees(event(), None)
    watcher.state = load_state(dump_state(watcher.state))
    step = watcher.step(event(), None, up=0)
    assert (step.transitions, step.rejections, step.changed) == ((), (), False)


EARLY: Final = "2025-11-21T12:00:00Z"
SMALL: Final = {"birth": EARLY}
BROKEN: list[Any] = [
    {},
    {"version": 1},
    {"version": 2, "document": None, "state": SMALL},
    {"version": None, "document": None, "state": SMALL},
    {"version": 1, "document": None},
    {"version": 1, "state": SMALL},
    {"version": 1, "document": {"incarnation": 1, "events": ["a"], "rejected": []}, "state": SMALL},
    {"version": 1, "document": {"incarnation": 1, "events": []}, "state": SMALL},
    [],
    None,
    "state",
    5,
]
BROKEN_STATES: list[Any] = [
    None,
    [],
    {},
    {"birth": None},
    {"birth": 5},
    {"birth": "soon"},
    {"birth": "2025-11-21T12:00:00"},
    {**SMALL, "unknown": 5},
    {**SMALL, "document": {"incarnation": 1}},
    {**SMALL, "process": {"malformed": 1}},
    {**SMALL, "evictions": 1.5},
    {**SMALL, "evictions": True},
    {**SMALL, "evictions": "1"},
    {**SMALL, "observed_seconds": "1.5"},
    {**SMALL, "observed_seconds": None},
    {**SMALL, "numbers": [["a", 1]]},
    {**SMALL, "scoped_as": ["name"]},
    {**SMALL, "last_good": 5},
    {**SMALL, "last_good": "2025-11-21T12:00:00"},
    {**SMALL, "last_good": {"wall": EARLY, "mono": 1.0}},
    {**SMALL, "outage": {"since": EARLY}},
    {**SMALL, "outage": {"since": EARLY, "reason": "", "last_failure": EARLY, "first_failure_in_process": EARLY}},
    {**SMALL, "started_ids": {"a": 5}},
    {**SMALL, "tracked": {"a": {}}},
]


def text_of(state: Any) -> str:
    """Return the text with this value in the place of a state written before the first document."""
    return json.dumps({"version": 1, "document": None, "state": state})


@pytest.mark.parametrize("state", BROKEN_STATES)
def test_text_that_is_not_a_state_is_rejected(state: Any) -> None:
    """Each field has its type, and there is no other field."""
    with pytest.raises(ValueError, match="not a state"):
        load_state(text_of(state))


@pytest.mark.parametrize("value", BROKEN)
def test_text_that_is_not_a_state_is_a_value_error(value: Any) -> None:
    """The outbox quarantines such a file; any other error would stop the agent permanently."""
    with pytest.raises(ValueError, match="not a state"):
        load_state(json.dumps(value))


def test_smallest_state_is_valid() -> None:
    """The broken ones above are made of it."""
    assert load_state(text_of(SMALL)) == State(NOON)


SURROGATE: Final = '{"version":1,"document":null,"state":{"birth":"2025-11-21T12:00:00Z","vm_id":"\\ud800","numbers":'
TEXTS: Final = [
    "",
    "{",
    "\ud800",
    "[" * 100_000,
    '{"version": NaN}',
    "\x00",
    SURROGATE + "NaN}}",
    SURROGATE + "[" * 100_000,
    SURROGATE + '{"a":' + "9" * 5_000 + "}}}",
    SURROGATE + '{"a":1},"unknown":1}}',
]


def test_lone_surrogate_is_valid() -> None:
    """The broken texts below begin with it, and it's written as it was read."""
    state = load_state(SURROGATE + '{"a":1}}}')
    assert state.vm_id == "\ud800"
    assert load_state(dump_state(state)) == state


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_invalid_json_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a state"):
        load_state(text)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the path of every part of a JSON value."""
    paths = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        paths += places(item, (*path, key))
    return paths


FULL = json.loads(dump_state(full()))
PLACES = [path for path in places(FULL) if path and "raw" not in path]


@given(
    st.sampled_from(PLACES),
    st.sampled_from([None, 5, -1.5, True, "", "x", [], [None], {}, {"a": 1}, float("nan"), "2025-11-21T12:00:00"]),
)
def test_damaged_state_is_rejected_or_usable(path: tuple[Any, ...], value: Any) -> None:
    """With one part replaced: a ValueError, or a state that can be used and written."""
    damaged = json.loads(json.dumps(FULL))
    inner = damaged
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    try:
        state = load_state(json.dumps(damaged))
    except ValueError:
        return
    assert load_state(dump_state(state)) == state
    watcher = Watcher(state, wall=NOON + timedelta(seconds=60), number=9)
    watcher.sees(event(), started("b"))
    watcher.sees()


TEXT: Final = dump_state(full())
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def is_state(text: str) -> bool:
    """Return whether the text is accepted; if so, check that the state round-trips."""
    try:
        state = load_state(text)
    except ValueError:
        return False
    assert load_state(dump_state(state)) == state
    return True


@given(JSON)
def test_random_json_is_accepted_or_a_value_error(value: Any) -> None:
    """In the place of a state or of a part of it."""
    assert not is_state(json.dumps(value))
    is_state(text_of({**SMALL, "numbers": value}))
    is_state(text_of({**SMALL, "tracked": {"a": value}, "vm_key": value}))


@given(st.integers(0, len(TEXT)), st.integers(0, 12), st.text(max_size=4))
def test_damaged_text_is_accepted_or_a_value_error(at: int, cut: int, inserted: str) -> None:
    """With some characters of a valid text removed and others inserted."""
    is_state(TEXT[:at] + inserted + TEXT[at + cut :])


def test_times_keep_their_zone() -> None:
    """A time without one would fail the first comparison."""
    loaded = load_state(dump_state(full()))
    times = [entry.first_seen.wall for entry in loaded.tracked.values()] + [loaded.birth]
    assert all(isinstance(moment, datetime) and moment.utcoffset() == timedelta(0) for moment in times)
