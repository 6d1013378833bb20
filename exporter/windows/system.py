"""What only Windows can be asked of this boot, its clock and this process, its locks on files, and its console.

**The boot** has the number that the loader of the operating system gave it. `KUSER_SHARED_DATA` is a page that the
kernel maps into every process, at the same address on every processor. Its `BootId` is the "boot sequence, incremented
for each boot attempt by the OS loader" [KUSER_SHARED_DATA]: one number for the whole of a boot, whatever is done to the
clock, over sleep and hibernation too, and another one after each restart.

What is not taken, since it can tell of a reboot that was not: the time of the boot, and now less the time since it
(GetTickCount64), move with the clock; boot time less its bias (NtQuerySystemInformation) is undocumented, and so is
whether each way of setting the clock moves both by the same. The loader's GUID (SystemBootEnvironmentInformation) can
stay the same over a restart. The registry's `PrefetchParameters\\BootId` is the same number, of a service that servers
may have switched off.

**The clock** may run at a rate that W32Time, or another program, has set to correct it little by little. W32Time sets a
clock that is far off, and lets one that is a little off run faster or slower until it is right, by up to half of its
rate [W32Time]. `time.monotonic` does not follow, unlike Linux's, so the two clocks part without a step. By ctypes,
since pywin32 has no function for it (its win32api ends with SetSystemTime).

**The lock** is on the first byte of a file [LockFileEx]. Not by `msvcrt.locking`, which has one `errno` for a lock that
another process has and for a file that can't be locked.

**The console** ends a process by events, each of which calls a function on a thread of its own.
Ctrl-C, Ctrl-Break, and a console window that is closed are console events [HandlerRoutine]. Python's own handlers of
signals would not do: they run on the main thread, whose waits for a lock or an event no signal ends on Windows.

When the handler returns from the last one, Windows ends the process, and at the latest 5 s after it began
[HandlerRoutine, Timeouts]. So it stays for most of that time: the process ends by itself before. The end of a session
is no console event for a process that has loaded user32.dll, as pywin32 does [SetConsoleCtrlHandler, Remarks]: it ends
the process as a crash does. What outlives a logoff is the service.

[KUSER_SHARED_DATA]: https://learn.microsoft.com/windows-hardware/drivers/ddi/ntddk/ns-ntddk-kuser_shared_data
[W32Time]: https://learn.microsoft.com/windows-server/networking/windows-time-service/windows-time-service-tools-and-settings
"""

from __future__ import annotations

import errno
import struct
import sys
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

_ADDRESS: Final = 0x7FFE0000
_BUILD: Final = 0x260
_MAJOR: Final = 0x26C
_BOOT: Final = 0x2C4
_END: Final = _BOOT + 4
BOOT_ID_ADDRESS: Final = _ADDRESS + _BOOT
"""Also in `deploy/windows/examples/handshake.ps1`."""
_FIRST: Final = (10, 14393)
"""Windows 10 1607 and Windows Server 2016: where `BootId` is, older versions have padding. The versions are read from
the page itself, since GetVersionEx gives a program without a manifest those of an older system."""
_NO_BUILD_FLAGS: Final = 0x0FFFFFFF  # the upper four bits tell a checked build from a free one
FASTEST: Final = 0.5
"""The most by which W32Time lets the clock run faster or slower, in seconds per second."""
GRACE_SECONDS: Final = 4.5
"""How long a handler stays where the process ends when it returns."""
LOCK_VIOLATION: Final = 33
IO_PENDING: Final = 997


def boot_id(page: bytes) -> str:
    """The id in the shared page's beginning, as `shared_page` reads it; empty where the page has none.

    A loader that counts nothing leaves 0 there (Wine's), which is no id.
    """
    if len(page) < _END:
        return ""
    major, build, boot = (struct.unpack_from("<I", page, offset)[0] for offset in (_MAJOR, _BUILD, _BOOT))
    return f"windows-{boot}" if (major, build & _NO_BUILD_FLAGS) >= _FIRST and boot else ""


def shared_page() -> bytes:
    """The shared page up to the boot's number. Raises OSError where this is not Windows."""
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415  # anywhere else the address is nobody's

        return ctypes.string_at(_ADDRESS, _END)
    raise OSError(errno.ENOSYS, "this is not Windows")


