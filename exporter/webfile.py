"""Reading a web-config file: its YAML, every key checked, all errors at once, no secret in any of them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from exporter.webfile_section import NO_LINES, Lines, Section, kind_of, read_text
from exporter.webfile_tls import read_tls
from exporter.webtls import context_of

HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
"""The headers that may be set, and their values where they are a closed set."""

BCRYPT_HASH: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
MAX_COST: Final = 17
"""A check takes about 60 ms at cost 10 and twice that for each step more: 8 s at 17, and who asks waits for 10."""
NOT_YAML: Final[Mapping[str, str]] = {
    "ScannerError": "found a character that can't stand here; what begins with one of @ % ` or holds a colon is quoted",
    "ParserError": "found another structure, such as a bracket that is not closed or a line that is indented wrongly",
    "ComposerError": "found an alias or an anchor that leads nowhere; a value that begins with * or & is quoted",
    "ConstructorError": "found a tag that is not taken; a value that begins with ! is quoted",
}
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


def read_web_file(path: Path) -> tuple[WebSettings | None, list[str], list[Path]]:
    """The settings, or None; every error as a sentence; and the files that were named, to be watched."""
    errors: list[str] = []
    files: list[Path] = []
    document, lines = _load(path, errors)
    if errors:
        return None, errors, files
    root = Section(path, "", document, errors, lines)
    root.only("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")

    def section(name: str) -> Section:
        return Section(path, name, root.values.get(name), errors, lines)

    tls = read_tls(section("tls_server_config"), path.parent, files)
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


def _load(path: Path, errors: list[str]) -> tuple[object, Lines]:
    """The document, and the lines of its keys. Of what is no YAML only the kind of mistake is told, never a word."""
    import yaml  # noqa: PLC0415  # only where a web-config file is given

    class Refused(yaml.MarkedYAMLError):
        """Our own words."""

    class Strict(yaml.SafeLoader):
        """Refuses what YAML would let pass: a key that is given twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    raise Refused(problem="a key is no plain word", problem_mark=key_node.start_mark)
                if key_node.value in seen:
                    raise Refused(problem="a key is given twice", problem_mark=key_node.start_mark)
                seen.add(key_node.value)
            return super().construct_mapping(node, deep)

    text = read_text(path, errors, f"{path}")
    try:
        loader = Strict(text)
        node = loader.get_single_node()
        return (loader.construct_document(node), _lines_of(node)) if node else (None, NO_LINES)
    except yaml.MarkedYAMLError as error:  # the library's text may quote the file, hence a secret
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = error.problem if isinstance(error, Refused) else NOT_YAML.get(type(error).__name__, "")
        errors.append(f"{path}: {where}expected YAML{problem and ': '}{problem}")
    except (yaml.YAMLError, ValueError, RecursionError):
        errors.append(f"{path}: expected YAML")
    return None, NO_LINES


def _lines_of(root: Any) -> Lines:
    """Where the keys of the file and of its sections stand, out of YAML's nodes."""
    found: dict[tuple[str, str], int] = {}
    waiting = [("", root, 2)]
    while waiting:
        name, node, depth = waiting.pop()
        for key, value in node.value if node.id == "mapping" else ():
            found[name, str(key.value)] = key.start_mark.line + 1
            if depth:
                waiting.append((f"{name}.{key.value}".lstrip("."), value, depth - 1))
    return found


def _read_users(section: Section) -> dict[bytes, bytes]:
    users = {}
    for name, hashed in section.values.items():
        if not isinstance(name, str | int) or isinstance(name, bool) or not str(name) or ":" in str(name):
            section.wrong_entry(name, "expected a user name without a colon")
        elif not isinstance(hashed, str) or not (match := BCRYPT_HASH.fullmatch(hashed)):
            section.wrong_entry(name, "expected a bcrypt hash, such as `htpasswd -nBC 10 NAME` prints behind the colon")
        elif int(match[1]) > MAX_COST:
            section.wrong_entry(
                name, f"expected a bcrypt hash of a cost up to {MAX_COST}: with {int(match[1])} a check takes too long"
            )
        else:
            users[str(name).encode()] = hashed.encode()
    return users


def _read_http(section: Section) -> tuple[tuple[str, str], ...]:
    section.only("http2", "headers")
    section.truth("http2", default=True)
    value = section.values.get("headers") or {}
    if not isinstance(value, dict):
        section.wrong("headers", f"expected a mapping of names to values, got {kind_of(value)}")
        return ()
    headers: list[tuple[str, str]] = []
    inner = section.below("headers", value)
    for name, text in value.items():
        if name not in HEADERS:
            inner.wrong_entry(name, f"this header can't be set, expected one of {', '.join(HEADERS)}")
        elif text is None or text == "":
            continue
        elif HEADERS[name] and text not in HEADERS[name]:
            section.wrong(f"headers.{name}", f"expected one of {', '.join(HEADERS[name])}")
        elif not isinstance(text, str) or not (text.isascii() and text.isprintable()):
            section.wrong(f"headers.{name}", "expected one line of ASCII text")
        else:
            headers.append((name, text.strip()))
    return tuple(headers)


def _read_rate_limit(section: Section) -> RateLimit | None:
    section.only("interval", "burst")
    interval = _go_duration(section.values.get("interval"))
    burst = section.values.get("burst", 0)
    if interval is None:
        section.wrong("interval", 'expected a duration such as "1s" or "200ms", or 0')
    if not isinstance(burst, int) or isinstance(burst, bool) or burst < 0:
        section.wrong("burst", f"expected a whole number, got {kind_of(burst)}")
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
