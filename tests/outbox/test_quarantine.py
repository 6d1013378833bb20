"""Quarantined files: they keep their journal, and the next outbox has nothing of them."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from exporter.outbox.errors import OutboxUnwritable, system_reason
from exporter.outbox.file import quarantine
from exporter.outbox.lock import FileLock
from exporter.outbox.store import Outbox
from exporter.windows.system import is_lock_held
from tests.support.outbox_content import STATE, a_record, drained, opened

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
ASIDE = "o.db.corrupt-20261122T120000Z"
PARTS = ("", "-wal", "-shm")


def parts(path: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        Path(f"{path}{suffix}").write_text(f"{path.name}{suffix}", encoding="ascii")


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def test_database_is_quarantined_with_all_its_parts(tmp_path: Path) -> None:
    parts(tmp_path / "o.db", *PARTS)
    quarantine(tmp_path / "o.db", "corrupt", NOW)
    assert names(tmp_path) == {f"{ASIDE}{suffix}" for suffix in PARTS}
    assert (tmp_path / f"{ASIDE}-wal").read_text(encoding="ascii") == "o.db-wal"


def test_each_copy_has_a_unique_name(tmp_path: Path) -> None:
    """Also in the same second, and if only a journal has the name."""
    parts(tmp_path / ASIDE, "-wal")
    parts(tmp_path / "o.db", *PARTS)
    quarantine(tmp_path / "o.db", "corrupt", NOW)
    assert names(tmp_path) == {f"{ASIDE}-wal", *(f"{ASIDE}-2{suffix}" for suffix in PARTS)}


@pytest.mark.parametrize("others", [(), ("",)], ids=["no database", "an empty one"])
def test_journal_without_a_database_is_quarantined(tmp_path: Path, others: tuple[str, ...]) -> None:
    """SQLite would delete it, with its committed content."""
    outbox = opened(tmp_path / "before" / "o.db")
    outbox.commit(STATE, [a_record(1)])
    shutil.copy(tmp_path / "before" / "o.db-wal", tmp_path / "o.db-wal")
    for suffix in others:
        (tmp_path / f"o.db{suffix}").touch()
    outbox.close()
    content = (tmp_path / "o.db-wal").read_bytes()

    fresh = opened(tmp_path / "o.db")
    assert fresh.load() is None
    assert drained(fresh, "otlp") == []
    fresh.close()
    (kept,) = [name for name in names(tmp_path) if "no-database" in name]
    assert (tmp_path / kept).read_bytes() == content
    assert any("no-database" in note for note in fresh.notes)


def test_journal_left_by_an_interrupted_rename_is_quarantined(tmp_path: Path) -> None:
    """The next start does so before it creates an outbox, which has nothing of the journal."""
    before = opened(tmp_path / "o.db")
    before.commit(STATE, [a_record(1)])
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    shutil.copy(tmp_path / "o.db-wal", crashed / "o.db-wal")
    before.close()
    content = (crashed / "o.db-wal").read_bytes()

    after = opened(crashed / "o.db")
    assert after.load() is None
    after.close()
    (kept,) = [name for name in names(crashed) if "no-database" in name]
    assert (crashed / kept).read_bytes() == content


def test_process_killed_during_a_rewrite_loses_nothing(tmp_path: Path) -> None:
    """The old file is quarantined, and the new one isn't at its path yet."""
    before = opened(tmp_path / "before.db")
    before.commit(STATE, [a_record(1)])
    before.close()
    shutil.copy(tmp_path / "before.db", tmp_path / "o.db.new")
    after = opened(tmp_path / "o.db")
    assert after.load() == STATE
    assert drained(after, "otlp") == [1]
    assert not (tmp_path / "o.db.new").exists()
    after.close()


