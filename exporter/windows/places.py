"""The folder of this program below ProgramData, and the names of what is in it.

Names are joined as Windows joins them, on every system: the documentation is made on Linux.
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
"""Names that mean a device in every folder, whatever comes after a dot [Naming files, paths, and namespaces]."""
_SHORT: Final = re.compile(r"[^.]{1,6}~[0-9]{1,6}(\.[^.]{0,3})?")
"""What an 8.3 name may look like, by which Windows finds a file of another name."""
NO_SHARE: Final = "the outbox's journal, shared memory, works on no share"
_MAX_NAME: Final = 255
_NAME_SURROGATE: Final = 0x20000000
"""The bit of a reparse tag that stands for another name, as a junction does [IsReparseTagNameSurrogate]."""
SHARING_VIOLATION: Final = 32
"""ERROR_SHARING_VIOLATION: another program has the file open and lets nobody else do this with it."""
FILE_NOT_FOUND: Final = 2
"""ERROR_FILE_NOT_FOUND: the folder was found, and no such name in it [System error codes]."""


def program_data(environ: Mapping[str, str]) -> str:
    r"""`%ProgramData%\azure-scheduled-events-exporter`, below `C:\ProgramData` where the variable is no local folder.

    Names of variables have no case there.
    """
    base = next((value for name, value in environ.items() if name.upper() == "PROGRAMDATA"), "")
    return ntpath.join(base if is_on_a_drive(base) else _USUAL, FOLDER)


def is_on_a_drive(path: str) -> bool:
    r"""Whether the path begins with a drive and its root, as `C:\`.

    Not `C:name`, of the working directory of that drive, and not `\name`, of the drive that is current.
    """
    return path[:1].isascii() and path[:1].isalpha() and path[1:_DRIVE_AND_ROOT] in (":\\", ":/")


def is_fixed(path: str) -> bool:
    r"""Whether the path means the same file whatever the working directory and the drive are.

    So it begins with a drive and its root (`C:\`), or names a share (`\\server\share\`), a device or a literal path
    (`\\.\`, `\\?\`). Python's own `isabs` has counted `\name` in until 3.13.
    """
    return is_on_a_drive(path) or path.replace("/", "\\").startswith("\\\\")


def is_on_network(path: str) -> bool:
    r"""Whether the path is one of a share, `\\server\share\` or `\\?\UNC\server\share\`.

    Of a drive that is a share under a letter only its real path is one (`os.path.realpath`).
    """
    text = path.replace("/", "\\")
    literal = text[4:] if text.startswith("\\\\?\\") else ""
    return literal.upper().startswith("UNC\\") if literal else text.startswith("\\\\") and text[2:4] != ".\\"


def is_own_name(path: str) -> bool:
    r"""Whether the path names one file and no other, so that "not found" is true of the file that a person makes there.

    Not so a device (`NUL`, `com1.txt`), a name or a folder with a dot or a space at its end, which Windows drops, an
    alternate data stream (`hold:stream`), a wildcard, an 8.3 name (`HOLDFI~1`), and what is in no folder of a file
    system (`\\.\`). Folders count since an event's id may be one of them: `ID.` would find the files of `ID`.
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
    """Whether Windows makes something else of this part of a path: a device, or a name without its end."""
    return bool(_DEVICE.match(part)) or (part[-1:] in (".", " ") and part not in (".", ".."))


def is_link(path: str) -> bool:
    """Whether the path itself is a symbolic link, or a junction, which every user can make. Raises OSError."""
    found = os.lstat(path)
    return stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0) & _NAME_SURROGATE)


def is_not_found(path: str) -> bool:
    """Whether Windows itself says of the path that its folder has no such name, and nothing less clear.

    `os.lstat` says so too of a file that it may not open in a folder that does not list it, as a share with
    access-based enumeration has them: it then looks through the folder. Elsewhere than on Windows: False.
    """
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone

        try:
            win32file.GetFileAttributesEx(os.fspath(path))
        except pywintypes.error as error:
            return bool(error.winerror == FILE_NOT_FOUND)
    return False


def is_in_use(path: str) -> bool:
    """Whether another program has the file open and keeps it from being removed. Elsewhere than on Windows: False.

    To replace such a file fails with ERROR_ACCESS_DENIED, as it does without the right to; to open it for removal fails
    with that only without the right.
    """
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # of Windows alone
        import win32con  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone

        shared = win32con.FILE_SHARE_READ | win32con.FILE_SHARE_WRITE | win32con.FILE_SHARE_DELETE
        flags = win32file.FILE_FLAG_OPEN_REPARSE_POINT | win32file.FILE_FLAG_BACKUP_SEMANTICS
        try:
            win32file.CreateFile(path, win32con.DELETE, shared, None, win32con.OPEN_EXISTING, flags, None).Close()
        except pywintypes.error as error:
            return bool(error.winerror == SHARING_VIOLATION)
    return False
