"""What single values must look like. A check returns the value in its one form or raises `Unfit`."""

from __future__ import annotations

import ipaddress
import re
from datetime import date
from urllib.parse import SplitResult, urlsplit

from exporter.config_kinds import Unfit

# The api-versions of Scheduled Events that Microsoft documents [Endpoint discovery, Version history].
KNOWN_API_VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})")
_MAX_PORT = 65535


def split_url(text: str, schemes: tuple[str, ...], expected: str) -> SplitResult:
    """A URL with a host and a usable port. Raises `Unfit` with `expected`, which never repeats the URL."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise Unfit(expected) from None
    if parts.scheme not in schemes or not parts.hostname or port == 0 or any(ch.isspace() for ch in text):
        raise Unfit(expected)
    if not _HOST.fullmatch(parts.hostname) and not _is_ipv6(parts.hostname):
        raise Unfit(expected)
    return parts


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6  # noqa: PLR2004 - the protocol's own name
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether what is sent to this host stays on this machine."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def source_url(text: str) -> str:
    """The metadata service's base: scheme, host and port alone, without a slash at the end."""
    expected = 'an http or https URL without path, query or user, such as "http://169.254.169.254"'
    parts = split_url(text, ("http", "https"), expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or text.endswith(("?", "#")):
        raise Unfit(expected)
    return f"{parts.scheme}://{parts.netloc}"


def otlp_base(text: str) -> str:
    """A collector's base URL, as given; `/v1/logs` is appended elsewhere."""
    expected = 'an http or https URL without query, such as "http://127.0.0.1:4318"'
    parts = split_url(text, ("http", "https"), expected)
    if parts.query or parts.fragment:
        raise Unfit(expected)
    return text


def otlp_exact(text: str) -> str:
    """A collector's whole URL for logs, used as is; without a path it means the root [OTLP exporter, Endpoint URLs]."""
    parts = split_url(text, ("http", "https"), 'an http or https URL, such as "http://127.0.0.1:4318/v1/logs"')
    if parts.fragment:
        raise Unfit("a URL without a fragment")
    return text if parts.path else parts._replace(path="/").geturl()


def api_version(text: str) -> str:
    """A calendar date as Azure writes its api-versions."""
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise Unfit('a date such as "2020-07-01"') from None
    return text


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[::]:port` or `:port`; an empty host means all addresses. Raises `Unfit`."""
    expected = '"host:port", "[::]:port" or ":port", such as "0.0.0.0:10169"'
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]*)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise Unfit(expected)
    if match[1] is not None and not _is_ipv6(match[1]):
        raise Unfit(expected)
    if match[2] and not _HOST.fullmatch(match[2]):
        raise Unfit(expected)
    return match[1] or match[2] or "", int(match[3])


def listen_address(text: str) -> str:
    """An address to listen on, as given."""
    split_address(text)
    return text


def namespace(text: str) -> str:
    """The host name of an Event Hubs namespace."""
    expected = 'a host name alone, without "sb://", port or slash, such as "contoso.servicebus.windows.net"'
    if not _HOST.fullmatch(text) or "." not in text:
        raise Unfit(expected)
    return text


def hub_name(text: str) -> str:
    """The name of an event hub: the rules are Azure's own."""
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?", text):
        raise Unfit("the name of an event hub: letters, digits, dots, dashes and underscores")
    return text


def consumer_group(text: str) -> str:
    """The name of a consumer group."""
    if not re.fullmatch(r"\$Default|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?", text):
        raise Unfit('the name of a consumer group, such as "$Default"')
    return text


def custom_endpoint(text: str) -> str:
    """Where to connect instead of the namespace's own name (a private endpoint, a gateway)."""
    expected = 'a URL of scheme and host, such as "sb://10.1.2.3:5671"'
    parts = split_url(text if "//" in text else f"sb://{text}", ("sb", "amqps", "https"), expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or _is_ipv6(parts.hostname or ""):
        raise Unfit(expected)
    return f"{parts.scheme}://{parts.netloc}"


def service_name(text: str) -> str:
    """OpenTelemetry's `service.name`: anything but nothing."""
    if not text.strip():
        raise Unfit("a name")
    return text.strip()
