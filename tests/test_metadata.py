"""The client of the metadata service against real sockets that misbehave in every way a source was seen to."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.metadata import REASONS, Answer, Compute, MetadataClient, MetadataError, parse_compute
from exporter.metadata_wire import SLICE_SECONDS
from tests.raw_server import Peer, RawServer, Script, answers, answers_once, ok, response

DOCUMENT = b'{"DocumentIncarnation":1,"Events":[]}'
PATH = b"/metadata/scheduledevents?api-version=2020-07-01"
QUICK = 1.0  # the deadline for a peer that never ends
PLENTY = 30.0  # for one that does, on a machine that may stand still for a while
CUT: dict[str, Any] = {"deadline": QUICK, "first_deadline": QUICK}
SLACK = 5.0  # how late a deadline may be noticed on a busy machine; what it cuts off would go on for ever


@contextmanager
def client_of(url: str, **limits: Any) -> Iterator[MetadataClient]:
    client = MetadataClient(url, "2020-07-01", **({"deadline": PLENTY, "first_deadline": PLENTY} | limits))
    try:
        yield client
    finally:
        client.close()


def failure(call: Callable[[], object]) -> MetadataError:
    with pytest.raises(MetadataError) as caught:
        call()
    assert caught.value.reason in REASONS
    return caught.value


def failure_of(script: Script, **limits: Any) -> MetadataError:
    with RawServer(script) as server, client_of(server.url, **limits) as client:
        began = time.monotonic()
        error = failure(client.fetch)
        assert time.monotonic() - began < limits.get("first_deadline", PLENTY) + SLACK
        return error


def raw(data: bytes) -> Script:
    return answers_once(data)


def silent(peer: Peer) -> None:
    peer.request()
    peer.linger()


def test_a_poll_is_what_the_service_asks_for() -> None:
    """A poll is the documented GET with the Metadata header, offering no encoding, on one connection kept alive."""
    with RawServer(answers(ok(DOCUMENT))) as server, client_of(server.url + "/") as client:
        first, second = client.fetch(), client.fetch()
        assert first.body == second.body == DOCUMENT
        assert 0 < second.duration < PLENTY
        assert first.read_at_monotonic < second.read_at_monotonic <= time.monotonic()
        assert server.connections == 1
        head = server.requests[0].lower()
        assert server.requests[0].startswith(b"GET " + PATH + b" HTTP/1.1\r\n")
        assert b"\r\nmetadata: true\r\n" in head
        assert b"\r\naccept-encoding: identity\r\n" in head


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>captive portal</html>", b"\xef\xbb\xbf{}", b"\x00" * 70_000],
    ids=["empty", "html", "bom", "big"],
)
def test_a_200_is_passed_on_as_bytes(body: bytes) -> None:
    """What a 200 says is for the parser to judge: the client hands over every byte and invents none."""
    with RawServer(answers(ok(body))) as server, client_of(server.url) as client:
        assert client.fetch().body == body


def test_a_chunked_body_is_put_together() -> None:
    """A chunked answer is one body, and the connection is used again."""
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
    with RawServer(answers(chunked)) as server, client_of(server.url) as client:
        assert client.fetch().body == client.fetch().body == b'{"a":1}'
        assert server.connections == 1


@pytest.mark.parametrize(
    ("status", "reason", "delay"),
    [
        ("400 Bad Request", "status-400", 1),
        ("401 Unauthorized", "forbidden", 30),
        ("403 Forbidden", "forbidden", 30),
        ("404 Not Found", "not-found", 1),
        ("408 Request Timeout", "status-other", 1),
        ("410 Gone", "gone", 1),
        ("429 Too Many Requests", "throttled", 1),
        ("500 Internal Server Error", "server-error", 1),
        ("503 Service Unavailable", "server-error", 1),
        ("204 No Content", "status-other", 1),
        ("206 Partial Content", "status-other", 1),
        ("302 Found", "redirect", 1),
        ("304 Not Modified", "redirect", 1),
        ("999 What", "status-other", 1),
    ],
)
def test_only_200_counts(status: str, reason: str, delay: float) -> None:
    """Every other status is an error with its own reason, its code and the time to leave the service alone."""
    error = failure_of(raw(response(status, b"" if status[:3] in {"204", "304"} else DOCUMENT)))
    assert (error.reason, error.status_code, error.delay()) == (reason, int(status[:3]), delay)


def test_switching_protocols_is_refused() -> None:
    """A 101 is no answer to a GET."""
    switching = b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    assert failure_of(raw(switching)).reason == "protocol"


@pytest.mark.parametrize(
    "location", ["http://127.0.0.1:{port}/elsewhere", "http://a:b:c", "http://xn--/", "mailto:x", "\x80", ""]
)
def test_a_redirect_is_never_followed(location: str) -> None:
    """A redirect is an error whatever its target, and the target is never asked."""
    with RawServer(answers(ok(DOCUMENT))) as target:
        header = f"Location: {location.format(port=target.port)}"
        assert failure_of(raw(response("302 Found", b"", header))).reason == "redirect"
        assert target.connections == 0


def test_cookies_are_not_kept() -> None:
    """A cookie that the peer sets is not sent back."""
    with RawServer(answers(ok(DOCUMENT, "Set-Cookie: a=b; Path=/"))) as server, client_of(server.url) as client:
        client.fetch()
        client.fetch()
        assert b"cookie" not in server.requests[1].lower()


NOW = 1_649_715_000.0  # Mon, 11 Apr 2022 22:10:00 GMT


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("61", 60.0),
        ("9" * 5000, 60.0),
        ("Mon, 11 Apr 2022 22:10:30 GMT", 30.0),
        ("Mon, 11 Apr 2022 21:10:30 GMT", 0.0),
        ("Mon, 11 Apr 2099 22:10:30 GMT", 60.0),
        ("-5", None),
        ("1e3", None),
        ("soon", None),
        ("Mon, 99 Apr 99999 22:10:30 GMT", None),
        ("\u00b2", None),
        ("", None),
    ],
)
def test_retry_after_is_obeyed_within_reason(value: str, expected: float | None) -> None:
    """Both forms of Retry-After are read, from 0 to 60 seconds; nonsense is as if nothing was said."""
    answer = response("429 Too Many Requests", b"").replace(
        b"\r\n\r\n", b"\r\nRetry-After: " + value.encode() + b"\r\n\r\n"
    )
    error = failure_of(raw(answer), clock=lambda: NOW)
    assert error.retry_after == expected
    assert error.delay() == max(1.0, expected or 0.0)


def test_failures_in_a_row_are_left_alone_for_longer() -> None:
    """The delay grows 1, 2, 4, 8, 10, 10 with the failures in a row and starts again after a good answer."""
    bad = response("500 Internal Server Error")
    with RawServer(answers(*[bad] * 6, ok(DOCUMENT), bad)) as server, client_of(server.url) as client:
        assert [failure(client.fetch).delay() for _ in range(6)] == [1, 2, 4, 8, 10, 10]
        client.fetch()
        assert failure(client.fetch).delay() == 1
        assert server.connections == 1


def test_an_error_text_is_short_and_printable() -> None:
    """The detail of an error is one printable line of bounded length, however the peer words it."""
    error = failure_of(
        raw(response("400 Bad Request", b'{"error":\r\n"Bad \x1b[31m\x00 \xff request"}' + b"x" * 100_000))
    )
    assert '"Bad ?[31m?' in error.detail
    assert error.detail.isprintable()
    assert len(error.detail) <= 300


ENDLESS = itertools.repeat


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"X-Slow: x\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-Slow: x\r\n"),
        (b"HTTP/1.1 503 No\r\n\r\n", b"x"),
    ],
    ids=["status line", "header", "headers", "1xx", "body", "chunks", "trailers", "error text"],
)
def test_a_dripping_peer_is_cut_off(before: bytes, piece: bytes) -> None:
    """The deadline is for the whole exchange: a peer that keeps dripping in any phase does not outlive it."""

    def drips(peer: Peer) -> None:
        peer.request()
        peer.send(before)
        peer.drip(ENDLESS(piece))

    assert failure_of(drips, **CUT).reason == ("server-error" if b"503" in before else "timeout")


def test_an_error_text_is_waited_for_only_briefly() -> None:
    """The status is the news: a peer that drips its error text does not use up a long deadline."""

    def drips(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 503 No\r\n\r\n")
        peer.drip(ENDLESS(b"x"))

    with RawServer(drips) as server, client_of(server.url, first_deadline=60.0) as client:
        began = time.monotonic()
        assert failure(client.fetch).detail.startswith("HTTP 503 xx")
        assert time.monotonic() - began < 1 + SLACK


def test_a_silent_peer_is_cut_off() -> None:
    """A peer that takes the request and never answers costs the deadline, no more."""
    assert failure_of(silent, **CUT).reason == "timeout"


@pytest.mark.parametrize(
    ("before", "piece", "reason"),
    [(b"", b"HTTP/1.1 100 Continue\r\n\r\n", "too-large"), (b"HTTP/1.1 200 OK\r\n", b"X: x\r\n", "protocol")],
    ids=["1xx", "headers"],
)
def test_a_flood_of_headers_is_refused(before: bytes, piece: bytes, reason: str) -> None:
    """Endless interim answers or headers are cut off by their size, long before a deadline."""

    def floods(peer: Peer) -> None:
        peer.request()
        peer.send(before)
        while True:
            peer.send(piece * 100)

    with RawServer(floods) as server, client_of(server.url, max_bytes=1000, first_deadline=60.0) as client:
        assert failure(client.fetch).reason == reason


@pytest.mark.parametrize("announced", [b"Content-Length: 1001", b"Transfer-Encoding: chunked", b"X: y"])
def test_a_huge_body_is_refused(announced: bytes) -> None:
    """A body over the cap is refused: by its announcement before it is read, else as soon as it is over."""

    def huge(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n" + announced + b"\r\n\r\n")
        if b"Length" not in announced:
            while True:
                peer.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        peer.linger()

    assert failure_of(huge, max_bytes=1000).reason == "too-large"


def test_a_body_just_over_the_cap_is_refused() -> None:
    """One byte over the cap is too much, also when no length was announced."""
    assert failure_of(raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001), max_bytes=1000).reason == "too-large"


def test_a_body_of_exactly_the_cap_is_taken() -> None:
    """The cap is what is still allowed."""
    with RawServer(answers(ok(b"x" * 1000))) as server, client_of(server.url, max_bytes=1000) as client:
        assert len(client.fetch().body) == 1000


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "identity, gzip", "br", "x"])
def test_an_encoded_body_is_refused(encoding: str) -> None:
    """We ask for identity; anything else is an error and is never unpacked."""
    body = gzip.compress(b"0" * 1_000_000)
    assert failure_of(raw(ok(body, f"Content-Encoding: {encoding}"))).reason == "encoding"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "reset"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "reset"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", "reset"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "reset"),
        (b"just some text\r\nof no protocol\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "protocol"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nab", "protocol"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab", "protocol"),
        (b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n", "protocol"),
        (b"<html>an answer of HTTP/0.9</html>", "reset"),
    ],
)
def test_a_broken_answer_is_an_error(data: bytes, reason: str) -> None:
    """A truncated answer and one that is not HTTP are errors, never a shorter document."""
    assert failure_of(raw(data)).reason == reason


def test_a_reset_is_an_error() -> None:
    """A connection reset in the middle of the body is said as such, with the cause kept."""

    def resets(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab")
        peer.reset()

    error = failure_of(resets)
    assert error.reason == "reset"
    assert isinstance(error.__cause__, OSError)


def test_a_half_closed_peer_still_answers() -> None:
    """A peer that closes its sending side after a whole answer has answered."""

    def half(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + DOCUMENT)
        peer.sock.shutdown(socket.SHUT_WR)
        peer.linger()

    with RawServer(half) as server, client_of(server.url) as client:
        assert client.fetch().body == DOCUMENT


def test_a_connection_closed_between_polls_costs_nothing() -> None:
    """Whether the peer closes a kept connection or resets it at the next request: the poll succeeds on a new one."""

    def breaks_on_second(peer: Peer) -> None:
        peer.request()
        peer.send(ok(DOCUMENT))
        peer.request()
        peer.reset()

    with RawServer(answers_once(ok(DOCUMENT)), breaks_on_second, answers(ok(b"{}"))) as server:
        with client_of(server.url) as client:
            assert [client.fetch().body for _ in range(3)] == [DOCUMENT, DOCUMENT, b"{}"]
        assert server.connections == 3
        assert len(server.requests) == 4


@pytest.mark.parametrize("together", [True, False])
def test_an_answer_that_came_too_early_is_not_taken(together: bool) -> None:
    """What a kept connection said before it was asked is old: it is never the answer to the next poll."""
    old, sent = ok(b'"old"'), threading.Event()

    def chatty(peer: Peer) -> None:
        peer.request()
        peer.send(ok(DOCUMENT) + old if together else ok(DOCUMENT))
        if not together:
            peer.drip(iter([old]))
        sent.set()
        peer.request()

    with RawServer(chatty, answers(ok(b"{}"))) as server, client_of(server.url) as client:
        client.fetch()
        assert sent.wait(5)
        assert client.fetch().body == b"{}"
        assert server.connections == 2


def test_a_new_connection_that_breaks_is_not_tried_again() -> None:
    """The immediate retry is for connections kept alive alone, and there is one: the next poll is the retry."""
    with RawServer(answers_once(b"")) as server, client_of(server.url) as client:
        failure(client.fetch)
        assert server.connections == 1

    def breaks_on_second(peer: Peer) -> None:
        peer.request()
        peer.send(ok(DOCUMENT))
        peer.request()

    with RawServer(breaks_on_second, answers_once(b"")) as server, client_of(server.url) as client:
        client.fetch()
        failure(client.fetch)
        assert (server.connections, len(server.requests)) == (2, 3)


def test_nobody_listens() -> None:
    """A refused connection is `connect`, and so is one to an address that leads nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for host in ("127.0.0.1", "[::1]"):
        with client_of(f"http://{host}:{port}") as client:
            assert failure(client.fetch).reason == "connect"


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that swallows connection attempts: a listener whose queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_connecting_keeps_the_deadline() -> None:
    """A connection that is never accepted costs the everyday deadline, also before the first answer ever."""
    with black_hole() as url, client_of(url, deadline=QUICK, first_deadline=60.0) as client:
        began = time.monotonic()
        assert failure(client.fetch).reason == "timeout"
        assert time.monotonic() - began < QUICK + SLACK


