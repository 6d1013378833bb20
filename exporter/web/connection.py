"""One scraper's conversation: request, answer, request, … each step with a limit, whatever the other side does."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import http
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final
from urllib.parse import urlsplit

import h11

from exporter.web.eviction import Rank
from exporter.web.responses import Answer, plain, takes_gzip
from exporter.web.stream import READ_BYTES, Stream, reset_on_close, unsent_bytes


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take, in seconds, bytes and connections. The defaults are what is promised to operators."""

    head_seconds: float = 5.0
    """From the connection (or a later request's first byte) to the end of the request's head, TLS handshake and all."""
    exchange_seconds: float = 9.0
    """The same start, to the last byte of the answer taken by the client."""
    idle_seconds: float = 9.0
    """Between two requests of one client. One that never reads looks from here like a scraper that waits, since the
    kernels in between take a page whole. A scraper that comes each 15 to 60 s connects anew: some milliseconds."""
    taking_seconds: float = 0.5
    """From the end of a request until its answer should have been taken. Who is later is the first to make room."""
    render_seconds: float = 3.0
    """How long the application may take for a page before the scraper is told to come back."""
    fresh_seconds: float = 0.2
    """How old a rendered page may get. A storm of scrapes costs five renderings a second, and no fact is shown late."""
    linger_seconds: float = 1.0
    """How long a refused upload is still read, so that the client gets to see why."""
    linger_bytes: int = 1 << 20
    head_bytes: int = 16384
    connections: int = 512
    """Fewer where the file-descriptor limit is low, see `web.room_for`."""
    stop_seconds: float = 0.9


class Step(enum.Enum):
    """Where a connection is in its conversation."""

    ASKING = enum.auto()
    """From the connection, or a later request's first byte, to the end of the request's head."""
    ANSWERED = enum.auto()
    """Its password is checked, its page rendered, its answer written."""
    IDLE = enum.auto()
    """The kernel has all of the answer, and the client may ask again."""
    LEAVING = enum.auto()
    """Nothing more will be said to it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What of a request's head decides the answer."""

    method: bytes
    path: str
    accept: str
    authorization: bytes
    peer: str
    certified: bool = False
    """A certificate of the client was verified."""


Answering = Callable[[Request], Awaitable[Answer]]

LOOK_AT_UNSENT_SECONDS: Final = 0.05
"""The kernel tells how much is unsent, not when it is sent."""
TRIFLE: Final = 4096
"""Bytes: a body up to this is copied behind its head, a longer one is sent as it is, shared by all who read it."""


