"""A log file that is rotated by size, for a service whose standard error nobody reads."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from exporter.private_file import MODE, own

MAX_BYTES: Final = 10 << 20
FILES: Final = 5
RETRY_SHARE: Final = 10
"""A file that can't be renamed may grow by this part of its size, then it is tried again."""

# To be read as well: the last byte tells whether the last line is whole.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND
_FLAGS_OF_SOME_SYSTEMS: Final = ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")


class RotatingFile:
    """Appends whole lines to `path`, which becomes `path`.1 when it is full, and that `path`.2: a stream for `Log`.

    On Windows the file is opened as Python does, with FILE_SHARE_READ and FILE_SHARE_WRITE: others may read and copy it
    while it is written. Neither has FILE_SHARE_DELETE, so nobody can rename it while a reader has it open
    ([CreateFileW]): then lines are appended to the same file, which grows beyond `max_bytes`, and the rename is tried
    again later. The folder is not made here: who installs the service makes it, with its access list. For one thread
    at a time.
    """

    def __init__(
        self,
        path: Path,
        max_bytes: int = MAX_BYTES,
        files: int = FILES,
        *,
        rename: Callable[[Path, Path], None] = os.replace,
    ) -> None:
        """At most `files` files, at least 2, of about `max_bytes` each. `rename` replaces a file that has the new name;
        it raises OSError."""
        self._path = path
        self._max = max_bytes
        self._count = files
        self._rename = rename
        self._descriptor: int | None = None
        self._size = 0
        self._full_at = max_bytes

    def write_line(self, line: bytes) -> None:
        """Append the line, or nothing of it. Raises OSError: no such folder, no room, or `path` is not a regular file.
        The next line opens the file again."""
        descriptor = self._open()
        if self._size and self._size + len(line) > self._full_at:
            descriptor = self._rotate()
        try:
            written = 0
            while written < len(line):
                written += os.write(descriptor, line[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._size)  # a disk that became full took a part of it
            self.close()
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open(self) -> int:
        """The file at `path`, opened again where it was moved or removed meanwhile."""
        if self._descriptor is not None and _is_at(self._descriptor, self._path):
            return self._descriptor
        self.close()
        flags = _FLAGS
        for name in _FLAGS_OF_SOME_SYSTEMS:
            flags |= getattr(os, name, 0)
        if self._path.is_symlink():  # for systems without O_NOFOLLOW, and elsewhere for the sentence
            raise OSError(f"{self._path} is a link, which is not followed")
        descriptor = os.open(self._path, flags, MODE)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{self._path} is not a regular file")
            own(descriptor)
            self._size = status.st_size
            if self._size and not _ends_a_line(descriptor):  # the process or the machine died while it wrote
                self._size += os.write(descriptor, b"\n")
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def _rotate(self) -> int:
        """A new file at `path`, or the full one where it can't be renamed now. Raises OSError."""
        self.close()  # Windows renames no file that is open
        numbers = range(1, self._count)
        # A name that an earlier try left free is filled: no second one moves the files behind it out at the end.
        last = next((number for number in numbers if not self._numbered(number).exists()), self._count - 1)
        try:
            for number in range(last, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._rename(self._numbered(number - 1), self._numbered(number))
            self._full_at = self._max
        except OSError:  # somebody reads one of them
            self._full_at = self._size + self._max // RETRY_SHARE
        return self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _ends_a_line(descriptor: int) -> bool:
    os.lseek(descriptor, -1, os.SEEK_END)
    return os.read(descriptor, 1) == b"\n"
