"""Event Hubs over TLS with a private CA: trust of the destination, `tail`, and `check --probe`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventData

from exporter.agent.destinations import destination_factories
from exporter.choices import Transport
from exporter.cli import main
from exporter.commands.check.destinations import probe_event_hubs
from exporter.commands.check.report import FindingVerdict
from exporter.config.schema import EventHubsSettings
from exporter.errors import Retryable
from exporter.secrets import Secret
from exporter.simulator.event_hubs.broker import Broker
from exporter.sinks.event_hubs.address import Address
from exporter.sinks.event_hubs.event_loop import LoopThread
from tests.support.certificates import Authority, write
from tests.support.configuration import errors, loaded
from tests.support.eventhubs_broker import FORGETFUL, collected
from tests.support.eventhubs_target import a_record
from tests.support.probing import ENVIRONMENT, findings_of

pytestmark = FORGETFUL
_collect = pytest.fixture(autouse=True)(collected)

STRING = "Endpoint=sb://127.0.0.1/;SharedAccessKeyName=local;SharedAccessKey=local;EntityPath=scheduled-events"
VARIABLE = "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING"


@dataclass(frozen=True, slots=True)
class Inspected:
    """A network whose TLS is signed by its own CA: `flags` connect to the broker, `ca` is the CA's file."""

    broker: Broker
    ca: str
    stranger: str

    def flags(self, transport: str, certificate: str = "") -> list[str]:
        trusted = [f"--event-hubs.certificate={certificate}"] if certificate else []
        endpoint = f"--event-hubs.custom-endpoint=sb://127.0.0.1:{self.broker.port}"
        return [endpoint, f"--event-hubs.transport={transport}", *trusted]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Inspected]:
    authority, stranger = Authority(), Authority("another CA")
    paths = write(tmp_path, "broker", *authority.issue("127.0.0.1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*paths)
    (tmp_path / "ca.pem").write_text(authority.pem)
    (tmp_path / "stranger.pem").write_text(stranger.pem)
    with Broker(ssl_context=context) as broker:
        yield Inspected(broker, str(tmp_path / "ca.pem"), str(tmp_path / "stranger.pem"))
        assert broker.unexpected_errors == []


def send(*flags: str) -> None:
    """Send one record with the destination that `run` makes of these settings."""
    destination = destination_factories(loaded(*flags, environ={VARIABLE: STRING}))["event_hubs"]()
    try:
        destination.send([a_record()])
    finally:
        destination.close()


def tail(*words: str) -> tuple[int, str]:
    """Return the exit code of `tail`, and its output."""
    said, before = io.StringIO(), dict(os.environ)
    os.environ[VARIABLE] = STRING
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return main(["tail", "--from", "start", "--max", "1", *words]), said.getvalue()
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.mark.parametrize("transport", ["amqp", "websocket"])
def test_configured_ca_is_trusted(network: Inspected, transport: str) -> None:
    """The record is sent, read by `tail`, and the probe succeeds, over AMQP and websocket."""
    flags = network.flags(transport, network.ca)
    send(*flags)
    assert len(network.broker.wait_for(1, 60)) == 1
    code, said = tail(*flags)
    assert (code, "1 record" in said) == (0, True), said
    (finding,) = findings_of(probe_event_hubs, loaded(*flags, environ={VARIABLE: STRING}), ENVIRONMENT)
    assert finding.verdict is FindingVerdict.OK, finding


@pytest.mark.parametrize("transport", ["amqp", "websocket"])
@pytest.mark.parametrize("trusted", ["nobody", "a stranger"])
def test_untrusted_ca_fails_without_sending_the_key(network: Inspected, transport: str, trusted: str) -> None:
    """With only the public CAs, or another one, the reason is `tls`, for an operator."""
    flags = network.flags(transport, network.stranger if trusted == "a stranger" else "")
    with pytest.raises(Retryable) as caught:
        send(*flags)
    assert (caught.value.reason, caught.value.needs_operator) == ("tls", True)
    (finding,) = findings_of(probe_event_hubs, loaded(*flags, environ={VARIABLE: STRING}), ENVIRONMENT)
    assert finding.verdict is FindingVerdict.FAIL
    assert "event_hubs.certificate" in finding.sentence
    assert network.broker.messages() == []


def test_tail_rejects_an_untrusted_certificate(network: Inspected) -> None:
    """It exits with 1 and names the cause."""
    code, said = tail(*network.flags("amqp", network.stranger))
    assert (code, "certificate is not trusted" in said) == (1, True), said


@pytest.mark.parametrize("content", [None, "", "no PEM"])
def test_unusable_ca_file_is_named(network: Inspected, tmp_path: Path, content: str | None) -> None:
    """By the destination, which keeps the record and retries slowly, by `tail`, and by `check`."""
    file = tmp_path / "wrong.pem"
    if content is not None:
        file.write_text(content)
    flags = network.flags("amqp", str(file))
    with pytest.raises(Retryable, match=r"event_hubs\.certificate .*wrong\.pem: cannot be used") as caught:
        send(*flags)
    assert (caught.value.reason, caught.value.needs_operator) == ("configuration", True)
    code, said = tail(*flags)
    assert (code, "wrong.pem: cannot be used" in said) == (1, True), said
    said_by_check, before = io.StringIO(), dict(os.environ)
    os.environ[VARIABLE] = STRING
    try:
        with contextlib.redirect_stderr(said_by_check):
            assert main(["check", *flags]) == 2
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert "--event-hubs.certificate" in said_by_check.getvalue()
    assert "wrong.pem" in said_by_check.getvalue()


def address_of(connection_string: str, **options: Any) -> Address:
    return Address(EventHubsSettings(connection_string=Secret(connection_string), **options))


@pytest.mark.parametrize("transport", ["amqp", "websocket"])
def test_ca_file_is_read_once_for_a_client(network: Inspected, transport: Transport) -> None:
    """Reading it for each connection would take time of the send."""
    endpoint = f"sb://127.0.0.1:{network.broker.port}"
    address = address_of(STRING, transport=transport, custom_endpoint=endpoint, certificate=network.ca)

    async def sends() -> None:
        context = address.tls_context()
        Path(network.ca).unlink()
        async with address.client(None, context) as client:
            batch = await client.create_batch()
            batch.add(EventData("a message"))
            await client.send_batch(batch)

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(sends())
    assert len(network.broker.wait_for(1, 60)) == 1


def test_connection_without_tls_reads_no_ca() -> None:
    """Only TLS connections parse the public authorities."""
    authorities = {
        flag: address_of(f"{STRING};UseDevelopmentEmulator={flag}").tls_context().cert_store_stats()
        for flag in ("true", "false")
    }
    assert authorities["true"]["x509_ca"] == 0
    assert authorities["false"]["x509_ca"] > 50


AZURE = [
    "contoso.servicebus.windows.net",
    "CONTOSO.SERVICEBUS.WINDOWS.NET",
    "contoso.servicebus.chinacloudapi.cn",
    "contoso.servicebus.usgovcloudapi.net",
    "contoso.privatelink.servicebus.windows.net",
]


def emulator(host: str) -> dict[str, str]:
    return {VARIABLE: STRING.replace("127.0.0.1", host) + ";UseDevelopmentEmulator=true"}


@pytest.mark.parametrize("host", AZURE)
def test_connection_to_azure_without_tls_is_rejected(host: str) -> None:
    """UseDevelopmentEmulator=true with a namespace of Azure, in the connection string or as custom endpoint."""
    (named,) = errors(environ=emulator(host))
    assert "would be sent unencrypted" in named
    assert VARIABLE in named
    (reached,) = errors(f"--event-hubs.custom-endpoint=sb://{host}", environ=emulator("127.0.0.1"))
    assert "would be sent unencrypted" in reached
    assert "--event-hubs.custom-endpoint" in reached


@pytest.mark.parametrize(
    ("host", "warned"),
    [
        ("localhost", False),
        ("127.0.0.1", False),
        ("127.8.9.10", False),
        ("emulator.localhost", False),
        ("emulator", True),
        ("10.1.2.3", True),
        ("localhost.example.com", True),
    ],
)
def test_remote_emulator_is_warned_about(host: str, warned: bool) -> None:
    """Outside loopback the key is sent unencrypted: `check` and the log of `run` warn."""
    settings = loaded(environ=emulator(host))
    assert any("without TLS" in warning for warning in settings.warnings) is warned
    settings = loaded(f"--event-hubs.custom-endpoint=sb://{host}", environ=emulator("127.0.0.1"))
    assert any("without TLS" in warning for warning in settings.warnings) is warned


@pytest.mark.parametrize(
    ("url", "headers", "warned"),
    [
        ("http://collector:4318", "authorization=Bearer abcdef", True),
        ("http://user:hunter2@collector:4318", "", True),
        ("http://10.0.0.1:4318", "api-key=abcdef", True),
        ("http://collector:4318", "", False),
        ("https://collector:4318", "authorization=Bearer abcdef", False),
        ("https://user:hunter2@collector:4318", "", False),
        ("http://127.0.0.1:4318", "authorization=Bearer abcdef", False),
        ("http://[::1]:4318", "authorization=Bearer abcdef", False),
        ("http://user:hunter2@localhost:4318", "", False),
    ],
)
def test_unencrypted_credentials_for_a_collector_are_warned_about(url: str, headers: str, warned: bool) -> None:
    """`http` outside loopback with headers or a user, from settings or standard variables."""
    own = {"SCHEDULED_EVENTS_OTLP_ENDPOINT": url, "SCHEDULED_EVENTS_OTLP_HEADERS": headers}
    standard = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_HEADERS": headers}
    exact = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": url, "OTEL_EXPORTER_OTLP_LOGS_HEADERS": headers}
    for environ in (own, standard, exact):
        settings = loaded(environ=environ)
        found = [warning for warning in settings.warnings if "without TLS" in warning]
        assert bool(found) is warned, environ
        assert "hunter2" not in "".join(found)
        assert "abcdef" not in "".join(found)


def test_connection_closed_twice_raises_nothing(network: Inspected) -> None:
    """CPython 3.11.2 raises AttributeError on the second abort, which would end `tail`."""
    thread = LoopThread("connections")

    async def close_twice() -> bool:
        loop = asyncio.get_running_loop()
        trusting = ssl.create_default_context(cafile=network.ca)
        port = network.broker.port
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port, ssl=trusting)
        transport.close()
        transport.close()
        thread.abort_connections()
        return transport.is_closing()

    try:
        assert thread.run(close_twice(), 60)
    finally:
        thread.stop(60)
