"""The metadata client's connections and waits: names, TLS, long first polls, and aborts."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from exporter.http.deadline import SLICE_SECONDS
from exporter.http.tls import default_context
from exporter.metadata.client import MetadataClient
from exporter.metadata.errors import MetadataError
from tests.support.certificates import self_signed
from tests.support.metadata_client import CUT, DOCUMENT, ENDLESS, PLENTY, QUICK, SLACK, client_of, failure, silent
from tests.support.ports import reserved_port
from tests.support.raw_server import Peer, RawServer, answers, answers_once, ok, response


def test_refused_and_unreachable_addresses_are_connect_errors() -> None:
    """A refused connection is `connect`, and so is one to an unreachable address; the detail is the system's text."""
    with reserved_port() as port:
        for host in ("127.0.0.1", "[::1]"):
            with client_of(f"http://{host}:{port}") as client:
                error = failure(client.fetch)
                assert error.reason == "connect"
                assert "rrno" not in error.detail
                assert host == "[::1]" or error.detail == "Connection refused"


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that drops connection attempts: a listener whose queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_connecting_keeps_the_deadline() -> None:
    """A connection that is never accepted costs the normal deadline, even before the first response ever."""
    with black_hole() as url, client_of(url, deadline=QUICK, first_deadline=60.0) as client:
        began = time.monotonic()
        assert failure(client.fetch).reason == "timeout"
        assert time.monotonic() - began < QUICK + SLACK


def test_post_without_a_connection_is_never_sent() -> None:
    """`leave` isn't called, so the agent knows that nothing was sent."""
    asked: list[str] = []
    with black_hole() as url, client_of(url, deadline=QUICK) as client:
        assert failure(lambda: client.approve("A", lambda: asked.append("A"))).reason == "timeout"
    assert asked == []


def test_post_has_the_whole_deadline_for_its_response() -> None:
    """Connecting and the second decision took longer than the deadline: a response after that still counts."""
    late = 0.0
    order: list[str] = []

    def take_long() -> None:
        nonlocal late
        late += 2 * PLENTY
        order.append("leave")

    with (
        RawServer(answers(ok(b""))) as server,
        client_of(server.url, monotonic=lambda: time.monotonic() + late) as client,
    ):
        client.approve("A", take_long, lambda: order.append("left"))
        assert len(server.requests) == 1
    assert order == ["leave", "left"]


def test_post_without_a_written_byte_counts_as_unsent() -> None:
    """The client is aborted during the second decision: the request may be sent, and isn't."""
    left: list[str] = []
    with RawServer(silent) as server, client_of(server.url) as client:
        assert failure(lambda: client.approve("A", client.abort, lambda: left.append("A"))).reason == "aborted"
    assert (left, server.requests) == ([], [])


@pytest.mark.parametrize("answer", [b"", ok(b"")])
def test_post_on_a_connection_broken_before_counts_as_unsent(answer: bytes) -> None:
    """This holds even if the peer had responded 200 before: it can't have read a request that was never sent."""
    connected, broken = threading.Event(), threading.Event()
    left: list[str] = []

    def break_off(peer: Peer) -> None:
        assert connected.wait(30)
        peer.send(answer)
        peer.reset()
        broken.set()

    def wait_for_the_end() -> None:
        connected.set()
        assert broken.wait(30)

    with RawServer(break_off) as server, client_of(server.url) as client:
        error = failure(lambda: client.approve("A", wait_for_the_end, lambda: left.append("A")))
        assert error.reason == "reset"
    assert left == []


def test_post_without_a_response_counts_as_sent() -> None:
    """Its first byte was written, so the peer may have accepted it."""
    left: list[str] = []
    with RawServer(silent) as server, client_of(server.url, deadline=QUICK) as client:
        assert failure(lambda: client.approve("A", left=lambda: left.append("A"))).reason == "timeout"
    assert left == ["A"]


@pytest.mark.parametrize("where", ["connect", "answer", "drip", "lookup"])
def test_waiting_is_called_while_a_poll_waits(where: str) -> None:
    """`waiting` lets the agent observe events meanwhile; it is called on the poll's thread, and not for approvals."""
    calls: list[int] = []
    names = Names()
    with ExitStack() as stack:
        url = "http://nowhere.test"
        if where == "connect":
            url = stack.enter_context(black_hole())
        elif where == "answer":
            url = stack.enter_context(RawServer(silent)).url
        elif where == "drip":
            url = stack.enter_context(RawServer(drips)).url
        client = stack.enter_context(
            client_of(
                url, **{**CUT, "deadline": QUICK}, resolve=names, waiting=lambda: calls.append(threading.get_ident())
            )
        )
        assert failure(client.fetch).reason == "timeout"
        assert set(calls) == {threading.get_ident()}
        calls.clear()
        assert failure(lambda: client.approve("A")).reason == "timeout"
        assert calls == []
        names.answer.set()


