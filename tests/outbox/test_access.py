"""On Windows, where modes mean nothing: the access lists of what the agent writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.files import make_folder, make_private, narrow, open_folder
from exporter.windows import access
from tests.support.outbox_content import STATE, a_record, opened


def test_a_file_that_is_missing_and_a_folder_are_left_alone(tmp_path: Path) -> None:
    assert narrow(tmp_path / "missing") == ""
    assert narrow(tmp_path) == ""


def test_folders_are_made_with_those_above_them_and_once(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "b")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")


@pytest.mark.windows
def test_a_new_outbox_is_for_its_user_alone(tmp_path: Path) -> None:
    """The folder that is made for it, and what SQLite makes in there."""
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
def test_a_folder_that_others_may_read_is_told_with_the_command_that_closes_it(tmp_path: Path) -> None:
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
def test_a_file_of_before_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    (folder / "file").write_text("x", encoding="ascii")
    assert not access.is_private(folder / "file")
    assert make_private(folder / "file") == ""
    assert access.is_private(folder / "file")
    assert (folder / "file").read_text(encoding="ascii") == "x"


@pytest.mark.linux("Windows has access lists")
def test_elsewhere_the_folder_says_nothing_of_what_is_made_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert open_folder(tmp_path) == ""
