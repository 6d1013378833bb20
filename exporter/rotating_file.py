"""A private file of lines that is rotated by size: the log of a service, and the recording."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from exporter.files import fault_of, make_folder, make_private

MAX_BYTES: Final = 10 << 20
FILES: Final = 5
RETRY_SHARE: Final = 10
"""A file that can't be renamed may grow by this part of its size, then it is tried again."""
MOST_TIMES: Final = 10
"""A file that can't be renamed grows to this many times its size. From there on lines are refused."""

# To be read as well: the last byte tells whether the last line is whole.
_FLAGS: Final = (os.O_RDWR | os.O_APPEND) + sum(
    getattr(os, name, 0)
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")  # those of this system
)


class RotatingFile:
    """Appends whole lines to `path`, which becomes `path`.1 when it is full, and that `path`.2. The files are for their
    owner alone. A folder that is missing is made.

    On Windows the file is opened as Python does, with FILE_SHARE_READ and FILE_SHARE_WRITE: others may read and copy it
    while it is written. Neither has FILE_SHARE_DELETE, so nobody can rename it while a reader has it open
    ([CreateFileW]): then lines are appended to the same file, which grows beyond `max_bytes`, up to `MOST_TIMES` of
    it, and the rename is tried again later. For one thread at a time.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int = MAX_BYTES,
        files: int = FILES,
        *,
        rename: Callable[[Path, Path], None] = os.replace,
    ) -> None:
        """At most `files` files of about `max_bytes` each. `rename` replaces a file that has the new name, and raises
        OSError."""
        self.path = path
        self._max = max_bytes
        self._count = files
        self._rename = rename
        self._descriptor: int | None = None
        self._size = 0
        self._full_at = max_bytes
        self._is_new = False
        """Nothing was written since the file was opened, other than to try again to rename it."""

    def write_line(self, line: bytes, opening: Callable[[], bytes] = bytes) -> None:
        """Append the line, or nothing of it. After the file was opened, also after an error, `opening` comes before it,
        unless no file has room for both.

        Raises OSError: no room, `path` is not a regular file, or a reader keeps it from being rotated.
        The next line opens the file again.
        """
        descriptor = self._open()
        text = self._opened_by(opening, line)
        if self._size and self._size + len(text) > self._full_at:
            descriptor = self._rotate(len(text))
            text = self._opened_by(opening, line)
        try:
            written = 0
            while written < len(text):
                written += os.write(descriptor, text[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._size)  # a disk that became full took a part of it
            self.close()
            raise
        self._size += len(text)
        self._is_new = False

    def _opened_by(self, opening: Callable[[], bytes], line: bytes) -> bytes:
        text = opening() + line if self._is_new else line
        return text if len(text) <= self._max else line

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open(self) -> int:
        """The file at `path`, made private where it is new, opened again where it was moved or removed meanwhile."""
        if self._descriptor is not None and _is_at(self._descriptor, self.path):
            return self._descriptor
        self.close()
        make_folder(self.path.parent)
        # Not on Windows where the file system keeps no access lists: `check` says so.
        if (exposed := make_private(self.path)) and sys.platform != "win32":
            raise OSError(exposed)
        if self.path.is_symlink():  # for systems without O_NOFOLLOW, and elsewhere for the sentence
            raise OSError(f"{self.path} is a link, which is not followed")
        descriptor = os.open(self.path, _FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{self.path} is not a regular file")
            if fault := fault_of(status):
                raise OSError(f"{self.path}: {fault}")
            self._size = status.st_size
            if self._size and not _ends_a_line(descriptor):  # the process or the machine died while it wrote
                self._size += os.write(descriptor, b"\n")
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._is_new = descriptor, True
        return descriptor

    def _rotate(self, needed: int) -> int:
        """A new file at `path`, or the full one if it can't be renamed now. Raises OSError, also where that has no room
        for as many bytes as are needed."""
        was_new = self._is_new
        self.close()  # Windows renames no file that is open
        numbers = range(1, self._count)
        # A name that an earlier try left free is filled: no second one moves the files behind it out at the end.
        last = next((number for number in numbers if not self._numbered(number).exists()), self._count - 1)
        try:
            for number in range(last, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._rename(self._numbered(number - 1), self._numbered(number))
            if self._count == 1:
                os.unlink(self.path)
            self._full_at = self._max
        except OSError:  # somebody reads one of them
            if self._size + needed > MOST_TIMES * self._max:
                raise
            self._full_at = self._size + self._max // RETRY_SHARE
            descriptor = self._open()
            self._is_new = was_new or not self._size
            return descriptor
        return self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _ends_a_line(descriptor: int) -> bool:
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) == b"\n"
