"""Single values as people write them: addresses, names, and what an error may show of a wrong value.

For every room that reads values which a person wrote: the settings, the web-config file, the command lines, the
simulator's scenarios. A reader raises `InvalidValue` with what it expected, worded to follow "expected"; the caller
adds where the value was given and, through `describe`, what was found there.
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
"""Characters of a value. A longer one is refused, and never shown."""

_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
_ADDRESS: Final = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]*)):([0-9]{1,5})")
_MAX_PORT: Final = 65535
_NEAR: Final = 0.75


A_PATH: Final = "a path"


class InvalidValue(ValueError):
    """A value is not what is taken there. The message says what was expected, and nothing of what was found."""


class Misplaced(InvalidValue):
    """A value that must not be shown, such as a secret where none belongs. The message is a whole sentence."""


def refuse_secrets(value: object, instead_of: str) -> None:
    """Refuse a connection string, a key or a token that was given as a path, a name or an address, and a URL, which may
    hold a password, in place of "a path". Raises `Misplaced`."""
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
    if is_token(value):
        raise Misplaced(f"this is a token itself, not {instead_of}; it belongs into otlp.headers or the environment")
    if instead_of == A_PATH and is_url(value):
        raise Misplaced("this is a URL, not a path; give the path of a file on this machine")


def refuse_misplaced(text: str, instead_of: str) -> None:
    """Refuse what is neither a path nor a name: a secret, or a text with control characters. Raises `Misplaced`."""
    refuse_secrets(text, instead_of)
    if _CONTROL_CHARACTERS.search(text):
        raise Misplaced(f"expected {instead_of} on one line, found control characters in what is not shown")


def quote(text: str) -> str:
    """The text as a TOML basic string. JSON's escapes are TOML's, except that TOML also wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def describe(value: object) -> str:
    """A wrong value for an error: short, on one line, without credentials, with its type where that is wrong."""
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
        return f"a string of {len(text)} characters that is not shown"
    if _CONTROL_CHARACTERS.search(text):
        return "a string with control characters that is not shown"
    if is_connection_string(text) or is_key(text) or is_token(text):
        return "a string that is not shown, since it looks like a secret"
    clean = without_credentials(text)
    if HIDDEN not in clean and redact(unmasked(text)) != unmasked(text):
        return "a string that is not shown, since it looks like a secret"
    shown = quote(clean[:_MAX_SHOWN]) if clean.isprintable() else ascii(clean[:_MAX_SHOWN])
    return shown + ("..." if len(clean) > _MAX_SHOWN else "")


def describe_type(value: object) -> str:
    """The TOML type of a value that must not be shown."""
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
    """Whether this can be the name of a host, or its IPv4 address; an IPv6 address is none."""
    return _HOST_NAME.fullmatch(text) is not None


def is_ipv6(text: str) -> bool:
    """Whether this is an IPv6 address, without brackets."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[::]:port` or `:port`; an empty host is every address. Raises `InvalidValue`."""
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
    """The known word that was probably meant, for the end of a sentence; nothing where none is near."""
    near = nearest(word, known, _NEAR)
    return f" (did you mean {quote(near)}? words match exactly)" if near else ""


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """The known word that is most like this one (1 is the same), whatever the case; "" where none is like it."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(word.strip().lower(), by_lower_case, 1, likeness)
    return by_lower_case[near[0]] if near else ""


def unknown_word(what: str, word: str, known: Iterable[str]) -> str:
    """The sentence for a mistyped word of a command line, with the nearest that there is, and all of them below it."""
    names = list(known)
    near = nearest(word, names)
    hint = f"; did you mean {near}?" if near else ""
    return f"unknown {what} {describe(word)}{hint}\nThere are:\n{listed(names)}"


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a section, key or variable that does not exist, with the nearest that does."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else "expected one of " + ", ".join(names)
    return f"unknown {what} {describe(name)}; {hint}"
