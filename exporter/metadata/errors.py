"""Every way in which a request to the metadata service can fail, and the delay before the next request.

Failure
└── SourceFailure
    └── MetadataError    reason: one of REASONS · status_code, retry_after, failures, delay()
"""

from __future__ import annotations

import re
import socket
import ssl
from typing import Literal, get_args

from exporter.errors import SourceFailure
from exporter.http.deadline import Aborted, Exchange, Flooded, Stage
from exporter.http.transport import InvalidAnswer

Reason = Literal[
    "timeout",  # deadline exceeded, in any phase
    "connect",  # refused, unreachable
    "dns",  # the host of a configured URL has no address
    "tls",  # a configured https URL: handshake or certificate
    "reset",  # the connection broke before the response was complete
    "protocol",  # not HTTP
    "redirect",  # 3xx: never followed
    "status-400",  # the request or the api-version is wrong
    "forbidden",  # 401, 403: the Metadata Security Protocol, or something in between, refuses this process
    "not-found",  # 404
    "gone",  # 410: up to 70 seconds
    "throttled",  # 429: five requests a second for the whole VM
    "server-error",  # 5xx
    "status-other",
    "too-large",
    "encoding",  # compressed, although identity was requested
    "malformed",  # 200, but not the expected JSON: raised by the parser
    "aborted",  # the agent is shutting down
]
REASONS: tuple[Reason, ...] = get_args(Reason)

FORBIDDEN_SECONDS = 30.0
RETRY_AFTER_SECONDS = 60.0

_DETAIL_CHARACTERS = 200
_STATUS_REASONS: dict[int, Reason] = {
    400: "status-400",
    401: "forbidden",
    403: "forbidden",
    404: "not-found",
    410: "gone",
    429: "throttled",
}
_CLASS_REASONS: dict[int, Reason] = {3: "redirect", 5: "server-error"}


class MetadataError(SourceFailure):
    """A failed request to the metadata service. The detail is human-readable and contains nothing of the request.

    `status_code` is the HTTP status, None without a response; `retry_after` is `Retry-After` in seconds (0 to 60);
    `failures` is the number of consecutive failed polls, including this one.
    """

    def delay(self) -> float:
        """Return the seconds until the next request: below 2, at least 30 after 401 or 403, at least `Retry-After`."""
        return max(FORBIDDEN_SECONDS if self.reason == "forbidden" else 0.0, super().delay())


def status_reason(code: int) -> Reason:
    """Return the reason for a status other than 200."""
    return _STATUS_REASONS.get(code) or _CLASS_REASONS.get(code // 100, "status-other")


FOREIGN = (
    Aborted,
    Flooded,
    OSError,
    InvalidAnswer,
    ValueError,  # of the HTTP library, for unexpected numbers and letters in headers
)
"""All exceptions that an exchange is known to raise. Any other is a bug, not a failure of the service."""

_STAGE_REASONS: dict[Stage, Reason] = {Stage.CONNECT: "connect", Stage.TLS: "tls", Stage.EXCHANGE: "reset"}


def translate(error: Exception, exchange: Exchange) -> MetadataError:
    """Translate a foreign exception by its type, then by the exchange's stage. The caller keeps the cause."""
    table: tuple[tuple[type[Exception], Reason], ...] = (
        (Aborted, "aborted"),
        (Flooded, "too-large"),
        (TimeoutError, "timeout"),
        (socket.gaierror, "dns"),
        (ssl.SSLError, "tls"),
        (OSError, _STAGE_REASONS[exchange.stage]),
        (Exception, "reset" if exchange.ended or not exchange.received else "protocol"),
    )
    reason = next(word for kind, word in table if isinstance(error, kind))
    # Messages of the HTTP library quote the peer; the others come from this package or the system.
    own = isinstance(error, Aborted | Flooded | OSError)
    text = (isinstance(error, OSError) and error.strerror) or str(error)  # without "[Errno 111] " before the sentence
    return MetadataError(reason, one_line(text) if own else "the data received is not a complete HTTP response")


_MARKUP = re.compile(r"<(?:!doctype|html|head|body|\?xml|title|h1)\b", re.IGNORECASE)


def is_page(text: str) -> bool:
    """Return whether this is the beginning of an HTML or XML page, possibly after a few words."""
    return text.startswith("<") or _MARKUP.search(text) is not None


def one_line(text: str) -> str:
    """Return a foreign text as one printable line of at most 200 characters, for the log."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:_DETAIL_CHARACTERS]
