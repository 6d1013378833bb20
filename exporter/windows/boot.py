"""The id of this boot of Windows: the number that the loader of the operating system gave it.

`KUSER_SHARED_DATA` is a page that the kernel maps into every process, at the same address on every processor. Its
`BootId` is the "boot sequence, incremented for each boot attempt by the OS loader" [KUSER_SHARED_DATA]: one number for
the whole of a boot, whatever is done to the clock, over sleep and hibernation too, and another one after each restart.

What is not taken, since it can tell of a reboot that was not: the time of the boot, and now less the time since it
(GetTickCount64), move with the clock; boot time less its bias (NtQuerySystemInformation) is undocumented, and so is
whether each way of setting the clock moves both by the same. The loader's GUID (SystemBootEnvironmentInformation) can
stay the same over a restart. The registry's `PrefetchParameters\\BootId` is the same number, of a service that servers
may have switched off.

[KUSER_SHARED_DATA]: https://learn.microsoft.com/windows-hardware/drivers/ddi/ntddk/ns-ntddk-kuser_shared_data
"""

from __future__ import annotations

import errno
import struct
import sys
from typing import Final

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
