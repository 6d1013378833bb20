"""The HTTP server with TLS and passwords, used by real clients and a real Prometheus."""

from __future__ import annotations

import base64
import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import httpx
import pytest

from exporter.web.responses import GATE, ROUTES
from tests.support import peers
from tests.support.certificates import Authority, ends, write
from tests.support.web_target import (
    METRICS,
    SLOWEST_SECONDS,
    Target,
    config,
    connect,
    read_all,
    scrape_seconds,
    serving,
    target,
)

PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
SLOW_HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
TLS_LINES = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"


def authorization(user: str, password: str) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()) + b"\r\n"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def folder(tmp_path: Path, authority: Authority) -> Path:
    """Return a folder with a server's certificate and the CA's."""
    write(tmp_path, "server", *authority.issue("localhost", "127.0.0.1"))
    (tmp_path / "ca.crt").write_text(authority.pem)
    return tmp_path


def trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "ca.crt"))


def status(
    address: tuple[str, int],
    context: ssl.SSLContext | None = None,
    auth: tuple[str, str] | None = None,
    path: str = "/",
) -> int:
    """Return the status of a GET over TLS with a context."""
    scheme = "https" if context else "http"
    with httpx.Client(verify=context or True, trust_env=False) as client:
        return client.get(f"{scheme}://127.0.0.1:{address[1]}{path}", auth=auth).status_code


