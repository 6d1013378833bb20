"""A flood that uses up all connections of the scrape endpoint, and a legitimate scraper at a network distance."""

from __future__ import annotations

import collections
import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from tests.support.systems import WINDOWS
from tests.support.web_target import METRICS, is_closed

FAR_SECONDS: Final = 0.03
"""Round-trip time between the scraper and the endpoint."""
LEAST: Final = 4
"""The minimum number of scrapes, however long they take."""
TIMEOUT_SECONDS: Final = 10.0
"""Prometheus' timeout for a scrape."""
CONNECTIONS: Final = 512
"""The maximum number of connections of the endpoint."""
HANDSHAKE_SECONDS: Final = 2.0
KEPT: Final = 800
SEGMENT: Final = 1448
"""Bytes, as on Ethernet: with loopback's 64 KiB the kernel buffers megabytes that are never read, and no write
blocks."""

FirstBytes = Callable[[int], bytes]
"""The bytes that the n-th client sends once it is connected, and has completed TLS if the endpoint uses it."""


def narrow(sock: socket.socket) -> None:
    """Use segments as on Ethernet; to be called before connecting. Windows lacks this option, and has smaller
    buffers."""
    if not WINDOWS:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)


def hosts(number: int) -> list[str]:
    """Return this many addresses of this machine, none of them 127.0.0.1."""
    return [f"127.0.{7 + host // 250}.{1 + host % 250}" for host in range(number)]


class Crowd:
    """Clients that send once and then never read: `size` at once, then `rate` a second."""

    def __init__(
        self,
        address: tuple[str, int],
        first: FirstBytes,
        *,
        sources: list[str],
        context: ssl.SSLContext | None = None,
        rate: float = 100.0,
        size: int = CONNECTIONS,
    ) -> None:
        self._address, self._first, self._context = address, first, context
        self._sources = itertools.cycle(sources)
        self._rate, self._size = rate, size
        self._members: collections.deque[socket.socket] = collections.deque()
        self._numbers = itertools.count()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep_coming, daemon=True)

    def __enter__(self) -> Self:
        for _ in range(self._size):
            self._connect_one()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(30)
        for member in self._members:
            member.close()

    def _keep_coming(self) -> None:
        due = time.monotonic()
        while not self._done.wait(max(0.0, due - time.monotonic())):
            due = max(due, time.monotonic() - 1.0) + 1.0 / self._rate  # more than a second late: skip the delay
            self._connect_one()

    def _connect_one(self) -> None:
        """Connect and send; sockets that the endpoint has closed are closed here only once there are many."""
        member = socket.socket()
        member.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        narrow(member)
        member.settimeout(HANDSHAKE_SECONDS)
        try:
            member.bind((next(self._sources), 0))
            member.connect(self._address)
            data = self._first(next(self._numbers))
            if self._context is not None and data:
                member = self._context.wrap_socket(member, server_hostname="localhost")
            member.setblocking(False)
            member.send(data)
        except OSError:  # the endpoint may close any of them
            member.close()
            return
        self._members.append(member)
        if len(self._members) > KEPT:
            oldest = self._members.popleft()
            if is_closed(oldest):
                oldest.close()
            else:
                self._members.append(oldest)


class Scraper:
    """A scraper like Prometheus, with a round trip of 30 ms: keeps its connection, and reconnects if it was closed."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        context: ssl.SSLContext | None = None,
        headers: bytes = b"",
        source: str = "127.0.0.1",
        keep: bool = True,
    ) -> None:
        self._address, self._context, self._source = address, context, source
        self._request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + headers
        self._request += b"\r\n" if keep else b"Connection: close\r\n\r\n"
        self._keep = keep
        self._line: Line | None = None

    def answered(self, seconds: float, interval: float = 0.2) -> list[bool]:
        """Return whether each scrape got its page, for this many seconds, and for at least `LEAST` on a slow
        machine."""
        end, answers = time.monotonic() + seconds, list[bool]()
        while time.monotonic() < end or len(answers) < LEAST:
            answers.append(self.scrape())
            time.sleep(interval)
        return answers

    def scrape(self) -> bool:
        """Return True if a 200 with the whole page came in time."""
        kept, self._line = self._line, None
        if kept is not None:
            try:
                return self._ask(kept)
            except OSError:
                kept.close()
                if kept.received_any:
                    return False
        line = None
        try:
            line = Line(self._address, self._source, self._context)
            return self._ask(line)
        except OSError:
            if line is not None:
                line.close()
            return False

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def _ask(self, line: Line) -> bool:
        """Read the rest. Raises OSError if the connection ends before the page does."""
        line.send(self._request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += line.receive()
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += line.receive()
        if self._keep:
            self._line = line
        else:
            line.close()
        return head.startswith(b"HTTP/1.1 200 ") and body.endswith(METRICS[-20:])


class Line:
    """A connection with the delay of a network: data takes 30 ms."""

    def __init__(self, address: tuple[str, int], source: str, context: ssl.SSLContext | None) -> None:
        self._end = time.monotonic() + TIMEOUT_SECONDS
        self._socket = socket.socket()
        narrow(self._socket)
        self._socket.settimeout(TIMEOUT_SECONDS)
        self._tls: ssl.SSLObject | None = None
        self.received_any = False
        try:
            self._socket.bind((source, 0))
            self._socket.connect(address)
            if context is not None:
                self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
                self._through_tls(self._tls.do_handshake)
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._end, self.received_any = time.monotonic() + TIMEOUT_SECONDS, False
        if self._tls is not None:
            tls = self._tls
            self._through_tls(lambda: tls.write(data))
            return
        time.sleep(FAR_SECONDS)
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """Read more of the response; `received_any` is True from then on. Raises OSError at its end."""
        if self._tls is None:
            data = self._received()
        else:
            tls, read = self._tls, list[bytes]()
            self._through_tls(lambda: read.append(tls.read(65536)))
            data = read[0]
        if not data:
            raise ConnectionError("closed")
        self.received_any = True
        return data

    def _received(self) -> bytes:
        self._socket.settimeout(max(0.001, self._end - time.monotonic()))
        return self._socket.recv(65536)

    def _through_tls(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except ssl.SSLWantReadError:
                self._flush()
                received = self._received()
                if not received:
                    raise ConnectionError("closed") from None
                self._incoming.write(received)
            else:
                self._flush()
                return

    def _flush(self) -> None:
        if self._outgoing.pending:
            time.sleep(FAR_SECONDS)
            self._socket.sendall(self._outgoing.read())


@contextlib.contextmanager
def scraper(address: tuple[str, int], **how: object) -> Iterator[Scraper]:
    """Yield a `Scraper`; close its connection at the end."""
    running = Scraper(address, **how)  # type: ignore[arg-type]  # the arguments of Scraper, as they are
    try:
        yield running
    finally:
        running.close()
