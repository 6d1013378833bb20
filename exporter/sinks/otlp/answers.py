"""What an answer of an OTLP collector means, and what its absence means. Nothing here touches the network.

answer                                         is
2xx, decoded, nothing rejected                 delivered
2xx, some of the records rejected              PartlyRejected: the protocol forbids to send them again
2xx, all of them rejected; 400 413 422         Permanent: the record's own, or that of one of a batch
no answer in time, broken, 429 502 503 504     Retryable, `Retry-After` obeyed
everything else (401 403 404 3xx 500 HTML …)   Retryable with `needs_operator`: slowly, and the record waits

A collector that rejects more records than it was sent rejects all of them. One that rejects less than none gives no
answer that could be understood: the records wait.
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

MAX_RETRY_AFTER: Final = 300.0  # seconds; no collector may silence us for longer in one answer

_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
_UNSPECIFIC: Final = ("", "text/plain", "application/octet-stream")

_PERMANENT: Final[Mapping[int, Reason]] = {400: "rejected", 413: "too-large", 422: "rejected"}
_TRANSIENT: Final[Mapping[int, Reason]] = {429: "throttled", 502: "unavailable", 503: "unavailable", 504: "unavailable"}
_NEEDS_OPERATOR: Final[Mapping[int, Reason]] = {401: "unauthorized", 403: "unauthorized", 404: "not-found"}


def judge(response: httpx.Response, content: bytes, records: int, now: float) -> Failure | str:
    """What the answer to so many records is: the failure, or the collector's warning of a success ("" mostly).

    `content` is its body, `now` a Unix time in seconds. Texts of the collector are in it as they came.
    """
    media = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not response.is_success:
        return _refusal(response, _status_message(content) if media == _PROTOBUF else "", now)
    try:
        partial = _decode(media, content).partial_success
    except Retryable as failure:
        return failure
    rejected = partial.rejected_log_records
    message = f"by the collector: {partial.error_message or 'it gives no reason'}"
    if rejected < 0:
        return Retryable("protocol", f"a success that rejects {rejected} records", needs_operator=True)
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
    """The message of a success. Nothing at all is one too: so answer some backends, with 200, 202 or 204."""
    decoded = ExportLogsServiceResponse()
    try:
        if media == _PROTOBUF:
            decoded.ParseFromString(content)
        elif media == _JSON and content:
            json_format.Parse(content, decoded)
        elif content or media not in (*_UNSPECIFIC, _JSON):
            shown = re.sub(r"[^\w/+.-]", "?", media)[:60] or "without a content type"
            raise Retryable(
                "protocol", f"a success that is not OTLP ({shown}); is it the right address?", needs_operator=True
            )
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise Retryable("protocol", f"a success that cannot be decoded as {media}", needs_operator=True) from error
    return decoded


def _status_message(content: bytes) -> str:
    """The sentence of a `google.rpc.Status`, which OTLP asks for in refusals; any other body is not repeated."""
    status = Status()
    try:
        status.ParseFromString(content)
    except DecodeError:
        return ""
    return str(status.message)


FOREIGN: Final = (Aborted, Flooded, UnusableFile, InvalidAnswer, OSError, ValueError, httpx.InvalidURL)
"""All that a request is known to raise instead of an answer."""


def translate(error: Exception, exchange: Exchange, deadline: float, *, through_proxy: bool) -> Retryable:
    """The border: what it means when there is no answer. Foreign texts are not repeated: they hold whole addresses and
    headers. `deadline` is the seconds that the request had. A request that was under way may have been too large
    for the deadline, or for somebody on the way who hangs up instead of answering 413."""
    kind = type(error).__name__
    hung_up = f"the collector cannot be reached or hung up ({kind})"
    at_proxy = isinstance(error, ProxyRefused) or (through_proxy and exchange.stage is Stage.CONNECT)
    unreachable = f"the proxy cannot be reached or refuses ({kind})" if at_proxy else hung_up
    ours = not exchange.received  # a ValueError may also come of an answer's own numbers
    table: tuple[tuple[type[Exception], Reason, str, bool], ...] = (
        (Aborted, "closed", "going down", False),
        (Flooded, "protocol", "an answer longer than any answer needs", True),
        (UnusableFile, "configuration", f"a CA, certificate or key file that cannot be used ({error})", True),
        (ssl.SSLCertVerificationError, "tls", "the collector's certificate is not trusted", True),
        (ssl.SSLError, "tls", f"TLS could not be agreed ({kind})", False),
        (TimeoutError, "timeout", f"no whole answer within {deadline:g} s", False),
        (socket.gaierror, "dns", "the collector's name is not known", False),
        (OSError, "connect", unreachable, False),
        (InvalidAnswer, "connect", hung_up, False),
        (Exception, "configuration", f"an address or header that cannot work ({kind})", True)
        if ours
        else (Exception, "connect", hung_up, False),
    )
    _, reason, detail, needs_operator = next(row for row in table if isinstance(error, row[0]))
    smaller = exchange.stage is Stage.EXCHANGE and reason in ("timeout", "connect")
    return Retryable(reason, detail, needs_operator=needs_operator, smaller=smaller)
