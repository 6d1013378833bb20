"""The standard OTEL_* variables, as the OTLP exporter specification and the SDK's environment page read them."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from exporter.config.types import Duration, InvalidValue
from exporter.secrets import HIDDEN, Secret

_MAX_HEADERS = 64
_GRPC_PORT = 4317
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")


@dataclass(frozen=True, slots=True)
class HeadersKind:
    """HTTP headers with secret values: `name=value,name=value` with percent-encoded values, or a TOML table."""

    def from_text(self, text: str) -> tuple[tuple[str, Secret], ...]:
        found: dict[str, Secret] = {}
        for part in text.split(","):
            if not part.strip():
                continue
            name, equals, value = part.partition("=")
            if not equals:
                raise InvalidValue('headers as "name=value,name=value"')
            found[_header_name(unquote(name.strip()))] = _header_value(unquote(value.strip()))
        return _capped(found)

    def from_toml(self, value: object) -> tuple[tuple[str, Secret], ...]:
        if isinstance(value, str):
            return self.from_text(value)
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise InvalidValue('a table of strings or "name=value,name=value"')
        return _capped({_header_name(name): _header_value(item) for name, item in value.items()})

    def show(self, value: tuple[tuple[str, Secret], ...]) -> str:
        return "{ " + ", ".join(f'"{name}" = "{HIDDEN}"' for name, _ in value) + " }" if value else "{}"


def _header_name(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise InvalidValue("header names of letters, digits and dashes")
    return name.lower()


def _header_value(value: str) -> Secret:
    if not value.isascii() or not value.isprintable():
        raise InvalidValue("header values of printable ASCII, on one line")
    return Secret(value.strip())


def _capped(found: dict[str, Secret]) -> tuple[tuple[str, Secret], ...]:
    if len(found) > _MAX_HEADERS:
        raise InvalidValue(f"at most {_MAX_HEADERS} headers")
    return tuple(found.items())


# One request's time limit: a stop has to end within 5 s, whatever the receiver does.
TIMEOUT = Duration(0.1, 4.0)


@dataclass(frozen=True, slots=True)
class Milliseconds:
    """OTEL_EXPORTER_OTLP_TIMEOUT. The specification says milliseconds, Python's SDK reads seconds; nobody means less
    than 100 ms, so a smaller number is read as seconds. Kept within `TIMEOUT`; the specification's default is 10 s."""

    def from_text(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise InvalidValue("a number of milliseconds")
        seconds = number / 1000 if number >= TIMEOUT.minimum * 1000 else number
        return min(TIMEOUT.maximum, max(TIMEOUT.minimum, seconds))

    def from_toml(self, value: object) -> Any:
        return TIMEOUT.from_toml(value)

    def show(self, value: Any) -> str:
        return TIMEOUT.show(value)


LOGS_ENDPOINT = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"
BASE_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SERVICE_NAME = "OTEL_SERVICE_NAME"
RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"


def variables(key: str) -> tuple[str, str]:
    """The two variables that speak for a key of `[otlp]`, the more particular first."""
    word = key.upper()
    return f"OTEL_EXPORTER_OTLP_LOGS_{word}", f"OTEL_EXPORTER_OTLP_{word}"


def switched_off(environ: Mapping[str, str]) -> str:
    """The variable that switches OpenTelemetry's logs off, with its value, or an empty text."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "OTEL_SDK_DISABLED=true"
    exporters = [word.strip().lower() for word in environ.get("OTEL_LOGS_EXPORTER", "").split(",")]
    return "OTEL_LOGS_EXPORTER=none" if "none" in exporters else ""


def refused_protocol(environ: Mapping[str, str]) -> tuple[str, str]:
    """The protocol variable that asks for what we do not speak, with a sentence; two empty texts if none does."""
    for name in variables("protocol"):
        value = environ.get(name, "").strip()
        if not value:
            continue
        if value == "http/protobuf":
            return "", ""
        advice = f" (a receiver of gRPC on port {_GRPC_PORT} usually takes HTTP on 4318)" if value == "grpc" else ""
        return name, f'expected "http/protobuf", the only protocol this agent speaks{advice}'
    return "", ""


def logs_url(base: str) -> str:
    """Where logs go under a base URL [OTLP exporter, Endpoint URLs for OTLP/HTTP]."""
    return f"{base.rstrip('/')}/v1/logs" if base else ""


def endpoint_warnings(url: str, base: str) -> list[str]:
    """What is probably meant otherwise."""
    if not url:
        return []
    parts = urlsplit(url)
    warnings = []
    if base.rstrip("/").endswith("/v1/logs"):
        warnings.append("ends in /v1/logs, to which another /v1/logs is appended; give the base alone")
    if parts.port == _GRPC_PORT:
        warnings.append(
            f"port {_GRPC_PORT} is usually OTLP over gRPC, which this agent does not speak; 4318 is usual for HTTP"
        )
    return warnings


def take_userinfo(url: str) -> tuple[str, Secret]:
    """A URL without its user and password, and these as an Authorization header (empty if there are none)."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, Secret()
    token = base64.b64encode(unquote(userinfo).encode()).decode()
    return parts._replace(netloc=host).geturl(), Secret(f"Basic {token}")


def read_resource(text: str) -> tuple[tuple[str, str], ...] | None:
    """OTEL_RESOURCE_ATTRIBUTES decoded, or None if any of it is wrong: then all is left out [Resource SDK]."""
    found: dict[str, str] = {}
    for part in filter(str.strip, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            return None
        found[unquote(name.strip())] = unquote(value.strip())
    return tuple(found.items())
