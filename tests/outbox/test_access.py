"""Access lists of the agent's files on Windows, where modes have no effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.files import make_folder, make_private, narrow, open_folder
from exporter.windows import access
from tests.support.outbox_content import STATE, a_record, opened


def test_missing_files_and_directories_are_not_narrowed(tmp_path: Path) -> None:
    assert narrow(tmp_path / "missing") == ""
    assert narrow(tmp_path) == ""


def test_directory_is_created_once_with_its_parents(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "b")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


@pytest.mark.windows
def test_new_outbox_is_readable_only_by_its_user(tmp_path: Path) -> None:
    """Includes its new directory and SQLite's files there."""
    folder = tmp_path / "state"
    outbox = opened(folder / "o.db")
    outbox.commit(STATE, [a_record(1)])
    assert access.is_private(folder)
    assert access.is_private(folder / "o.db")
    assert access.is_private(folder / "o.db.lock")
    assert outbox.notes == []
    outbox.close()
    again = opened(folder / "o.db")
    again.commit(STATE, [a_record(2)])
    assert outbox.notes == []
    again.close()


@pytest.mark.windows
def test_readable_directory_is_reported_with_the_command_that_restricts_it(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    outbox = opened(folder / "o.db")
    (note,) = outbox.notes
    assert note.startswith(f"{folder}: new files in it are readable by ")
    assert "(S-1-1-0)" in note
    assert f'`icacls "{folder}" /reset`, then `icacls "{folder}" /inheritance:r /grant:r "*S-1-5-80-' in note
    outbox.commit(STATE, [a_record(1)])
    assert access.is_private(folder / "o.db")
    outbox.close()


@pytest.mark.windows
def test_existing_file_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    (folder / "file").write_text("x", encoding="ascii")
    assert not access.is_private(folder / "file")
    assert make_private(folder / "file") == ""
    assert access.is_private(folder / "file")
    assert (folder / "file").read_text(encoding="ascii") == "x"


@pytest.mark.linux("Windows has access lists")
def test_directory_is_not_checked_on_other_systems(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert open_folder(tmp_path) == ""
