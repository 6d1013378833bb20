"""Files for their owner alone: made with that mode whatever the umask is, and narrowed where they had a wider one."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import Final

MODE: Final = 0o600
"""Read and write for the owner, nothing for others."""


def make_private(path: Path) -> str:
    """Make the file, empty, or narrow the one that is there. Raises OSError when it can't be made.

    Returns a sentence when others may still read it, else "".
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)  # Windows has no such flag
    try:
        descriptor = os.open(path, flags, MODE)
    except FileExistsError:
        return narrow(path)
    own(descriptor)
    os.close(descriptor)
    return narrow(path)


def own(descriptor: int) -> None:
    """Give a file that was just made exactly `MODE`: the umask may have taken rights from its owner too."""
    if hasattr(os, "fchmod"):
        with contextlib.suppress(OSError):  # a file system without modes
            os.fchmod(descriptor, MODE)


def narrow(path: Path) -> str:
    """Take from an existing file what others may do with it. Returns a sentence when that can't be done, else "".

    By its name and never by opening it: to close a descriptor of a database would end the locks that SQLite holds on it
    in this process. A link, and what is no file, is left alone.
    """
    if sys.platform == "win32":  # there the folder's access list says it
        return ""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode) and stat.S_IMODE(mode) & ~MODE:
            os.chmod(path, stat.S_IMODE(mode) & MODE)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} can't be made private to this user ({error.strerror}): others may read what is in it"
    return ""
