"""Files as this process trusts and keeps them: whose they are, how they are read, and who else may read them.

**Whose a file is.** Its owner may change it at any time, so this process trusts only its own user's files and root's.
That is for files that decide what the agent does, that hold its secrets, or that it goes on writing: settings, the
web-config file, certificates and keys, the outbox, a recording. Files in a mounted ConfigMap or Secret are root's, and
systemd's credentials are root's or the service's own. On Windows, where `windows.access` judges owners, all pass here.

**Small files that people write** are read whole, never more than they may hold, in each encoding that an editor gives:

    decoded(read_capped(path, limit))        the text
    not_ascii(read_capped(path, limit))      for a file that a library reads, and takes for nothing but ASCII

PowerShell 5 writes UTF-16 with a byte order mark where output is redirected (`>`, `Out-File`), and UTF-8 with one where
`-Encoding UTF8` is given [about_Character_Encoding]. Both are read. What arrives over the network is none of this.

**Private files** are for their owner alone: made with that mode whatever the umask is, and narrowed where they had a
wider one. On Windows modes mean nothing; there the access list says the same: the system, its administrators, and the
user that this process runs as. `RotatingFile` is one of lines that is rotated by size: the log of a service, and the
recording.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from exporter.windows import access

ROOT: Final = 0
RETRY_SHARE: Final = 10
"""A file that can't be renamed may grow by this part of its size, then it is tried again."""
MOST_TIMES: Final = 10
"""A file that can't be renamed grows to this many times its size. From there on lines are refused."""

# To be read as well: the last byte tells whether the last line is whole.
_FLAGS: Final = (os.O_RDWR | os.O_APPEND) + sum(
    getattr(os, name, 0)
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")  # those of this system
)
MODE: Final = 0o600
"""Read and write for the owner, nothing for others."""
_FOLDER_MODE: Final = 0o750
_UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HOW_TO_SAVE: Final = "save it as UTF-8, in PowerShell with `Set-Content -Encoding UTF8`"


def fault_of(status: os.stat_result) -> str:
    """What is wrong with the owner of a file, and what to do, for the end of a sentence about it; "" for nothing."""
    if sys.platform == "win32" or status.st_uid in (ROOT, os.geteuid()):
        return ""
    # By numbers: to ask for names may take a directory service that does not answer.
    return (
        f"it belongs to user {status.st_uid}, who may change it at any time; give it to root or to user "
        f"{os.geteuid()}, as which this process runs (chown)"
    )


def refuse_foreign(path: str | os.PathLike[str]) -> None:
    """Raise PermissionError if there is a file at the path that belongs to another user, also by a link to it."""
    try:
        statuses = [os.lstat(path), os.stat(path)]
    except (OSError, ValueError):
        return  # whoever opens it says why that can't be done
    for status in statuses:
        if not stat.S_ISDIR(status.st_mode) and (fault := fault_of(status)):
            raise PermissionError(errno.EPERM, fault, os.fspath(path))


class TooLarge(Exception):
    """The file holds more than it may."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes")


class WrongEncoding(Exception):
    """The file's text can't be read. The message says what was expected and found, and shows nothing of the text."""


def read_trusted(path: str | os.PathLike[str], limit: int) -> bytes:
    """As `read_capped`, for settings and secrets: also raises PermissionError if the file is another user's."""
    return read_capped(path, limit, trusted=True)


def read_capped(path: str | os.PathLike[str], limit: int, *, trusted: bool = False) -> bytes:
    """The content of a file of at most `limit` bytes. Raises `TooLarge`, OSError, or ValueError for an unusable path.

    One byte more than allowed is read and no further: what `path` names may be a device without an end.
    """
    try:
        with open(path, "rb") as file:
            if trusted and (fault := fault_of(os.fstat(file.fileno()))):
                raise PermissionError(errno.EPERM, fault)
            content = file.read(limit + 1)
    except PermissionError:
        if os.path.isdir(path):  # Windows says no more of a folder than that it may not be opened
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)) from None
        raise
    if len(content) > limit:
        raise TooLarge(limit)
    return content


