"""The outbox's file: foreign, removed, replaced, damaged, or not openable."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from datetime import datetime
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from exporter.outbox.errors import OutboxBusy, OutboxUnwritable
from exporter.outbox.file import file_uri
from tests.support.outbox_content import BOTH, NOW, STATE, a_record, drained, opened

# -- files


def quarantined(folder: Path, why: str) -> list[str]:
    return [name for name in sorted(os.listdir(folder)) if f".{why}-" in name and not name.endswith(("-wal", "-shm"))]


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (x)")
        db.commit()


def test_foreign_file_is_quarantined(tmp_path: Path) -> None:
    """It keeps its content under a name with the reason, a note is logged, and a new outbox works at once."""
    foreign(tmp_path / "o.db")
    outbox = opened(tmp_path / "o.db")
    assert len(quarantined(tmp_path, "foreign")) == 1
    assert "foreign" in outbox.notes[0]
    assert outbox.load() is None
    outbox.commit(STATE, [a_record(1)])
    assert drained(outbox, "otlp") == [1]
    outbox.close()


def test_empty_file_becomes_an_outbox(tmp_path: Path) -> None:
    """A package or a volume can provide a file of zero bytes."""
    (tmp_path / "o.db").touch()
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [])
    assert outbox.notes == []
    outbox.close()


def test_two_newest_copies_and_all_foreign_files_are_kept(tmp_path: Path) -> None:
    """Also if the copies were made in the same second."""
    others = [
        "o.db.corrupt",
        "o.db.mine-20250102T030405Z",
        "o.db.foreign-20250102T030405Z",
        "p.db.corrupt-20250102T030405Z",
    ]
    for name in others:
        (tmp_path / name).touch()
    for number in range(5):
        (tmp_path / "o.db").write_bytes(b"no database %d" % number * 500)
        opened(tmp_path / "o.db").close()
    copies = quarantined(tmp_path, "corrupt")
    assert copies[0].startswith("o.db.corrupt-")
    assert [(tmp_path / name).read_bytes()[:13] for name in copies if name.startswith("o.db")] == [
        b"no database 3",
        b"no database 4",
    ]
    assert set(others) <= set(os.listdir(tmp_path))


def test_start_new_file_quarantines_another_vms_outbox(tmp_path: Path) -> None:
    """It is quarantined with its undelivered records, and none of them is delivered."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1)])
    outbox.start_new_file("other-vm")
    assert outbox.load() is None
    assert outbox.next("otlp", 1) == []
    (name,) = quarantined(tmp_path, "other-vm")
    with closing(sqlite3.connect(tmp_path / name)) as db:
        assert db.execute("SELECT count(*) FROM queue").fetchone() == (2,)
    outbox.close()


def test_only_one_agent_opens_a_file(tmp_path: Path) -> None:
    """A second opener in any process fails until the first has closed the file."""
    first = opened(tmp_path / "o.db")
    with pytest.raises(OutboxBusy, match="another agent uses this outbox"):
        opened(tmp_path / "o.db")
    first.close()
    opened(tmp_path / "o.db").close()


@pytest.mark.linux("Windows refuses to remove or replace a file that is open")
@pytest.mark.parametrize("removed", ["file", "folder"])
def test_file_removed_while_running_is_rewritten(tmp_path: Path, removed: str) -> None:
    """It has its whole content, and a second agent still can't open it."""
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


@pytest.mark.linux("Windows refuses to remove or replace a file that is open")
def test_file_replaced_while_running_is_rewritten(tmp_path: Path) -> None:
    """The other file is quarantined, and acknowledgements are kept."""
    outbox = opened(tmp_path / "o.db")
    outbox.commit(STATE, [a_record(1), a_record(2)])
    (first, _) = outbox.next("otlp", 2)
    outbox.delivered("otlp", [first.seq])
    opened(tmp_path / "other.db").close()
    os.replace(tmp_path / "other.db", tmp_path / "o.db")
    outbox.save_heartbeat(NOW)
    assert len(quarantined(tmp_path, "replaced")) == 1
    assert drained(outbox, "otlp") == [2]
    outbox.close()


