"""The probes of the destinations: every fault has its finding, and no record is sent."""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from azure.identity.aio import EnvironmentCredential

from exporter.commands.check.destinations import address_of, explained, probe_event_hubs, probe_otlp
from exporter.commands.check.report import Finding, FindingVerdict, ProbeEnvironment
from exporter.config.schema import EventHubsSettings, Settings
from exporter.errors import Retryable
from exporter.simulator.event_hubs.broker import Broker
from tests.commands.check.test_command import a_pair
from tests.support.configuration import CONNECTION, KEY, loaded
from tests.support.eventhubs_broker import FORGETFUL, collected
from tests.support.otlp_receiver import PROTOBUF, Drop, Hang, Raw, Receiver, Reply, success
from tests.support.ports import reserved_port, silent_port
from tests.support.probing import (
    ENVIRONMENT,
    HURRIED_ENVIRONMENT,
    ROOT,
    findings_of,
    printed_line,
    run_check,
    sentence_of,
)

pytestmark = FORGETFUL
_collect = pytest.fixture(autouse=True)(collected)

OK, WARN, FAIL = FindingVerdict.OK, FindingVerdict.WARN, FindingVerdict.FAIL
TOKEN = "s3cr3t-bearer-token"


def hubs(connection: str, *flags: str) -> Settings:
    return loaded(*flags, environ={"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": connection})


def on(
    broker: Broker, hub: str | None = None, *flags: str, environment: ProbeEnvironment = ENVIRONMENT
) -> list[Finding]:
    """Return the findings at the broker, which never receives a message."""
    findings = findings_of(probe_event_hubs, hubs(broker.connection_string(hub), *flags), environment)
    assert broker.messages() == []
    return findings


def with_identity(port: int) -> Settings:
    """Return settings for a namespace on a loopback port, with an Azure identity."""
    return loaded(
        "--event-hubs.fully-qualified-namespace=contoso.servicebus.windows.net",
        "--event-hubs.event-hub=hub",
        f"--event-hubs.custom-endpoint=sb://127.0.0.1:{port}",
    )


# --- Event Hubs


@pytest.mark.parametrize("transport", ["amqp", "websocket"])
def test_working_event_hub_is_ok_and_receives_no_record(transport: str) -> None:
    """The link is opened, nothing is sent, and the connection is closed."""
    with Broker() as broker:
        findings = on(broker, None, f"--event-hubs.transport={transport}")
        sentence_of(findings, OK, "event_hubs", "allows sending to scheduled-events, 1048576 bytes", "nothing was sent")
        broker.wait_connections(0, 30)


REFUSALS = {
    "cbs-refused": (FAIL, "rejects the key: copy the connection string again"),
    "attach-refused:amqp:unauthorized-access": (
        FAIL,
        "from a policy of this namespace or event hub with the claim Send",
    ),
    "attach-refused": (FAIL, "has no event hub scheduled-events: correct event_hubs.event_hub"),
    "attach-refused:com.microsoft:server-busy": (WARN, "is busy or has too many connections"),
    "attach-refused:com.microsoft:entity-disabled": (FAIL, "the event hub is disabled: enable it"),
    "silent": (FAIL, "accepts the connection but does not respond; it might not be an Event Hubs endpoint"),
}


def test_each_rejection_of_event_hubs_has_its_remedy() -> None:

    def findings_at(fault: str) -> list[Finding]:
        with Broker(faults=[f"{fault}*always"]) as broker:
            return on(broker, environment=HURRIED_ENVIRONMENT if fault == "silent" else ENVIRONMENT)

    with ThreadPoolExecutor(len(REFUSALS)) as pool:  # the SDK mostly sleeps
        for (verdict, words), findings in zip(REFUSALS.values(), pool.map(findings_at, REFUSALS), strict=True):
            sentence_of(findings, verdict, "event_hubs", words)


def test_missing_event_hub_is_named() -> None:
    with Broker() as broker:
        sentence_of(on(broker, "no-such-hub"), FAIL, "event_hubs", "has no event hub no-such-hub")


def test_unreachable_namespace_is_reported_with_remedy_and_without_key() -> None:
    """An unknown name, and a closed port with the way around it."""
    string = f"{CONNECTION};EntityPath=hub"
    unknown = hubs(string.replace("contoso.servicebus.windows.net", "no-such-namespace.invalid"))
    sentence = sentence_of(
        findings_of(probe_event_hubs, unknown), FAIL, "event_hubs", "no-such-namespace.invalid does not resolve"
    )
    assert KEY not in sentence
    with reserved_port() as port:
        endpoint = f"--event-hubs.custom-endpoint=sb://127.0.0.1:{port}"
        findings = findings_of(probe_event_hubs, hubs(string, endpoint))
        sentence_of(findings, FAIL, "event_hubs", "refuses connections", "or set event_hubs.transport to websocket")
        findings = findings_of(probe_event_hubs, hubs(string, endpoint, "--event-hubs.transport=websocket"))
        sentence_of(
            findings, FAIL, "event_hubs", "refuses connections", "(proxies set in the environment are not used)"
        )
        emulator = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        findings = findings_of(probe_event_hubs, hubs(f"{emulator};EntityPath=hub"))
        sentence_of(findings, FAIL, "event_hubs", "start the emulator there")


