"""The outbox's file: not ours, gone, replaced, damaged, or not to be opened."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest

from exporter.outbox.errors import OutboxBusy, OutboxUnwritable
from exporter.outbox.file import file_uri
from tests.support.outbox_content import BOTH, NOW, STATE, a_record, drained, opened

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


@pytest.mark.linux("Windows refuses to remove or replace a file that is open")
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


@pytest.mark.linux("Windows refuses to remove or replace a file that is open")
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
    with closing(opened(tmp_path / "o.db")) as again:
        assert again.load() == STATE


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


def test_a_share_of_windows_is_a_path_that_begins_with_its_server() -> None:
    """SQLite refuses a URI with a server in it."""
    assert file_uri(PureWindowsPath(r"\\server\share\an outbox.db")) == "file:////server/share/an%20outbox.db"
    assert file_uri(PureWindowsPath(r"C:\data\outbox.db")) == "file:///C:/data/outbox.db"
    assert file_uri(PurePosixPath("/data/outbox.db")) == "file:///data/outbox.db"
