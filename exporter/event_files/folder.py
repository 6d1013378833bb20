"""Access to the directory on disk: replace, remove, and read files without following links.

Any program with write access to the directory can put a link, a pipe, or a directory in the place of a file. This
module neither follows nor waits for them: it writes a new file that takes the name, and reads only regular files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from exporter.event_files.content import MAX_BYTES, STATUS_NAME, is_event_file, is_status_file, may_be_ours
from exporter.windows.places import is_in_use, is_link

_MODE: Final = 0o644
"""Mode of each file, regardless of the umask: the directory's mode controls read access."""
_TEMPORARY: Final = re.compile(r"\.azse-[0-9A-Za-z]{1,64}\.tmp")
_SPECIAL: Final = ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", "O_NOINHERIT")
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_IN_USE_SECONDS: Final = 0.025
"""Wait for a reader on Windows before the next attempt."""

Identity = tuple[int, int]
"""Device and inode of a directory."""
Fingerprint = tuple[int, int, int]
"""Inode, size, and modification time of a file, which identify its content."""


class PathOccupied(OSError):
    """A file or directory in the way that this program does not remove. The message is a sentence."""


class InUse(OSError):
    """A file that another program on Windows has open. The message is a sentence."""


def digest(content: bytes) -> bytes:
    """Return the SHA-256 of the content."""
    return hashlib.sha256(content).digest()


class PassDeadline(Struct):
    """Seconds left in one pass to wait for files that readers have open on Windows."""

    left: float

    def wait(self, sleep: Callable[[float], object] = time.sleep) -> bool:
        """Wait a moment. Return False if no time is left."""
        if self.left <= 0:
            return False
        self.left -= _IN_USE_SECONDS
        sleep(_IN_USE_SECONDS)
        return True


class Folder(Struct, frozen=True):
    """The directory at `path`. All methods block on the disk and raise OSError."""

    path: str

    def identity(self) -> Identity:
        """Return device and inode of the directory, which change if it is recreated or a file system is mounted."""
        status = os.stat(self.path)
        if not stat.S_ISDIR(status.st_mode):
            raise PathOccupied(f"{self.path}: not a directory; remove it, or set another event_files.path")
        return status.st_dev, status.st_ino

    def fingerprint(self, name: str) -> Fingerprint | None:
        """Return the fingerprint of a file; None if there is no regular file with this name."""
        try:
            status = os.lstat(self._at(name))
        except FileNotFoundError:
            return None
        return _fingerprint(status) if stat.S_ISREG(status.st_mode) else None

    def replace(self, name: str, content: bytes, patience: PassDeadline, *, durable: bool) -> Fingerprint:
        """Write a new file with this content and rename it to the name, or change nothing. Return its fingerprint.

        A `durable` file is flushed to the disk before the rename. Raises IsADirectoryError for a directory with that
        name, or PermissionError on Windows.
        """
        temporary = self._at(f".azse-{os.urandom(8).hex()}.tmp")
        descriptor = os.open(temporary, _flags(_NEW), 0o600)
        try:
            try:
                if sys.platform != "win32":
                    os.fchmod(descriptor, _MODE)
                view = memoryview(content)
                while view:
                    view = view[os.write(descriptor, view) :]
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            stamp = _fingerprint(os.lstat(temporary))
            _patiently(lambda: os.replace(temporary, self._at(name)), self._at(name), patience)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return stamp

    def remove(self, name: str, patience: PassDeadline) -> None:
        """Remove a file or a link, if there is one; keep a directory with that name."""
        path = self._at(name)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                _patiently(lambda: os.unlink(path), path, patience)

    def digest(self, name: str) -> bytes | None:
        """Return the `digest` of the file's content; None if it can't be read."""
        content = self._read(name)
        return digest(content) if content is not None else None

    def leftovers(self) -> tuple[list[str], list[str]]:
        """Return the names of existing event files of this program, sorted, and of its temporary files."""
        events, temporary = [], []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name):
                    if entry.is_file(follow_symlinks=False):
                        temporary.append(entry.name)
                elif may_be_ours(entry.name):
                    content = self._read(entry.name)
                    if content is not None and is_event_file(entry.name, content):
                        events.append(entry.name)
        return sorted(events), temporary

    def is_foreign(self, name: str) -> bool:
        """Return whether another program certainly wrote the file: False for one that can't be read."""
        content = self._read(name)
        return content is not None and not is_event_file(name, content)

    def check_status(self) -> None:
        """Raise `PathOccupied` if another program wrote `status.json`."""
        content, stamp = self._read(STATUS_NAME), self.fingerprint(STATUS_NAME)
        larger = stamp is not None and stamp[1] > MAX_BYTES  # than any that this program writes
        if larger or (content is not None and not is_status_file(content)):
            raise PathOccupied(f"{self._at(STATUS_NAME)}: written by another program; use a separate directory")

    def _read(self, name: str) -> bytes | None:
        """Return the content of a regular file of at most `MAX_BYTES`; None for anything else or unreadable."""
        path = self._at(name)
        try:
            if sys.platform == "win32" and is_link(path):
                return None
            descriptor = os.open(path, _flags(os.O_RDONLY))
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)  # `os.fdopen` would fail for a directory and leak the descriptor
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                return None
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(MAX_BYTES)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)


def _flags(flags: int) -> int:
    for name in _SPECIAL:
        flags |= getattr(os, name, 0)
    return flags


def _fingerprint(status: os.stat_result) -> Fingerprint:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _patiently(act: Callable[[], None], path: str, patience: PassDeadline) -> None:
    """Run `act`; on Windows retry while a reader has the file open.

    Windows doesn't replace or remove an open file. Raises `InUse` once the deadline has passed: Windows reports the
    same error for missing permissions.
    """
    while True:
        try:
            return act()
        except PermissionError as error:
            if sys.platform == "win32" and patience.wait():
                continue
            if is_in_use(path):
                sentence = f"{path}: in use by another program; retrying. Readers must close the file after reading"
                raise InUse(sentence) from error
            raise
