"""The types of setting values: each parses TOML values, and formats values as TOML.

A type raises `InvalidValue` with the expected value, worded to follow "expected"; `sources` adds the origin and the
value that was found, unless that must not be shown.
"""

from __future__ import annotations

import argparse
import ipaddress
import ntpath
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from exporter.core.records import MAX_TAG_NAME, MAX_TAGS, tag_label
from exporter.secrets import HIDDEN, Secret
from exporter.text.format import format_duration, format_size, parse_duration, parse_size
from exporter.text.values import (
    MAX_TEXT,
    InvalidValue,
    Misplaced,
    is_host_name,
    is_ipv6,
    quote,
    refuse_misplaced,
    refuse_secrets,
    split_address,
)
from exporter.windows.places import NO_SHARE, is_fixed, is_on_network, is_own_name

API_VERSIONS: Final = ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
"""The api-versions of Scheduled Events that Microsoft documents [Endpoint discovery, Version history]."""

SINGLE_QUOTES: Final = r"write a path with backslashes in single quotes, for example 'C:\temp\outbox.db'"
"""Advice for paths whose backslashes TOML read as escapes."""
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
"""Characters that unintended escapes leave in a path: \\t in "C:\\temp" is a tab [TOML, String; YAML, 5.7]."""

_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_MAX_WORDS: Final = 20
_MAX_HEADERS: Final = 64
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
"""A token [RFC 9110, 5.6.2]."""


class SettingType:
    """The type of a setting's value: how it is parsed and formatted."""

    @property
    def word(self) -> str:
        """The placeholder for a value in `--help`, for example DURATION."""
        raise NotImplementedError

    def parse(self, text: str) -> object:
        """Return the text of a flag or variable as a TOML value."""
        return text

    def read(self, value: object) -> Any:
        """Return the setting's value for a TOML value. Raises `InvalidValue`."""
        raise NotImplementedError

    def show(self, value: Any) -> str:
        """Return the value as TOML text; secrets as a placeholder."""
        return quote(str(value))


@dataclass(frozen=True)
class Text(SettingType):
    """A string, validated and possibly rewritten by `check`, which raises `InvalidValue`. `optional` allows ""."""

    expected: str = "a string"
    check: Callable[[str], str] = str
    optional: bool = False
    path: bool = False
    word: str = "NAME"

    def read(self, value: object) -> str:
        """Return the checked text. Raises `Misplaced` for secrets and for text that can't be shown on one line."""
        if not isinstance(value, str):
            raise InvalidValue("a string")
        refuse_secrets(value, "a path" if self.path else "what belongs here")
        if self.path:
            refuse_escapes(value)
        if len(value) > MAX_TEXT or not value.isprintable():
            raise Misplaced(
                f"expected {self.expected} of at most {MAX_TEXT} characters, without control characters; the value is "
                "not shown"
            )
        return self.check(value) if value or not self.optional else ""


@dataclass(frozen=True)
class Choice(SettingType):
    """One of a fixed set of words: the members of an enumeration, or plain strings."""

    words: Iterable[str]

    @property
    def word(self) -> str:
        """The words, separated by "|"."""
        return "|".join(map(str, self.words))

    def read(self, value: object) -> str:
        """Return the member with this text. Raises `InvalidValue`."""
        for word in self.words:
            if word == value:
                return word
        raise InvalidValue("one of " + ", ".join(quote(str(word)) for word in self.words))


@dataclass(frozen=True)
class Duration(SettingType):
    """Seconds as a float, written in Prometheus format; with `never`, None is written `never`."""

    minimum: float
    maximum: float
    never: bool = False

    @property
    def word(self) -> str:
        """DURATION, with "never" if allowed."""
        return "never|DURATION" if self.never else "DURATION"

    def read(self, value: object) -> float | None:
        """Return seconds within the bounds; None for never. Raises `InvalidValue`, also for a number without unit."""
        expected = f"a duration from {format_duration(self.minimum)} to {format_duration(self.maximum)}"
        if self.never:
            expected = f'"never" or {expected}'
        if not isinstance(value, str):
            raise InvalidValue(f"{expected}, as a string with a unit")
        if self.never and value == "never":
            return None
        try:
            seconds = parse_duration(value)
        except ValueError:
            example = format_duration(max(self.minimum, min(self.maximum, 30)))
            raise InvalidValue(f'{expected}, for example "{example}"') from None
        if not self.minimum <= seconds <= self.maximum:
            raise InvalidValue(expected)
        return seconds

    def show(self, value: float | None) -> str:
        """Return a TOML string."""
        return quote("never" if value is None else format_duration(value))


