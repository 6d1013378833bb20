"""A socket with or without TLS that neither reads ahead nor buffers for slow clients.

asyncio's TLS transport allocates 256 KiB per connection, even before the handshake: 400 silent clients would cost
100 MiB. Here TLS runs over two memory buffers that hold only the data in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import Final, TypeVar

READ_BYTES: Final = 8192
WRITE_BYTES: Final = 16384
"""One TLS record: the data held for a slow client, in addition to the kernel's buffers."""

PLAIN_HTTP_RESPONSE: Final = (
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This server speaks HTTPS; the request came without TLS.\n"
)
"""For a client without `scheme: https`: the only response sent without TLS if TLS is configured."""

T = TypeVar("T")


class ClientStream:
    """The byte stream of one connection, here without TLS. The coroutines raise OSError (ssl.SSLError is one).

    The socket is non-blocking and belongs to the running loop.
    """

    certified = False
    """Whether a certificate of the client was verified."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    async def open(self) -> None:
        """Make the TLS handshake, if any. Must be the first call."""

    async def read(self) -> bytes:
        """Wait for data and return it; b"" at the end of the stream."""
        return await asyncio.get_running_loop().sock_recv(self._socket, READ_BYTES)

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def send_nowait(self, data: bytes) -> None:
        """Send `data` and the end of TLS without waiting. Data that the kernel doesn't accept is lost."""
        with contextlib.suppress(OSError):
            self._socket.send(data)

    def release(self) -> None:
        """Free the buffers at once: an error's traceback may keep this object until the next full collection."""


class ClientTlsStream(ClientStream):
    """A connection with TLS. `allowed_sans` is `client_allowed_sans` of the web-config file, empty for any."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, allowed_sans: frozenset[str]) -> None:
        super().__init__(sock)
        self._context, self._allowed_sans = context, allowed_sans
        self._agreed = False

    async def open(self) -> None:
        """Make the handshake. Raises ssl.SSLError if it fails; the alert is sent before."""
        # OpenSSL allocates its buffers when a handshake begins: wait until the client has sent data.
        hello = await asyncio.get_running_loop().sock_recv(self._socket, READ_BYTES)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(hello)
        self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        try:
            await self._until_done(self._tls.do_handshake)
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                with contextlib.suppress(OSError):
                    self._socket.send(PLAIN_HTTP_RESPONSE)
            raise
        if self._allowed_sans and self._allowed_sans.isdisjoint(names_of_peer(self._tls)):
            raise ssl.SSLError("the client's certificate contains none of client_allowed_sans")
        self._agreed, self.certified = True, bool(self._tls.getpeercert())

    async def read(self) -> bytes:
        """See `ClientStream`."""
        try:
            return await self._until_done(lambda: self._tls.read(READ_BYTES))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def write(self, data: bytes) -> None:
        """See `ClientStream`."""
        view = memoryview(data)
        for start in range(0, len(view), WRITE_BYTES):
            chunk = bytes(view[start : start + WRITE_BYTES])
            await self._until_done(lambda chunk=chunk: self._tls.write(chunk))  # type: ignore[misc]  # binds the loop variable

    def release(self) -> None:
        """See `ClientStream`."""
        if hasattr(self, "_tls"):
            del self._tls, self._incoming, self._outgoing

    def send_nowait(self, data: bytes) -> None:
        """See `ClientStream`."""
        if not self._agreed:
            return
        with contextlib.suppress(OSError):
            if data:
                self._tls.write(data)
            with contextlib.suppress(ssl.SSLError):  # "want read": the client's own close_notify is not waited for
                self._tls.unwrap()
            self._socket.send(self._outgoing.read())

    async def _until_done(self, call: Callable[[], T]) -> T:
        while True:
            try:
                result = call()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._socket.send(self._outgoing.read())  # the alert with the reason
                raise
            else:
                await self._flush()
                return result

    async def _feed(self) -> None:
        if data := await asyncio.get_running_loop().sock_recv(self._socket, WRITE_BYTES):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        # sock_recv returns at once for a client that sends faster than this reads: yield to the others.
        await asyncio.sleep(0)

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await asyncio.get_running_loop().sock_sendall(self._socket, self._outgoing.read())


def names_of_peer(tls: ssl.SSLObject) -> set[str]:
    """Return the subject alternative names (DNS, e-mail, IP, URI) of the verified certificate, as Go prints them."""
    certificate = tls.getpeercert() or {}
    names: set[str] = set()
    for entry in certificate.get("subjectAltName", ()):
        kind, value = str(entry[0]), str(entry[1])
        if kind == "IP Address":
            with contextlib.suppress(ValueError):
                value = str(ipaddress.ip_address(value.strip()))
        if kind in ("DNS", "email", "IP Address", "URI"):
            names.add(value)
    return names


def reset_on_close(sock: socket.socket) -> None:
    """Make close drop unsent data (SO_LINGER): the kernel keeps nothing for a client that doesn't read."""
    with contextlib.suppress(OSError):
        linger = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def unsent_bytes(sock: socket.socket) -> int:
    """Return the bytes that the kernel holds because the client doesn't read (SIOCOUTQ); 0 outside Linux."""
    if not sys.platform.startswith("linux"):
        return 0
    import fcntl  # noqa: PLC0415  # does not exist on Windows
    import termios  # noqa: PLC0415  # does not exist on Windows

    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except OSError:
        return 0
