"""How long to wait before trying again: the one backoff and the one reader of `Retry-After`."""

from __future__ import annotations

import math
import re
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

_SECONDS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")  # a fraction is no RFC's, and some send one
_DOUBLINGS: Final = 30  # more would only overflow


class Backoff(Struct, frozen=True):
    """Waits that double from `first` up to `most`, both in seconds."""

    first: float
    most: float

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; after fewer than two it is `first`."""
        return min(self.most, self.first * 2.0 ** min(max(failures, 1) - 1, _DOUBLINGS))


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
