"""The gate and the status on the HTTP server: access, cost, and the response if the agent fails."""

from __future__ import annotations

import io
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import httpx
import pytest

from exporter.log.log import Log
from exporter.web.connection import Limits
from exporter.web.responses import GATE, STATUS, Accept, WebResponse
from exporter.web.server import WebServer
from tests.support.certificates import Authority, write
from tests.support.connection_flood import Crowd, hosts
from tests.support.log_reading import logged
from tests.support.web_target import config, connect, read_all, serving, target

AUTH = ("prometheus", "right")
USERS = f"basic_auth_users:\n  prometheus: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}\n"
SLOW = f"basic_auth_users:\n  prometheus: {bcrypt.hashpw(b'right', bcrypt.gensalt(12)).decode()}\n"
TWO_AN_HOUR = "rate_limit: {interval: 1h, burst: 2}\n"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a server with a password, which allows two unauthenticated requests an hour."""
    text = USERS + TWO_AN_HOUR + "http_server_config:\n  http2: false\n  headers: {X-Frame-Options: deny}\n"
    with (
        serving(web_config=config(tmp_path, text)) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", trust_env=False) as client,
    ):
        yield client


@pytest.mark.parametrize("auth", [None, AUTH, ("prometheus", "wrong"), ("nobody", "")])
def test_the_gate_needs_no_password_and_checks_none(guarded: httpx.Client, auth: tuple[str, str] | None) -> None:
    """With any or no password, the response is the same, has the configured headers, and isn't rate-limited."""
    for method in ("GET", "HEAD") * 5:
        answer = guarded.request(method, GATE, auth=auth)
        assert (answer.status_code, answer.headers["x-frame-options"]) == (200, "deny")
    assert [guarded.get("/").status_code for _ in range(3)] == [401, 401, 429]
    assert guarded.get(GATE, auth=auth).status_code == 200


@pytest.mark.parametrize("target", ["/-/gate?", "/-/gate?probe=1&x=%2F", "http://10.0.0.4:10169/-/gate"])
def test_the_gate_accepts_a_query_and_an_absolute_target(guarded: httpx.Client, target: str) -> None:
    """Some load balancers add a query, others send the whole URL."""
    sock = connect(
        (guarded.base_url.host, guarded.base_url.port or 0),
        f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(),
    )
    assert read_all(sock).startswith(b"HTTP/1.1 200 ")
    sock.close()


@pytest.mark.parametrize("path", ["/-/gate/", "/-/Gate", "/-/gate%20", "//-/gate", "/-/../-/gate", "/-/gate/../../"])
def test_only_the_path_of_the_gate_needs_no_password(guarded: httpx.Client, path: str) -> None:
    """A path that only resembles the gate is another path."""
    sock = connect(
        (guarded.base_url.host, guarded.base_url.port or 0),
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(),
    )
    assert read_all(sock).startswith(b"HTTP/1.1 401 ")
    sock.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused_at_the_gate(guarded: httpx.Client, method: str) -> None:
    """The response is a 405 that lists the allowed methods."""
    answer = guarded.request(method, GATE)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_the_status_needs_the_password_like_the_page(guarded: httpx.Client) -> None:
    """The status needs the password, and counts for the rate limit like the page."""
    assert [guarded.get(path, auth=AUTH).status_code for path in ("/", STATUS) * 3] == [200] * 6
    assert [guarded.get(STATUS).status_code for _ in range(3)] == [401, 401, 429]


@pytest.mark.linux("measures the server in /proc")
@pytest.mark.not_emulated("judges how much processor time is used")
def test_a_password_sent_to_the_gate_costs_nothing(tmp_path: Path) -> None:
    """A hundred wrong passwords cost next to nothing; elsewhere, one takes a fifth of a second."""
    (tmp_path / "web.yml").write_text(SLOW)
    with target("--web-config", str(tmp_path / "web.yml")) as running, httpx.Client() as client:
        url = f"http://127.0.0.1:{running.address[1]}{GATE}"
        assert client.get(url).status_code == 200
        before = running.processor_seconds()
        for number in range(100):
            assert client.get(url, auth=("prometheus", f"wrong {number}")).status_code == 200
        assert running.processor_seconds() - before < 2  # at least 20 if they were compared


