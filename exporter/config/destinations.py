"""What the two destinations' settings mean together: one way to reach Event Hubs, one URL for OTLP."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from exporter.config import otlp as otel
from exporter.config.event_hubs import (
    ConnectionString,
    connection_warnings,
    parse_connection_string,
    refuse_azure_without_tls,
    resolve_hub,
)
from exporter.config.schema import EventHubsSettings, OtlpSettings, Setting, catalogue
from exporter.config.sources import MAX_SECRET_BYTES, Picked, ReadFile, Sources, read_text
from exporter.config.types import InvalidValue, Kind, Text, describe, is_loopback, otlp_exact
from exporter.secrets import Secret
from exporter.text.format import format_duration

_PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def settings_of(name: str) -> dict[str, Setting]:
    """The settings of a section by key."""
    return {setting.key: setting for setting in catalogue() if setting.section == name}


def event_hubs(sources: Sources, read_file: ReadFile) -> EventHubsSettings:
    """`[event_hubs]` with the secret read, the connection string parsed and the hub's name resolved."""
    picked = {key: sources.pick(setting) for key, setting in settings_of("event_hubs").items()}
    values: dict[str, Any] = {key: pick.value for key, pick in picked.items()}
    ways = [
        pick
        for pick in (picked["connection_string"], picked["connection_string_file"], picked["fully_qualified_namespace"])
        if pick.value or not pick.ok
    ]
    if len(ways) > 1:
        listing = " and ".join(way.origin for way in ways)
        sources.errors.append(f"{listing}: expected one way to reach Event Hubs, found {len(ways)}")
    if not ways and values["event_hub"]:
        sources.warnings.append(
            f"{picked['event_hub'].origin}: ignored, Event Hubs is configured by connection_string, "
            "connection_string_file or fully_qualified_namespace"
        )
    if len(ways) != 1 or not ways[0].ok:
        return EventHubsSettings(**values)
    if not values["fully_qualified_namespace"]:
        values |= _connect(sources, picked, read_file)
        if values["connection"] is None:
            return EventHubsSettings(**values)
    _resolve_hub(sources, picked["event_hub"], values)
    proxies = [name for name in _PROXY_VARIABLES if sources.environ.get(name)]
    if proxies and values["transport"] == "websocket":
        sources.warnings.append(f"{proxies[0]}: not used for Event Hubs; a proxy on the way must be transparent")
    return EventHubsSettings(**values)


def _connect(sources: Sources, picked: dict[str, Picked], read_file: ReadFile) -> dict[str, Any]:
    """The secret and what it says; errors name where it came from, never what it is."""
    origin, secret = picked["connection_string"].origin, picked["connection_string"].value
    path = picked["connection_string_file"].value
    try:
        if path:
            origin = picked["connection_string_file"].origin
            secret = Secret(read_text(path, MAX_SECRET_BYTES, read_file).strip())
            origin = f"{origin}: {path}"
        connection = parse_connection_string(secret.reveal())
    except InvalidValue as error:
        unread = path and not secret
        sources.errors.append(
            f"{origin}: {error}" if unread else f"{origin}: expected {error}; what was found is not shown"
        )
        return {"connection": None}
    endpoint = picked["custom_endpoint"]
    try:
        if connection.emulator:
            refuse_azure_without_tls(urlsplit(endpoint.value).hostname or "")
    except InvalidValue as error:
        sources.errors.append(f"{endpoint.origin}: expected {error}")
        return {"connection": None}
    sources.warnings += [f"{origin}: {text}" for text in connection_warnings(connection, endpoint.value)]
    certificate = picked["certificate"]
    if connection.emulator and certificate.value:
        sources.warnings.append(f"{certificate.origin}: without effect, since an emulator is spoken to without TLS")
    return {"connection_string": secret, "connection": connection}


def _resolve_hub(sources: Sources, pick: Picked, values: dict[str, Any]) -> None:
    connection: ConnectionString | None = values.get("connection")
    try:
        values["event_hub"] = resolve_hub(connection.event_hub if connection else "", values["event_hub"])
    except InvalidValue as error:
        if pick.ok:
            sources.errors.append(f"{pick.origin}: expected {error}, found {describe(pick.value)}")


