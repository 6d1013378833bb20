"""What must never be printed: the type that secrets live in, and the sieve for text that others wrote."""

from __future__ import annotations

import hmac
import re
from typing import NoReturn

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
# All are linear: no nested repetition, since they run on text from outside.
_NAMED = r"SharedAccessKey|SharedAccessSignature|AccountKey|client_secret|password|passwd|access_token|x?-?api-?key"
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(://)[^/\s?#\"'@]*(?:@[^/\s?#\"'@]*)*(?=@)",
        r"(authorization[\"']?\s{0,4}[:=]\s{0,4}(?:b?[\"'])?(?:(?:bearer|basic|sharedaccesssignature)\s)?)[^\s\"',]+",
        r"(\b(?:bearer|basic)\s{1,4})[A-Za-z0-9._~+/=-]{6,}",
        r"(\b(?:" + _NAMED + r")[\"']?\s{0,4}[:=]\s{0,4}[\"']?)[^\s;\"',&]+",
        r"(\bsig(?:=|%3D))[^&\s;\"',]+",
    )
)


def redact(text: str) -> str:
    """`text` without the credentials that connection strings, SAS tokens, URLs and HTTP headers carry."""
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: match.group(1) + HIDDEN, text)
    return text
