"""HTTP/1.1 on threads, with access to the socket: to answer as the service does, and to fail in every known way."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http.client import responses
from http.server import BaseHTTPRequestHandler
from typing import Any

from exporter.simulator.faults import Fault
from exporter.simulator.metadata.protocol import MAX_BODY, Refusal, Request, Response, refusal

_IDLE_SECONDS = 300.0
_READ_OF_REFUSED = 1024 * 1024  # bytes of a refused body that are read, so that the refusal is not lost in a reset
_BLANKS = b" " * 65536


class Connection:
    """One client's connection while a request is answered; `last` once it is to be closed afterwards."""

    def __init__(
        self, sock: socket.socket, stopping: threading.Event, clock: Callable[[], float], method: str = "GET"
    ) -> None:
        self._socket = sock
        self._stopping = stopping
        self._clock = clock
        self._method = method
        self.last = False

    def send(self, response: Response, fault: Fault | None) -> None:
        """Send the response, in the way of the fault."""
        name = fault.name if fault else ""
        whole = _framed(response, self._clock(), last=self.last)
        if self._method == "HEAD":
            # Its response ends with the headers (RFC 9110, 9.3.2): a body would be read as the next response.
            whole = whole[: len(whole) - len(response.body)]
        if name in ("reset", "half-close"):
            self._socket.sendall(whole[: len(whole) - max(1, len(response.body) // 2)])
            if name == "half-close":
                self._half_close()
            else:
                self.reset()
        elif name == "post-reset":
            self.reset()
        elif name == "drip" and fault:
            self._send_slowly(whole, fault.argument)
        elif name == "endless":
            self._send_endlessly(response)
        else:
            self._socket.sendall(whole)

    def reset(self) -> None:
        """End the connection with a reset (RST) instead of an orderly close."""
        self.last = True
        linger = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._socket.close()

    def hang(self, seconds: float) -> None:
        """Send nothing for so many seconds, then close."""
        self.last = True
        self._stopping.wait(seconds)

    def _half_close(self) -> None:
        self.last = True
        self._socket.shutdown(socket.SHUT_WR)
        while self._socket.recv(4096):
            pass

    def _send_slowly(self, whole: bytes, interval: float) -> None:
        for index in range(len(whole)):
            self._socket.sendall(whole[index : index + 1])
            if self._stopping.wait(interval):
                return

    def _send_endlessly(self, response: Response) -> None:
        self.last = True
        self._socket.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + response.body
        )
        while not self._stopping.is_set():
            self._socket.sendall(_BLANKS)


Respond = Callable[[Request, Connection], None]


class Server(socketserver.TCPServer):
    """Listens at once, answers from `start()` on, one thread for each connection; all have ended after `close()`."""

    allow_reuse_address = os.name == "posix"  # on Windows it lets two programs listen on one port
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, respond: Respond, stopping: threading.Event, clock: Callable[[], float] = time.time
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.respond = respond
        self.stopping = stopping
        self.clock = clock
        self._lock = threading.Lock()
        self._clients: dict[threading.Thread, socket.socket] = {}
        self._loop = threading.Thread(target=self.serve_forever, args=(0.05,), name="metadata-service", daemon=True)

    @property
    def url(self) -> str:
        """The base address, `http://HOST:PORT`."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self) -> None:
        """Begin to accept."""
        self._loop.start()

    def close(self) -> None:
        """Stop accepting, cut every connection and wait for the threads."""
        self.stopping.set()
        if self._loop.is_alive():
            self.shutdown()
            self._loop.join()
        self.server_close()
        with self._lock:
            clients = dict(self._clients)
        for client in clients.values():
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in clients:
            thread.join(5)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer this connection on a thread of its own."""
        thread = threading.Thread(target=self._serve_client, args=(request, client_address), daemon=True)
        with self._lock:
            self._clients[thread] = request
        thread.start()

    def _serve_client(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (OSError, ValueError):
            # The client has left, or `close` cut the connection.
            pass
        finally:
            self.shutdown_request(request)
            with self._lock:
                del self._clients[threading.current_thread()]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    disable_nagle_algorithm = True

    def __getattr__(self, name: str) -> Callable[[], None]:
        # Unknown methods are for the service to refuse (405) and not for http.server (501).
        if name.startswith("do_"):
            return self._respond
        raise AttributeError(name)

    def _respond(self) -> None:
        connection = Connection(self.connection, self.server.stopping, self.server.clock, self.command)
        connection.last = self.close_connection
        body = self._body(connection)
        if body is not None:
            headers: dict[str, str] = {}
            for name, value in self.headers.items():
                key = name.lower()
                headers[key] = f"{headers[key]}, {value}" if key in headers else value
            self.server.respond(Request(0.0, self.command, self.path, headers, body), connection)
        self.close_connection = connection.last or self.server.stopping.is_set()

    def _body(self, connection: Connection) -> bytes | None:
        """The whole body; None after it was refused."""
        text = self.headers.get("Content-Length", "0" if self.command != "POST" else "")
        refused: Refusal | None = None
        if "Transfer-Encoding" in self.headers:
            refused = refusal(400, "Bad request. A body comes with its Content-Length")
        elif not (text.isascii() and text.isdecimal() and len(text) < 16):  # noqa: PLR2004  # far beyond any length
            refused = refusal(400, "Bad request. The Content-Length is missing or no number")
        elif int(text) > MAX_BODY:
            self.rfile.read(min(int(text), _READ_OF_REFUSED))
            refused = refusal(413, f"The body is larger than {MAX_BODY} bytes")
        if refused is None:
            return self.rfile.read(int(text))
        connection.last = True
        connection.send(refused.response, None)
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses (a malformed request line, say), in the service's own shape."""
        del explain
        self.close_connection = True
        response = refusal(code, message or "Bad request").response
        self.connection.sendall(_framed(response, self.server.clock(), last=True))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: `MetadataService.requests` keeps them."""


def _framed(response: Response, now: float, *, last: bool) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {responses.get(response.status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    lines += [f"Content-Length: {len(response.body)}", "Server: IMDS/simulated"]
    lines += [f"Date: {formatdate(now, usegmt=True)}"]
    lines += ["Connection: close"] if last else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + response.body