def otlp(sources: Sources) -> OtlpSettings:
    """`[otlp]` with the OTEL_* variables heard where it is used at all."""
    settings = settings_of("otlp")
    endpoint, exact = _endpoint(sources, settings.pop("endpoint"))
    off = otel.switched_off(sources.environ)
    wanted = bool(endpoint.value or not endpoint.ok)
    if wanted and off:
        sources.warnings.append(f"{endpoint.origin}: nothing is sent, since {off} is set")
    heard = wanted and not off
    picked = {key: _pick(sources, setting, heard) for key, setting in settings.items()}
    values: dict[str, Any] = {key: pick.value for key, pick in picked.items()}
    if values["client_key"] and not values["client_certificate"]:
        sources.errors.append(f"{picked['client_key'].origin}: expected client_certificate beside it, found none")
    values["endpoint"] = "" if exact else otel.take_userinfo(endpoint.value)[0]
    if not heard:
        return OtlpSettings(**values)
    _check_protocol(sources, endpoint)
    _check_timeout(sources, picked["timeout"])
    url, basic = otel.take_userinfo(endpoint.value)
    if basic:
        sources.warnings.append(f"{endpoint.origin}: holds a user and password; otlp.headers is the place for them")
        if "authorization" not in dict(values["headers"]):
            values["headers"] += (("authorization", basic),)
    host = urlsplit(url).hostname or ""
    if values["headers"] and urlsplit(url).scheme == "http" and not is_loopback(host):
        sources.warnings.append(
            f"{endpoint.origin}: the {'user and password' if basic else 'headers'} and every record go to {host} "
            "without TLS, for everybody on the way to read; use https"
        )
    base = values["endpoint"] = "" if exact else url
    values["logs_url"] = url if exact else otel.logs_url(url)
    sources.warnings += [f"{endpoint.origin}: {text}" for text in otel.endpoint_warnings(values["logs_url"], base)]
    values["resource_attributes"] = _resource(sources)
    named = dict(values["resource_attributes"]).get("service.name")
    if named and picked["service_name"].layer in ("file", "default"):
        values["service_name"] = named
    return OtlpSettings(**values)


def _endpoint(sources: Sources, setting: Setting) -> tuple[Picked, bool]:
    """The endpoint, and whether it is the whole URL for logs (else it is a base)."""
    if not sources.environ.get(otel.LOGS_ENDPOINT):
        return sources.pick(setting, (otel.BASE_ENDPOINT,)), False
    picked = sources.pick(setting, (otel.LOGS_ENDPOINT,), Text(check=otlp_exact))
    return picked, picked.layer == "otel"


def _pick(sources: Sources, setting: Setting, heard: bool) -> Picked:
    if not heard:
        return sources.pick(setting)
    if setting.key == "service_name":
        return sources.pick(setting, (otel.SERVICE_NAME,))
    kinds: dict[str, Kind] = {
        key: Text(optional=True, path=True) for key in ("certificate", "client_certificate", "client_key")
    }
    kinds["timeout"] = otel.Milliseconds()
    return sources.pick(setting, otel.variables(setting.key), kinds.get(setting.key))


def _check_protocol(sources: Sources, endpoint: Picked) -> None:
    name, sentence = otel.refused_protocol(sources.environ)
    if not name:
        return
    if endpoint.layer == "otel":
        sources.errors.append(f"{name}: {sentence}, found {describe(sources.environ[name])}")
    else:
        sources.warnings.append(f"{name}: ignored; {endpoint.origin} is spoken to by http/protobuf")


def _check_timeout(sources: Sources, timeout: Picked) -> None:
    if timeout.layer != "otel" or not timeout.ok or timeout.value * 1000 == float(sources.environ[timeout.origin]):
        return
    sources.warnings.append(
        f"{timeout.origin}: read as {format_duration(timeout.value)}: the variable is in milliseconds (below 100 taken "
        "for seconds), and the limit here is from 100ms to 4s"
    )


def _resource(sources: Sources) -> tuple[tuple[str, str], ...]:
    attributes = otel.read_resource(sources.environ.get(otel.RESOURCE, ""))
    if attributes is None:
        sources.warnings.append(f"{otel.RESOURCE}: ignored, since it is not of the form name=value,name=value")
    return attributes or ()
