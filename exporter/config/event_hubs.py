"""The Event Hubs connection string: read before the SDK sees it, since the SDK takes some mistakes in silence.

The traps (measured with azure-eventhub 5.15): `UseDevelopmentEmulator=True` with a capital means TLS to port 5671, a
port in `Endpoint` is ignored without the emulator's flag, an IPv6 literal is taken apart wrongly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from exporter.config.types import InvalidValue, is_loopback, quote
from exporter.secrets import Secret

AMQP_PORT = 5672
AMQPS_PORT = 5671

_AZURE = re.compile(r"\.servicebus\.", re.IGNORECASE)
_SAMPLE = '"Endpoint=sb://NAME.servicebus.windows.net/;SharedAccessKeyName=...;SharedAccessKey=...;EntityPath=HUB"'
_KEYS = {
    key.lower(): key
    for key in (
        "Endpoint",
        "EntityPath",
        "SharedAccessKeyName",
        "SharedAccessKey",
        "SharedAccessSignature",
        "UseDevelopmentEmulator",
    )
}


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """What a connection string says: `text` for the SDK, `port` None unless given, `others` if we ignore fields."""

    text: Secret
    host: str
    port: int | None
    event_hub: str
    key_name: str
    key: Secret
    signature: Secret
    emulator: bool
    others: bool = False

    @property
    def uses_signature(self) -> bool:
        """A shared access signature can't be renewed by us: it works until it expires."""
        return bool(self.signature)


def parse_connection_string(text: str) -> ConnectionString:
    """Read a connection string. Raises `InvalidValue`, whose sentence never repeats any part of it."""
    found = _fields(text)
    emulator = _emulator(found)
    host, port = _endpoint(found)
    if emulator:
        refuse_azure_without_tls(host)
    if port is not None and not emulator:
        raise InvalidValue(
            "no port in Endpoint unless UseDevelopmentEmulator=true stands beside it (the SDK ignores the port, goes "
            f"to {AMQPS_PORT}); use event_hubs.custom_endpoint to reach another address"
        )
    name, key, signature = (
        found.get(word, "") for word in ("sharedaccesskeyname", "sharedaccesskey", "sharedaccesssignature")
    )
    if bool(name) != bool(key):
        raise InvalidValue("SharedAccessKeyName and SharedAccessKey together, or neither")
    if bool(key) == bool(signature):
        raise InvalidValue("either SharedAccessKeyName with SharedAccessKey, or SharedAccessSignature")
    hub = found.get("entitypath", "")
    return ConnectionString(
        Secret(text.strip()),
        host,
        port,
        hub,
        name,
        Secret(key),
        Secret(signature),
        emulator,
        not found.keys() <= _KEYS.keys(),
    )


def _fields(text: str) -> dict[str, str]:
    """Fields by lower case name: Azure's tools differ in case, the SDK's client ignores it."""
    expected = f"a connection string such as {_SAMPLE}"
    stripped = text.strip()
    if stripped[:1] in ("'", '"'):
        raise InvalidValue(expected + ", without quotation marks around it")
    if not stripped.isprintable() or not stripped:
        raise InvalidValue(expected + ", on one line")
    found: dict[str, str] = {}
    for part in stripped.rstrip(";").split(";"):
        name, equals, value = part.partition("=")
        if not equals or not name or not value or name.lower() in found:
            raise InvalidValue(expected + ": fields of the form Name=value, each once, with semicolons between")
        found[name.lower()] = value
    return found


def _emulator(found: dict[str, str]) -> bool:
    value = found.get("usedevelopmentemulator")
    if value not in (None, "true", "false"):
        raise InvalidValue(
            'UseDevelopmentEmulator to be exactly "true" or "false" in lower case (with any other spelling the SDK '
            "would speak TLS to the emulator without a word)"
        )
    return value == "true"


def _endpoint(found: dict[str, str]) -> tuple[str, int | None]:
    expected = "Endpoint=sb://HOST/ with the host name of the namespace"
    try:
        parts = urlsplit(found.get("endpoint", ""))
        port = parts.port
    except ValueError:
        raise InvalidValue(expected) from None
    host = parts.hostname or ""
    if ":" in host:
        raise InvalidValue(expected + ": an IPv6 literal is not understood by the SDK, use a name or an IPv4 address")
    if parts.scheme not in ("sb", "amqps", "amqp") or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}", host):
        raise InvalidValue(expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or port == 0:
        raise InvalidValue(expected + " and nothing after it")
    return host, port


def refuse_azure_without_tls(host: str) -> None:
    """Raises `InvalidValue` for a namespace of Azure's beside UseDevelopmentEmulator=true, which switches TLS off."""
    if _AZURE.search(host):
        raise InvalidValue(
            f"no UseDevelopmentEmulator=true for {host}, which is a namespace of Azure: it switches TLS off, and the "
            "key and every record would go in clear; remove it from the connection string"
        )


def connection_warnings(connection: ConnectionString, custom_endpoint: str = "") -> list[str]:
    """What is legal and may surprise."""
    warnings = []
    host = urlsplit(custom_endpoint).hostname or connection.host
    if connection.emulator and not is_loopback(host):
        warnings.append(
            f"holds UseDevelopmentEmulator=true, so the key and every record go to {host} without TLS, for everybody "
            "on the way to read; an emulator belongs on this machine"
        )
    if connection.uses_signature:
        warnings.append("holds a SharedAccessSignature, which can't be renewed: sending ends when it expires")
    if connection.others:
        warnings.append("holds fields that are ignored; those read are " + ", ".join(_KEYS.values()))
    return warnings


def resolve_hub(entity_path: str, event_hub: str) -> str:
    """The event hub's name from the connection string and from `event_hub`. Raises `InvalidValue`."""
    if entity_path and event_hub and entity_path.lower() != event_hub.lower():
        expected = f"the same event hub as EntityPath in the connection string ({quote(entity_path)}), or nothing"
        raise InvalidValue(expected)
    if not entity_path and not event_hub:
        raise InvalidValue("the name of the event hub here, or as EntityPath in the connection string")
    return entity_path or event_hub
