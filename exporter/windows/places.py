"""The folder of this program below ProgramData, and the names of what is in it.

Names are joined as Windows joins them, on every system: the documentation is made on Linux.
"""

from __future__ import annotations

import ntpath
from collections.abc import Mapping
from typing import Final

FOLDER: Final = "azure-scheduled-events-exporter"
CONFIG_FILE: Final = "config.toml"
OUTBOX_FILE: Final = "outbox.db"
LOG_FOLDER: Final = "log"
HOLD_FOLDER: Final = "hold"
READY_FOLDER: Final = "ready"
SECRETS_FOLDER: Final = "secrets"
_USUAL: Final = r"C:\ProgramData"
_DRIVE_AND_ROOT: Final = 3
"""Characters of `C:\\`."""


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
