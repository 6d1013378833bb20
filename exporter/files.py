"""Ownership, reading, and privacy of files.

**Ownership.** A file's owner can change it at any time, so this process trusts only files that belong to its user or to
root. This applies to files that control the agent, contain its secrets, or are written by it: settings, the web-config
file, certificates and keys, the outbox, a recording. Files in a mounted ConfigMap or Secret belong to root, systemd's
credentials to root or the service's user. On Windows `windows.access` checks owners; here every file passes.

**Small edited files** are read completely up to a limit, in the encodings that editors write:

    decoded(read_capped(path, limit))        the text
    not_ascii(read_capped(path, limit))      for a file that a library reads as ASCII only

PowerShell 5 writes UTF-16 with a byte order mark for redirected output (`>`, `Out-File`), and UTF-8 with a mark for
`-Encoding UTF8` [about_Character_Encoding]. Both are accepted in files, but not in data from the network.

**Private files** are readable only by their owner: created with that mode regardless of the umask, and narrowed if they
had a wider one. On Windows an access list has that role: the system, its administrators, and the process's user.
`RotatingFile` is a file of lines that is rotated by size: a service's log, and the recording.
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

Rename = Callable[[Path, Path], None]
"""A function that replaces an existing file with the new name, and raises OSError."""

ROOT: Final = 0
RETRY_SHARE: Final = 10
"""A file that can't be renamed grows by its maximum size divided by this, before the next attempt."""
MOST_TIMES: Final = 10
"""A file that can't be renamed grows to this many times its maximum size. Further lines are rejected."""

# Readable too: the last byte shows whether the last line is complete.
_FLAGS: Final = (os.O_RDWR | os.O_APPEND) + sum(
    getattr(os, name, 0)
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")  # those that this system has
)
MODE: Final = 0o600
"""Read and write for the owner, nothing for others."""
_FOLDER_MODE: Final = 0o750
_UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HOW_TO_SAVE: Final = "save it as UTF-8, in PowerShell with `Set-Content -Encoding UTF8`"


def fault_of(status: os.stat_result) -> str:
    """Return the end of an error message about a file's untrusted owner, with the remedy; "" if it is trusted."""
    if sys.platform == "win32" or status.st_uid in (ROOT, os.geteuid()):
        return ""
    # Numbers, because the lookup of names can block on a directory service.
    return (
        f"it belongs to user {status.st_uid}, who can change it at any time; change its owner to root or to user "
        f"{os.geteuid()}, which runs this process (chown)"
    )


def refuse_foreign(path: str | os.PathLike[str]) -> None:
    """Raise PermissionError if a file at the path, or a link there or its target, belongs to another user."""
    try:
        statuses = [os.lstat(path), os.stat(path)]
    except (OSError, ValueError):
        return  # opening it raises the same error
    for status in statuses:
        if not stat.S_ISDIR(status.st_mode) and (fault := fault_of(status)):
            raise PermissionError(errno.EPERM, fault, os.fspath(path))


class TooLarge(Exception):
    """A file that exceeds its limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {limit} bytes")


class WrongEncoding(Exception):
    """A file with unreadable text. The message names what was expected and found, and quotes nothing of the text."""


def read_trusted(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read settings or secrets as `read_capped`; also raise PermissionError if the file belongs to another user."""
    return read_capped(path, limit, trusted=True)


def read_capped(path: str | os.PathLike[str], limit: int, *, trusted: bool = False) -> bytes:
    """Return the content of a file of at most `limit` bytes.

    Reads at most one byte more, because `path` may name an endless device. Raises `TooLarge`, OSError, or ValueError
    for an unusable path. With `trusted` also PermissionError if the file belongs to another user.
    """
    try:
        with open(path, "rb") as file:
            if trusted and (fault := fault_of(os.fstat(file.fileno()))):
                raise PermissionError(errno.EPERM, fault)
            content = file.read(limit + 1)
    except PermissionError:
        if os.path.isdir(path):  # Windows reports a directory as PermissionError
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path)) from None
        raise
    if len(content) > limit:
        raise TooLarge(limit)
    return content


def decoded(content: bytes) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark; without the mark.

    Raises `WrongEncoding`.
    """
    try:
        text = in_utf8(content).decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongEncoding(f"expected UTF-8, found an invalid byte at offset {error.start}; {_HOW_TO_SAVE}") from None
    if "\0" in text:
        raise WrongEncoding(f"expected text, found a NUL character; {_HOW_TO_SAVE}")
    return text


def in_utf8(content: bytes, errors: str = "strict") -> bytes:
    """Return the text in UTF-8 without a byte order mark; content without a mark is returned unchanged.

    `errors` controls the handling of damaged UTF-16, as for `bytes.decode`. Raises `WrongEncoding` for damaged UTF-16,
    and for UTF-16 without a mark, where every second byte of ASCII text is NUL.
    """
    if content.startswith(codecs.BOM_UTF8):
        return content.removeprefix(codecs.BOM_UTF8)
    if content.startswith(_UTF16_MARKS):
        try:
            return content.decode("utf-16", errors).encode("utf-8", "replace")
        except UnicodeDecodeError as error:
            found = f"damaged UTF-16 at offset {error.start}"
            raise WrongEncoding(f"expected UTF-8, found {found}; {_HOW_TO_SAVE}") from None
    if _is_utf16_without_mark(content):
        raise WrongEncoding(f"expected UTF-8, found UTF-16 without a byte order mark; {_HOW_TO_SAVE}")
    return content


def _is_utf16_without_mark(content: bytes) -> bool:
    """Return whether exactly one of the first two bytes is NUL; both are after a power failure left zeros."""
    return content[:2].count(0) == 1


def not_ascii(content: bytes) -> str:
    """Return the end of an error message if the file isn't readable as ASCII; "" if it is."""
    if content.startswith(codecs.BOM_UTF8):
        found = "a byte order mark"
    elif content.startswith(_UTF16_MARKS) or _is_utf16_without_mark(content):
        found = "UTF-16"
    else:
        return ""
    return f"expected ASCII, found {found}; in PowerShell save it with `Set-Content -Encoding Ascii`"


