"""What this process uses, where there is no /proc."""

from __future__ import annotations

import sys
import time

from msgspec import Struct


class ProcessUsage(Struct, frozen=True):
    """Seconds of CPU, user and system; bytes in memory and committed; POSIX seconds of its start."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    start_time: float


def process_usage() -> ProcessUsage:
    """What this process has used until now [GetProcessMemoryInfo, GetProcessTimes]. Raises OSError."""
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # Windows alone
        import win32api  # noqa: PLC0415  # Windows alone
        import win32process  # noqa: PLC0415  # Windows alone

        process = win32api.GetCurrentProcess()
        try:
            memory = win32process.GetProcessMemoryInfo(process)
            started = win32process.GetProcessTimes(process)["CreationTime"].timestamp()
        except pywintypes.error as error:
            raise OSError(0, error.strerror, None, error.winerror) from error
        return ProcessUsage(time.process_time(), memory["WorkingSetSize"], memory["PagefileUsage"], started)
    raise OSError("no Windows")