class Names:
    """A resolver: no such name, a stuck server until `answer` is set, or several addresses of which one works."""

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


def test_a_name_without_address() -> None:
    """A name that does not resolve is `dns`, not a broken connection; so is one that cannot be a name."""
    names = Names()
    names.answer.set()
    with client_of("http://metadata.test", resolve=names) as client:
        assert failure(client.fetch).reason == "dns"
    with client_of(f"http://{'x' * 70}.test") as client:
        assert failure(client.fetch).reason == "dns"


def test_a_stuck_lookup_keeps_the_deadline() -> None:
    """A name server that does not answer costs the deadline, leaves one thread at most, and is used when it is back."""
    names = Names("127.0.0.2", "127.0.0.1")
    with ExitStack() as stack:
        server = stack.enter_context(RawServer(answers(ok(DOCUMENT))))
        url = f"http://metadata.test:{server.port}"
        client = stack.enter_context(client_of(url, resolve=names, first_deadline=0.1))
        assert [failure(client.fetch).reason for _ in range(3)] == ["timeout"] * 3
        assert names.asked == 1
        names.answer.set()
        assert client.fetch().body == DOCUMENT
        assert b"\r\nHost: metadata.test:" in server.requests[0]


def test_an_https_url_against_plain_http() -> None:
    """A TLS URL at a plain port is a TLS error, and the deadline covers a handshake that never ends."""

    def refuses(peer: Peer) -> None:
        peer.sock.recv(1)
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.linger()

    with RawServer(refuses) as server, client_of(server.url.replace("http:", "https:")) as client:
        assert failure(client.fetch).reason == "tls"
    with RawServer(Peer.linger) as server, client_of(server.url.replace("http:", "https:"), **CUT) as client:
        began = time.monotonic()
        assert failure(client.fetch).reason == "timeout"
        assert time.monotonic() - began < QUICK + SLACK


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.serial_number(1).add_extension(loopback, critical=False)
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    plain = serialization.NoEncryption()
    path.write_bytes(
        builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return path


def test_tls_is_checked_and_works(certificate: Path) -> None:
    """An https URL works, also when handshake and answer take several waits; an unknown certificate is refused."""
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
        with client_of(url, tls=trusting, first_deadline=10.0, deadline=10.0) as client:
            assert client.fetch().body == client.fetch().body == DOCUMENT
            assert server.connections == 1
        with client_of(url, first_deadline=10.0, deadline=10.0) as client:
            assert failure(client.fetch).reason == "tls"


def test_the_first_answer_may_take_longer() -> None:
    """The long deadline holds until the first 200 ever, through errors; from then on the short one does."""
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


def test_a_long_silence_earns_one_patient_poll() -> None:
    """After twelve time-outs without a byte one poll waits as long as the first; then twelve more are short."""
    server = RawServer(answers_once(ok(DOCUMENT)), silent)
    with server, client_of(server.url, deadline=0.1, first_deadline=3.0) as client:
        client.fetch()
        took = []
        for _ in range(14):
            began = time.monotonic()
            assert failure(client.fetch).reason == "timeout"
            took.append(time.monotonic() - began)
        assert [seconds >= 3.0 for seconds in took] == [False] * 12 + [True, False]


def test_only_silence_earns_a_patient_poll() -> None:
    """Errors that were answered do not make the next poll wait for long."""
    bad = response("500 Internal Server Error")
    server = RawServer(answers(ok(DOCUMENT), *[bad] * 12, b""))
    with server, client_of(server.url, deadline=2.0, first_deadline=60.0) as client:
        client.fetch()
        assert {failure(client.fetch).reason for _ in range(12)} == {"server-error"}
        began = time.monotonic()
        assert failure(client.fetch).reason == "timeout"
        assert time.monotonic() - began < 2 + SLACK


@pytest.mark.parametrize("where", ["answer", "handshake", "connect", "lookup", "body"])
def test_an_abort_ends_a_poll_in_flight(where: str) -> None:
    """From another thread, abort ends even the long first poll within a second, wherever it waits, and later calls."""
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
        over.wait(5)
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
        assert waiting.wait(5)
        client.abort()
        thread.join(1.0)
        assert not thread.is_alive()
        over.set()
        assert [error.reason for error in errors] == ["aborted"]
        assert failure(client.fetch).reason == failure(lambda: client.approve("A")).reason == "aborted"


def test_an_approval_is_one_request_on_its_own_connection() -> None:
    """An approval is the documented POST, once, never on the poll's connection, and the poll's connection stays."""
    with RawServer(answers(ok(DOCUMENT))) as server, client_of(server.url) as client:
        client.fetch()
        client.approve("c7061bac-AFDC")
        client.fetch()
        assert server.connections == 2
        head, _, body = server.requests[1].partition(b"\r\n\r\n")
        assert head.startswith(b"POST " + PATH + b" HTTP/1.1\r\n")
        assert b"\r\nmetadata: true\r\n" in head.lower()
        assert json.loads(body) == {"StartRequests": [{"EventId": "c7061bac-AFDC"}]}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (raw(response("400 Bad Request", b'{"error":"no such event"}')), "status-400"),
        (raw(response("204 No Content")), "status-other"),
        (raw(response("302 Found", b"", "Location: /")), "redirect"),
        (raw(response("503 Service Unavailable", b"", "Retry-After: 9")), "server-error"),
        (raw(b""), "reset"),
        (raw(b"nonsense\r\n\r\n"), "protocol"),
        (silent, "timeout"),
    ],
)
def test_an_approval_is_never_repeated(script: Script, reason: str) -> None:
    """Whatever comes instead of a 200 is an error with its status and text, after exactly one POST."""
    limits = CUT if reason == "timeout" else {}
    with RawServer(script) as server, client_of(server.url, **limits) as client:
        error = failure(lambda: client.approve("A"))
        assert error.reason == reason
        assert len(server.requests) == 1
        assert (reason == "status-400") == ("no such event" in str(error))
        assert error.retry_after == (9.0 if reason == "server-error" else None)