def make_private(path: Path) -> str:
    """Create an empty private file, or narrow an existing one.

    Return a warning if others can still read it, else "". Raises OSError if it can't be created or belongs to another
    user.
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
    """Create the directory and its missing parents. Raises OSError.

    On Windows they are private, because SQLite's files next to a database inherit the directory's access list.
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
    """Set the mode of a new file to exactly `MODE`: the umask may have removed rights of its owner too."""
    if hasattr(os, "fchmod"):
        with contextlib.suppress(OSError):  # a file system without modes
            os.fchmod(descriptor, MODE)


def narrow(path: Path) -> str:
    """Remove the access of others to an existing file. Return a warning if that fails, else "".

    Uses the name and never opens the file: closing a descriptor of a database would release the locks that SQLite holds
    on it in this process. Links, special files, and files of another user stay unchanged.
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
        return f"{path}: cannot be made private to this user ({error.strerror}); others might be able to read it"
    return ""


def open_folder(path: Path) -> str:
    """Return a warning if others can read or replace new files in this directory, else "".

    On Windows SQLite's journal inherits the directory's access list.
    """
    if sys.platform == "win32":
        try:
            if readers := access.others_with_access(path):
                return (
                    f"{path}: new files in it are readable by {', '.join(readers)}; use another directory, or restrict "
                    f"this one with {access.closing_commands(path, access.FULL, folder=True)}"
                )
            if exposure := access.exposure(str(path / "_")):  # every user can create a directory in ProgramData
                return f"{exposure}, so others could gain access to new files in {path}; use another directory"
        except OSError as error:
            return f"{path}: the access list cannot be read ({error.strerror}); others might be able to read new files"
        return ""
    try:
        fault = fault_of(path.stat())
    except OSError:
        return ""  # creating a file in it raises the same error
    return f"{path}: {fault}" if fault else ""


class RotatingFile:
    """A private file of complete lines that is rotated by size: `path` becomes `path`.1, and that `path`.2.

    Creates a missing directory. On Windows Python opens the file with FILE_SHARE_READ and FILE_SHARE_WRITE: others can
    read and copy it during writes. Without FILE_SHARE_DELETE it can't be renamed while a reader has it open
    [CreateFileW]: then it grows beyond `max_bytes`, up to `MOST_TIMES` of it, and the rename is retried later. For one
    thread at a time.
    """

    def __init__(self, path: Path, max_bytes: int = 10 << 20, files: int = 5, *, rename: Rename = os.replace) -> None:
        """Keep at most `files` files of about `max_bytes` each."""
        self.path = path
        self._max = max_bytes
        self._count = files
        self._rename = rename
        self._descriptor: int | None = None
        self._size = 0
        self._full_at = max_bytes
        self._is_new = False
        """Whether nothing was written since the file was opened, except for a failed rename."""

    def write_line(self, line: bytes, opening: Callable[[], bytes] = bytes) -> None:
        """Append the whole line, or nothing.

        `opening` returns the bytes before the first line after the file was opened, also after an error; they are left
        out if both don't fit into one file. Raises OSError if the disk is full, `path` is not a regular file, or a
        reader prevents the rotation; the next line reopens the file.
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
                os.ftruncate(descriptor, self._size)  # remove the part written before the disk was full
            self.close()
            raise
        self._size += len(text)
        self._is_new = False

    def _opened_by(self, opening: Callable[[], bytes], line: bytes) -> bytes:
        text = opening() + line if self._is_new else line
        return text if len(text) <= self._max else line

    def close(self) -> None:
        """Close the file; the next line reopens it."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open(self) -> int:
        """Return the descriptor of the file at `path`; create it privately, or reopen it if it was moved or removed."""
        if self._descriptor is not None and _is_at(self._descriptor, self.path):
            return self._descriptor
        self.close()
        make_folder(self.path.parent)
        # Windows file systems without access lists are accepted: `check` warns about them.
        if (exposed := make_private(self.path)) and sys.platform != "win32":
            raise OSError(exposed)
        if self.path.is_symlink():  # for systems without O_NOFOLLOW, and for the message
            raise OSError(f"{self.path}: a link, which is not followed; replace it with a regular file")
        descriptor = os.open(self.path, _FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{self.path}: not a regular file; set another path")
            if fault := fault_of(status):
                raise OSError(f"{self.path}: {fault}")
            self._size = status.st_size
            if self._size:
                os.lseek(descriptor, -1, os.SEEK_END)
                if os.read(descriptor, 1) != b"\n":  # the process or the machine stopped during a write
                    self._size += os.write(descriptor, b"\n")
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._is_new = descriptor, True
        return descriptor

    def _rotate(self, needed: int) -> int:
        """Return the descriptor of a new file at `path`, or of the full one if it can't be renamed now.

        Raises OSError, also if the full file can't grow by the `needed` bytes.
        """
        was_new = self._is_new
        self.close()  # Windows renames no open file
        numbers = range(1, self._count)
        # Fill a name that a failed attempt left free, so that repeated attempts don't drop the oldest files.
        last = next((number for number in numbers if not self._numbered(number).exists()), self._count - 1)
        try:
            for number in range(last, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._rename(self._numbered(number - 1), self._numbered(number))
            if self._count == 1:
                os.unlink(self.path)
            self._full_at = self._max
        except OSError:  # a reader has one of them open
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
