"""One client's connection: request, response, request, … with a limit for each state, whatever the client does; and
which one is closed when a new one needs its place."""

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
    """What a client may take, in seconds, bytes and connections. The defaults are what is promised to operators."""

    head_seconds: float = 5.0
    """From the connection (or a later request's first byte) to the end of the request's head; the TLS handshake too."""
    exchange_seconds: float = 9.0
    """From the same start until the client has read the last byte of the response."""
    idle_seconds: float = 9.0
    """Between two requests of one client. One that never reads can't be told from a scraper that waits, since the
    kernels in between buffer a whole page. A scraper that comes each 15 to 60 s connects anew: some milliseconds."""
    reading_seconds: float = 0.5
    """From the end of a request until its response should have been read. Slower clients are evicted first."""
    render_seconds: float = 3.0
    """How long the application may take for a page before the scraper is answered 503."""
    fresh_seconds: float = 0.2
    """How old a rendered page may get. A storm of scrapes costs five renderings a second, and no fact is shown late."""
    linger_seconds: float = 1.0
    """How long a refused upload is still read, so that the client gets to see why."""
    linger_bytes: int = 1 << 20
    """How much of it is read."""
    head_bytes: int = 16384
    """The longest head of a request."""
    connections: int = 512
    """How many may be open; fewer where the file-descriptor limit is low, see `server.max_connections`."""
    stop_seconds: float = 0.9
    """How long stopping the server may take."""


class ConnectionState(enum.Enum):
    """What a connection is waiting for."""

    RECEIVING = enum.auto()
    """From the connection, or a later request's first byte, to the end of the request's head."""
    RESPONDING = enum.auto()
    """Its password is checked, its page rendered, its response written; or nothing more will be sent after that."""
    IDLE = enum.auto()
    """The kernel has all of the response, and the client may send another request."""


class Rank(enum.IntEnum):
    """How little a client loses when its connection is closed: the lowest is evicted first."""

    STUCK = 0
    """It has sent a request, and for longer than a scraper needs has not read the response or is waiting for it."""
    IDLE = 1
    """It has read its response: a scraper connects anew, and loses nothing."""
    BUSY = 2
    """It is sending a request, or about to be answered."""


class WebRequest(Struct, frozen=True):
    """What of a request's head decides the response."""

    method: bytes
    path: str
    accept: str
    authorization: bytes
    peer: str
    certified: bool = False
    """A certificate of the client was verified."""


Handler = Callable[[WebRequest], Awaitable[WebResponse]]

