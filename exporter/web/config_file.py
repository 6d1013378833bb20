"""Reading a web-config file: every key is checked, all errors are reported at once, and no error contains a secret.

`read_web_file` reads the file section by section, with one function for each: `tls_server_config`,
`http_server_config`, `basic_auth_users`, `rate_limit`. A `Section` is one mapping of the file, with a method for each
kind of value; it reports an invalid value and continues. `_load` parses the YAML.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from exporter.config.sources import read_text
from exporter.config.types import refuse_escapes
from exporter.files import read_trusted
from exporter.text.values import InvalidValue, Misplaced, refuse_misplaced, refuse_secrets
from exporter.web.tls import (
    CIPHERS,
    CLIENT_AUTH,
    CURVES,
    TLS13_CIPHERS,
    UNVERIFIED_CLIENT_AUTH,
    VERSIONS,
    as_file,
    load_certificates,
)

MAX_BYTES: Final = 1 << 20
SIMILARITY: Final = 0.75
"""Ratio (difflib) from which an unknown key counts as a misspelt known one and may be shown."""

TLS_KEYS: Final = (
    "cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans",
    "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites", "curve_preferences",
)  # fmt: skip
HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
"""The headers that may be set, with the allowed values; () for any."""
BCRYPT_HASH: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
MAX_COST: Final = 17
"""A check takes about 60 ms at cost 10 and doubles with each step: 8 s at 17. A scraper waits for 10 s."""
GO_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
MAX_GO_INT: Final = (1 << 63) - 1
"""The largest integer of Go, and its longest duration in nanoseconds."""
GO_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class RateLimit(Struct, frozen=True):
    """The `rate_limit` section: `interval` seconds for each request, and up to `burst` requests at once."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfigFile:
    """The settings of a web-config file. The default is those of an empty file: plain HTTP, no password."""

    tls: ssl.SSLContext | None = None
    certificate_pem: str = ""
    client_allowed_sans: frozenset[str] = frozenset()
    curves: frozenset[str] = frozenset(CURVES)
    users: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    """Names and bcrypt hashes."""
    headers: tuple[tuple[str, str], ...] = ()
    rate_limit: RateLimit | None = None


def read_web_file(path: Path) -> tuple[WebConfigFile | None, list[str], list[Path]]:
    """Return the settings (None after an error), all errors, and the files named, for watching. Never raises."""
    errors: list[str] = []
    files: list[Path] = []
    try:
        return _read_sections(path, errors, files), errors, files
    except Exception as error:  # a value that the checks missed; the error's text may contain it
        return None, [*errors, f"{path}: cannot be used ({type(error).__name__})"], files