# -- a file that can't be opened


def test_outbox_starts_without_a_file(tmp_path: Path) -> None:
    """It rejects commits and supports everything else until the file can be created."""
    (tmp_path / "parent").write_text("a file where a folder should be")
    outbox = opened(tmp_path / "parent" / "o.db")
    assert "cannot be opened yet" in outbox.notes[0]
    with pytest.raises(OutboxUnwritable):
        outbox.load()
    with pytest.raises(OutboxUnwritable):
        outbox.commit(STATE, [a_record(1)])
    assert outbox.next("otlp", 1) == []
    outbox.save_heartbeat(NOW)
    outbox.failed("otlp", "timeout")
    assert outbox.used() == 0
    assert set(outbox.queues()) == set(BOTH)
    (tmp_path / "parent").unlink()
    assert outbox.commit(STATE, [a_record(1)]) == {}
    assert drained(outbox, "otlp") == [1]
    outbox.close()


def test_directory_at_the_path_keeps_the_outbox_closed(tmp_path: Path) -> None:
    """The directory stays unchanged, and the error contains advice."""
    (tmp_path / "o.db").mkdir()
    outbox = opened(tmp_path / "o.db")
    with pytest.raises(OutboxUnwritable, match="a directory, not an outbox; use the path of the file in it") as refused:
        outbox.commit(STATE, [])
    assert refused.value.reason == "directory"
    assert str(refused.value).count(str(tmp_path)) == 1
    (tmp_path / "o.db").rmdir()
    outbox.commit(STATE, [])
    assert outbox.load() == STATE
    outbox.close()


def test_outbox_waits_for_a_database_locked_at_the_start(tmp_path: Path) -> None:
    """No stored record is lost."""
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


def test_failed_start_of_a_new_file_is_repeated_by_the_next_commit(tmp_path: Path) -> None:
    """Until then no record of the other VM's file is delivered."""
    folder = tmp_path / "state"
    outbox = opened(folder / "o.db")
    outbox.commit(STATE, [a_record(1)])
    os.rename(folder, tmp_path / "moved")
    folder.write_text("no folder")
    with pytest.raises(OutboxUnwritable):
        outbox.start_new_file("other-vm")
    assert outbox.next("otlp", 1) == []
    with pytest.raises(OutboxUnwritable):
        outbox.commit(STATE, [])
    folder.unlink()
    os.rename(tmp_path / "moved", folder)
    outbox.commit(STATE, [a_record(2)])
    assert drained(outbox, "otlp") == [2]
    assert len(quarantined(folder, "other-vm")) == 1
    outbox.close()


def test_windows_share_becomes_a_path_in_the_uri() -> None:
    """SQLite rejects a URI with a server."""
    assert file_uri(PureWindowsPath(r"\\server\share\an outbox.db")) == "file:////server/share/an%20outbox.db"
    assert file_uri(PureWindowsPath(r"C:\data\outbox.db")) == "file:///C:/data/outbox.db"
    assert file_uri(PurePosixPath("/data/outbox.db")) == "file:///data/outbox.db"


# -- what others do to the files while they are open


