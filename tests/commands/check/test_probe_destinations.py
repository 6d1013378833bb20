"""The probes of the destinations: each way in which one cannot be reached or refuses, and never a record for it."""

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
    """What is found at the broker, which never receives anything."""
    findings = findings_of(probe_event_hubs, hubs(broker.connection_string(hub), *flags), environment)
    assert broker.messages() == []
    return findings


def with_identity(port: int) -> Settings:
    """A namespace at a port of loopback, with an Azure identity."""
    return loaded(
        "--event-hubs.fully-qualified-namespace=contoso.servicebus.windows.net",
        "--event-hubs.event-hub=hub",
        f"--event-hubs.custom-endpoint=sb://127.0.0.1:{port}",
    )


# --- Event Hubs


@pytest.mark.parametrize("transport", ["amqp", "websocket"])
def test_an_event_hub_that_takes_records_is_ok_and_receives_none(transport: str) -> None:
    """A link that could carry records is ok; nothing is sent on it, and the connection is given back."""
    with Broker() as broker:
        findings = on(broker, None, f"--event-hubs.transport={transport}")
        sentence_of(
            findings, OK, "event_hubs", "lets us send to scheduled-events, up to 1048576 bytes", "nothing was sent"
        )
        broker.wait_connections(0, 30)


REFUSALS = {
    "cbs-refused": (FAIL, "refuses the key: take the connection string afresh"),
    "attach-refused:amqp:unauthorized-access": (FAIL, "a policy with the claim Send"),
    "attach-refused": (FAIL, "has no event hub scheduled-events: correct event_hubs.event_hub"),
    "attach-refused:com.microsoft:server-busy": (WARN, "is busy or has too many connections"),
    "attach-refused:com.microsoft:entity-disabled": (FAIL, "the event hub is disabled: enable it"),
    "silent": (FAIL, "takes the connection and says nothing"),
}


def test_each_refusal_of_event_hubs_is_told_apart() -> None:
    """Each refusal is told apart, with what to do about it."""

    def findings_at(fault: str) -> list[Finding]:
        with Broker(faults=[f"{fault}*always"]) as broker:
            return on(broker, environment=HURRIED_ENVIRONMENT if fault == "silent" else ENVIRONMENT)

    with ThreadPoolExecutor(len(REFUSALS)) as pool:  # the SDK mostly sleeps
        for (verdict, words), findings in zip(REFUSALS.values(), pool.map(findings_at, REFUSALS), strict=True):
            sentence_of(findings, verdict, "event_hubs", words)


def test_a_missing_event_hub_is_named() -> None:
    """An event hub that the namespace does not have is named."""
    with Broker() as broker:
        sentence_of(on(broker, "no-such-hub"), FAIL, "event_hubs", "has no event hub no-such-hub")


def test_an_unreachable_namespace_says_what_to_do_without_the_key() -> None:
    """An unknown name, a closed port, and the way around a closed port are said; never the key."""
    string = f"{CONNECTION};EntityPath=hub"
    unknown = hubs(string.replace("contoso.servicebus.windows.net", "no-such-namespace.invalid"))
    sentence = sentence_of(
        findings_of(probe_event_hubs, unknown), FAIL, "event_hubs", "no-such-namespace.invalid is not known", "DNS"
    )
    assert KEY not in sentence
    with reserved_port() as port:
        endpoint = f"--event-hubs.custom-endpoint=sb://127.0.0.1:{port}"
        findings = findings_of(probe_event_hubs, hubs(string, endpoint))
        sentence_of(findings, FAIL, "event_hubs", "refuses connections", "or set event_hubs.transport to websocket")
        findings = findings_of(probe_event_hubs, hubs(string, endpoint, "--event-hubs.transport=websocket"))
        sentence_of(findings, FAIL, "event_hubs", "refuses connections", "(a proxy of the environment is not used)")
        emulator = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        findings = findings_of(probe_event_hubs, hubs(f"{emulator};EntityPath=hub"))
        sentence_of(findings, FAIL, "event_hubs", "start the emulator there")


