"""The closed set of reasons for a failed send: the label `reason` of `destination_send_failures_total`.

Shared by all destinations, in a separate module, so that the metrics catalogue can use it without a backend.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Reason = Literal[
    "connect",  # no listener, or a lost connection
    "dns",  # unknown host name
    "tls",  # untrusted certificate, or failed TLS handshake
    "timeout",  # no response within the deadline
    "throttled",  # rate limit of the backend
    "unavailable",  # temporary error of the backend
    "unauthorized",  # missing, wrong, or expired credential
    "not-found",  # unknown path or event hub
    "redirect",  # redirect to another address, usually a sign-in page
    "rejected",  # record rejected by the backend
    "too-large",  # record larger than the backend's limit
    "protocol",  # response that does not match the request
    "configuration",  # unusable settings
    "closed",  # the agent is stopping
    "other",
]

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
