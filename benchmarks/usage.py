"""What a process has used and holds, and how busy the machine is, as its system tells.

Windows has it in psapi, which pywin32 wraps: the agent itself never asks. Under Wine GetProcessTimes counts in
hundredths of a second, and what wineserver does for a process is nobody's.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used and holds. Seconds and bytes; `running` is the finest measure of CPU time that there is,
    `rss` on Windows the working set. What a system does not tell is 0."""

    at: float
    cpu: float
    running: float
    rss: int
    peak_rss: int
    threads: int = 0
    descriptors: int = 0


def usage(pid: int) -> Usage:
    """What the process has used by now, all its threads together."""
    if sys.platform == "win32":
        return _of_windows(pid)
    return _of_linux(pid)


def load_average() -> str:
    """How many processes want to run, a minute's mean; Windows does not count them."""
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
                continue  # the thread has ended meanwhile
        return Usage(
            at=time.monotonic(),
            cpu=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
            running=running / 1e9,
            rss=int(status["VmRSS"].split()[0]) * 1024,
            peak_rss=int(status["VmHWM"].split()[0]) * 1024,
            threads=int(status["Threads"]),
            descriptors=len(list((process / "fd").iterdir())),
        )
    raise NotImplementedError("asks /proc, which Linux has")


def _of_windows(pid: int) -> Usage:
    if sys.platform == "win32":
        import win32api  # noqa: PLC0415  # Windows alone has it
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
    raise NotImplementedError("asks psapi, which Windows has")
