"""The outbox: one transaction, queues, the bound, and files that are not ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from exporter.lifecycle import Instant, State
from exporter.outbox import HISTORY, Outbox, OutboxBusy, OutboxUnwritable
from exporter.records import Record

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
STATE = State(birth=NOW, vm_key="me")
BOTH = ("event_hubs", "otlp")


def a_record(number: int, subject: str = "event", size: int = 0, created: datetime = NOW) -> Record:
    return Record(
        id=f"00000000-0000-5000-8000-{number:012}",
        kind="scheduled",
        source="urn:azure-vm:web-1",
        subject=subject,
        time=created + timedelta(seconds=number),
        severity="INFO",
        data={"severity": "INFO", "message": "x" * size, "event": None},
    )


def numbers(found: list[Any]) -> list[int]:
    return [int(queued.record.id[-12:]) for queued in found]


def drained(outbox: Outbox, destination: str) -> list[int]:
    """Everything that waits, in the order in which it comes, taken."""
    found: list[int] = []
    while batch := outbox.next(destination, 10):
        found += numbers(batch)
        outbox.delivered(destination, [queued.seq for queued in batch])
    return found


def opened(path: Path, capacity: int = 10 << 20, names: tuple[str, ...] = BOTH) -> Outbox:
    return Outbox(path, capacity, names, now=lambda: NOW)


def on_disk(folder: Path) -> int:
    return sum(os.path.getsize(folder / name) for name in os.listdir(folder))


def test_state_and_records_survive_together(tmp_path: Path) -> None:
    """What one commit held is what the next process finds: the state, and every record for every destination."""
    first = opened(tmp_path / "o.db")
    assert first.load() is None
    first.commit(STATE, [a_record(1), a_record(2)])
    first.close()
    second = opened(tmp_path / "o.db")
    assert second.load() == STATE
    assert drained(second, "event_hubs") == drained(second, "otlp") == [1, 2]
    second.close()


def test_a_failed_commit_leaves_nothing_behind(tmp_path: Path) -> None:
    """While another process holds the file, neither the state nor a record of a refused commit is there later."""
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


def test_an_id_is_written_once(tmp_path: Path) -> None:
    """A record that comes again after a crash is not queued again, whether it was delivered meanwhile or not."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1), a_record(2)])
    (first,) = outbox.next("otlp", 1)
    outbox.delivered("otlp", [first.seq])
    outbox.commit(STATE, [a_record(1), a_record(2), a_record(3)])
    assert drained(outbox, "otlp") == [2, 3]
    assert drained(outbox, "event_hubs") == [1, 2, 3]
    outbox.close()


def test_destinations_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Each destination has its own position, and it survives a restart."""
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


def test_a_batch_is_of_one_subject_in_order(tmp_path: Path) -> None:
    """A batch holds the oldest record's subject alone, oldest first."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1, "a"), a_record(2, "b"), a_record(3, "a"), a_record(4, "b")])
    assert numbers(outbox.next("otlp", 10)) == [1, 3]
    assert drained(outbox, "otlp") == [1, 3, 2, 4]
    outbox.close()


def test_a_parked_record_is_kept_and_passed_by(tmp_path: Path) -> None:
    """What a destination refuses for good is no longer in the way, is counted, and can be read with the reason."""
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


def test_history_is_bounded(tmp_path: Path) -> None:
    """Of delivered records only the newest stay; what still waits for anybody stays whatever its age."""
    outbox = opened(tmp_path / "o.db", names=("otlp",))
    outbox.commit(STATE, [a_record(0, "stuck")])
    for start in range(1, HISTORY + 500, 250):
        outbox.commit(STATE, [a_record(number) for number in range(start, start + 250)])
        for queued in outbox.next("otlp", 1):
            if queued.record.subject == "stuck":
                outbox.park("otlp", queued.seq, "later")
        while batch := outbox.next("otlp", 1_000):
            outbox.delivered("otlp", [queued.seq for queued in batch])
    with closing(sqlite3.connect(outbox.path)) as db:
        assert db.execute("SELECT count(*), min(seq) FROM records").fetchone() == (HISTORY + 1, 1)
    outbox.close()