def test_the_gate_needs_a_certificate_only_if_all_clients_do(tmp_path: Path) -> None:
    """With VerifyClientCertIfGiven, a prober needs no certificate; if one is required, the handshake fails."""
    authority = Authority()
    write(tmp_path, "localhost", *authority.issue("localhost", "127.0.0.1"))
    (tmp_path / "ca.crt").write_text(authority.pem)
    lines = "tls_server_config:\n  cert_file: localhost.crt\n  key_file: localhost.key\n  client_ca_file: ca.crt\n"
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    for kind in ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert"):
        with (
            serving(web_config=config(tmp_path, f"{lines}  client_auth_type: {kind}\n")) as (_, port),
            httpx.Client(verify=context, trust_env=False) as client,
        ):
            url = f"https://127.0.0.1:{port}{GATE}"
            if kind == "VerifyClientCertIfGiven":
                assert client.get(url).status_code == 200
            else:
                with pytest.raises(httpx.TransportError):
                    client.get(url)


@pytest.mark.linux("its crowd has many addresses of 127.0.0.0/8")
@pytest.mark.not_emulated("judges how many seconds an answer takes")
@pytest.mark.parametrize("strangers", [1, 30])
def test_many_clients_do_not_lock_out_the_prober(strangers: int) -> None:
    """Other clients that request the gate and never read take all connections; the prober still gets a response."""
    request = b"GET /-/gate HTTP/1.1\r\nHost: x\r\n\r\n"
    with (
        serving(limits=Limits(connections=20)) as address,
        Crowd(address, lambda _: request, sources=hosts(strangers), size=60, rate=50.0),
    ):
        for _ in range(20):
            assert httpx.get(f"http://127.0.0.1:{address[1]}{GATE}", timeout=5).status_code == 200


class Failing:
    """An application that raises while `broken` and hangs while `stuck`."""

    def __init__(self) -> None:
        self.broken, self.released = True, threading.Event()

    def respond(self, path: str, accept: Accept) -> WebResponse:  # noqa: ARG002  # the protocol's signature
        if self.broken:
            raise RuntimeError("the secret reason")
        self.released.wait(30)
        return WebResponse(503, "text/plain", b"Closed.\n")


def test_a_fault_of_the_agent_opens_the_gate() -> None:
    """Errors and hangs give an uncacheable 200 and are logged; other pages give 500 and 503."""
    failing, text = Failing(), io.StringIO()
    log = Log(text)
    server = WebServer("127.0.0.1:0", failing, limits=Limits(fresh_seconds=0, render_seconds=0.4), log=log)
    server.start()
    url = "http://{}:{}".format(*server.address)
    try:
        for other in (500, 503):
            answer = httpx.get(url + GATE)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
            assert answer.text == "Open: the agent could not determine what is planned.\n"
            assert httpx.get(url + "/-/healthy").status_code == other
            failing.broken = False
    finally:
        failing.released.set()
        server.stop()
    assert "path=/-/gate" in logged(log, text)


@pytest.mark.linux("a stack of this size is refused at once")
def test_the_gate_is_open_if_no_thread_can_be_started() -> None:
    """A process that can't start another thread still responds."""
    with (
        serving(limits=Limits(fresh_seconds=0)) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}") as client,
    ):
        assert client.get(GATE).text == "fine\n"
        before = threading.stack_size(1 << 46)
        try:
            answers = [client.get(path) for path in (GATE, "/-/healthy")]
        finally:
            threading.stack_size(before)
        assert [answer.status_code for answer in answers] == [200, 500]
        assert answers[0].text.startswith("Open: ")
        assert client.get(GATE).text == "fine\n"
