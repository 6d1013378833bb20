"""`[otlp]`: the section's settings, combined with the standard OTEL_* variables.

The variables are read as the OTLP exporter specification and the SDK's page on environment variables define them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from exporter.config.schema import OTLP_TIMEOUT, OtlpSettings, Setting, settings_of
from exporter.config.sources import Picked, Sources
from exporter.config.types import SettingType, Text, is_loopback, otlp_exact
from exporter.secrets import Secret
from exporter.text.format import format_duration
from exporter.text.values import InvalidValue, describe

LOGS_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"
RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_GRPC_PORT: Final = 4317


class Milliseconds(SettingType):
    """OTEL_EXPORTER_OTLP_TIMEOUT, as seconds within `OTLP_TIMEOUT`.

    The specification defines milliseconds, Python's SDK reads seconds. A number below 100 is read as seconds, since a
    timeout below 100 ms is unlikely. The specification's default is 10 s.
    """

    def read(self, value: object) -> float:
        """Return the seconds. Raises `InvalidValue`."""
        try:
            number = float(str(value))
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise InvalidValue("a number of milliseconds")
        seconds = number / 1000 if number >= OTLP_TIMEOUT.minimum * 1000 else number
        return min(OTLP_TIMEOUT.maximum, max(OTLP_TIMEOUT.minimum, seconds))


def variables(key: str) -> tuple[str, str]:
    """Return the two variables for a key of `[otlp]`, the more specific one first."""
    word = key.upper()
    return f"OTEL_EXPORTER_OTLP_LOGS_{word}", f"OTEL_EXPORTER_OTLP_{word}"


def switched_off(environ: Mapping[str, str]) -> str:
    """Return the variable that disables OpenTelemetry logs, with its value; "" if they are enabled."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "OTEL_SDK_DISABLED=true"
    exporters = [word.strip().lower() for word in environ.get("OTEL_LOGS_EXPORTER", "").split(",")]
    return "OTEL_LOGS_EXPORTER=none" if "none" in exporters else ""