@pytest.mark.parametrize("capacity", [65_536, 131_072, 1 << 20])
def test_the_bound_holds_and_the_newest_stay(tmp_path: Path, capacity: int) -> None:
    """Whatever is written, the files together stay near the bound; the oldest go first, and are counted."""
    outbox = opened(tmp_path / "o.db", capacity)
    lost: dict[str, int] = {"otlp": 0, "event_hubs": 0}
    for start in range(0, 2_000, 20):
        dropped = outbox.commit(STATE, [a_record(number, size=1_000) for number in range(start, start + 20)])
        for name, count in dropped.items():
            lost[name] += count
        assert on_disk(tmp_path) <= 1.6 * capacity + 131_072  # the journal and its index beside it
    left = drained(outbox, "otlp")
    assert left == list(range(2_000 - len(left), 2_000))
    assert left
    assert lost == {"otlp": 2_000 - len(left), "event_hubs": 2_000 - len(left)}
    assert outbox.queues()["event_hubs"].records == len(left)
    assert os.path.getsize(outbox.path) <= capacity
    outbox.close()


def test_delivered_history_goes_before_what_waits(tmp_path: Path) -> None:
    """At the bound nothing undelivered is dropped while there is history to drop."""
    outbox = opened(tmp_path / "o.db", 1 << 20, ("otlp",))
    for start in range(0, 600, 100):
        assert outbox.commit(STATE, [a_record(number, size=800) for number in range(start, start + 100)]) == {}
        drained(outbox, "otlp")
    assert outbox.commit(STATE, [a_record(number, size=800) for number in range(600, 1_000)]) == {}
    assert drained(outbox, "otlp") == list(range(600, 1_000))
    outbox.close()


@pytest.mark.parametrize("size", [40_000, 70_000, 3_000_000])
def test_a_huge_record_is_no_stopper(tmp_path: Path, size: int) -> None:
    """A record that can't fit is dropped and counted; those beside it and after it are kept."""
    outbox = opened(tmp_path / "o.db", 131_072)
    outbox.commit(STATE, [a_record(1)])
    dropped = outbox.commit(STATE, [a_record(2), a_record(3, size=size), a_record(4)])
    left = drained(outbox, "otlp")
    assert left[-1] == 4
    assert len(left) + dropped.get("otlp", 0) == 4
    assert outbox.queues()["event_hubs"].records == len(left)
    outbox.close()


def test_a_large_record_makes_room_for_itself(tmp_path: Path) -> None:
    """A record that fits in the file alone pushes out older ones instead of waiting for ever."""
    outbox = opened(tmp_path / "o.db", 1 << 20, ("otlp",))
    outbox.commit(STATE, [a_record(number, size=1_000) for number in range(300)])
    dropped = outbox.commit(STATE, [a_record(300, size=400_000)])
    left = drained(outbox, "otlp")
    assert left[-1] == 300
    assert dropped == ({"otlp": 301 - len(left)} if len(left) < 301 else {})
    outbox.close()


def test_a_state_that_cannot_fit_is_said(tmp_path: Path) -> None:
    """A state larger than the bound is refused with "full", and the one before stays."""
    outbox = opened(tmp_path / "o.db", 65_536)
    outbox.commit(STATE, [])
    with pytest.raises(OutboxUnwritable) as caught:
        outbox.commit(State(birth=NOW, vm_key="k" * 200_000), [a_record(1)])
    assert caught.value.reason == "full"
    assert outbox.load() == STATE
    outbox.close()


def test_dropped_parked_records_are_no_longer_counted(tmp_path: Path) -> None:
    """At the bound parked records go like others, and the count of parked ones follows."""
    outbox = opened(tmp_path / "o.db", 131_072, ("otlp",))
    outbox.commit(STATE, [a_record(number, size=500) for number in range(20)])
    for queued in outbox.next("otlp", 100):
        outbox.park("otlp", queued.seq, "rejected")
    assert outbox.queues()["otlp"].parked == 20
    outbox.commit(STATE, [a_record(number, size=1_000) for number in range(100, 400)])
    assert outbox.queues()["otlp"].parked == 0
    outbox.close()


# -- files


def set_aside(folder: Path, why: str) -> list[str]:
    return [name for name in sorted(os.listdir(folder)) if f".{why}-" in name and not name.endswith(("-wal", "-shm"))]


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database at all" * 500)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.commit()


