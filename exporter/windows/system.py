"""Windows: boot id, clock rate, resource usage of this process, file locks, and console events.

**Boot id.** The number that the operating system's loader gave this boot. The kernel maps the page `KUSER_SHARED_DATA`
into every process, at the same address on every processor. Its `BootId` is the "boot sequence, incremented for each
boot attempt by the OS loader" [KUSER_SHARED_DATA]: the same number for the whole boot, even if the clock is set, during
sleep, and during hibernation; another number after each restart.

Alternatives that could report a reboot that didn't happen, or miss one: the boot time, and the current time minus
uptime (GetTickCount64), move with the clock. Boot time minus its bias (NtQuerySystemInformation) is undocumented. The
loader's GUID (SystemBootEnvironmentInformation) can stay the same over a restart. The registry's
`PrefetchParameters\\BootId` is the same number, but of a service that can be disabled on servers.

**Clock rate.** W32Time, or another program, can change the rate of the clock to correct it gradually. W32Time sets a
clock that is far off; if the clock is a little off, it runs faster or slower, by up to half of its rate, until it is
right [W32Time]. `time.monotonic` doesn't follow the rate (on Linux it does), so the two clocks diverge without a step.
This uses ctypes, since pywin32 has no function for it.

**Lock.** On the first byte of a file [LockFileEx]. `msvcrt.locking` has the same `errno` for a lock held by another
process and for a file that can't be locked.

**Console.** Ctrl-C, Ctrl-Break, and closing the console window are console events; Windows calls the handler on a
separate thread [HandlerRoutine]. Python's signal handlers don't work here: they run on the main thread, and on Windows
no signal interrupts its waits for a lock or an event.

When the handler of a close event returns, and at the latest 5 s after it was called, Windows ends the process
[HandlerRoutine, Timeouts]. So the handler waits for most of that time, and the process ends by itself before. The end
of a session is not a console event for a process that has loaded user32.dll, as pywin32 does [SetConsoleCtrlHandler,
Remarks]: it ends the process like a crash. Only a service survives a logoff.

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
"""Windows 10 1607 and Windows Server 2016, the first versions with `BootId`; older ones have padding there. The version
is read from the page, since GetVersionEx returns an older version to a program without a manifest."""
_NO_BUILD_FLAGS: Final = 0x0FFFFFFF  # the upper four bits distinguish checked and free builds
FASTEST: Final = 0.5
"""The maximum correction of the clock rate by W32Time, in seconds per second."""
GRACE_SECONDS: Final = 4.5
"""How long a handler waits if Windows ends the process when it returns."""
LOCK_VIOLATION: Final = 33
IO_PENDING: Final = 997


def boot_id(page: bytes) -> str:
    """Return the boot id in the bytes from `shared_page`; "" if there is none.

    0 counts as none: Wine's loader doesn't count boots.
    """
    if len(page) < _END:
        return ""
    major, build, boot = (struct.unpack_from("<I", page, offset)[0] for offset in (_MAJOR, _BUILD, _BOOT))
    return f"windows-{boot}" if (major, build & _NO_BUILD_FLAGS) >= _FIRST and boot else ""


def shared_page() -> bytes:
    """Return the shared page up to the boot id. Raises OSError on other systems."""
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415  # on other systems, the address is invalid

        return ctypes.string_at(_ADDRESS, _END)
    raise OSError(errno.ENOSYS, "this is not Windows")


def slew_reader(library: Callable[[str], Any] | None = None) -> Callable[[], float]:
    """Return a function that reads the current correction of the wall clock's rate, in seconds per second.

    That function raises OSError if the system doesn't report the rate. `library` loads a system library by name.
    Raises OSError on other systems.
    https://learn.microsoft.com/windows/win32/api/sysinfoapi/nf-sysinfoapi-getsystemtimeadjustmentprecise
    """
    import ctypes  # noqa: PLC0415  # as in the observer: an interpreter without it still measures

    load = library or _library
    words: type[ctypes.c_uint32] | type[ctypes.c_uint64]
    try:
        # Windows 10; W32Time uses it.
        read_rate, words = load("kernelbase").GetSystemTimeAdjustmentPrecise, ctypes.c_uint64
    except (AttributeError, OSError):
        read_rate, words = load("kernel32").GetSystemTimeAdjustment, ctypes.c_uint32

    def read() -> float:
        adjustment, increment, disabled = words(), words(), ctypes.c_int()
        if not read_rate(ctypes.byref(adjustment), ctypes.byref(increment), ctypes.byref(disabled)):
            raise OSError(errno.EIO, "GetSystemTimeAdjustment failed")
        return slew(adjustment.value, increment.value, bool(disabled.value))

    return read


def slew(adjustment: int, increment: int, disabled: bool) -> float:
    """Return the clock correction for the numbers of GetSystemTimeAdjustment, in seconds per second.

    `adjustment` is added to the clock for each `increment` that passes, unless `disabled`. The result has no sign:
    which of the two is larger for a faster clock is documented for only one of the two functions. Raises OSError for
    invalid numbers.
    """
    if disabled:
        return 0.0
    if increment <= 0:
        raise OSError(errno.EINVAL, f"GetSystemTimeAdjustment returned {adjustment} for each {increment}")
    return abs(adjustment / increment - 1)


def _library(name: str) -> Any:
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415  # as above

        return ctypes.WinDLL(name)
    raise OSError(errno.ENOSYS, "this is not Windows")


class ProcessUsage(Struct, frozen=True):
    """Resource usage of a process: CPU seconds (user and system), bytes resident and committed, POSIX start time."""

    cpu_seconds: float
    resident_bytes: int
    virtual_bytes: int
    start_time: float


def process_usage() -> ProcessUsage:
    """Return the resource usage of this process [GetProcessMemoryInfo, GetProcessTimes]. Raises OSError."""
    if sys.platform == "win32":
        import pywintypes  # noqa: PLC0415  # only on Windows
        import win32api  # noqa: PLC0415  # only on Windows
        import win32process  # noqa: PLC0415  # only on Windows

        process = win32api.GetCurrentProcess()
        try:
            memory = win32process.GetProcessMemoryInfo(process)
            started = win32process.GetProcessTimes(process)["CreationTime"].timestamp()
        except pywintypes.error as error:
            raise OSError(0, error.strerror, None, error.winerror) from error
        return ProcessUsage(time.process_time(), memory["WorkingSetSize"], memory["PagefileUsage"], started)
    raise OSError("this is not Windows")


def is_lock_held(winerror: int) -> bool:
    """Return whether the error means that another process holds the lock; after other errors that's unknown."""
    return winerror in (LOCK_VIOLATION, IO_PENDING)


