"""Translates the errors of Azure's Event Hubs SDK: the record's own fault, transient, or for an operator. One table.

By the AMQP condition, never by class: an unknown event hub and a missing Send claim are both raised as
`ConnectionLostError`. The SDK keeps in `error` what stands behind the first colon of the condition. Whatever is not
known is not the record's fault: it is kept, and tried again slowly.
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

BUSY_SECONDS: Final = 4.0  # the service's own advice after server-busy, which the SDK does not follow
_MAX_CHAIN: Final = 20
_CONDITION: Final = re.compile(r"[a-z:-]{1,64}")
"""What a condition looks like. The other side may send anything as one, also the token that it was given."""


class _Meaning(Struct, frozen=True):
    """What becomes of an error: the arguments of its `Failure`."""

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
# The hub answered: what it closed the link for may be one of the records, such as a message over its limit.
_CLOSED_LINK: Final = _Meaning("other", smaller=True, sentence="Event Hubs closed the link and the SDK keeps no reason")

_BY_CONDITION: Final[Mapping[str, _Meaning]] = {
    # the record's own
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

# Conditions of the SDK's own, not the service's: the exception behind it is the better source, if there is one.
_BY_OWN_CONDITION: Final[Mapping[str, _Meaning]] = {
    "socket-error": _LOST,
    "unknown-error": _CLOSED_LINK,
    "client-error": _UNAUTHORIZED,  # a token was refused; over websocket also a connection that cannot be made
}

_SENTENCES: Final[Mapping[Reason, str]] = {
    "connect": "Event Hubs cannot be reached or hung up",
    "dns": "the name of the namespace is not known",
    "tls": "the certificate is not trusted, or the other side does not speak TLS",
    "timeout": "Event Hubs did not answer in time",
    "throttled": "Event Hubs asks to slow down",
    "unavailable": "Event Hubs cannot at the moment",
    "unauthorized": "Event Hubs refuses the credential: expired, wrong, or without the claim Send",
    "not-found": "there is no event hub of this name",
    "redirect": "Event Hubs sends us elsewhere",
    "configuration": "a package that the SDK needs is missing or too old",
    "rejected": "Event Hubs refuses this record",
    "too-large": "larger than Event Hubs takes",
}


def translate(error: BaseException) -> Failure:
    """The failure that `error` of the SDK means. Its own text is not repeated: it may hold a token."""
    if isinstance(error, ValueError | TypeError):  # the SDK's own checks of a message; the service's come as conditions
        return Permanent("rejected", f"the SDK cannot send it ({type(error).__name__})")
    condition = str(getattr(error, "error", None) or "")
    meaning = _BY_CONDITION.get(condition) or _by_cause(error) or _BY_OWN_CONDITION.get(condition, _UNKNOWN)
    sentence = meaning.sentence or _SENTENCES.get(meaning.reason, "Event Hubs failed in a way that is not known")
    shown = condition if _CONDITION.fullmatch(condition) else type(error).__name__
    detail = f"{sentence} ({shown})"
    if meaning.permanent:
        return Permanent(meaning.reason, detail)
    return Retryable(
        meaning.reason,
        detail,
        retry_after=meaning.retry_after,
        needs_operator=meaning.needs_operator,
        smaller=meaning.smaller,
    )


def _by_cause(error: BaseException) -> _Meaning | None:
    """The meaning of the system's or of TLS's error behind this one; None where there is none."""
    for cause in _chain(error):
        if isinstance(cause, socket.gaierror):
            return _Meaning("dns")
        if isinstance(cause, ImportError):  # the SDK imports late what it needs for a websocket
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
    """`error` and all that it came from, the innermost first. The SDK hides causes with `from None`."""
    chain = [error]
    for current in chain:
        links = (current.__cause__, current.__context__, getattr(current, "os_error", None), *current.args)
        chain += [link for link in links if isinstance(link, BaseException) and link not in chain]
        if len(chain) > _MAX_CHAIN:
            break
    return reversed(chain)