def test_a_failed_handshake_is_one_sentence_about_tls(tmp_path: Path) -> None:
    """A certificate of an unknown CA, and a peer without TLS, are one sentence about TLS."""
    certificate, key = a_pair(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    string = f"{CONNECTION};EntityPath=hub"
    for broker in (Broker(ssl_context=context), Broker()):
        with broker:
            findings = findings_of(
                probe_event_hubs, hubs(string, f"--event-hubs.custom-endpoint=sb://127.0.0.1:{broker.port}")
            )
            sentence_of(findings, FAIL, "event_hubs", "shows a certificate that is not trusted, or speaks no TLS")


def test_an_identity_that_cannot_sign_in_needs_the_role() -> None:
    """Without an identity, as azure-identity itself says, it tells to give the VM one, and the role."""
    with silent_port() as port:
        findings = findings_of(
            probe_event_hubs, with_identity(port), replace(ENVIRONMENT, credential=EnvironmentCredential)
        )
    sentence = sentence_of(
        findings, FAIL, "event_hubs", "no Azure identity that can sign in (CredentialUnavailableError)"
    )
    assert "with the role Azure Event Hubs Data Sender" in sentence


class Sleeper:
    """A credential that never answers, as one whose endpoint is silent."""

    async def get_token(self, *_: Any) -> None:
        import asyncio

        await asyncio.sleep(60)

    async def close(self) -> None:
        """Nothing to close."""


def test_an_identity_endpoint_that_never_answers_ends_in_time() -> None:
    """An identity endpoint that is silent ends in time."""
    with silent_port() as port:
        findings = findings_of(probe_event_hubs, with_identity(port), replace(HURRIED_ENVIRONMENT, credential=Sleeper))
    sentence_of(findings, FAIL, "event_hubs", "no Azure identity that can", "169.254.169.254 can be reached")


def test_a_refused_identity_needs_the_role_and_a_refused_key_a_new_one() -> None:
    """A refused identity needs the role, where a refused key would have to be renewed."""
    failure = Retryable("unauthorized", "Event Hubs refuses the credential")
    settings = EventHubsSettings(fully_qualified_namespace="contoso.servicebus.windows.net", event_hub="hub")
    sentence_of(
        [explained(failure, settings, "x:5671")], FAIL, "event_hubs", "give it the role Azure Event Hubs Data Sender"
    )


def test_without_azure_identity_the_sentence_installs_it() -> None:
    """Without the package the sentence is the command that installs it."""
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


def test_the_address_probed_is_that_of_a_send() -> None:
    """The address tried is the one that a send would go to."""
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
    """What is found at a receiver, which never gets a record."""
    findings = findings_of(probe_otlp, otlp(f"http://127.0.0.1:{receiver.port}", *flags))
    assert receiver.logs == []
    assert TOKEN not in str(findings)
    return findings


def test_a_collector_that_answers_an_empty_request_is_ok() -> None:
    """A true answer to an empty request is ok; it came to the path of the logs, as protobuf, with our headers."""
    with Receiver() as receiver:
        sentence_of(at(receiver), OK, "otlp", "took an empty request; no record was sent")
    assert [(seen.path, seen.size) for seen in receiver.requests] == [("/v1/logs", 0)]
    assert receiver.requests[0].headers["content-type"] == PROTOBUF["Content-Type"]
    assert receiver.requests[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_the_clock_is_compared_with_the_collectors_where_it_alone_answers() -> None:
    """Where only the collector says the time, the clock is compared with its."""
    late = format_datetime(datetime.fromtimestamp(time.time() + 90, UTC), usegmt=True)
    head = f"HTTP/1.1 200 OK\r\nDate: {late}\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"
    with Receiver(Raw(head.encode())) as receiver:
        sentence_of(at(receiver), FAIL, "clock", "behind that of the collector")


@pytest.mark.parametrize(
    ("action", "verdict", "words"),
    [
        (Reply(200, {"Content-Type": "text/html"}, b"<html>Sign in</html>"), FAIL, "something that is not OTLP"),
        (Reply(404), FAIL, "has no /v1/logs there: give the base URL of a receiver"),
        (Reply(401), FAIL, "refuses us: correct the credentials in otlp.headers"),
        (Reply(403), FAIL, "refuses us: correct the credentials in otlp.headers"),
        (Reply(302, {"Location": "/login"}), FAIL, "redirections are not followed: give the final address"),
        (Reply(400), WARN, "refused the empty request of this probe"),
        (success(rejected=1), WARN, "refused the empty request of this probe"),
        (Reply(429), WARN, "asks us to slow down"),
        (Reply(503), WARN, "see the collector's own log"),
        (Reply(500), FAIL, "fails: see the collector's own log"),
        (Drop(), FAIL, "takes the connection and hangs up"),
        (Hang(), FAIL, "gives no answer in time"),
    ],
)
def test_each_answer_of_a_collector_that_is_no_success_has_its_sentence(
    action: Any, verdict: FindingVerdict, words: str
) -> None:
    """Each answer that is no success has its sentence."""
    with Receiver(action, action) as receiver:
        sentence_of(at(receiver, "--otlp.timeout=300ms"), verdict, "otlp", words)


def test_an_unreachable_collector_says_what_to_do() -> None:
    """A closed port, an unknown name, and http where https is asked for."""
    with reserved_port() as port:
        sentence_of(
            findings_of(probe_otlp, otlp(f"http://127.0.0.1:{port}")),
            FAIL,
            "otlp",
            "refuses connections: start the collector",
        )
    sentence_of(
        findings_of(probe_otlp, otlp("http://no-such-host.invalid")), FAIL, "otlp", "no-such-host.invalid is not known"
    )
    with Receiver() as receiver:
        sentence_of(
            findings_of(probe_otlp, otlp(f"https://127.0.0.1:{receiver.port}")),
            FAIL,
            "otlp",
            "does not agree on TLS",
            "for a collector without TLS write http://",
        )


def test_a_failure_through_a_proxy_names_its_variable_and_no_secret(tmp_path: Path) -> None:
    """A failure through a proxy names its variable; the whole run tells no secret and ends with 1."""
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
    assert "the request went through the proxy that http_proxy names" in printed_line(process, "otlp")
    assert TOKEN not in process.stdout
    assert KEY not in process.stdout
