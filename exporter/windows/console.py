"""What ends a process from its console: it calls a function, on a thread of its own.

Ctrl-C, Ctrl-Break, and a console window that is closed are console events [HandlerRoutine]. Python's own handlers of
signals would not do: they run on the main thread, whose waits for a lock or an event no signal ends on Windows.

When the handler returns from the last one, Windows ends the process, and at the latest 5 s after it began
[HandlerRoutine, Timeouts]. So it stays for most of that time: the process ends by itself before. The end of a session
is no console event for a process that has loaded user32.dll, as pywin32 does [SetConsoleCtrlHandler, Remarks]: it ends
the process as a crash does. What outlives a logoff is the service.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final

GRACE_SECONDS: Final = 4.5
"""How long a handler stays where the process ends when it returns."""


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
