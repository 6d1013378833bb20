"""The failures of everything outside, by type: whose fault it is, whether to try again, and after how long.

    Failure              something outside did not do what was requested
    ├── Retryable        a failure that may pass: try again, at once or slowly (`retry_after`, `needs_operator`)
    ├── Permanent        this request will never be accepted
    ├── PartlyRejected   accepted but for some records that are not named
    ├── SourceFailure    the metadata service gave no usable answer; `MetadataError` in `metadata.errors`
    └── OutboxError      the disk: `outbox.errors`

Foreign exceptions are translated into these at the border, in one table per backend, with the cause kept. `reason` is a
word of a small closed set: it is a metric label and a log field. `str(failure)` never holds a secret.

`Backoff` is the one backoff, `parse_retry_after` the one reader of `Retry-After`. `DONE`, `FAILED` and `BAD_USAGE` are
what every command ends with.
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
"""Also bad configuration. argparse ends with the same for a bad command line."""

_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")  # a fraction is no RFC's, and some send one
_DOUBLINGS: Final = 30  # more would only overflow


class Backoff(Struct, frozen=True):
    """Waits that double from `first` up to `most`, both in seconds."""

    first: float
    most: float

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; after fewer than two it is `first`."""
        return min(self.most, self.first * 2.0 ** min(max(failures, 1) - 1, _DOUBLINGS))


SOURCE_BACKOFF: Final = Backoff(1.0, 1.8)
"""The next poll comes within 2 s of a bad answer, also on a busy machine: a Spot eviction has 30 s of notice."""


class Failure(Exception):
    """Something outside did not do what was requested.

    `reason` is a closed word and `detail` a sentence for a person. `status_code` is the HTTP status that was answered,
    `retry_after` is `Retry-After` in seconds; each None where there was none.
    """

    acknowledged: frozenset[str] = frozenset()
    """The ids of those records of a `send` that were acknowledged all the same."""

    def __init__(
        self, reason: str, detail: str = "", *, status_code: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.status_code = status_code
        self.retry_after = retry_after


class Retryable(Failure):
    """Try again; slowly where `needs_operator`: only a person can mend it.

    `smaller` says that a smaller request may get through where this one did not.
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
    """The metadata service gave no usable answer. `failures` is how many polls failed in a row, this one included."""

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
        """Seconds until the next request: less than 2, or `retry_after` if that is more."""
        return max(SOURCE_BACKOFF.after(self.failures), self.retry_after or 0.0)


class Permanent(Failure):
    """This request will never be accepted as it is."""


class PartlyRejected(Failure):
    """A request was accepted but for `rejected` of its records. It may not be sent again, and the answer does not say
    which they are."""

    def __init__(self, reason: str, detail: str, *, rejected: int) -> None:
        super().__init__(reason, detail)
        self.rejected = rejected


def parse_retry_after(text: str, now: float, most: float) -> float | None:
    """Seconds from `now` (POSIX), 0 to `most`, by either form of the header (RFC 9110 §10.2.3); None for nonsense."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), most)
    instant = parse_http_date(text)
    return None if instant is None else min(max(instant - now, 0.0), most)


def parse_http_date(text: str) -> float | None:
    """POSIX seconds out of a date as HTTP writes it (RFC 9110 §5.6.7); None for nonsense."""
    try:
        seconds = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return seconds if math.isfinite(seconds) else None
