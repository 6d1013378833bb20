"""Protection of secrets: a type that never prints its value, and the removal of credentials from foreign text."""

from __future__ import annotations

import base64
import contextlib
import hmac
import html
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn
from urllib.parse import quote, unquote

HIDDEN = "<secret>"
_SHORTEST: Final = 4
"""Characters. Hiding a shorter secret would hide ordinary words."""
_SHORTEST_INSIDE: Final = 6
"""Characters. A shorter secret is hidden only as a whole word: otherwise parts of ordinary words would be hidden."""


class Secret:
    """A string that always prints as `<secret>`. Only `reveal()` returns the value.

    Equal by value (compared in constant time), false when empty. It can't be pickled, serialized to JSON, or iterated,
    so that it isn't exposed by accident.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value. Don't keep it in variables that get logged."""
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


# Each pattern keeps its first group (the name of the credential, so that a reader knows what was hidden) and hides the
# rest up to where the secret can end, usually the end of the line. All are linear: no nested repetition and no
# unbounded search, since they run on text from outside. A character may be percent-encoded, also more than once (`%3D`,
# `%253D`).
_NAMED = (
    r"SharedAccessKey|SharedAccessSignature|AccountKey|client[-_]?secret|password|passwd|pwd|"
    r"(?:access|refresh|id)[-_]?token|x?-?api[-_]?key|"
    r"(?:primary|secondary|master|subscription|account|private|secret)[-_]?key|"
    r"authorization|\bcookie"
)
_EQUALS = (
    r"(?:\\{0,2}[\"']?\s{0,4}(?:[:=]|%(?:25){0,3}3[AD])(?:\s|\+|%(?:25){0,3}20){0,64}\\{0,2}[\"']?"
    r"|[\"']\s{0,4},\s{0,4})"  # in a tuple
)
_START = r"(?:(?<![A-Za-z0-9_])|(?<=%[0-9A-Fa-f]{2}))"
_WRAPPED = r"(?:[\r\n]{1,2}[ \t]{0,64}[A-Za-z0-9+/]{8,}={0,2}(?=[\s;]|\Z))*"
"""Further lines of a key."""
_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # A key or certificate, to its end or the text's; and the body of a key without its first line.
        r"(-{3,5}\s{0,4}BEGIN)(?:(?!-----END)[\s\S])*(?:-----END[^-]{0,64}-{0,5})?",
        r"(\bM(?:II|IG|Hc|Fk|C4)[A-Za-z0-9])[A-Za-z0-9+/]{40,}={0,2}",
        r"((?<![A-Za-z0-9])(?-i:eyJ))[A-Za-z0-9_-]{8,}[A-Za-z0-9_.%+/=-]*",  # a JSON Web Token [RFC 7519, 3]
        r"([?&#](?:[A-Za-z0-9_.-]{0,32}[_.-])?(?:token|key|code|auth|secret|signature|credential|jwt)=)\S+",
        r"((?:" + _NAMED + r"|\btoken(?==))" + _EQUALS + r"(?:b[\"'])?(?:(?:bearer|basic)\s)?)[^\r\n]+" + _WRAPPED,
        r"(" + _START + r"(?:bearer|basic)(?::\s{0,4}|\s{1,4}|%20|\+))\S{6,}",
        r"(" + _START + r"sig(?:=|%(?:25){0,3}3D))\S+",
    )
)
_LINE = re.compile(r"[^\r\n]+")
_WORD = re.compile(r"\S+")
_QUOTED = re.compile(r"[^\s\"']+")
_PARAMETER = re.compile(r"=\s*\"?([^\s\",;=]+)")
"""The value of a parameter of a header: `name=value`, `name="value"`."""
_COLON = re.compile(r"(?<=[A-Za-z0-9._~+-]):(?!/|\\)")
_ENCODINGS = 3
_AT = re.compile(r"@|%(?:25){0,3}40")
_SLASH = r"(?:[/\\]|%(?:25){0,3}(?:2F|5C))"
_URL = re.compile(
    rf"(?<=[A-Za-z0-9+.-][A-Za-z0-9+.-])(?::|%(?:25){{0,3}}3A){_SLASH}{{1,8}}|(?<![^\s\"'=(<\[,])//", re.IGNORECASE
)
"""The position where the user of a URL may begin. A path library may have removed a slash, or turned it into a
backslash, which `repr` doubles; a single letter before the colon is a drive."""
_USER = re.compile(r"[^\s:%]{0,256}(?::|%(?:25){0,3}3A)(?!\d{1,5}(?:[/?#\s]|\Z))\S", re.IGNORECASE)
"""A user and the beginning of a password, which may contain any character; not a host and its port."""
_QUERY = re.compile(r"[?#]|%(?:25){0,3}(?:3F|23)", re.IGNORECASE)
_SCHEME = re.compile(r"(?:https?|sb|amqps?|grpc)://")
_PEM = re.compile(r"-{3,5}\s{0,4}BEGIN\b|\bM(?:II|IG|Hc|Fk|C4)[A-Za-z0-9+/]{41}", re.IGNORECASE)
_TOKEN = re.compile(r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.")
_CONNECTION_STRING = re.compile(
    r"(?:Shared\s?Access\s?Key(?:Name)?|SharedAccessSignature|AccountKey)\s{0,4}(?:=|%(?:25){0,3}3D)"
    r"|SharedAccessSignature\s{1,4}s"
    r"|\A\W{0,4}Endpoint\s{0,4}(?:=|%(?:25){0,3}3D)\s{0,4}(?:sb|amqps?)\b",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Remove the credentials of connection strings, SAS tokens, URLs, and HTTP headers from `text`."""
    text = _hide(text)
    return _WORD.sub(_hide_encoded, text) if "%" in text else text


def _hide(text: str) -> str:
    if "@" in text or "%" in text:
        text = _QUOTED.sub(_hide_password, _LINE.sub(_hide_users, text))
    return _hide_named(text)


def _hide_named(text: str) -> str:
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: match.group(1) + HIDDEN, text)
    return text


def _hide_users(match: re.Match[str]) -> str:
    """Hide the text between the beginning of a URL and the last `@` of its word.

    If a user and a password begin there, hide up to the line's last `@`, since a password may contain a space.
    """
    line = match[0]
    last = _last_at(line)
    for begin in _URL.finditer(line, 0, max(last, 0)):
        if _USER.match(line, begin.end()):
            line = _without(line, begin.end(), last)
            break
    return _WORD.sub(_hide_user, line) if last >= 0 else line


def _hide_user(match: re.Match[str]) -> str:
    word = match[0]
    last = _last_at(word)
    begin = _URL.search(word, 0, max(last, 0))
    return _without(word, begin.end(), last) if begin and begin.end() < last else word


def _without(text: str, begin: int, end: int) -> str:
    """Replace a range with the placeholder; also the rest, if the range names a credential that may contain an `@`."""
    hidden = text[begin:end] + "continued"
    return text[:begin] + HIDDEN + (text[end:] if _hide_named(hidden) == hidden else "")


def _last_at(text: str) -> int:
    """Return the position of the last `@`; -1 without one."""
    return max((at.start() for at in _AT.finditer(text)), default=-1)


def _hide_password(match: re.Match[str]) -> str:
    """Hide the text between a colon and the last `@` of a word; the colon of `://` doesn't count."""
    word = match[0]
    at = word.rfind("@")
    colon = _COLON.search(word, 0, max(at, 0))
    if colon is None or not (word[at + 1 : at + 2].isalnum() or word[at + 1 : at + 2] == "["):
        return word
    return _without(word, colon.end(), at)


def _hide_encoded(match: re.Match[str]) -> str:
    """Hide a percent-encoded word that contains a credential once it is decoded."""
    word = match[0]
    if HIDDEN in word or "%" not in word:
        return word
    plain = decoded(word)
    return HIDDEN if _hide(plain) != plain else word


def decoded(text: str) -> str:
    """Return the text without percent-encoding, even if it was encoded more than once."""
    for _ in range(_ENCODINGS):
        text = unquote(text)
    return text


def unmasked(text: str) -> str:
    """Return the text as a reader sees it: decoded, in compatibility form (NFKC), without invisible characters."""
    plain = unicodedata.normalize("NFKC", decoded(text))
    return "".join(ch for ch in plain if ch.isprintable() or ch.isspace())


def is_connection_string(text: str) -> bool:
    """Return whether this is a connection string, a SAS token, or a part; never for a path, name, or address."""
    return any(_CONNECTION_STRING.search(form) for form in (text, unmasked(text)))


def is_key(text: str) -> bool:
    """Return whether this is a PEM key or certificate, or the body of one; never for a path, name, or address."""
    return any(_PEM.search(form) for form in (text, decoded(text)))


def is_token(text: str) -> bool:
    """Return whether this is a JSON Web Token; never for a path, name, or address."""
    return any(_TOKEN.search(form) for form in (text, decoded(text)))


def is_url(text: str) -> bool:
    """Return whether this is a URL; never for a path, including `//server/share`."""
    return any(re.match(r"\W{0,4}[A-Za-z][A-Za-z0-9+.-]+:[/\\]", form) for form in (text, unmasked(text)))


def without_credentials(value: str) -> str:
    """Remove everything that can be a credential from a value that may be a URL.

    That is the part before the last `@`, except a known scheme, and the part after the first `?` or `#` behind that: a
    password may contain any of them.
    """
    _, at, rest = value.rpartition(marks[-1]) if (marks := _AT.findall(value)) else ("", "", value)
    head = _SCHEME.match(value) if at else None
    before = (head[0] if head else "") + HIDDEN if at else ""
    address, mark, _ = rest.partition(query[0]) if (query := _QUERY.search(rest)) else (rest, "", "")
    return redact(before + at + address + (mark + HIDDEN if mark else ""))


def header_secrets(value: str) -> tuple[Secret, ...]:
    """Return the parts of an HTTP header's value that are secret by themselves: the peer may repeat only one of them.

    These are the whole value, the part after its scheme, its last word, the values of its parameters, and the user and
    password that a word encodes (RFC 7617), and from those the password, or the user if there is no password.
    """
    words = (value.partition(" ")[2].strip(), value.rpartition(" ")[2], *_PARAMETER.findall(value))
    found = [value, *words]
    for word in words:
        found.append(word.rstrip("="))
        if pair := _decoded_pair(word):
            user, _, password = pair.partition(":")
            found += (pair, password or user)
    return tuple(Secret(part) for part in dict.fromkeys(found) if part)


def _decoded_pair(word: str) -> str:
    """Return the readable text that a word encodes in base64; "" if none."""
    try:
        data = base64.b64decode(word.rstrip("=") + "=" * (-len(word.rstrip("=")) % 4), validate=True)
    except ValueError:
        return ""
    for encoding in ("utf-8", "latin-1"):
        with contextlib.suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            return text if text.isprintable() else ""
    return ""


class Sieve:
    """A filter that removes these secrets from a text, plain or encoded, and everything that looks like a credential.

    It ignores secrets shorter than `shortest` characters.
    """

    def __init__(self, secrets: Iterable[Secret], shortest: int = _SHORTEST) -> None:
        values = sorted({secret.reveal() for secret in secrets}, key=len, reverse=True)  # a part never hides the whole
        forms = [form for value in values if len(value) >= shortest for form in _forms(value)]
        self._pattern = re.compile("|".join(forms)) if forms else None
        self._longest = max((len(quote(value, safe="")) for value in values), default=0)

    def __call__(self, text: str, most: int | None = None) -> str:
        """Return the first `most` characters of the text, with a placeholder for each secret that begins there."""
        most = len(text) if most is None else most
        parts: list[str] = []
        text, at = text[: most + self._longest], 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if match.start() >= most:
                break
            parts += (text[at : match.start()], HIDDEN)
            at = match.end()
        return redact("".join((*parts, text[at:most])))


def _forms(value: str) -> Iterator[str]:
    """Yield the patterns of a secret: as it is, as quoted in JSON or HTML, and percent-encoded."""
    bounds = ("", "") if len(value) >= _SHORTEST_INSIDE else (r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])")
    encoded = re.sub(r"%..", r"(?i:\g<0>)", re.escape(quote(value, safe="")))
    quoted = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], html.escape(value)}
    yield from (form.join(bounds) for form in (*map(re.escape, sorted(quoted, key=len, reverse=True)), encoded))
