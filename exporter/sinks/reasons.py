"""Why a send failed, in one word: the label `reason` of `destination_send_failures_total`, shared by both destinations.

Kept apart from the destinations so that a catalogue of metrics can name the words without importing any backend.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Reason = Literal[
    "connect",  # nobody listens, or the connection broke
    "dns",  # the name of the other side is not known
    "tls",  # the certificate is not trusted, or TLS could not be agreed
    "timeout",  # no answer within the deadline
    "throttled",  # the other side asked us to slow down
    "unavailable",  # the other side says that it cannot at the moment
    "unauthorized",  # a missing, wrong or expired credential
    "not-found",  # the other side does not know this path or this event hub
    "redirect",  # we were sent elsewhere; a log in page, mostly
    "rejected",  # the other side will never take this record
    "too-large",  # this record is larger than the other side takes
    "protocol",  # an answer that is not an answer to what we asked
    "configuration",  # our settings cannot work
    "closed",  # we are going down
    "other",
]

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
