"""The folder of this program in ProgramData, its contents, and properties of Windows paths.

Paths are joined by Windows' rules on every system, since the documentation is generated on Linux.
"""

from __future__ import annotations

import ntpath
import os
import re
import stat
import sys
from collections.abc import Mapping
from typing import Final

FOLDER: Final = "azure-scheduled-events-exporter"
CONFIG_FILE: Final = "config.toml"
OUTBOX_FILE: Final = "outbox.db"
LOG_FOLDER: Final = "log"
HOLD_FOLDER: Final = "hold"
HOLD_FILE: Final = "hold"
READY_FOLDER: Final = "ready"
EVENTS_FOLDER: Final = "events"
SECRETS_FOLDER: Final = "secrets"
_USUAL: Final = r"C:\ProgramData"
_DRIVE_AND_ROOT: Final = 3
"""Characters of `C:\\`."""
_DEVICE: Final = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|\Z)")
"""Names that mean a device in every folder, with any extension [Naming files, paths, and namespaces]."""
_SHORT: Final = re.compile(r"[^.]{1,6}~[0-9]{1,6}(\.[^.]{0,3})?")
"""The form of 8.3 names, by which Windows finds files with other names."""
NO_SHARE: Final = "the outbox's journal needs shared memory, which network shares do not support"
_MAX_NAME: Final = 255
_NAME_SURROGATE: Final = 0x20000000
"""The bit of reparse tags that represent another name, such as junctions [IsReparseTagNameSurrogate]."""
SHARING_VIOLATION: Final = 32
"""ERROR_SHARING_VIOLATION: another program has the file open and doesn't share this access."""
FILE_NOT_FOUND: Final = 2
"""ERROR_FILE_NOT_FOUND: the folder exists, and doesn't contain the name [System error codes]."""


def program_data(environ: Mapping[str, str]) -> str:
    r"""Return `%ProgramData%\azure-scheduled-events-exporter`, in `C:\ProgramData` if the variable isn't local.

    Names of variables are case-insensitive on Windows.
    """
    base = next((value for name, value in environ.items() if name.upper() == "PROGRAMDATA"), "")
    return ntpath.join(base if is_on_a_drive(base) else _USUAL, FOLDER)


def is_on_a_drive(path: str) -> bool:
    r"""Return whether the path starts with a drive and its root, for example `C:\`.

    False for `C:name` (relative to that drive's working directory) and `\name` (relative to the current drive).
    """
    return path[:1].isascii() and path[:1].isalpha() and path[1:_DRIVE_AND_ROOT] in (":\\", ":/")


def is_fixed(path: str) -> bool:
    r"""Return whether the path is independent of the working directory and the current drive.

    Such a path starts with a drive and its root (`C:\`), a share (`\\server\share\`), or the prefix of a device or a
    literal path (`\\.\`, `\\?\`). Python's `isabs` also accepts `\name` before 3.13.
    """
    return is_on_a_drive(path) or path.replace("/", "\\").startswith("\\\\")


def is_on_network(path: str) -> bool:
    r"""Return whether the path is on a share, `\\server\share\` or `\\?\UNC\server\share\`.

    For a mapped drive, pass the real path (`os.path.realpath`).
    """
    text = path.replace("/", "\\")
    literal = text[4:] if text.startswith("\\\\?\\") else ""
    return literal.upper().startswith("UNC\\") if literal else text.startswith("\\\\") and text[2:4] != ".\\"


def is_own_name(path: str) -> bool:
    r"""Return whether the path names exactly one file, so that "not found" is reliable for a file created there.

    False for a device (`NUL`, `com1.txt`), a file or directory name that ends in a dot or a space (Windows drops it),
    an alternate data stream (`hold:stream`), a wildcard, an 8.3 name (`HOLDFI~1`), and paths outside file systems
    (`\\.\`). Directory names matter since an event id can be one of them: `ID.` would find the files of `ID`.
    """
    text = path.replace("/", "\\")
    if text.startswith("\\\\.\\"):
        return False
    drive, rest = ntpath.splitdrive(text[4:] if text.startswith("\\\\?\\") else text)
    name = rest.rpartition("\\")[2]
    if (
        not 0 < len(name) <= _MAX_NAME
        or name[-1] in ". "
        or _SHORT.fullmatch(name)
        or any(ch in ':*?"<>|' or ch < " " for ch in rest)
    ):
        return False
    return not any(map(_is_changed, rest.split("\\"))) and "?" not in drive


def _is_changed(part: str) -> bool:
    """Return whether Windows changes the meaning of this part of a path: to a device, or to a name without its end."""
    return bool(_DEVICE.match(part)) or (part[-1:] in (".", " ") and part not in (".", ".."))


def is_link(path: str) -> bool:
    """Return whether the path is a symbolic link or a junction; any user can create a junction. Raises OSError."""
    found = os.lstat(path)
    return stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0) & _NAME_SURROGATE)


def is_not_found(path: str) -> bool:
    """Return whether Windows reports that the folder doesn't contain this name. On other systems: False.

    `os.lstat` also reports that for a file that it can't open in a folder that doesn't list it (a share with
    access-based enumeration), since it then searches the folder.
    """
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # only on Windows
        import win32file  # noqa: PLC0415  # only on Windows

        try:
            win32file.GetFileAttributesEx(os.fspath(path))
        except pywintypes.error as error:
            return bool(error.winerror == FILE_NOT_FOUND)
    return False


def is_in_use(path: str) -> bool:
    """Return whether another program has the file open in a way that prevents its removal. On other systems: False.

    Replacing such a file fails with ERROR_ACCESS_DENIED, as it does without permission. Opening it for removal fails
    with that error only without permission.
    """
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # only on Windows
        import win32con  # noqa: PLC0415  # only on Windows
        import win32file  # noqa: PLC0415  # only on Windows

        shared = win32con.FILE_SHARE_READ | win32con.FILE_SHARE_WRITE | win32con.FILE_SHARE_DELETE
        flags = win32file.FILE_FLAG_OPEN_REPARSE_POINT | win32file.FILE_FLAG_BACKUP_SEMANTICS
        try:
            win32file.CreateFile(path, win32con.DELETE, shared, None, win32con.OPEN_EXISTING, flags, None).Close()
        except pywintypes.error as error:
            return bool(error.winerror == SHARING_VIOLATION)
    return False
