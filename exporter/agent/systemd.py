"""The service manager's notification protocol (sd_notify): one datagram a message, and nothing without a manager.

Our own because it is ten lines, and the library for it would be one more thing to install on ten thousand hosts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final

BEATS: Final = 3
"""Signs of life within the time that the manager waits for one."""
SHORTEST_SECONDS: Final = 0.05


class Notifier:
    """Tells systemd that we are ready, alive, stopping. Does nothing where NOTIFY_SOCKET is not set."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_seconds = _watchdog(environ)
        """How long the manager waits for a sign of life; 0 when it does not."""

    def ready(self, status: str) -> None:
        """The agent serves."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def alive(self) -> None:
        """A sign of life for the watchdog."""
        self._send("WATCHDOG=1")

    def watch(self, turning: Callable[[], bool], ended: threading.Event) -> None:
        """Signs of life as often as the manager wants them, until `ended`, as long as the loop is `turning`.

        On a thread of its own: a poll may rightly take longer than a manager is told to wait. Nothing without a manager
        that waits.
        """
        if self.watchdog_seconds:
            threading.Thread(target=self._beat, args=(turning, ended), name="watchdog", daemon=True).start()

    def _beat(self, turning: Callable[[], bool], ended: threading.Event) -> None:
        while not ended.wait(max(SHORTEST_SECONDS, self.watchdog_seconds / BEATS)):
            if turning():
                self.alive()

    def stopping(self) -> None:
        """The agent is about to end."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address or not hasattr(socket, "AF_UNIX"):
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), self._address)


def _watchdog(environ: Mapping[str, str]) -> float:
    """WATCHDOG_USEC, unless it is meant for another process (WATCHDOG_PID)."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isascii() and text.isdigit() else 0.0


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
