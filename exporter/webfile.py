"""Reading a web-config file: its YAML, every key checked, all errors at once, no secret in any of them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from exporter.webtls import (
    CIPHERS,
    CLIENT_AUTH,
    CURVES,
    TLS13_CIPHERS,
    UNVERIFIED_CLIENT_AUTH,
    VERSIONS,
    TlsSettings,
    context_of,
)

MAX_BYTES: Final = 1 << 20

HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
"""The headers that may be set, and their values where they are a closed set."""

TLS_KEYS: Final = (
    "cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans",
    "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites", "curve_preferences",
)  # fmt: skip
BCRYPT_HASH: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
GO_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
GO_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`rate_limit`: seconds between two requests, and how many may come at once."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebSettings:
    """What a web-config file says. The default is a file that says nothing: plain HTTP, open to all."""

    tls: ssl.SSLContext | None = None
    certificate_pem: str = ""
    client_allowed_sans: frozenset[str] = frozenset()
    users: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    rate_limit: RateLimit | None = None


class Section:
    """One mapping of the file. What does not fit is reported to `errors` with file and key, and read as if absent."""

    def __init__(self, file: Path, name: str, value: object, errors: list[str]) -> None:
        self._file, self._name, self._errors = file, name, errors
        if value is not None and not isinstance(value, dict):
            self.wrong("", f"expected a mapping of keys to values, got {_kind(value)}")
        self.values: dict[object, Any] = value if isinstance(value, dict) else {}

    def wrong(self, key: object, sentence: str) -> None:
        """Report an error."""
        where = ".".join(part for part in (self._name, str(key)) if part)
        self._errors.append(f"{self._file}: {where}: {sentence}" if where else f"{self._file}: {sentence}")

    def only(self, *known: str) -> None:
        """Report every other key."""
        for key in self.values:
            if key not in known:
                self.wrong(key, f"unknown key, expected one of {', '.join(known)}")

    def text(self, key: str) -> str:
        """A string; "" when absent."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        self.wrong(key, f"expected a string, got {_kind(value)}")
        return ""

    def truth(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.wrong(key, f"expected true or false, got {_kind(value)}")
        return default

    def word(self, key: str, words: Mapping[str, object], default: str) -> str:
        """One of these words."""
        value = self.text(key) or default
        if value in words:
            return value
        self.wrong(key, f"expected one of {', '.join(words)}, got {value!r}")
        return default

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; () when absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        self.wrong(key, "expected a list of strings")
        return ()

    def words(self, key: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """A list of these words."""
        found = self.texts(key)
        for entry in found:
            if entry not in words:
                self.wrong(key, f"expected of {', '.join(words)}, got {entry!r}")
        return tuple(entry for entry in found if entry in words)


def read_web_file(path: Path) -> tuple[WebSettings | None, list[str], list[Path]]:
    """The settings, or None; every error as a sentence; and the files that were named, to be watched."""
    errors: list[str] = []
    files: list[Path] = []
    document = _load(path, errors)
    if errors:
        return None, errors, files
    root = Section(path, "", document, errors)
    root.only("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")

    def section(name: str) -> Section:
        return Section(path, name, root.values.get(name), errors)

    tls = _read_tls(section("tls_server_config"), path.parent, files)
    users, headers = _read_users(section("basic_auth_users")), _read_http(section("http_server_config"))
    rate_limit = _read_rate_limit(section("rate_limit"))
    context = None
    if tls is not None and not errors:
        try:
            context = context_of(tls)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; its text names the fault, never the key
            reason = getattr(error, "reason", None) or error
            errors.append(f"{path}: tls_server_config: certificate, key and client CA can't be used together: {reason}")
    if errors:
        return None, errors, files
    sans = tls.client_allowed_sans if tls else frozenset()
    return WebSettings(context, tls.certificate_pem if tls else "", sans, users, headers, rate_limit), errors, files


def _load(path: Path, errors: list[str]) -> object:
    import yaml  # noqa: PLC0415  # only where a web-config file is given

    class Strict(yaml.SafeLoader):
        """Refuses what YAML would let pass: a key that is given twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(problem="a key is no plain word", problem_mark=key_node.start_mark)
                if key_node.value in seen:
                    raise yaml.MarkedYAMLError(problem="a key is given twice", problem_mark=key_node.start_mark)
                seen.add(key_node.value)
            return super().construct_mapping(node, deep)

    text = read_text(path, errors, f"{path}")
    try:
        return yaml.load(text, Strict)  # noqa: S506  # a SafeLoader, and stricter
    except yaml.MarkedYAMLError as error:  # its own text may quote the file, hence a secret
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        errors.append(f"{path}: {where}expected YAML: {error.problem}")
    except (yaml.YAMLError, ValueError, RecursionError):
        errors.append(f"{path}: expected YAML")
    return None


def read_text(path: Path, errors: list[str], where: str) -> str:
    """A small text file; "" and an error when it can't be read."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            return data.decode("utf-8")
        errors.append(f"{where}: expected at most {MAX_BYTES} bytes")
    except OSError as error:
        errors.append(f"{where}: expected a readable file: {error.strerror or error}")
    except UnicodeDecodeError:
        errors.append(f"{where}: expected UTF-8 text")
    return ""


def _read_tls(section: Section, folder: Path, files: list[Path]) -> TlsSettings | None:
    section.only(*TLS_KEYS)
    if not section.values:
        return None
    certificate = _pem(section, "cert", folder, files, required=True)
    key = _pem(section, "key", folder, files, required=True)
    client_ca = _pem(section, "client_ca", folder, files, required=False)
    if section.text("client_auth_type") in UNVERIFIED_CLIENT_AUTH:
        sentence = "Python's ssl can't ask for a certificate without verifying it"
        section.wrong("client_auth_type", f"{sentence}, expected one of {', '.join(CLIENT_AUTH)}")
        return None
    client_auth = section.word("client_auth_type", CLIENT_AUTH, "NoClientCert")
    sans = section.texts("client_allowed_sans")
    if client_auth == "NoClientCert" and (client_ca or sans):
        section.wrong("client_auth_type", "expected a policy, since client_ca or client_allowed_sans is given")
    if client_auth != "NoClientCert" and not (section.text("client_ca") or section.text("client_ca_file")):
        section.wrong("client_ca_file", f"expected client_ca or client_ca_file with client_auth_type {client_auth}")
    curves = section.words("curve_preferences", tuple(CURVES))
    if len(set(curves)) not in (0, 1, len(CURVES)):
        section.wrong("curve_preferences", "Python's ssl offers one curve or all of them, expected one, or all four")
    low = section.word("min_version", VERSIONS, "TLS12")
    high = section.word("max_version", VERSIONS, "TLS13")
    if high < "TLS12":
        section.wrong("max_version", f"expected TLS12 or TLS13, {high} is not spoken any more (RFC 8996)")
    elif low > high:
        section.wrong("min_version", f"expected at most max_version {high}, got {low}")
    ciphers = section.words("cipher_suites", (*TLS13_CIPHERS, *CIPHERS))
    prefer = section.truth("prefer_server_cipher_suites", default=True)
    return TlsSettings(
        certificate,
        key,
        client_ca,
        client_auth,
        frozenset(sans),
        low,
        high,
        ciphers,
        tuple(dict.fromkeys(curves)),
        prefer,
    )


def _pem(section: Section, key: str, folder: Path, files: list[Path], *, required: bool) -> str:
    """The PEM text given by `key` itself or by the file that `key`_file names, relative to the config's folder."""
    inline, name = section.text(key), section.text(f"{key}_file")
    if inline and name:
        section.wrong(key, f"expected either {key} or {key}_file, got both")
    if not name:
        if required and not inline:
            section.wrong(f"{key}_file", f"missing, expected {key} or {key}_file")
        return inline
    path = folder / name
    files.append(path)
    problems: list[str] = []
    text = read_text(path, problems, str(path))
    for problem in problems:
        section.wrong(f"{key}_file", problem)
    return text


def _read_users(section: Section) -> dict[bytes, bytes]:
    users = {}
    for name, hashed in section.values.items():
        if not isinstance(name, str | int) or isinstance(name, bool) or not str(name) or ":" in str(name):
            section.wrong(name, "expected a user name without a colon")
        elif not isinstance(hashed, str) or not BCRYPT_HASH.fullmatch(hashed):
            section.wrong(name, "expected a bcrypt hash, such as `htpasswd -nBC 10 NAME` prints behind the colon")
        else:
            users[str(name).encode()] = hashed.encode()
    return users


def _read_http(section: Section) -> tuple[tuple[str, str], ...]:
    section.only("http2", "headers")
    section.truth("http2", default=True)
    errors: list[tuple[str, str]] = []
    value = section.values.get("headers") or {}
    if not isinstance(value, dict):
        section.wrong("headers", f"expected a mapping of names to values, got {_kind(value)}")
        return ()
    headers = []
    for name, text in value.items():
        if name not in HEADERS:
            errors.append((f"headers.{name}", f"this header can't be set, expected one of {', '.join(HEADERS)}"))
        elif text is None or text == "":
            continue
        elif HEADERS[name] and text not in HEADERS[name]:
            errors.append((f"headers.{name}", f"expected one of {', '.join(HEADERS[name])}"))
        elif not isinstance(text, str) or not (text.isascii() and text.isprintable()):
            errors.append((f"headers.{name}", "expected one line of ASCII text"))
        else:
            headers.append((name, text.strip()))
    for key, sentence in errors:
        section.wrong(key, sentence)
    return tuple(headers)


def _read_rate_limit(section: Section) -> RateLimit | None:
    section.only("interval", "burst")
    interval = _go_duration(section.values.get("interval"))
    burst = section.values.get("burst", 0)
    if interval is None:
        section.wrong("interval", 'expected a duration such as "1s" or "200ms", or 0')
    if not isinstance(burst, int) or isinstance(burst, bool) or burst < 0:
        section.wrong("burst", f"expected a whole number, got {_kind(burst)}")
        return None
    if interval and burst == 0:
        section.wrong("burst", "expected at least 1: with 0 every request would be refused")
    return RateLimit(interval, burst) if interval and burst else None


def _go_duration(value: object) -> float | None:
    """Seconds of a Go duration ("1m30s"), of a whole number of nanoseconds, or 0 when absent; None for others."""
    if value is None or value in (0, "0", ""):
        return 0.0
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value * 1e-9
    if not isinstance(value, str) or not re.fullmatch(f"(?:{GO_DURATION.pattern})+", value):
        return None
    return sum(float(number) * GO_UNITS[unit] for number, unit in GO_DURATION.findall(value))


def _kind(value: object) -> str:
    """What a value is, without showing it: it may be a secret in the wrong place."""
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "a truth value", int: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")
