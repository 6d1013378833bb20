"""The tests' operating system, and how a process is stopped there: by a signal, or by Ctrl-C to its console."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

WINDOWS: Final = sys.platform == "win32"

LINGER_NOT: Final = struct.pack("hh" if WINDOWS else "ii", 1, 0)
"""For SO_LINGER: the next close resets the connection. Windows' `struct linger` has two shorts."""

DRIVE: Final = "C:" if WINDOWS else ""
"""The prefix of an absolute path of the tests, such as `{DRIVE}/run/hold`, so that it is one on either system."""

KILLED: Final = 1 if WINDOWS else -9
"""The exit code of a process after `kill()`: what subprocess gives TerminateProcess, or SIGKILL."""

CREATE_NO_WINDOW: Final = 0x08000000
OWN_CONSOLE: Final = CREATE_NO_WINDOW if WINDOWS else 0
"""`creationflags` of a process for `interrupt` and `terminate`: Ctrl-C goes to a whole console
([GenerateConsoleCtrlEvent]), so the process gets a separate one. On Linux they must be 0."""

_PRESS: Final = """
import ctypes, sys
kernel = ctypes.WinDLL("kernel32", use_last_error=True)
kernel.FreeConsole()
if not kernel.AttachConsole(int(sys.argv[1])):
    sys.exit(f"AttachConsole: {ctypes.get_last_error()}")
kernel.SetConsoleCtrlHandler(None, True)
if not kernel.GenerateConsoleCtrlEvent(int(sys.argv[2]), 0):
    sys.exit(f"GenerateConsoleCtrlEvent: {ctypes.get_last_error()}")
"""
"""A process that leaves its console for that of another process and sends the key there: only then does only that
process get it ([AttachConsole], [SetConsoleCtrlHandler])."""

AWAY_SECONDS: Final = 120.0
"""Seconds for a command to end by itself, on a busy machine too."""

CTRL_C: Final = 0
CTRL_BREAK: Final = 1
"""[GenerateConsoleCtrlEvent]. Wine 8 has no Ctrl-Break: ERROR_INVALID_HANDLE."""


def under_wine() -> bool:
    """Return whether this Windows is Wine, from its ntdll."""
    if sys.platform == "win32":
        import ctypes

        return hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")
    return False


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Interrupt: SIGINT, or on Windows Ctrl-C, for a process that was started with `OWN_CONSOLE`."""
    if WINDOWS:
        press(process, CTRL_C)
    else:
        process.send_signal(signal.SIGINT)


def terminate(process: subprocess.Popen[Any]) -> None:
    """Stop a process gently: SIGTERM, or on Windows, which has none, Ctrl-C."""
    if WINDOWS:
        press(process, CTRL_C)
    else:
        process.send_signal(signal.SIGTERM)


def press(process: subprocess.Popen[Any], key: int) -> None:
    """Send CTRL_C or CTRL_BREAK to the console of a process that was started with `OWN_CONSOLE`. Only on Windows."""
    pressed = subprocess.run(
        [sys.executable, "-c", _PRESS, str(process.pid), str(key)],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert pressed.returncode == 0, pressed.stderr


def run_away(folder: str | Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder outside the checkout, with standard input at its end."""
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=AWAY_SECONDS,
        check=False,
    )
