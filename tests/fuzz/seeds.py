"""The seeds of each target: real documents, settings, and requests, and the inputs that once caused a failure."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from exporter.config.schema import Settings
from exporter.simulator.metadata.platform import documents
from exporter.simulator.metadata.scenario import load, names
from exporter.web.responses import ROUTES
from tests.fuzz.document_target import document, sequence
from tests.fuzz.settings_target import configuration, environment, webconfig
from tests.fuzz.web_target import web
from tests.support.configuration import to_toml

TESTDATA: Final = Path(__file__).parent.parent / "testdata"
TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "document": document,
    "sequence": sequence,
    "configuration": configuration,
    "environment": environment,
    "webconfig": webconfig,
    "web": web,
}
PASSWORD: Final = b"Authorization: Basic " + base64.b64encode(b"prometheus:right")
WEB_CONFIG: Final = b"""tls_server_config:
  cert_file: server.crt
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  min_version: TLS12
  cipher_suites: [TLS_AES_128_GCM_SHA256]
http_server_config:
  http2: true
  headers:
    X-Frame-Options: deny
rate_limit:
  interval: 1s
  burst: 20
basic_auth_users:
  alice: $2y$10$mDwo.lAisC94iLAyP81MCesa29IzH37oigHC/42V2pdJlUprsJPze
"""


def seeds(target: str) -> Iterator[bytes]:
    """Return the seeds, including the earlier findings."""
    yield b""
    yield from _SEEDS[target]()
    for case in sorted((TESTDATA / "fuzz" / target).glob("*")):
        yield case.read_bytes()


def _documents() -> Iterator[bytes]:
    for name in names():
        for _, found in documents(load(name)):
            yield json.dumps(found).encode()


def _sequences() -> Iterator[bytes]:
    yield bytes(40)
    yield bytes(range(60))
    yield bytes([0, 0, *[1] * 18, 0, 2, 0, 1, 0] * 3)


def _settings() -> Iterator[bytes]:
    yield to_toml(Settings()).encode()
    for path in sorted((TESTDATA / "config").glob("*.toml")):
        yield path.read_bytes()


def _environments() -> Iterator[bytes]:
    for value in (
        b"1s",
        b"-1",
        b"true",
        b"http://127.0.0.1:4318",
        b"a=b,c=d",
        b"127.0.0.1:0",
        b"/etc/passwd",
        b"%zz=1",
    ):
        for first in range(0, 60, 3):
            yield bytes([first]) + value


def _webconfigs() -> Iterator[bytes]:
    yield WEB_CONFIG
    yield from (part for part in WEB_CONFIG.split(b"\n\n"))
    yield b"basic_auth_users:\n  a: b\n"
    yield b"rate_limit: {interval: 1h1m, burst: -1}\n"


def _requests() -> Iterator[bytes]:
    for first in (b"\0", b"\1"):
        for path in (*sorted(ROUTES), "/nothing", "http://h/metrics?a=b", "*"):
            yield first + b"GET " + path.encode() + b" HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n"
        yield first + b"GET /metrics HTTP/1.1\r\nHost: h\r\n" + PASSWORD + b"\r\nConnection: close\r\n\r\n"
        yield first + b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        yield first + b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 3
        yield first + b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text;version=1.0.0;q=0.5\r\n\r\n"


_SEEDS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "document": _documents,
    "sequence": _sequences,
    "configuration": _settings,
    "environment": _environments,
    "webconfig": _webconfigs,
    "web": _requests,
}
