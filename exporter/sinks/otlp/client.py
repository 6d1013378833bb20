"""The HTTP client of the OTLP destination: one POST that succeeds or raises a `Failure`.

A send ends by its deadline, reads a limited response, and follows no redirects. From the environment it uses proxies
and the CA bundle, never `.netrc`. `answers` interprets the response, or a missing one.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Final

import httpx

from exporter import __version__
from exporter.config.schema import OtlpSettings
from exporter.errors import Failure, Retryable
from exporter.http.deadline import Disconnected, Exchange
from exporter.http.tls import TlsFiles
from exporter.http.transport import Proxy, Transport, client_over, environment_proxy
from exporter.secrets import Sieve, header_secrets
from exporter.sinks.otlp.answers import FOREIGN, judge, translate

MAX_RESPONSE_BYTES: Final = 64 * 1024
_MAX_QUOTED: Final = 200  # characters of the collector's text in an error
_GZIP_OR_ZLIB: Final = 32  # zlib's flag to detect which of the two headers it is
_CLOSE_SECONDS: Final = 1.0
_CA_VARIABLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_HEADERS: Final = {
    "content-type": "application/x-protobuf",
    "accept": "*/*",
    "accept-encoding": "identity",
    "user-agent": f"azure-scheduled-events-exporter/{__version__}",
}

_log = logging.getLogger(__name__)


class CollectorClient:
    """A client for the address of `settings`, one request at a time. Any thread may call `close`.

    The timeout of `settings` is for a complete request: lookup, connection, a second connection, headers, and body. Its
    headers are added to every request and never quoted in an error. `environ` provides the proxies and, if `settings`
    names no authorities, the CA bundle. `wall` returns POSIX seconds.
    """

    def __init__(self, settings: OtlpSettings, environ: Mapping[str, str], wall: Callable[[], float]) -> None:
        self._settings = settings
        self._own_headers = {name.lower(): value.reveal() for name, value in settings.headers}
        self._wall = wall
        self._exchange = Exchange(time.monotonic)
        bundle = next((environ[name] for name in _CA_VARIABLES if environ.get(name)), "")
        self._tls = TlsFiles(settings.certificate or bundle, settings.client_certificate, settings.client_key)
        self._proxy = environment_proxy(settings.logs_url, environ)
        self._sieve = Sieve([])
        self._http: httpx.Client | None = None
        self._busy = threading.Lock()
        self._closed = False

    def post(self, content: bytes, records: int) -> Mapping[str, str]:
        """Send a protobuf message with this many records. Return the headers of the success response.

        Blocks up to the timeout. Raises `Failure` without its cause, whose texts can contain addresses and headers.
        """
        failure: Failure
        with self._busy:
            try:
                return self._post(content, records)
            except FOREIGN as error:
                timeout, through_proxy = self._settings.timeout, self._proxy is not None
                failure = translate(error, self._exchange, timeout, through_proxy=through_proxy)
            except Failure as error:
                failure = error
        if self._closed and isinstance(failure, Retryable):
            failure = Retryable("closed", "the agent is stopping")
        raise failure from None

    def give_back(self) -> None:
        """Close the connection that is kept for the next request."""
        with self._busy:
            self._drop_client()

    def close(self) -> None:
        """Close the client permanently, from any thread: a running request ends within 0.25 s, a later one at once."""
        self._closed = True
        self._exchange.abort()
        if self._busy.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._drop_client()
            finally:
                self._busy.release()

    def _drop_client(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def _post(self, content: bytes, records: int) -> Mapping[str, str]:
        if self._http is None:
            self._http = client_over(self._make_transport())
        headers = _HEADERS
        if content and self._settings.compression == "gzip":
            headers, content = {**headers, "content-encoding": "gzip"}, gzip.compress(content)
        request = httpx.Request("POST", self._settings.logs_url, headers=headers | self._own_headers, content=content)
        self._exchange.begin(self._settings.timeout, max_bytes=MAX_RESPONSE_BYTES)
        response = self._http.send(request, stream=True)
        try:
            verdict = judge(response, _read(response), records, self._wall())
        finally:
            response.close()
        if isinstance(verdict, Failure):
            verdict.detail = self._quotable(verdict.detail)
            verdict.args = (f"{verdict.reason}: {verdict.detail}",)
            raise verdict
        if verdict:
            _log.warning("the collector accepted the records with a warning: %s", self._quotable(verdict))
        return response.headers

    def _make_transport(self) -> Transport:
        try:
            proxy = Proxy.parse(self._proxy.url) if self._proxy is not None else None
        except ValueError as error:
            raise Retryable("configuration", str(error), needs_operator=True) from None
        carried = (*self._own_headers.values(), proxy.authorization.decode() if proxy else "")
        self._sieve = Sieve([secret for value in carried for secret in header_secrets(value)], shortest=1)
        timeout = self._settings.timeout
        return Transport(self._exchange, connect_seconds=timeout, tls=self._tls.context, proxy=proxy)

    def _quotable(self, text: str) -> str:
        """Return the collector's text, truncated, on one line, without any credential of the request."""
        text = self._sieve(text, 4 * _MAX_QUOTED)
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:_MAX_QUOTED]


def _read(response: httpx.Response) -> bytes:
    """Return the decoded body, at most `MAX_RESPONSE_BYTES`. Raises `Disconnected` if it may be incomplete."""
    content = b"".join(response.iter_raw())
    headers = response.headers
    unannounced = "Content-Length" not in headers and "Transfer-Encoding" not in headers
    if unannounced and not content and response.status_code != httpx.codes.NO_CONTENT:
        # An empty response without a length may have been cut off anywhere.
        raise Disconnected("the response ended early")
    return _plain(content, headers.get("Content-Encoding", "").strip().lower())


def _plain(content: bytes, encoding: str) -> bytes:
    """Return the body without its content coding.

    The client requests none, but some proxies compress the response, which contains the number of rejected records.
    """
    if encoding in ("", "identity") or not content:
        return content
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise Retryable("protocol", "response with an encoding that was not requested", needs_operator=True)
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | _GZIP_OR_ZLIB)
    with contextlib.suppress(zlib.error):
        plain = unpacking.decompress(content, MAX_RESPONSE_BYTES)
        if unpacking.eof:
            return plain
    detail = f"response that is not valid {encoding}, or exceeds {MAX_RESPONSE_BYTES} bytes"
    raise Retryable("protocol", detail, needs_operator=True)
