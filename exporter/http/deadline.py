"""Sockets that keep one deadline over a whole HTTP exchange, and that another thread can abort.

httpx's time-outs are per socket operation: a peer that sends one byte a second outlives any of them, in the body and in
the headers, where no caller's code runs. So the clock is watched where the bytes pass: `Wire` is the network backend
below the HTTP library, and every wait in it (lookup, connect, TLS, send, receive) ends by the time given to `begin`.
Waits are cut into slices of a quarter second so that `abort` is noticed without a wake-up pipe.

Nothing is translated here: what comes out is `OSError` (time-outs are `TimeoutError`), `Aborted` or `Flooded`; who
calls looks at `stage` to know how far the exchange got.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, Protocol

import httpcore
import httpx

SLICE_SECONDS = 0.25
_PENDING = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN})


class Aborted(Exception):
    """Somebody called `abort`."""


class Flooded(Exception):
    """The peer sent more bytes in one exchange than any honest answer needs."""


class Stage(Enum):
    """How far the exchange got; decides whose fault an `OSError` is."""

    CONNECT = "connect"
    TLS = "tls"
    EXCHANGE = "exchange"


class Resolve(Protocol):
    """`socket.getaddrinfo`, or something of its shape."""

    def __call__(self, host: str, port: int, *, type: int, flags: int = 0) -> list[Any]: ...


class Wire(httpcore.NetworkBackend):
    """The sockets of one client. One exchange at a time, from one thread; only `abort` may come from another."""

    def __init__(self, *, monotonic: Callable[[], float], resolve: Resolve, connect_seconds: float) -> None:
        self._monotonic = monotonic
        self._resolve = resolve
        self._connect_seconds = connect_seconds
        self._lookup: _Lookup | None = None
        self._aborted = False
        self._deadline = 0.0
        self._allowance = 0
        self.begin(0.0, allowance=0)

    def begin(self, seconds: float, *, allowance: int) -> None:
        """Start an exchange: it ends within `seconds` and receives at most `allowance` bytes, headers included."""
        self._deadline = self._monotonic() + seconds
        self._allowance = allowance
        self.restart()

    def restart(self) -> None:
        """The same exchange once more, under the same deadline."""
        self.stage = Stage.EXCHANGE  # a connection kept alive starts here; `connect_tcp` says otherwise
        self.received = 0
        self.connected = False
        self.ended = False

    def shorten(self, seconds: float) -> None:
        """What is still to come is worth at most `seconds`."""
        self._deadline = min(self._deadline, self._monotonic() + seconds)

    def abort(self) -> None:
        """End the exchange in flight within a slice, and every later one at once. Callable from any thread."""
        self._aborted = True

    def slice(self, deadline: float | None = None) -> float:
        """How long the next wait may be, in seconds. Raises TimeoutError or Aborted when there is none left."""
        if self._aborted:
            raise Aborted("the client was told to stop")
        left = (self._deadline if deadline is None else min(deadline, self._deadline)) - self._monotonic()
        if left <= 0:
            raise TimeoutError("not done in the time given")
        return min(left, SLICE_SECONDS)

    def took(self, data: bytes) -> bytes:
        """Account for received bytes. Raises Flooded over the allowance: endless 1xx answers, headers or trailers."""
        self.received += len(data)
        self.ended = self.ended or not data
        if self.received > self._allowance:
            raise Flooded("more bytes than any answer needs")
        return data

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002  the library's per-operation time-outs are not used
        local_address: str | None = None,  # noqa: ARG002  part of the library's signature
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002  part of the library's signature
    ) -> httpcore.NetworkStream:
        """Connect to the first address that answers; the time left is shared out among those still to be tried."""
        self.connected = True
        self.stage = Stage.CONNECT
        until = self._monotonic() + self._connect_seconds
        addresses = self._addresses(host, port, until)
        failure: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            now = self._monotonic()
            share = (min(until, self._deadline) - now) / (len(addresses) - position)
            try:
                sock = self._open(socket.socket(family, kind, protocol), address, now + share)
            except OSError as error:
                failure = error
                continue
            self.stage = Stage.EXCHANGE
            return _Stream(sock, self)
        raise failure

    def _open(self, sock: socket.socket, address: Any, until: float) -> socket.socket:
        try:
            sock.setblocking(False)
            code = sock.connect_ex(address)
            while code in _PENDING:
                if not _ready(sock, selectors.EVENT_WRITE, self.slice(until)):
                    continue
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, errno.errorcode.get(code, "connect failed"))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        return sock

    def _addresses(self, host: str, port: int, until: float) -> list[Any]:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            pass  # a name: only a lookup that can be left behind keeps the deadline
        if self._lookup is None or self._lookup.wanted != (host, port):
            self._lookup = _Lookup(self._resolve, host, port)
        while self._lookup.is_alive():
            self._lookup.join(self.slice(until))
        lookup, self._lookup = self._lookup, None
        return lookup.result()


class _Lookup(threading.Thread):
    """One name lookup on a thread of its own: the C library's cannot be interrupted and may take half a minute.

    One that is not back in time is waited for again by the next attempt, so at most one thread is ever stuck.
    """

    def __init__(self, resolve: Resolve, host: str, port: int) -> None:
        super().__init__(name="metadata-lookup", daemon=True)
        self.wanted = (host, port)
        self._resolve = resolve
        self._addresses: list[Any] = []
        self._error: OSError | None = None
        self.start()

    def run(self) -> None:
        host, port = self.wanted
        try:
            self._addresses = self._resolve(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            self._error = error
        except UnicodeError as error:  # a label that is too long or empty
            self._error = socket.gaierror(socket.EAI_NONAME, str(error))

    def result(self) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._addresses


class _Stream(httpcore.NetworkStream):
    """One connection whose waits are the wire's slices."""

    def __init__(self, sock: socket.socket, wire: Wire) -> None:
        self._sock = sock
        self._wire = wire

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002  see connect_tcp
        while True:
            self._sock.settimeout(self._wire.slice())
            try:
                return self._wire.took(self._sock.recv(max_bytes))
            except TimeoutError:
                continue  # a slice is over; the wire says when the whole time is

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002  see connect_tcp
        rest = memoryview(buffer)
        while rest:
            self._sock.settimeout(self._wire.slice())
            try:
                rest = rest[self._sock.send(rest) :]
            except TimeoutError:
                continue
            except OSError as error:
                # The one error the library forgives: a peer may answer and close before it has read everything.
                raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002  see connect_tcp
    ) -> httpcore.NetworkStream:
        self._wire.stage = Stage.TLS
        self._sock.settimeout(SLICE_SECONDS)
        try:
            secure = ssl_context.wrap_socket(self._sock, server_hostname=server_hostname, do_handshake_on_connect=False)
        except BaseException:
            self._sock.close()
            raise
        try:
            self._shake_hands(secure)
        except BaseException:
            secure.close()
            raise
        self._wire.stage = Stage.EXCHANGE
        return _Stream(secure, self._wire)

    def _shake_hands(self, secure: ssl.SSLSocket) -> None:
        while True:
            secure.settimeout(self._wire.slice())
            try:
                secure.do_handshake()
            except TimeoutError:
                continue
            return

    def get_extra_info(self, info: str) -> Any:
        """What the library asks before it reuses a connection: readable while idle means closed by the peer."""
        if info == "is_readable":
            return _ready(self._sock, selectors.EVENT_READ, 0)
        return self._sock if info == "socket" else None


