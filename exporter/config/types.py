"""The kinds of value a setting can have: each reads what the TOML file has, and shows itself as that.

A kind raises `InvalidValue` with what it expected, worded to follow "expected"; `sources` adds where the value was
given and what was found, unless that must not be shown.
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

KNOWN_API_VERSIONS: Final = (
    "2017-03-01",
    "2017-08-01",
    "2017-11-01",
    "2019-01-01",
    "2019-04-01",
    "2019-08-01",
    "2020-07-01",
)
"""The api-versions of Scheduled Events that Microsoft documents [Endpoint discovery, Version history]."""

SINGLE_QUOTES: Final = r"a path with backslashes stands in single quotes, such as 'C:\temp\outbox.db'"
"""What to do where TOML took the backslashes of a path for escapes."""
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
"""What an escape of TOML that nobody meant leaves in a path: \\t of "C:\\temp" is a tab [TOML, String; YAML, 5.7]."""

_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_MAX_WORDS: Final = 20
_MAX_HEADERS: Final = 64
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
"""A token [RFC 9110, 5.6.2]."""


class SettingType:
    """How one kind of value is read and shown."""

    @property
    def word(self) -> str:
        """What stands for a value in `--help`, such as DURATION."""
        raise NotImplementedError

    def parse(self, text: str) -> object:
        """What a flag or a variable would be in the TOML file."""
        return text

    def read(self, value: object) -> Any:
        """The setting of a TOML value. Raises `InvalidValue`."""
        raise NotImplementedError

    def show(self, value: Any) -> str:
        """The setting as one would write it in the TOML file; secrets as a placeholder."""
        return quote(str(value))


@dataclass(frozen=True)
class Text(SettingType):
    """A string, checked and perhaps rewritten by `check`, which raises `InvalidValue`. Empty passes when `optional`."""

    expected: str = "a string"
    check: Callable[[str], str] = str
    optional: bool = False
    path: bool = False
    word: str = "NAME"

    def read(self, value: object) -> str:
        """The checked text. Raises `Misplaced` for a secret, and for what could not be shown on one line."""
        if not isinstance(value, str):
            raise InvalidValue("a string")
        refuse_secrets(value, "a path" if self.path else "what belongs here")
        if self.path:
            refuse_escapes(value)
        if len(value) > MAX_TEXT or not value.isprintable():
            raise Misplaced(
                f"expected {self.expected}, without control characters, at most {MAX_TEXT} characters; what was found "
                "is not shown"
            )
        return self.check(value) if value or not self.optional else ""


@dataclass(frozen=True)
class Choice(SettingType):
    """One of a closed set of words: the members of an enumeration, or plain strings."""

    words: Iterable[str]

    @property
    def word(self) -> str:
        """The words themselves."""
        return "|".join(map(str, self.words))

    def read(self, value: object) -> str:
        """The member that is written so."""
        for word in self.words:
            if word == value:
                return word
        raise InvalidValue("one of " + ", ".join(quote(str(word)) for word in self.words))


@dataclass(frozen=True)
class Duration(SettingType):
    """Seconds as a float, written as Prometheus does; None is written `never` where that is allowed."""

    minimum: float
    maximum: float
    never: bool = False

    @property
    def word(self) -> str:
        """With the word for none where there is one."""
        return "never|DURATION" if self.never else "DURATION"

    def read(self, value: object) -> float | None:
        """Seconds within the bounds, or None for never. A number would leave its unit open."""
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
            raise InvalidValue(f'{expected}, such as "{example}"') from None
        if not self.minimum <= seconds <= self.maximum:
            raise InvalidValue(expected)
        return seconds

    def show(self, value: float | None) -> str:
        """A TOML string."""
        return quote("never" if value is None else format_duration(value))


@dataclass(frozen=True)
class Integer(SettingType):
    """A whole number within bounds, without a unit. `what` says in an error what is counted."""

    minimum: int
    maximum: int
    what: str = "an integer"
    word: str = "N"

    @property
    def expected(self) -> str:
        """What an error says was expected."""
        return f"{self.what} from {self.minimum} to {self.maximum}"

    def parse(self, text: str) -> object:
        """A number for decimal digits alone."""
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else text

    def read(self, value: object) -> int:
        """The number within the bounds; a boolean is none."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise InvalidValue(self.expected)
        return value

    def show(self, value: int) -> str:
        """A TOML integer."""
        return str(value)


