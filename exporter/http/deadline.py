"""Sockets with one deadline for a whole HTTP exchange, which another thread can abort.

The timeouts of HTTP libraries apply to one socket operation: a peer that sends one byte a second exceeds none of them.
Here every wait (lookup, connect, TLS, send, receive) ends by the deadline given to `Exchange.begin`. Waits are cut into
slices of a quarter second, so that `abort` takes effect without a wake-up pipe.

Exceptions are not translated here: calls raise `OSError` (`TimeoutError` for timeouts), `Aborted`, or `Flooded`, and
`Exchange.stage` shows how far the exchange got.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from exporter.daemon import DaemonCall

T = TypeVar("T")

SLICE_SECONDS: Final = 0.25
_PENDING: Final = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN})
_WINSOCK: Final[Mapping[int, str]] = getattr(socket, "errorTab", {})
"""Texts of Windows' socket errors, which `os.strerror` doesn't know; empty on other systems."""
_READ_BYTES: Final = 65536
_HEADER_BYTES: Final = 256 * 1024


class Aborted(Exception):
    """`Exchange.abort` was called."""


class Flooded(Exception):
    """The peer sent or announced more bytes than the exchange allows, or than any valid response needs."""


class Disconnected(ConnectionError):
    """The peer closed the connection before or in the response's headers."""


class Stage(Enum):
    """How far the exchange got; callers use it to classify an `OSError`."""

    CONNECT = "connect"
    TLS = "tls"
    EXCHANGE = "exchange"


Resolve = Callable[..., list[Any]]
"""`socket.getaddrinfo` or a compatible function: called with host, port, and `type`; it may raise OSError."""


class Exchange:
    """The limits of one exchange in time and bytes, and its progress.

    One exchange at a time, from one thread; only `abort` may come from another. The caller reads `stage`, `received`
    (bytes of the response), `ended` (the peer closed its side), and `unsent` (`leave` permitted the request, and no
    byte of it is written yet).
    """

    def __init__(self, monotonic: Callable[[], float], waiting: Callable[[], None] = lambda: None) -> None:
        """Create an idle exchange. `waiting` is called about once a slice on its thread, with or without data."""
        self.monotonic = monotonic
        self._waiting = waiting
        self._waiting_due = 0.0
        self._aborted = False
        self._deadline = 0.0
        self._max_bytes = 0
        self._leave: Callable[[], None] = lambda: None
        self._left: Callable[[], None] = lambda: None
        self.restart()

    def begin(
        self,
        seconds: float,
        *,
        max_bytes: int,
        leave: Callable[[], None] = lambda: None,
        left: Callable[[], None] = lambda: None,
    ) -> None:
        """Start an exchange that ends within `seconds` and receives a body of at most `max_bytes`.

        `leave` is called right before the request's first byte is written; if it raises, nothing is sent. `left` is
        called right after the system has accepted that byte.
        """
        now = self.monotonic()
        self._deadline, self._waiting_due = now + seconds, now + SLICE_SECONDS
        self._max_bytes = max_bytes
        self._leave, self._left = leave, left
        self.restart()

    def restart(self) -> None:
        """Start the same exchange again, under the same deadline."""
        self.stage = Stage.EXCHANGE  # for a kept connection; a new one starts with CONNECT
        self.received = 0
        self.ended = False
        self.unsent = False

    def leave(self) -> None:
        """Call the `leave` of `begin`. Raises what that raises; then nothing may be sent."""
        self._leave()
        self.unsent = True

    def wrote(self) -> None:
        """Register that bytes were written. If they are the request's first, call the `left` of `begin`."""
        if self.unsent:
            self.unsent = False
            self._left()

    def prolong(self, seconds: float) -> None:
        """Move the deadline to `seconds` from now."""
        self._deadline = self.monotonic() + seconds

    def shorten(self, seconds: float) -> None:
        """Move the deadline to at most `seconds` from now."""
        self._deadline = min(self._deadline, self.monotonic() + seconds)

    def abort(self) -> None:
        """End the exchange in flight within a slice, and later ones at once. May be called from any thread."""
        self._aborted = True

    def slice(self, deadline: float | None = None) -> float:
        """Return the length of the next wait in seconds. Raises TimeoutError or Aborted if no time is left.

        Every wait calls this first, so `waiting` is also called while a peer sends data without a pause.
        """
        if self._aborted:
            raise Aborted("the request was aborted")
        now = self.monotonic()
        left = (self._deadline if deadline is None else min(deadline, self._deadline)) - now
        if left <= 0:
            raise TimeoutError("deadline exceeded")
        if now >= self._waiting_due:
            self._waiting_due = now + SLICE_SECONDS
            self._waiting()
        return min(left, SLICE_SECONDS)

    def count(self, data: bytes) -> bytes:
        """Count received bytes. Raises Flooded for endless 1xx responses, headers, or trailers.

        The limit is twice the body, since chunk framing at most doubles it, plus 256 KiB of headers.
        """
        self.received += len(data)
        self.ended = self.ended or not data
        if self.received > 2 * self._max_bytes + _HEADER_BYTES:
            raise Flooded("the peer sent more bytes than a valid response needs")
        return data

    def check_body(self, size: int) -> None:
        """Raise Flooded if a body of this size is longer than the exchange allows."""
        if size > self._max_bytes:
            raise Flooded(f"the response is longer than {self._max_bytes} bytes")

    def within(self, seconds: float) -> float:
        """Return the monotonic time `seconds` from now, at most the deadline."""
        return min(self._deadline, self.monotonic() + seconds)