def torn(path: Path) -> None:
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number, size=500) for number in range(200)])
    outbox.close()
    size = os.path.getsize(path)
    with path.open("r+b") as file:
        for offset in range(4096, size, 8192):
            file.seek(offset)
            file.write(b"\xff" * 4096)


def bad_state(path: Path) -> None:
    opened(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO meta VALUES ('state', '{\"version\": 99}')")
        db.commit()


@pytest.mark.parametrize(
    ("make", "why"), [(garbage, "corrupt"), (foreign, "foreign"), (torn, "corrupt"), (bad_state, "corrupt")]
)
def test_a_file_that_is_not_ours_is_set_aside(tmp_path: Path, make: Any, why: str) -> None:
    """It is kept under a name that says why, that is said, and a new outbox works at once."""
    make(tmp_path / "o.db")
    outbox = opened(tmp_path / "o.db")
    assert len(set_aside(tmp_path, why)) == 1
    assert why in outbox.notes[0]
    assert outbox.load() is None
    outbox.commit(STATE, [a_record(1)])
    assert drained(outbox, "otlp") == [1]
    outbox.close()


def test_an_empty_file_becomes_ours(tmp_path: Path) -> None:
    """A file of no bytes, as a package or a volume may bring it, is used."""
    (tmp_path / "o.db").touch()
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [])
    assert outbox.notes == []
    outbox.close()


def test_files_set_aside_never_overwrite_each_other(tmp_path: Path) -> None:
    """Two corrupt files of the same second are both kept."""
    for _ in range(3):
        garbage(tmp_path / "o.db")
        opened(tmp_path / "o.db").close()
    assert len(set_aside(tmp_path, "corrupt")) == 3


def test_renew_begins_anew(tmp_path: Path) -> None:
    """Another VM's outbox is set aside whole, with what it had not delivered; nothing of it is delivered by us."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1)])
    outbox.renew("other-vm")
    assert outbox.load() is None
    assert outbox.next("otlp", 1) == []
    (name,) = set_aside(tmp_path, "other-vm")
    with closing(sqlite3.connect(tmp_path / name)) as db:
        assert db.execute("SELECT count(*) FROM queue").fetchone() == (2,)
    outbox.close()


def test_one_agent_for_each_file(tmp_path: Path) -> None:
    """A second opener is told so, in this process or another; after the first has closed it may."""
    first = opened(tmp_path / "o.db")
    with pytest.raises(OutboxBusy, match="another agent works on"):
        opened(tmp_path / "o.db")
    first.close()
    opened(tmp_path / "o.db").close()


@pytest.mark.parametrize("removed", ["file", "folder"])
def test_removed_while_running(tmp_path: Path, removed: str) -> None:
    """A file removed under the agent is written anew with all that it held, and still keeps a second agent out."""
    folder = tmp_path / "state"
    outbox = opened(folder / "o.db")
    outbox.commit(STATE, [a_record(1)])
    if removed == "file":
        (folder / "o.db").unlink()
    else:
        shutil.rmtree(folder)
    outbox.commit(STATE, [a_record(2)])
    assert "was removed or replaced" in outbox.notes[-1]
    with pytest.raises(OutboxBusy):
        opened(folder / "o.db")
    outbox.close()
    again = opened(folder / "o.db")
    assert again.load() == STATE
    assert drained(again, "otlp") == [1, 2]
    again.close()


def test_replaced_while_running(tmp_path: Path) -> None:
    """A file put in the place of ours is set aside, ours is written anew, and acknowledgements are not forgotten."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1), a_record(2)])
    (first, _) = outbox.next("otlp", 2)
    outbox.delivered("otlp", [first.seq])
    opened(tmp_path / "other.db").close()
    os.replace(tmp_path / "other.db", tmp_path / "o.db")
    outbox.beat(NOW)
    assert len(set_aside(tmp_path, "replaced")) == 1
    assert drained(outbox, "otlp") == [2]
    outbox.close()


