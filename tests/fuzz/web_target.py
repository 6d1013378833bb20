"""The scraper's side: any bytes on a connection to the endpoint, with and without passwords."""

from __future__ import annotations

import asyncio
import base64
import re
import selectors
import socket
from typing import Any, Final

import bcrypt
from msgspec.structs import replace

from exporter.web.config_file import WebConfigFile
from exporter.web.connection import Limits, WebConnection
from exporter.web.responses import GATE, Accept, WebResponse
from exporter.web.server import WebServer
from exporter.web.stream import ClientStream
from tests.support.web_target import Pages

LIMITS: Final = Limits(
    head_seconds=0.5, exchange_seconds=0.9, idle_seconds=0.5, render_seconds=0.4, fresh_seconds=1e9, linger_seconds=0.05
)
STATUSES: Final = frozenset({b"200", b"400", b"401", b"404", b"405", b"408", b"413", b"431", b"503"})
RIGHT: Final = base64.b64encode(b"prometheus:right")
USERS: Final = {b"prometheus": bcrypt.hashpw(b"right", bcrypt.gensalt(4))}
MOMENT: Final = 0.002
STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class Hasty:
    """A selector that waits only a moment in place of a long time, and reports that the time has passed."""

    def __init__(self) -> None:
        self._inner = selectors.DefaultSelector()
        self.skipped = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def select(self, timeout: float | None = None) -> Any:
        found = self._inner.select(timeout if timeout is None else min(timeout, MOMENT))
        if not found and timeout is not None:
            self.skipped += max(0.0, timeout - MOMENT)
        return found


class Loop(asyncio.SelectorEventLoop):
    """An event loop with immediate time-outs, so that a thousand of them take seconds; threads still get their
    moment."""

    def __init__(self) -> None:
        self._hasty = Hasty()
        super().__init__(self._hasty)  # type: ignore[arg-type]  # a selector in all that counts

    def time(self) -> float:
        return super().time() + self._hasty.skipped


LOOP: Final = Loop()


class Guarded(WebServer):
    """Return a server that requires a password."""

    @property
    def _settings(self) -> WebConfigFile:
        return WebConfigFile(users=USERS)


class Marked(Pages):
    """Mark the response of the gate, which needs no password."""

    def respond(self, path: str, accept: Accept) -> WebResponse:
        response = super().respond(path, accept)
        return replace(response, headers=(OF_GATE,)) if path == GATE else response


OF_GATE: Final = ("X-Gate", "open")
OPEN: Final = WebServer("127.0.0.1:0", Pages(), limits=LIMITS)
GUARDED: Final = Guarded("127.0.0.1:0", Marked(), limits=LIMITS)


async def _converse(server: WebServer, data: bytes) -> bytes:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    connection = WebConnection(ours, "127.0.0.1", ClientStream(ours), LIMITS, server._respond)
    task = asyncio.create_task(connection.run())
    loop, received = asyncio.get_running_loop(), b""
    try:
        await loop.sock_sendall(theirs, data[:60_000])
        theirs.shutdown(socket.SHUT_WR)
        while not task.done():
            received += await _some(loop, theirs, task)
        await task  # it must not raise
        connection.close()
        while part := await loop.sock_recv(theirs, 65536):
            received += part
    except (ConnectionResetError, BrokenPipeError):
        await task
        connection.close()
    finally:
        theirs.close()
    return received


async def _some(loop: asyncio.AbstractEventLoop, sock: socket.socket, task: asyncio.Task[None]) -> bytes:
    reading = asyncio.ensure_future(loop.sock_recv(sock, 65536))
    await asyncio.wait({reading, task}, return_when=asyncio.FIRST_COMPLETED)
    if not reading.done():
        reading.cancel()
        await asyncio.wait({reading})
        return b""
    part = reading.result()
    if not part:
        await asyncio.wait({task})
    return part


def web(data: bytes) -> None:
    """Use the first byte to choose whether a password is required; the rest is what the client sends before it
    disconnects."""
    guarded, data = bool(data[:1] and data[0] & 1), data[1:]
    received = LOOP.run_until_complete(asyncio.wait_for(_converse(GUARDED if guarded else OPEN, data), 60.0))
    if not received:
        return
    first = STATUS_LINE.match(received)
    assert first, received[:80]
    assert first[1] in STATUSES, received[:80]
    if guarded and first[1] == b"200" and b"\r\nx-gate: open\r\n" not in received.lower():
        assert b"authorization" in data.lower(), "a page without a password"
        assert _has_password(data), data


def _has_password(data: bytes) -> bool:
    """Return whether the right password is in it, in any spelling of base64 that decodes to it."""
    if RIGHT.rstrip(b"=") in data:
        return True
    for word in re.findall(rb"[A-Za-z0-9+/=]{20,}", data):
        try:
            if base64.b64decode(word + b"==") == b"prometheus:right":
                return True
        except ValueError:
            continue
    return False
