"""The journal of a killed process: cut off by the crash, or damaged on the disk."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from exporter.core.state import State
from exporter.outbox.file import PAGE, read_journal
from tests.outbox.test_salvage import all_of
from tests.support.outbox_content import BOTH, STATE, a_record, opened

HEADER: Final = 32
FRAME: Final = 24 + PAGE
RECORDS: Final = 8


def state(number: int) -> State:
    """Return a different state for each commit: SQLite doesn't write an unchanged page again."""
    return replace(STATE, observed_seconds=float(number))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the outbox of a killed process: each record is a transaction in its journal."""
    source, copy = tmp_path_factory.mktemp("running") / "o.db", tmp_path_factory.mktemp("killed") / "o.db"
    outbox = opened(source)
    outbox.commit(STATE, [])
    with closing(sqlite3.connect(source)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(RECORDS):
        outbox.commit(state(number), [a_record(number, size=900)])
    for suffix in ("", "-wal"):
        shutil.copy(f"{source}{suffix}", f"{copy}{suffix}")
    outbox.close()
    return copy


def copied(killed: Path, folder: Path, content: bytes) -> Path:
    """Return a copy of that outbox with this journal."""
    shutil.rmtree(folder)
    folder.mkdir()
    shutil.copy(killed, folder / "o.db")
    (folder / "o.db-wal").write_bytes(content)
    return folder / "o.db"


def frames_of(killed: Path) -> tuple[bytes, list[bytes]]:
    """Return the journal's header and its frames."""
    content = Path(f"{killed}-wal").read_bytes()
    return content[:HEADER], [content[at : at + FRAME] for at in range(HEADER, len(content), FRAME)]


def ends(frames: list[bytes]) -> list[int]:
    """Return the numbers of the frames that end a transaction."""
    return [index for index, frame in enumerate(frames) if any(frame[4:8])]


