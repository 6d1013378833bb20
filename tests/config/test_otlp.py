"""`[otlp]`: the OTEL_* variables, and combinations of the section's settings."""

from __future__ import annotations

import pytest

from exporter.config.schema import Settings
from exporter.secrets import Secret
from tests.support.configuration import errors, loaded, to_toml


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
def test_url_for_logs_follows_the_specification(environ: dict[str, str], url: str) -> None:
    """A base URL gets /v1/logs, the URL for logs is used unchanged, and switches disable it."""
    otlp = loaded(environ=environ).otlp
    assert otlp.logs_url == url
    assert otlp.configured == bool(url)


@pytest.mark.parametrize("switch", ["OTEL_SDK_DISABLED=true", "OTEL_LOGS_EXPORTER=none"])
@pytest.mark.parametrize("endpoint", ["OTEL_EXPORTER_OTLP_ENDPOINT", "SCHEDULED_EVENTS_OTLP_ENDPOINT"])
def test_endpoint_that_is_disabled_is_a_warning(endpoint: str, switch: str) -> None:
    """The warning has the variable that disables it."""
    name, _, value = switch.partition("=")
    (warning,) = loaded(environ={endpoint: "http://c:4318", name: value}).warnings
    assert f"ignored, since {switch} is set" in warning


def test_otel_variables_fill_the_section() -> None:
    """Each standard variable is read, and the one for logs has priority over the general one."""
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


def test_otel_variables_are_not_checked_if_otlp_is_not_used() -> None:
    """A machine's global OTEL_* variables can't stop an agent that sends nothing by OTLP."""
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}
    assert loaded(environ=environ) == Settings()


@pytest.mark.parametrize(("given", "seconds"), [("10000", 4.0), ("10", 4.0), ("3", 3.0), ("100", 0.1), ("0.05", 0.1)])
def test_otel_timeouts_are_milliseconds_within_bounds(given: str, seconds: float) -> None:
    """Milliseconds by the specification, seconds if milliseconds make no sense, always within the bounds."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_TIMEOUT": given}
    settings = loaded(environ=environ)
    assert settings.otlp.timeout == seconds
    assert bool(settings.warnings) == (given != "100")


def test_other_protocols_are_rejected_with_an_explanation() -> None:
    """gRPC and JSON are errors if they apply to the endpoint, and ignored if the agent's own setting has priority."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert errors(environ=environ) == (
        'OTEL_EXPORTER_OTLP_PROTOCOL: expected "http/protobuf", the only supported protocol (gRPC receivers on port '
        '4317 usually accept HTTP on 4318), found "grpc"',
    )
    json_only = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/json"}
    assert 'found "http/json"' in errors(environ=json_only)[0]
    settings = loaded("--otlp.endpoint=http://c", environ=environ)
    assert settings.otlp.logs_url == "http://c/v1/logs"
    assert settings.warnings == (
        "OTEL_EXPORTER_OTLP_PROTOCOL: ignored; the agent uses http/protobuf for --otlp.endpoint",
    )


def test_user_in_the_url_becomes_a_header() -> None:
    """A password in the endpoint is sent as Basic authorization, and can't be read afterwards."""
    settings = loaded("--otlp.endpoint=http://user:hunter2@c:4318")
    assert settings.otlp.logs_url == "http://c:4318/v1/logs"
    assert settings.otlp.headers == (("authorization", Secret("Basic dXNlcjpodW50ZXIy")),)
    assert "hunter2" not in repr(settings) + to_toml(settings)
    assert "hunter2" not in errors("--otlp.endpoint=http://user:hunter2@c:4318/?q")[0]
    assert loaded("--otlp.endpoint=http://user@c:4318").otlp.headers == (("authorization", Secret("Basic dXNlcjo=")),)


@pytest.mark.parametrize("headers", ["no-equals", "bad name=x", "a=%0d%0aInjected: 1", "a=\u00e9"])
def test_headers_that_could_split_a_request_are_rejected(headers: str) -> None:
    """Names are tokens and values printable ASCII; the error repeats neither."""
    (error,) = errors(environ={"SCHEDULED_EVENTS_OTLP_HEADERS": headers})
    assert error.startswith("SCHEDULED_EVENTS_OTLP_HEADERS: expected ")
    assert error.endswith("found a string that is not shown")