@pytest.mark.linux("a file that is open is not replaced on Windows")
@pytest.mark.parametrize("parts_put", [("",), ("", "-wal")], ids=["alone", "with its journal"])
def test_replacing_file_is_quarantined_with_its_own_journal(tmp_path: Path, parts_put: tuple[str, ...]) -> None:
    """SQLite would otherwise apply the outbox's journal to it."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1)])
    restored = opened(tmp_path / "restored.db")
    restored.commit(STATE, [a_record(900)])
    if parts_put == ("",):
        restored.close()  # its journal is in it then
    for suffix in parts_put:
        shutil.copy(tmp_path / f"restored.db{suffix}", tmp_path / f"put{suffix}")
        os.replace(tmp_path / f"put{suffix}", tmp_path / f"o.db{suffix}")
    restored.close()
    outbox.commit(STATE, [a_record(2)])
    assert drained(outbox, "otlp") == [1, 2]
    outbox.close()
    (copy,) = [name for name in names(tmp_path) if "replaced" in name and not name.endswith(("-wal", "-shm"))]
    with closing(sqlite3.connect(tmp_path / copy)) as db:
        assert [row[0][-3:] for row in db.execute("SELECT id FROM records")] == ["900"]


@pytest.mark.parametrize("name", ["o.db.corrupt-20261399T000000Z", "o.db.corrupt-00000000T000000Z-2"])
def test_name_without_a_valid_time_does_not_prevent_the_start(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "o.db").write_bytes(b"no database" * 500)
    with closing(opened(tmp_path / "o.db")) as outbox:
        assert len(outbox.faults) == 1


def test_incomplete_new_file_is_removed(tmp_path: Path) -> None:
    """A process ended during the rewrite: the existing file is used, or a new one."""
    (tmp_path / "o.db.new").touch()
    with closing(sqlite3.connect(tmp_path / "o.db.new")) as db:
        db.execute("CREATE TABLE records (x)")  # not committed
        outbox = opened(tmp_path / "o.db")
    assert outbox.load() is None
    assert not (tmp_path / "o.db.new").exists()
    outbox.close()


def test_old_new_file_never_replaces_an_outbox(tmp_path: Path) -> None:
    """Nor a later one, after the outbox is removed."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1)])
    outbox.close()
    opened(tmp_path / "o.db.new").close()
    again = opened(tmp_path / "o.db")
    assert drained(again, "otlp") == [1]
    assert not (tmp_path / "o.db.new").exists()
    again.close()


@pytest.mark.parametrize(
    ("winerror", "number", "reason"),
    [
        (2, errno.ENOENT, "gone"),
        (3, errno.ENOENT, "gone"),
        (5, errno.EACCES, "read-only"),
        (19, errno.EACCES, "read-only"),
        (21, errno.EACCES, "gone"),
        (32, errno.EACCES, "busy"),
        (33, errno.EACCES, "busy"),
        (39, errno.EINVAL, "full"),
        (53, errno.ENOENT, "gone"),
        (67, errno.ENOENT, "gone"),
        (112, errno.ENOSPC, "full"),
        (1117, errno.EINVAL, "io"),
        (None, errno.EACCES, "read-only"),
        (None, errno.ENOSPC, "full"),
        (None, None, "io"),
    ],
)
def test_windows_error_code_takes_precedence_over_errno(winerror: int | None, number: int | None, reason: str) -> None:
    assert system_reason(number, winerror) == reason


def test_only_a_lock_that_is_held_is_one() -> None:
    """A file system without locks, or a file that can't be locked, is not another agent."""
    assert is_lock_held(33)
    for winerror in (0, 1, 5, 6, 32, 50, 87):
        assert not is_lock_held(winerror)


@pytest.mark.windows
def test_on_windows_a_file_with_a_reader_is_busy_and_quarantined_later(tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("PRAGMA journal_mode=WAL")
        foreign.execute("CREATE TABLE theirs (x)")
        outbox = Outbox(path, 1 << 20, ["otlp"])
        with pytest.raises(OutboxUnwritable) as failure:
            outbox.load()
        assert failure.value.reason == "busy"
        assert {"o.db", "o.db-wal"} <= names(tmp_path)
        assert not [name for name in names(tmp_path) if "foreign" in name]
    assert outbox.load() is None
    outbox.commit(STATE, [a_record(1)])
    assert [name for name in names(tmp_path) if "foreign" in name]
    assert drained(outbox, "otlp") == [1]
    outbox.close()


@pytest.mark.windows
def test_on_windows_another_vms_file_is_quarantined_after_its_reader_closes_it(tmp_path: Path) -> None:
    """None of its records is delivered before."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1)])
    with closing(sqlite3.connect(tmp_path / "o.db")) as reader:
        reader.execute("SELECT count(*) FROM records").fetchone()
        with pytest.raises(OutboxUnwritable) as failure:
            outbox.start_new_file("other-vm")
        assert failure.value.reason == "busy"
        assert outbox.next("otlp", 1) == []
    outbox.commit(STATE, [a_record(2)])
    assert drained(outbox, "otlp") == [2]
    outbox.close()


@pytest.mark.windows
@pytest.mark.parametrize("spelled", [str.upper, "\\\\?\\{}".format, lambda path: path.replace("\\", "/")])
def test_on_windows_two_spellings_of_a_path_share_one_lock(tmp_path: Path, spelled: object) -> None:
    assert callable(spelled)
    first, second = FileLock(tmp_path / "o.db"), FileLock(Path(spelled(str(tmp_path / "o.db"))))
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
