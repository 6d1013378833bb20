"""HTTP/1.1 on threads, with access to the socket, so that the service can fail in every known way."""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from email.utils import formatdate
from http.client import responses
from http.server import BaseHTTPRequestHandler
from typing import Any

from exporter.simulator.faults import Fault
from exporter.simulator.metadata.protocol import MAX_BODY, Refusal, SimulatedRequest, SimulatedResponse

_IDLE_SECONDS = 300.0
_REJECTED_BODY_BYTES = 1024 * 1024  # bytes of a rejected body to read, so that a reset does not lose the response
_BLANKS = b" " * 65536


class Server(socketserver.TCPServer):
    """A server that listens at once and serves from `start()` on, with one thread per connection until `close()`."""

    allow_reuse_address = os.name == "posix"  # on Windows it lets two programs listen on one port
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        respond: Callable[[SimulatedRequest, MetadataConnection], None],
        clock: Callable[[], float],
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), MetadataConnection)
        self.respond = respond
        self.stopping = threading.Event()
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
        """Start to accept connections."""
        self._loop.start()

    def close(self) -> None:
        """Stop accepting, close every connection, and wait for the threads."""
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
        """Serve this connection on its own thread."""
        thread = threading.Thread(target=self._serve_client, args=(request, client_address), daemon=True)
        with self._lock:
            self._clients[thread] = request
        thread.start()

    def _serve_client(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except (OSError, ValueError):
            # The client disconnected, or `close` closed the connection.
            pass
        finally:
            self.shutdown_request(request)
            with self._lock:
                del self._clients[threading.current_thread()]


class MetadataConnection(BaseHTTPRequestHandler):
    """One client's connection. Each request ends in a call of `send`, `reset`, or `hang`."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    disable_nagle_algorithm = True

    def send(self, response: SimulatedResponse, fault: Fault | None = None) -> None:
        """Send the response, modified by the fault."""
        name = fault.name if fault else ""
        lines = [f"HTTP/1.1 {response.status} {responses.get(response.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in response.headers]
        lines += [f"Content-Length: {len(response.body)}", "Server: IMDS/simulated"]
        lines += [f"Date: {formatdate(self.server.clock(), usegmt=True)}"]
        lines += ["Connection: close"] if self.close_connection else []
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        # The response to HEAD ends with the headers (RFC 9110, 9.3.2): a body would be read as the next response.
        whole = head if self.command == "HEAD" else head + response.body
        if name in ("reset", "half-close"):
            self.connection.sendall(whole[: len(whole) - max(1, len(response.body) // 2)])
            if name == "half-close":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_WR)
                while self.connection.recv(4096):
                    pass
            else:
                self.reset()
        elif name == "post-reset":
            self.reset()
        elif name == "drip" and fault:
            for index in range(len(whole)):
                self.connection.sendall(whole[index : index + 1])
                if self.server.stopping.wait(fault.argument):
                    return
        elif name == "endless":
            self._send_endlessly(response)
        else:
            self.connection.sendall(whole)

    def reset(self) -> None:
        """End the connection with a reset (RST) instead of an orderly close."""
        self.close_connection = True
        linger = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def hang(self, seconds: float) -> None:
        """Send nothing for this many seconds, then close."""
        self.close_connection = True
        self.server.stopping.wait(seconds)

    def _send_endlessly(self, response: SimulatedResponse) -> None:
        self.close_connection = True
        self.connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + response.body
        )
        while not self.server.stopping.is_set():
            self.connection.sendall(_BLANKS)

    def __getattr__(self, name: str) -> Callable[[], None]:
        # The service rejects unknown methods (405), not http.server (501).
        if name.startswith("do_"):
            return self._respond
        raise AttributeError(name)

    def _respond(self) -> None:
        try:
            body = self._body()
        except Refusal as refused:
            self.close_connection = True
            self.send(refused.response)
            return
        headers: dict[str, str] = {}
        for name, value in self.headers.items():
            key = name.lower()
            headers[key] = f"{headers[key]}, {value}" if key in headers else value
        self.server.respond(SimulatedRequest(self.server.clock(), self.command, self.path, headers, body), self)
        self.close_connection |= self.server.stopping.is_set()

    def _body(self) -> bytes:
        """Return the whole body. Raises Refusal, and may leave a rest of the body unread."""
        text = self.headers.get("Content-Length", "0" if self.command != "POST" else "")
        if "Transfer-Encoding" in self.headers:
            raise Refusal(400, "Bad request. A body comes with its Content-Length")
        if not (text.isascii() and text.isdecimal() and len(text) < 16):  # noqa: PLR2004  # far beyond any length
            raise Refusal(400, "Bad request. The Content-Length is missing or no number")
        if int(text) > MAX_BODY:
            self.rfile.read(min(int(text), _REJECTED_BODY_BYTES))
            raise Refusal(413, f"The body is larger than {MAX_BODY} bytes")
        return self.rfile.read(int(text))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error of http.server (for example, a malformed request line) in the service's format."""
        del explain
        self.close_connection = True
        self.send(Refusal(code, message or "Bad request").response)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: `MetadataService.requests` keeps the requests."""
