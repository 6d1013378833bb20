"""Which system the tests run on, and how a process is told to end there: by a signal, or by Ctrl-C to its console."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

WINDOWS: Final = sys.platform == "win32"

LINGER_NOT: Final = struct.pack("hh" if WINDOWS else "ii", 1, 0)
"""For SO_LINGER: the coming close resets the connection. Windows' `struct linger` is of two shorts."""

DRIVE: Final = "C:" if WINDOWS else ""
"""What stands before an absolute path of the tests, such as `{DRIVE}/run/hold`, so that it is one on either system."""

KILLED: Final = 1 if WINDOWS else -9
"""The exit code of a process after `kill()`: what subprocess gives TerminateProcess, or SIGKILL."""

CREATE_NO_WINDOW: Final = 0x08000000
OWN_CONSOLE: Final = CREATE_NO_WINDOW if WINDOWS else 0
"""`creationflags` of a process that `interrupt` and `terminate` shall reach: Ctrl-C goes to a whole console
([GenerateConsoleCtrlEvent]), so the process gets one for itself. On Linux they must be 0."""

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
"""A process that leaves its console for that of another one and presses a key there: only so is it pressed for that one
alone ([AttachConsole], [SetConsoleCtrlHandler])."""

AWAY_SECONDS: Final = 120.0
"""For a command to end by itself, on a busy machine too."""

CTRL_C: Final = 0
CTRL_BREAK: Final = 1
"""[GenerateConsoleCtrlEvent]. Wine 8 has no Ctrl-Break: ERROR_INVALID_HANDLE."""


def under_wine() -> bool:
    """Whether this Windows is Wine: its ntdll says so."""
    if sys.platform == "win32":
        import ctypes

        return hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")
    return False


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Ctrl-C: SIGINT, or on Windows the key itself; there the process was started with `OWN_CONSOLE`."""
    if WINDOWS:
        press(process, CTRL_C)
    else:
        process.send_signal(signal.SIGINT)


def terminate(process: subprocess.Popen[Any]) -> None:
    """What ends a process gently: SIGTERM, or on Windows, which has none, Ctrl-C."""
    if WINDOWS:
        press(process, CTRL_C)
    else:
        process.send_signal(signal.SIGTERM)


def press(process: subprocess.Popen[Any], key: int) -> None:
    """Press CTRL_C or CTRL_BREAK in the console of a process that was started with `OWN_CONSOLE`. Windows alone."""
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
    """Runs a command in a folder that has nothing to do with the checkout, its standard input at its end."""
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
