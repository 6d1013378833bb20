"""Presence of the files that approval rules require, without blocking the agent."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from exporter.agent.files import MOST_STUCK, FileChecker, is_absence, presence
from exporter.core.policy import Presence
from exporter.windows import access


def test_missing_file_in_an_existing_folder_is_absent(tmp_path: Path) -> None:
    assert presence(str(tmp_path / "hold")) is Presence.ABSENT


@pytest.mark.parametrize("is_there", [True, False])
def test_file_under_control_of_an_untrusted_account_is_untrusted(tmp_path: Path, is_there: bool) -> None:
    """Such a ready file releases nothing, and a missing hold file holds."""
    if is_there:
        (tmp_path / "hold").touch()
    assert presence(str(tmp_path / "hold"), is_exposed=lambda _: True) is Presence.UNTRUSTED


def test_file_in_an_unreadable_folder_is_unknown(tmp_path: Path) -> None:
    def refused(_: str) -> bool:
        raise PermissionError(errno.EACCES, "Access is denied")

    assert presence(str(tmp_path / "hold"), is_exposed=refused) is Presence.UNKNOWN


@pytest.mark.windows
def test_file_in_a_world_writable_windows_folder_is_untrusted(tmp_path: Path) -> None:
    folder = tmp_path / "ready"
    folder.mkdir()
    access.protect_folder(folder, [(access.current_user(), access.FULL)])
    assert presence(str(folder / "event")) is Presence.ABSENT
    access.protect_folder(folder, [(access.current_user(), access.FULL), (access.EVERYONE, access.MODIFY)])
    (folder / "event").touch()
    assert presence(str(folder / "event")) is Presence.UNTRUSTED


def test_regular_file_is_present(tmp_path: Path) -> None:
    """Whatever its content."""
    (tmp_path / "hold").touch()
    assert presence(str(tmp_path / "hold")) is Presence.PRESENT


@pytest.mark.not_wine("has no symbolic links")
def test_link_to_a_file_is_present(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    (tmp_path / "link").symlink_to(tmp_path / "hold")
    assert presence(str(tmp_path / "link")) is Presence.PRESENT


@pytest.mark.parametrize("path", ["gone/hold", "gone/further/hold", "file/hold", "hold/", "a\0b"])
def test_file_in_a_missing_folder_is_unknown(tmp_path: Path, path: str) -> None:
    """The folder may be a mount, drive, or share that is unavailable."""
    (tmp_path / "file").touch()
    assert presence(f"{tmp_path}/{path}") is Presence.UNKNOWN


@pytest.mark.not_wine("has no symbolic links")
def test_file_in_a_dangling_folder_is_unknown(tmp_path: Path) -> None:
    """On Windows, a mount point without its volume is one."""
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere", target_is_directory=True)
    assert presence(str(tmp_path / "dangling" / "hold")) is Presence.UNKNOWN


def test_folder_or_invalid_name_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("folder", "x" * 300):
        assert presence(str(tmp_path / name)) is Presence.UNKNOWN


@pytest.mark.not_wine("has no symbolic links")
def test_dangling_link_is_unknown(tmp_path: Path) -> None:
    """Or a loop of links."""
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("dangling", "loop"):
        assert presence(str(tmp_path / name)) is Presence.UNKNOWN


@pytest.mark.linux("Windows has its own rule for paths that aren't absolute")
@pytest.mark.parametrize("path", ["hold", "C:\\hold", "\\\\server\\share\\hold", ""])
def test_path_that_is_not_absolute_on_this_system_is_unknown(path: str) -> None:
    """On Linux, a Windows path names a file that is never created, so its absence means nothing."""
    assert presence(path, "linux") is Presence.UNKNOWN


@pytest.mark.linux("needs mkfifo")
def test_special_file_is_unknown_and_not_opened(tmp_path: Path) -> None:
    """Opening a pipe would block the agent."""
    os.mkfifo(tmp_path / "hold")
    assert presence(str(tmp_path / "hold")) is Presence.UNKNOWN


@pytest.mark.parametrize(
    ("winerror", "name"),
    [
        (1, "invalid function"),
        (3, "path not found"),
        (5, "access denied"),
        (15, "invalid drive"),
        (19, "write protected"),
        (20, "bad unit"),
        (21, "not ready"),
        (32, "sharing violation"),
        (51, "remote not listening"),
        (53, "bad network path"),
        (64, "network name deleted"),
        (65, "network access denied"),
        (67, "bad network name"),
        (71, "too many connections"),
        (121, "semaphore timeout"),
        (123, "invalid name"),
        (161, "bad path"),
        (206, "file name too long"),
        (267, "no directory"),
        (1231, "network unreachable"),
        (1265, "downgrade detected"),
        (1326, "logon failure"),
        (1397, "mutual authentication failed"),
        (1460, "timeout"),
        (1920, "cannot access file"),
        (1921, "cannot resolve name"),
        (4390, "not a reparse point"),
        (None, "no number"),
    ],
)
def test_only_file_not_found_means_absent_on_windows(winerror: int | None, name: str) -> None:
    """Python also maps a missing drive and a missing share to ENOENT."""
    assert is_absence(errno.ENOENT, 2, "win32")
    assert not is_absence(errno.ENOENT, winerror, "win32"), name


def test_only_enoent_means_absent_on_other_systems() -> None:
    assert is_absence(errno.ENOENT, None, "linux")
    for number in (errno.ENOTDIR, errno.EACCES, errno.ESTALE, errno.EIO, errno.ELOOP, errno.ENAMETOOLONG, None):
        assert not is_absence(number, None, "linux")


@pytest.mark.parametrize("name", ["NUL", "aux.txt", "com7", "hold.", "hold ", "hold:stream", "HOLDFI~1", "ho*d", ""])
def test_windows_name_of_another_file_is_unknown(tmp_path: Path, name: str) -> None:
    """An operator who creates this file creates another one, or none."""
    assert presence(f"{tmp_path}/{name}", "win32") is Presence.UNKNOWN


@pytest.mark.windows
@pytest.mark.parametrize(
    "path", [r"Q:\hold", r"\\nosuch\share\hold", r"\\?\Q:\hold", r"C:\nofolder\hold", r"C:\windows\NUL", r"C:\ho<d"]
)
def test_missing_windows_drive_share_or_folder_is_unknown(path: str) -> None:
    assert presence(path) is Presence.UNKNOWN


class Mounts:
    """File systems, some of which hang until they are released."""

    def __init__(self, *hanging: str) -> None:
        self.hanging = {path: threading.Event() for path in hanging}
        self.looks: list[str] = []

    def __call__(self, path: str) -> Presence:
        self.looks.append(path)
        if path in self.hanging:
            self.hanging[path].wait()
        return Presence.ABSENT


def test_hanging_file_is_unknown_and_does_not_block_others() -> None:
    """It isn't checked again while it hangs."""
    mounts = Mounts("/mnt/hold")
    looker = FileChecker(mounts, patience=2.0)
    assert looker(["/etc/a", "/mnt/hold"]) == {"/etc/a": Presence.ABSENT, "/mnt/hold": Presence.UNKNOWN}
    for _ in range(3):
        assert looker(["/mnt/hold", "/etc/a"]) == {"/mnt/hold": Presence.UNKNOWN, "/etc/a": Presence.ABSENT}
    assert mounts.looks.count("/mnt/hold") == 1
    mounts.hanging["/mnt/hold"].set()


