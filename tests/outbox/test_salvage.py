"""A damaged outbox: a damaged page loses only its records, and they are counted."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from exporter.core.records import Record, RecordKind
from exporter.core.state import State, TransitionKind
from exporter.outbox.errors import OutboxUnwritable
from exporter.outbox.store import Outbox
from tests.support.outbox_content import BOTH, NOW, STATE, a_record, numbers, opened

PAGE: Final = 4096
RECORDS: Final = 130
PARKED: Final = range(100, 110)
DELIVERED: Final = range(20)
MARKED: Final = re.compile(rb"<(\d{4})>")
BIG_STATE: Final = replace(STATE, vm_key="k" * 9000)


def marked(number: int) -> Record:
    """Return a record of 100 to 13,000 bytes, with its number on each page that has a part of it."""
    mark = f"<{number:04}>"
    size = 13_000 if number % 10 == 0 else 100 + 37 * number
    record = a_record(number, subject=f"event-{number % 7}{mark}")
    return replace(record, data={**record.data, "message": mark * (size // len(mark))})


def fill(path: Path) -> None:
    """Fill an outbox with waiting, delivered, and parked records, and with a large state."""
    outbox = opened(path)
    for number in range(RECORDS):
        outbox.commit(STATE, [marked(number)])
    for name in BOTH:
        while (batch := outbox.next(name, 1)) and numbers(batch)[0] in DELIVERED:
            outbox.delivered(name, [batch[0].seq])
    for seq in PARKED:
        outbox.park("otlp", seq + 1, "rejected: never")
    outbox.commit(BIG_STATE, [])
    outbox.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("filled") / "o.db"
    fill(path)
    return path.read_bytes()


def zeroed(_page: bytes, _other: bytes) -> bytes:
    return bytes(PAGE)


def ones(_page: bytes, _other: bytes) -> bytes:
    return b"\xff" * PAGE


def garbage(page: bytes, _other: bytes) -> bytes:
    """Return garbage of the right page type, so that it is parsed."""
    return page[:3] + random.Random(PAGE).randbytes(PAGE - 3)  # noqa: S311  # no secret


def swapped(_page: bytes, other: bytes) -> bytes:
    """Return the content of another page."""
    return other


def half(page: bytes, _other: bytes) -> bytes:
    """Return the page without its second half."""
    return page[: PAGE // 2] + bytes(PAGE // 2)


def pages_of(content: bytes) -> list[bytes]:
    return [content[at : at + PAGE] for at in range(0, len(content), PAGE)]


def all_of(outbox: Outbox, name: str) -> set[int]:
    """Return the numbers of all records for a destination, each once."""
    taken: list[int] = []
    while batch := outbox.next(name, 1000, None):
        taken += numbers(batch)
        outbox.delivered(name, [queued.seq for queued in batch])
    assert len(taken) == len(set(taken))
    return set(taken)


def parked_in(path: Path, name: str) -> set[int]:
    """Return the numbers of the records parked for a destination, read from the file."""
    with closing(sqlite3.connect(path)) as db:
        query = "SELECT r.id FROM queue JOIN records r USING (seq) WHERE destination = ? AND parked NOTNULL"
        return {int(found[-12:]) for (found,) in db.execute(query, (name,))}


@pytest.mark.parametrize("damage", [zeroed, ones, garbage, swapped, half])
def test_damaged_page_loses_only_its_records(
    tmp_path: Path, filled: bytes, damage: Callable[[bytes, bytes], bytes]
) -> None:
    """Damages each page: other records keep their queues, losses are counted, and the state is kept unless damaged."""
    path, found = tmp_path / "o.db", pages_of(filled)
    there_before = set(range(20, RECORDS))
    for index, page in enumerate(found):
        for entry in tmp_path.iterdir():
            entry.unlink()
        on_page = {int(number) for number in MARKED.findall(page)}
        bad = damage(page, found[(index + 7) % len(found)])
        path.write_bytes(b"".join([*found[:index], bad, *found[index + 1 :]]))
        outbox = opened(path)
        state = outbox.load()
        outbox.commit(STATE, [a_record(5000)])
        for name in BOTH:
            waiting = all_of(outbox, name)
            parked = parked_in(path, name)
            missing = there_before - waiting - parked
            assert missing <= on_page, (index, name)
            assert sum(count for lost, count in outbox.lost if lost == name) == len(missing), (index, name)
            assert waiting <= there_before | {5000}, (index, name)
        outbox.close()
        assert state == BIG_STATE or b"kkkk" in page or index == 1, index


def test_undamaged_file_is_used_unchanged(tmp_path: Path, filled: bytes) -> None:
    path = tmp_path / "o.db"
    path.write_bytes(filled)
    outbox = opened(path)
    assert outbox.load() == BIG_STATE
    assert (outbox.notes, outbox.faults, outbox.lost) == ([], [], [])
    outbox.close()
    assert quarantined_in(tmp_path) == []


# -- content that is no page's fault


STATES: Final[dict[str, str]] = {
    "a byte that is not UTF-8": "UPDATE meta SET value = CAST(value || x'ff' AS TEXT) WHERE key = 'state'",
    "bytes": "UPDATE meta SET value = x'00ff' WHERE key = 'state'",
    "a number": "UPDATE meta SET value = 5 WHERE key = 'state'",
    "another version": """UPDATE meta SET value = '{"version": 99}' WHERE key = 'state'""",
    "cut off": "UPDATE meta SET value = substr(value, 1, 50) WHERE key = 'state'",
}


@pytest.mark.parametrize("sql", STATES.values(), ids=STATES)
def test_unreadable_state_loses_no_record(tmp_path: Path, sql: str) -> None:
    """Approvals and starts are taken from the records, and no record number is reused."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    accepted, started = a_record(2, "Approved-1"), a_record(3, "Started-1")
    records = [
        a_record(1),
        replace(accepted, kind=RecordKind.APPROVAL_ACCEPTED),
        replace(started, kind=TransitionKind.STARTED.value),
    ]
    outbox.commit(STATE, records)
    outbox.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()
    again = opened(path)
    state = again.load()
    assert state is not None
    assert state.evictions >= NOW.timestamp()
    assert {key: approval.accepted_at for key, approval in state.sent.items()} == {"approved-1": accepted.time}
    assert dict(state.started_ids) == {"started-1": started.time}
    assert (again.lost, len(again.faults)) == ([], 1)
    assert all_of(again, "otlp") == {1, 2, 3}
    again.close()


