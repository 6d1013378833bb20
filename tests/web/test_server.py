"""The HTTP server with well-behaved clients."""

from __future__ import annotations

import errno
import gzip
import io
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.log.log import Log
from exporter.text.values import InvalidValue
from exporter.web.connection import Limits
from exporter.web.responses import ROUTES, Accept, WebResponse, choose_accept, takes_gzip
from exporter.web.server import WebServer, is_taken
from tests.support.log_reading import logged
from tests.support.peers import until
from tests.support.web_target import ASK, METRICS, OPENMETRICS, TEXT, Pages, connect, read_all, serving

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def client(pages: Pages) -> Iterator[httpx.Client]:
    with serving(pages) as (host, port), httpx.Client(base_url=f"http://{host}:{port}") as client:
        yield client


@pytest.mark.parametrize("path", [*sorted(ROUTES), "/metrics?name[]=x"])
def test_the_pages_are_served_to_get_and_head(client: httpx.Client, path: str) -> None:
    """Each route answers GET with its body and HEAD with the same head and no body, on one connection."""
    got, head = client.get(path), client.head(path)
    assert (got.status_code, head.status_code) == (200, 200)
    assert got.content
    assert head.content == b""
    assert {**got.headers, "date": ""} == {**head.headers, "date": ""}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/-/../metrics%00", 404),
        ("POST", "/metrics", 405),
        ("OPTIONS", "/", 405),
        ("DELETE", "/nope", 404),
    ],
)
def test_other_paths_and_methods_are_refused_with_their_status(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    """Other paths are 404, other methods 405 with Allow, and the connection stays open."""
    answer = client.request(method, path)
    assert answer.status_code == status
    assert status != 405 or answer.headers["allow"] == "GET, HEAD"
    assert client.get("/metrics").status_code == 200


def test_a_request_with_a_body_is_refused(client: httpx.Client) -> None:
    """A request with a body gets a 413, with a Content-Length or in chunks."""
    assert client.post("/metrics", content=b"x" * 100_000).status_code == 413
    assert client.post("/metrics", content=iter([b"x", b"y"])).status_code == 413


@pytest.mark.parametrize(
    ("header", "accept"),
    [
        (PROMETHEUS_2, "openmetrics"),
        (PROMETHEUS_3, "openmetrics"),
        ("application/openmetrics-text", "openmetrics"),
        ('Application/OpenMetrics-Text; Version="1.0.0"', "openmetrics"),
        ("application/openmetrics-text;version=0.0.1", "text"),
        ("application/openmetrics-text;version=abc", "text"),
        ("application/openmetrics-text;version=1.0.0;q=0", "text"),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", "text"),
        ("application/openmetrics-text;q=nan", "text"),
        ("text/html,*/*;q=0.8", "text"),
        ("", "text"),
        (";;;,,,=;q=", "text"),
    ],
)
def test_openmetrics_is_sent_to_clients_that_prefer_it(client: httpx.Client, header: str, accept: Accept) -> None:
    """OpenMetrics 1.0.0 goes to a scraper that prefers it, text to all others, each with its content type."""
    answer = client.get("/metrics", headers={"Accept": header})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == (OPENMETRICS if accept == "openmetrics" else TEXT)
    assert answer.text.endswith("# EOF\n") is (accept == "openmetrics")


@given(st.text() | st.text("openmetrics-x/;=,.q01 \"'"))
def test_any_accept_header_selects_a_format(header: str) -> None:
    """Any header selects one of the two formats and raises nothing."""
    assert choose_accept(header) in ("text", "openmetrics")
    takes_gzip(header)


def test_gzip_is_sent_only_to_clients_that_accept_it(client: httpx.Client) -> None:
    """The body is compressed only for a client that accepts gzip, and is the same when decompressed."""
    packed = client.get("/metrics", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(METRICS) / 3
    assert packed.content == METRICS
    for refusing in ("identity", "gzip;q=0", "br"):
        answer = client.get("/metrics", headers={"Accept-Encoding": refusing})
        assert "content-encoding" not in answer.headers
        assert answer.content == METRICS


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_vary_header_lists_accept_and_accept_encoding(client: httpx.Client, coding: str) -> None:
    """A proxy must not serve the text to clients that prefer OpenMetrics, nor gzip to clients that don't accept it."""
    answer = client.get("/metrics", headers={"Accept-Encoding": coding})
    assert {name.strip() for name in answer.headers["vary"].split(",")} == {"Accept", "Accept-Encoding"}


def test_simultaneous_scrapes_render_once(pages: Pages) -> None:
    """While a page is fresh, it is rendered once per format for any number of clients."""
    with serving(pages, limits=Limits(fresh_seconds=600)) as (host, port), httpx.Client() as client:
        for header in ["text/plain", "application/openmetrics-text"] * 20:
            client.get(f"http://{host}:{port}/metrics", headers={"Accept": header})
    assert sorted(pages.asked) == [("/metrics", "openmetrics"), ("/metrics", "text")]


def test_a_page_is_at_most_a_fifth_of_a_second_old() -> None:
    """A new fact is on the page a fifth of a second later."""
    assert Limits().fresh_seconds <= 0.2


def test_a_page_is_rendered_again_when_it_is_no_longer_fresh(pages: Pages) -> None:
    """A later scrape gets a new page."""
    with serving(pages, limits=Limits(fresh_seconds=0)) as (host, port):
        for _ in range(3):
            assert httpx.get(f"http://{host}:{port}/metrics").status_code == 200
    assert len(pages.asked) == 3


def test_a_published_change_is_on_the_next_page_at_once(pages: Pages) -> None:
    """A page that is still fresh is rendered again after `renew`."""
    server = WebServer("127.0.0.1:0", pages, limits=Limits(fresh_seconds=600))
    server.start()
    url = "http://{}:{}/metrics".format(*server.address)
    for _ in range(3):
        httpx.get(url)
    assert len(pages.asked) == 1
    server.pages.renew()
    for _ in range(3):
        httpx.get(url)
    server.stop()
    assert len(pages.asked) == 2


def test_a_later_request_waits_for_a_page_rendered_after_the_change() -> None:
    """The later request waits for a rendering that began after the change."""
    application = Numbered()
    server = WebServer("127.0.0.1:0", application, limits=Limits(fresh_seconds=600, render_seconds=30))
    server.start()
    url = "http://{}:{}/metrics".format(*server.address)
    with ThreadPoolExecutor(2) as clients:
        earlier = clients.submit(httpx.get, url, timeout=30)
        assert application.begun.wait(30)
        server.pages.renew()
        later = clients.submit(httpx.get, url, timeout=30)
        until(lambda: httpx.get(url.replace("metrics", "-/healthy")).status_code == 200)
        application.released.set()
        assert (earlier.result().text, later.result().text) == ("1", "2")
    server.stop()


class Numbered:
    """An application that numbers its responses for `/metrics`; the first one waits until it is released."""

    def __init__(self) -> None:
        self.begun, self.released, self.number = threading.Event(), threading.Event(), 0

    def respond(self, path: str, accept: Accept) -> WebResponse:  # noqa: ARG002  # the protocol's signature
        if path == "/metrics":
            self.number += 1
            self.begun.set()
            self.released.wait(30)
        return WebResponse(200, "text/plain", str(self.number).encode())


class Failing:
    """An application that raises while it is `broken`."""

    broken = True

    def respond(self, path: str, accept: Accept) -> WebResponse:  # noqa: ARG002  # the protocol's signature
        if self.broken:
            raise RuntimeError("the secret reason")
        return WebResponse(200, "text/plain", b"fine again")


def test_a_page_that_raises_becomes_a_500_without_the_reason() -> None:
    """The scraper gets a 500; the log contains the reason once, and the recovery."""
    failing, text = Failing(), io.StringIO()
    log = Log(text)
    server = WebServer("127.0.0.1:0", failing, limits=Limits(fresh_seconds=0), log=log)
    server.start()
    url = "http://{}:{}/metrics".format(*server.address)
    answers = [httpx.get(url) for _ in range(3)]
    failing.broken = False
    good = httpx.get(url)
    server.stop()
    assert [answer.status_code for answer in answers] == [500] * 3
    assert not any("secret" in answer.text or "Traceback" in answer.text for answer in answers)
    assert good.text == "fine again"
    failed, repaired = logged(log, text).splitlines()
    assert "level=error event=web.page_failed" in failed
    assert "the secret reason" in failed
    assert "where=test_server.py:" in failed
    assert "event=web.page_works_again" in repaired
    assert "failures=3" in repaired


class Stuck:
    """An application that blocks on `/metrics` until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def respond(self, path: str, accept: Accept) -> WebResponse:  # noqa: ARG002  # the protocol's signature
        if path == "/metrics":
            self.released.wait(30)
        return WebResponse(200, "text/plain", b"fine")


def test_a_page_that_hangs_delays_nothing_else() -> None:
    """The hanging page becomes a 503, others are served, no threads accumulate, and stopping doesn't wait."""
    stuck = Stuck()
    before = threading.active_count()
    server = WebServer("127.0.0.1:0", stuck, limits=Limits(render_seconds=0.4))
    server.start()
    url = "http://{}:{}".format(*server.address)
    assert [httpx.get(url + "/metrics").status_code for _ in range(5)] == [503] * 5
    until(lambda: httpx.get(url + "/-/healthy").status_code == 200)  # a machine may stall for longer than 0.4 s
    until(lambda: threading.active_count() <= before + 2)
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < 10  # the page hangs for 30 s
    stuck.released.set()


def test_headers_of_the_application_are_sent() -> None:
    """Headers of the application, for example Content-Security-Policy, reach the client."""

    class Page:
        def respond(self, path: str, accept: Accept) -> WebResponse:  # noqa: ARG002  # the protocol's signature
            return WebResponse(
                503, "text/html; charset=utf-8", b"<p>", (("Content-Security-Policy", "default-src 'none'"),)
            )

    with serving(Page()) as (host, port):
        answer = httpx.get(f"http://{host}:{port}/")
    assert answer.status_code == 503
    assert answer.headers["content-security-policy"] == "default-src 'none'"


def test_a_scraper_keeps_its_connection() -> None:
    """Several requests in a row use one connection; HTTP/1.0 and `Connection: close` end it."""
    with serving() as address:
        sock = connect(address)
        sock.settimeout(30)
        for _ in range(3):
            sock.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 OK")
        sock.sendall(ASK % b"Connection: close\r\n")
        assert read_all(sock).endswith(METRICS)
        old = connect(address, b"GET /metrics HTTP/1.0\r\n\r\n")
        assert read_all(old).endswith(METRICS)
        sock.close()
        old.close()


def test_an_absolute_target_is_accepted() -> None:
    """A request in the form that proxies send (RFC 9112, 3.2.2) finds its page."""
    with serving() as address:
        sock = connect(address, b"GET http://x:1/-/ready?a HTTP/1.1\r\nHost: x:1\r\nConnection: close\r\n\r\n")
        assert read_all(sock).endswith(b"fine\n")
        sock.close()


@pytest.mark.parametrize("text", ["", "10169", "host:", "host:http", "::1:80", "host:65536", "host:-1", "host:٣"])
def test_an_invalid_listen_address_is_refused(text: str) -> None:
    """Anything except host:port is an error that shows the format."""
    with pytest.raises(InvalidValue, match=r"host:port"):
        WebServer(text, Pages())


@pytest.mark.parametrize("text", [":0", "[::]:0", "localhost:0", "0.0.0.0:0"])
def test_every_form_of_listen_address_serves_loopback(text: str) -> None:
    """Each form serves IPv4 loopback; those for all interfaces also serve IPv6 if available."""
    server = WebServer(text, Pages())
    server.start()
    try:
        port = server.address[1]
        assert httpx.get(f"http://127.0.0.1:{port}/metrics").status_code == 200
        if text in (":0", "[::]:0") and socket.has_dualstack_ipv6():
            assert httpx.get(f"http://[::1]:{port}/metrics").status_code == 200
    finally:
        server.stop()


def test_a_used_port_is_an_error_at_start() -> None:
    """Starting on a used port raises OSError with the address and the reason."""
    with serving() as (host, port):
        second = WebServer(f"{host}:{port}", Pages())
        with pytest.raises(OSError, match=rf"cannot listen on {host}:{port}: .*another program uses this port"):
            second.start()


@pytest.mark.parametrize(
    ("number", "platform", "taken"),
    [
        (errno.EADDRINUSE, "linux", True),
        (errno.EADDRINUSE, "win32", True),
        (errno.EACCES, "win32", True),
        (errno.EACCES, "linux", False),
        (errno.EADDRNOTAVAIL, "win32", False),
    ],
)
def test_a_forbidden_port_counts_as_used_only_on_windows(number: int, platform: str, taken: bool) -> None:
    """Windows returns EACCES for a port that another program uses exclusively, Linux for privileged ports."""
    assert is_taken(OSError(number, "refused"), platform) is taken


def test_stopping_closes_connections_and_frees_the_port() -> None:
    """After `stop`, connections are closed and the port can be used again; `stop` doesn't wait for clients."""
    server = WebServer("127.0.0.1:0", Pages(), limits=Limits(head_seconds=60, exchange_seconds=60, idle_seconds=60))
    server.start()
    idle = connect(server.address)
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < 30
    assert read_all(idle) == b""
    idle.close()
    again = WebServer(f"127.0.0.1:{server.address[1]}", Pages())
    again.start()
    assert httpx.get("http://{}:{}/metrics".format(*again.address)).status_code == 200
    again.stop()


def test_gzip_bodies_are_identical_each_time() -> None:
    """gzip bodies contain no timestamp, so an unchanged page is unchanged on the wire."""
    with serving(limits=Limits(fresh_seconds=0)) as address:
        bodies = set()
        for _ in range(2):
            sock = connect(address, ASK % b"Accept-Encoding: gzip\r\nConnection: close\r\n")
            bodies.add(read_all(sock).partition(b"\r\n\r\n")[2])
            sock.close()
    assert [gzip.decompress(body) for body in bodies] == [METRICS]


def test_modules_for_the_web_config_are_imported_only_with_one() -> None:
    """An agent without TLS and passwords loads neither PyYAML nor bcrypt."""
    code = "import sys, exporter.web.server, exporter.web.config; print(sorted({'yaml', 'bcrypt'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
