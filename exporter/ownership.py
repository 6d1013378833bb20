"""Whose a file is. Its owner may change it at any time, so this process trusts only its own user's files and root's.

That is for files that decide what the agent does, that hold its secrets, or that it goes on writing: settings, the
web-config file, certificates and keys, the outbox, a recording. Files in a mounted ConfigMap or Secret are root's, and
systemd's credentials are root's or the service's own. On Windows, where `windows.access` judges owners, all pass here.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Final

ROOT: Final = 0


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