@pytest.mark.linux("Windows removes no file that is open")
@pytest.mark.parametrize("parts", [("-wal",), ("-shm",), ("-wal", "-shm"), ("", "-wal", "-shm"), ("",)])
def test_removed_journal_files_lose_no_record(tmp_path: Path, parts: tuple[str, ...]) -> None:
    """After a restart all records are there, and none is delivered twice."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number) for number in range(5)])
    (first,) = outbox.next("otlp", 1)
    for part in parts:
        Path(f"{path}{part}").unlink()
    outbox.delivered("otlp", [first.seq])
    outbox.commit(STATE, [a_record(5)])
    outbox.commit(STATE, [a_record(6)])
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for part in ("", "-wal"):
        shutil.copy(f"{path}{part}", crashed / f"o.db{part}")
    outbox.close()
    for folder in (crashed, tmp_path):
        again = opened(folder / "o.db")
        assert again.load() == STATE
        assert (again.faults, again.lost) == ([], [])
        assert drained(again, "otlp") == [1, 2, 3, 4, 5, 6]
        assert drained(again, "event_hubs") == [0, 1, 2, 3, 4, 5, 6]
        again.close()


@pytest.mark.linux("Windows removes no file that is open")
def test_removed_file_is_rewritten_while_a_reader_has_it_open(tmp_path: Path) -> None:
    """As with `tail --follow`, whose index is then a different one."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(number) for number in range(5)])
    with closing(sqlite3.connect(f"{file_uri(path)}?mode=ro", uri=True)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM records").fetchone() == (5,)
        Path(f"{path}-wal").unlink()
        outbox.commit(STATE, [a_record(5)])
        assert reader.execute("SELECT count(*) FROM records").fetchone() == (5,)
    outbox.commit(STATE, [a_record(6)])
    outbox.close()
    again = opened(path)
    assert drained(again, "otlp") == list(range(7))
    again.close()


@pytest.mark.linux("looks at users and modes")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
def test_a_file_that_becomes_writable_is_used_without_a_restart() -> None:
    """A connection that SQLite opened read-only would stay read-only."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folder is closed to other users
        path = Path(name) / "o.db"
        os.chown(name, 65534, -1)
        os.seteuid(65534)
        try:
            first = opened(path)
            first.commit(STATE, [a_record(1)])
            first.close()
            path.chmod(0o400)
            outbox = opened(path)
            for _ in range(3):
                with pytest.raises(OutboxUnwritable) as refused:
                    outbox.commit(STATE, [a_record(2)])
                assert refused.value.reason == "read-only"
            path.chmod(0o600)
            outbox.commit(STATE, [a_record(2)])
            assert drained(outbox, "otlp") == [1, 2]
            outbox.close()
        finally:
            os.seteuid(0)


@pytest.mark.windows
def test_on_windows_a_file_locked_by_a_reader_at_the_start_is_used_later(tmp_path: Path) -> None:
    """`Get-FileHash` denies writes while it reads; the agent needs no restart."""
    import win32con  # of Windows alone
    import win32file  # of Windows alone

    path = tmp_path / "o.db"
    first = opened(path)
    first.commit(STATE, [a_record(1)])
    first.close()
    reader = win32file.CreateFile(
        str(path), win32con.GENERIC_READ, win32con.FILE_SHARE_READ, None, win32con.OPEN_EXISTING, 0, None
    )
    outbox = opened(path)
    with pytest.raises(OutboxUnwritable):
        outbox.commit(STATE, [a_record(2)])
    reader.Close()
    outbox.commit(STATE, [a_record(2)])
    assert drained(outbox, "otlp") == [1, 2]
    outbox.close()


class Removing:
    """A record that removes the outbox's file while it is written, as another program could."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._record = a_record(2)
        self.id, self.subject = self._record.id, self._record.subject

    @property
    def time(self) -> datetime:
        self._path.unlink(missing_ok=True)
        return self._record.time

    def to_json(self) -> bytes:
        return self._record.to_json()


@pytest.mark.linux("Windows removes no file that is open")
def test_commit_to_a_file_removed_meanwhile_fails(tmp_path: Path) -> None:
    """An approval follows each commit, and another agent may use a new file. The next commit rewrites everything."""
    path = tmp_path / "o.db"
    outbox = opened(path)
    outbox.commit(STATE, [a_record(1)])
    with pytest.raises(OutboxUnwritable) as refused:
        outbox.commit(STATE, [Removing(path)])
    assert refused.value.reason == "gone"
    outbox.commit(STATE, [a_record(2), a_record(3)])
    assert drained(outbox, "otlp") == [1, 2, 3]
    outbox.close()
