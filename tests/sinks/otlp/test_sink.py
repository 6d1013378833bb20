"""The OTLP destination with a receiver that decodes the wire format."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # generated, without stubs

from exporter import __version__
from exporter.core.records import Record
from exporter.errors import Failure
from exporter.sinks.reasons import REASONS
from tests.support.otlp_receiver import PROTOBUF, Receiver, Reply, attributes, otlp_to, plain

VM = {
    "name": "web-1",
    "id": "13f56399-bd52-4150-9748-7190aae1ff21",
    "resource_id": "/subscriptions/s-1/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/web-1",
    "subscription_id": "s-1",
    "resource_group": "rg",
    "vmss_name": "",
    "location": "westeurope",
    "zone": "2",
    "size": "Standard_D2s_v5",
    "priority": "",
    "node": "",
}


EVENT = {
    "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
    "EventType": "Freeze",
    "EventStatus": "Scheduled",
    "EventSource": "Platform",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-1", "web-2"],
    "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
    "DurationInSeconds": 5,
    "Description": "Virtual machine is being paused.",
}


AT = datetime(2022, 4, 11, 22, 11, 58, 123456, tzinfo=UTC)


def a_record(kind: str = "scheduled", *, event: Any = EVENT, vm: Any = VM, **fields: Any) -> Record:
    data = {
        "event": event,
        "event_id": str(EVENT["EventId"]).lower(),
        "vm": vm,
        "transition": kind,
        "document_incarnation": 7,
        "affects_self": True,
        "severity": "INFO",
        "message": "Freeze of this VM is scheduled",
        "not_before": "2022-04-11T22:26:58.000000Z",
        **fields,
    }
    return Record(
        id="0f0e8a3e-5f43-5a0e-8a55-000000000001",
        kind=kind,
        source=VM["resource_id"],
        subject=EVENT["EventId"],  # type: ignore[arg-type]  # a text, in a mapping of mixed values
        time=AT,
        severity=data["severity"],
        data=data,
    )


def status(message: str) -> bytes:
    return bytes(Status(code=3, message=message).SerializeToString())


def refused(receiver: Receiver, **options: Any) -> Failure:
    """Return the failure of one send."""
    destination = otlp_to(receiver.url, **options)
    try:
        with pytest.raises(Failure) as caught:
            destination.send([a_record()])
    finally:
        destination.close()
    assert caught.value.reason in REASONS
    return caught.value


def test_every_field_of_a_record_is_on_the_wire() -> None:
    """Name, time, severity, message, and each attribute of the contract."""
    record = a_record(seen_before="unbroken", gap_seconds=0.5, notice_seconds=900.0)
    with Receiver() as receiver:
        destination = otlp_to(receiver.url)
        destination.send([record])
        destination.close()
    ((_, scope, log),) = receiver.logs
    assert receiver.requests[0].path == "/v1/logs"
    assert (scope.name, scope.version) == ("azure-scheduled-events-exporter", __version__)
    assert log.event_name == "azure_scheduled_event.scheduled"
    assert log.time_unix_nano == log.observed_time_unix_nano == 1649715118123456000
    assert (log.severity_number, log.severity_text) == (9, "INFO")
    assert plain(log.body) == "Freeze of this VM is scheduled"
    assert attributes(log.attributes) == {
        "log.record.uid": record.id,
        "azure_scheduled_event.id": EVENT["EventId"],
        "azure_scheduled_event.type": "Freeze",
        "azure_scheduled_event.status": "Scheduled",
        "azure_scheduled_event.source": "Platform",
        "azure_scheduled_event.resource_type": "VirtualMachine",
        "azure_scheduled_event.resources": ["web-1", "web-2"],
        "azure_scheduled_event.not_before": "2022-04-11T22:26:58.000000Z",
        "azure_scheduled_event.duration": 5,
        "azure_scheduled_event.description": "Virtual machine is being paused.",
        "azure_scheduled_event.incarnation": 7,
        "azure_scheduled_event.transition": "scheduled",
        "azure_scheduled_event.affects_self": True,
        "azure_scheduled_event.seen_before": "unbroken",
        "azure_scheduled_event.gap": 0.5,
        "azure_scheduled_event.notice": 900.0,
    }


def test_resource_describes_the_vm() -> None:
    """Service, cloud, and VM, without unknown values."""
    with Receiver() as receiver:
        destination = otlp_to(receiver.url)
        destination.send([a_record()])
        destination.send([a_record(vm={"name": "", "location": None})])
        destination.close()
    service = {"service.name": "azure-scheduled-events-exporter", "service.version": __version__}
    cloud = {"cloud.provider": "azure", "cloud.platform": "azure.vm"}
    assert receiver.logs[0][0] == {
        **service,
        **cloud,
        "cloud.region": "westeurope",
        "cloud.account.id": "s-1",
        "cloud.availability_zone": "2",
        "cloud.resource_id": VM["resource_id"],
        "host.id": VM["id"],
        "host.name": "web-1",
        "host.type": "Standard_D2s_v5",
    }
    assert receiver.logs[1][0] == {**service, **cloud}


def test_configured_attributes_override_the_resource() -> None:
    """OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME override defaults and VM attributes."""
    operator = {"host.name": "from-operator", "deployment.environment.name": "prod"}
    with Receiver() as receiver:
        destination = otlp_to(receiver.url, resource_attributes=tuple(operator.items()), service_name="operators-name")
        destination.send([a_record()])
        destination.close()
    resource = receiver.logs[0][0]
    assert resource.items() >= {**operator, "service.name": "operators-name"}.items()
    assert resource["host.id"] == VM["id"]


@pytest.mark.parametrize(("severity", "number"), [("INFO", 9), ("WARN", 13), ("ERROR", 17)])
def test_severity_is_the_records(severity: str, number: int) -> None:
    """As number and as text."""
    with Receiver() as receiver:
        destination = otlp_to(receiver.url)
        destination.send([a_record(severity=severity)])
        destination.close()
    log = receiver.logs[0][2]
    assert (log.severity_number, log.severity_text) == (number, severity)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_compressed_request_has_its_encoding_header(compression: Any) -> None:
    """It decodes to the same content."""
    with Receiver() as receiver:
        destination = otlp_to(receiver.url, compression=compression)
        destination.send([a_record()])
        destination.close()
    encoding = receiver.requests[0].headers.get("content-encoding", "none")
    assert encoding == compression
    assert attributes(receiver.logs[0][2].attributes)["azure_scheduled_event.type"] == "Freeze"


def test_headers_are_sent_and_hidden_in_failures() -> None:
    """Even if the collector quotes a secret header."""
    headers = {"Authorization": "Bearer s3cr3t-token"}
    echo = status("unknown token Bearer s3cr3t-token")
    with Receiver(Reply(401, PROTOBUF, echo)) as receiver:
        error = refused(receiver, headers=headers)
    assert receiver.requests[0].headers["authorization"] == "Bearer s3cr3t-token"
    assert "s3cr3t" not in f"{error} {error!r} {error.__cause__!r}"
    assert "unknown token <secret>" in str(error)


TOKEN = "hunter2/pw-0123"
CARRIERS = ("authorization", "x-key", "cookie")


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f'Digest username="us", response="{TOKEN}"'},
        {"Authorization": "Basic " + base64.b64encode(f"us:{TOKEN}".encode()).decode()},
        {"X-Key": TOKEN},
        {"Cookie": f"a=b; session={TOKEN}; c=d"},
        {"Authorization": "Basic " + base64.b64encode(TOKEN.encode()).decode()},
        {"Authorization": "Basic " + base64.b64encode(f"{TOKEN}:".encode()).decode()},
    ],
)
@pytest.mark.parametrize("answer", [400, 401, 500])
def test_no_part_of_a_credential_is_in_a_failure(headers: dict[str, str], answer: int) -> None:
    """The collector may quote a token without its scheme, a decoded password, or either across the truncation."""
    with Receiver() as receiver:
        destination = otlp_to(receiver.url, headers=headers)
        destination.send([a_record()])
        destination.close()
    sent = next(value for name, value in receiver.requests[0].headers.items() if name in CARRIERS)
    word = sent.rpartition(" ")[2]
    parts = [TOKEN, quote(TOKEN, safe=""), sent, word, word.rstrip("=")]
    echoes = [f"no tenant has the key {part}" for part in parts]
    echoes += [f"{'y' * 180} {TOKEN}", f"{' y' * 392} {TOKEN}", f"{'   ' * 100}{f' {TOKEN}' * 90}"]
    for echo in echoes:
        with Receiver(Reply(answer, PROTOBUF, status(echo))) as receiver:
            error = refused(receiver, headers=headers)
        said = f"{error} {error!r} {error.detail}"
        assert error.detail.startswith(f"HTTP {answer}: ")
        assert not [part for part in (*parts, "hunter", "0123") if part in said]


def test_short_password_is_hidden_as_a_word() -> None:
    """Two characters are hidden, but not inside longer words."""
    with Receiver(Reply(401, PROTOBUF, status("us, PW unknown, UPWARDS"))) as receiver:
        error = refused(receiver, headers={"authorization": "Basic " + base64.b64encode(b"us:PW").decode()})
    assert error.detail == "HTTP 401: us, <secret> unknown, UPWARDS"


def test_headers_of_the_environment_are_not_sent() -> None:
    """Only configured headers are sent, not a secret that the environment has for another collector."""
    program = (
        "import sys; from tests.sinks.otlp.test_sink import otlp_to, a_record;"
        "otlp_to(sys.argv[1]).send([a_record()]);"
        "otlp_to(sys.argv[1], headers={'X-Tenant': 'ours'}).send([a_record()])"
    )
    environ = os.environ | {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer s3cr3t,x-tenant=theirs"}
    with Receiver() as receiver:
        subprocess.run([sys.executable, "-c", program, receiver.url], env=environ, check=True, timeout=30)
    assert [seen.headers.get("authorization") for seen in receiver.requests] == [None, None]
    assert [seen.headers.get("x-tenant") for seen in receiver.requests] == [None, "ours"]


def test_proxy_of_the_environment_is_used() -> None:
    """It sees the whole address."""
    program = (
        "from tests.sinks.otlp.test_sink import otlp_to, a_record;"
        "otlp_to('http://collector.example/v1/logs').send([a_record()])"
    )
    with Receiver() as proxy:
        environ = os.environ | {"http_proxy": f"http://127.0.0.1:{proxy.port}", "no_proxy": ""}
        subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=30)
    assert proxy.requests[0].path == "http://collector.example/v1/logs"
    assert len(proxy.logs) == 1


def test_idle_connection_is_closed() -> None:
    """Records close together share a connection; after the idle time a new one is made."""
    now = [0.0]
    with Receiver() as receiver:
        destination = otlp_to(receiver.url, idle_close=15, monotonic=lambda: now[0])
        for moment in (0.0, 14.0, 28.0):
            now[0] = moment
            destination.idle()
            destination.send([a_record()])
        assert len(receiver.connections) == 1
        now[0] = 43.0
        destination.idle()
        destination.send([a_record()])
        assert len(receiver.connections) == 2
        destination.close()


def test_destination_imports_only_one_http_library() -> None:
    """Neither requests nor the SDK's exporter is loaded."""
    program = (
        "import sys, exporter.sinks.otlp.sink;"
        "print([name for name in sys.modules if name in"
        " ('requests', 'urllib3', 'grpc', 'opentelemetry.exporter.otlp.proto.http')])"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout.strip() == "[]"
