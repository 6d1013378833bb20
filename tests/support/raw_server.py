"""An HTTP peer made of raw sockets with scripted faults: one script per connection, the last one repeats."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from tests.support.systems import LINGER_NOT

PACE_SECONDS = 0.02


def ok(body: bytes, *headers: str) -> bytes:
    """Return a plain 200 that leaves the connection open."""
    return response("200 OK", body, *headers)


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    """Return a whole response with a Content-Length."""
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers))
    return head.encode() + b"\r\n" + body


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket, server: RawServer) -> None:
        self.sock = sock
        self._server = server
        self._rest = b""

    def request(self) -> bytes:
        """Return the next whole request, recorded by the server; empty if the client has disconnected."""
        data = self._rest
        while b"\r\n\r\n" not in data:
            part = self.sock.recv(65536)
            if not part:
                return b""
            data += part
        head, _, rest = data.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(rest) < length:
            rest += self.sock.recv(65536)
        self._rest = rest[length:]
        whole = head + b"\r\n\r\n" + rest[:length]
        self._server.requests.append(whole)
        return whole

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def drip(self, data: Iterator[bytes]) -> None:
        """Send piece by piece, slowly, until the client disconnects."""
        for piece in data:
            if self._server.stopping.wait(PACE_SECONDS):
                return
            self.sock.sendall(piece)

    def linger(self) -> None:
        """Send nothing more and wait until the client closes."""
        while self.sock.recv(65536):
            pass

    def reset(self) -> None:
        """Reset the connection instead of closing it."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        self.sock.close()


Script = Callable[[Peer], None]


def answers(*data: bytes) -> Script:
    """Send one of `data` to each request of the connection, the last one repeatedly."""

    def script(peer: Peer) -> None:
        position = 0
        while peer.request():
            peer.send(data[min(position, len(data) - 1)])
            position += 1

    return script


def answers_once(data: bytes) -> Script:
    """Send `data` to the first request, then close the connection."""

    def script(peer: Peer) -> None:
        if peer.request():
            peer.send(data)

    return script


class RawServer:
    """Listens on a free loopback port. `requests` and `connections` have arrived so far."""

    def __init__(self, *scripts: Script) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.stopping = threading.Event()
        self._scripts = scripts
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self.stopping.is_set():
                sock.close()
                return
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._open.append(sock)
            self._start(lambda sock=sock, script=script: self._serve(sock, script))  # type: ignore[misc]  # bound now

    def _serve(self, sock: socket.socket, script: Script) -> None:
        with contextlib.suppress(OSError), sock:  # the client may disconnect in the middle of any script
            script(Peer(sock, self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
