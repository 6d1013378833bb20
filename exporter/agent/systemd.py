"""The notification protocol of systemd (sd_notify(3)): one datagram for each message.

Implemented here because it is ten lines, and a library would add a dependency on every host.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final

KEEPALIVES: Final = 3
"""Number of keep-alive messages per watchdog timeout."""
SHORTEST_SECONDS: Final = 0.05


class Notifier:
    """Notifies systemd that the agent is ready, alive or stopping. Does nothing if NOTIFY_SOCKET is not set."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self.watchdog_seconds = _watchdog(environ)
        """Timeout of the watchdog; 0 if there is none."""

    def ready(self, status: str) -> None:
        """Notify that the agent has started. `systemctl status` shows `status`, which is one line."""
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        """Send one keep-alive message."""
        self._send("WATCHDOG=1")

    def watch(self, healthy: Callable[[], bool], ended: threading.Event) -> None:
        """Start a thread that sends keep-alive messages while `healthy` returns True, until `ended` is set.

        A poll may take longer than the watchdog's timeout, hence the thread. Does nothing without a watchdog.
        """
        if self.watchdog_seconds:
            threading.Thread(target=self._keep_alive, args=(healthy, ended), name="watchdog", daemon=True).start()

    def _keep_alive(self, healthy: Callable[[], bool], ended: threading.Event) -> None:
        while not ended.wait(max(SHORTEST_SECONDS, self.watchdog_seconds / KEEPALIVES)):
            if healthy():
                self.alive()

    def stopping(self) -> None:
        """Notify that the agent is about to end."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if not self._address or not hasattr(socket, "AF_UNIX"):
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), self._address)


def _watchdog(environ: Mapping[str, str]) -> float:
    """Return WATCHDOG_USEC in seconds; 0 if it is unset, invalid, or for another process (WATCHDOG_PID)."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1_000_000 if text.isascii() and text.isdigit() else 0.0
