"""One client's connection: requests and responses, with a time limit for each state, and the order of eviction."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import http
import ipaddress
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from email.utils import formatdate
from typing import Final
from urllib.parse import urlsplit

import h11
from msgspec import Struct

from exporter.web.responses import WebResponse, plain, takes_gzip
from exporter.web.stream import READ_BYTES, ClientStream, reset_on_close, unsent_bytes


class Limits(Struct, frozen=True):
    """The limits for a client, in seconds, bytes, and connections. Operators can rely on the defaults."""

    head_seconds: float = 5.0
    """From the connection (or a later request's first byte) to the end of the request's head; the TLS handshake too."""
    exchange_seconds: float = 9.0
    """From the same start until the client has read the last byte of the response."""
    idle_seconds: float = 9.0
    """Between two requests of one client. The kernels buffer a whole page, so a client that never reads looks like a
    waiting scraper. A scraper with an interval of 15 to 60 s reconnects, which takes a few milliseconds."""
    reading_seconds: float = 0.5
    """From the end of a request until its response should have been read. Slower clients are evicted first."""
    render_seconds: float = 3.0
    """How long the application may take for a page before the scraper gets a 503."""
    fresh_seconds: float = 0.2
    """Maximum age of a rendered page: any number of scrapes costs at most five renderings a second."""
    linger_seconds: float = 1.0
    """How long to keep reading a refused upload, so that the client receives the reason."""
    linger_bytes: int = 1 << 20
    """How many bytes of it to read."""
    head_bytes: int = 16384
    """The longest head of a request."""
    connections: int = 512
    """How many may be open; fewer if the file-descriptor limit is low, see `server.max_connections`."""
    stop_seconds: float = 0.9
    """How long stopping the server may take."""


class ConnectionState(enum.Enum):
    """The state of a connection."""

    RECEIVING = enum.auto()
    """From the connection, or a later request's first byte, to the end of the request's head."""
    RESPONDING = enum.auto()
    """Password check, page rendering, writing of the response, and the wait before the connection closes."""
    IDLE = enum.auto()
    """The kernel has all of the response, and the client may send another request."""


class Rank(enum.IntEnum):
    """How little a client loses when its connection is closed: the lowest is evicted first."""

    STUCK = 0
    """Waiting for a response, or not reading it, for longer than a scraper needs."""
    IDLE = 1
    """Response read: a scraper reconnects and loses nothing."""
    BUSY = 2
    """Sending a request, or about to get the response."""


class WebRequest(Struct, frozen=True):
    """The parts of a request's head on which the response depends."""

    method: bytes
    path: str
    accept: str
    authorization: bytes
    peer: str
    certified: bool = False
    """Whether a certificate of the client was verified."""


Handler = Callable[[WebRequest], Awaitable[WebResponse]]

NETWORK_BITS: Final = 64
"""Prefix length that counts as one IPv6 client: a client usually controls all addresses of such a network."""
UNSENT_POLL_SECONDS: Final = 0.05
"""Polling interval: the kernel reports the number of unsent bytes, but doesn't signal when they are sent."""
SMALL_BODY: Final = 4096
"""Bytes: a body up to this size is appended to its head; a longer one is sent uncopied, shared by all clients."""


class WebConnection:
    """A connection and its state. `peer`, `rank` and `since` (loop time) are for eviction."""

    def __init__(self, sock: socket.socket, peer: str, stream: ClientStream, limits: Limits, handler: Handler) -> None:
        self._socket, self.peer, self._stream, self._limits, self._handler = sock, peer, stream, limits, handler
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._loop = asyncio.get_running_loop()
        self._received_any = False
        self._may_idle = False
        self._deadline = self._loop.time() + limits.exchange_seconds
        self._enter(ConnectionState.RECEIVING)

    def rank(self, now: float) -> Rank:
        """Return how little the client loses if it is evicted at this loop time."""
        if self._state is ConnectionState.RECEIVING:
            return Rank.BUSY
        if self._response_was_read():
            return Rank.IDLE
        return Rank.STUCK if now - self.since > self._limits.reading_seconds else Rank.BUSY

    def _enter(self, state: ConnectionState) -> None:
        self._state, self.since, self._was_read = state, self._loop.time(), False

    def _response_was_read(self) -> bool:
        """Return whether the client has received its whole response and hasn't started another request."""
        self._was_read = self._was_read or (self._state is ConnectionState.IDLE and not unsent_bytes(self._socket))
        return self._was_read

    async def run(self) -> None:
        """Serve requests until one side ends it. The caller calls `close`: a task cancelled early never runs this."""
        try:
            await self._serve_requests()
            self._stream.send_nowait(b"")
            await self._wait_until_read()
        except (TimeoutError, asyncio.CancelledError):
            # Not re-raised: the finished task would keep the traceback, and it all buffers, until a full collection.
            if not self._response_was_read():
                reset_on_close(self._socket)
        except OSError:
            return  # the client disconnected, or the TLS handshake failed (ssl.SSLError)

    def close(self) -> None:
        """Free the file descriptor and the buffers."""
        self._socket.close()
        self._stream.release()
        del self._http

    async def _serve_requests(self) -> None:
        begun, first = self.since, b""
        while True:
            self._deadline = begun + self._limits.exchange_seconds
            try:
                async with asyncio.timeout_at(begun + self._limits.head_seconds):
                    if not self._received_any:
                        await self._stream.open()
                    request = await self._read_request(first)
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return
            except TimeoutError:
                if self._received_any and self._http.our_state is h11.IDLE:  # a client that sent nothing gets nothing
                    self._stream.send_nowait(
                        b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                    )
                raise
            if request is None:
                return
            async with asyncio.timeout_at(self._deadline):
                keep_alive = await self._exchange(request)
            if not keep_alive:
                return
            if not (first := await self._wait_for_request()):
                return
            begun = self._loop.time()
            self._enter(ConnectionState.RECEIVING)

    async def _read_request(self, received: bytes) -> h11.Request | None:
        if received:
            self._http.receive_data(received)
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._stream.read()
            self._received_any = self._received_any or bool(data)
            self._http.receive_data(data)
        return event if isinstance(event, h11.Request) else None

    async def _exchange(self, head: h11.Request) -> bool:
        """Answer one request. Return whether the client may send another one on this connection."""
        self._enter(ConnectionState.RESPONDING)
        headers = dict(head.headers)
        if b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0"):
            await self._send(head.method, plain(413, "This server accepts no request bodies."), gzip=False, last=True)
            await self._linger()
            return False
        self._http.next_event()  # the end of the empty body; data still in h11 was sent before the response
        pipelined = bool(self._http.trailing_data[0])
        response = await self._handler(_request_of(head, headers, self.peer, self._stream.certified))
        gzip = takes_gzip(headers.get(b"accept-encoding", b"").decode("latin-1"))
        # Only a client that received a page may stay idle until its next request.
        self._may_idle = response.status < http.HTTPStatus.BAD_REQUEST
        await self._send(head.method, response, gzip=gzip, last=pipelined)
        if pipelined:
            await self._linger()
            return False
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        # A client whose next request has always arrived already must not starve the others.
        await asyncio.sleep(0)
        return True

    async def _send(self, method: bytes, response: WebResponse, *, gzip: bool, last: bool) -> None:
        body = response.gzipped if gzip and response.gzipped is not None else response.body
        headers = [("Date", formatdate(usegmt=True)), ("Content-Type", response.content_type)]
        headers += [("Content-Length", str(len(body))), *response.headers]
        if response.gzipped is not None:
            headers.append(("Vary", "Accept, Accept-Encoding"))
            headers += [("Content-Encoding", "gzip")] if gzip else []
        if last:
            headers.append(("Connection", "close"))
        status = http.HTTPStatus(response.status)  # Prometheus shows its phrase on its targets page
        head = self._http.send(h11.Response(status_code=status, headers=headers, reason=status.phrase)) or b""
        if method == b"HEAD":
            body = b""
        elif body:
            self._http.send_with_data_passthrough(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())
        if len(body) <= SMALL_BODY:
            await self._stream.write(head + body)
            return
        await self._stream.write(head)
        await self._stream.write(body)

    async def _wait_for_request(self) -> bytes:
        """Return the next request's first bytes; b"" if the client left or sent it without reading its response.

        A client that has read a response acknowledges it with its next request at the latest. One that doesn't would
        otherwise get the time of another request each time, until the kernel's buffers are full.
        """
        self._enter(ConnectionState.IDLE)
        try:
            async with asyncio.timeout_at(self._deadline):
                first = await self._stream.read()
        except TimeoutError:
            if not (self._may_idle and self._response_was_read()):
                raise
            async with asyncio.timeout_at(self.since + self._limits.idle_seconds):
                first = await self._stream.read()
        return first if self._response_was_read() else b""

    async def _refuse(self, status: int) -> None:
        if self._http.our_state is not h11.IDLE:
            return
        texts = {431: "The request's head is too large.", 501: "This transfer encoding is not supported."}
        text = texts.get(status, "This is not a valid HTTP request.")
        # A 5xx would mean a fault of this server, but the client's data is at fault.
        refusal = plain(status if status < http.HTTPStatus.INTERNAL_SERVER_ERROR else http.HTTPStatus.BAD_REQUEST, text)
        self._enter(ConnectionState.RESPONDING)
        async with asyncio.timeout_at(self._deadline):
            await self._send(b"GET", refusal, gzip=False, last=True)
            await self._linger()

    async def _linger(self) -> None:
        """Keep reading briefly after a refusal: closing at once would reset the connection and lose the response."""
        self._enter(ConnectionState.RESPONDING)
        self._stream.send_nowait(b"")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        left = self._limits.linger_bytes
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(self._limits.linger_seconds):
                while left > 0 and (data := await self._loop.sock_recv(self._socket, READ_BYTES)):
                    left -= len(data)
                    await asyncio.sleep(0)

    async def _wait_until_read(self) -> None:
        """Wait for the client to read its response. After an earlier close, the kernel would retry for minutes."""
        self._enter(ConnectionState.RESPONDING)
        async with asyncio.timeout_at(self._deadline):
            while unsent_bytes(self._socket):
                await asyncio.sleep(UNSENT_POLL_SECONDS)


def _request_of(head: h11.Request, headers: dict[bytes, bytes], peer: str, certified: bool) -> WebRequest:
    target = head.target.decode("latin-1")
    if not target.startswith("/"):
        with contextlib.suppress(ValueError):  # an invalid absolute form gets a 404
            target = urlsplit(target).path or "/"
    return WebRequest(
        method=head.method,
        path=target.partition("?")[0],
        accept=",".join(value.decode("latin-1") for name, value in head.headers if name == b"accept"),
        authorization=headers.get(b"authorization", b""),
        peer=peer,
        certified=certified,
    )


def choose_eviction(connections: Collection[WebConnection], now: float) -> WebConnection:
    """Return the connection to close for a new one: of the peer with the most, the one that loses least.

    While some peer has more connections than a scraper, the scraper keeps its connections. Behind a NAT, the peer with
    the most may be the scraper's own address; eviction by age only would hit a client that needs several round trips to
    send a request. So the order is: a connection whose client doesn't read its response, an idle one, the one longest
    in its state. `connections` must not be empty; `now` is loop time, as `since`.
    """
    counts = Counter(connection.peer for connection in connections)
    largest = max(counts.values())
    candidates = (connection for connection in connections if counts[connection.peer] == largest)
    return min(candidates, key=lambda connection: (connection.rank(now), connection.since))


def peer_of(host: str) -> str:
    """Return what counts as one client: an IPv4 address (also if mapped to IPv6), or an IPv6 /64 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, NETWORK_BITS), strict=False))
