"""The rotating log file: complete lines in bounded files, for any change of file, directory, and disk."""

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
    """Yield the file and close it: on Windows an open file keeps its directory from being removed."""
    try:
        yield file
    finally:
        file.close()


def content(path: Path) -> bytes:
    return path.read_bytes()


class HeldOpen:
    """A `rename` that fails as on Windows while a reader has this file open."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tried = 0

    def __call__(self, source: Path, target: Path) -> None:
        self.tried += 1
        if source.name == self.name:
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        os.replace(source, target)


def test_files_are_bounded_in_size_and_number_and_keep_the_order(path: Path) -> None:
    """The newest lines are in the file, older ones in .1 and .2; the oldest are removed."""
    with opened(RotatingFile(path, max_bytes=10 * SIZE, files=3)) as file:
        for number in range(95):
            file.write_line(line(number))
    assert sorted(each.name for each in path.parent.iterdir()) == ["agent.log", "agent.log.1", "agent.log.2"]
    kept = [path.with_name("agent.log.2"), path.with_name("agent.log.1"), path]
    assert b"".join(map(content, kept)) == b"".join(map(line, range(70, 95)))
    assert all(len(content(each)) <= 10 * SIZE for each in kept)


def test_new_process_appends_to_the_file(path: Path) -> None:
    """Nothing is overwritten, and an incomplete line of an earlier process is ended first."""
    path.write_bytes(line(1) + b"ts=2026-01-01T00:00:00.000Z level=in")
    with opened(RotatingFile(path)) as file:
        file.write_line(line(2))
    with opened(RotatingFile(path)) as file:
        file.write_line(line(3))
    assert content(path) == line(1) + b"ts=2026-01-01T00:00:00.000Z level=in\n" + line(2) + line(3)


@pytest.mark.parametrize("held", ["agent.log", "agent.log.1"])
def test_file_held_open_by_a_reader_grows_and_is_rotated_later(path: Path, held: str) -> None:
    """Windows doesn't rename it: no line is lost, and the rename is retried."""
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
def test_failed_rotations_keep_the_older_files(path: Path, held: str) -> None:
    """Each attempt would otherwise move them by one."""
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


def test_file_held_open_permanently_does_not_fill_the_disk(path: Path) -> None:
    """At ten times its size whole lines are rejected, until the reader has closed it."""
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


def test_opening_is_written_once_for_each_file(path: Path) -> None:
    """After opening and after each rotation; not if both don't fit, nor again while the rename fails."""
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
def test_on_windows_a_reader_loses_no_line(path: Path) -> None:
    """An administrator can read and copy the file during writes; meanwhile it isn't rotated."""
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


def test_missing_directory_is_created(tmp_path: Path) -> None:
    """While a file has its name, lines are rejected."""
    folder = tmp_path / "logs"
    folder.touch()
    with opened(RotatingFile(folder / "agent.log")) as file:
        with pytest.raises(FileExistsError):
            file.write_line(line(0))
        folder.unlink()
        file.write_line(line(1))
        assert content(folder / "agent.log") == line(1)


@pytest.mark.linux("removes and moves a file that is open")
def test_removed_or_moved_file_is_recreated(path: Path) -> None:
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
def test_full_disk_leaves_no_incomplete_line(path: Path) -> None:
    """The written part is removed, and later lines are complete."""
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
def test_links_are_not_followed(path: Path, tmp_path: Path) -> None:
    """Neither at the path nor at an older file's name."""
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
def test_file_is_private_and_regular(path: Path) -> None:
    """With any umask or earlier mode; a FIFO at the path doesn't block."""
    os.mkfifo(path)
    with opened(RotatingFile(path)) as file:
        with pytest.raises(OSError, match="not a regular file"):
            file.write_line(line(0))
        path.unlink()
        path.touch(0o644)
        file.write_line(line(0))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