def drips(peer: Peer) -> None:
    """Send the head of a response that never ends, without a pause as long as a slice."""
    peer.request()
    peer.drip(ENDLESS(b"H"))


class Names:
    """A resolver with an unknown name, one that blocks until `answer` is set, and one with several addresses."""

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self.asked = 0
        self.answer = threading.Event()

    def __call__(self, host: str, port: int, *, type: int, flags: int = 0) -> list[Any]:
        self.asked += 1
        self.answer.wait(10)
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, f"no such name: {host}, {flags}")
        return [(socket.AF_INET, type, 0, "", (name, port)) for name in self.hosts]


def test_an_unresolvable_name_is_a_dns_error() -> None:
    """A name that doesn't resolve, or can't be a name, is `dns`, not a broken connection."""
    names = Names()
    names.answer.set()
    with client_of("http://metadata.test", resolve=names) as client:
        assert failure(client.fetch).reason == "dns"
    with client_of(f"http://{'x' * 70}.test") as client:
        assert failure(client.fetch).reason == "dns"


def test_a_stuck_lookup_keeps_the_deadline() -> None:
    """A name server that doesn't respond costs the deadline, blocks one thread at most, and is used when it is back."""
    names = Names("127.0.0.2", "127.0.0.1")
    with ExitStack() as stack:
        server = stack.enter_context(RawServer(answers(ok(DOCUMENT))))
        url = f"http://metadata.test:{server.port}"
        client = stack.enter_context(client_of(url, resolve=names, first_deadline=0.5))
        assert [failure(client.fetch).reason for _ in range(3)] == ["timeout"] * 3
        assert names.asked == 1
        names.answer.set()
        assert client.fetch().body == DOCUMENT
        assert b"\r\nHost: metadata.test:" in server.requests[0]


def test_an_https_url_at_a_plain_port_is_a_tls_error() -> None:
    """An https URL at a plain port is a TLS error, and the deadline covers a handshake that never ends.

    The authorities are read before: under emulation that takes seconds.
    """
    context = default_context()

    def refuses(peer: Peer) -> None:
        peer.sock.recv(1)
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.linger()

    with RawServer(refuses) as server, client_of(server.url.replace("http:", "https:")) as client:
        assert failure(client.fetch).reason == "tls"
    with (
        RawServer(Peer.linger) as server,
        client_of(server.url.replace("http:", "https:"), tls=lambda: context, **CUT) as client,
    ):
        began = time.monotonic()
        assert failure(client.fetch).reason == "timeout"
        assert time.monotonic() - began < QUICK + SLACK


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_text("".join(self_signed("loopback")))
    return path


def test_tls_works_and_certificates_are_verified(certificate: Path) -> None:
    """An https URL works, also if handshake and response take several waits; an unknown certificate is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    pause = threading.Event()

    def slow(peer: Peer) -> None:
        pause.wait(2 * SLICE_SECONDS)
        peer.sock = context.wrap_socket(peer.sock, server_side=True)
        with peer.sock:
            while peer.request():
                pause.wait(2 * SLICE_SECONDS)
                peer.send(ok(DOCUMENT))

    trusting = ssl.create_default_context(cafile=str(certificate))
    with RawServer(slow) as server:
        url = server.url.replace("http:", "https:")
        with client_of(url, tls=lambda: trusting, first_deadline=10.0, deadline=10.0) as client:
            assert client.fetch().body == client.fetch().body == DOCUMENT
            assert server.connections == 1
        with client_of(url, first_deadline=10.0, deadline=10.0) as client:
            assert failure(client.fetch).reason == "tls"


def test_the_first_response_may_take_longer() -> None:
    """The long deadline applies until the first 200 ever, through errors; after that the short one does."""
    slow = threading.Event()

    def enabling(peer: Peer) -> None:
        peer.request()
        peer.send(response("500 Internal Server Error"))
        peer.request()
        slow.wait(0.3)
        peer.send(ok(DOCUMENT))
        silent(peer)

    with RawServer(enabling) as server, client_of(server.url, deadline=0.1, first_deadline=PLENTY) as client:
        failure(client.fetch)
        seen = [client.first_answer_seen]
        assert client.fetch().duration > 0.1
        seen.append(client.first_answer_seen)
        assert seen == [False, True]
        began = time.monotonic()
        assert failure(client.fetch).reason == "timeout"
        assert time.monotonic() - began < 0.1 + SLACK


class Later:
    """A monotonic clock that a test can advance by hours."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def patient(client: MetadataClient, polls: int) -> list[bool]:
    """Return which of this many polls that time out had the long first deadline (3 s)."""
    took = []
    for _ in range(polls):
        began = time.monotonic()
        assert failure(client.fetch).reason == "timeout"
        took.append(time.monotonic() - began)
    return [seconds >= 3.0 for seconds in took]