def slew_reader(library: Callable[[str], Any] | None = None) -> Callable[[], float]:
    """A function that reads by how much the wall clock runs faster or slower now, in seconds per second; 0.0 where it
    runs at its own rate.

    The function raises OSError where the system does not say. `library` loads one of the system's by its name. Raises
    OSError where this is not Windows.
    https://learn.microsoft.com/windows/win32/api/sysinfoapi/nf-sysinfoapi-getsystemtimeadjustmentprecise
    """
    import ctypes  # noqa: PLC0415  # as in the observer: an interpreter without it still measures

    load = library or _library
    words: type[ctypes.c_uint32] | type[ctypes.c_uint64]
    try:
        ask, words = load("kernelbase").GetSystemTimeAdjustmentPrecise, ctypes.c_uint64  # Windows 10; W32Time uses it
    except (AttributeError, OSError):
        ask, words = load("kernel32").GetSystemTimeAdjustment, ctypes.c_uint32

    def read() -> float:
        adjustment, increment, disabled = words(), words(), ctypes.c_int()
        if not ask(ctypes.byref(adjustment), ctypes.byref(increment), ctypes.byref(disabled)):
            raise OSError(errno.EIO, "GetSystemTimeAdjustment failed")
        return slew(adjustment.value, increment.value, bool(disabled.value))

    return read


def slew(adjustment: int, increment: int, disabled: bool) -> float:
    """What the numbers of GetSystemTimeAdjustment say: `adjustment` is added to the clock for each `increment` that
    passes, unless that is `disabled`. Raises OSError for numbers that mean nothing.

    Without a sign: which of the two is larger for a faster clock is documented for one of the two functions alone.
    """
    if disabled:
        return 0.0
    if increment <= 0:
        raise OSError(errno.EINVAL, f"GetSystemTimeAdjustment says {adjustment} for each {increment}")
    return abs(adjustment / increment - 1)


def _library(name: str) -> Any:
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415  # as above

        return ctypes.WinDLL(name)
    raise OSError(errno.ENOSYS, "this is not Windows")


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


def is_taken(winerror: int) -> bool:
    """Whether the error says that another process has the lock; anything else says that nobody knows."""
    return winerror in (LOCK_VIOLATION, IO_PENDING)


def lock(descriptor: int) -> None:
    """Take the lock, without waiting. Raises BlockingIOError when another has it, and OSError."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # of Windows alone

        import pywintypes  # noqa: PLC0415  # of Windows alone
        import win32con  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone

        flags = win32con.LOCKFILE_EXCLUSIVE_LOCK | win32con.LOCKFILE_FAIL_IMMEDIATELY
        try:
            win32file.LockFileEx(msvcrt.get_osfhandle(descriptor), flags, 1, 0, pywintypes.OVERLAPPED())
        except pywintypes.error as error:
            if is_taken(error.winerror):
                raise BlockingIOError(error.strerror) from error
            raise OSError(0, error.strerror, None, error.winerror) from error


def unlock(descriptor: int) -> None:
    """Give the lock back at once: Windows takes its time with a file that is closed. Raises OSError."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # of Windows alone

        import pywintypes  # noqa: PLC0415  # of Windows alone
        import win32file  # noqa: PLC0415  # of Windows alone

        try:
            win32file.UnlockFileEx(msvcrt.get_osfhandle(descriptor), 1, 0, pywintypes.OVERLAPPED())
        except pywintypes.error as error:
            raise OSError(0, error.strerror, None, error.winerror) from error


class ConsoleEvent(IntEnum):
    """The control signals of a console [HandlerRoutine]."""

    CTRL_C = 0
    CTRL_BREAK = 1
    CLOSE = 2
    LOGOFF = 5
    SHUTDOWN = 6


def watch(stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` whenever the console ends this process. Returns what undoes that.

    On Windows alone. `stop` returns at once, may be called more than once, and on any thread.
    """
    if sys.platform == "win32":
        import win32api  # noqa: PLC0415  # on Windows alone

        handle = event_handler(stop)
        win32api.SetConsoleCtrlHandler(handle, True)
        return lambda: win32api.SetConsoleCtrlHandler(handle, False)
    raise NotImplementedError("console events are Windows'")


def event_handler(stop: Callable[[], None], pause: Callable[[float], None] = time.sleep) -> Callable[[int], bool]:
    """The handler of console events. It returns True, "handled": no other handler ends the process instead."""

    def handle(event: int) -> bool:
        if event == ConsoleEvent.LOGOFF:
            return True  # it goes to services, at the logoff of any user [HandlerRoutine]
        stop()
        if event in (ConsoleEvent.CLOSE, ConsoleEvent.SHUTDOWN):
            pause(GRACE_SECONDS)
        return True

    return handle