@dataclass(frozen=True)
class Integer(SettingType):
    """A whole number within bounds, without a unit. `what` names the number in errors."""

    minimum: int
    maximum: int
    what: str = "an integer"
    word: str = "N"

    @property
    def expected(self) -> str:
        """The expected value, for errors."""
        return f"{self.what} from {self.minimum} to {self.maximum}"

    def parse(self, text: str) -> object:
        """Return a number if the text consists of decimal digits, otherwise the text."""
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else text

    def read(self, value: object) -> int:
        """Return a number within the bounds. Raises `InvalidValue`, also for a boolean."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise InvalidValue(self.expected)
        return value

    def show(self, value: int) -> str:
        """Return a TOML integer."""
        return str(value)


@dataclass(frozen=True)
class Size(Integer):
    """Bytes within bounds: a whole number, or a number with a unit (MB: 10^6 bytes, MiB: 2^20 bytes)."""

    word: str = "SIZE"

    @property
    def expected(self) -> str:
        """The expected value, for errors."""
        bounds = f"a size from {format_size(self.minimum)} to {format_size(self.maximum)}"
        return f'{bounds}, for example "100MB" (10^6 bytes each), "100MiB" (2^20), or a number of bytes'

    def read(self, value: object) -> int:
        """Return bytes within the bounds, for a TOML string or integer. Raises `InvalidValue`."""
        try:
            return super().read(parse_size(value) if isinstance(value, str) else value)
        except ValueError:
            raise InvalidValue(self.expected) from None

    def show(self, value: int) -> str:
        """Return a TOML string with a unit, or an integer if no unit is exact."""
        shown = format_size(value)
        return shown if shown.isdecimal() else quote(shown)


@dataclass(frozen=True)
class Words(SettingType):
    """Any words, without duplicates and in the given order: a TOML list, or comma-separated text.

    `known` are the words that this version knows. Others are accepted, since Azure may add some; `load` warns about
    them.
    """

    known: tuple[str, ...]
    word: str = "NAME,NAME"

    def parse(self, text: str) -> object:
        """Return the comma-separated words, without spaces around them and without empty ones."""
        return [word.strip() for word in text.split(",") if word.strip()]

    def read(self, value: object) -> tuple[str, ...]:
        """Return the words of a TOML list, which may be empty. Raises `InvalidValue`."""
        if not isinstance(value, list):
            raise InvalidValue(f"a list of words, for example {self.show(self.known[:2])}")
        for word in value:
            refuse_secrets(word, "a word")
        return self._checked(value)

    def _checked(self, words: list[object]) -> tuple[str, ...]:
        found = [word for word in words if isinstance(word, str) and _WORD.fullmatch(word)]
        if len(found) < len(words) or len(words) > _MAX_WORDS:
            raise InvalidValue(
                f"at most {_MAX_WORDS} words of letters, digits, dots, and dashes, for example "
                f"{self.show(self.known[:2])}"
            )
        return tuple(dict.fromkeys(found))

    def show(self, value: tuple[str, ...]) -> str:
        """Return a TOML list."""
        return f"[{', '.join(map(quote, value))}]"


@dataclass(frozen=True)
class TagNames(Words):
    """Names of VM tags, without duplicates and in the given order; each becomes a separate label.

    A name with a comma can only be given in the file.
    """

    known: tuple[str, ...] = ("owner", "environment")

    def parse(self, text: str) -> object:
        """Return the comma-separated names, without spaces around them; empty ones are kept, for `read` to reject."""
        return [name.strip() for name in text.split(",")] if text.strip() else []

    def _checked(self, words: list[object]) -> tuple[str, ...]:
        labels: dict[str, str] = {}
        for word in words:
            if not isinstance(word, str) or not word.strip() or len(word) > MAX_TAG_NAME or not word.isprintable():
                raise InvalidValue(f"non-empty names of VM tags, for example {self.show(self.known)}")
            same = [other for other in labels.values() if other != word and other.lower() == word.lower()]
            if same:
                raise InvalidValue(f"different tags: to Azure, {quote(same[0])} and {quote(word)} are the same tag")
            other = labels.setdefault(tag_label(word), word)
            if other != word:
                raise InvalidValue(
                    f"names with different labels: {quote(other)} and {quote(word)} both become {tag_label(word)}"
                )
        if len(labels) > MAX_TAGS:
            raise InvalidValue(f"at most {MAX_TAGS} names of VM tags")
        return tuple(labels.values())


@dataclass(frozen=True)
class Hidden(SettingType):
    """A secret text. Its value is never shown, not even if it is invalid."""

    word: str = "SECRET"

    def read(self, value: object) -> Secret:
        """Return the secret without surrounding white space. Raises `InvalidValue`."""
        if not isinstance(value, str):
            raise InvalidValue("a string")
        return Secret(value.strip())

    def show(self, value: Secret) -> str:
        """Return a placeholder as a TOML string; empty if there is no secret."""
        return quote(str(value)) if value else '""'


@dataclass(frozen=True)
class Headers(SettingType):
    """HTTP headers with secret values: `name=value,name=value` with percent-encoded values, or a TOML table."""

    word: str = "SECRET"

    def read(self, value: object) -> tuple[tuple[str, Secret], ...]:
        """Return lower-case names with values. A string has the format of OTEL_EXPORTER_OTLP_HEADERS [OTLP exporter].

        Raises `InvalidValue`.
        """
        if isinstance(value, str):
            parts = [part.partition("=") for part in value.split(",") if part.strip()]
            if not all(equals for _, equals, _ in parts):
                raise InvalidValue('headers in the form "name=value,name=value"')
            value = {unquote(name.strip()): unquote(text.strip()) for name, _, text in parts}
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise InvalidValue('a table of strings or "name=value,name=value"')
        headers: dict[str, Secret] = {}
        for name, item in value.items():
            if not _HEADER_NAME.fullmatch(name):
                raise InvalidValue("header names of letters, digits, and dashes")
            if not item.isascii() or not item.isprintable():
                raise InvalidValue("header values of printable ASCII, on one line")
            headers[name.lower()] = Secret(item.strip())
        if len(headers) > _MAX_HEADERS:
            raise InvalidValue(f"at most {_MAX_HEADERS} headers")
        return tuple(headers.items())

    def show(self, value: tuple[tuple[str, Secret], ...]) -> str:
        """Return a TOML table with placeholders as values."""
        return "{ " + ", ".join(f'"{name}" = "{HIDDEN}"' for name, _ in value) + " }" if value else "{}"


def refuse_escapes(path: str) -> None:
    """Raise `Misplaced` for a path in which TOML or YAML has read a backslash as an escape."""
    if _ESCAPED.search(path):
        raise Misplaced(
            "expected a path, found control characters: in double quotes, a backslash starts an escape (\\t is a "
            f"tab); {SINGLE_QUOTES}"
        )


def path_argument(text: str) -> str:
    """Return a path given as an argument. Raises `argparse.ArgumentTypeError` for a secret."""
    return _argument(text, "a path")


def word_argument(text: str) -> str:
    """Return a name given as an argument. Raises `argparse.ArgumentTypeError` for a secret."""
    return _argument(text, "what belongs here")


def _argument(text: str, instead_of: str) -> str:
    try:
        refuse_misplaced(text, instead_of)
    except Misplaced as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def is_absolute(path: str, platform: str = sys.platform) -> bool:
    """Return whether the path is absolute. On Linux, Windows paths count too: settings are often checked elsewhere.

    On Windows, a path without a drive isn't absolute: it depends on the current drive.
    """
    if platform == "win32":
        return is_fixed(path)
    return posixpath.isabs(path) or bool(ntpath.splitdrive(path)[0] and ntpath.isabs(path))


def absolute_path(path: str, platform: str = sys.platform) -> str:
    """Return an absolute path; a relative one is resolved against the current working directory.

    Raises `InvalidValue` for an empty path.
    """
    if not path:
        raise InvalidValue("a path")
    return path if is_absolute(path, platform) else os.path.abspath(path)


def file_path(path: str, platform: str = sys.platform) -> str:
    r"""Return an absolute path of a file whose absence has a meaning, so that Windows must not rewrite the name.

    On Windows, raises `InvalidValue` also for a path that is neither relative nor absolute (`\name` depends on the
    current drive, `C:name` on that drive's working directory), and for a name that can refer to another file.
    """
    if platform == "win32":
        if not is_absolute(path, platform) and (ntpath.splitdrive(path)[0] or path.startswith(("/", "\\"))):
            raise InvalidValue(r"a path with its drive, for example 'C:\ProgramData\app\file'")
        if path and not is_own_name(path):
            raise InvalidValue(
                "a path that Windows does not rewrite: without device names (NUL), names that end in a dot or space, "
                '8.3 names, and the characters : * ? " < > |'
            )
    return absolute_path(path, platform)


def folder_path(path: str, platform: str = sys.platform) -> str:
    """Return the `file_path` of a directory, which may end in a separator. Raises `InvalidValue`."""
    return file_path(path.rstrip("\\/") if platform == "win32" else path, platform)


def local_path(path: str, platform: str = sys.platform) -> str:
    """Return the `file_path` of the outbox. Raises `InvalidValue`, on Windows also for a share."""
    checked = file_path(path, platform)
    if platform == "win32" and is_on_network(checked):
        raise InvalidValue(f"a path on a drive of this machine: {NO_SHARE}")
    return checked


def split_url(text: str, schemes: tuple[str, ...], expected: str) -> SplitResult:
    """Split a URL with a host and a valid port. Raises `InvalidValue` with `expected`, which never has the URL."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InvalidValue(expected) from None
    if parts.scheme not in schemes or not parts.hostname or port == 0 or any(ch.isspace() for ch in text):
        raise InvalidValue(expected)
    if not is_host_name(parts.hostname) and not is_ipv6(parts.hostname):
        raise InvalidValue(expected)
    return parts


def is_loopback(host: str) -> bool:
    """Return whether data sent to this host stays on this machine."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def source_url(text: str) -> str:
    """Return the metadata service's base URL: scheme, host, and port, without final slash. Raises `InvalidValue`."""
    expected = 'an http or https URL without path, query, or user, for example "http://169.254.169.254"'
    parts = split_url(text, ("http", "https"), expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or text.endswith(("?", "#")):
        raise InvalidValue(expected)
    return f"{parts.scheme}://{parts.netloc}"


def dashboard_url(text: str) -> str:
    """Return a dashboard's URL unchanged; it may contain `{vm_name}` and `{resource_group}`. Raises `InvalidValue`."""
    expected = 'an http or https URL without user, for example "https://grafana.example/d/vm?var-instance={vm_name}"'
    parts = split_url(text, ("http", "https"), expected)
    if "@" in parts.netloc or any(char in re.sub(r"{(vm_name|resource_group)}", "", text) for char in '{}"<>\\^`|'):
        raise InvalidValue(expected)
    return text


def otlp_base(text: str) -> str:
    """Return a collector's base URL unchanged; `otlp.logs_url` appends /v1/logs. Raises `InvalidValue`."""
    expected = 'an http or https URL without query, for example "http://127.0.0.1:4318"'
    parts = split_url(text, ("http", "https"), expected)
    if parts.query or parts.fragment:
        raise InvalidValue(expected)
    return text


def otlp_exact(text: str) -> str:
    """Return a collector's complete URL for logs; without a path, the root is used [OTLP exporter, Endpoint URLs].

    Raises `InvalidValue`.
    """
    parts = split_url(text, ("http", "https"), 'an http or https URL, for example "http://127.0.0.1:4318/v1/logs"')
    if parts.fragment:
        raise InvalidValue("a URL without a fragment")
    return text if parts.path else parts._replace(path="/").geturl()


def api_version(text: str) -> str:
    """Return an api-version, a calendar date. Raises `InvalidValue`."""
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise InvalidValue('a date, for example "2020-07-01"') from None
    return text


def listen_address(text: str) -> str:
    """Return an address to listen on, unchanged. Raises `InvalidValue`."""
    split_address(text)
    return text


def namespace(text: str) -> str:
    """Return the host name of an Event Hubs namespace. Raises `InvalidValue`."""
    if not is_host_name(text) or "." not in text:
        raise InvalidValue('a host name without "sb://", port, or slash, for example "contoso.servicebus.windows.net"')
    return text


def hub_name(text: str) -> str:
    """Return the name of an event hub, valid by Azure's rules. Raises `InvalidValue`."""
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?", text):
        raise InvalidValue("the name of an event hub: letters, digits, dots, dashes, and underscores")
    return text


def consumer_group(text: str) -> str:
    """Return the name of a consumer group. Raises `InvalidValue`."""
    if not re.fullmatch(r"\$Default|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?", text):
        raise InvalidValue('the name of a consumer group, for example "$Default"')
    return text


def custom_endpoint(text: str) -> str:
    """Return the URL to use instead of the namespace's name (private endpoint, gateway). Raises `InvalidValue`."""
    expected = 'a URL with only scheme, host, and port, for example "sb://10.1.2.3:5671"'
    parts = split_url(text if "//" in text else f"sb://{text}", ("sb", "amqps", "https"), expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or is_ipv6(parts.hostname or ""):
        raise InvalidValue(expected)
    return f"{parts.scheme}://{parts.netloc}"


def service_name(text: str) -> str:
    """Return OpenTelemetry's `service.name`, any non-empty text. Raises `InvalidValue`."""
    if not text.strip():
        raise InvalidValue("a name")
    return text.strip()
