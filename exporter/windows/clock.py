"""How fast Windows lets its wall clock run: what W32Time, or another program, has set to correct it little by little.

W32Time sets a clock that is far off, and lets one that is a little off run faster or slower until it is right, by up to
half of its rate [W32Time]. `time.monotonic` does not follow, unlike Linux's, so the two clocks part without a step.

ctypes, since pywin32 has no function for it (its win32api ends with SetSystemTime).

[W32Time]: https://learn.microsoft.com/windows-server/networking/windows-time-service/windows-time-service-tools-and-settings
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any, Final

FASTEST: Final = 0.5
"""The most by which W32Time lets the clock run faster or slower, in seconds per second."""


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