def test_corrupted_while_running(tmp_path: Path) -> None:
    """A file that turns out corrupt at a commit is set aside, and the commit goes to a new one."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(number, size=2_000) for number in range(500)])
    with closing(sqlite3.connect(outbox.path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with outbox.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (os.path.getsize(outbox.path) - 4096))
    for number in range(1_000, 1_003):
        outbox.commit(STATE, [a_record(number)])
    assert len(set_aside(tmp_path, "corrupt")) == 1
    assert drained(outbox, "otlp") == [1_000, 1_001, 1_002]
    outbox.close()
    assert opened(tmp_path / "o.db").load() == STATE


# -- a file that can't be opened


def test_starts_without_a_file(tmp_path: Path) -> None:
    """An outbox that can't be made refuses commits, answers everything else, and works once it can be made."""
    (tmp_path / "parent").write_text("a file where a folder should be")
    outbox = opened(tmp_path / "parent" / "o.db")
    assert "can't be used yet" in outbox.notes[0]
    with pytest.raises(OutboxUnwritable):
        outbox.load()
    with pytest.raises(OutboxUnwritable):
        outbox.commit(STATE, [a_record(1)])
    assert outbox.next("otlp", 1) == []
    outbox.beat(NOW)
    outbox.failed("otlp", "timeout", NOW)
    assert outbox.used() == 0
    assert set(outbox.queues()) == set(BOTH)
    (tmp_path / "parent").unlink()
    assert outbox.commit(STATE, [a_record(1)]) == {}
    assert drained(outbox, "otlp") == [1]
    outbox.close()


def test_a_path_that_is_a_folder(tmp_path: Path) -> None:
    """A folder at the path keeps the outbox closed, untouched, until it is gone."""
    (tmp_path / "o.db").mkdir()
    outbox = opened(tmp_path / "o.db")
    with pytest.raises(OutboxUnwritable):
        outbox.commit(STATE, [])
    (tmp_path / "o.db").rmdir()
    outbox.commit(STATE, [])
    assert outbox.load() == STATE
    outbox.close()


def test_locked_at_the_start(tmp_path: Path) -> None:
    """While another program holds the database at the start, the outbox waits for it and loses nothing in it."""
    first = opened(tmp_path / "o.db")
    first.commit(STATE, [a_record(1)])
    first.close()
    with closing(sqlite3.connect(tmp_path / "o.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("COMMIT")
        second = opened(tmp_path / "o.db")
        with pytest.raises(OutboxUnwritable):
            second.load()
    assert second.load() == STATE
    assert drained(second, "otlp") == [1]
    second.close()


def test_renew_that_fails_is_made_up_for(tmp_path: Path) -> None:
    """When another VM's file can't be set aside, nothing of it is delivered, and the next commit sets it aside."""
    folder = tmp_path / "state"
    outbox = opened(folder / "o.db")
    outbox.commit(STATE, [a_record(1)])
    os.rename(folder, tmp_path / "moved")
    folder.write_text("no folder")
    with pytest.raises(OutboxUnwritable):
        outbox.renew("other-vm")
    assert outbox.next("otlp", 1) == []
    with pytest.raises(OutboxUnwritable):
        outbox.commit(STATE, [])
    folder.unlink()
    os.rename(tmp_path / "moved", folder)
    outbox.commit(STATE, [a_record(2)])
    assert drained(outbox, "otlp") == [2]
    assert len(set_aside(folder, "other-vm")) == 1
    outbox.close()


# -- acknowledgements


def test_an_acknowledgement_that_the_disk_refuses_is_remembered(tmp_path: Path) -> None:
    """While the disk takes nothing, a delivered or parked record is not sent again and the next one comes."""
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


def test_a_record_damaged_on_disk_is_parked(tmp_path: Path) -> None:
    """A body that is no record any more stops nobody behind it."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1), a_record(2), a_record(3)])
    with closing(sqlite3.connect(outbox.path)) as db:
        db.execute("UPDATE records SET body = 'x' WHERE seq < 3")
        db.commit()
    assert numbers(outbox.next("otlp", 1)) == [3]
    assert drained(outbox, "otlp") == [3]
    assert outbox.queues()["otlp"].parked == 2
    outbox.close()


def test_the_last_look_is_remembered(tmp_path: Path) -> None:
    """A beat moves the time of the last good document, never backwards, and nonsense in its place is ignored."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(State(birth=NOW, last_good=Instant(NOW, 5.0)), [])
    outbox.beat(NOW + timedelta(seconds=60))
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


def test_many_threads(tmp_path: Path) -> None:
    """Two deliveries drain while the agent commits: each gets every record once, in order."""
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