class DeadlineStream(Protocol):
    """A byte stream that waits in slices of its exchange."""

    def receive(self) -> bytes:
        """Return at least one received byte; b"" at the end. Raises OSError, TimeoutError, or Aborted."""

    def send(self, data: bytes) -> None:
        """Send all of `data`. Raises OSError, TimeoutError, or Aborted."""

    def is_readable(self) -> bool:
        """Return whether `receive` would return at once; also True at the end of the stream."""

    def close(self) -> None:
        """Close the connection without waiting for anything."""


class Dialer:
    """The opener of a client's TCP connections. `connect_seconds` limits each one, within the exchange's deadline."""

    def __init__(self, exchange: Exchange, resolve: Resolve, connect_seconds: float) -> None:
        self._exchange = exchange
        self._resolve = resolve
        self._connect_seconds = connect_seconds
        self._lookup: DaemonCall[list[Any]] | None = None
        self._looked_up = ("", 0)

    def connect(self, host: str, port: int) -> TcpStream:
        """Connect to the first address that accepts. The remaining addresses share the time left equally."""
        self._exchange.stage = Stage.CONNECT
        until = self._exchange.within(self._connect_seconds)
        addresses = self._addresses(host, port, until)
        failure: OSError = OSError(errno.EADDRNOTAVAIL, "no address")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            now = self._exchange.monotonic()
            share = (until - now) / (len(addresses) - position)
            try:
                sock = self._open(socket.socket(family, kind, protocol), address, now + share)
            except OSError as error:
                failure = error
                continue
            self._exchange.stage = Stage.EXCHANGE
            return TcpStream(sock, self._exchange)
        raise failure

    def _open(self, sock: socket.socket, address: Any, until: float) -> socket.socket:
        try:
            sock.setblocking(False)
            code = sock.connect_ex(address)
            while code in _PENDING:
                if _ready(sock, selectors.EVENT_WRITE, self._exchange.slice(until)):
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, _WINSOCK.get(code, os.strerror(code)).rstrip("."))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            sock.close()
            raise
        return sock

    def _addresses(self, host: str, port: int, until: float) -> list[Any]:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            pass  # a name: the lookup runs on another thread, which keeps the deadline
        # The next attempt waits for a lookup that didn't end in time: at most one thread is blocked.
        if self._lookup is None or self._looked_up != (host, port):
            look_up = partial(self._resolve, host, port, type=socket.SOCK_STREAM)
            self._lookup, self._looked_up = DaemonCall(look_up, "name-lookup"), (host, port)
        while not wait([self._lookup], self._exchange.slice(until)).done:
            pass
        lookup, self._lookup = self._lookup, None
        try:
            return lookup.result()
        except UnicodeError as error:  # a label that is too long or empty
            raise socket.gaierror(socket.EAI_NONAME, str(error)) from None


class TcpStream:
    """A `DeadlineStream` over one connected socket."""

    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self._sock = sock
        self._exchange = exchange
        self._wait: float | None = None

    def receive(self) -> bytes:
        """See `DeadlineStream`."""
        while True:
            self._wait_at_most(self._exchange.slice())
            with contextlib.suppress(TimeoutError):  # the slice ended; the next `slice` raises at the deadline
                return self._sock.recv(_READ_BYTES)

    def send(self, data: bytes) -> None:
        """See `DeadlineStream`."""
        rest = memoryview(data)
        while rest:
            self._wait_at_most(self._exchange.slice())
            with contextlib.suppress(TimeoutError):
                rest = rest[self._sock.send(rest) :]
                self._exchange.wrote()

    def is_readable(self) -> bool:
        """See `DeadlineStream`."""
        self._wait_at_most(0.0)
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """See `DeadlineStream`."""
        self._sock.close()

    def _wait_at_most(self, seconds: float) -> None:
        if seconds != self._wait:  # usually unchanged: saves a system call
            self._sock.settimeout(seconds)
            self._wait = seconds


class DeadlineTlsStream:
    """A TLS `DeadlineStream` over another one."""

    def __init__(self, below: DeadlineStream, context: ssl.SSLContext, host: str, exchange: Exchange) -> None:
        """Make the handshake with `host`; `context` verifies its certificate.

        Raises what `DeadlineStream` raises, including ssl.SSLError; then the caller closes `below`.
        """
        self._below = below
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        exchange.stage = Stage.TLS
        try:
            self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)
            self._run(self._tls.do_handshake)
        except ssl.SSLError:
            with contextlib.suppress(OSError, Aborted):  # the TLS alert with the reason
                self._flush()
            raise
        exchange.stage = Stage.EXCHANGE

    def receive(self) -> bytes:
        """See `DeadlineStream`. A missing close_notify is accepted: HTTP detects an incomplete response."""
        try:
            return self._run(partial(self._tls.read, _READ_BYTES))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    def send(self, data: bytes) -> None:
        """See `DeadlineStream`."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._run(partial(self._tls.write, rest)) :]

    def is_readable(self) -> bool:
        """See `DeadlineStream`."""
        return self._tls.pending() > 0 or self._received.pending > 0 or self._below.is_readable()

    def close(self) -> None:
        """See `DeadlineStream`."""
        self._below.close()

    def _run(self, action: Callable[[], T]) -> T:
        while True:
            try:
                result = action()
            except ssl.SSLWantReadError:
                self._flush()
                if data := self._below.receive():
                    self._received.write(data)
                else:
                    self._received.write_eof()
                continue
            self._flush()
            return result

    def _flush(self) -> None:
        if self._to_send.pending:
            self._below.send(self._to_send.read())


_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


def _ready(sock: socket.socket, event: int, seconds: float) -> bool:
    """Return whether `sock` is ready for `event` within `seconds`.

    Uses poll: `select` fails from descriptor 1024 on, and epoll needs an additional descriptor.
    """
    with _Selector() as selector:
        selector.register(sock, event)
        return bool(selector.select(seconds))