def test_the_answer_to_an_approval_is_not_read() -> None:
    """A 200 has approved, whatever its body does: it may be endless, broken or encoded."""

    def endless(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 99999999\r\n\r\n")
        peer.drip(ENDLESS(b"x"))

    with RawServer(endless) as server, client_of(server.url) as client:
        client.approve("A")


def test_who_this_vm_is() -> None:
    """The identity is the documented request and an allow-list of fields; keys and user data stay out."""
    document = {
        "name": "WestNO_0",
        "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
        "resourceId": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/WestNO_0",
        "subscriptionId": "s",
        "resourceGroupName": "g",
        "vmScaleSetName": "",
        "location": "norwayeast",
        "zone": "1",
        "vmSize": "Standard_D2s_v5",
        "priority": "Spot",
        "userData": "c2VjcmV0",
        "publicKeys": [{"keyData": "ssh-rsa secret"}],
    }
    with RawServer(answers(ok(json.dumps(document).encode()))) as server, client_of(server.url) as client:
        compute = client.instance()
        assert compute == Compute(
            name="WestNO_0",
            vm_id="02aab8a4-74ef-476e-8182-f6d2ba4166a6",
            resource_id=document["resourceId"],  # type: ignore[arg-type]  # a text in a mixed dict
            subscription_id="s",
            resource_group="g",
            vmss_name="",
            location="norwayeast",
            zone="1",
            size="Standard_D2s_v5",
            priority="Spot",
        )
        assert server.requests[0].startswith(
            b"GET /metadata/instance/compute?api-version=2021-12-13&format=json HTTP/1.1"
        )


@pytest.mark.parametrize("value", [None, 7, ["a"], "x" * 513, "a\nb", "a\x00", "\ud800", "\u202e", True])
def test_an_odd_identity_is_no_identity(value: object) -> None:
    """A field that is mistyped, too long or not printable is empty: a cut name would be somebody else's."""
    assert parse_compute(json.dumps({"name": value, "zone": "1"}).encode()) == Compute(zone="1")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b"\xff", b"[" * 100_000, b"{" * 9 + b'"a"'])
