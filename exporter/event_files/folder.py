"""The folder on disk: files are replaced as a whole, removed, and looked at without being led astray.

Who may write to the folder may put a link, a pipe or a folder in the place of a file. None of them is followed or
waited for: what is written is a new file that takes the name, and what is read has to be a regular file.
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
"""Of each file, whatever the umask is: the folder decides who may read them."""
_TEMPORARY: Final = re.compile(r"\.azse-[0-9A-Za-z]{1,64}\.tmp")
_SPECIAL: Final = ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY", "O_NOINHERIT")
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_IN_USE_SECONDS: Final = 0.025
"""How long to wait for a reader on Windows before the file is tried again."""

Identity = tuple[int, int]
"""Device and inode of a folder."""
Fingerprint = tuple[int, int, int]
"""Inode, size and time of change of a file, by which it is known again."""


class PathOccupied(OSError):
    """Something is in the way that this program does not remove. The message is a sentence."""


class InUse(OSError):
    """Another program on Windows has the file open. The message is a sentence."""


def digest(content: bytes) -> bytes:
    """What tells one content from another."""
    return hashlib.sha256(content).digest()


class PassDeadline(Struct):
    """Seconds, of one pass altogether, to wait for files that readers have open on Windows."""

    left: float

    def wait(self, sleep: Callable[[float], object] = time.sleep) -> bool:
        """Wait a moment. False when there is no time left."""
        if self.left <= 0:
            return False
        self.left -= _IN_USE_SECONDS
        sleep(_IN_USE_SECONDS)
        return True


class Folder(Struct, frozen=True):
    """The folder at `path`. All methods raise OSError."""

    path: str

    def identity(self) -> Identity:
        """Which folder it is: another one after it was made anew, or something was mounted there."""
        status = os.stat(self.path)
        if not stat.S_ISDIR(status.st_mode):
            raise PathOccupied(f"{self.path} is not a folder")
        return status.st_dev, status.st_ino

    def fingerprint(self, name: str) -> Fingerprint | None:
        """What the file is known by; None if there is no regular file of this name."""
        try:
            status = os.lstat(self._at(name))
        except FileNotFoundError:
            return None
        return _fingerprint(status) if stat.S_ISREG(status.st_mode) else None

    def replace(self, name: str, content: bytes, patience: PassDeadline, *, durable: bool) -> Fingerprint:
        """Put a file with this content in the place of whatever has the name, or change nothing.

        A `durable` one is on the disk before it gets its name. A folder of that name is left alone: IsADirectoryError,
        or PermissionError on Windows.
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
        """Remove a file, or a link; nothing if there is none, or a folder that somebody put in its place."""
        path = self._at(name)
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                _patiently(lambda: os.unlink(path), path, patience)

    def digest(self, name: str) -> bytes | None:
        """`digest` of what the file holds; None if that can't be read."""
        content = self._read(name)
        return digest(content) if content is not None else None

    def leftovers(self) -> tuple[list[str], list[str]]:
        """Names of the events' files that this program wrote, and of temporary files that it left."""
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
        """Whether another program is known to have written the file: not of one that can't be read."""
        content = self._read(name)
        return content is not None and not is_event_file(name, content)

    def check_status(self) -> None:
        """Raises `PathOccupied` where `status.json` is a file that this program did not write."""
        content, stamp = self._read(STATUS_NAME), self.fingerprint(STATUS_NAME)
        larger = stamp is not None and stamp[1] > MAX_BYTES  # than ours ever is
        if larger or (content is not None and not is_status_file(content)):
            raise PathOccupied(f"{self._at(STATUS_NAME)} was written by another program: take a folder of its own")

    def _read(self, name: str) -> bytes | None:
        """The content of a regular file of at most `MAX_BYTES`; None for anything else, and what can't be read."""
        path = self._at(name)
        try:
            if sys.platform == "win32" and is_link(path):
                return None
            descriptor = os.open(path, _flags(os.O_RDONLY))
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)  # `os.fdopen` would fail for a folder, and leave it open
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
    """On Windows a file can't be replaced or removed while somebody reads it, who is done in a moment. Raises `InUse`
    if it takes longer: there the error is the same as where the right to do it is missing."""
    while True:
        try:
            return act()
        except PermissionError as error:
            if sys.platform == "win32" and patience.wait():
                continue
            if is_in_use(path):
                sentence = f"{path} is in use by another program, and tried again: readers should close it at once"
                raise InUse(sentence) from error
            raise
