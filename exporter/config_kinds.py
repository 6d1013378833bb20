"""The kinds of value a setting can have: each reads text (flag, environment) and TOML, and writes itself as TOML.

A kind raises `Unfit` with what it expected, worded to follow "expected"; what was found is said by the caller, who
knows whether it may be shown.
"""

from __future__ import annotations

import argparse
import json
import ntpath
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from exporter.config_secrets import HIDDEN, Secret, is_connection_string, is_key, redact, unmasked, without_credentials

_UNITS_MS = (
    ("y", 31_536_000_000),
    ("w", 604_800_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
)
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,12}}){unit})?" for unit, _ in _UNITS_MS))
_MAX_TEXT = 4096
_BREAKS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_MAX_SHOWN = 80  # of a value, in an error of one line


class Unfit(ValueError):
    """A value is not what a setting takes: the message says what was expected, `found` which part of it is wrong."""

    def __init__(self, expected: str, found: object = None) -> None:
        super().__init__(expected)
        self.found = found


class Misplaced(Unfit):
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
        """The value of a flag or an environment variable. Raises `Unfit`."""

    def from_toml(self, value: object) -> Any:
        """The value of a TOML key. Raises `Unfit`."""

    def show(self, value: Any) -> str:
        """The value as one would write it in the TOML file; secrets as a placeholder."""


def parse_duration(text: str) -> float:
    """Seconds of a duration as Prometheus writes it: `100ms`, `1m30s`, `2h`, `0`. Raises `Unfit`."""
    if text == "0":
        return 0.0
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise Unfit('a duration such as "100ms", "1s" or "1m30s"')
    milliseconds = sum(int(match[unit] or 0) * size for unit, size in _UNITS_MS)
    return milliseconds / 1000


def format_duration(seconds: float) -> str:
    """A duration as Prometheus writes it, to the millisecond; years and weeks only when nothing is left over."""
    left = round(seconds * 1000)
    if left == 0:
        return "0s"
    parts = []
    for unit, size in _UNITS_MS:
        if unit in ("y", "w") and left % size:
            continue
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


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
    """A string, checked and perhaps rewritten by `check`, which raises `Unfit`. Empty passes when `optional`."""

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
            raise Unfit("a string")
        return self.from_text(value)

    def show(self, value: str) -> str:
        return quote(value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a closed set of words."""

    words: Sequence[str]

    def from_text(self, text: str) -> str:
        if text not in self.words:
            raise Unfit("one of " + ", ".join(quote(word) for word in self.words))
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
        except Unfit:
            raise Unfit(
                f'{self.expected}, such as "{format_duration(max(self.minimum, min(self.maximum, 30)))}"'
            ) from None
        if not self.minimum <= seconds <= self.maximum:
            raise Unfit(self.expected)
        return seconds

    def from_toml(self, value: object) -> float | None:
        if not isinstance(value, str):
            raise Unfit(f"{self.expected}, as a string with a unit")
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
            raise Unfit(self.expected)
        return self.from_toml(int(text))

    def from_toml(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise Unfit(self.expected)
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
            raise Unfit(self.expected)
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

    Raises `Unfit` for no path at all.
    """
    if not path:
        raise Unfit("a path")
    return path if is_absolute(path) else os.path.abspath(path)
