"""What stands at the files that approvals ask for, and that no file makes the agent wait."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from exporter.agent.files import MOST_STUCK, FileChecker, presence
from exporter.core.policy import Presence


def test_absent_is_no_such_file_in_a_folder_that_is_there(tmp_path: Path) -> None:
    """The one clear answer that lets an approval go."""
    assert presence(str(tmp_path / "hold")) is Presence.ABSENT


def test_a_file_is_present(tmp_path: Path) -> None:
    """Whatever it holds, also behind a link."""
    (tmp_path / "hold").touch()
    (tmp_path / "link").symlink_to(tmp_path / "hold")
    assert presence(str(tmp_path / "hold")) is Presence.PRESENT
    assert presence(str(tmp_path / "link")) is Presence.PRESENT


@pytest.mark.parametrize("path", ["gone/hold", "gone/further/hold", "file/hold", "dangling/hold", "hold/", "a\0b"])
def test_without_its_folder_nothing_is_clear(tmp_path: Path, path: str) -> None:
    """A folder, mount, drive or share that is missing may be why the file can't be seen."""
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert presence(f"{tmp_path}/{path}") is Presence.UNKNOWN


def test_what_is_no_file_and_what_leads_nowhere_is_neither(tmp_path: Path) -> None:
    """A folder, a dangling link, a loop of links, a name that is too long."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("folder", "dangling", "loop", "x" * 300):
        assert presence(str(tmp_path / name)) is Presence.UNKNOWN


def test_a_relative_name_is_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a folder, too."""
    monkeypatch.chdir(tmp_path)
    assert presence("hold") is Presence.ABSENT
    os.mkfifo("hold")
    assert presence("hold") is Presence.UNKNOWN


class Mounts:
    """File systems of which some do not answer until they are told to."""

    def __init__(self, *hanging: str) -> None:
        self.hanging = {path: threading.Event() for path in hanging}
        self.looks: list[str] = []

    def __call__(self, path: str) -> Presence:
        self.looks.append(path)
        if path in self.hanging:
            self.hanging[path].wait()
        return Presence.ABSENT


def test_a_file_that_hangs_is_unknown_and_keeps_no_other_from_being_looked_at() -> None:
    """A network mount that is gone: its file holds, the others are told, and it is not asked again while it hangs."""
    mounts = Mounts("/mnt/hold")
    looker = FileChecker(mounts, patience=2.0)
    assert looker(["/etc/a", "/mnt/hold"]) == {"/etc/a": Presence.ABSENT, "/mnt/hold": Presence.UNKNOWN}
    for _ in range(3):
        assert looker(["/mnt/hold", "/etc/a"]) == {"/mnt/hold": Presence.UNKNOWN, "/etc/a": Presence.ABSENT}
    assert mounts.looks.count("/mnt/hold") == 1
    mounts.hanging["/mnt/hold"].set()


def test_a_file_that_answers_again_is_looked_at_again() -> None:
    """A mount that comes back is no reason to hold for ever."""
    mounts = Mounts("/mnt/hold")
    looker = FileChecker(mounts, patience=0.2)
    assert looker(["/mnt/hold"])["/mnt/hold"] is Presence.UNKNOWN
    mounts.hanging["/mnt/hold"].set()
    answered = False
    while not answered and mounts.looks.count("/mnt/hold") < 3:
        answered = looker(["/mnt/hold"])["/mnt/hold"] is Presence.ABSENT
        threading.Event().wait(0.01)
    assert answered


def test_files_that_hang_take_a_bounded_number_of_threads() -> None:
    """Of a thousand files on a mount that is gone only some are ever waited for."""
    paths = [f"/mnt/{number}" for number in range(40)]
    mounts = Mounts(*paths)
    looker = FileChecker(mounts, patience=0.01)
    before = threading.active_count()
    for path in paths:
        assert looker([path]) == {path: Presence.UNKNOWN}
    assert threading.active_count() - before <= MOST_STUCK
    for event in mounts.hanging.values():
        event.set()