class Connection:
    """A connection and what it is doing. `peer`, `rank` and `since` (loop time) are for whoever has to make room."""

    def __init__(self, sock: socket.socket, peer: str, stream: Stream, limits: Limits, answering: Answering) -> None:
        self._socket, self.peer, self._stream, self._limits, self._answering = sock, peer, stream, limits, answering
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._loop = asyncio.get_running_loop()
        self._heard = False
        self._welcome = False
        self._deadline = self._loop.time() + limits.exchange_seconds
        self._enter(Step.ASKING)

    def rank(self, now: float) -> Rank:
        """How little it will be missed at this loop time."""
        if self._step is Step.ASKING:
            return Rank.BUSY
        if self._has_taken():
            return Rank.IDLE
        return Rank.STUCK if now - self.since > self._limits.taking_seconds else Rank.BUSY

    def _enter(self, step: Step) -> None:
        self._step, self.since, self._taken = step, self._loop.time(), False

    def _has_taken(self) -> bool:
        """True if the client has all of its answer and has not begun to ask again."""
        self._taken = self._taken or (self._step is Step.IDLE and not unsent_bytes(self._socket))
        return self._taken

    async def run(self) -> None:
        """Talk until one side has enough. `close` is the caller's: a task cancelled at birth never gets here."""
        try:
            await self._talk()
            self._stream.say_last(b"")
            await self._until_taken()
        except (TimeoutError, asyncio.CancelledError):
            # Not raised on: kept by the finished task, its traceback would hold all buffers until a full collection.
            if not self._has_taken():
                reset_on_close(self._socket)
        except OSError:
            return  # the client left, or there was no agreement on TLS (ssl.SSLError)

    def close(self) -> None:
        """Give the file descriptor and the buffers back."""
        self._socket.close()
        self._stream.forget()
        del self._http

    async def _talk(self) -> None:
        begun, first = self.since, b""
        while True:
            self._deadline = begun + self._limits.exchange_seconds
            try:
                async with asyncio.timeout_at(begun + self._limits.head_seconds):
                    if not self._heard:
                        await self._stream.open()
                    request = await self._read_request(first)
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint)
                return
            except TimeoutError:
                self._say_too_slow()
                raise
            if request is None:
                return
            async with asyncio.timeout_at(self._deadline):
                again = await self._exchange(request)
            if not again:
                return
            first = await self._wait_for_more()
            if not first:
                return
            begun = self._loop.time()
            self._enter(Step.ASKING)

    async def _read_request(self, received: bytes) -> h11.Request | None:
        if received:
            self._http.receive_data(received)
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._stream.read()
            self._heard = self._heard or bool(data)
            self._http.receive_data(data)
        return event if isinstance(event, h11.Request) else None

    async def _exchange(self, head: h11.Request) -> bool:
        """Answer one request; True if the client may ask again on this connection."""
        self._enter(Step.ANSWERED)
        headers = dict(head.headers)
        if b"transfer-encoding" in headers or headers.get(b"content-length", b"0").strip(b"0"):
            await self._send(head.method, plain(413, "This server takes no request bodies."), packed=False, last=True)
            await self._linger()
            return False
        self._http.next_event()  # the empty body's end; what is left in h11 now was sent without waiting for us
        pipelined = bool(self._http.trailing_data[0])
        answer = await self._answering(_request_of(head, headers, self.peer, self._stream.certified))
        packed = takes_gzip(headers.get(b"accept-encoding", b"").decode("latin-1"))
        # Only who was given a page may wait in silence for the next one.
        self._welcome = answer.response.status < http.HTTPStatus.BAD_REQUEST
        await self._send(head.method, answer, packed=packed, last=pipelined)
        if pipelined:
            await self._linger()
            return False
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        # A client that never lets us wait for it must still let the others have their turn.
        await asyncio.sleep(0)
        return True

    async def _send(self, method: bytes, answer: Answer, *, packed: bool, last: bool) -> None:
        response = answer.response
        body = answer.packed if packed and answer.packed is not None else response.body
        headers = [("Date", formatdate(usegmt=True)), ("Content-Type", response.content_type)]
        headers += [("Content-Length", str(len(body))), *response.headers]
        if answer.packed is not None:
            headers.append(("Vary", "Accept, Accept-Encoding"))
            headers += [("Content-Encoding", "gzip")] if packed else []
        if last:
            headers.append(("Connection", "close"))
        head = (
            self._http.send(h11.Response(status_code=response.status, headers=headers, reason=_reason(response.status)))
            or b""
        )
        if method == b"HEAD":
            body = b""
        elif body:
            self._http.send_with_data_passthrough(h11.Data(data=body))
        self._http.send(h11.EndOfMessage())
        if len(body) <= TRIFLE:
            await self._stream.write(head + body)
            return
        await self._stream.write(head)
        await self._stream.write(body)

    async def _wait_for_more(self) -> bytes:
        """The first bytes of the next request; b"" when the client left, or asks on without taking its answer.

        Who has read an answer acknowledges it with the next request at the latest. Who does not would else be given
        the time of one more request each time, until the kernel's buffers are full.
        """
        self._enter(Step.IDLE)
        first = await self._next_bytes()
        return first if self._has_taken() else b""

    async def _next_bytes(self) -> bytes:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._deadline):
                return await self._stream.read()
        if not (self._welcome and self._has_taken()):
            raise TimeoutError
        async with asyncio.timeout_at(self.since + self._limits.idle_seconds):
            return await self._stream.read()

    async def _refuse(self, status: int) -> None:
        if self._http.our_state is not h11.IDLE:
            return
        texts = {431: "The request's head is too large.", 501: "This transfer encoding is not supported."}
        self._enter(Step.ANSWERED)
        async with asyncio.timeout_at(self._deadline):
            await self._send(
                b"GET", plain(status, texts.get(status, "This is no HTTP request.")), packed=False, last=True
            )
            await self._linger()

    async def _linger(self) -> None:
        """Read on for a moment after a refusal: closing at once would reset the connection and eat our answer."""
        self._enter(Step.LEAVING)
        self._stream.say_last(b"")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        left = self._limits.linger_bytes
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(self._limits.linger_seconds):
                while left > 0 and (data := await self._loop.sock_recv(self._socket, READ_BYTES)):
                    left -= len(data)
                    await asyncio.sleep(0)

    async def _until_taken(self) -> None:
        """Wait for the client to take its answer. Closing earlier leaves the kernel trying, for minutes, unseen."""
        self._enter(Step.LEAVING)
        async with asyncio.timeout_at(self._deadline):
            while unsent_bytes(self._socket):
                await asyncio.sleep(LOOK_AT_UNSENT_SECONDS)

    def _say_too_slow(self) -> None:
        """A last word for a client that began a request; one that said nothing is owed nothing."""
        if self._heard and self._http.our_state is h11.IDLE:
            head = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            self._stream.say_last(head)


def _reason(status: int) -> str:
    """The status in words: Prometheus shows them on its targets page. "" for a status nobody has named."""
    with contextlib.suppress(ValueError):
        return http.HTTPStatus(status).phrase
    return ""


def _request_of(head: h11.Request, headers: dict[bytes, bytes], peer: str, certified: bool) -> Request:
    target = head.target.decode("latin-1")
    if not target.startswith("/"):
        with contextlib.suppress(ValueError):  # an absolute form that is no URL is simply not found
            target = urlsplit(target).path or "/"
    return Request(
        method=head.method,
        path=target.partition("?")[0],
        accept=",".join(value.decode("latin-1") for name, value in head.headers if name == b"accept"),
        authorization=headers.get(b"authorization", b""),
        peer=peer,
        certified=certified,
    )
