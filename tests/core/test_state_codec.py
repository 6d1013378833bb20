"""The state as text: whole, and nothing but a state is taken for one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.core.folding import folded
from exporter.core.memory import with_tracked
from exporter.core.state import Approval, Instant, InterruptionTotals, Outage, StartedBy, State, Tracked
from exporter.core.state_codec import dump_state, load_state
from tests.support.core_documents import EVENT_ID, NOON, Watcher, event, started

KEY = folded(EVENT_ID)


def full() -> State:
    """A state in which everything is set."""
    watcher = Watcher.fresh()
    watcher.sees(event("gone", Description="\ud800 ünï\0", More=[1, {"a": None}]), event("z"), event())
    watcher.sees(started("b", Resources=5), event("z"), event(), None, {"EventId": ""}, event("Z"))
    tracked = watcher.state.tracked[KEY]
    approval = Approval(3, Instant(NOON, 5.0), NOON + timedelta(seconds=1), "all", True, True, "timeout", True, 30.0)
    tracked = replace(
        tracked, approval=approval, decided=("hold", "off", ""), interruptions=InterruptionTotals(1, 2.5, 2.5)
    )
    tracked = replace(tracked, started_at=NOON, started_by=StartedBy.TIME, numbers={"scheduled": 1, "": 7})
    state = with_tracked(watcher.state, tracked)
    return replace(
        state,
        outage=Outage(Instant(NOON, 1.0), "timeout", True, True, Instant(NOON, 2.0)),
        numbers={"agent.started": 1763726400001},
        vm_id="vm-id",
        document_rejected="empty",
        boot_id="boot",
        evictions=2,
    )


def without_clocks(state: State) -> State:
    """The monotonic times mean nothing to another process."""

    def still(moment: Instant | None) -> Instant | None:
        return replace(moment, mono=None) if moment else None

    def kept(histories: Mapping[str, Tracked]) -> dict[str, Tracked]:
        forgotten: dict[str, Any] = {"first_seen_mono": None, "started_mono": None, "closed_mono": None}
        return {
            key: replace(
                entry, approval=replace(entry.approval, last_attempt=still(entry.approval.last_attempt)), **forgotten
            )
            for key, entry in histories.items()
        }

    outage = replace(state.outage, since=replace(state.outage.since, mono=None), here=None) if state.outage else None
    return replace(
        state,
        tracked=kept(state.tracked),
        closed=kept(state.closed),
        last_good=still(state.last_good),
        outage=outage,
        first_answer_mono=None,
    )


@pytest.mark.parametrize("state", [State(NOON), full()], ids=["new", "full"])
def test_a_state_survives_its_text_but_for_the_monotonic_times(state: State) -> None:
    """Everything else is there again, of the same types."""
    text = dump_state(state)
    assert load_state(text) == without_clocks(state)
    assert dump_state(load_state(text)) == text


def test_the_text_is_plain_and_holds_each_event_once() -> None:
    """ASCII, so that no disk minds what Azure wrote; the document is told by the keys of its events."""
    text = dump_state(full())
    assert text.isascii()
    assert text.count('"vm-9"') == 0
    assert json.loads(text)["state"]["document"]["order"] == ["b", "z", KEY]


def test_a_loaded_state_goes_on_where_the_other_stopped() -> None:
    """The same document next is no change."""
    watcher = Watcher.fresh()
    watcher.sees(event(), None)
    watcher.state = load_state(dump_state(watcher.state))
    step = watcher.step(event(), None, up=0)
    assert (step.transitions, step.rejections, step.changed) == ((), (), False)


BROKEN: list[Any] = [
    {},
    {"version": 1},
    {"version": 2, "state": {}},
    {"version": None, "state": {}},
    {"version": 1, "state": None},
    {"version": 1, "state": []},
    {"version": 1, "state": {"document": None}},
    {"version": 1, "state": {"document": None, "birth": None}},
    {"version": 1, "state": {"document": None, "birth": 5}},
    {"version": 1, "state": {"document": None, "birth": "soon"}},
    {"version": 1, "state": {"document": None, "birth": "2025-11-21T12:00:00"}},
    [],
    None,
    "state",
    5,
]


@pytest.mark.parametrize("found", BROKEN)
def test_what_is_no_state_is_a_value_error(found: Any) -> None:
    """The outbox sets such a file aside; any other error would stop the agent for good."""
    with pytest.raises(ValueError, match="not a state"):
        load_state(json.dumps(found))


@pytest.mark.parametrize("text", ["", "{", "\ud800", "[" * 100_000, '{"version": NaN}', "\x00"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    """Likewise."""
    with pytest.raises(ValueError, match="not a state"):
        load_state(text)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every part of a JSON value."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


FULL = json.loads(dump_state(full()))
PLACES = [path for path in places(FULL) if path and "raw" not in path]


@given(
    st.sampled_from(PLACES),
    st.sampled_from([None, 5, -1.5, True, "", "x", [], [None], {}, {"a": 1}, float("nan"), "2025-11-21T12:00:00"]),
)
def test_a_damaged_state_is_refused_or_sound(path: tuple[Any, ...], value: Any) -> None:
    """One part replaced by something else: either a ValueError, or a state that can be worked with and kept."""
    found = json.loads(json.dumps(FULL))
    inner = found
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    try:
        state = load_state(json.dumps(found))
    except ValueError:
        return
    assert load_state(dump_state(state)) == state
    watcher = Watcher(state, wall=NOON + timedelta(seconds=60), number=9)
    watcher.sees(event(), started("b"))
    watcher.sees()


def test_times_keep_their_zone() -> None:
    """A time without one would fail the first comparison."""
    loaded = load_state(dump_state(full()))
    times = [entry.first_seen for entry in loaded.tracked.values()] + [loaded.birth]
    assert all(isinstance(moment, datetime) and moment.utcoffset() == timedelta(0) for moment in times)
