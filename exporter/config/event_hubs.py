"""`[event_hubs]`: the connection string, and what the section's settings mean together.

The connection string is read before the SDK sees it, since the SDK takes some mistakes in silence (measured with
azure-eventhub 5.15): `UseDevelopmentEmulator=True` with a capital means TLS to port 5671, a port in `Endpoint` is
ignored without the emulator's flag, an IPv6 literal is taken apart wrongly.
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
_SAMPLE: Final = (
    '"Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=...;EntityPath=HUB"'
)
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
"""The fields that are read, by their names in lower case."""


def parse_connection_string(text: str) -> ConnectionString:
    """Read a connection string. Raises `InvalidValue`, whose sentence never repeats any part of it."""
    fields = _split(text)
    emulator = _is_for_emulator(fields)
    host, port = _endpoint(fields)
    if emulator:
        refuse_azure_without_tls(host)
    if port is not None and not emulator:
        raise InvalidValue(
            "no port in Endpoint unless UseDevelopmentEmulator=true stands beside it (the SDK ignores the port, goes "
            f"to {AMQPS_PORT}); use event_hubs.custom_endpoint to reach another address"
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
    """Fields by lower case name: Azure's tools differ in case, the SDK's client ignores it."""
    expected = f"a connection string such as {_SAMPLE}"
    stripped = text.strip()
    if stripped[:1] in ("'", '"'):
        raise InvalidValue(expected + ", without quotation marks around it")
    if not stripped.isprintable() or not stripped:
        raise InvalidValue(expected + ", on one line")
    fields: dict[str, str] = {}
    for part in stripped.rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals or not name or not value or name.lower() in fields:
            raise InvalidValue(expected + ": fields of the form Name=value, each once, with semicolons between")
        fields[name.lower()] = value
    return fields


def _is_for_emulator(fields: Mapping[str, str]) -> bool:
    value = fields.get("usedevelopmentemulator")
    if value not in (None, "true", "false"):
        raise InvalidValue(
            'UseDevelopmentEmulator to be exactly "true" or "false" in lower case (with any other spelling the SDK '
            "would speak TLS to the emulator without a word)"
        )
    return value == "true"


def _endpoint(fields: Mapping[str, str]) -> tuple[str, int | None]:
    """Host and port, None where no port is given."""
    expected = "Endpoint=sb://HOST/ with the host name of the namespace"
    try:
        parts = urlsplit(fields.get("endpoint", ""))
        port = parts.port
    except ValueError:
        raise InvalidValue(expected) from None
    host = parts.hostname or ""
    if ":" in host:
        raise InvalidValue(expected + ": an IPv6 literal is not understood by the SDK, use a name or an IPv4 address")
    if parts.scheme not in ("sb", "amqps", "amqp") or not is_host_name(host):
        raise InvalidValue(expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or port == 0:
        raise InvalidValue(expected + " and nothing after it")
    return host, port


def refuse_azure_without_tls(host: str) -> None:
    """Refuse a namespace of Azure's beside UseDevelopmentEmulator=true, which switches TLS off.

    Raises `InvalidValue`.
    """
    if ".servicebus." in host.lower():
        raise InvalidValue(
            f"no UseDevelopmentEmulator=true for {host}, which is a namespace of Azure: it switches TLS off, and the "
            "key and every record would go in clear; remove it from the connection string"
        )


def connection_warnings(connection: ConnectionString, custom_endpoint: str = "") -> list[str]:
    """What is legal in a connection string and may surprise, as ends of sentences that name where it was given."""
    warnings = []
    host = urlsplit(custom_endpoint).hostname or connection.host
    if connection.emulator and not is_loopback(host):
        warnings.append(
            f"holds UseDevelopmentEmulator=true, so the key and every record go to {host} without TLS, for everybody "
            "on the way to read; an emulator belongs on this machine"
        )
    if connection.signature:
        warnings.append("holds a SharedAccessSignature, which can't be renewed: sending ends when it expires")
    if connection.other_fields:
        warnings.append("holds fields that are ignored; those read are " + ", ".join(_FIELDS.values()))
    return warnings


def read_event_hubs(sources: Sources, read_file: ReadFile) -> EventHubsSettings:
    """The section with the secret read, the connection string parsed and the hub's name resolved.

    What is wrong is added to the errors of `sources`.
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
        sources.errors.append(f"{listing}: expected one way to reach Event Hubs, found {len(ways)}")
    if not ways and values["event_hub"]:
        sources.warnings.append(
            f"{picked['event_hub'].origin}: ignored, Event Hubs is configured by connection_string, "
            "connection_string_file or fully_qualified_namespace"
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
        sources.warnings.append(f"{proxies[0]}: not used for Event Hubs; a proxy on the way must be transparent")
    return EventHubsSettings(**values)


def _read_connection(
    sources: Sources, picked: Mapping[str, Picked], read_file: ReadFile
) -> tuple[Secret, ConnectionString | None]:
    """The secret as far as it could be read, and what it says, None after an error.

    Errors name where the secret was given, never what it is.
    """
    origin, secret = picked["connection_string"].origin, picked["connection_string"].value
    path = picked["connection_string_file"].value
    if path:
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
        sources.errors.append(f"{origin}: expected {error}; what was found is not shown")
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
        sources.warnings.append(f"{certificate.origin}: without effect, since an emulator is spoken to without TLS")
    return secret, connection


def _read_hub(sources: Sources, hub: Picked, entity_path: str) -> str:
    """The event hub's name from the connection string and from `event_hub`."""
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