_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


def _ready(sock: socket.socket, event: int, seconds: float) -> bool:
    """Whether `sock` is ready for `event` within `seconds`. By poll: `select` fails from descriptor 1024, and epoll
    takes a descriptor of its own, so that an agent without one left could not even read what it is connected to."""
    with _Selector() as selector:
        selector.register(sock, event)
        return bool(selector.select(seconds))


def http_client(wire: Wire, tls: ssl.SSLContext | None) -> httpx.Client:
    """A client whose every request asks as the metadata service wants to be asked."""
    return httpx.Client(
        transport=_Transport(wire, tls),
        trust_env=False,
        follow_redirects=False,
        timeout=None,  # noqa: S113  # the wire keeps the time
        headers={
            "Metadata": "true",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "azure-scheduled-events-exporter",
        },
    )


class _Transport(httpx.BaseTransport):
    """httpx's public seam, with our sockets below it: httpx's own transport takes no network backend.

    It knows no proxy. What would make httpx parse a redirect's target, which can fail in ways of its own, or keep a
    cookie is dropped here.
    """

    def __init__(self, wire: Wire, tls: ssl.SSLContext | None) -> None:
        self._pool = httpcore.ConnectionPool(ssl_context=tls, keepalive_expiry=None, network_backend=wire)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        answer = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            status_code=answer.status,
            headers=[(name, value) for name, value in answer.headers if name.lower() not in _UNWANTED],
            stream=_Body(answer),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        self._pool.close()


_UNWANTED = frozenset({b"location", b"set-cookie"})


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        return self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()