def test_failed_tls_handshake_is_one_finding(tmp_path: Path) -> None:
    """A certificate of an unknown CA, and a peer without TLS."""
    certificate, key = a_pair(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    string = f"{CONNECTION};EntityPath=hub"
    for broker in (Broker(ssl_context=context), Broker()):
        with broker:
            findings = findings_of(
                probe_event_hubs, hubs(string, f"--event-hubs.custom-endpoint=sb://127.0.0.1:{broker.port}")
            )
            sentence_of(findings, FAIL, "event_hubs", "does not use TLS, or its certificate is not trusted")


def test_missing_identity_is_reported_with_the_role() -> None:
    """The error comes from azure-identity itself."""
    with silent_port() as port:
        findings = findings_of(
            probe_event_hubs, with_identity(port), replace(ENVIRONMENT, credential=EnvironmentCredential)
        )
    sentence = sentence_of(
        findings, FAIL, "event_hubs", "no Azure identity of this VM can sign in (CredentialUnavailableError)"
    )
    assert "with the role Azure Event Hubs Data Sender" in sentence


class Sleeper:
    """A credential whose endpoint never responds."""

    async def get_token(self, *_: Any) -> None:
        import asyncio

        await asyncio.sleep(60)

    async def close(self) -> None:
        """Nothing to close."""


def test_probe_of_a_silent_identity_endpoint_ends_in_time() -> None:
    with silent_port() as port:
        findings = findings_of(probe_event_hubs, with_identity(port), replace(HURRIED_ENVIRONMENT, credential=Sleeper))
    sentence_of(findings, FAIL, "event_hubs", "no Azure identity of this VM can", "169.254.169.254 is reachable")


def test_rejected_identity_needs_the_role() -> None:
    """A rejected key would need a new connection string instead."""
    failure = Retryable("unauthorized", "Event Hubs refuses the credential")
    settings = EventHubsSettings(fully_qualified_namespace="contoso.servicebus.windows.net", event_hub="hub")
    sentence_of(
        [explained(failure, settings, "x:5671")], FAIL, "event_hubs", "assign it the role Azure Event Hubs Data Sender"
    )


def test_missing_azure_identity_package_is_reported_with_its_command() -> None:
    with silent_port() as port:
        program = (
            "import sys; sys.modules['azure.identity'] = sys.modules['azure.identity.aio'] = None\n"
            "from exporter.config.load import load\n"
            "from exporter.config.command_line import FlagParser\n"
            "from exporter.config.sources import add_flags\n"
            "from exporter.commands.check.destinations import probe_event_hubs\n"
            "from exporter.commands.check.report import ProbeEnvironment\n"
            "parser = FlagParser(); add_flags(parser)\n"
            "settings = load(parser.parse_args(sys.argv[1:]), {})\n"
            "print(probe_event_hubs(settings, ProbeEnvironment()).findings[0].sentence)\n"
        )
        flags = (
            "--event-hubs.fully-qualified-namespace=contoso.servicebus.windows.net",
            "--event-hubs.event-hub=hub",
            f"--event-hubs.custom-endpoint=sb://127.0.0.1:{port}",
        )
        command = [sys.executable, "-c", program, *flags]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert "pip install 'azure-scheduled-events-exporter[identity]'" in process.stdout


def test_probed_address_is_the_address_for_records() -> None:
    string = f"{CONNECTION};EntityPath=hub"
    emulator = f"{string};UseDevelopmentEmulator=true".replace("contoso.servicebus.windows.net", "emulator")
    host = "contoso.servicebus.windows.net"
    assert address_of(hubs(string).event_hubs) == (host, 5671)
    assert address_of(hubs(string, "--event-hubs.transport=websocket").event_hubs) == (host, 443)
    assert address_of(hubs(string, "--event-hubs.custom-endpoint=sb://10.0.0.9").event_hubs) == ("10.0.0.9", 5671)
    assert address_of(hubs(emulator.replace("emulator/", "emulator:7777/")).event_hubs) == ("emulator", 7777)
    assert address_of(hubs(emulator).event_hubs) == ("emulator", 5672)


# --- OpenTelemetry


def otlp(endpoint: str, *flags: str) -> Settings:
    headers = {"SCHEDULED_EVENTS_OTLP_HEADERS": f"authorization=Bearer {TOKEN}"}
    return loaded(f"--otlp.endpoint={endpoint}", *flags, environ=headers)


def at(receiver: Receiver, *flags: str) -> list[Finding]:
    """Return the findings at a receiver, which never gets a record."""
    findings = findings_of(probe_otlp, otlp(f"http://127.0.0.1:{receiver.port}", *flags))
    assert receiver.logs == []
    assert TOKEN not in str(findings)
    return findings


def test_collector_that_accepts_an_empty_request_is_ok() -> None:
    """The request has the path of the logs, protobuf as its type, and the configured headers."""
    with Receiver() as receiver:
        sentence_of(at(receiver), OK, "otlp", "accepted an empty request; no record was sent")
    assert [(seen.path, seen.size) for seen in receiver.requests] == [("/v1/logs", 0)]
    assert receiver.requests[0].headers["content-type"] == PROTOBUF["Content-Type"]
    assert receiver.requests[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_clock_is_compared_with_the_collector_without_a_metadata_service() -> None:
    """Only the collector returns the time."""
    late = format_datetime(datetime.fromtimestamp(time.time() + 90, UTC), usegmt=True)
    head = f"HTTP/1.1 200 OK\r\nDate: {late}\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
    with Receiver(Raw(head.encode())) as receiver:
        sentence_of(at(receiver), FAIL, "clock", "behind that of the collector")


@pytest.mark.parametrize(
    ("action", "verdict", "words"),
    [
        (Reply(200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"), FAIL, "does not respond with OTLP"),
        (Reply(404), FAIL, "has no /v1/logs: set otlp.endpoint to the base URL of an OTLP receiver"),
        (Reply(401), FAIL, "rejects the credentials: correct otlp.headers"),
        (Reply(403), FAIL, "rejects the credentials: correct otlp.headers"),
        (Reply(302, {"Location": "/login"}), FAIL, "returned a redirect, for example to a login page or to https"),
        (Reply(400), WARN, "rejected the empty request of this test"),
        (success(rejected=1), WARN, "rejected the empty request of this test"),
        (Reply(429), WARN, "is overloaded and throttles requests"),
        (Reply(503), WARN, "is unavailable: see the collector's log"),
        (Reply(500), FAIL, "fails: see the collector's log"),
        (Drop(), FAIL, "accepts the connection and closes it"),
        (Hang(), FAIL, "does not respond in time"),
    ],
)
def test_each_failure_of_a_collector_has_its_finding(action: Any, verdict: FindingVerdict, words: str) -> None:
    with Receiver(action, action) as receiver:
        sentence_of(at(receiver, "--otlp.timeout=300ms"), verdict, "otlp", words)


def test_unreachable_collector_is_reported_with_its_remedy() -> None:
    """A closed port, an unknown name, and a plain HTTP server at an https address."""
    with reserved_port() as port:
        sentence_of(
            findings_of(probe_otlp, otlp(f"http://127.0.0.1:{port}")),
            FAIL,
            "otlp",
            "refuses connections: start the collector",
        )
    sentence_of(
        findings_of(probe_otlp, otlp("http://no-such-host.invalid")),
        FAIL,
        "otlp",
        "no-such-host.invalid does not resolve",
    )
    with Receiver() as receiver:
        sentence_of(
            findings_of(probe_otlp, otlp(f"https://127.0.0.1:{receiver.port}")),
            FAIL,
            "otlp",
            "failed the TLS handshake",
            "for a collector without TLS use http://",
        )


def test_failure_through_a_proxy_names_its_variable_and_no_secret(tmp_path: Path) -> None:
    """The command prints no secret and ends with 1."""
    with reserved_port() as port:
        process = run_check(
            f"--source.url=http://127.0.0.1:{port}",
            f"--outbox.path={tmp_path}/outbox.db",
            "--web.listen-address=127.0.0.1:0",
            "--otlp.endpoint=http://collector.invalid:4318",
            f"--event-hubs.custom-endpoint=sb://127.0.0.1:{port}",
            environ={
                "http_proxy": f"http://user:{TOKEN}@127.0.0.1:{port}",
                "SCHEDULED_EVENTS_OTLP_HEADERS": f"authorization=Bearer {TOKEN}",
                "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": f"{CONNECTION};EntityPath=hub",
            },
        )
    assert process.returncode == 1
    assert "the proxy set in http_proxy was used" in printed_line(process, "otlp")
    assert TOKEN not in process.stdout
    assert KEY not in process.stdout
