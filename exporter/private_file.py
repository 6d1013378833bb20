"""Files that are for their owner alone: made so whatever the umask is, and narrowed where they were there with more."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Final

MODE: Final = 0o600


def make_private(path: Path) -> str:
    """Makes the file, empty, where none is; narrows it where one is. Raises OSError when it can't be made."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(path, flags, MODE)
    except FileExistsError:
        return narrow(path)
    own(descriptor)
    os.close(descriptor)
    return narrow(path)


def own(descriptor: int) -> None:
    """Gives a file that we have just made exactly that mode: the umask may have taken from its owner too."""
    if hasattr(os, "fchmod"):
        with contextlib.suppress(OSError):  # a file system without modes
            os.fchmod(descriptor, MODE)


def narrow(path: Path) -> str:
    """Takes from a file that is there what others may do with it. A sentence when that can't be done, else nothing.

    By its name and never by opening it: to close a descriptor of a database would end the locks that SQLite holds on it
    in this process. A link, and what is no file, is left alone.
    """
    if sys.platform == "win32":  # there the folder's access list says it
        return ""
    try:
        found = os.lstat(path).st_mode
        if stat.S_ISREG(found) and stat.S_IMODE(found) & ~MODE:
            os.chmod(path, stat.S_IMODE(found) & MODE)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} can't be made private to this user ({error.strerror}): others may read what is in it"
    return ""