MISTYPED: Final[dict[str, str]] = {
    "a time that is text": "UPDATE records SET created = 'soon' WHERE seq = 2",
    "a time beyond all years": "UPDATE records SET created = 1e300 WHERE seq = 2",
    "an id that is not UTF-8": "UPDATE records SET id = CAST(x'ff' AS TEXT) WHERE seq = 2",
    "a body that is text": "UPDATE records SET body = CAST(body AS TEXT) WHERE seq = 2",
    "a subject that is not UTF-8": "UPDATE queue SET subject = CAST(x'ff' AS TEXT) WHERE seq = 2",
    "an error that is not UTF-8": "UPDATE destination SET error = CAST(x'ff' AS TEXT)",
    "a success that is text": "UPDATE destination SET last_success = 'once'",
    "a success beyond all years": "UPDATE destination SET last_success = 1e300",
    "no table": "DROP TABLE destination",
    "no index": "DROP INDEX queue_order",
    "a trigger": "CREATE TRIGGER t BEFORE INSERT ON records BEGIN SELECT raise(ABORT, 'no'); END",
    "a counter that is text": "UPDATE sqlite_sequence SET seq = 'many'",
    "a counter at its end": "UPDATE sqlite_sequence SET seq = 9223372036854775807",
    "another program's number": "PRAGMA application_id = 0",
}


@pytest.mark.parametrize("sql", MISTYPED.values(), ids=MISTYPED)
def test_values_of_the_wrong_type_lose_no_record(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number) for number in range(1, 5)])
    outbox.failed("otlp", "timeout")
    outbox.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute(sql)
        db.commit()
    again = opened(path)
    assert again.load() == STATE
    assert (again.lost, len(again.faults)) == ([], 1)
    again.queues()
    assert all_of(again, "otlp") == all_of(again, "event_hubs") == {1, 2, 3, 4}
    again.close()


def with_waiting(path: Path, records: int = 8) -> bytes:
    """Return a file with waiting records, and its content."""
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number, size=900) for number in range(records)])
    outbox.close()
    return path.read_bytes()


def header_and_schema(content: bytes) -> Iterator[int]:
    """Return the offsets of nonzero bytes of page 1, except those of the application id and version."""
    return (at for at in range(PAGE) if content[at] and not 60 <= at < 64)