def take_userinfo(url: str) -> tuple[str, Secret]:
    """Return a URL without user and password, and these as an Authorization header (empty if there are none)."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, Secret()
    user, _, password = userinfo.partition(":")
    token = base64.b64encode(unquote(f"{user}:{password}").encode()).decode()
    return parts._replace(netloc=host).geturl(), Secret(f"Basic {token}")


def read_otlp(sources: Sources) -> OtlpSettings:
    """Return the section. OTEL_* variables apply only if an endpoint is set and OpenTelemetry logs are enabled.

    Adds errors and warnings to `sources`.
    """
    settings = settings_of("otlp")
    endpoint, exact = _endpoint(sources, settings.pop("endpoint"))
    disabled_by = switched_off(sources.environ)
    wanted = bool(endpoint.value or not endpoint.ok)
    if wanted and disabled_by:
        sources.warnings.append(f"{endpoint.origin}: ignored, since {disabled_by} is set")
    enabled = wanted and not disabled_by
    picked = {key: _pick(sources, setting, with_variables=enabled) for key, setting in settings.items()}
    values: dict[str, Any] = {key: pick.value for key, pick in picked.items()}
    if values["client_key"] and not values["client_certificate"]:
        sources.errors.append(f"{picked['client_key'].origin}: set without client_certificate; set both")
    values["endpoint"] = "" if exact else take_userinfo(endpoint.value)[0]
    if not enabled:
        return OtlpSettings(**values)
    _check_protocol(sources, endpoint)
    _check_timeout(sources, picked["timeout"])
    values |= _addressed(sources, endpoint, values["headers"], exact=exact)
    resource = _resource(sources)
    values["resource_attributes"] = tuple(resource.items())
    named = resource.get("service.name")
    if named and picked["service_name"].layer in ("file", "default"):
        values["service_name"] = named
    return OtlpSettings(**values)


def _addressed(
    sources: Sources, endpoint: Picked, headers: tuple[tuple[str, Secret], ...], *, exact: bool
) -> dict[str, Any]:
    """Return `logs_url` and `headers`, with user and password of the URL as a header. Adds warnings to `sources`."""
    url, authorization = take_userinfo(endpoint.value)
    if authorization:
        sources.warnings.append(f"{endpoint.origin}: contains a user and password; set them in otlp.headers")
        if "authorization" not in dict(headers):
            headers += (("authorization", authorization),)
    host = urlsplit(url).hostname or ""
    if headers and urlsplit(url).scheme == "http" and not is_loopback(host):
        what = f"{'user and password' if authorization else 'headers'} and every record"
        sources.warnings.append(f"{endpoint.origin}: the {what} are sent to {host} without TLS; use https")
    if not exact and url.rstrip("/").endswith("/v1/logs"):
        sources.warnings.append(
            f"{endpoint.origin}: ends in /v1/logs, and the agent appends another /v1/logs; use the base URL"
        )
    if urlsplit(url).port == _GRPC_PORT:
        sources.warnings.append(
            f"{endpoint.origin}: port {_GRPC_PORT} is usually OTLP over gRPC, which the agent does not support; the "
            "usual port for HTTP is 4318"
        )
    # [OTLP exporter, Endpoint URLs for OTLP/HTTP]
    return {"headers": headers, "logs_url": url if exact or not url else f"{url.rstrip('/')}/v1/logs"}


def _endpoint(sources: Sources, setting: Setting) -> tuple[Picked, bool]:
    """Return the endpoint, and whether it is the complete URL for logs (otherwise it's a base URL)."""
    if not sources.environ.get(LOGS_ENDPOINT):
        return sources.pick(setting, ("OTEL_EXPORTER_OTLP_ENDPOINT",)), False
    picked = sources.pick(setting, (LOGS_ENDPOINT,), Text(check=otlp_exact))
    return picked, picked.layer == "otel"


def _pick(sources: Sources, setting: Setting, *, with_variables: bool) -> Picked:
    if not with_variables:
        return sources.pick(setting)
    if setting.key == "service_name":
        return sources.pick(setting, ("OTEL_SERVICE_NAME",))
    kinds: dict[str, SettingType] = {
        key: Text(optional=True, path=True) for key in ("certificate", "client_certificate", "client_key")
    }
    kinds["timeout"] = Milliseconds()
    return sources.pick(setting, variables(setting.key), kinds.get(setting.key))


def _check_protocol(sources: Sources, endpoint: Picked) -> None:
    name = next((name for name in variables("protocol") if sources.environ.get(name, "").strip()), "")
    value = sources.environ.get(name, "").strip()
    if value in ("", "http/protobuf"):
        return
    if endpoint.layer != "otel":
        sources.warnings.append(f"{name}: ignored; the agent uses http/protobuf for {endpoint.origin}")
        return
    advice = f" (gRPC receivers on port {_GRPC_PORT} usually accept HTTP on 4318)" if value == "grpc" else ""
    sources.errors.append(
        f'{name}: expected "http/protobuf", the only supported protocol{advice}, found '
        f"{describe(sources.environ[name])}"
    )


def _check_timeout(sources: Sources, timeout: Picked) -> None:
    if timeout.layer != "otel" or not timeout.ok or timeout.value * 1000 == float(sources.environ[timeout.origin]):
        return
    sources.warnings.append(
        f"{timeout.origin}: read as {format_duration(timeout.value)}; the unit is milliseconds (below 100: seconds), "
        "and the limits are 100ms and 4s"
    )


def _resource(sources: Sources) -> dict[str, str]:
    """Return OTEL_RESOURCE_ATTRIBUTES decoded; empty if any part of it is invalid [Resource SDK]."""
    parts = [part.partition("=") for part in sources.environ.get(RESOURCE, "").split(",") if part.strip()]
    if all(equals and name.strip() for name, equals, _ in parts):
        return {unquote(name.strip()): unquote(value.strip()) for name, _, value in parts}
    sources.warnings.append(f"{RESOURCE}: ignored, since it does not have the form name=value,name=value")
    return {}