def test_journal_is_read_like_sqlite_reads_it(killed: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    path = copied(killed, tmp_path / "copy", Path(f"{killed}-wal").read_bytes())
    journal = read_journal(path)
    _, frames = frames_of(killed)
    assert (journal.is_damaged, len(journal.places)) == (False, len(frames))
    expected = {number: path.with_name("o.db-wal").read_bytes()[at : at + PAGE] for number, at in journal.pages.items()}
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    assert expected == {number: content[(number - 1) * PAGE : number * PAGE] for number in expected}


@pytest.mark.parametrize("part", ["checksum", "salt", "page number", "content", "all"])
def test_damaged_frame_loses_no_other_transaction(killed: Path, tmp_path: Path, part: str) -> None:
    """Damages each frame that two complete transactions follow: all other records wait for every destination."""
    header, frames = frames_of(killed)
    place = {"checksum": 16, "salt": 8, "page number": 3, "content": 24 + 2000, "all": 0}[part]
    folder = tmp_path / "copy"
    folder.mkdir()
    for index in range(0, ends(frames)[-3] + 1, 1 if part == "all" else 3):
        bad = bytearray(frames[index])
        bad[place] ^= 1
        if part == "all":
            bad = bytearray(FRAME)
        path = copied(killed, folder, header + b"".join([*frames[:index], bad, *frames[index + 1 :]]))
        outbox = opened(path)
        found = outbox.load()
        assert len(outbox.faults) == 1, index
        left = all_of(outbox, "otlp")
        missing = set(range(RECORDS)) - left
        assert missing <= {number for number in range(RECORDS) if a_record(number).id.encode() in frames[index]}, index
        assert len(missing) <= (part == "all"), index
        assert all_of(outbox, "event_hubs") == left, index
        assert outbox.lost == [(name, len(missing)) for name in BOTH if missing], index
        assert found is not None, index
        assert found.vm_key == STATE.vm_key, index
        outbox.close()


@pytest.mark.parametrize("place", range(0, HEADER, 5))
def test_damaged_header_loses_nothing(killed: Path, tmp_path: Path, place: int) -> None:
    """SQLite would discard the whole journal."""
    header, frames = frames_of(killed)
    bad = bytearray(header)
    bad[place] ^= 0x11
    folder = tmp_path / "copy"
    folder.mkdir()
    with closing(opened(copied(killed, folder, bytes(bad) + b"".join(frames)))) as outbox:
        assert len(outbox.faults) == 1
        assert all_of(outbox, "otlp") == set(range(RECORDS))


def test_truncated_journal_is_not_reported_as_damage(killed: Path, tmp_path: Path) -> None:
    """Cuts at any byte, or omits any page of the last transaction: earlier transactions stay, and nothing is logged."""
    header, frames = frames_of(killed)
    content = header + b"".join(frames)
    before_last = ends(frames)[-2] + 1
    unwritten = [
        header + b"".join([*frames[:index], bytes(FRAME), *frames[index + 1 :]])
        for index in range(before_last, len(frames))
    ]
    chance = random.Random(5)  # noqa: S311  # no secret
    cuts = [content[: chance.randrange(len(content))] for _ in range(40)]
    folder = tmp_path / "copy"
    folder.mkdir()
    for journal in [b"", *unwritten, *cuts]:
        path = copied(killed, folder, journal)
        whole = sum(HEADER + (end + 1) * FRAME <= len(journal) for end in ends(frames))
        with closing(opened(path)) as outbox:
            assert outbox.faults == [], len(journal)
            assert outbox.load() in (STATE, *map(state, range(RECORDS)))
            expected = RECORDS - 1 if journal in unwritten else whole
            assert all_of(outbox, "otlp") == set(range(expected)), len(journal)


def test_unflushed_delivery_is_not_reported_as_damage(tmp_path: Path) -> None:
    """A power failure may keep any of a delivery's pages. The agent's next commit is flushed, which marks it."""
    source = tmp_path / "o.db"
    outbox = opened(source)
    outbox.commit(STATE, [a_record(number) for number in range(20)])
    with closing(sqlite3.connect(source)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    outbox.commit(state(20), [a_record(20)])
    begin = len(frames_of(source)[1])
    for _ in range(5):
        outbox.delivered("otlp", [outbox.next("otlp", 1)[0].seq])
    delivered = len(frames_of(source)[1])
    journals = []
    for _ in range(2):
        header, frames = frames_of(source)
        journals += [[*frames[:index], bytes(FRAME), *frames[index + 1 :]] for index in range(begin, delivered)]
        outbox.commit(state(len(journals)), [a_record(21)])
        outbox.delivered("otlp", [outbox.next("otlp", 1)[0].seq])
    outbox.close()
    damaged = []
    for number, frames in enumerate(journals):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = copied(source, folder, header + b"".join(frames))
        damaged.append(read_journal(path).is_damaged)
    unknown, known = damaged[: delivered - begin], damaged[delivered - begin : -1]
    assert not any(unknown)
    assert all(known)


def test_remains_of_failed_writes_are_not_reported_as_damage(killed: Path, tmp_path: Path) -> None:
    """A transaction that failed to flush is overwritten; after a shorter one, its end remains."""
    header, frames = frames_of(killed)
    end = ends(frames)
    remains = frames[end[4] - 1 : end[4] + 1] + frames[end[7] - 1 : end[7] + 1]
    folder = tmp_path / "copy"
    folder.mkdir()
    path = copied(killed, folder, header + b"".join(frames[: end[2] + 1] + remains))
    with closing(opened(path)) as outbox:
        assert outbox.faults == []
        assert all_of(outbox, "otlp") == set(range(3))


def test_earlier_content_of_the_journal_is_not_reported_as_damage(tmp_path: Path) -> None:
    """SQLite restarts a journal at its beginning; the old content stays behind it with other salts."""
    source = tmp_path / "o.db"
    outbox = opened(source)
    for number in range(30):
        outbox.commit(STATE, [a_record(number)])
    with closing(sqlite3.connect(source)) as db:
        db.execute("PRAGMA wal_checkpoint(RESTART)")
    outbox.commit(STATE, [a_record(30)])
    (tmp_path / "copy").mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{source}{suffix}", tmp_path / f"copy/o.db{suffix}")
    outbox.close()
    _, frames = frames_of(tmp_path / "copy/o.db")
    assert len({frame[8:16] for frame in frames}) >= 2
    assert os.path.getsize(tmp_path / "copy/o.db-wal") > 20 * FRAME
    with closing(opened(tmp_path / "copy/o.db")) as again:
        assert again.faults == []
        assert all_of(again, "otlp") == set(range(31))
