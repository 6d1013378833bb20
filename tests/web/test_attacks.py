"""The HTTP server under attack, measured from outside. `web.server` has the promises, `Limits` the numbers."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable

import pytest

from exporter.web.connection import Limits
from exporter.web.server import max_connections
from tests.support.web_target import (
    ASK,
    METRICS,
    SLOWEST_SECONDS,
    Pages,
    Target,
    connect,
    is_closed,
    read_all,
    scrape_seconds,
    send,
    serving,
    target,
)

QUICK = Limits(head_seconds=0.3, exchange_seconds=0.6, linger_seconds=0.2)
HALF_A_HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: "
PROMISED_SECONDS, PROMISED_THREADS, PROMISED_KIB = 10.0, 40, 60 * 1024
BUSY_SECONDS = 10.0  # tolerance for a busy machine; a connection that is never closed is still open after it


def wait_until_closed(socks: list[socket.socket], seconds: float, meanwhile: Callable[[], None]) -> list[socket.socket]:
    """Return the sockets that are open at the end of the time. Call `meanwhile` about ten times a second."""
    end = time.monotonic() + seconds
    left = socks
    while left and time.monotonic() < end:
        meanwhile()
        left = [sock for sock in left if not is_closed(sock)]
        with selectors.DefaultSelector() as pause:
            pause.select(0.1)
    return left


def attack(running: Target, socks: list[socket.socket], drip: Callable[[], None]) -> None:
    """Hold these sockets open as long as possible; every promise must hold meanwhile."""
    slowest, most_memory, most_threads = 0.0, 0, 0

    def look() -> None:
        nonlocal slowest, most_memory, most_threads
        drip()
        slowest = max(slowest, scrape_seconds(running.address))
        most_memory = max(most_memory, running.status("VmRSS"))
        most_threads = max(most_threads, running.status("Threads"))

    before = running.status("VmRSS")
    left = wait_until_closed(socks, PROMISED_SECONDS + BUSY_SECONDS, look)
    for sock in socks:
        sock.close()
    assert not left, f"{len(left)} of {len(socks)} are still open"
    assert slowest < SLOWEST_SECONDS
    assert most_threads <= PROMISED_THREADS
    assert most_memory - before <= PROMISED_KIB


def test_default_limits_keep_the_promise() -> None:
    """The connection of a client is closed after at most 10 s."""
    limits = Limits()
    longest = max(limits.head_seconds, limits.exchange_seconds, limits.idle_seconds)
    assert longest + limits.linger_seconds <= PROMISED_SECONDS


@pytest.mark.linux("measures the server in /proc")
@pytest.mark.not_emulated("judges seconds and memory of the server")
def test_four_hundred_hostile_connections_delay_no_scrape() -> None:
    """Silent, half-sent, dripping, greedy, and never reading clients are all closed, and so are those gone silent."""
    with target() as running:
        scrape_seconds(running.address)
        silent = [connect(running.address) for _ in range(40)]
        served = [connect(running.address, ASK % b"") for _ in range(40)]
        dripping = [connect(running.address, HALF_A_HEAD) for _ in range(80)]
        greedy = [connect(running.address, HALF_A_HEAD + b"a" * 15_000) for _ in range(80)]
        unread = [connect(running.address, ASK % b"", receive_buffer=2048) for _ in range(80)]
        piped = [connect(running.address, ASK % b"" * 400, receive_buffer=2048) for _ in range(80)]

        def drip() -> None:
            for sock in dripping:
                send(sock, b"b")

        attack(running, silent + served + dripping + greedy + unread + piped, drip)
        assert running.stop() == ""


@pytest.mark.parametrize(
    ("first", "more"),
    [
        pytest.param(
            b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n", b"a" * 65536, id="body"
        ),
        pytest.param(HALF_A_HEAD + b"a" * 60_000, b"a" * 65536, id="huge-head"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", b"\x00", id="tls-where-none-is"),
        pytest.param(
            b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n", id="chunks"
        ),
    ],
)
@pytest.mark.linux("measures the server in /proc")
@pytest.mark.not_emulated("judges seconds and memory of the server")
def test_invalid_requests_are_refused_at_once(first: bytes, more: bytes) -> None:
    """400 clients whose request is invalid from the start are closed long before the limit, with bounded memory."""
    with target("--seconds", "600") as running:
        scrape_seconds(running.address)
        socks = [connect(running.address, first) for _ in range(400)]

        def insist() -> None:
            for sock in socks:
                send(sock, more)

        attack(running, socks, insist)


@pytest.mark.not_emulated("judges how many seconds a scrape takes")
def test_oldest_connections_are_evicted_beyond_the_limit() -> None:
    """With three times the limit, new connections are served and the oldest are closed first."""
    with serving(limits=Limits(connections=20)) as address:
        socks = [connect(address) for _ in range(60)]
        assert scrape_seconds(address) < SLOWEST_SECONDS
        assert all(is_closed(sock) for sock in socks[:40])
        assert not is_closed(socks[-1])
        for sock in socks:
            sock.close()


def test_idle_connections_are_evicted_before_those_that_send_a_request() -> None:
    """A connection whose response was read is closed before an older one that is sending its request."""
    with serving(limits=Limits(connections=4)) as address:
        asking = connect(address, HALF_A_HEAD)
        idle = connect(address, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        idle.settimeout(30)
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        others = [connect(address) for _ in range(2)]
        assert scrape_seconds(address) < SLOWEST_SECONDS
        assert is_closed(idle)
        assert not is_closed(asking)
        for sock in (asking, idle, *others):
            sock.close()


@pytest.mark.linux("limits the descriptors of a process")
@pytest.mark.not_emulated("judges seconds and memory of the server")
def test_the_file_descriptor_limit_is_survived_quietly() -> None:
    """With 64 file descriptors and 150 connections, scrapes work, the CPU is idle, and the log stays short."""
    with target("--nofile", "64") as running:
        scrape_seconds(running.address)
        socks = [connect(running.address) for _ in range(150)]
        before, begun = running.processor_seconds(), time.monotonic()
        slowest = 0.0
        while time.monotonic() - begun < 2:
            slowest = max(slowest, scrape_seconds(running.address))
            with selectors.DefaultSelector() as pause:
                pause.select(0.1)
        assert slowest < SLOWEST_SECONDS
        assert running.processor_seconds() - before < 0.5
        for sock in socks:
            sock.close()
        assert len(running.stop().splitlines()) <= 1


@pytest.mark.linux("limits the descriptors of a process")
@pytest.mark.not_emulated("judges how many seconds a scrape takes")
def test_descriptors_used_by_the_rest_of_the_process_are_survived() -> None:
    """If the rest of the process leaves almost no descriptors, idle connections are closed and the agent warns once."""
    with target("--nofile", "24", "--waste", "8") as running:
        socks = [connect(running.address) for _ in range(40)]
        assert scrape_seconds(running.address) < SLOWEST_SECONDS
        before = running.processor_seconds()
        with selectors.DefaultSelector() as pause:
            pause.select(1.0)
        assert running.processor_seconds() - before < 0.3
        for sock in socks:
            sock.close()
        assert running.stop().count("web.out_of_file_descriptors") == 1


def test_connections_get_half_of_the_descriptors() -> None:
    """The agent's files and connections keep the other half."""
    assert max_connections(10) == 10
    assert 1 <= max_connections(10**9) < 10**9


