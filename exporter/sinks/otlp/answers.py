"""What an answer of an OTLP collector means, and what its absence means. Nothing here touches the network.

answer                                         is
2xx, decoded, nothing rejected                 delivered
400 413 422, rejected log records              Permanent: the record's own
no answer in time, broken, 429 502 503 504     Retryable, `Retry-After` obeyed
everything else (401 403 404 3xx 500 HTML …)   Retryable, slowly: a person has to mend it, and the record waits
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import requests
import urllib3
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # generated, without stubs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from exporter.errors import Failure, Permanent, Retryable
from exporter.retry import parse_retry_after
from exporter.sinks.reasons import Reason

MAX_RETRY_AFTER: Final = 300.0  # seconds; no collector may silence us for longer in one answer

_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
_SAYS_NOTHING: Final = ("", "text/plain", "application/octet-stream")

_PERMANENT: Final[Mapping[int, Reason]] = {400: "rejected", 413: "too-large", 422: "rejected"}
_WEATHER: Final[Mapping[int, Reason]] = {429: "throttled", 502: "unavailable", 503: "unavailable", 504: "unavailable"}
_FOR_A_PERSON: Final[Mapping[int, Reason]] = {401: "unauthorized", 403: "unauthorized", 404: "not-found"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer. `media` is the bare content type in lower case."""

    status: int
    media: str
    retry_after: str
    content: bytes


def judge(answer: Answer, now: float) -> Failure | str:
    """The failure, or the collector's warning of a success ("" mostly). `now` is a Unix time in seconds.

    Texts of the collector are in it as they came.
    """
    if not 200 <= answer.status < 300:  # noqa: PLR2004  # what HTTP calls a success
        return _refusal(answer, now)
    try:
        partial = _decode(answer).partial_success
    except Retryable as failure:
        return failure
    if partial.rejected_log_records > 0:
        return Permanent("rejected", f"by the collector: {partial.error_message or 'it gives no reason'}")
    return str(partial.error_message)


def _refusal(answer: Answer, now: float) -> Failure:
    status, told = answer.status, _status_message(answer)
    detail = f"HTTP {status}: {told}" if told else f"HTTP {status}"
    if status in _PERMANENT:
        return Permanent(_PERMANENT[status], detail)
    wait = parse_retry_after(answer.retry_after, now, MAX_RETRY_AFTER)
    if status in _WEATHER:
        return Retryable(_WEATHER[status], detail, retry_after=wait)
    redirect = 300 <= status < 400  # noqa: PLR2004  # what HTTP calls a redirection
    reason: Reason = "redirect" if redirect else _FOR_A_PERSON.get(status, "other")
    return Retryable(reason, detail, retry_after=wait, needs_operator=True)


def _decode(answer: Answer) -> ExportLogsServiceResponse:
    """The message of a success. Nothing at all is one too: so answer some backends, with 200, 202 or 204."""
    decoded = ExportLogsServiceResponse()
    try:
        if answer.media == _PROTOBUF:
            decoded.ParseFromString(answer.content)
        elif answer.media == _JSON and answer.content:
            json_format.Parse(answer.content, decoded)
        elif answer.content or answer.media not in (*_SAYS_NOTHING, _JSON):
            shown = re.sub(r"[^\w/+.-]", "?", answer.media)[:60] or "without a content type"
            raise Retryable(
                "protocol", f"a success that is not OTLP ({shown}); is it the right address?", needs_operator=True
            )
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise Retryable(
            "protocol", f"a success that cannot be decoded as {answer.media}", needs_operator=True
        ) from error
    return decoded


def _status_message(answer: Answer) -> str:
    """The sentence of a `google.rpc.Status`, which OTLP asks for in refusals; any other body is not repeated."""
    if answer.media != _PROTOBUF:
        return ""
    status = Status()
    try:
        status.ParseFromString(answer.content)
    except DecodeError:
        return ""
    return str(status.message)


def unanswered(error: Exception) -> Retryable:
    """What it means when requests raises. Its texts are not repeated: they hold whole addresses and headers."""
    names = _names(error)
    last = names[-1]
    if {"SSLCertVerificationError", "CertificateError"} & set(names):
        return Retryable("tls", "the collector's certificate is not trusted", needs_operator=True)
    if isinstance(error, requests.exceptions.SSLError):
        return Retryable("tls", f"TLS could not be agreed ({last})")
    if isinstance(error, requests.Timeout | TimeoutError) or "ReadTimeoutError" in names:
        return Retryable("timeout", "no answer in time")
    if {"NameResolutionError", "gaierror"} & set(names):
        return Retryable("dns", "the collector's name is not known")
    if isinstance(error, requests.exceptions.ProxyError):
        return Retryable("connect", f"the proxy cannot be reached or refuses ({last})")
    if isinstance(error, requests.ConnectionError | urllib3.exceptions.ProtocolError | ConnectionError):
        return Retryable("connect", f"the collector cannot be reached or hung up ({last})")
    if isinstance(error, ValueError):  # every complaint of requests about an address or a header is one
        return Retryable("configuration", f"an address or header that cannot work ({last})", needs_operator=True)
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException):
        return Retryable(
            "configuration", f"a certificate or key file that cannot be read ({last})", needs_operator=True
        )
    return Retryable("other", last)


def _names(error: BaseException) -> list[str]:
    """The class names of an exception and of what it wraps, the outermost first."""
    names: list[str] = []
    current: object = error
    while isinstance(current, BaseException) and len(names) < 20:  # noqa: PLR2004  # a bound; chains are short
        names.append(type(current).__name__)
        reason = getattr(current, "reason", None)
        wrapped = [thing for thing in (reason, *current.args) if isinstance(thing, BaseException)]
        current = wrapped[0] if wrapped else current.__cause__
    return names
