"""No connection is held open by a client that makes little progress and never reads its responses."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from exporter.web.connection import Limits
from tests.support import connection_flood
from tests.support.web_target import ASK, METRICS, Pages, is_closed, read_all, send, serving

QUICK = Limits(head_seconds=0.4, exchange_seconds=0.6, idle_seconds=0.6, linger_seconds=0.2)
pytestmark = pytest.mark.linux("has buffers of a network by TCP_MAXSEG, and sees by poll that a connection was closed")

LONG_SECONDS = 20.0
"""Far more than the limits of these tests, even on a machine that stalls."""
OFTEN_SECONDS = 0.2
HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
HALF_A_BODY = b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n"


@contextlib.contextmanager
def narrow(address: tuple[str, int], first: bytes) -> Iterator[socket.socket]:
    """A client with the buffers of a network, not of loopback."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection_flood.narrow(sock)
        sock.settimeout(30)
        sock.connect(address)
        sock.setblocking(False)
        send(sock, first)
        yield sock


def requests_health(sock: socket.socket) -> None:
    send(sock, HEALTHY)


def requests_metrics(sock: socket.socket) -> None:
    send(sock, ASK % b"")


def reads_a_byte(sock: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        sock.recv(1)


def sends_a_byte(sock: socket.socket) -> None:
    send(sock, b"a")


@pytest.mark.parametrize(
    ("first", "again"),
    [
        pytest.param(HEALTHY, requests_health, id="asks-for-little-without-reading"),
        pytest.param(ASK % b"", requests_metrics, id="asks-for-much-without-reading"),
        pytest.param(ASK % b"", reads_a_byte, id="reads-byte-by-byte"),
        pytest.param(HEALTHY[:10], sends_a_byte, id="head-byte-by-byte"),
        pytest.param(HEALTHY, sends_a_byte, id="second-head-byte-by-byte"),
        pytest.param(HALF_A_BODY, sends_a_byte, id="body-byte-by-byte"),
        pytest.param(HEALTHY[:-2] + b"X: y\r\n\r\n", reads_a_byte, id="falls-silent"),
    ],
)
def test_a_client_that_makes_little_progress_is_closed(first: bytes, again: Callable[[socket.socket], None]) -> None:
    """The limits are for a whole state: neither a byte nor another request extends them."""
    with serving(Pages(b"# filled\n" * 30_000), limits=QUICK) as address, narrow(address, first) as sock:
        end = time.monotonic() + LONG_SECONDS
        while not is_closed(sock) and time.monotonic() < end:
            time.sleep(OFTEN_SECONDS)
            again(sock)
        assert is_closed(sock)


def test_an_early_next_request_does_not_lose_the_current_response() -> None:
    """A client that sends a request during a response gets that response completely, then its connection ends."""
    page = b"# filled\n" * 30_000
    with serving(Pages(page), limits=Limits()) as address, narrow(address, ASK % b"") as sock:
        time.sleep(OFTEN_SECONDS)
        send(sock, ASK % b"")
        received = read_all(sock, 30)
    assert received.partition(b"\r\n\r\n")[2] == page + METRICS
    assert received.count(b"HTTP/1.1 200 OK") == 1