def test_changed_bit_of_the_first_page_loses_no_record(tmp_path: Path) -> None:
    """Invalid UTF-8 in the schema, other names, or a read-only version is damage; the file is usable afterwards."""
    path = tmp_path / "o.db"
    content = with_waiting(path)
    chance = random.Random(22)  # noqa: S311  # no secret
    for at in header_and_schema(content):
        bad = bytearray(content)
        bad[at] ^= 1 << chance.randrange(8) if at % 2 else 0x80
        for entry in tmp_path.iterdir():
            entry.unlink()
        path.write_bytes(bad)
        outbox = opened(path)
        assert outbox.load() == STATE, at
        outbox.commit(STATE, [a_record(99)])
        assert all_of(outbox, "otlp") == all_of(outbox, "event_hubs") == {*range(8), 99}, at
        assert outbox.lost == [], at
        outbox.close()


def test_file_with_a_name_damaged_while_running_is_recovered(tmp_path: Path) -> None:
    """SQLite reads the schema again when its number changes. The commit is made in the new file."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(1)])
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.index(b"queue_seq") + 8)
        file.write(b"\xff")
        file.seek(40)
        file.write(b"\0\0\0\x63")
    outbox.commit(STATE, [a_record(2)])
    assert len(outbox.faults) == 1
    assert all_of(outbox, "otlp") == {1, 2}
    outbox.close()


BODIES: Final[dict[str, str]] = {
    "half a surrogate pair in the id": """replace(CAST(body AS TEXT), '"id":"', '"id":"\\ud800')""",
    "half a surrogate pair in the subject": """replace(CAST(body AS TEXT), '"subject":"', '"subject":"\\ud800')""",
    "a surrogate's bytes": """CAST(replace(CAST(body AS TEXT), '"id":"', '"id":"' || x'eda080') AS BLOB)""",
    "a time beyond all years": """replace(CAST(body AS TEXT), '"time":"2026', '"time":"9999')""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_damaged_body_loses_only_its_record(tmp_path: Path, body: str) -> None:
    path = tmp_path / "o.db"
    with_waiting(path, 4)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE records SET body = {body} WHERE seq = 2")  # noqa: S608  # a constant
        db.execute("DROP INDEX queue_order")
        db.commit()
    outbox = opened(path)
    assert outbox.load() == STATE
    assert {0, 2, 3} <= all_of(outbox, "otlp")
    assert outbox.lost in ([], [("event_hubs", 1), ("otlp", 1)])
    outbox.close()


@pytest.mark.parametrize("table", ["queue", "queue_seq"])
def test_row_number_in_only_one_copy_of_the_queue_is_not_counted(tmp_path: Path, table: str) -> None:
    """One changed bit in a row number loses nothing."""
    path = tmp_path / "o.db"
    content = bytearray(with_waiting(path))
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    page = content[(root - 1) * PAGE : root * PAGE]
    (at,) = struct.unpack_from(">H", page, 8 + 2 * (int.from_bytes(page[3:5], "big") - 1))
    place = at + 1 + page[at + 1] + (len("otlp") if table == "queue" else 0)
    assert page[place] == 8, "the number of the last row"
    content[(root - 1) * PAGE + place] ^= 0x40
    path.write_bytes(content)
    outbox = opened(path)
    assert len(outbox.faults) == 1
    assert outbox.lost == []
    assert all_of(outbox, "otlp") == all_of(outbox, "event_hubs") == set(range(8))
    outbox.close()


@pytest.mark.parametrize("keep", [40, 60, 100, 140])
def test_losses_of_a_truncated_file_are_counted(tmp_path: Path, filled: bytes, keep: int) -> None:
    """The count includes every missing undelivered record, and at most all missing ones."""
    path = tmp_path / "o.db"
    path.write_bytes(filled[: keep * PAGE])
    outbox = opened(path)
    for name in BOTH:
        parked = parked_in(path, name)
        left = all_of(outbox, name) | parked
        assert len(left) < RECORDS
        (lost,) = [count for lost, count in outbox.lost if lost == name]
        assert len(set(range(20, RECORDS)) - left) <= lost <= RECORDS - len(left)
    outbox.close()


def test_incomplete_queue_makes_every_record_wait_for_all_destinations(tmp_path: Path, filled: bytes) -> None:
    """The queue's index is missing, and each page of the queue in turn."""
    path = tmp_path / "o.db"
    path.write_bytes(filled)
    with closing(sqlite3.connect(path)) as db:
        roots = dict(db.execute("SELECT name, rootpage FROM sqlite_master").fetchall())
    root = pages_of(filled)[roots["queue"] - 1]
    cells = struct.unpack_from(f">{int.from_bytes(root[3:5], 'big')}H", root, 12)
    children = [int.from_bytes(root[at : at + 4], "big") for at in (8, *cells)]
    assert len(children) > 1
    for child in children:
        path.write_bytes(filled)
        for page in (child, roots["queue_seq"]):
            damaged(path, range(page, page + 1))
        outbox = opened(path)
        for name in BOTH:
            parked = parked_in(path, name)
            assert all_of(outbox, name) | parked == set(range(RECORDS)), child
        assert outbox.lost == []
        outbox.close()
        for entry in tmp_path.iterdir():
            entry.unlink()