def test_a_half_sent_request_is_answered_408() -> None:
    """A client that started a request and stopped gets a 408; one that sent nothing gets nothing."""
    with serving(limits=QUICK) as address:
        half, silent = connect(address, HALF_A_HEAD), connect(address)
        assert read_all(half).startswith(b"HTTP/1.1 408 ")
        assert read_all(silent) == b""
        half.close()
        silent.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (HALF_A_HEAD + b"a" * 20_000, b"431"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"\x00\xff\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n", b"400"),
        (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"4"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", b"413"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n\r\n", b"200"),
    ],
)
def test_malformed_requests_get_the_matching_status(request_bytes: bytes, status: bytes) -> None:
    """An invalid request gets the HTTP status for its error, then the connection ends."""
    with serving(limits=QUICK) as address:
        sock = connect(address, request_bytes)
        assert read_all(sock).startswith(b"HTTP/1.1 " + status)
        sock.close()


def test_first_of_pipelined_requests_is_answered() -> None:
    """The first of several requests sent at once gets a complete response with `Connection: close`, the others none."""
    pages = Pages()
    with serving(pages, limits=QUICK) as address:
        sock = connect(address, ASK % b"" * 50)
        received = read_all(sock)
        sock.close()
    assert received.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in received
    assert received.endswith(METRICS)


def test_an_idle_connection_has_its_own_limit() -> None:
    """A client that completed a request may be silent for the idle limit, then its connection is closed."""
    limits = Limits(head_seconds=0.2, exchange_seconds=0.3, idle_seconds=1.5)
    with serving(limits=limits) as address:
        sock = connect(address, ASK % b"")
        sock.settimeout(30)
        received = b""
        while not received.endswith(METRICS):
            received += sock.recv(65536)
        begun = time.monotonic()
        assert read_all(sock) == b""
        assert 1 < time.monotonic() - begun < 20
        sock.close()


def test_a_client_that_was_refused_gets_no_idle_time() -> None:
    """A connection whose request was refused is closed long before one that waits between two scrapes."""
    with serving(limits=Limits(exchange_seconds=0.3, idle_seconds=30)) as address:
        sock = connect(address, b"GET /nope HTTP/1.1\r\nHost: x\r\n\r\n")
        begun = time.monotonic()
        assert read_all(sock).startswith(b"HTTP/1.1 404 ")
        assert time.monotonic() - begun < 15  # half of what an idle scraper has
        sock.close()


def test_a_later_request_has_the_same_limits_as_the_first() -> None:
    """After a valid request, a half-sent second one is closed like a half-sent first one."""
    with serving(limits=Limits(head_seconds=0.3, idle_seconds=30)) as address:
        sock = connect(address, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        sock.settimeout(30)
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        begun = time.monotonic()
        send(sock, HALF_A_HEAD)
        assert read_all(sock).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - begun < 15  # half of what an idle scraper has
        sock.close()


def test_a_client_that_never_pauses_delays_no_other() -> None:
    """While one keep-alive client sends requests without a pause, another client's scrape is as fast as before."""
    with target() as running:
        with socket.create_connection(running.address, 5) as hasty:
            hasty.setblocking(False)
            end, slowest = time.monotonic() + 1, 0.0
            while time.monotonic() < end:
                send(hasty, b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
                try:
                    hasty.recv(65536)
                except BlockingIOError:
                    slowest = max(slowest, scrape_seconds(running.address))
                except OSError:
                    break
        assert slowest < SLOWEST_SECONDS