@dataclass(frozen=True)
class Size(Integer):
    """Bytes within bounds: a whole number of them, or with a unit, MB for 10^6 and MiB for 2^20 of them."""

    word: str = "SIZE"

    @property
    def expected(self) -> str:
        """What an error says was expected."""
        bounds = f"a size from {format_size(self.minimum)} to {format_size(self.maximum)}"
        return f'{bounds}, such as "100MB" (10^6 bytes each), "100MiB" (2^20) or a number of bytes'

    def read(self, value: object) -> int:
        """The bytes within the bounds, of a TOML string or integer."""
        try:
            return super().read(parse_size(value) if isinstance(value, str) else value)
        except ValueError:
            raise InvalidValue(self.expected) from None

    def show(self, value: int) -> str:
        """A TOML string with a unit, or an integer where no unit is exact."""
        shown = format_size(value)
        return shown if shown.isdecimal() else quote(shown)


@dataclass(frozen=True)
class Words(SettingType):
    """Any words, in the order in which they were given, each once: a TOML list, or as text with commas in between.

    `known` are those that this version knows. Others are taken, since Azure may add some; `load` warns of them.
    """

    known: tuple[str, ...]
    word: str = "NAME,NAME"

    def parse(self, text: str) -> object:
        """The words between commas; spaces around them, and nothing between two commas, count for nothing."""
        return [word.strip() for word in text.split(",") if word.strip()]

    def read(self, value: object) -> tuple[str, ...]:
        """The words of a TOML list, which may be empty."""
        if not isinstance(value, list):
            raise InvalidValue(f"a list of words, such as {self.show(self.known[:2])}")
        for word in value:
            refuse_secrets(word, "a word")
        return self._checked(value)

    def _checked(self, words: list[object]) -> tuple[str, ...]:
        found = [word for word in words if isinstance(word, str) and _WORD.fullmatch(word)]
        if len(found) < len(words) or len(words) > _MAX_WORDS:
            raise InvalidValue(
                f"at most {_MAX_WORDS} words of letters, digits, dots and dashes, such as {self.show(self.known[:2])}"
            )
        return tuple(dict.fromkeys(found))

    def show(self, value: tuple[str, ...]) -> str:
        """A TOML list."""
        return f"[{', '.join(map(quote, value))}]"


@dataclass(frozen=True)
class TagNames(Words):
    """Names of VM tags, in the order in which they were given, each once; each gives a label of its own.

    One that has a comma can only be given in the file.
    """

    known: tuple[str, ...] = ("owner", "environment")

    def parse(self, text: str) -> object:
        """The names between commas, without the spaces around them: one that is empty is kept, and refused."""
        return [name.strip() for name in text.split(",")] if text.strip() else []

    def _checked(self, words: list[object]) -> tuple[str, ...]:
        labels: dict[str, str] = {}
        for word in words:
            if not isinstance(word, str) or not word.strip() or len(word) > MAX_TAG_NAME or not word.isprintable():
                raise InvalidValue(f"names of VM tags, none of them empty, such as {self.show(self.known)}")
            same = [other for other in labels.values() if other != word and other.lower() == word.lower()]
            if same:
                raise InvalidValue(f"names of different tags: Azure takes {quote(same[0])} and {quote(word)} for one")
            other = labels.setdefault(tag_label(word), word)
            if other != word:
                raise InvalidValue(
                    f"names with labels of their own, and {quote(other)} and {quote(word)} are both {tag_label(word)}"
                )
        if len(labels) > MAX_TAGS:
            raise InvalidValue(f"at most {MAX_TAGS} names of VM tags")
        return tuple(labels.values())


@dataclass(frozen=True)
class Hidden(SettingType):
    """A secret text. What was found is never shown, not even when it is wrong."""

    word: str = "SECRET"

    def read(self, value: object) -> Secret:
        """The secret without white space around it."""
        if not isinstance(value, str):
            raise InvalidValue("a string")
        return Secret(value.strip())

    def show(self, value: Secret) -> str:
        """A TOML string that is a placeholder, empty where there is no secret."""
        return quote(str(value)) if value else '""'


