"""An HTTP proxy that opens tunnels (CONNECT), over plain TCP, and records its requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class TunnelProxy:
    """A context manager. `refusal` is a whole response that every CONNECT gets instead of a tunnel."""

    def __init__(self, *, refusal: bytes = b"") -> None:
        self.requests: list[bytes] = []
        self._refusal = refusal
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)

    def _start(self, target: object, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()  # type: ignore[arg-type]  # callables

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, sock)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._sockets.append(client)
            head = b""
            while b"\r\n\r\n" not in head:
                part = client.recv(65536)
                if not part:
                    return
                head += part
            self.requests.append(head)
            if self._refusal:
                client.sendall(self._refusal)
                client.shutdown(socket.SHUT_RDWR)
                return
            host, _, port = head.split()[1].decode().rpartition(":")
            server = socket.create_connection((host.strip("[]"), int(port)))
            self._sockets.append(server)
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self._start(self._copy, server, client)
            self._copy(client, server)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
