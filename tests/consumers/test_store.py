"""The Python consumer's store: each record once, with the position after it, over kills and restarts."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.consumers.python.event_summaries.record import Fact
from deploy.consumers.python.event_summaries.store import NEVER, Busy, Store
from tests.consumers.test_join import any_fact, at, fact
from tests.support.fleet_records import facts, recorded

PLACE: Final = {"fully_qualified_namespace": "ns", "eventhub_name": "hub", "consumer_group": "$Default"}


def commit(store: Store, partition: str = "0", number: int = 1) -> None:
    position = {**PLACE, "partition_id": partition, "offset": str(number), "sequence_number": number}
    asyncio.run(store.update_checkpoint(position))


def positions(store: Store, **place: str) -> dict[str, Any]:
    found = asyncio.run(store.list_checkpoints(**{**PLACE, **place}))
    return {one["partition_id"]: one["sequence_number"] for one in found}


def test_a_record_is_kept_once(tmp_path: Path) -> None:
    """By source and id; the same id of another VM is another record."""
    store = Store(tmp_path / "a.db")
    one = fact("scheduled", 0)
    assert store.add([one, one, replace(one, source="urn:other")]) == 2
    commit(store)
    assert store.add([one]) == 0
    store.close()


@pytest.mark.parametrize("fact_of", facts(recorded()), ids=lambda fact_of: fact_of.kind)
def test_a_fact_is_read_back_as_it_was(fact_of: Fact, tmp_path: Path) -> None:
    """Of every kind."""
    store = Store(tmp_path / "a.db")
    store.add([fact_of])
    assert list(store.facts(fact_of.event_id or "")) == [fact_of]
    store.close()


@given(st.lists(any_fact(), max_size=8, unique_by=lambda one: (one.source, one.id)))
def test_any_facts_are_read_back_as_they_were(some: list[Fact]) -> None:
    """In whatever batches."""
    store = Store(Path(":memory:"))
    assert store.add(some[:3]) + store.add(some) == len(some)
    assert sorted(store.facts("e-1"), key=repr) == sorted(some, key=repr)
    store.close()


def test_uncommitted_records_are_read_again(tmp_path: Path) -> None:
    """Facts, pending summaries, and the position are durable together or not at all."""
    store = Store(tmp_path / "a.db")
    store.add([fact("scheduled", 0)])
    commit(store, number=1)
    store.add([fact("started", 9)])
    store.close()  # as a kill: the rest was not committed
    store = Store(tmp_path / "a.db")
    assert [one.kind for one in store.facts("e-1")] == ["scheduled"]
    assert positions(store) == {"0": 1}
    store.close()


def test_summary_is_pending_until_it_is_written(tmp_path: Path) -> None:
    """Across a restart, and again after a new record of the event; a copy changes nothing."""
    store = Store(tmp_path / "a.db")
    store.add([fact("scheduled", 0)])
    commit(store)
    store.close()
    store = Store(tmp_path / "a.db")
    assert store.pending() == ["e-1"]
    store.mark_written({"e-1": at(900)})
    store.add([fact("scheduled", 0)])
    assert store.pending() == []
    assert (store.overdue(at(901)), store.overdue(at(899))) == (["e-1"], [])
    store.add([fact("completed", 910)])
    assert store.pending() == ["e-1"]
    store.mark_written({"e-1": NEVER})
    assert store.overdue(at(9_999_999)) == []
    store.close()


def test_each_hub_group_and_partition_has_its_own_position(tmp_path: Path) -> None:
    """Positions of one consumer group don't affect another."""
    store = Store(tmp_path / "a.db")
    commit(store, "0", 5)
    commit(store, "1", 7)
    assert positions(store) == {"0": 5, "1": 7}
    assert positions(store, consumer_group="other") == positions(store, eventhub_name="other") == {}
    store.close()


def test_only_one_process_opens_the_file(tmp_path: Path) -> None:
    """A second process gets an error and changes nothing."""
    store = Store(tmp_path / "a.db")
    with pytest.raises(Busy, match="another process"):
        Store(tmp_path / "a.db")
    store.add([fact("scheduled", 0)])
    commit(store)
    store.close()
    Store(tmp_path / "a.db").close()


def test_old_events_are_deleted_and_their_space_is_reused(tmp_path: Path) -> None:
    """By age, and the oldest first if the file is too large; never a pending one."""
    now = [1000.0]
    store = Store(tmp_path / "a.db", clock=lambda: now[0])
    for number in range(200):
        now[0] += 1
        store.add([replace(fact("scheduled", 0, not_before=at(900)), event_id=f"e-{number:03}")])
    commit(store)
    assert store.forget(before=now[0], max_bytes=1 << 30) == 0
    store.mark_written({f"e-{number:03}": NEVER for number in range(199)})
    assert store.forget(before=1101.0, max_bytes=1 << 30) == 100
    assert list(store.facts("e-099")) == []
    assert list(store.facts("e-100")) != []
    assert 0 < store.forget(before=0.0, max_bytes=60_000) < 99
    assert list(store.facts("e-198")) != []
    store.forget(before=0.0, max_bytes=0)
    assert store.pending() == ["e-199"]
    assert list(store.facts("e-199")) != []
    store.close()
