"""The OTLP destination through proxies of every kind: records arrive, and the proxy sees what it must and no more."""

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
    """A certificate for 127.0.0.1 and its key, as files."""
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


def test_a_plain_address_is_asked_for_whole() -> None:
    """A proxy of http:// gets the whole address and its credentials, on one connection that is kept."""
    with Receiver() as proxy:
        address = proxy.url.replace("//", "//user:hunter2@")
        send("http://collector.example/v1/logs", {"http_proxy": address}, 2)
    assert [seen.path for seen in proxy.requests] == ["http://collector.example/v1/logs"] * 2
    assert proxy.requests[0].headers["host"] == "collector.example"
    assert proxy.requests[0].headers["proxy-authorization"] == CREDENTIALS
    assert (len(proxy.logs), len(proxy.connections)) == (2, 1)


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_what_a_proxy_repeats_of_its_credentials_is_hidden(scheme: str) -> None:
    """A proxy may answer in the collector's place, and name the user and password that it was given."""
    sentence = status("user user, password hunter2, as in dXNlcjpodW50ZXIy")
    with Receiver(Reply(401, PROTOBUF, sentence)) as proxy:
        environ = {"http_proxy": f"{scheme}user:hunter2@127.0.0.1:{proxy.port}"}
        error = refused("http://collector.example/v1/logs", environ)
    assert proxy.requests[0].headers["proxy-authorization"] == CREDENTIALS
    assert "dXNlcjpodW50" not in str(error)


def test_a_tls_address_is_reached_through_a_tunnel(certificate: tuple[str, str]) -> None:
    """The proxy learns host and port and its own credentials; headers and records pass it inside of TLS."""
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


def test_a_collector_behind_a_tunnel_is_checked_too(certificate: tuple[str, str]) -> None:
    """An unknown certificate behind the proxy is refused before anything is sent."""
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
def test_a_proxy_that_opens_no_tunnel_is_named(answer: bytes) -> None:
    """Whatever it answers instead: it is the proxy, asked once, and tried again like a collector that is away."""
    with TunnelProxy(refusal=answer) as proxy:
        error = refused("https://collector.example/v1/logs", {"https_proxy": proxy.url})
    assert (error.reason, error.needs_operator, len(proxy.requests)) == ("connect", False, 1)


def test_a_proxy_that_is_not_there_is_named() -> None:
    """The failure says that it is the proxy, and the collector is never asked directly."""
    with Receiver() as closed:
        port = closed.port
    with Receiver() as receiver:
        error = refused(receiver.url, {"http_proxy": f"http://user:hunter2@127.0.0.1:{port}"})
        assert (error.reason, "the proxy" in str(error), receiver.requests) == ("connect", True, [])


@pytest.mark.parametrize(
    "address",
    ["socks5://user:hunter2@127.0.0.1:1", "https://user:hunter2@127.0.0.1:1", "http://user:hunter2@127.0.0.1:hunter2"],
)
def test_an_address_that_is_no_proxys_is_a_configuration_failure(address: str) -> None:
    """It is for a person to mend, and never answered by going around the proxy."""
    with Receiver() as receiver:
        error = refused(receiver.url, {"http_proxy": address})
        assert (error.reason, error.needs_operator, receiver.requests) == ("configuration", True, [])
    assert "expected a proxy address" in str(error)


def test_what_no_proxy_names_is_asked_directly() -> None:
    """NO_PROXY of the environment holds for the collector."""
    with Receiver() as receiver, Receiver() as proxy:
        send(receiver.url, {"http_proxy": proxy.url, "NO_PROXY": "localhost,127.0.0.0/8"})
        assert (len(receiver.logs), proxy.requests) == (1, [])


def test_a_silent_proxy_costs_the_deadline(certificate: tuple[str, str]) -> None:
    """The deadline is for the tunnel and the exchange inside of it together."""
    with Receiver(Hang(), tls=served_with(certificate)) as receiver, TunnelProxy() as proxy:
        error = refused(receiver.url, {"https_proxy": proxy.url}, timeout=1.0, certificate=certificate[0])
        assert error.reason == "timeout"
    with Receiver() as dead:  # takes connections and understands no CONNECT
        error = refused("https://collector.example/", {"https_proxy": dead.url}, timeout=1.0)
        assert error.reason == "connect"


def test_a_tunnel_that_breaks_is_opened_once_more(certificate: tuple[str, str]) -> None:
    """A collector that hangs up before its answer costs a second tunnel, not a failure."""
    with Receiver(success(), Drop(), tls=served_with(certificate)) as receiver, TunnelProxy() as proxy:
        send(receiver.url, {"https_proxy": proxy.url}, 2, certificate=certificate[0])
    assert (len(receiver.logs), len(receiver.requests), len(proxy.requests)) == (2, 3, 2)
