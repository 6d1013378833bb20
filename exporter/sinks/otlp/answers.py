"""Interpretation of an OTLP collector's response, or of a missing one. Does no I/O.

response                                       result
2xx, decoded, nothing rejected                 delivered
2xx, some records rejected                     PartlyRejected: the protocol forbids a retry
2xx, all records rejected; 400 413 422         Permanent: caused by the record, or by one of a batch
none in time, incomplete, 429 502 503 504      Retryable, honors `Retry-After`
everything else (401 403 404 3xx 500 HTML …)   Retryable with `needs_operator`: slow retries, the record waits

A rejection of more records than were sent is a rejection of all. A negative number of rejected records is an invalid
response: the records wait.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from typing import Final

import httpx
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # generated, without stubs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from exporter.errors import Failure, PartlyRejected, Permanent, Retryable, parse_retry_after
from exporter.http.deadline import Aborted, Exchange, Flooded, Stage
from exporter.http.tls import UnusableFile
from exporter.http.transport import InvalidAnswer, ProxyRefused
from exporter.sinks.reasons import Reason

MAX_RETRY_AFTER: Final = 300.0  # seconds; the longest pause that one response can cause

_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
_UNSPECIFIC: Final = ("", "text/plain", "application/octet-stream")

_PERMANENT: Final[Mapping[int, Reason]] = {400: "rejected", 413: "too-large", 422: "rejected"}
_TRANSIENT: Final[Mapping[int, Reason]] = {429: "throttled", 502: "unavailable", 503: "unavailable", 504: "unavailable"}
_NEEDS_OPERATOR: Final[Mapping[int, Reason]] = {401: "unauthorized", 403: "unauthorized", 404: "not-found"}


def judge(response: httpx.Response, content: bytes, records: int, now: float) -> Failure | str:
    """Return the failure that the response means; for a success the collector's warning, usually "".

    `content` is the body, `records` the number of records sent, `now` a Unix time in seconds. The result quotes the
    collector's texts unchanged.
    """
    media = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not response.is_success:
        return _refusal(response, _status_message(content) if media == _PROTOBUF else "", now)
    try:
        partial = _decode(media, content).partial_success
    except Retryable as failure:
        return failure
    rejected = partial.rejected_log_records
    message = f"by the collector: {partial.error_message or 'no reason given'}"
    if rejected < 0:
        return Retryable("protocol", f"success response that rejects {rejected} records", needs_operator=True)
    if 0 < rejected < records:
        return PartlyRejected("rejected", message, rejected=rejected)
    return Permanent("rejected", message) if rejected else str(partial.error_message)


def _refusal(response: httpx.Response, message: str, now: float) -> Failure:
    status = response.status_code
    detail = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    if status in _PERMANENT:
        return Permanent(_PERMANENT[status], detail)
    wait = parse_retry_after(response.headers.get("Retry-After", ""), now, MAX_RETRY_AFTER)
    if status in _TRANSIENT:
        return Retryable(_TRANSIENT[status], detail, retry_after=wait)
    reason: Reason = "redirect" if response.is_redirect else _NEEDS_OPERATOR.get(status, "other")
    return Retryable(reason, detail, retry_after=wait, needs_operator=True)


def _decode(media: str, content: bytes) -> ExportLogsServiceResponse:
    """Return the message of a success. An empty body counts too: some backends send it with 200, 202, or 204."""
    decoded = ExportLogsServiceResponse()
    try:
        if media == _PROTOBUF:
            decoded.ParseFromString(content)
        elif media == _JSON and content:
            json_format.Parse(content, decoded)
        elif content or media not in (*_UNSPECIFIC, _JSON):
            shown = re.sub(r"[^\w/+.-]", "?", media)[:60] or "without a content type"
            detail = f"success response that is not OTLP ({shown}); check the address"
            raise Retryable("protocol", detail, needs_operator=True)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        detail = f"success response that cannot be decoded as {media}"
        raise Retryable("protocol", detail, needs_operator=True) from error
    return decoded


def _status_message(content: bytes) -> str:
    """Return the message of a `google.rpc.Status`, which OTLP requires for errors; "" for any other body."""
    status = Status()
    try:
        status.ParseFromString(content)
    except DecodeError:
        return ""
    return str(status.message)


FOREIGN: Final = (Aborted, Flooded, UnusableFile, InvalidAnswer, OSError, ValueError, httpx.InvalidURL)
"""All exceptions that a request is known to raise."""


def translate(error: Exception, exchange: Exchange, deadline: float, *, through_proxy: bool) -> Retryable:
    """Return the failure for a request without a response.

    It quotes no text of `error`, which can contain whole addresses and headers. `deadline` is the request's time limit
    in seconds. `smaller` is set if the request may have been too large: for the deadline, or for a proxy that closes
    the connection instead of returning 413.
    """
    kind = type(error).__name__
    hung_up = f"the collector is unreachable or closed the connection ({kind})"
    at_proxy = isinstance(error, ProxyRefused) or (through_proxy and exchange.stage is Stage.CONNECT)
    unreachable = f"the proxy is unreachable or refuses the connection ({kind})" if at_proxy else hung_up
    before_response = not exchange.received  # a response's numbers can cause a ValueError too
    table: tuple[tuple[type[Exception], Reason, str, bool], ...] = (
        (Aborted, "closed", "the agent is stopping", False),
        (Flooded, "protocol", "the response is too long", True),
        (UnusableFile, "configuration", f"unusable CA, certificate, or key file ({error})", True),
        (ssl.SSLCertVerificationError, "tls", "the collector's certificate is not trusted", True),
        (ssl.SSLError, "tls", f"TLS handshake failed ({kind})", False),
        (TimeoutError, "timeout", f"no complete response within {deadline:g} s", False),
        (socket.gaierror, "dns", "the collector's host name is unknown", False),
        (OSError, "connect", unreachable, False),
        (InvalidAnswer, "connect", hung_up, False),
        (Exception, "configuration", f"unusable address or header ({kind})", True)
        if before_response
        else (Exception, "connect", hung_up, False),
    )
    _, reason, detail, needs_operator = next(row for row in table if isinstance(error, row[0]))
    smaller = exchange.stage is Stage.EXCHANGE and reason in ("timeout", "connect")
    return Retryable(reason, detail, needs_operator=needs_operator, smaller=smaller)