def test_losses_without_any_queue_are_counted(tmp_path: Path, filled: bytes) -> None:
    """Both copies of the queue are missing, and some records."""
    path = tmp_path / "o.db"
    path.write_bytes(filled)
    with closing(sqlite3.connect(path)) as db:
        roots = dict(db.execute("SELECT name, rootpage FROM sqlite_master").fetchall())
    leaves = [number for number, page in enumerate(pages_of(filled), 1) if page[0] == 13 and number > 10]
    for page in (roots["queue"], roots["queue_seq"], *leaves[:5]):
        damaged(path, range(page, page + 1))
    outbox = opened(path)
    left = all_of(outbox, "otlp")
    assert len(left) < RECORDS
    assert outbox.lost == [(name, RECORDS - len(left)) for name in BOTH]
    outbox.close()


def test_queued_record_missing_from_its_table_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(1), a_record(2)])
    outbox.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM records WHERE seq = 1")
        db.commit()
    again = opened(path)
    assert sorted(again.lost) == [("event_hubs", 1), ("otlp", 1)]
    assert all_of(again, "otlp") == {2}
    again.close()


def test_records_are_sent_again_if_both_copies_of_the_queue_are_missing(tmp_path: Path, filled: bytes) -> None:
    """A duplicate with the same id is better than a lost record."""
    path = tmp_path / "o.db"
    path.write_bytes(filled)
    with closing(sqlite3.connect(path)) as db:
        roots = dict(db.execute("SELECT name, rootpage FROM sqlite_master").fetchall())
    damaged(path, range(roots["queue"], roots["queue"] + 1))
    damaged(path, range(roots["queue_seq"], roots["queue_seq"] + 1))
    outbox = opened(path)
    assert outbox.lost == []
    assert all_of(outbox, "otlp") == all_of(outbox, "event_hubs") == set(range(RECORDS))
    outbox.close()


def bytes_read() -> int:
    """Return the number of bytes that this process has read from files."""
    counted = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    return int(counted["rchar"])


@pytest.mark.linux("the system counts what is read")
def test_rows_that_share_overflow_pages_are_read_within_a_limit(tmp_path: Path) -> None:
    """Every page is a leaf with the same row of 2 MiB: reads stay proportional to the file's size."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(1, size=2_000_000)])
    outbox.close()
    pages = pages_of(path.read_bytes())
    (leaf,) = [page for page in pages if page[0] == 13 and a_record(1).id.encode() in page]
    path.write_bytes(b"".join([*pages[:5], b"\xff" * PAGE, *pages[6:]]) + leaf * 3000)
    before = bytes_read()
    outbox = opened(path)
    assert outbox.faults
    outbox.close()
    assert bytes_read() - before < 30 * path.with_name(quarantined_in(tmp_path)[0]).stat().st_size


def quarantined_in(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if ".corrupt-" in name and name.endswith("Z")]


# -- while running


def damaged(path: Path, only: range | None = None) -> None:
    """Overwrite these pages, or all but the first, of a file whose journal is empty."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        for number in only or range(2, 1 + os.path.getsize(path) // PAGE):
            file.seek((number - 1) * PAGE)
            file.write(b"\xff" * PAGE)


def test_damage_found_by_a_commit_loses_nothing_of_it(tmp_path: Path) -> None:
    """The rest of the file is recovered, and deliveries continue."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number, size=2_000) for number in range(500)])
    damaged(path)
    for number in range(1_000, 1_003):
        outbox.commit(STATE, [a_record(number)])
    assert len(outbox.faults) == 1
    assert {1_000, 1_001, 1_002} <= all_of(outbox, "otlp")
    outbox.close()
    with closing(opened(path)) as again:
        assert again.load() == STATE


def test_row_numbers_of_a_batch_being_sent_stay_valid(tmp_path: Path) -> None:
    """A batch sent during the recovery is acknowledged by its numbers and not sent again."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number) for number in range(6)])
    under_way = outbox.next("otlp", 3)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE destination SET name = name")
        db.execute("UPDATE records SET created = 'soon' WHERE seq = 6")
        db.commit()
    outbox.close()
    outbox = opened(path)
    outbox.delivered("otlp", [queued.seq for queued in under_way])
    assert all_of(outbox, "otlp") == {3, 4, 5}
    outbox.close()