def test_an_hour_without_a_response_allows_one_long_poll() -> None:
    """After an hour one poll waits as long as the first, and after another hour another one."""
    later = Later()
    server = RawServer(answers_once(ok(DOCUMENT)), silent)
    with server, client_of(server.url, monotonic=later, deadline=0.1, first_deadline=3.0) as client:
        client.fetch()
        assert patient(client, 14) == [False] * 14
        later.ahead += 3590
        assert patient(client, 1) == [False]
        for _ in range(2):
            later.ahead += 3600
            assert patient(client, 3) == [True, False, False]


def test_any_response_prevents_a_long_poll() -> None:
    """Any response restarts the hour."""
    later = Later()
    bad = response("500 Internal Server Error")
    server = RawServer(answers(ok(DOCUMENT), *[bad] * 3, b""))
    with server, client_of(server.url, monotonic=later, deadline=2.0, first_deadline=60.0) as client:
        client.fetch()
        for _ in range(3):
            later.ahead += 3000
            assert failure(client.fetch).reason == "server-error"
        later.ahead += 3000
        began = time.monotonic()
        assert failure(client.fetch).reason == "timeout"
        assert time.monotonic() - began < 2 + SLACK


@pytest.mark.parametrize(("ago", "first"), [(0.0, False), (3500.0, False), (3600.0, True), (86_400.0, True)])
def test_responses_to_an_earlier_process_count(ago: float, first: bool) -> None:
    """After a restart, a hanging service gets no long deadline unless there was no response for an hour."""
    with RawServer(silent) as server, client_of(server.url, deadline=0.1, first_deadline=3.0) as client:
        client.answered_before(ago)
        assert patient(client, 2) == [first, False]


def test_failed_connections_do_not_use_up_the_long_poll() -> None:
    """The long deadline is for a slow response: after an hour without a connection, the first connection gets it."""
    later, known = Later(), threading.Event()

    def resolve(_host: str, port: int, *, type: int, flags: int = 0) -> list[Any]:
        if not known.is_set():
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return socket.getaddrinfo("127.0.0.1", port, type=type, flags=flags)

    with (
        RawServer(silent) as server,
        client_of(
            f"http://there:{server.port}", monotonic=later, resolve=resolve, deadline=0.1, first_deadline=3.0
        ) as client,
    ):
        client.answered_before(0.0)
        later.ahead += 3600
        assert failure(client.fetch).reason == "dns"
        known.set()
        assert patient(client, 2) == [True, False]


@pytest.mark.parametrize("where", ["answer", "handshake", "connect", "lookup", "body"])
def test_an_abort_ends_a_poll_in_flight(where: str) -> None:
    """An abort from another thread ends even the long first poll at once, in any phase, and later calls."""
    waiting, over = threading.Event(), threading.Event()

    def waits(peer: Peer) -> None:
        if where != "handshake":
            peer.request()
        if where == "body":
            peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nx")
        waiting.set()
        peer.linger()

    def lookup(*_: object, **__: object) -> list[Any]:
        waiting.set()
        over.wait(120)
        return []

    with ExitStack() as stack:
        url = stack.enter_context(RawServer(waits)).url
        if where == "connect":
            url = stack.enter_context(black_hole())
            waiting.set()
        url = {"handshake": url.replace("http:", "https:"), "lookup": "http://metadata.test"}.get(where, url)
        client = stack.enter_context(client_of(url, deadline=60.0, first_deadline=60.0, resolve=lookup))
        errors: list[MetadataError] = []
        thread = threading.Thread(target=lambda: errors.append(failure(client.fetch)))
        thread.start()
        assert waiting.wait(30)
        client.abort()
        thread.join(30)  # half of the deadline
        assert not thread.is_alive()
        over.set()
        assert [error.reason for error in errors] == ["aborted"]
        assert failure(client.fetch).reason == failure(lambda: client.approve("A")).reason == "aborted"


def test_hanging_approvals_delay_neither_each_other_nor_a_poll() -> None:
    """Five POSTs without a response each run on their own thread, and a poll between them succeeds."""
    hanging, over = threading.Semaphore(0), threading.Event()

    def answers_polls_alone(peer: Peer) -> None:
        while head := peer.request():
            if head.startswith(b"POST"):
                hanging.release()
                over.wait(120)
                return
            peer.send(ok(DOCUMENT))

    with RawServer(answers_polls_alone) as server, client_of(server.url, deadline=60.0) as client:
        errors: list[MetadataError] = []
        ids = [f"event-{number}" for number in range(5)]
        asking = [
            threading.Thread(target=lambda name=name: errors.append(failure(lambda: client.approve(name))))
            for name in ids
        ]
        for thread in asking:
            thread.start()
        for _ in ids:
            assert hanging.acquire(timeout=30)
        assert client.fetch().body == DOCUMENT
        client.abort()
        for thread in asking:
            thread.join(30)
        over.set()
        assert [error.reason for error in errors] == ["aborted"] * 5
        assert failure(lambda: client.approve("late")).reason == "aborted"
