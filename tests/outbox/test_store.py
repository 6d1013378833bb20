"""The outbox: one transaction, queues, the bound, and acknowledgements."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from exporter.core.state import Instant, State
from exporter.outbox.errors import OutboxUnwritable
from exporter.outbox.queue import DELIVERED_KEPT
from tests.support.outbox_content import BOTH, NOW, STATE, a_record, drained, numbers, on_disk, opened


def test_state_and_records_are_committed_together(tmp_path: Path) -> None:
    """The next process finds the state, and every record for every destination."""
    first = opened(tmp_path / "o.db")
    assert first.load() is None
    first.commit(STATE, [a_record(1), a_record(2)])
    first.close()
    second = opened(tmp_path / "o.db")
    assert second.load() == STATE
    assert drained(second, "event_hubs") == drained(second, "otlp") == [1, 2]
    second.close()


def test_failed_commit_writes_nothing(tmp_path: Path) -> None:
    """Another process has locked the file."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [])
    with closing(sqlite3.connect(outbox.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutboxUnwritable) as caught:
            outbox.commit(State(birth=NOW, vm_key="changed"), [a_record(1)])
        assert caught.value.reason == "busy"
        other.execute("ROLLBACK")
    assert outbox.load() == STATE
    assert outbox.next("otlp", 10) == []
    assert outbox.queues()["otlp"].records == 0
    outbox.commit(STATE, [a_record(1)])
    assert outbox.queues()["otlp"].records == 1
    outbox.close()


def test_record_id_is_written_once(tmp_path: Path) -> None:
    """A record repeated after a crash isn't queued again, delivered or not."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1), a_record(2)])
    (first,) = outbox.next("otlp", 1)
    outbox.delivered("otlp", [first.seq])
    outbox.commit(STATE, [a_record(1), a_record(2), a_record(3)])
    assert drained(outbox, "otlp") == [2, 3]
    assert drained(outbox, "event_hubs") == [1, 2, 3]
    outbox.close()


def test_destinations_are_independent(tmp_path: Path) -> None:
    """Each has a position that survives a restart."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(number) for number in range(5)])
    assert drained(outbox, "otlp") == [0, 1, 2, 3, 4]
    outbox.close()
    again = opened(tmp_path / "o.db")
    assert again.queues()["otlp"].records == 0
    assert again.queues()["event_hubs"].records == 5
    assert again.queues()["event_hubs"].oldest == NOW
    assert drained(again, "event_hubs") == [0, 1, 2, 3, 4]
    again.close()


def test_batch_has_one_subject_in_order(tmp_path: Path) -> None:
    """It is the subject of the oldest record."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1, "a"), a_record(2, "b"), a_record(3, "a"), a_record(4, "b")])
    assert numbers(outbox.next("otlp", 10)) == [1, 3]
    assert drained(outbox, "otlp") == [1, 3, 2, 4]
    outbox.close()


def test_parked_record_is_kept_and_does_not_block_others(tmp_path: Path) -> None:
    """It is counted and can be read with its reason."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1), a_record(2)])
    (first,) = outbox.next("otlp", 1)
    outbox.park("otlp", first.seq, "rejected: never")
    assert drained(outbox, "otlp") == [2]
    outbox.close()
    again = opened(tmp_path / "o.db")
    assert (again.queues()["otlp"].parked, again.queues()["otlp"].records) == (1, 0)
    again.close()
    with closing(sqlite3.connect(tmp_path / "o.db")) as db:
        rows = db.execute("SELECT r.id, q.parked FROM queue q JOIN records r USING (seq) WHERE parked NOTNULL")
        assert rows.fetchall() == [(a_record(1).id, "rejected: never")]


def test_delivered_records_are_bounded(tmp_path: Path) -> None:
    """Waiting records stay, whatever their age."""
    outbox = opened(tmp_path / "o.db", names=("otlp",))
    outbox.commit(STATE, [a_record(0, "stuck")])
    for start in range(1, DELIVERED_KEPT + 500, 250):
        outbox.commit(STATE, [a_record(number) for number in range(start, start + 250)])
        for queued in outbox.next("otlp", 1):
            if queued.record.subject == "stuck":
                outbox.park("otlp", queued.seq, "later")
        while batch := outbox.next("otlp", 1_000):
            outbox.delivered("otlp", [queued.seq for queued in batch])
    with closing(sqlite3.connect(outbox.path)) as db:
        assert db.execute("SELECT count(*), min(seq) FROM records").fetchone() == (DELIVERED_KEPT + 1, 1)
    outbox.close()


@pytest.mark.parametrize("capacity", [65_536, 131_072, 1 << 20])
def test_oldest_records_are_dropped_at_the_bound(tmp_path: Path, capacity: int) -> None:
    """The files together stay near the bound, and dropped records are counted."""
    outbox = opened(tmp_path / "o.db", capacity)
    lost: dict[str, int] = {"otlp": 0, "event_hubs": 0}
    for start in range(0, 2_000, 20):
        dropped = outbox.commit(STATE, [a_record(number, size=1_000) for number in range(start, start + 20)])
        for name, count in dropped.items():
            lost[name] += count
        assert on_disk(tmp_path) <= 1.6 * capacity + 131_072  # plus the journal and its index
    left = drained(outbox, "otlp")
    assert left == list(range(2_000 - len(left), 2_000))
    assert left
    assert lost == {"otlp": 2_000 - len(left), "event_hubs": 2_000 - len(left)}
    assert outbox.queues()["event_hubs"].records == len(left)
    assert os.path.getsize(outbox.path) <= capacity
    outbox.close()


def test_delivered_records_are_dropped_before_waiting_ones(tmp_path: Path) -> None:
    outbox = opened(tmp_path / "o.db", 1 << 20, ("otlp",))
    for start in range(0, 600, 100):
        assert outbox.commit(STATE, [a_record(number, size=800) for number in range(start, start + 100)]) == {}
        drained(outbox, "otlp")
    assert outbox.commit(STATE, [a_record(number, size=800) for number in range(600, 1_000)]) == {}
    assert drained(outbox, "otlp") == list(range(600, 1_000))
    outbox.close()


@pytest.mark.parametrize("size", [40_000, 70_000, 3_000_000])
def test_record_that_cannot_fit_is_dropped_and_counted(tmp_path: Path, size: int) -> None:
    """Other records of the same and of later commits are kept."""
    outbox = opened(tmp_path / "o.db", 131_072)
    outbox.commit(STATE, [a_record(1)])
    dropped = outbox.commit(STATE, [a_record(2), a_record(3, size=size), a_record(4)])
    left = drained(outbox, "otlp")
    assert left[-1] == 4
    assert len(left) + dropped.get("otlp", 0) == 4
    assert outbox.queues()["event_hubs"].records == len(left)
    outbox.close()


def test_large_record_displaces_older_ones(tmp_path: Path) -> None:
    """It fits only into an empty outbox."""
    outbox = opened(tmp_path / "o.db", 1 << 20, ("otlp",))
    outbox.commit(STATE, [a_record(number, size=1_000) for number in range(300)])
    dropped = outbox.commit(STATE, [a_record(300, size=400_000)])
    left = drained(outbox, "otlp")
    assert left[-1] == 300
    assert dropped == ({"otlp": 301 - len(left)} if len(left) < 301 else {})
    outbox.close()


def test_state_that_cannot_fit_raises_full(tmp_path: Path) -> None:
    """The previous state stays."""
    outbox = opened(tmp_path / "o.db", 65_536)
    outbox.commit(STATE, [])
    with pytest.raises(OutboxUnwritable) as caught:
        outbox.commit(State(birth=NOW, vm_key="k" * 200_000), [a_record(1)])
    assert caught.value.reason == "full"
    assert outbox.load() == STATE
    outbox.close()


def test_dropped_parked_records_are_not_counted(tmp_path: Path) -> None:
    """At the bound parked records are dropped like others."""
    outbox = opened(tmp_path / "o.db", 131_072, ("otlp",))
    outbox.commit(STATE, [a_record(number, size=500) for number in range(20)])
    for queued in outbox.next("otlp", 100):
        outbox.park("otlp", queued.seq, "rejected")
    assert outbox.queues()["otlp"].parked == 20
    outbox.commit(STATE, [a_record(number, size=1_000) for number in range(100, 400)])
    assert outbox.queues()["otlp"].parked == 0
    outbox.close()


# -- acknowledgements


def test_acknowledgement_is_kept_while_the_disk_fails(tmp_path: Path) -> None:
    """A delivered or parked record isn't sent again, and the next one is."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1), a_record(2), a_record(3)])
    first, second, third = outbox.next("otlp", 3)
    with closing(sqlite3.connect(outbox.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutboxUnwritable):
            outbox.delivered("otlp", [first.seq])
        assert numbers(outbox.next("otlp", 1)) == [2]
        with pytest.raises(OutboxUnwritable):
            outbox.park("otlp", second.seq, "rejected")
        assert outbox.next("otlp", 3) == [third]
        other.execute("ROLLBACK")
    assert outbox.next("otlp", 3) == [third]
    assert (outbox.queues()["otlp"].records, outbox.queues()["otlp"].parked) == (1, 1)
    outbox.close()


def test_unreadable_record_is_counted_as_lost(tmp_path: Path) -> None:
    """It blocks no other record and isn't reported as rejected."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1), a_record(2), a_record(3)])
    with closing(sqlite3.connect(outbox.path)) as db:
        db.execute("UPDATE records SET body = CAST('x' AS BLOB) WHERE seq < 3")
        db.commit()
    assert numbers(outbox.next("otlp", 1)) == [3]
    assert drained(outbox, "otlp") == [3]
    assert outbox.lost == [("otlp", 1), ("otlp", 1)]
    assert (outbox.queues()["otlp"].parked, outbox.queues()["otlp"].records) == (0, 0)
    outbox.close()


def test_many_unreadable_records_are_skipped_one_by_one(tmp_path: Path) -> None:
    """However many there are, and however small the limit is."""
    outbox = opened(tmp_path / "o.db", names=("otlp",))
    outbox.commit(STATE, [a_record(number) for number in range(3_000)])
    with closing(sqlite3.connect(outbox.path)) as db:
        db.execute("UPDATE records SET body = x'00' WHERE seq < 3000")
        db.commit()
    assert numbers(outbox.next("otlp", 1)) == [2_999]
    assert len(outbox.lost) == 2_999
    outbox.close()


def test_heartbeat_updates_last_good_time(tmp_path: Path) -> None:
    """It never moves backwards, and an invalid value is ignored."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(State(birth=NOW, last_good=Instant(NOW, 5.0)), [])
    outbox.save_heartbeat(NOW + timedelta(seconds=60))
    loaded = outbox.load()
    assert loaded is not None
    assert loaded.last_good == Instant(NOW + timedelta(seconds=60), None)
    with closing(sqlite3.connect(outbox.path)) as db:
        db.execute("UPDATE meta SET value = 'soon' WHERE key = 'seen'")
        db.commit()
    loaded = outbox.load()
    assert loaded is not None
    assert loaded.last_good == Instant(NOW, None)
    outbox.close()


def test_threads_deliver_each_record_once_in_order(tmp_path: Path) -> None:
    """Two deliveries drain while the agent commits."""
    outbox = opened(tmp_path / "o.db")
    over = threading.Event()
    got: dict[str, list[int]] = {name: [] for name in BOTH}

    def drain(name: str) -> None:
        while not over.is_set() or outbox.queues()[name].records:
            with contextlib.suppress(OutboxUnwritable):  # a busy machine: it is remembered
                batch = outbox.next(name, 10)
                got[name] += numbers(batch)
                outbox.delivered(name, [queued.seq for queued in batch])

    threads = [threading.Thread(target=drain, args=(name,)) for name in BOTH]
    for thread in threads:
        thread.start()
    number = 0
    while number < 300:
        with contextlib.suppress(OutboxUnwritable):  # likewise: it is tried again
            outbox.commit(STATE, [a_record(number)])
            number += 1
        outbox.queues()
    over.set()
    for thread in threads:
        thread.join(30)
    assert got == {name: list(range(300)) for name in BOTH}
    assert {queue.records for queue in outbox.queues().values()} == {0}
    outbox.close()


@pytest.mark.parametrize("outcome", ["delivered", "parked"])
def test_batch_of_a_quarantined_file_settles_nothing_in_the_next(tmp_path: Path, outcome: str) -> None:
    """Its row numbers aren't reused in the next file."""
    with closing(opened(tmp_path / "o.db")) as outbox:
        outbox.commit(STATE, [a_record(number) for number in (1, 2, 3)])
        under_way = outbox.next("otlp", 10)
        outbox.start_new_file("other-vm")
        outbox.commit(STATE, [a_record(number) for number in (4, 5)])
        if outcome == "delivered":
            outbox.delivered("otlp", [queued.seq for queued in under_way])
        else:
            outbox.park("otlp", under_way[0].seq, "rejected")
        assert outbox.queues()["otlp"].parked == 0
        assert outbox.queues()["otlp"].records == 2
        assert drained(outbox, "otlp") == drained(outbox, "event_hubs") == [4, 5]
