"""The kinds of value a setting can have: each reads text (flag, environment) and TOML, and writes itself as TOML.

A kind raises `InvalidValue` with what it expected, worded to follow "expected"; what was found is said by the caller,
who knows whether it may be shown.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import ntpath
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from exporter.secrets import HIDDEN, Secret, is_connection_string, is_key, redact, unmasked, without_credentials
from exporter.text.format import format_duration, parse_duration

_MAX_TEXT = 4096
_BREAKS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_MAX_SHOWN = 80  # of a value, in an error of one line


class InvalidValue(ValueError):
    """A value is not what a setting takes: the message says what was expected, `found` which part of it is wrong."""

    def __init__(self, expected: str, found: object = None) -> None:
        super().__init__(expected)
        self.found = found


class Misplaced(InvalidValue):
    """What must not be shown, such as a secret where none belongs. The message is a whole sentence."""


def refuse_secrets(value: object, instead_of: str) -> None:
    """Raises `Misplaced` for a connection string or a key that was given as a path, a name or an address."""
    if not isinstance(value, str):
        return
    if is_connection_string(value):
        raise Misplaced(
            f"this is a connection string, not {instead_of}; it belongs into a file of its own, named by "
            "event_hubs.connection_string_file, or into the environment"
        )
    if is_key(value):
        raise Misplaced(
            f"this is a key or a certificate itself, not {instead_of}; it belongs into a file of its own, whose path "
            "is given where a file is asked for"
        )


def refuse_unfit(text: str, instead_of: str) -> None:
    """Raises `Misplaced` for what is no path and no name: a secret, or what has control characters."""
    refuse_secrets(text, instead_of)
    if _BREAKS.search(text):
        raise Misplaced(f"expected {instead_of} on one line, found control characters in what is not shown")


class Kind(Protocol):
    """How one kind of value is read and written."""

    def from_text(self, text: str) -> Any:
        """The value of a flag or an environment variable. Raises `InvalidValue`."""

    def from_toml(self, value: object) -> Any:
        """The value of a TOML key. Raises `InvalidValue`."""

    def show(self, value: Any) -> str:
        """The value as one would write it in the TOML file; secrets as a placeholder."""


def quote(text: str) -> str:
    """A TOML basic string. JSON's escapes are TOML's, except that TOML also wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def describe(value: object) -> str:
    """What was found, for an error: short, on one line, without credentials, with its type if that is wrong."""
    if isinstance(value, str):
        if len(value) > _MAX_TEXT:
            return f"a string of {len(value)} characters that is not shown"
        if _BREAKS.search(value):
            return "a string with control characters that is not shown"
        if is_connection_string(value) or is_key(value):
            return "a string that is not shown, since it looks like a secret"
        text = without_credentials(value)
        if HIDDEN not in text and redact(unmasked(value)) != unmasked(value):
            return "a string that is not shown, since it looks like a secret"
        shown = quote(text[:_MAX_SHOWN]) if text.isprintable() else ascii(text[:_MAX_SHOWN])
        return shown + ("..." if len(text) > _MAX_SHOWN else "")
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int):
        return f"the integer {value}" if abs(value) < 10**20 else "a very long integer"
    if isinstance(value, float):
        return f"the number {value}"
    return "an empty list" if value == [] else describe_type(value)


def describe_type(value: object) -> str:
    """The TOML type alone, for values that must not be shown."""
    names = (
        (str, "a string"),
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (dict, "a table"),
        (list, "a list"),
    )
    return next((name for cls, name in names if isinstance(value, cls)), "a date or time")


