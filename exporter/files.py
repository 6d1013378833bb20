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
user that this process runs as.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import stat
import sys
from pathlib import Path
from typing import Final

from exporter.windows import access

ROOT: Final = 0
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
