"""What stands at the files that approvals ask for, and that no file makes the agent wait."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from exporter.agent.files import MOST_STUCK, FileChecker, is_absence, presence
from exporter.core.policy import Presence
from exporter.windows import access


def test_absent_is_no_such_file_in_a_folder_that_is_there(tmp_path: Path) -> None:
    """The one clear answer that lets an approval go."""
    assert presence(str(tmp_path / "hold")) is Presence.ABSENT


@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_a_stranger_decides_on_is_neither_present_nor_absent(tmp_path: Path, is_there: bool) -> None:
    """A ready file of theirs releases nothing, and a hold file that they took away holds."""
    if is_there:
        (tmp_path / "hold").touch()
    assert presence(str(tmp_path / "hold"), is_exposed=lambda _: True) is Presence.UNTRUSTED


def test_a_folder_whose_list_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    def refused(_: str) -> bool:
        raise PermissionError(errno.EACCES, "Access is denied")

    assert presence(str(tmp_path / "hold"), is_exposed=refused) is Presence.UNKNOWN


@pytest.mark.windows
def test_on_windows_files_in_a_folder_that_everybody_may_write_to_are_untrusted(tmp_path: Path) -> None:
    folder = tmp_path / "ready"
    folder.mkdir()
    access.protect_folder(folder, [(access.current_user(), access.FULL)])
    assert presence(str(folder / "event")) is Presence.ABSENT
    access.protect_folder(folder, [(access.current_user(), access.FULL), (access.EVERYONE, access.MODIFY)])
    (folder / "event").touch()
    assert presence(str(folder / "event")) is Presence.UNTRUSTED


def test_a_file_is_present(tmp_path: Path) -> None:
    """Whatever it holds."""
    (tmp_path / "hold").touch()
    assert presence(str(tmp_path / "hold")) is Presence.PRESENT


@pytest.mark.not_wine("has no symbolic links")
def test_a_link_to_a_file_is_present(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    (tmp_path / "link").symlink_to(tmp_path / "hold")
    assert presence(str(tmp_path / "link")) is Presence.PRESENT


@pytest.mark.parametrize("path", ["gone/hold", "gone/further/hold", "file/hold", "hold/", "a\0b"])
def test_without_its_folder_nothing_is_clear(tmp_path: Path, path: str) -> None:
    """A folder, mount, drive or share that is missing may be why the file can't be seen."""
    (tmp_path / "file").touch()
    assert presence(f"{tmp_path}/{path}") is Presence.UNKNOWN


@pytest.mark.not_wine("has no symbolic links")
def test_behind_a_folder_that_leads_nowhere_nothing_is_clear(tmp_path: Path) -> None:
    """A mount point whose volume is gone is one on Windows."""
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere", target_is_directory=True)
    assert presence(str(tmp_path / "dangling" / "hold")) is Presence.UNKNOWN


def test_what_is_no_file_and_what_leads_nowhere_is_neither(tmp_path: Path) -> None:
    """A folder, a name that is too long."""
    (tmp_path / "folder").mkdir()
    for name in ("folder", "x" * 300):
        assert presence(str(tmp_path / name)) is Presence.UNKNOWN


@pytest.mark.not_wine("has no symbolic links")
def test_a_link_that_leads_nowhere_is_neither(tmp_path: Path) -> None:
    """A dangling link, a loop of links."""
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("dangling", "loop"):
        assert presence(str(tmp_path / name)) is Presence.UNKNOWN


@pytest.mark.linux("Windows has its own rule for what is no path of a file")
@pytest.mark.parametrize("path", ["hold", "C:\\hold", "\\\\server\\share\\hold", ""])
def test_a_name_that_is_no_absolute_path_of_this_system_is_unknown(path: str) -> None:
    """A path of Windows is on Linux the name of a file that nobody makes: that it is absent says nothing."""
    assert presence(path, "linux") is Presence.UNKNOWN


@pytest.mark.linux("needs mkfifo")
def test_what_is_no_file_is_not_opened_and_not_clear(tmp_path: Path) -> None:
    """A pipe would let the agent wait for its other end."""
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
def test_on_windows_file_not_found_is_the_only_absence(winerror: int | None, name: str) -> None:
    """Whatever `errno` Python makes of it: a missing drive and a share that is gone are ENOENT to it as well."""
    assert is_absence(errno.ENOENT, 2, "win32")
    assert not is_absence(errno.ENOENT, winerror, "win32"), name


def test_elsewhere_no_such_file_is_the_only_absence() -> None:
    assert is_absence(errno.ENOENT, None, "linux")
    for number in (errno.ENOTDIR, errno.EACCES, errno.ESTALE, errno.EIO, errno.ELOOP, errno.ENAMETOOLONG, None):
        assert not is_absence(number, None, "linux")


@pytest.mark.parametrize("name", ["NUL", "aux.txt", "com7", "hold.", "hold ", "hold:stream", "HOLDFI~1", "ho*d", ""])
def test_on_windows_a_name_that_means_another_file_is_never_clear(tmp_path: Path, name: str) -> None:
    """A person who makes this file makes another one, or none; what Windows says of the name is no answer."""
    assert presence(f"{tmp_path}/{name}", "win32") is Presence.UNKNOWN


@pytest.mark.windows
@pytest.mark.parametrize(
    "path", [r"Q:\hold", r"\\nosuch\share\hold", r"\\?\Q:\hold", r"C:\nofolder\hold", r"C:\windows\NUL", r"C:\ho<d"]
)
def test_on_windows_a_missing_drive_share_or_folder_is_unknown(path: str) -> None:
    """Nobody knows what is there."""
    assert presence(path) is Presence.UNKNOWN


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


def test_threads_that_ask_at_once_each_get_their_own_answer(tmp_path: Path) -> None:
    """The loop and the threads of POSTs share one checker, and it checks with one thread at a time."""
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