@dataclass(frozen=True, slots=True)
class Text:
    """A string, checked and perhaps rewritten by `check`, which raises `InvalidValue`. Empty passes when `optional`."""

    expected: str = "a string"
    check: Callable[[str], str] = str
    optional: bool = False
    path: bool = False

    def from_text(self, text: str) -> str:
        refuse_secrets(text, "a path" if self.path else "what belongs here")
        if len(text) > _MAX_TEXT or not text.isprintable():
            raise Misplaced(
                f"expected {self.expected}, without control characters, at most {_MAX_TEXT} characters; what was found "
                "is not shown"
            )
        if text == "" and self.optional:
            return ""
        return self.check(text)

    def from_toml(self, value: object) -> str:
        if not isinstance(value, str):
            raise InvalidValue("a string")
        return self.from_text(value)

    def show(self, value: str) -> str:
        return quote(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a closed set of words."""

    words: Sequence[str]

    def from_text(self, text: str) -> str:
        if text not in self.words:
            raise InvalidValue("one of " + ", ".join(quote(word) for word in self.words))
        return text

    def from_toml(self, value: object) -> str:
        return self.from_text(value if isinstance(value, str) else "")

    def show(self, value: str) -> str:
        return quote(value)


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds as a float, written as Prometheus does; None is written `never` where that is allowed."""

    minimum: float
    maximum: float
    never: bool = False

    @property
    def expected(self) -> str:
        bounds = f"a duration from {format_duration(self.minimum)} to {format_duration(self.maximum)}"
        return f'"never" or {bounds}' if self.never else bounds

    def from_text(self, text: str) -> float | None:
        if self.never and text == "never":
            return None
        try:
            seconds = parse_duration(text)
        except ValueError:
            raise InvalidValue(
                f'{self.expected}, such as "{format_duration(max(self.minimum, min(self.maximum, 30)))}"'
            ) from None
        if not self.minimum <= seconds <= self.maximum:
            raise InvalidValue(self.expected)
        return seconds

    def from_toml(self, value: object) -> float | None:
        if not isinstance(value, str):
            raise InvalidValue(f"{self.expected}, as a string with a unit")
        return self.from_text(value)

    def show(self, value: float | None) -> str:
        return quote("never" if value is None else format_duration(value))


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number within bounds, without a unit."""

    minimum: int
    maximum: int
    what: str = "an integer"

    @property
    def expected(self) -> str:
        return f"{self.what} from {self.minimum} to {self.maximum}"

    def from_text(self, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise InvalidValue(self.expected)
        return self.from_toml(int(text))

    def from_toml(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise InvalidValue(self.expected)
        return value

    def show(self, value: int) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A secret text. What was found is never shown, not even when it is wrong."""

    expected: str = "a string"

    def from_text(self, text: str) -> Secret:
        return Secret(text.strip())

    def from_toml(self, value: object) -> Secret:
        if not isinstance(value, str):
            raise InvalidValue(self.expected)
        return self.from_text(value)

    def show(self, value: Secret) -> str:
        return quote(str(value)) if value else '""'


def path_argument(text: str) -> str:
    """A path on the command line of a command, for argparse: nothing that is a secret."""
    return _argument(text, "a path")


def word_argument(text: str) -> str:
    """A name or a word on the command line of a command, for argparse: nothing that is a secret."""
    return _argument(text, "what belongs here")


def _argument(text: str, instead_of: str) -> str:
    try:
        refuse_unfit(text, instead_of)
    except Misplaced as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def is_absolute(path: str) -> bool:
    """Absolute on this or on the other family of systems: a file is often checked elsewhere than where it runs."""
    return posixpath.isabs(path) or bool(ntpath.splitdrive(path)[0] and ntpath.isabs(path))


def absolute_path(path: str) -> str:
    """A path that means the same file whatever the working directory becomes: a relative one is of the present one.

    Raises `InvalidValue` for no path at all.
    """
    if not path:
        raise InvalidValue("a path")
    return path if is_absolute(path) else os.path.abspath(path)


# The api-versions of Scheduled Events that Microsoft documents [Endpoint discovery, Version history].
KNOWN_API_VERSIONS = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})")
_MAX_PORT = 65535


def split_url(text: str, schemes: tuple[str, ...], expected: str) -> SplitResult:
    """A URL with a host and a usable port. Raises `InvalidValue` with `expected`, which never repeats the URL."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidValue(expected) from None
    if parts.scheme not in schemes or not parts.hostname or port == 0 or any(ch.isspace() for ch in text):
        raise InvalidValue(expected)
    if not _HOST.fullmatch(parts.hostname) and not _is_ipv6(parts.hostname):
        raise InvalidValue(expected)
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
        raise InvalidValue(expected)
    return f"{parts.scheme}://{parts.netloc}"


def otlp_base(text: str) -> str:
    """A collector's base URL, as given; `/v1/logs` is appended elsewhere."""
    expected = 'an http or https URL without query, such as "http://127.0.0.1:4318"'
    parts = split_url(text, ("http", "https"), expected)
    if parts.query or parts.fragment:
        raise InvalidValue(expected)
    return text


def otlp_exact(text: str) -> str:
    """A collector's whole URL for logs, used as is; without a path it means the root [OTLP exporter, Endpoint URLs]."""
    parts = split_url(text, ("http", "https"), 'an http or https URL, such as "http://127.0.0.1:4318/v1/logs"')
    if parts.fragment:
        raise InvalidValue("a URL without a fragment")
    return text if parts.path else parts._replace(path="/").geturl()


def api_version(text: str) -> str:
    """A calendar date as Azure writes its api-versions."""
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise InvalidValue('a date such as "2020-07-01"') from None
    return text


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[::]:port` or `:port`; an empty host is every address. Raises `InvalidValue`."""
    expected = '"host:port", "[::]:port" or ":port", such as "0.0.0.0:10169"'
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]*)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise InvalidValue(expected)
    if match[1] is not None and not _is_ipv6(match[1]):
        raise InvalidValue(expected)
    if match[2] and not _HOST.fullmatch(match[2]):
        raise InvalidValue(expected)
    return match[1] or match[2] or "", int(match[3])


def listen_address(text: str) -> str:
    """An address to listen on, as given."""
    split_address(text)
    return text


def namespace(text: str) -> str:
    """The host name of an Event Hubs namespace."""
    expected = 'a host name alone, without "sb://", port or slash, such as "contoso.servicebus.windows.net"'
    if not _HOST.fullmatch(text) or "." not in text:
        raise InvalidValue(expected)
    return text


def hub_name(text: str) -> str:
    """The name of an event hub: the rules are Azure's own."""
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?", text):
        raise InvalidValue("the name of an event hub: letters, digits, dots, dashes and underscores")
    return text


def consumer_group(text: str) -> str:
    """The name of a consumer group."""
    if not re.fullmatch(r"\$Default|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?", text):
        raise InvalidValue('the name of a consumer group, such as "$Default"')
    return text


def custom_endpoint(text: str) -> str:
    """Where to connect instead of the namespace's own name (a private endpoint, a gateway)."""
    expected = 'a URL of scheme and host, such as "sb://10.1.2.3:5671"'
    parts = split_url(text if "//" in text else f"sb://{text}", ("sb", "amqps", "https"), expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or _is_ipv6(parts.hostname or ""):
        raise InvalidValue(expected)
    return f"{parts.scheme}://{parts.netloc}"


def service_name(text: str) -> str:
    """OpenTelemetry's `service.name`: anything but nothing."""
    if not text.strip():
        raise InvalidValue("a name")
    return text.strip()
