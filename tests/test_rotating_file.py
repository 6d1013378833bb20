"""The rotating log file: whole lines in bounded files, whatever happens to the file, its folder and its disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.files import MOST_TIMES, RotatingFile

LINE = b"ts=2026-01-01T00:00:00.000Z level=info event=a number=%04d\n"


def line(number: int) -> bytes:
    return LINE % number


SIZE = len(line(0))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.log"


@contextlib.contextmanager
def opened(file: RotatingFile) -> Iterator[RotatingFile]:
    """The file, closed afterwards: an open one keeps its folder from being removed on Windows."""
    try:
        yield file
    finally:
        file.close()


def content(path: Path) -> bytes:
    return path.read_bytes()


class HeldOpen:
    """A `rename` that fails as Windows does while somebody reads the file of this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tried = 0

    def __call__(self, source: Path, target: Path) -> None:
        self.tried += 1
        if source.name == self.name:
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        os.replace(source, target)


def test_files_are_bounded_in_size_and_number_and_keep_the_order(path: Path) -> None:
    """The newest lines are in the file itself, older ones in .1, .2; what is older still is gone."""
    with opened(RotatingFile(path, max_bytes=10 * SIZE, files=3)) as file:
        for number in range(95):
            file.write_line(line(number))
    assert sorted(each.name for each in path.parent.iterdir()) == ["agent.log", "agent.log.1", "agent.log.2"]
    kept = [path.with_name("agent.log.2"), path.with_name("agent.log.1"), path]
    assert b"".join(map(content, kept)) == b"".join(map(line, range(70, 95)))
    assert all(len(content(each)) <= 10 * SIZE for each in kept)


def test_a_new_process_goes_on_in_the_same_file(path: Path) -> None:
    """Nothing is overwritten at a start, and what an earlier process left half written ends no line of ours."""
    path.write_bytes(line(1) + b"ts=2026-01-01T00:00:00.000Z level=in")
    with opened(RotatingFile(path)) as file:
        file.write_line(line(2))
    with opened(RotatingFile(path)) as file:
        file.write_line(line(3))
    assert content(path) == line(1) + b"ts=2026-01-01T00:00:00.000Z level=in\n" + line(2) + line(3)


@pytest.mark.parametrize("held", ["agent.log", "agent.log.1"])
def test_a_file_that_somebody_holds_open_is_written_on_and_rotated_later(path: Path, held: str) -> None:
    """Windows renames no file that a reader has open: no line is lost for it, the rename is tried now and then."""
    path.with_name("agent.log.1").write_bytes(line(0))
    rename = HeldOpen(held)
    with opened(RotatingFile(path, max_bytes=100 * SIZE, files=3, rename=rename)) as file:
        for number in range(1, 151):
            file.write_line(line(number))
        assert content(path) == b"".join(map(line, range(1, 151)))
        assert rename.tried <= 3 * 6, "not at each line"
        rename.name = ""
        for number in range(151, 171):
            file.write_line(line(number))
    older, newer = content(path.with_name("agent.log.1")), content(path)
    assert older + newer == b"".join(map(line, range(1, 171)))
    assert newer
    assert content(path.with_name("agent.log.2")) == line(0)


@pytest.mark.parametrize("held", ["agent.log", "agent.log.1", "agent.log.3"])
def test_a_file_that_is_held_open_for_long_costs_none_of_the_older_ones(path: Path, held: str) -> None:
    """A try that fails must not move the older files on once more, until the last of them is gone."""
    for number in range(1, 5):
        path.with_name(f"agent.log.{number}").write_bytes(line(number))
    rename = HeldOpen(held)
    with opened(RotatingFile(path, max_bytes=10 * SIZE, files=5, rename=rename)) as file:
        for number in range(100, 150):
            file.write_line(line(number))
        rename.name = ""
        for number in range(150, 155):
            file.write_line(line(number))
    kept = [path.with_name(f"agent.log.{number}") for number in range(4, 0, -1)]
    assert b"".join(map(content, [*kept, path])) == line(3) + line(2) + line(1) + b"".join(map(line, range(100, 155)))


def test_a_file_that_is_held_open_for_ever_fills_no_disk(path: Path) -> None:
    """At ten times its size lines are refused, whole ones, and the first one after the reader is taken."""
    rename = HeldOpen("agent.log")
    with opened(RotatingFile(path, max_bytes=10 * SIZE, files=3, rename=rename)) as file:
        for number in range(MOST_TIMES * 10):
            file.write_line(line(number))
        for _ in range(2):
            with pytest.raises(PermissionError):
                file.write_line(line(1000))
        assert content(path) == b"".join(map(line, range(MOST_TIMES * 10)))
        rename.name = ""
        file.write_line(line(1001))
    assert content(path) == line(1001)
    assert len(content(path.with_name("agent.log.1"))) == MOST_TIMES * 10 * SIZE


