"""The OTLP destination through proxies: records arrive, and the proxy sees no more than it must."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from exporter.errors import Retryable
from tests.sinks.otlp.test_sink import a_record, status
from tests.support.certificates import self_signed, write
from tests.support.otlp_receiver import PROTOBUF, Drop, Hang, Receiver, Reply, otlp_to, success
from tests.support.tunnel_proxy import TunnelProxy

CREDENTIALS = "Basic dXNlcjpodW50ZXIy"  # user:hunter2


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return a certificate for 127.0.0.1 and its key, as files."""
    made, key = write(tmp_path_factory.mktemp("tls"), "peer", *self_signed("peer"))
    return str(made), str(key)


def served_with(certificate: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def send(url: str, environ: dict[str, str], records: int = 1, **options: Any) -> None:
    destination = otlp_to(url, environ=environ, **({"timeout": 20.0} | options))
    try:
        for _ in range(records):
            destination.send([a_record()])
    finally:
        destination.close()


def refused(url: str, environ: dict[str, str], **options: Any) -> Retryable:
    with pytest.raises(Retryable) as caught:
        send(url, environ, **options)
    assert "hunter2" not in f"{caught.value} {caught.value!r}"
    return caught.value


def test_http_proxy_receives_the_whole_address() -> None:
    """With its credentials, on one connection that is kept."""
    with Receiver() as proxy:
        address = proxy.url.replace("//", "//user:hunter2@")
        send("http://collector.example/v1/logs", {"http_proxy": address}, 2)
    assert [seen.path for seen in proxy.requests] == ["http://collector.example/v1/logs"] * 2
    assert proxy.requests[0].headers["host"] == "collector.example"
    assert proxy.requests[0].headers["proxy-authorization"] == CREDENTIALS
    assert (len(proxy.logs), len(proxy.connections)) == (2, 1)


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_proxy_credentials_are_hidden_in_failures(scheme: str) -> None:
    """A proxy may respond in the collector's place and quote its user and password."""
    sentence = status("user user, password hunter2, as in dXNlcjpodW50ZXIy")
    with Receiver(Reply(401, PROTOBUF, sentence)) as proxy:
        environ = {"http_proxy": f"{scheme}user:hunter2@127.0.0.1:{proxy.port}"}
        error = refused("http://collector.example/v1/logs", environ)
    assert proxy.requests[0].headers["proxy-authorization"] == CREDENTIALS
    assert "dXNlcjpodW50" not in str(error)


def test_https_address_uses_a_tunnel(certificate: tuple[str, str]) -> None:
    """The proxy sees host, port, and its credentials; headers and records are inside TLS."""
    with Receiver(tls=served_with(certificate)) as receiver, TunnelProxy() as proxy:
        environ = {"https_proxy": proxy.url.replace("//", "//user:hunter2@")}
        send(receiver.url, environ, 2, headers={"x-key": "s3cr3t"}, certificate=certificate[0])
    assert (len(receiver.logs), len(receiver.connections), len(proxy.requests)) == (2, 1, 1)
    head = proxy.requests[0].decode()
    assert head.startswith(f"CONNECT 127.0.0.1:{receiver.port} HTTP/1.1\r\n")
    assert f"Proxy-Authorization: {CREDENTIALS}\r\n" in head
    assert "s3cr3t" not in head
    assert "proxy-authorization" not in receiver.requests[0].headers
    assert receiver.requests[0].headers["x-key"] == "s3cr3t"


def test_certificate_behind_a_tunnel_is_verified(certificate: tuple[str, str]) -> None:
    """An untrusted one is rejected before anything is sent."""
    with Receiver(tls=served_with(certificate)) as receiver, TunnelProxy() as proxy:
        error = refused(receiver.url, {"https_proxy": proxy.url})
    assert (error.reason, error.needs_operator, receiver.requests) == ("tls", True, [])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nand more",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b" ",
    ],
)
def test_refused_tunnel_names_the_proxy(answer: bytes) -> None:
    """For any response; the proxy is asked once, and the failure is transient."""
    with TunnelProxy(refusal=answer) as proxy:
        error = refused("https://collector.example/v1/logs", {"https_proxy": proxy.url})
    assert (error.reason, error.needs_operator, len(proxy.requests)) == ("connect", False, 1)


def test_unreachable_proxy_is_named() -> None:
    """The collector is never contacted directly."""
    with Receiver() as closed:
        port = closed.port
    with Receiver() as receiver:
        error = refused(receiver.url, {"http_proxy": f"http://user:hunter2@127.0.0.1:{port}"})
        assert (error.reason, "the proxy" in str(error), receiver.requests) == ("connect", True, [])


@pytest.mark.parametrize(
    "address",
    ["socks5://user:hunter2@127.0.0.1:1", "https://user:hunter2@127.0.0.1:1", "http://user:hunter2@127.0.0.1:hunter2"],
)
def test_invalid_proxy_address_is_a_configuration_failure(address: str) -> None:
    """For an operator; the proxy is never bypassed."""
    with Receiver() as receiver:
        error = refused(receiver.url, {"http_proxy": address})
        assert (error.reason, error.needs_operator, receiver.requests) == ("configuration", True, [])
    assert "expected a proxy address" in str(error)


def test_no_proxy_bypasses_the_proxy() -> None:
    with Receiver() as receiver, Receiver() as proxy:
        send(receiver.url, {"http_proxy": proxy.url, "NO_PROXY": "localhost,127.0.0.0/8"})
        assert (len(receiver.logs), proxy.requests) == (1, [])


def test_silent_proxy_ends_by_the_deadline(certificate: tuple[str, str]) -> None:
    """The deadline covers the tunnel and the exchange inside it."""
    with Receiver(Hang(), tls=served_with(certificate)) as receiver, TunnelProxy() as proxy:
        error = refused(receiver.url, {"https_proxy": proxy.url}, timeout=1.0, certificate=certificate[0])
        assert error.reason == "timeout"
    with Receiver() as dead:  # takes connections and understands no CONNECT
        error = refused("https://collector.example/", {"https_proxy": dead.url}, timeout=1.0)
        assert error.reason == "connect"


def test_broken_tunnel_is_retried_once(certificate: tuple[str, str]) -> None:
    """A connection closed before the response causes a second tunnel, not a failure."""
    with Receiver(success(), Drop(), tls=served_with(certificate)) as receiver, TunnelProxy() as proxy:
        send(receiver.url, {"https_proxy": proxy.url}, 2, certificate=certificate[0])
    assert (len(receiver.logs), len(receiver.requests), len(proxy.requests)) == (2, 3, 2)