def lock(descriptor: int) -> None:
    """Acquire the lock without waiting. Raises BlockingIOError if another process holds it, and OSError."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # only on Windows

        import pywintypes  # noqa: PLC0415  # only on Windows
        import win32con  # noqa: PLC0415  # only on Windows
        import win32file  # noqa: PLC0415  # only on Windows

        flags = win32con.LOCKFILE_EXCLUSIVE_LOCK | win32con.LOCKFILE_FAIL_IMMEDIATELY
        try:
            win32file.LockFileEx(msvcrt.get_osfhandle(descriptor), flags, 1, 0, pywintypes.OVERLAPPED())
        except pywintypes.error as error:
            if is_lock_held(error.winerror):
                raise BlockingIOError(error.strerror) from error
            raise OSError(0, error.strerror, None, error.winerror) from error


def unlock(descriptor: int) -> None:
    """Release the lock at once; after closing the file, Windows may release it later. Raises OSError."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # only on Windows

        import pywintypes  # noqa: PLC0415  # only on Windows
        import win32file  # noqa: PLC0415  # only on Windows

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
    """Call `stop` each time the console asks this process to end. Return a function that undoes this. Only on Windows.

    `stop` must return at once, and may be called more than once, on any thread.
    """
    if sys.platform == "win32":
        import win32api  # noqa: PLC0415  # only on Windows

        handle = event_handler(stop)
        win32api.SetConsoleCtrlHandler(handle, True)
        return lambda: win32api.SetConsoleCtrlHandler(handle, False)
    raise NotImplementedError("console events exist only on Windows")


def event_handler(stop: Callable[[], None], pause: Callable[[float], None] = time.sleep) -> Callable[[int], bool]:
    """Return a handler of console events. It returns True ("handled"), so that no other handler ends the process."""

    def handle(event: int) -> bool:
        if event == ConsoleEvent.LOGOFF:
            return True  # services get it at the logoff of any user [HandlerRoutine]
        stop()
        if event in (ConsoleEvent.CLOSE, ConsoleEvent.SHUTDOWN):
            pause(GRACE_SECONDS)
        return True

    return handle
