"""Privacy of the agent's files, for any umask and any existing file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.files import make_private
from exporter.outbox.file import connect
from exporter.outbox.lock import FileLock
from tests.support.outbox_content import STATE, a_record, drained, opened

pytestmark = pytest.mark.linux("looks at the modes of files")
UMASKS = [0o000, 0o022, 0o277]


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {name: stat.S_IMODE(os.lstat(folder / name).st_mode) for name in os.listdir(folder)}


def all_private(folder: Path) -> bool:
    return set(modes(folder).values()) == {0o600}


def widened(folder: Path) -> None:
    for name in os.listdir(folder):
        (folder / name).chmod(0o666)


@pytest.mark.parametrize("mask", UMASKS, ids=oct)
def test_new_outbox_is_private(tmp_path: Path, mask: int) -> None:
    """The database, its journal, and their index have mode 0600 with any umask."""
    with umask(mask):
        outbox = opened(tmp_path / "o.db")
        outbox.commit(STATE, [a_record(1)])
    assert {"o.db", "o.db-wal", "o.db-shm"} == set(modes(tmp_path))
    assert all_private(tmp_path), modes(tmp_path)
    outbox.close()


def test_readable_files_of_an_outbox_are_narrowed(tmp_path: Path) -> None:
    """A restored database, a crash's journal, and quarantined copies are narrowed when the outbox is opened."""
    before = opened(tmp_path / "o.db")
    before.commit(STATE, [a_record(1)])
    (crashed := tmp_path / "crashed").mkdir()
    for name in ("o.db", "o.db-wal", "o.db-shm"):
        shutil.copy(tmp_path / name, crashed)
    before.close()
    copies = ("o.db.corrupt-20250102T030405Z", "o.db.other-vm-20250102T030405Z-2", "o.db.replaced-20250102T030405Z-wal")
    for name in copies:
        (crashed / name).touch()
    (crashed / "o.db.of-somebody-else").touch()
    widened(crashed)
    outbox = opened(crashed / "o.db")
    after_crash = modes(crashed)
    assert after_crash.pop("o.db.of-somebody-else") == 0o666
    assert set(after_crash.values()) == {0o600}, after_crash
    assert outbox.notes == []
    assert drained(outbox, "otlp") == [1]
    outbox.close()


def test_quarantined_and_rewritten_files_are_private(tmp_path: Path) -> None:
    """Covers a replaced file, a corrupt one, and another VM's, each with its journal."""
    with umask(0):
        (tmp_path / "o.db").write_bytes(b"this is no database at all" * 500)
        outbox = opened(tmp_path / "o.db")
        outbox.commit(STATE, [a_record(1)])
        with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
            other.execute("CREATE TABLE theirs (x)")
        os.replace(tmp_path / "other.db", tmp_path / "o.db")
        (tmp_path / "o.db-wal").chmod(0o644)
        outbox.commit(STATE, [a_record(2)])
        outbox.start_new_file("other-vm")
        outbox.commit(STATE, [a_record(3)])
    assert len(modes(tmp_path)) > len(("o.db", "o.db-wal", "o.db-shm")) + 1
    assert all_private(tmp_path), modes(tmp_path)
    outbox.close()


def test_narrowing_releases_no_lock(tmp_path: Path) -> None:
    """A second connection opened meanwhile doesn't release the locks of the first."""
    make_private(tmp_path / "o.db")
    agent = connect(tmp_path / "o.db", 1 << 20, "FULL")
    agent.execute("CREATE TABLE t (x)")
    agent.execute("BEGIN EXCLUSIVE")
    (tmp_path / "o.db").chmod(0o644)
    make_private(tmp_path / "o.db")
    delivery = connect(tmp_path / "o.db", 1 << 20, "NORMAL")
    assert all_private(tmp_path), modes(tmp_path)
    command = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    done = subprocess.run([sys.executable, "-c", command, str(tmp_path / "o.db")], capture_output=True, check=False)
    assert b"database is locked" in done.stderr
    for db in (delivery, agent):
        db.close()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can change its user")
def test_another_users_writable_outbox_is_used_with_a_note() -> None:
    """The note names who can read it."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folder is closed to other users
        folder = Path(name)
        folder.chmod(0o777)
        opened(folder / "o.db").close()
        widened(folder)
        os.seteuid(65534)
        try:
            outbox = opened(folder / "o.db")
            outbox.commit(STATE, [a_record(1)])
            outbox.close()
        finally:
            os.seteuid(0)
        assert any(note.startswith(f"{folder / 'o.db'}: cannot be made private") for note in outbox.notes)
        again = opened(folder / "o.db")
        assert again.load() == STATE
        again.close()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can change its user")
def test_directory_that_cannot_be_listed_is_used() -> None:
    """The files in it are narrowed."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folder is closed to other users
        folder = Path(name)
        folder.chmod(0o300)
        os.chown(folder, 65534, -1)
        for _ in range(2):
            os.seteuid(65534)
            try:
                outbox = opened(folder / "o.db")
                outbox.commit(STATE, [a_record(1)])
                assert outbox.notes == []
                outbox.close()
            finally:
                os.seteuid(0)
            assert all_private(folder), modes(folder)
            widened(folder)


def test_link_at_the_lock_is_rejected(tmp_path: Path) -> None:
    """Its target is neither created nor locked."""
    (tmp_path / "o.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"o\.db"):
        FileLock(tmp_path / "o.db").acquire()
    assert not (tmp_path / "elsewhere").exists()
