"""The metadata client against peers that misbehave in every way seen in a real source."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import REASONS, MetadataError
from tests.support.metadata_client import CUT, DOCUMENT, ENDLESS, QUICK, SLACK, client_of, failure, failure_of, silent
from tests.support.raw_server import Peer, RawServer, answers, answers_once, ok


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
    """The deadline is for the whole exchange: a peer that drips in any phase doesn't outlive it."""

    def drips(peer: Peer) -> None:
        peer.request()
        peer.send(before)
        peer.drip(ENDLESS(piece))

    assert failure_of(drips, **CUT).reason == ("server-error" if b"503" in before else "timeout")


def test_an_error_text_is_waited_for_only_briefly() -> None:
    """The status matters: a peer that drips its error text doesn't use up a long deadline."""

    def drips(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 503 No\r\n\r\n")
        peer.drip(ENDLESS(b"x"))

    with RawServer(drips) as server, client_of(server.url, first_deadline=60.0) as client:
        began = time.monotonic()
        assert failure(client.fetch).detail.startswith("HTTP 503 xx")
        assert time.monotonic() - began < 1 + SLACK


def test_a_silent_peer_is_cut_off() -> None:
    """A peer that accepts the request and never responds costs the deadline, no more."""
    assert failure_of(silent, **CUT).reason == "timeout"


@pytest.mark.parametrize(
    ("before", "piece", "reason"),
    [(b"", b"HTTP/1.1 100 Continue\r\n\r\n", "too-large"), (b"HTTP/1.1 200 OK\r\n", b"X: x\r\n", "protocol")],
    ids=["1xx", "headers"],
)
def test_endless_headers_are_refused(before: bytes, piece: bytes, reason: str) -> None:
    """Endless interim responses or headers are cut off by size, long before the deadline."""

    def floods(peer: Peer) -> None:
        peer.request()
        peer.send(before)
        while True:
            peer.send(piece * 100)

    with RawServer(floods) as server, client_of(server.url, max_bytes=1000, first_deadline=60.0) as client:
        assert failure(client.fetch).reason == reason


@pytest.mark.parametrize("announced", [b"Content-Length: 1001", b"Transfer-Encoding: chunked", b"X: y"])
def test_a_huge_body_is_refused(announced: bytes) -> None:
    """A body over the limit is rejected: before it is read if its length is announced, else once it exceeds it."""

    def huge(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n" + announced + b"\r\n\r\n")
        if b"Length" not in announced:
            while True:
                peer.send(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        peer.linger()

    assert failure_of(huge, max_bytes=1000).reason == "too-large"


def test_a_body_just_over_the_limit_is_refused() -> None:
    """One byte over the limit is too much, even without an announced length."""
    assert failure_of(answers_once(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001), max_bytes=1000).reason == "too-large"


def test_a_body_of_exactly_the_limit_is_accepted() -> None:
    """A body of exactly the limit is allowed."""
    with RawServer(answers(ok(b"x" * 1000))) as server, client_of(server.url, max_bytes=1000) as client:
        assert len(client.fetch().body) == 1000


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "identity, gzip", "br", "x"])
def test_an_encoded_body_is_refused(encoding: str) -> None:
    """The client requests identity; any other encoding is an error and is never decoded."""
    body = gzip.compress(b"0" * 1_000_000)
    assert failure_of(answers_once(ok(body, f"Content-Encoding: {encoding}"))).reason == "encoding"


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
def test_an_incomplete_response_is_an_error(data: bytes, reason: str) -> None:
    """A truncated response and one that isn't HTTP are errors, never a shorter document."""
    assert failure_of(answers_once(data)).reason == reason


@pytest.mark.not_wine("a reset comes there as the end of the connection")
def test_a_reset_is_an_error() -> None:
    """A connection reset in the middle of the body has its own reason and keeps the cause."""

    def resets(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab")
        peer.reset()

    error = failure_of(resets)
    assert error.reason == "reset"
    assert isinstance(error.__cause__, OSError)


def test_a_half_closed_connection_still_delivers_the_response() -> None:
    """A peer that closes its sending side after a complete response has responded."""

    def half(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + DOCUMENT)
        peer.sock.shutdown(socket.SHUT_WR)
        peer.linger()

    with RawServer(half) as server, client_of(server.url) as client:
        assert client.fetch().body == DOCUMENT


def test_a_connection_closed_between_polls_costs_nothing() -> None:
    """If the peer closes or resets a kept connection before the next request, the poll succeeds on a new one."""

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
def test_a_response_before_its_request_is_ignored(together: bool) -> None:
    """Data received on a kept connection before a request is never the response to the next poll."""
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
        assert sent.wait(30)
        assert client.fetch().body == b"{}"
        assert server.connections == 2


def test_a_request_on_a_broken_new_connection_is_not_retried() -> None:
    """Only kept connections get the immediate retry, once: otherwise the next poll is the retry."""
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


def outcome(call: Callable[[], MetadataResponse | None]) -> MetadataResponse | MetadataError | None:
    try:
        return call()
    except MetadataError as error:
        return error


@settings(max_examples=200, deadline=None)
@given(data=BYTES)
def test_any_bytes_give_a_response_or_an_error(data: bytes) -> None:
    """For any bytes from a peer, a poll and an approval return or raise MetadataError in time."""
    with RawServer(answers_once(data)) as server, client_of(server.url, **CUT) as client:
        began = time.monotonic()
        for call in (client.fetch, lambda: client.approve("A")):
            result = outcome(call)
            assert result is None or isinstance(result, MetadataResponse) or result.reason in REASONS
            assert not isinstance(result, MetadataError) or result.detail.isprintable()
        assert time.monotonic() - began < 2 * QUICK + SLACK


PAGE = b"<html><head><title>Sign in</title></head><body>token=hunter2 hunter2</body></html>\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        PAGE,
        b"hunter2 hunter2\r\n\r\n",
        b"HTTP/1.1 hunter2\r\n\r\n" + PAGE,
        b"HTTP/1.1 200 OK\r\nhunter2 hunter2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: hunter2\r\n\r\n" + PAGE,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: hunter2\r\n\r\n" + PAGE,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhunter2\r\n",
        b"HTTP/1.1 502 Bad\r\nContent-Length: 80\r\n\r\nSorry. " + PAGE,
    ],
    ids=["page", "text", "status line", "header", "length", "encoding", "chunk", "page behind words"],
)
def test_an_error_quotes_nothing_of_an_invalid_response(answer: bytes) -> None:
    """For data that isn't HTTP, and for a page, the detail contains nothing of it."""
    error = failure_of(answers_once(answer))
    assert error.reason in ("protocol", "server-error")
    assert "hunter2" not in f"{error} {error.detail}"
    assert error.detail
    assert answer is not PAGE or error.detail == "the data received is not a complete HTTP response"
