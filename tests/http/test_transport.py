"""The transport of the metadata client and the OTLP sink: kept connections and rejected requests."""

from __future__ import annotations

import base64
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from exporter.http.deadline import SLICE_SECONDS, Aborted, Disconnected, Exchange
from exporter.http.transport import Transport, basic_authorization
from tests.support.certificates import self_signed
from tests.support.raw_server import Peer, RawServer, answers, answers_once, ok


@contextmanager
def transport_of(seconds: float = 30.0, **options: Any) -> Iterator[tuple[Exchange, Transport]]:
    exchange = Exchange(time.monotonic)
    exchange.begin(seconds, max_bytes=1 << 20)
    transport = Transport(exchange, connect_seconds=seconds, **options)
    try:
        yield exchange, transport
    finally:
        transport.close()


def get(transport: Transport, url: str, **headers: str) -> bytes:
    """Return the whole body of a response."""
    response = transport.handle_request(httpx.Request("GET", url, headers=headers))
    try:
        return b"".join(response.iter_raw())
    finally:
        response.close()


def test_a_connection_is_kept_only_for_its_origin() -> None:
    """Requests to one server share a connection; another server gets a new one, and the first is closed."""
    with (
        RawServer(answers(ok(b"1"))) as first,
        RawServer(answers(ok(b"2"))) as second,
        transport_of() as (_, transport),
    ):
        assert [get(transport, first.url), get(transport, first.url), get(transport, second.url)] == [b"1", b"1", b"2"]
        assert (first.connections, second.connections) == (1, 1)
        assert get(transport, first.url) == b"1"
        assert first.connections == 2


class Unwanted(Exception):
    """The exception of a caller right before its request leaves."""


def test_a_request_is_not_sent_if_leave_raises() -> None:
    """An exception of `leave` is raised although there is a connection, and no byte is written."""
    heads: list[bytes] = []

    def refuse() -> None:
        raise Unwanted

    def notes(peer: Peer) -> None:
        while head := peer.request():
            heads.append(head)
            peer.send(ok(b"1"))

    with RawServer(notes) as server, transport_of() as (exchange, transport):
        assert get(transport, server.url) == b"1"
        exchange.begin(30.0, max_bytes=1 << 20, leave=refuse)
        with pytest.raises(Unwanted):
            get(transport, server.url)
        exchange.begin(30.0, max_bytes=1 << 20)
        assert get(transport, server.url, last="1") == b"1"
    assert [b"last" in head for head in heads] == [False, True]


def test_an_unread_response_closes_its_connection() -> None:
    """The rest of one response is never read as the next one."""
    with RawServer(answers(ok(b"x" * 100_000))) as server, transport_of() as (_, transport):
        for _ in range(2):
            transport.handle_request(httpx.Request("GET", server.url)).close()
        assert server.connections == 2


def test_a_connection_with_connection_close_is_not_kept() -> None:
    """`Connection: close` in a response or a request ends it."""
    with RawServer(answers(ok(b"", "Connection: close"))) as server, transport_of() as (_, transport):
        get(transport, server.url)
        get(transport, server.url)
        assert server.connections == 2
    with RawServer(answers(ok(b""))) as server, transport_of() as (_, transport):
        get(transport, server.url, Connection="close")
        get(transport, server.url)
        assert server.connections == 2


@pytest.mark.parametrize(
    ("url", "headers"),
    [("{}/", {"x-key": "a\r\nInjected: 1"}), ("{}/", {"bad name": "x"}), ("ftp://127.0.0.1/", {})],
)
def test_an_invalid_request_is_not_sent(url: str, headers: dict[str, str]) -> None:
    """It is a ValueError without the value, and the server receives nothing."""
    with RawServer(answers(ok(b""))) as server, transport_of() as (_, transport):
        with pytest.raises(ValueError, match=r"HTTP|http") as caught:
            get(transport, url.format(server.url), **headers)
        assert "Injected" not in str(caught.value)
        assert server.requests == []


def test_a_peer_that_closes_without_a_response_raises_disconnected() -> None:
    """The error has its own type, so that a caller can retry if that is safe; the transport doesn't retry."""
    with RawServer(answers_once(b"")) as server, transport_of() as (exchange, transport):
        with pytest.raises(Disconnected):
            get(transport, server.url)
        assert (len(server.requests), exchange.received) == (1, 0)


def test_an_abort_ends_a_wait_inside_tls() -> None:
    """Another thread aborts during the wait for a response on a TLS connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    waiting = threading.Event()

    def silent(peer: Peer) -> None:
        peer.sock = context.wrap_socket(peer.sock, server_side=True)
        with peer.sock:
            peer.request()
            waiting.set()
            peer.linger()

    def trusting() -> ssl.SSLContext:
        return ssl.create_default_context(cadata=certificate)

    certificate, key = self_signed("loopback")
    load(context, certificate, key)
    with RawServer(silent) as server, transport_of(60.0, tls=trusting) as (exchange, transport):
        errors: list[type[Exception]] = []

        def ask() -> None:
            try:
                get(transport, server.url.replace("http:", "https:"))
            except Aborted as error:
                errors.append(type(error))

        asking = threading.Thread(target=ask)
        asking.start()
        assert waiting.wait(30)
        exchange.abort()
        asking.join(30 + SLICE_SECONDS)
        assert errors == [Aborted]


def load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Make a server present a certificate given as PEM texts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "both.pem"
        path.write_text(certificate + key)
        context.load_cert_chain(path)


@pytest.mark.parametrize(("password", "encoding"), [("pass", "ascii"), ("größe", "latin-1"), ("€", "utf-8")])
def test_basic_authorization_carries_every_password(password: str, encoding: str) -> None:
    """Latin-1, as most servers read it; UTF-8 if Latin-1 can't encode all characters."""
    scheme, _, token = basic_authorization("user", password).partition(" ")
    assert (scheme, base64.b64decode(token)) == ("Basic", f"user:{password}".encode(encoding))
