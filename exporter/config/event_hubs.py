"""`[event_hubs]`: the connection string, and the combination of the section's settings.

The connection string is parsed before the SDK gets it, since the SDK silently accepts some mistakes (measured with
azure-eventhub 5.15): `UseDevelopmentEmulator=True` with a capital letter means TLS to port 5671, a port in `Endpoint`
is ignored without the emulator's flag, and an IPv6 literal is split wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from exporter.config.schema import ConnectionString, EventHubsSettings, settings_of
from exporter.config.sources import MAX_SECRET_BYTES, Picked, ReadFile, Sources, read_text
from exporter.config.types import is_loopback
from exporter.secrets import Secret
from exporter.text.values import InvalidValue, describe, is_host_name, quote

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671

_PROXY_VARIABLES: Final = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_FORM: Final = '"Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=...;EntityPath=HUB"'
_FIELDS: Final[Mapping[str, str]] = {
    name.lower(): name
    for name in (
        "Endpoint",
        "EntityPath",
        "SharedAccessKeyName",
        "SharedAccessKey",
        "SharedAccessSignature",
        "UseDevelopmentEmulator",
    )
}
"""Names of the fields that are read, by their lower-case names."""


def parse_connection_string(text: str) -> ConnectionString:
    """Parse a connection string. Raises `InvalidValue`, whose text never repeats any part of it."""
    fields = _split(text)
    emulator = _is_for_emulator(fields)
    host, port = _endpoint(fields)
    if emulator:
        refuse_azure_without_tls(host)
    if port is not None and not emulator:
        raise InvalidValue(
            "no port in Endpoint without UseDevelopmentEmulator=true (the SDK ignores the port and uses "
            f"{AMQPS_PORT}); use event_hubs.custom_endpoint to connect to another address"
        )
    key_name, key, signature = (
        fields.get(name, "") for name in ("sharedaccesskeyname", "sharedaccesskey", "sharedaccesssignature")
    )
    if bool(key_name) != bool(key):
        raise InvalidValue("SharedAccessKeyName and SharedAccessKey together, or neither")
    if bool(key) == bool(signature):
        raise InvalidValue("either SharedAccessKeyName with SharedAccessKey, or SharedAccessSignature")
    return ConnectionString(
        text=Secret(text.strip()),
        host=host,
        port=port,
        event_hub=fields.get("entitypath", ""),
        key_name=key_name,
        key=Secret(key),
        signature=Secret(signature),
        emulator=emulator,
        other_fields=not fields.keys() <= _FIELDS.keys(),
    )


def _split(text: str) -> dict[str, str]:
    """Return the fields by lower-case name: Azure's tools differ in case, and the SDK's client ignores it."""
    expected = f"a connection string, for example {_FORM}"
    stripped = text.strip()
    if stripped[:1] in ("'", '"'):
        raise InvalidValue(expected + ", without quotation marks")
    if not stripped.isprintable() or not stripped:
        raise InvalidValue(expected + ", on one line")
    fields: dict[str, str] = {}
    for part in stripped.rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals or not name or not value or name.lower() in fields:
            raise InvalidValue(expected + ": unique fields of the form Name=value, separated by semicolons")
        fields[name.lower()] = value
    return fields


def _is_for_emulator(fields: Mapping[str, str]) -> bool:
    value = fields.get("usedevelopmentemulator")
    if value not in (None, "true", "false"):
        raise InvalidValue(
            'UseDevelopmentEmulator to be "true" or "false" in lower case (with any other spelling, the SDK silently '
            "uses TLS)"
        )
    return value == "true"


def _endpoint(fields: Mapping[str, str]) -> tuple[str, int | None]:
    """Return host and port (None if not given). Raises `InvalidValue`."""
    expected = "Endpoint=sb://HOST/ with the host name of the namespace"
    try:
        parts = urlsplit(fields.get("endpoint", ""))
        port = parts.port
    except ValueError:
        raise InvalidValue(expected) from None
    host = parts.hostname or ""
    if ":" in host:
        raise InvalidValue(expected + ": the SDK does not support IPv6 literals; use a name or an IPv4 address")
    if parts.scheme not in ("sb", "amqps", "amqp") or not is_host_name(host):
        raise InvalidValue(expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or port == 0:
        raise InvalidValue(expected + " and nothing after it")
    return host, port


def refuse_azure_without_tls(host: str) -> None:
    """Raise `InvalidValue` if the host is an Azure namespace. Call it if UseDevelopmentEmulator=true disables TLS."""
    if ".servicebus." in host.lower():
        raise InvalidValue(
            f"no UseDevelopmentEmulator=true for {host}, which is an Azure namespace: it disables TLS, so the key and "
            "every record would be sent unencrypted; remove it from the connection string"
        )


def connection_warnings(connection: ConnectionString, custom_endpoint: str = "") -> list[str]:
    """Return warnings about valid but risky parts of a connection string; the caller adds its origin."""
    warnings = []
    host = urlsplit(custom_endpoint).hostname or connection.host
    if connection.emulator and not is_loopback(host):
        warnings.append(
            f"contains UseDevelopmentEmulator=true, so the key and every record are sent to {host} without TLS; run "
            "the emulator on this machine"
        )
    if connection.signature:
        warnings.append("contains a SharedAccessSignature, which cannot be renewed: sending ends when it expires")
    if connection.other_fields:
        warnings.append("contains fields that are ignored; supported fields: " + ", ".join(_FIELDS.values()))
    return warnings


def read_event_hubs(sources: Sources, read_file: ReadFile) -> EventHubsSettings:
    """Return the section, with the secret read, the connection string parsed, and the event hub's name resolved.

    Adds errors and warnings to `sources`.
    """
    picked = {key: sources.pick(setting) for key, setting in settings_of("event_hubs").items()}
    values: dict[str, Any] = {key: pick.value for key, pick in picked.items()}
    ways = [
        pick
        for pick in (picked["connection_string"], picked["connection_string_file"], picked["fully_qualified_namespace"])
        if pick.value or not pick.ok
    ]
    if len(ways) > 1:
        listing = " and ".join(way.origin for way in ways)
        sources.errors.append(f"{listing}: expected one way to connect to Event Hubs, found {len(ways)}; keep one")
    if not ways and values["event_hub"]:
        sources.warnings.append(
            f"{picked['event_hub'].origin}: ignored, since Event Hubs is not configured; set connection_string, "
            "connection_string_file, or fully_qualified_namespace"
        )
    if len(ways) != 1 or not ways[0].ok:
        return EventHubsSettings(**values)
    connection: ConnectionString | None = None
    if not values["fully_qualified_namespace"]:
        values["connection_string"], connection = _read_connection(sources, picked, read_file)
        if connection is None:
            return EventHubsSettings(**values)
    values["connection"] = connection
    values["event_hub"] = _read_hub(sources, picked["event_hub"], connection.event_hub if connection else "")
    proxies = [name for name in _PROXY_VARIABLES if sources.environ.get(name)]
    if proxies and values["transport"] == "websocket":
        sources.warnings.append(f"{proxies[0]}: not used for Event Hubs; only a transparent proxy works")
    return EventHubsSettings(**values)


def _read_connection(
    sources: Sources, picked: Mapping[str, Picked], read_file: ReadFile
) -> tuple[Secret, ConnectionString | None]:
    """Return the secret, as far as it could be read, and its parsed form, None after an error.

    Adds errors and warnings to `sources`: they name the secret's origin, never its value.
    """
    origin, secret = picked["connection_string"].origin, picked["connection_string"].value
    if path := picked["connection_string_file"].value:
        origin = picked["connection_string_file"].origin
        try:
            secret = Secret(read_text(path, MAX_SECRET_BYTES, read_file).strip())
        except InvalidValue as error:
            sources.errors.append(f"{origin}: {error}")
            return secret, None
        origin = f"{origin}: {path}"
    try:
        connection = parse_connection_string(secret.reveal())
    except InvalidValue as error:
        sources.errors.append(f"{origin}: expected {error}; the value is not shown")
        return secret, None
    endpoint = picked["custom_endpoint"]
    try:
        if connection.emulator:
            refuse_azure_without_tls(urlsplit(endpoint.value).hostname or "")
    except InvalidValue as error:
        sources.errors.append(f"{endpoint.origin}: expected {error}")
        return secret, None
    sources.warnings += [f"{origin}: {text}" for text in connection_warnings(connection, endpoint.value)]
    certificate = picked["certificate"]
    if connection.emulator and certificate.value:
        sources.warnings.append(f"{certificate.origin}: has no effect, since emulators are used without TLS")
    return secret, connection


def _read_hub(sources: Sources, hub: Picked, entity_path: str) -> str:
    """Return the event hub's name from the connection string or from `event_hub`. Adds errors to `sources`."""
    given = str(hub.value)
    if entity_path and given and entity_path.lower() != given.lower():
        expected = f"the same event hub as EntityPath in the connection string ({quote(entity_path)}), or nothing"
    elif entity_path or given:
        return entity_path or given
    else:
        expected = "the name of the event hub here, or as EntityPath in the connection string"
    if hub.ok:
        sources.errors.append(f"{hub.origin}: expected {expected}, found {describe(given)}")
    return given