NETWORK_BITS: Final = 64
"""Of an IPv6 address: who has one such network has all of its addresses."""
UNSENT_POLL_SECONDS: Final = 0.05
"""The kernel says how much is unsent, not when it is sent."""
SMALL_BODY: Final = 4096
"""Bytes: a body up to this is copied behind its head, a longer one is sent as it is, shared by all its readers."""


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
        """How little the client loses if it is evicted at this loop time."""
        if self._state is ConnectionState.RECEIVING:
            return Rank.BUSY
        if self._response_was_read():
            return Rank.IDLE
        return Rank.STUCK if now - self.since > self._limits.reading_seconds else Rank.BUSY

    def _enter(self, state: ConnectionState) -> None:
        self._state, self.since, self._was_read = state, self._loop.time(), False

    def _response_was_read(self) -> bool:
        """True if the client has all of its response and has not begun another request."""
        self._was_read = self._was_read or (self._state is ConnectionState.IDLE and not unsent_bytes(self._socket))
        return self._was_read

    async def run(self) -> None:
        """Serve requests until one side ends it. `close` is the caller's: a task cancelled at birth never gets here."""
        try:
            await self._serve_requests()
            self._stream.send_nowait(b"")
            await self._wait_until_read()
        except (TimeoutError, asyncio.CancelledError):
            # Not raised on: kept by the finished task, its traceback would hold all buffers until a full collection.
            if not self._response_was_read():
                reset_on_close(self._socket)
        except OSError:
            return  # the client left, or there was no agreement on TLS (ssl.SSLError)

    def close(self) -> None:
        """Give the file descriptor and the buffers back."""
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
                self._send_timeout()
                raise
            if request is None:
                return
            async with asyncio.timeout_at(self._deadline):
                keep_alive = await self._exchange(request)
            if not keep_alive:
                return
            first = await self._wait_for_request()
            if not first:
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
        """Answer one request; True if the client may send another on this connection."""
        self._enter(ConnectionState.RESPONDING)
        headers = dict(head.headers)
        if b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0"):
            await self._send(head.method, plain(413, "This server takes no request bodies."), gzip=False, last=True)
            await self._linger()
            return False
        self._http.next_event()  # the empty body's end; what is left in h11 now was sent without waiting for us
        pipelined = bool(self._http.trailing_data[0])
        response = await self._handler(_request_of(head, headers, self.peer, self._stream.certified))
        gzip = takes_gzip(headers.get(b"accept-encoding", b"").decode("latin-1"))
        # Only a client that was given a page may be idle until it wants the next one.
        self._may_idle = response.status < http.HTTPStatus.BAD_REQUEST
        await self._send(head.method, response, gzip=gzip, last=pipelined)
        if pipelined:
            await self._linger()
            return False
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        # A client whose next request is always there already must not keep the loop from the others.
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
        """The first bytes of the next request; b"" when the client left, or sent it without reading its response.

        A client that has read a response acknowledges it with the next request at the latest. One that does not would
        else be given the time of another request each time, until the kernel's buffers are full.
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
        text = texts.get(status, "This is no HTTP request.")
        # A 5xx stands for a fault of this server, which no client can cause by what it sends.
        response = plain(
            status if status < http.HTTPStatus.INTERNAL_SERVER_ERROR else http.HTTPStatus.BAD_REQUEST, text
        )
        self._enter(ConnectionState.RESPONDING)
        async with asyncio.timeout_at(self._deadline):
            await self._send(b"GET", response, gzip=False, last=True)
            await self._linger()

    async def _linger(self) -> None:
        """Read on for a moment after a refusal: closing at once would reset the connection and lose our response."""
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
        """Wait for the client to read its response. Closing earlier leaves the kernel trying, for minutes, unseen."""
        self._enter(ConnectionState.RESPONDING)
        async with asyncio.timeout_at(self._deadline):
            while unsent_bytes(self._socket):
                await asyncio.sleep(UNSENT_POLL_SECONDS)

    def _send_timeout(self) -> None:
        """408 for a client that began a request; one that sent nothing gets nothing."""
        if self._received_any and self._http.our_state is h11.IDLE:
            head = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            self._stream.send_nowait(head)


def _request_of(head: h11.Request, headers: dict[bytes, bytes], peer: str, certified: bool) -> WebRequest:
    target = head.target.decode("latin-1")
    if not target.startswith("/"):
        with contextlib.suppress(ValueError):  # an absolute form that is no URL is simply not found
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
    """The connection to close for a new one: of the peer with the most, the one that loses least by it.

    As long as some peer has more connections than a scraper has, the scraper keeps its own, however many addresses the
    others come from. Among the connections of that peer (which may be the scraper's own address, behind a NAT) age
    alone would evict a client that needs more than one network round trip to send a request. So first goes a connection
    whose client does not read its response, then one that has read it and is idle, then the one longest in its present
    state. There must be at least one; `now` is on the clock of `since`.
    """
    counts = Counter(connection.peer for connection in connections)
    largest = max(counts.values())
    candidates = (connection for connection in connections if counts[connection.peer] == largest)
    return min(candidates, key=lambda connection: (connection.rank(now), connection.since))


def peer_of(host: str) -> str:
    """What counts as one client: an IPv4 address, also where IPv6 carries it, or an IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, NETWORK_BITS), strict=False))