@dataclass(frozen=True)
class Headers(SettingType):
    """HTTP headers with secret values: `name=value,name=value` with percent-encoded values, or a TOML table."""

    word: str = "SECRET"

    def read(self, value: object) -> tuple[tuple[str, Secret], ...]:
        """Names in lower case with their values. A string is read as OTEL_EXPORTER_OTLP_HEADERS [OTLP exporter]."""
        if isinstance(value, str):
            parts = [part.partition("=") for part in value.split(",") if part.strip()]
            if not all(equals for _, equals, _ in parts):
                raise InvalidValue('headers as "name=value,name=value"')
            value = {unquote(name.strip()): unquote(text.strip()) for name, _, text in parts}
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise InvalidValue('a table of strings or "name=value,name=value"')
        headers: dict[str, Secret] = {}
        for name, item in value.items():
            if not _HEADER_NAME.fullmatch(name):
                raise InvalidValue("header names of letters, digits and dashes")
            if not item.isascii() or not item.isprintable():
                raise InvalidValue("header values of printable ASCII, on one line")
            headers[name.lower()] = Secret(item.strip())
        if len(headers) > _MAX_HEADERS:
            raise InvalidValue(f"at most {_MAX_HEADERS} headers")
        return tuple(headers.items())

    def show(self, value: tuple[tuple[str, Secret], ...]) -> str:
        """A TOML table whose values are placeholders."""
        return "{ " + ", ".join(f'"{name}" = "{HIDDEN}"' for name, _ in value) + " }" if value else "{}"


def refuse_escapes(path: str) -> None:
    """Refuse a path of a TOML or YAML file in which a backslash was taken for an escape. Raises `Misplaced`."""
    if _ESCAPED.search(path):
        raise Misplaced(
            "expected a path, found control characters: between double quotes a backslash begins an escape, and "
            f"\\t is a tab; {SINGLE_QUOTES}"
        )


def path_argument(text: str) -> str:
    """A path on the command line of a command. Raises `argparse.ArgumentTypeError` for a secret."""
    return _argument(text, "a path")


def word_argument(text: str) -> str:
    """A name or a word on the command line of a command. Raises `argparse.ArgumentTypeError` for a secret."""
    return _argument(text, "what belongs here")


def _argument(text: str, instead_of: str) -> str:
    try:
        refuse_misplaced(text, instead_of)
    except Misplaced as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def is_absolute(path: str, platform: str = sys.platform) -> bool:
    """Absolute where the agent runs. On Linux also as on Windows: a file is often checked elsewhere than where it runs.

    On Windows a path without its drive is none: it depends on the drive that is current.
    """
    if platform == "win32":
        return is_fixed(path)
    return posixpath.isabs(path) or bool(ntpath.splitdrive(path)[0] and ntpath.isabs(path))


def absolute_path(path: str, platform: str = sys.platform) -> str:
    """A path that means the same file whatever the working directory becomes: a relative one is of the present one.

    Raises `InvalidValue` for no path at all.
    """
    if not path:
        raise InvalidValue("a path")
    return path if is_absolute(path, platform) else os.path.abspath(path)


def file_path(path: str, platform: str = sys.platform) -> str:
    r"""As `absolute_path`, for a file that more depends on than an error when it is read.

    On Windows it raises `InvalidValue` for a path that is neither plainly relative nor absolute (`\name` is of the
    current drive, `C:name` of the working directory of that drive), and for a name by which another file is found.
    """
    if platform == "win32":
        if not is_absolute(path, platform) and (ntpath.splitdrive(path)[0] or path.startswith(("/", "\\"))):
            raise InvalidValue(r"a path with its drive, such as 'C:\ProgramData\app\file'")
        if path and not is_own_name(path):
            raise InvalidValue(
                "a path that Windows knows by this name alone: no device such as NUL, no dot or space at "
                'its end, no 8.3 name, none of : * ? " < > |'
            )
    return absolute_path(path, platform)


def folder_path(path: str, platform: str = sys.platform) -> str:
    """As `file_path`, for a folder, which may end in a separator."""
    return file_path(path.rstrip("\\/") if platform == "win32" else path, platform)


