"""The resources that a process uses, and the load of the machine.

On Windows, psapi (through pywin32) reports them; the agent itself doesn't use it. Under Wine, GetProcessTimes has a
resolution of 10 ms and doesn't include the work of wineserver.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a process uses, in seconds and bytes. `running` is the CPU time with the finest resolution;
    `rss` is the working set on Windows. Values that a system doesn't report are 0."""

    at: float
    cpu: float
    running: float
    rss: int
    peak_rss: int
    threads: int = 0
    descriptors: int = 0


def usage(pid: int) -> Usage:
    """Return the resources that all threads of a process have used so far."""
    if sys.platform == "win32":
        return _of_windows(pid)
    return _of_linux(pid)


def load_average() -> str:
    """Return the load average of one minute, or "unknown" on Windows."""
    if sys.platform == "win32":
        return "unknown"
    return f"{os.getloadavg()[0]:.2f}"


def _of_linux(pid: int) -> Usage:
    if sys.platform != "win32":
        process = Path(f"/proc/{pid}")
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        running = 0
        for task in (process / "task").iterdir():
            try:
                running += int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue  # the thread has ended
        return Usage(
            at=time.monotonic(),
            cpu=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            running=running / 1e9,
            rss=int(status["VmRSS"].split()[0]) * 1024,
            peak_rss=int(status["VmHWM"].split()[0]) * 1024,
            threads=int(status["Threads"]),
            descriptors=len(list((process / "fd").iterdir())),
        )
    raise NotImplementedError("needs /proc")


def _of_windows(pid: int) -> Usage:
    if sys.platform == "win32":
        import win32api  # noqa: PLC0415  # only on Windows
        import win32con  # noqa: PLC0415  # likewise
        import win32process  # noqa: PLC0415  # likewise

        access = win32con.PROCESS_QUERY_INFORMATION | win32con.PROCESS_VM_READ
        process = win32api.OpenProcess(access, False, pid)
        try:
            times, memory = win32process.GetProcessTimes(process), win32process.GetProcessMemoryInfo(process)
        finally:
            win32api.CloseHandle(process)
        cpu = (times["KernelTime"] + times["UserTime"]) / 10_000_000
        return Usage(time.monotonic(), cpu, cpu, memory["WorkingSetSize"], memory["PeakWorkingSetSize"])
    raise NotImplementedError("needs psapi")
