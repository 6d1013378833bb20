"""The failures of external systems, by type: the cause, whether to retry, and after how long.

    Failure              an external system did not do what was requested
    ├── Retryable        may pass: retry, soon or slowly (`retry_after`, `needs_operator`)
    ├── Permanent        this request will never be accepted
    ├── PartlyRejected   accepted except for some records, which aren't named
    ├── SourceFailure    no usable response of the metadata service; `MetadataError` in `metadata.errors`
    └── OutboxError      the disk: `outbox.errors`

Foreign exceptions are translated into these at the boundary, in one table per backend, and kept as the cause. `reason`
is from a small closed set: it is a metric label and a log field. `str(failure)` never contains a secret.

Every retry uses `Backoff`, and every `Retry-After` is read by `parse_retry_after`. `DONE`, `FAILED`, and `BAD_USAGE`
are the exit codes of all commands.
"""

from __future__ import annotations

import math
import re
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

DONE: Final = 0
FAILED: Final = 1
BAD_USAGE: Final = 2
"""Also for an invalid configuration. argparse uses the same code for an invalid command line."""

_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")  # no RFC allows a fraction, but some servers send one
_DOUBLINGS: Final = 30  # more could overflow


class Backoff(Struct, frozen=True):
    """Delays that double from `first` up to `most`, both in seconds."""

    first: float
    most: float

    def after(self, failures: int) -> float:
        """Return the seconds to wait after this many consecutive failures; `first` after fewer than two."""
        return min(self.most, self.first * 2.0 ** min(max(failures, 1) - 1, _DOUBLINGS))


SOURCE_BACKOFF: Final = Backoff(1.0, 1.8)
"""After a failure the next poll comes within 2 s, even on a busy machine: a Spot eviction has 30 s of notice."""


class Failure(Exception):
    """An external system did not do what was requested.

    `reason` is from a closed set; `detail` is human-readable. `status_code` is the HTTP status of the response,
    `retry_after` is `Retry-After` in seconds; each is None if there was none.
    """

    acknowledged: frozenset[str] = frozenset()
    """The ids of the records of a failed `send` that were acknowledged nevertheless."""

    def __init__(
        self, reason: str, detail: str = "", *, status_code: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.status_code = status_code
        self.retry_after = retry_after


class Retryable(Failure):
    """A failure to retry; slowly if `needs_operator`: only an operator can fix it.

    `smaller`: a smaller request may succeed.
    """

    def __init__(
        self,
        reason: str,
        detail: str = "",
        *,
        retry_after: float | None = None,
        needs_operator: bool = False,
        smaller: bool = False,
    ) -> None:
        super().__init__(reason, detail, retry_after=retry_after)
        self.needs_operator = needs_operator
        self.smaller = smaller


class SourceFailure(Failure):
    """A poll without a usable response. `failures` is the number of consecutive failed polls, including this one."""

    def __init__(
        self,
        reason: str,
        detail: str = "",
        *,
        status_code: int | None = None,
        retry_after: float | None = None,
        failures: int = 1,
    ) -> None:
        super().__init__(reason, detail, status_code=status_code, retry_after=retry_after)
        self.failures = failures

    def delay(self) -> float:
        """Return the seconds until the next request: less than 2, or `retry_after` if that is more."""
        return max(SOURCE_BACKOFF.after(self.failures), self.retry_after or 0.0)


class Permanent(Failure):
    """A request that will never be accepted unchanged."""


class PartlyRejected(Failure):
    """A request was accepted except for `rejected` of its records, which the response doesn't name.

    It must not be sent again.
    """

    def __init__(self, reason: str, detail: str, *, rejected: int) -> None:
        super().__init__(reason, detail)
        self.rejected = rejected


def parse_retry_after(text: str, now: float, most: float) -> float | None:
    """Return the seconds from `now` (POSIX), 0 to `most`, of either form (RFC 9110 §10.2.3); None if invalid."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), most)
    instant = parse_http_date(text)
    return None if instant is None else min(max(instant - now, 0.0), most)


def parse_http_date(text: str) -> float | None:
    """Return the POSIX seconds of an HTTP date (RFC 9110 §5.6.7); None if invalid."""
    try:
        seconds = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return seconds if math.isfinite(seconds) else None
