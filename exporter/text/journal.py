"""systemd's journal behind standard error: each line begins with its priority (sd-daemon(3)).

Without it every line of a service has priority 6, info, and who asks the journal for warnings sees none of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, TextIO

from exporter.choices import LogLevel

PREFIXES: Final[Mapping[LogLevel, str]] = {"debug": "<7>", "info": "<6>", "warn": "<4>", "error": "<3>"}
"""What the journal takes from the beginning of a line (SyslogLevelPrefix=) and keeps as its PRIORITY."""


def is_journal(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the stream is the journal's.

    JOURNAL_STREAM has the device and inode of the stream that a service was started with [systemd.exec(5)]. What was
    redirected since, to a file or a pipe, has others.
    """
    named = environ.get("JOURNAL_STREAM", "")
    if not named or stream is None:
        return False
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or without a descriptor
        return False
    return named == f"{status.st_dev}:{status.st_ino}"
