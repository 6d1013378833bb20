"""Settings of the two destinations: connection strings, their traps, and the OTEL_* variables."""

from __future__ import annotations

from pathlib import Path

import azure.eventhub as sdk
import pytest

from exporter.config.event_hubs import parse_connection_string
from exporter.config.load import to_toml
from exporter.config.schema import Settings
from exporter.config.types import InvalidValue
from exporter.secrets import Secret
from tests.support.configuration import CONNECTION, KEY, errors, loaded


def test_a_connection_string_comes_by_environment_or_file(tmp_path: Path) -> None:
    """The secret is read from a variable or from a file, stripped, and both give the same."""
    path = tmp_path / "secret"
    path.write_text(f"  {CONNECTION};EntityPath=events\n\n")
    by_file = loaded(f"--event-hubs.connection-string-file={path}").event_hubs
    by_variable = loaded(
        "--event-hubs.event-hub=events",
        environ={"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": CONNECTION + ";EntityPath=events"},
    ).event_hubs
    assert by_file.connection == by_variable.connection
    assert by_file.connection_string.reveal() == CONNECTION + ";EntityPath=events"
    assert by_file.event_hub == by_variable.event_hub == "events"


def test_a_secret_file_that_is_wrong_is_named_and_not_quoted(tmp_path: Path) -> None:
    """Missing, too large, not UTF-8 or nonsense: the path is in the error, the content is not."""
    path = tmp_path / "secret"
    flag = f"--event-hubs.connection-string-file={path}"
    assert errors(flag) == (f"--event-hubs.connection-string-file: {path}: cannot be read: No such file or directory",)
    for content in (b"hunter2" * 20000, b"hunter2\xff", b"hunter2", b""):
        path.write_bytes(content)
        (error,) = errors(flag)
        assert error.startswith(f"--event-hubs.connection-string-file: {path}: ")
        assert "hunter2" not in error


def test_a_namespace_needs_a_hub() -> None:
    """With a namespace the hub's name has to be given; with it the destination is configured."""
    flag = "--event-hubs.fully-qualified-namespace=contoso.servicebus.windows.net"
    assert errors(flag) == (
        "[event_hubs] event_hub: expected the name of the event hub here, or as EntityPath in the connection string, "
        'found ""',
    )
    hubs = loaded(flag, "--event-hubs.event-hub=events").event_hubs
    assert hubs.configured
    assert hubs.connection is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a connection string such as"),
        (f'"{CONNECTION}"', "without quotation marks"),
        ("Endpoint", "fields of the form Name=value"),
        (f"{CONNECTION};SharedAccessKey=again", "each once"),
        (f"{CONNECTION}\nEntityPath=x", "on one line"),
        (f"{CONNECTION};UseDevelopmentEmulator=True", 'exactly "true" or "false" in lower case'),
        (CONNECTION.replace("windows.net/", "windows.net:5671/"), "no port in Endpoint"),
        (CONNECTION.replace("contoso.servicebus.windows.net", "[::1]"), "an IPv6 literal"),
        (CONNECTION.replace("sb://", "ftp://"), "Endpoint=sb://HOST/"),
        (CONNECTION.replace("sb://", "sb://user@"), "nothing after it"),
        (CONNECTION.partition(";SharedAccessKey=")[0], "SharedAccessKeyName and SharedAccessKey together"),
        ("Endpoint=sb://contoso.servicebus.windows.net/", "either SharedAccessKeyName with SharedAccessKey"),
        (CONNECTION + ";SharedAccessSignature=sr", "either SharedAccessKeyName with SharedAccessKey"),
    ],
)
def test_a_trap_in_a_connection_string_is_a_sentence(text: str, words: str) -> None:
    """Each known mistake is answered with what to do, and without the key."""
    with pytest.raises(InvalidValue) as caught:
        parse_connection_string(text)
    assert words in str(caught.value)
    assert KEY not in str(caught.value)


def test_the_emulator_may_have_a_port_and_other_case() -> None:
    """Field names are taken in any case, as the SDK does; the emulator's port is kept."""
    read_string = parse_connection_string(
        "endpoint=sb://127.0.0.1:5700;sharedaccesskeyname=k;sharedaccesskey=a=b==;usedevelopmentemulator=true;"
    )
    assert (read_string.host, read_string.port, read_string.emulator) == ("127.0.0.1", 5700, True)
    assert read_string.key.reveal() == "a=b=="


@pytest.mark.parametrize("tail", [";EntityPath=events", "", ";UseDevelopmentEmulator=true;EntityPath=e/"])
def test_the_sdk_reads_the_same(tail: str) -> None:
    """What we read out of a connection string is what Azure's SDK reads out of it."""
    string = (CONNECTION + tail).replace(
        "contoso.servicebus.windows.net", "emulator" if "Emulator" in tail else "contoso"
    )
    ours, theirs = parse_connection_string(string), sdk.parse_connection_string(string)
    assert ours.host == theirs.fully_qualified_namespace
    assert ours.event_hub == (theirs.eventhub_name or "")
    assert (ours.key_name, ours.key.reveal()) == (theirs.shared_access_key_name, theirs.shared_access_key)


def test_a_signature_is_warned_of() -> None:
    """A shared access signature works until it expires, and nobody can renew it from here."""
    settings = loaded(
        environ={
            "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": "Endpoint=sb://contoso.servicebus.windows.net/;"
            f"SharedAccessSignature=SharedAccessSignature sr=x&sig={KEY}&se=1;EntityPath=events"
        }
    )
    (warning,) = settings.warnings
    assert "SharedAccessSignature, which can't be renewed" in warning
    assert KEY not in warning