def decoded(content: bytes) -> str:
    """The text of a file, without a byte order mark. Raises `WrongEncoding`.

    It is UTF-8, or UTF-16 with a mark.
    """
    try:
        text = in_utf8(content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongEncoding(f"expected UTF-8, found another byte at offset {error.start}; {_HOW_TO_SAVE}") from None
    if "\0" in text:
        raise WrongEncoding(f"expected text, found a NUL character; {_HOW_TO_SAVE}")
    return text


def in_utf8(content: bytes, errors: str = "strict") -> bytes:
    """The same text in UTF-8 without a byte order mark; what has no mark is returned as it is.

    `errors` is what becomes of damaged UTF-16, as for `bytes.decode`. Raises `WrongEncoding` for it, and for UTF-16
    without a mark, where every second byte of ASCII text is NUL.
    """
    if content.startswith(codecs.BOM_UTF8):
        return content.removeprefix(codecs.BOM_UTF8)
    if content.startswith(_UTF16_MARKS):
        try:
            return content.decode("utf-16", errors).encode("utf-8", "replace")
        except UnicodeDecodeError as error:
            raise WrongEncoding(
                f"expected UTF-8, found UTF-16 that is damaged at offset {error.start}; {_HOW_TO_SAVE}"
            ) from None
    if _is_utf16_without_mark(content):
        raise WrongEncoding(f"expected UTF-8, found UTF-16 without a byte order mark; {_HOW_TO_SAVE}")
    return content


def _is_utf16_without_mark(content: bytes) -> bool:
    """Whether one of the first two bytes is NUL. Both are in the hole that a power failure leaves in a file."""
    return content[:2].count(0) == 1


def not_ascii(content: bytes) -> str:
    """Why a library that reads ASCII alone finds nothing in this file: an end for a sentence, "" where it would."""
    if content.startswith(codecs.BOM_UTF8):
        found = "a byte order mark"
    elif content.startswith(_UTF16_MARKS) or _is_utf16_without_mark(content):
        found = "UTF-16"
    else:
        return ""
    return f"expected ASCII, found {found}; in PowerShell save it with `Set-Content -Encoding Ascii`"


def make_private(path: Path) -> str:
    """Make the file, empty, or narrow the one that is there. Raises OSError if it can't be made, or is another user's.

    Returns a sentence when others may still read it, else "".
    """
    refuse_foreign(path)
    with contextlib.suppress(FileExistsError):
        if sys.platform == "win32":
            access.make_file(path)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
            own(descriptor)
            os.close(descriptor)
    return narrow(path)


def make_folder(path: Path) -> None:
    """Make the folder and those above it that are missing. Raises OSError.

    On Windows for this user alone, since what SQLite makes beside a database has the access list of the folder.
    """
    if sys.platform == "win32":
        for folder in reversed([folder for folder in (path, *path.parents) if not folder.is_dir()]):
            try:
                access.make_folder(folder)
            except FileExistsError:
                if not folder.is_dir():
                    raise
    else:
        path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)


def own(descriptor: int) -> None:
    """Give a file that was just made exactly `MODE`: the umask may have taken rights from its owner too."""
    if hasattr(os, "fchmod"):
        with contextlib.suppress(OSError):  # a file system without modes
            os.fchmod(descriptor, MODE)


def narrow(path: Path) -> str:
    """Take from an existing file what others may do with it. Returns a sentence when that can't be done, else "".

    By its name and never by opening it: to close a descriptor of a database would end the locks that SQLite holds on it
    in this process. A link, what is no file, and another user's file is left alone.
    """
    try:
        status = os.lstat(path)
        mode = status.st_mode
        if not stat.S_ISREG(mode):
            return ""
        if fault := fault_of(status):
            return f"{path}: {fault}"
        if sys.platform == "win32":
            if not access.is_private(path):
                access.protect_file(path)
        elif stat.S_IMODE(mode) & ~MODE:
            os.chmod(path, stat.S_IMODE(mode) & MODE)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} can't be made private to this user ({error.strerror}): others may read what is in it"
    return ""


def open_folder(path: Path) -> str:
    """A sentence when others may read or replace what is made in this folder, else "".

    On Windows SQLite's journal has the access list of the folder from its first moment.
    """
    if sys.platform == "win32":
        try:
            if readers := access.others_with_access(path):
                return (
                    f"what is made in {path} can be read by {', '.join(readers)}: take another folder, or close this "
                    f"one with {access.closing_commands(path, access.FULL, folder=True)}"
                )
            if exposure := access.exposure(str(path / "_")):  # everybody may make a folder in ProgramData
                return f"{exposure}, so that others may come to read what is made in {path}: take another folder"
        except OSError as error:
            return f"the access list of {path} cannot be read ({error.strerror}): others may read what is made in it"
        return ""
    try:
        fault = fault_of(path.stat())
    except OSError:
        return ""  # whoever makes a file in it says why that can't be done
    return f"{path}: {fault}" if fault else ""


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
        max_bytes: int = 10 << 20,
        files: int = 5,
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