def test_damage_found_by_a_delivery_is_repaired_by_the_agent(tmp_path: Path) -> None:
    """The delivery raises OutboxUnwritable, the agent's next call repairs the file, and delivery continues."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number, size=3_000) for number in range(2_000)])
    damaged(path, range(400, 404))
    with pytest.raises(OutboxUnwritable):
        all_of(outbox, "otlp")
    with pytest.raises(OutboxUnwritable):
        outbox.next("otlp", 1)
    assert outbox.needs_polling("otlp")
    outbox.used()
    left = all_of(outbox, "otlp")
    assert outbox.faults
    assert 0 < sum(count for name, count in outbox.lost if name == "otlp") <= 4
    assert left
    outbox.close()


@pytest.mark.linux("forks a process for each step")
@pytest.mark.parametrize("what", ["damaged", "removed"])
def test_process_killed_at_any_step_loses_nothing(tmp_path: Path, what: str) -> None:
    """The next start completes or repeats the rewrite; only a removed file that wasn't rewritten yet is new."""
    source, folder = tmp_path / "source", tmp_path / "folder"
    folder.mkdir()
    outbox = opened(source / "o.db")
    outbox.commit(STATE, [a_record(number, size=3_000) for number in range(60)])
    outbox.close()
    if what == "damaged":
        damaged(source / "o.db", range(30, 31))
    command = [sys.executable, "-m", "tests.support.salvage_kills", what, str(source), str(folder)]
    lines = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    lives = [json.loads(line) for line in lines]
    assert len(lives) > 15
    whole, written_anew = {*range(60)}, 0
    for life in lives:
        for waiting in life["waiting"].values():
            assert len(waiting) == len(set(waiting))
            is_there = len(whole - set(waiting)) <= (what == "damaged")
            assert is_there or (what == "removed" and not waiting)
            written_anew += is_there
        assert life["state"] or not life["waiting"]["otlp"]
        assert life["ids"][0] == life["ids"][1]
        assert "o.db.new" not in life["left"]
    assert written_anew > len(lives)
    assert 7000 in lives[-1]["waiting"]["otlp"]


@pytest.mark.linux("Windows replaces no file that is open")
def test_other_outbox_in_place_of_one_in_doubt_is_quarantined(tmp_path: Path) -> None:
    """The file is reopened because it seems damaged, and was replaced meanwhile."""
    path, other = tmp_path / "o.db", tmp_path / "other.db"
    with closing(opened(other)) as another:
        another.commit(State(birth=NOW + timedelta(days=1), vm_id="another"), [a_record(9)])
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number, size=3_000) for number in range(2_000)])
    damaged(path)
    with pytest.raises(OutboxUnwritable):
        all_of(outbox, "otlp")
    os.replace(other, path)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    outbox.used()
    assert all_of(outbox, "otlp") == set()
    outbox.commit(STATE, [a_record(10)])
    assert all_of(outbox, "otlp") == {10}
    assert len([name for name in os.listdir(tmp_path) if ".replaced-" in name]) == 1
    outbox.close()


def test_file_emptied_while_running_is_rewritten(tmp_path: Path) -> None:
    """Otherwise the content of the journal, with its approvals, would be lost with the process."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(1)])
    os.truncate(path, 0)
    assert not outbox.is_in_place()
    outbox.commit(STATE, [a_record(2)])
    assert outbox.is_in_place()
    os.mkdir(tmp_path / "killed")
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", tmp_path / f"killed/o.db{suffix}")
    outbox.close()
    with closing(opened(tmp_path / "killed/o.db")) as again:
        assert again.load() == STATE
        left = all_of(again, "otlp")
        lost = sum(count for name, count in outbox.lost if name == "otlp")
        assert 2 in left
        assert len({1, 2} - left) <= lost


@pytest.mark.parametrize("size", [0, 40 * PAGE], ids=["to nothing", "in the middle"])
def test_losses_of_a_file_truncated_while_running_are_counted(tmp_path: Path, size: int) -> None:
    """The agent's earlier counts include records that the rest of the file doesn't mention."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number, size=3_000) for number in range(1_000)])
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(path, size)
    outbox.commit(STATE, [a_record(5000)])
    left = all_of(outbox, "otlp")
    assert 5000 in left
    (lost,) = [count for name, count in outbox.lost if name == "otlp"]
    assert lost == 1_001 - len(left)
    outbox.close()