def test_what_a_file_begins_with_is_written_once_for_each_file(path: Path) -> None:
    """After it was opened, and after each rotation; not where both do not fit, nor again while it can't be rotated."""
    rename = HeldOpen("agent.log")
    opening = iter(range(900, 1000))
    with opened(RotatingFile(path, max_bytes=4 * SIZE, files=9, rename=rename)) as file:
        for number in range(10):
            file.write_line(line(number), lambda: line(next(opening)))
        assert content(path) == line(900) + b"".join(map(line, range(10)))
        rename.name = ""
        for number in range(10, 14):
            file.write_line(line(number), lambda: line(next(opening)))
        assert content(path) == line(902) + line(13)
        file.close()
        file.write_line(line(14), lambda: 4 * line(0))
    assert content(path) == line(902) + line(13) + line(14)


@pytest.mark.windows
def test_on_windows_a_reader_that_holds_the_file_open_stops_no_line(path: Path) -> None:
    """An administrator can read and copy the file while it is written; while it is read it is not rotated."""
    with opened(RotatingFile(path, max_bytes=10 * SIZE, files=3)) as file:
        file.write_line(line(0))
        with path.open("rb") as reader:
            assert reader.read() == line(0)
            shutil.copy(path, path.with_name("copy"))
            for number in range(1, 20):
                file.write_line(line(number))
            assert reader.read() == b"".join(map(line, range(1, 20)))
        for number in range(20, 23):
            file.write_line(line(number))
    assert content(path.with_name("agent.log.1")) + content(path) == b"".join(map(line, range(23)))


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    """While something else has its name, lines are refused; after that they are written."""
    folder = tmp_path / "logs"
    folder.touch()
    with opened(RotatingFile(folder / "agent.log")) as file:
        with pytest.raises(FileExistsError):
            file.write_line(line(0))
        folder.unlink()
        file.write_line(line(1))
        assert content(folder / "agent.log") == line(1)


@pytest.mark.linux("removes and moves a file that is open")
def test_a_file_that_was_removed_or_moved_away_is_made_again(path: Path) -> None:
    """The lines after it are where an administrator looks for them."""
    with opened(RotatingFile(path)) as file:
        file.write_line(line(0))
        path.unlink()
        file.write_line(line(1))
        assert content(path) == line(1)
        path.rename(path.with_name("moved"))
        file.write_line(line(2))
        assert content(path) == line(2)
        shutil.rmtree(path.parent)
        file.write_line(line(3))
        assert content(path) == line(3)


@pytest.mark.linux("needs a limit on the size of files")
def test_a_disk_that_becomes_full_tears_no_line(path: Path) -> None:
    """What there was room for of a line is taken back; with room again whole lines follow whole lines."""
    import resource  # Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(RotatingFile(path)) as file:
        file.write_line(line(0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE + 7, hard))  # SIGXFSZ is ignored by Python: EFBIG
        try:
            for _ in range(2):
                with pytest.raises(OSError, match="too large"):
                    file.write_line(line(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        file.write_line(line(2))
    assert content(path) == line(0) + line(2)


@pytest.mark.linux("Windows lets few people make links")
def test_a_link_is_never_followed(path: Path, tmp_path: Path) -> None:
    """Whoever may write into the folder can't make the agent write elsewhere, nor by an older file's name."""
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    path.symlink_to(target)
    with opened(RotatingFile(path, max_bytes=2 * SIZE, files=3)) as file:
        with pytest.raises(OSError, match="link"):
            file.write_line(line(0))
        path.unlink()
        path.with_name("agent.log.1").symlink_to(target)
        for number in range(10):
            file.write_line(line(number))
    assert content(target) == b"precious"


@pytest.mark.linux("modes and pipes with a name")
def test_the_file_is_private_and_regular(path: Path) -> None:
    """Others can't read it, whatever the umask is or it was before; a FIFO in its place blocks nothing."""
    os.mkfifo(path)
    with opened(RotatingFile(path)) as file:
        with pytest.raises(OSError, match="not a regular file"):
            file.write_line(line(0))
        path.unlink()
        path.touch(0o644)
        file.write_line(line(0))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