def test_an_unreadable_identity_is_malformed(body: bytes) -> None:
    """An instance document that is not a JSON object is an error."""
    assert failure(lambda: parse_compute(body)).reason == "malformed"


BESIDE_PROXY = """
import sys
from exporter.metadata import MetadataClient
client = MetadataClient(sys.argv[1], "2020-07-01", deadline=5, first_deadline=5)
client.fetch(), client.instance(), client.approve("A")
"""


def test_the_environment_has_no_say(tmp_path: Path) -> None:
    """Proxies and credentials that the environment offers are never used: the proxy sees no connection at all."""
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login us password secret\n")
    netrc.chmod(0o600)
    with RawServer(answers(ok(b"{}"))) as server, RawServer(answers(ok(b"{}"))) as proxy:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
        environ = {**os.environ, **dict.fromkeys(names, proxy.url), "NO_PROXY": "", "no_proxy": ""}
        environ |= {"NETRC": str(netrc), "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent.parent)}
        subprocess.run([sys.executable, "-c", BESIDE_PROXY, server.url], env=environ, check=True, timeout=30)
        assert proxy.connections == 0
        assert len(server.requests) == 3
        assert not any(b"authorization" in request.lower() for request in server.requests)


HEADS = st.sampled_from(
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 302 x\r\n"]
)
FIELDS = st.sampled_from(
    [
        b"Content-Length: 5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n",
        b"Connection: close\r\n",
        b"Location: ://\r\n",
        b"Set-Cookie: \xff=;;\r\n",
        b"Retry-After: \xb2\r\n",
        b" folded\r\n",
    ]
)
BYTES = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.one_of(HEADS, FIELDS, st.just(b"\r\n"), st.just(b"5\r\nhello\r\n0\r\n\r\n"), st.binary(max_size=20))
    ).map(b"".join),
)


def outcome(call: Callable[[], Answer | None]) -> Answer | MetadataError | None:
    try:
        return call()
    except MetadataError as error:
        return error


@settings(max_examples=200, deadline=None)
@given(data=BYTES)
def test_any_bytes_give_an_answer_or_an_error(data: bytes) -> None:
    """Whatever bytes a peer sends, a poll and an approval return or raise MetadataError in time."""
    with RawServer(raw(data)) as server, client_of(server.url, **CUT) as client:
        began = time.monotonic()
        for call in (client.fetch, lambda: client.approve("A")):
            result = outcome(call)
            assert result is None or isinstance(result, Answer) or result.reason in REASONS
            assert not isinstance(result, MetadataError) or result.detail.isprintable()
        assert time.monotonic() - began < 2 * QUICK + SLACK