def test_every_path_needs_tls_and_the_password(folder: Path) -> None:
    """With both configured, every path except the gate needs the password, and nothing is served without TLS."""
    web_config = config(folder, TLS_LINES + f"basic_auth_users:\n  prometheus: {HASH}\n")
    with serving(web_config=web_config) as address:
        for path in sorted(ROUTES - {GATE}):
            assert status(address, trusting(folder), ("prometheus", PASSWORD), path) == 200
            assert status(address, trusting(folder), None, path) == 401
        assert status(address, trusting(folder), ("prometheus", PASSWORD), "/nope") == 404
        plain = connect(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        received = read_all(plain)
        plain.close()
    assert received.startswith(b"HTTP/1.0 400 ")
    assert METRICS[:20] not in received


@pytest.mark.parametrize(
    ("user", "password", "expected"),
    [
        ("prometheus", PASSWORD, 200),
        ("prometheus", PASSWORD + "x", 401),
        ("prometheus", "", 401),
        ("nobody", PASSWORD, 401),
        ("nobody", "fakepassword", 401),
        ("", "", 401),
        ("prometheus", "x" * 200, 401),
    ],
)
def test_only_the_right_user_and_password_are_admitted(folder: Path, user: str, password: str, expected: int) -> None:
    """Wrong and unknown users get the same 401, first and later, with the challenge that browsers understand."""
    with serving(web_config=config(folder, f"basic_auth_users: {{prometheus: '{HASH}'}}")) as (host, port):
        for _ in range(2):
            answer = httpx.get(f"http://{host}:{port}/metrics", auth=(user, password))
            assert answer.status_code == expected
            assert expected == 200 or answer.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize("header", ["Basic", "Basic !!!", "Bearer abc", "basic cHJvbQ==", "Digest username=x"])
def test_other_authorization_headers_are_refused(folder: Path, header: str) -> None:
    """Any other Authorization header gets a 401 without a password comparison."""
    with serving(web_config=config(folder, f"basic_auth_users: {{prometheus: '{HASH}'}}")) as (host, port):
        assert httpx.get(f"http://{host}:{port}/", headers={"Authorization": header}).status_code == 401


def test_a_password_longer_than_bcrypt_reads_is_truncated(folder: Path) -> None:
    """bcrypt uses 72 bytes; a longer password with the same beginning is accepted, as with Go and htpasswd."""
    hashed = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
    with serving(web_config=config(folder, f"basic_auth_users: {{prometheus: '{hashed}'}}")) as address:
        assert status(address, auth=("prometheus", "x" * 80)) == 200


@pytest.fixture
def guarded(folder: Path) -> Iterator[Target]:
    """Yield a process that serves with TLS and a password with a realistic bcrypt cost."""
    (folder / "web.yml").write_text(TLS_LINES + f"basic_auth_users:\n  prometheus: {SLOW_HASH}\n")
    with target("--web-config", str(folder / "web.yml")) as running:
        yield running


@pytest.mark.linux("measures the server in /proc")
def test_a_flood_of_wrong_passwords_stops_no_scraper(folder: Path, guarded: Target) -> None:
    """While 30 clients try wrong passwords, a scraper is admitted and then served without a wait, at half a core."""
    context, done = trusting(folder), threading.Event()

    def flood(number: int) -> None:
        attempt = 0
        while not done.is_set():
            attempt += 1
            try:
                scrape_seconds(guarded.address, context, authorization("prometheus", f"wrong {number} {attempt}"))
            except (AssertionError, OSError):
                continue

    begun, before = time.monotonic(), guarded.processor_seconds()
    threads = [threading.Thread(target=flood, args=(number,), daemon=True) for number in range(30)]
    for thread in threads:
        thread.start()
    good = authorization("prometheus", PASSWORD)
    try:
        peers.until(lambda: is_admitted(guarded.address, context, good))
        slowest = max(scrape_seconds(guarded.address, context, good) for _ in range(20))
        with selectors.DefaultSelector() as pause:
            pause.select(1.5)
        used = (guarded.processor_seconds() - before) / (time.monotonic() - begun)
        assert guarded.status("Threads") <= 40
    finally:
        done.set()
        for thread in threads:
            thread.join(10)
    assert slowest < SLOWEST_SECONDS
    assert used < 0.9


def is_admitted(address: tuple[str, int], context: ssl.SSLContext, headers: bytes) -> bool:
    try:
        scrape_seconds(address, context, headers)
    except AssertionError:
        return False
    return True


@pytest.mark.linux("measures the server in /proc")
def test_unfinished_handshakes_are_closed(folder: Path, guarded: Target) -> None:
    """With the default limits, 400 connections without a full handshake are closed within 10 s and delay no scrape."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusting(folder).wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello, good = outgoing.read(), authorization("prometheus", PASSWORD)
    scrape_seconds(guarded.address, trusting(folder), good)
    before = guarded.status("VmRSS")
    socks = [connect(guarded.address, (b"", hello[:100], hello)[number % 3]) for number in range(400)]
    end, slowest, most = time.monotonic() + 20, 0.0, 0
    left = socks
    while left and time.monotonic() < end:
        slowest = max(slowest, scrape_seconds(guarded.address, trusting(folder), good))
        most = max(most, guarded.status("VmRSS"))
        left = [sock for sock in left if not _ended(sock)]
        with selectors.DefaultSelector() as pause:
            pause.select(0.2)
    for sock in socks:
        sock.close()
    assert not left
    assert slowest < SLOWEST_SECONDS
    assert most - before <= 60 * 1024


def _ended(sock: socket.socket) -> bool:
    try:
        while sock.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_client_certificates_are_requested_and_their_names_compared(folder: Path, authority: Authority) -> None:
    """With RequireAndVerifyClientCert and client_allowed_sans, only a CA's certificate with such a name is accepted."""
    wanted = "spiffe://cluster/prometheus"
    write(folder, "good", *authority.issue("prometheus", wanted))
    write(folder, "by-address", *authority.issue("2001:db8::1"))
    write(folder, "other-name", *authority.issue("somebody"))
    write(folder, "other-ca", *Authority("other").issue("prometheus", wanted))
    further = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"
    further += f"  client_allowed_sans: ['{wanted}', '2001:db8::1']\n"
    with serving(web_config=config(folder, TLS_LINES + further)) as address:
        for name in ("good", "by-address"):
            assert status(address, _with_certificate(folder, name)) == 200
        for refused in ("other-name", "other-ca", ""):
            with pytest.raises(httpx.TransportError):
                status(address, _with_certificate(folder, refused))


def _with_certificate(folder: Path, name: str) -> ssl.SSLContext:
    context = trusting(folder)
    if name:
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


@pytest.mark.parametrize(
    ("lines", "version", "cipher"),
    [
        ("", "TLSv1.3", ""),
        ("  max_version: TLS12\n", "TLSv1.2", ""),
        ("  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n", "TLSv1.2", "AES256-GCM"),
        ("  min_version: TLS13\n  curve_preferences: [CurveP384]\n", "TLSv1.3", ""),
        ("  curve_preferences: [CurveP256, CurveP384, CurveP521, X25519]\n", "TLSv1.3", ""),
        ("  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", "TLSv1.3", ""),
        ("  min_version: TLS10\n  prefer_server_cipher_suites: false\n", "TLSv1.3", ""),
    ],
)
def test_configured_versions_ciphers_and_curves_are_used(folder: Path, lines: str, version: str, cipher: str) -> None:
    """A client that supports everything negotiates what the file allows."""
    with (
        serving(web_config=config(folder, TLS_LINES + lines)) as address,
        socket.create_connection(address, 5) as plain,
        trusting(folder).wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        agreed = sock.cipher()
        assert sock.version() == version
        assert agreed is not None
        assert cipher in agreed[0]


def test_an_older_tls_than_allowed_is_refused(folder: Path) -> None:
    """min_version TLS13 refuses a client that supports at most 1.2."""
    context = trusting(folder)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        serving(web_config=config(folder, TLS_LINES + "  min_version: TLS13\n")) as address,
        pytest.raises(httpx.ConnectError, match=r"(?i)version"),
    ):
        status(address, context)


def test_configured_headers_are_on_every_response(folder: Path) -> None:
    """http_server_config.headers are sent with pages, errors, and refusals, except blank ones."""
    text = "http_server_config:\n  http2: false\n  headers: {X-Frame-Options: deny, X-XSS-Protection: ''}\n"
    with serving(web_config=config(folder, text)) as (host, port):
        for path in ("/", "/nope"):
            headers = httpx.get(f"http://{host}:{port}{path}").headers
            assert headers["x-frame-options"] == "deny"
            assert "x-xss-protection" not in headers


def test_the_rate_limit_refuses_further_requests(folder: Path) -> None:
    """With one request an hour and a burst of two, the third gets a 429."""
    with serving(web_config=config(folder, "rate_limit: {interval: 1h, burst: 2}")) as address:
        assert [status(address) for _ in range(3)] == [200, 200, 429]


def test_a_new_certificate_is_served_without_a_restart(folder: Path, authority: Authority) -> None:
    """Within seconds of the replacement, new connections get the new certificate, and its expiry time is published."""
    web_config = config(folder, TLS_LINES)
    with serving(web_config=web_config) as address:
        old = _served(address, folder)
        write(folder, "server", *authority.issue("localhost", "127.0.0.1"))
        new = peers.until(lambda: (served := _served(address, folder)) != old and served)
    assert new == ssl.PEM_cert_to_DER_cert((folder / "server.crt").read_text())
    assert web_config.certificate_not_after == ends((folder / "server.crt").read_text())


class Visitor:
    """A client that keeps one connection and sends requests on it."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None) -> None:
        sock = socket.create_connection(address, timeout=30)
        self._sock = context.wrap_socket(sock, server_hostname="127.0.0.1") if context else sock

    def is_answered(self) -> bool:
        """Return whether the next request gets a response; False once the connection is closed."""
        try:
            self._sock.sendall(b"GET /-/ready HTTP/1.1\r\nHost: x\r\n\r\n")
            return bool(self._sock.recv(65536))
        except OSError:
            return False

    def close(self) -> None:
        self._sock.close()


MUTUAL = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n"


@pytest.mark.parametrize(("before", "after"), [("", TLS_LINES), (TLS_LINES, TLS_LINES + MUTUAL)])
def test_stronger_requirements_apply_to_open_connections_too(
    folder: Path, authority: Authority, before: str, after: str
) -> None:
    """A client admitted without a certificate or TLS can't keep its connection open by sending requests."""
    write(folder, "client", *authority.issue("client"))
    with serving(web_config=config(folder, before)) as address:
        with contextlib.closing(Visitor(address, trusting(folder) if before else None)) as visitor:
            assert visitor.is_answered()
            (folder / "web.yml").write_text(after)
            peers.until(lambda: not visitor.is_answered())
        with contextlib.closing(Visitor(address, _with_certificate(folder, "client"))) as admitted:
            assert admitted.is_answered()


def test_open_connections_survive_a_new_certificate(folder: Path, authority: Authority) -> None:
    """The requirements for open connections are the same."""
    web_config = config(folder, TLS_LINES)
    with serving(web_config=web_config) as address, contextlib.closing(Visitor(address, trusting(folder))) as visitor:
        before = web_config.current
        write(folder, "server", *authority.issue("127.0.0.1"))
        peers.until(lambda: visitor.is_answered() and web_config.current is not before)
        assert visitor.is_answered()


def _served(address: tuple[str, int], folder: Path) -> bytes:
    with (
        socket.create_connection(address, 5) as plain,
        trusting(folder).wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        certificate = sock.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


@pytest.mark.peer("prometheus")
def test_a_real_prometheus_scrapes_with_tls_and_password_and_is_refused_without(folder: Path, tmp_path: Path) -> None:
    """Prometheus with CA and password is up with samples; otherwise it is down and reports the reason."""
    peers.need("prometheus")
    web_config = config(folder, TLS_LINES + f"basic_auth_users:\n  prometheus: {HASH}\n")
    with serving(web_config=web_config) as address:
        where = f"localhost:{address[1]}"
        tls = {"scheme": "https", "tls_config": {"ca_file": str(folder / "ca.crt")}}
        scrapes = [
            peers.scrape("good", where, **tls, basic_auth={"username": "prometheus", "password": PASSWORD}),
            peers.scrape("without", where, **tls),
            peers.scrape("wrong", where, **tls, basic_auth={"username": "prometheus", "password": "x"}),
            peers.scrape("plain", where),
        ]
        with peers.prometheus(tmp_path / "prometheus", scrapes) as prometheus:
            peers.until(lambda: len(prometheus.query("up")) == 4)
            up = {sample["metric"]["job"]: sample["value"][1] for sample in prometheus.query("up")}
            errors = {entry["labels"]["job"]: entry["lastError"] for entry in prometheus.targets()}
            samples = {sample["metric"]["job"] for sample in prometheus.query("m7")}
    assert up == {"good": "1", "without": "0", "wrong": "0", "plain": "0"}
    assert samples == {"good"}
    assert "401 Unauthorized" in errors["without"]
    assert "401 Unauthorized" in errors["wrong"]
    assert "400 Bad Request" in errors["plain"]