def test_file_is_checked_again_after_it_hung() -> None:
    mounts = Mounts("/mnt/hold")
    looker = FileChecker(mounts, patience=0.2)
    assert looker(["/mnt/hold"])["/mnt/hold"] is Presence.UNKNOWN
    mounts.hanging["/mnt/hold"].set()
    answered = False
    while not answered and mounts.looks.count("/mnt/hold") < 3:
        answered = looker(["/mnt/hold"])["/mnt/hold"] is Presence.ABSENT
        threading.Event().wait(0.01)
    assert answered


def test_hanging_files_use_a_limited_number_of_threads() -> None:
    paths = [f"/mnt/{number}" for number in range(40)]
    mounts = Mounts(*paths)
    looker = FileChecker(mounts, patience=0.01)
    before = threading.active_count()
    for path in paths:
        assert looker([path]) == {path: Presence.UNKNOWN}
    assert threading.active_count() - before <= MOST_STUCK
    for event in mounts.hanging.values():
        event.set()


def test_concurrent_callers_each_get_their_result(tmp_path: Path) -> None:
    """The loop and the threads of POSTs share one checker, which uses one thread at a time."""
    checker = FileChecker(patience=60.0)
    paths = [tmp_path / str(number) for number in range(8)]
    for path in paths[::2]:
        path.touch()
    found: dict[str, Presence] = {}

    def ask(path: Path) -> None:
        for _ in range(50):
            found.update(checker([str(path)]))

    threads = [threading.Thread(target=ask, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {str(path): Presence(("present", "absent")[place % 2]) for place, path in enumerate(paths)}
