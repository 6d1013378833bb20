"""What must never be printed: the type that secrets live in, and the sieve for text that others wrote."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import quote

HIDDEN = "<secret>"


class Secret:
    """A string that prints as `<secret>`, whoever prints it. Only `reveal()` gives the value.

    Equal by value (compared in constant time), false when empty. It can't be pickled, copied into JSON or iterated, so
    that it does not leave by accident.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself; keep it out of names that get logged."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(
            self._value.encode(errors="surrogatepass"), other._value.encode(errors="surrogatepass")
        )

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is never pickled or copied out of this process")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self


# Each pattern keeps its first group (the name of the thing, so that a reader knows what was there) and hides the rest.
# All are linear: no nested repetition and no unbounded search, since they run on text from outside. A character may
# stand there percent-encoded, also more than once (`%3D`, `%253D`).
_NAMED = (
    r"SharedAccessKey|SharedAccessSignature|AccountKey|client[-_]?secret|password|passwd|pwd|"
    r"(?:access|refresh|id)[-_]?token|x?-?api[-_]?key"
)
_EQUALS = r"\\{0,2}[\"']?\s{0,4}(?:[:=]|%(?:25){0,3}3[AD])(?:\s|\+|%(?:25){0,3}20){0,4}\\{0,2}[\"']?"
_START = r"(?:(?<![A-Za-z0-9_])|(?<=%[0-9A-Fa-f]{2}))"
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(://)[^/\s?#\"'@]*(?:@[^/\s?#\"'@]*)*(?=@)",
        # A password with a slash in it, and an address that a path library has taken a slash from.
        r"(:/{1,2}[^/\s?#\"'@:]{0,128}:)(?!\d{1,5}(?:[/\s?#\"']|$))[^\s\"'@]{1,512}(?=@)",
        r"(%(?:25){0,3}3A(?:%(?:25){0,3}2F){1,2})[^\s\"']{1,512}(?=%(?:25){0,3}40)",
        r"(authorization" + _EQUALS + r"(?:b[\"'])?(?:(?:bearer|basic|sharedaccesssignature)(?:\s|\+|%20))?)[^\s\"',]+",
        r"(" + _START + r"(?:bearer|basic)(?:\s{1,4}|%20|\+))[A-Za-z0-9._~+/=%-]{6,}",
        r"((?:" + _NAMED + r")" + _EQUALS + r")[^\s;\"',&]+",
        r"(" + _START + r"sig(?:=|%(?:25){0,3}3D))[^&\s;\"',]+",
    )
)
_CONNECTION_STRING = re.compile(
    r"(?:SharedAccessKey(?:Name)?|SharedAccessSignature|AccountKey)\s{0,4}(?:=|%(?:25){0,3}3D)"
    r"|SharedAccessSignature\s{1,4}s"
    r"|\A\W{0,4}Endpoint\s{0,4}(?:=|%(?:25){0,3}3D)\s{0,4}(?:sb|amqps?)\b",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """`text` without the credentials that connection strings, SAS tokens, URLs and HTTP headers carry."""
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: match.group(1) + HIDDEN, text)
    return text


def is_connection_string(text: str) -> bool:
    """Whether this is a connection string or a SAS token, whole or not: no path, name or address is any."""
    return _CONNECTION_STRING.search(text) is not None


class Sieve:
    """Takes these secrets out of a text, as they are or percent-encoded, and whatever else looks like a credential.

    Secrets of less than `shortest` characters are not looked for: they would blank out ordinary words. `longest` is how
    much of a text must be there for none to be cut before it is found.
    """

    def __init__(self, secrets: Iterable[Secret], shortest: int) -> None:
        values = [secret.reveal() for secret in secrets if len(secret.reveal()) >= shortest]
        encoded = [re.sub(r"%..", r"(?i:\g<0>)", re.escape(quote(value, safe=""))) for value in values]
        self._pattern = re.compile("|".join([*map(re.escape, values), *encoded])) if values else None
        self.longest = max((len(quote(value, safe="")) for value in values), default=0)

    def __call__(self, text: str) -> str:
        return redact(self._pattern.sub(HIDDEN, text) if self._pattern else text)
