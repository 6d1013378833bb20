"""Files for their owner alone: made with that mode whatever the umask is, and narrowed where they had a wider one.

On Windows modes mean nothing; there the access list says the same: the system, its administrators, and the user that
this process runs as.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Final

from exporter.ownership import fault_of, refuse_foreign
from exporter.windows import access

MODE: Final = 0o600
"""Read and write for the owner, nothing for others."""
_FOLDER_MODE: Final = 0o750


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