def test_fields_of_other_sdks_are_warned_of() -> None:
    """Old connection strings hold fields that Azure's SDK ignores: they work, and that is said without their values."""
    string = CONNECTION + ";EntityPath=events;TransportType=hunter2"
    settings = loaded(environ={"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": string})
    (warning,) = settings.warnings
    assert "holds fields that are ignored" in warning
    assert "hunter2" not in warning


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/logs"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/logs"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/base/"}, "http://c/base/v1/logs"),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c/x"}, "http://c/x"),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c"}, "http://c/"),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"}, "http://c/x"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "TRUE"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_LOGS_EXPORTER": "none"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_LOGS_EXPORTER": "otlp"}, "http://c/v1/logs"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=b"}, ""),
    ],
)
def test_the_url_for_logs_is_the_specifications(environ: dict[str, str], url: str) -> None:
    """A base gets /v1/logs, the URL for logs is used as is, and the switches switch off."""
    otlp = loaded(environ=environ).otlp
    assert otlp.logs_url == url
    assert otlp.configured == bool(url)


@pytest.mark.parametrize("switch", ["OTEL_SDK_DISABLED=true", "OTEL_LOGS_EXPORTER=none"])
@pytest.mark.parametrize("endpoint", ["OTEL_EXPORTER_OTLP_ENDPOINT", "SCHEDULED_EVENTS_OTLP_ENDPOINT"])
def test_an_endpoint_that_is_switched_off_is_said(endpoint: str, switch: str) -> None:
    """Whoever gave the endpoint learns that nothing is sent there, and which variable says so."""
    name, _, value = switch.partition("=")
    (warning,) = loaded(environ={endpoint: "http://c:4318", name: value}).warnings
    assert f"nothing is sent, since {switch} is set" in warning


def test_otel_variables_fill_the_section() -> None:
    """Each standard variable arrives, and the one for logs beats the general one."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "https://c:4318",
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=general",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "api-key=a%20b, X-Scope = t=1 ,",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1500",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "ca.pem",
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "c.pem",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": "k.pem",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=named,deployment.environment=a%2Cb",
    }
    settings = loaded(environ=environ)
    otlp = settings.otlp
    assert settings.warnings == ()
    assert otlp.headers == (("api-key", Secret("a b")), ("x-scope", Secret("t=1")))
    assert (otlp.timeout, otlp.compression) == (1.5, "gzip")
    assert (otlp.certificate, otlp.client_certificate, otlp.client_key) == ("ca.pem", "c.pem", "k.pem")
    assert otlp.service_name == "named"
    assert dict(otlp.resource_attributes)["deployment.environment"] == "a,b"
    assert loaded(environ={**environ, "OTEL_SERVICE_NAME": "first"}).otlp.service_name == "first"


def test_otel_variables_are_not_judged_where_otlp_is_not_used() -> None:
    """A machine's global OTEL_* variables can't stop an agent that sends nothing by OTLP."""
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}
    assert loaded(environ=environ) == Settings()


@pytest.mark.parametrize(("given", "seconds"), [("10000", 4.0), ("10", 4.0), ("3", 3.0), ("100", 0.1), ("0.05", 0.1)])
def test_otel_timeouts_are_milliseconds_within_bounds(given: str, seconds: float) -> None:
    """Milliseconds by the specification, seconds where milliseconds would make no sense, never beyond our bounds."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": given}
    settings = loaded(environ=environ)
    assert settings.otlp.timeout == seconds
    assert bool(settings.warnings) == (given != "100")


def test_other_protocols_are_refused_with_a_sentence() -> None:
    """gRPC and JSON are errors where the endpoint is meant for them, and ignored where it is our own."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert errors(environ=environ) == (
        'OTEL_EXPORTER_OTLP_PROTOCOL: expected "http/protobuf", the only protocol this agent speaks (a receiver of '
        'gRPC on port 4317 usually takes HTTP on 4318), found "grpc"',
    )
    json_only = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/json"}
    assert 'found "http/json"' in errors(environ=json_only)[0]
    settings = loaded("--otlp.endpoint=http://c", environ=environ)
    assert settings.otlp.logs_url == "http://c/v1/logs"
    assert settings.warnings == ("OTEL_EXPORTER_OTLP_PROTOCOL: ignored; --otlp.endpoint is spoken to by http/protobuf",)


def test_a_user_in_the_url_becomes_a_header() -> None:
    """A password in the endpoint is sent as Basic authorization, and is nowhere to be read afterwards."""
    settings = loaded("--otlp.endpoint=http://user:hunter2@c:4318")
    assert settings.otlp.logs_url == "http://c:4318/v1/logs"
    assert settings.otlp.headers == (("authorization", Secret("Basic dXNlcjpodW50ZXIy")),)
    assert "hunter2" not in repr(settings) + to_toml(settings)
    assert "hunter2" not in errors("--otlp.endpoint=http://user:hunter2@c:4318/?q")[0]


@pytest.mark.parametrize("headers", ["no-equals", "bad name=x", "a=%0d%0aInjected: 1", "a=\u00e9"])
def test_headers_that_could_split_a_request_are_refused(headers: str) -> None:
    """Names are tokens and values printable ASCII; neither is repeated in the error."""
    (error,) = errors(environ={"SCHEDULED_EVENTS_OTLP_HEADERS": headers})
    assert error.startswith("SCHEDULED_EVENTS_OTLP_HEADERS: expected ")
    assert error.endswith("found a string that is not shown")