def local_path(path: str, platform: str = sys.platform) -> str:
    """As `file_path`, for the outbox. On Windows it raises `InvalidValue` for a share as well."""
    checked = file_path(path, platform)
    if platform == "win32" and is_on_network(checked):
        raise InvalidValue(f"a path on a drive of this machine: {NO_SHARE}")
    return checked


def split_url(text: str, schemes: tuple[str, ...], expected: str) -> SplitResult:
    """A URL with a host and a usable port. Raises `InvalidValue` with `expected`, which never repeats the URL."""
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
    """Whether what is sent to this host stays on this machine."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def source_url(text: str) -> str:
    """The metadata service's base: scheme, host and port alone, without a slash at the end. Raises `InvalidValue`."""
    expected = 'an http or https URL without path, query or user, such as "http://169.254.169.254"'
    parts = split_url(text, ("http", "https"), expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or text.endswith(("?", "#")):
        raise InvalidValue(expected)
    return f"{parts.scheme}://{parts.netloc}"


def dashboard_url(text: str) -> str:
    """The address of a dashboard, as given, perhaps with `{vm_name}` and `{resource_group}` in its path, query or
    fragment. Raises `InvalidValue`."""
    expected = 'an http or https URL without user, such as "https://grafana.example/d/vm?var-instance={vm_name}"'
    parts = split_url(text, ("http", "https"), expected)
    if "@" in parts.netloc or any(char in re.sub(r"{(vm_name|resource_group)}", "", text) for char in '{}"<>\\^`|'):
        raise InvalidValue(expected)
    return text


def otlp_base(text: str) -> str:
    """A collector's base URL, as given; `otlp.logs_url` appends /v1/logs. Raises `InvalidValue`."""
    expected = 'an http or https URL without query, such as "http://127.0.0.1:4318"'
    parts = split_url(text, ("http", "https"), expected)
    if parts.query or parts.fragment:
        raise InvalidValue(expected)
    return text


def otlp_exact(text: str) -> str:
    """A collector's whole URL for logs, used as is; without a path it means the root [OTLP exporter, Endpoint URLs].

    Raises `InvalidValue`.
    """
    parts = split_url(text, ("http", "https"), 'an http or https URL, such as "http://127.0.0.1:4318/v1/logs"')
    if parts.fragment:
        raise InvalidValue("a URL without a fragment")
    return text if parts.path else parts._replace(path="/").geturl()


def api_version(text: str) -> str:
    """A calendar date as Azure writes its api-versions. Raises `InvalidValue`."""
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise InvalidValue('a date such as "2020-07-01"') from None
    return text


def listen_address(text: str) -> str:
    """An address to listen on, as given. Raises `InvalidValue`."""
    split_address(text)
    return text


def namespace(text: str) -> str:
    """The host name of an Event Hubs namespace. Raises `InvalidValue`."""
    if not is_host_name(text) or "." not in text:
        raise InvalidValue(
            'a host name alone, without "sb://", port or slash, such as "contoso.servicebus.windows.net"'
        )
    return text


def hub_name(text: str) -> str:
    """The name of an event hub, by Azure's own rules. Raises `InvalidValue`."""
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,254}[A-Za-z0-9])?", text):
        raise InvalidValue("the name of an event hub: letters, digits, dots, dashes and underscores")
    return text


def consumer_group(text: str) -> str:
    """The name of a consumer group. Raises `InvalidValue`."""
    if not re.fullmatch(r"\$Default|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,48}[A-Za-z0-9])?", text):
        raise InvalidValue('the name of a consumer group, such as "$Default"')
    return text


def custom_endpoint(text: str) -> str:
    """Where to connect instead of the namespace's own name (a private endpoint, a gateway). Raises `InvalidValue`."""
    expected = 'a URL of scheme and host, such as "sb://10.1.2.3:5671"'
    parts = split_url(text if "//" in text else f"sb://{text}", ("sb", "amqps", "https"), expected)
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc or is_ipv6(parts.hostname or ""):
        raise InvalidValue(expected)
    return f"{parts.scheme}://{parts.netloc}"


def service_name(text: str) -> str:
    """OpenTelemetry's `service.name`: anything but nothing. Raises `InvalidValue`."""
    if not text.strip():
        raise InvalidValue("a name")
    return text.strip()
