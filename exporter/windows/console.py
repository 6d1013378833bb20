"""What ends a process from its console or with its session: each calls a function, on a thread of its own.

- Ctrl-C, Ctrl-Break, and a console window that is closed are console events [HandlerRoutine]. Python's own handlers of
  signals would not do: they run on the main thread, whose waits for a lock or an event no signal ends on Windows.
- A user who logs off and a machine that shuts down tell a window, hidden here: a process that has loaded user32.dll, as
  pywin32 and OpenSSL do, gets no console event for them [SetConsoleCtrlHandler, Remarks; WM_ENDSESSION].

When a handler returns from one of the last three, Windows ends the process, and at the latest 5 s after it began
[HandlerRoutine, Timeouts; HungAppTimeout]. So it stays for most of that time: the process ends by itself before.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Final

GRACE_SECONDS: Final = 4.5
"""How long a handler stays where the process ends when it returns."""
_START_SECONDS: Final = 2.0
"""How long the window may take to be made, before it is given up at the end."""


class ConsoleEvent(IntEnum):
    """The control signals of a console [HandlerRoutine]."""

    CTRL_C = 0
    CTRL_BREAK = 1
    CLOSE = 2
    LOGOFF = 5
    SHUTDOWN = 6


def watch(stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` whenever the console or the end of the session ends this process. Returns what undoes that.

    On Windows alone. `stop` returns at once, may be called more than once, and on any thread.
    """
    if sys.platform == "win32":
        import win32api  # noqa: PLC0415  # on Windows alone
        import win32console  # noqa: PLC0415  # likewise

        handle = event_handler(stop)
        win32api.SetConsoleCtrlHandler(handle, True)
        # Who has no console window is in nobody's session: a part of a service, say, or of a test.
        has_window = win32console.GetConsoleWindow()  # type: ignore[no-untyped-call]  # the stubs' own gap
        session = SessionWindow(session_end_handler(stop)) if has_window else None

        def undo() -> None:
            win32api.SetConsoleCtrlHandler(handle, False)
            if session is not None:
                session.close()

        return undo
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


def session_end_handler(
    stop: Callable[[], None], pause: Callable[[float], None] = time.sleep
) -> Callable[[int, int, int, int], int]:
    """The handler of WM_ENDSESSION, which says by its first parameter whether the session ends after all."""

    def handle(_window: int, _message: int, ends: int, _reason: int) -> int:
        if ends:
            stop()
            pause(GRACE_SECONDS)
        return 0

    return handle


class SessionWindow:
    """A top-level window that is never shown, for WM_ENDSESSION, and a thread that hands it its messages."""

    def __init__(self, on_end: Callable[[int, int, int, int], int]) -> None:
        self._on_end = on_end
        self._window = 0
        self._made = threading.Event()
        threading.Thread(target=self._run, name="session", daemon=True).start()

    def _run(self) -> None:
        if sys.platform == "win32":
            import win32api  # noqa: PLC0415  # on Windows alone
            import win32con  # noqa: PLC0415  # likewise
            import win32gui  # noqa: PLC0415  # likewise

            instance = win32api.GetModuleHandle(None)
            name = f"azure-scheduled-events-exporter-{id(self):x}"
            try:
                kind = win32gui.WNDCLASS()
                kind.hInstance = instance  # type: ignore[misc]  # the stubs call it read-only
                kind.lpszClassName = name  # type: ignore[misc]  # likewise
                kind.lpfnWndProc = {  # type: ignore[misc]  # likewise
                    win32con.WM_ENDSESSION: self._on_end,
                    win32con.WM_DESTROY: _quit,
                }
                atom = win32gui.RegisterClass(kind)
                self._window = win32gui.CreateWindow(atom, name, 0, 0, 0, 0, 0, 0, 0, instance, None)
            except win32gui.error:
                return  # no desktop, hence no session that could end
            finally:
                self._made.set()
            if self._window:
                win32gui.PumpMessages()
            win32gui.UnregisterClass(atom, instance)

    def handle(self) -> int:
        """The window's handle, 0 where none could be made."""
        self._made.wait(_START_SECONDS)
        return self._window

    def close(self) -> None:
        """Destroy the window, which ends its thread."""
        if sys.platform == "win32" and self.handle():
            import win32con  # noqa: PLC0415  # on Windows alone
            import win32gui  # noqa: PLC0415  # likewise

            with contextlib.suppress(win32gui.error):
                win32gui.PostMessage(self._window, win32con.WM_CLOSE, 0, 0)


def _quit(_window: int, _message: int, _first: int, _second: int) -> int:
    if sys.platform == "win32":
        import win32gui  # noqa: PLC0415  # on Windows alone

        win32gui.PostQuitMessage(0)
    return 0
