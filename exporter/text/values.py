"""Reads single values that a user wrote (addresses, names), and describes wrong values in errors.

Used for settings, the web-config file, command lines, and the simulator's scenarios. A reader raises `InvalidValue`
with the expected value, as a phrase that follows "expected". The caller adds the place of the value and, from
`describe`, the value found.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Iterable
from typing import Final

from exporter.secrets import (
    HIDDEN,
    is_connection_string,
    is_key,
    is_token,
    is_url,
    redact,
    unmasked,
    without_credentials,
)
from exporter.text.terminal import listed

_MAX_SHOWN: Final = 80  # characters of a value, in an error of one line
MAX_TEXT: Final = 4096
"""Maximum number of characters of a value. A longer value is rejected and not shown."""

_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_ADDRESS: Final = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]*)):([0-9]{1,5})")
_MAX_PORT: Final = 65535
_NEAR: Final = 0.75


A_PATH: Final = "a path"


class InvalidValue(ValueError):
    """An invalid value. The message is the expected value, and doesn't contain the value found."""


class Misplaced(InvalidValue):
    """A value that must not be shown, such as a secret in the wrong place. The message is a complete sentence."""


def refuse_secrets(value: object, instead_of: str) -> None:
    """Reject a connection string, key, or token that was given as a path, a name, or an address.

    In place of "a path" it also rejects a URL, which may contain a password. Raises `Misplaced`.
    """
    if not isinstance(value, str):
        return
    if is_connection_string(value):
        raise Misplaced(
            f"this is a connection string, not {instead_of}; put it in a separate file and set "
            "event_hubs.connection_string_file to its path, or put it in the environment"
        )
    if is_key(value):
        raise Misplaced(f"this is a key or a certificate, not {instead_of}; put it in a separate file and set its path")
    if is_token(value):
        raise Misplaced(f"this is a token, not {instead_of}; put it in otlp.headers or the environment")
    if instead_of == A_PATH and is_url(value):
        raise Misplaced("this is a URL, not a path; set the path of a file on this machine")


def refuse_misplaced(text: str, instead_of: str) -> None:
    """Reject a secret, and text with control characters, in place of a path or a name. Raises `Misplaced`."""
    refuse_secrets(text, instead_of)
    if _CONTROL_CHARACTERS.search(text):
        raise Misplaced(f"expected {instead_of} on one line, found control characters (value not shown)")


def quote(text: str) -> str:
    """Return the text as a TOML basic string: with JSON's escapes, and DEL escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def describe(value: object) -> str:
    """Return a wrong value for an error: short, on one line, without credentials; with its type if not a string."""
    if isinstance(value, str):
        return _describe_text(value)
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int):
        return f"the integer {value}" if abs(value) < 10**20 else "a very long integer"
    if isinstance(value, float):
        return f"the number {value}"
    return "an empty list" if value == [] else describe_type(value)


def _describe_text(text: str) -> str:
    if len(text) > MAX_TEXT:
        return f"a string of {len(text)} characters (not shown)"
    if _CONTROL_CHARACTERS.search(text):
        return "a string with control characters (not shown)"
    clean = without_credentials(text)
    secret = is_connection_string(text) or is_key(text) or is_token(text)
    if secret or (HIDDEN not in clean and redact(unmasked(text)) != unmasked(text)):
        return "a string that looks like a secret (not shown)"
    shown = quote(clean[:_MAX_SHOWN]) if clean.isprintable() else ascii(clean[:_MAX_SHOWN])
    return shown + ("..." if len(clean) > _MAX_SHOWN else "")


def describe_type(value: object) -> str:
    """Return the TOML type of a value that must not be shown."""
    names = (
        (str, "a string"),
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a number"),
        (dict, "a table"),
        (list, "a list"),
    )
    return next((name for cls, name in names if isinstance(value, cls)), "a date or time")


def is_host_name(text: str) -> bool:
    """Return whether this can be a host name or an IPv4 address; false for an IPv6 address."""
    return _HOST_NAME.fullmatch(text) is not None


def is_ipv6(text: str) -> bool:
    """Return whether this is an IPv6 address, without brackets."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[::]:port`, or `:port`; host "": every address. Raises `InvalidValue`."""
    expected = '"host:port", "[::]:port" or ":port", such as "0.0.0.0:10169"'
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[3]) > _MAX_PORT:
        raise InvalidValue(expected)
    if match[1] is not None and not is_ipv6(match[1]):
        raise InvalidValue(expected)
    if match[2] and not is_host_name(match[2]):
        raise InvalidValue(expected)
    return match[1] or match[2] or "", int(match[3])


def near_miss(word: str, known: Iterable[str]) -> str:
    """Return a hint at the most similar known word, for the end of a sentence; "" if none is similar."""
    near = nearest(word, known, _NEAR)
    return f" (did you mean {quote(near)}? words match exactly)" if near else ""


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the most similar known word, ignoring case; "" if none has the `likeness` (1: the same word)."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(word.strip().lower(), by_lower_case, 1, likeness)
    return by_lower_case[near[0]] if near else ""


def unknown_word(what: str, word: str, known: Iterable[str]) -> str:
    """Return the error for an unknown word of a command line, with the most similar word and a list of all."""
    names = list(known)
    near = nearest(word, names)
    hint = f"; did you mean {near}?" if near else ""
    return f"unknown {what} {describe(word)}{hint}\nExpected one of:\n{listed(names)}"


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return the error for an unknown section, key, or variable, with the most similar name, or else all names."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else "expected one of " + ", ".join(names)
    return f"unknown {what} {describe(name)}; {hint}"