def _read_sections(path: Path, errors: list[str], files: list[Path]) -> WebConfigFile | None:
    """Return the settings, or None after an error. Add errors and the files named to the lists."""
    document = _load(path, errors)
    if errors:
        return None
    root = Section(path, "", document, errors)
    root.allow_only("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
    tls = _read_tls(root.child("tls_server_config"), path.parent, files)
    users, headers = _read_users(root.child("basic_auth_users")), _read_http(root.child("http_server_config"))
    rate_limit = _read_rate_limit(root.child("rate_limit"))
    return None if errors else WebConfigFile(users=users, headers=headers, rate_limit=rate_limit, **tls)


# -- one function for each section


def _read_tls(section: Section, folder: Path, files: list[Path]) -> dict[str, Any]:
    """Return the TLS fields of `WebConfigFile`; empty for plain HTTP. Add the files named to `files`."""
    section.allow_only(*TLS_KEYS)
    if not section.values:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = _read_pem(section, "cert", folder, files, required=True)
    key = _read_pem(section, "key", folder, files, required=True)
    client_ca = _read_pem(section, "client_ca", folder, files, required=False)
    sans = section.strings("client_allowed_sans")
    _read_client_auth(section, context, restricts_clients=bool(client_ca or sans))
    _read_versions(section, context)
    curves = frozenset(section.choices("curve_preferences", tuple(CURVES)))
    if len(curves) not in (0, 1, len(CURVES)):
        section.report("curve_preferences", "expected one curve or all four; Python's ssl cannot use two or three")
    elif len(curves) == 1:
        context.set_ecdh_curve(*(CURVES[curve] for curve in curves))
    if not section.boolean("prefer_server_cipher_suites", default=True):
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if not section.errors:
        try:
            if sys.platform == "win32":
                certificate_file, key_file = (str(folder / section.string(f"{name}_file")) for name in ("cert", "key"))
                load_certificates(context, certificate_file, key_file, client_ca)
            else:
                with as_file(certificate) as certificate_file, as_file(key) as key_file:
                    load_certificates(context, certificate_file, key_file, client_ca)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; its text never contains the key
            # OpenSSL's reason if there is one; an `ssl.SSLError` that Python raises has no `reason`.
            reason = getattr(error, "reason", None) or error
            section.report("", f"cannot use certificate, key, and client CA together: {reason}")
    return {
        "tls": context,
        "certificate_pem": certificate,
        "client_allowed_sans": frozenset(sans),
        "curves": curves or frozenset(CURVES),
    }


def _read_client_auth(section: Section, context: ssl.SSLContext, *, restricts_clients: bool) -> None:
    if section.string("client_auth_type") in UNVERIFIED_CLIENT_AUTH:
        sentence = "Python's ssl cannot request a certificate without verifying it"
        section.report("client_auth_type", f"{sentence}; expected one of {', '.join(CLIENT_AUTH)}")
        return
    policy = section.choice("client_auth_type", CLIENT_AUTH, "NoClientCert")
    context.verify_mode = CLIENT_AUTH[policy]
    if policy == "NoClientCert" and restricts_clients:
        section.report("client_auth_type", "missing; required with client_ca or client_allowed_sans")
    if policy != "NoClientCert" and not (section.string("client_ca") or section.string("client_ca_file")):
        section.report("client_ca_file", f"missing; client_auth_type {policy} requires client_ca or client_ca_file")


def _read_versions(section: Section, context: ssl.SSLContext) -> None:
    """Set the lowest and the highest TLS version, and the ciphers up to TLS 1.2."""
    low = section.choice("min_version", VERSIONS, "TLS12")
    high = section.choice("max_version", VERSIONS, "TLS13")
    if high < "TLS12":
        section.report("max_version", f"expected TLS12 or TLS13; {high} is deprecated (RFC 8996) and not supported")
    elif low > high:
        section.report("min_version", f"expected at most max_version {high}, got {low}")
    names = section.choices("cipher_suites", (*TLS13_CIPHERS, *CIPHERS))
    ciphers = [CIPHERS[name] for name in names if name in CIPHERS]
    if ciphers:
        context.set_ciphers(":".join(ciphers))
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if names and not ciphers else VERSIONS[low]
    context.maximum_version = VERSIONS[high]


def _read_pem(section: Section, key: str, folder: Path, files: list[Path], *, required: bool) -> str:
    """Return the PEM text of `key`, or of the file in `key`_file, relative to the config's folder; "" after an error.

    On Windows a `required` one must be a file: there is no in-memory file that Python's ssl could read.
    """
    inline, name = section.string(key), section.string(f"{key}_file")
    if inline and name:
        section.report(key, f"expected either {key} or {key}_file, got both")
    elif inline and required and sys.platform == "win32":
        section.report(key, f"not supported on Windows; use {key}_file")
    if not name:
        if required and not inline:
            section.report(f"{key}_file", f"missing; expected {key} or {key}_file")
        return inline
    try:
        refuse_secrets(name, "a path")
        refuse_escapes(name)
        refuse_misplaced(name, "a path")
    except Misplaced as error:
        section.report(f"{key}_file", str(error))
        return ""
    path = folder / name
    files.append(path)
    try:
        text = read_text(str(path), MAX_BYTES, read_trusted)
    except InvalidValue as error:
        section.report(f"{key}_file", str(error))
        return ""
    if not text:
        section.report(f"{key}_file", f"{path}: file is empty; expected PEM")
    return text


def _read_users(section: Section) -> dict[bytes, bytes]:
    users = {}
    for name, hashed in section.values.items():
        if not name or ":" in name:
            section.report_entry(name, "expected a user name without a colon (RFC 7617)")
        elif not isinstance(hashed, str) or not (match := BCRYPT_HASH.fullmatch(hashed)):
            section.report_entry(name, "expected a bcrypt hash; `htpasswd -nBC 10 NAME` prints one after the colon")
        elif int(match[1]) > MAX_COST:
            section.report_entry(
                name, f"expected a bcrypt cost of at most {MAX_COST}, got {int(match[1])}: its check takes too long"
            )
        else:
            users[name.encode()] = hashed.encode()
    return users


def _read_http(section: Section) -> tuple[tuple[str, str], ...]:
    section.allow_only("http2", "headers")
    section.boolean("http2", default=True)
    headers: list[tuple[str, str]] = []
    entries = section.child("headers")
    for name, text in entries.values.items():
        if name not in HEADERS:
            entries.report_entry(name, f"this header cannot be set; expected one of {', '.join(HEADERS)}")
        elif text is None or text == "":
            continue
        elif HEADERS[name] and text not in HEADERS[name]:
            entries.report(name, f"expected one of {', '.join(HEADERS[name])}")
        elif not isinstance(text, str) or not (text.isascii() and text.isprintable()):
            entries.report(name, "expected one line of ASCII text")
        else:
            headers.append((name, text.strip()))
    return tuple(headers)


def _read_rate_limit(section: Section) -> RateLimit | None:
    section.allow_only("interval", "burst")
    interval = _go_duration(section.values.get("interval"))
    burst = section.values.get("burst", 0)
    if interval is None:
        section.report("interval", 'expected a duration, for example "1s" or "200ms", at most 2562047h, or 0')
    if not isinstance(burst, int) or isinstance(burst, bool) or not 0 <= burst <= MAX_GO_INT:
        section.report("burst", f"expected a whole number from 0 to {MAX_GO_INT}, got {kind_of(burst)}")
        return None
    if interval and burst == 0:
        section.report("burst", "expected at least 1; 0 would refuse every request")
    return RateLimit(interval, burst) if interval and burst else None


def _go_duration(value: object) -> float | None:
    """Return the seconds of a Go duration ("1m30s") or of a number of nanoseconds; 0 if absent, None if invalid."""
    if value is None or value in (0, "0", ""):
        return 0.0
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_GO_INT:
        return value * 1e-9
    if not isinstance(value, str) or not re.fullmatch(f"(?:{GO_DURATION.pattern})+", value):
        return None
    seconds = sum(float(number) * GO_UNITS[unit] for number, unit in GO_DURATION.findall(value))
    return seconds if seconds <= MAX_GO_INT * 1e-9 else None


# -- the values of a section


class Section:
    """One mapping of the file. An invalid value is added to `errors` with file and key, and read as if absent.

    The list is shared by all sections of the file.
    """

    def __init__(self, file: Path, name: str, value: object, errors: list[str]) -> None:
        self._file, self._name, self.errors = file, name, errors
        if value is not None and not isinstance(value, dict):
            self.report("", f"expected a mapping of keys to values, got {kind_of(value)}")
        self.values: dict[str, Any] = value if isinstance(value, dict) else {}

    def report(self, key: object, sentence: str) -> None:
        """Add an error about a key, which the error names."""
        where = ".".join(part for part in (self._name, str(key)) if part)
        self.errors.append(f"{self._file}: {where}: {sentence}" if where else f"{self._file}: {sentence}")

    def report_entry(self, key: object, sentence: str) -> None:
        """Add an error about a key that the user chose. Show its position instead: it may be a misplaced secret."""
        self.report("", f"entry {list(map(str, self.values)).index(str(key)) + 1}: {sentence}")

    def child(self, key: str) -> Section:
        """Return the mapping under a key of this one; empty if absent."""
        return Section(self._file, ".".join(filter(None, (self._name, key))), self.values.get(key), self.errors)

    def allow_only(self, *known: str) -> None:
        """Report every other key, by name only if it resembles a known one."""
        for key in self.values:
            if key in known:
                continue
            report = self.report if get_close_matches(str(key), known, 1, SIMILARITY) else self.report_entry
            report(key, f"unknown key; expected one of {', '.join(known)}")

    def string(self, key: str) -> str:
        """Return a string; "" if absent."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        self.report(key, f"expected a string, got {kind_of(value)}")
        return ""

    def boolean(self, key: str, default: bool) -> bool:
        """Return true or false; the default if absent."""
        value = self.values.get(key, default)
        if isinstance(value, bool):
            return value
        self.report(key, f"expected true or false, got {kind_of(value)}")
        return default

    def choice(self, key: str, words: Mapping[str, object], default: str) -> str:
        """Return one of these keywords; the default if absent."""
        value = self.string(key) or default
        if value in words:
            return value
        self.report(key, f"expected one of {', '.join(words)}")
        return default

    def strings(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; () if absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        self.report(key, "expected a list of strings")
        return ()

    def choices(self, key: str, words: tuple[str, ...]) -> tuple[str, ...]:
        """Return a list of these keywords; () if absent."""
        entries = self.strings(key)
        for entry in entries:
            if entry not in words:
                self.report(key, f"expected only values of {', '.join(words)}")
        return tuple(entry for entry in entries if entry in words)


def kind_of(value: object) -> str:
    """Return the type of a value in words, without the value: it may be a misplaced secret."""
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "a boolean", int: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")


# -- the YAML

IMPLICIT_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)
"""The tags that YAML 1.1 gives to scalars without an explicit tag."""
HINT: Final = (
    "quote a value that contains a colon or starts with one of @ % ` * & !; put one with backslashes in single quotes"
)
"""Shown instead of PyYAML's error texts, which may quote the file, and so a secret."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _load(path: Path, errors: list[str]) -> object:
    """Return the document. Invalid YAML is added to `errors` by position, without the text."""
    import yaml  # noqa: PLC0415  # only needed with a web-config file

    class InvalidKey(yaml.MarkedYAMLError):
        """An error of this module, whose text may be shown."""

    class StrictLoader(yaml.SafeLoader):
        """A loader that rejects duplicate keys and lone surrogates and keeps keys as written (007 is a name)."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = set()
            for key_node, _ in node.value:
                if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in IMPLICIT_TAGS:
                    raise InvalidKey(problem="a key must be a plain scalar", problem_mark=key_node.start_mark)
                if key_node.value in keys:
                    raise InvalidKey(problem="duplicate key", problem_mark=key_node.start_mark)
                keys.add(key_node.value)
            self.flatten_mapping(node)
            return {key.value: self.construct_object(value, deep) for key, value in node.value}

        def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
            node = super().compose_scalar_node(anchor)
            if _SURROGATE.search(node.value):
                raise InvalidKey(problem="a lone surrogate is not a character", problem_mark=node.start_mark)
            return node

    try:
        return StrictLoader(read_text(str(path), MAX_BYTES, read_trusted)).get_single_data()
    except InvalidValue as error:
        errors.append(str(error))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        hint = error.problem if isinstance(error, InvalidKey) else HINT
        errors.append(f"{path}: {where}expected YAML: {hint}")
    except Exception:  # PyYAML lets errors of its conversions through, for example IndexError for `!!int ''`
        errors.append(f"{path}: expected YAML")
    return None
