"""The closed set of reasons for a failed send: the label `reason` of `destination_send_failures_total`.

Shared by all destinations, and apart from them, so that the catalogue of metrics can name it without a backend.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Reason = Literal[
    "connect",  # no listener, or the connection broke
    "dns",  # the name of the other side is not known
    "tls",  # the certificate is not trusted, or TLS could not be agreed
    "timeout",  # no answer within the deadline
    "throttled",  # the other side limits the rate
    "unavailable",  # the other side reports a fault of its own that passes
    "unauthorized",  # a missing, wrong or expired credential
    "not-found",  # the other side does not know this path or this event hub
    "redirect",  # to another address; mostly to a page for signing in
    "rejected",  # the other side refuses this record
    "too-large",  # this record is larger than the other side takes
    "protocol",  # an answer that does not fit the request
    "configuration",  # the settings cannot work
    "closed",  # the agent is stopping
    "other",
]

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
