"""Run a command in a separate console, and send that console Ctrl-C or Ctrl-Break. Only on Windows.

python -m tests.support.console EVENT COMMAND ARGUMENT...

The command inherits standard output and error. The event (0 or 1) is sent when a line arrives on standard input. The
exit code is the command's, or UNDELIVERED if the system can't send the event (Wine has no Ctrl-Break).
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

UNDELIVERED: Final = 77


def main(event: int, command: list[str]) -> int:
    if sys.platform == "win32":
        import win32api
        import win32console

        win32console.FreeConsole()
        win32console.AllocConsole()
        win32api.SetConsoleCtrlHandler(lambda _: True, True)  # only the command should get it
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            sys.stdin.readline()
            try:
                win32api.GenerateConsoleCtrlEvent(event, 0)  # to all that share the console
            except win32api.error:
                process.kill()
                return UNDELIVERED
            return process.wait(60)
    raise NotImplementedError("consoles are Windows'")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
