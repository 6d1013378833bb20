"""Translation of errors of Azure's Event Hubs SDK: caused by the record, transient, or for an operator.

It uses the AMQP condition, never the class: the SDK raises an unknown event hub and a missing Send claim both as
`ConnectionLostError`. The SDK's `error` is the condition after its first colon. An unknown error isn't attributed to
the record: the record is kept and retried slowly.
https://learn.microsoft.com/azure/event-hubs/exceptions-dotnet, https://learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from exporter.errors import Failure, Permanent, Retryable
from exporter.sinks.reasons import Reason

BUSY_SECONDS: Final = 4.0  # the service's advice after server-busy, which the SDK ignores
_MAX_CHAIN: Final = 20
_CONDITION: Final = re.compile(r"[a-z:-]{1,64}")
"""Valid form of a condition. A peer can send any text as one, including the token that it received."""


class _Meaning(Struct, frozen=True):
    """Arguments of the `Failure` for an error."""

    reason: Reason
    permanent: bool = False
    needs_operator: bool = False
    retry_after: float | None = None
    smaller: bool = False
    sentence: str = ""


_REJECTED: Final = _Meaning("rejected", permanent=True)
_TOO_LARGE: Final = _Meaning("too-large", permanent=True)
_BUSY: Final = _Meaning("throttled", retry_after=BUSY_SECONDS)
_UNAVAILABLE: Final = _Meaning("unavailable")
_LOST: Final = _Meaning("connect")
_UNAUTHORIZED: Final = _Meaning("unauthorized", needs_operator=True)
_NOT_FOUND: Final = _Meaning("not-found", needs_operator=True)
_UNKNOWN: Final = _Meaning("other", needs_operator=True)
# The hub responded: the cause may be one of the records, for example a message over its limit.
_DETACH: Final = _Meaning("other", smaller=True, sentence="Event Hubs closed the link, and the SDK provides no reason")

_BY_CONDITION: Final[Mapping[str, _Meaning]] = {
    # caused by the record
    "link:message-size-exceeded": _TOO_LARGE,
    "argument-error": _REJECTED,
    "argument-out-of-range": _REJECTED,
    "decode-error": _REJECTED,
    # transient
    "server-busy": _BUSY,
    "resource-limit-exceeded": _BUSY,  # also too many connections in the namespace
    "timeout": _Meaning("timeout"),
    "operation-cancelled": _UNAVAILABLE,
    "internal-error": _UNAVAILABLE,
    "connection:forced": _UNAVAILABLE,
    "connection:framing-error": _LOST,
    "link:detach-forced": _UNAVAILABLE,
    # for an operator
    "unauthorized-access": _UNAUTHORIZED,
    "auth-failed": _UNAUTHORIZED,
    "publisher-revoked": _UNAUTHORIZED,
    "not-found": _NOT_FOUND,
    "resource-deleted": _NOT_FOUND,
    "entity-disabled": _Meaning("unavailable", needs_operator=True),
    "connection:redirect": _Meaning("redirect", needs_operator=True),
    "link:redirect": _Meaning("redirect", needs_operator=True),
}

# Conditions of the SDK, not of the service: the causing exception, if any, is more exact.
_BY_OWN_CONDITION: Final[Mapping[str, _Meaning]] = {
    "socket-error": _LOST,
    "unknown-error": _DETACH,
    "client-error": _UNAUTHORIZED,  # a rejected token; over websocket also a failed connection
}

_SENTENCES: Final[Mapping[Reason, str]] = {
    "connect": "Event Hubs is unreachable or closed the connection",
    "dns": "the namespace's host name is unknown",
    "tls": "the certificate is not trusted, or the peer does not use TLS",
    "timeout": "Event Hubs did not respond in time",
    "throttled": "Event Hubs throttles requests",
    "unavailable": "Event Hubs is temporarily unavailable",
    "unauthorized": "Event Hubs rejected the credential: expired, invalid, or without the Send claim",
    "not-found": "the event hub does not exist",
    "redirect": "Event Hubs redirects to another address",
    "configuration": "a package that the SDK needs is missing or too old",
    "rejected": "Event Hubs rejected this record",
    "too-large": "the record exceeds the limit of Event Hubs",
}


def translate(error: BaseException) -> Failure:
    """Return the failure for an `error` of the SDK, without its text, which can contain a token."""
    if isinstance(error, ValueError | TypeError):  # the SDK's message checks; the service's are conditions
        return Permanent("rejected", f"the SDK cannot send the record ({type(error).__name__})")
    condition = str(getattr(error, "error", None) or "")
    entry = _BY_CONDITION.get(condition) or _by_cause(error) or _BY_OWN_CONDITION.get(condition, _UNKNOWN)
    sentence = entry.sentence or _SENTENCES.get(entry.reason, "unknown error of Event Hubs")
    shown = condition if _CONDITION.fullmatch(condition) else type(error).__name__
    detail = f"{sentence} ({shown})"
    if entry.permanent:
        return Permanent(entry.reason, detail)
    return Retryable(
        entry.reason, detail, retry_after=entry.retry_after, needs_operator=entry.needs_operator, smaller=entry.smaller
    )


def _by_cause(error: BaseException) -> _Meaning | None:
    """Return the meaning of a system or TLS error in the chain of causes; None if there is none."""
    for cause in _chain(error):
        if isinstance(cause, socket.gaierror):
            return _Meaning("dns")
        if isinstance(cause, ImportError):  # the SDK imports its websocket packages late
            return _Meaning("configuration", needs_operator=True)
        if isinstance(cause, ssl.SSLError):
            return _Meaning("tls", needs_operator=True)
        if isinstance(cause, TimeoutError):
            return _Meaning("timeout")
        if isinstance(cause, OSError):
            return _LOST
        if type(cause).__name__ in ("ClientAuthenticationError", "CredentialUnavailableError"):  # azure-core's
            return _UNAUTHORIZED
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return `error` and all its causes, innermost first, including those that the SDK hides with `from None`."""
    chain = [error]
    for current in chain:
        links = (current.__cause__, current.__context__, getattr(current, "os_error", None), *current.args)
        chain += [link for link in links if isinstance(link, BaseException) and link not in chain]
        if len(chain) > _MAX_CHAIN:
            break
    return reversed(chain)
