"""Times on the command lines: an instant, or how long ago."""

from __future__ import annotations

import argparse
import contextlib
from datetime import UTC, datetime, timedelta

from exporter.commands.replay.entries import of_this_age, read_time
from exporter.text.format import parse_duration
from exporter.text.values import describe


def time_argument(text: str, words: str = "") -> datetime:
    """The instant that was given (RFC 3339), or that is a duration ago. Raises `argparse.ArgumentTypeError`.

    `words` are what else the flag takes, for the error.
    """
    if (instant := read_time(text)) is not None:
        return instant
    with contextlib.suppress(ValueError, OverflowError):
        instant = of_this_age(datetime.now(UTC) - timedelta(seconds=parse_duration(text)))
    if instant is None:
        raise argparse.ArgumentTypeError(
            f"expected {words}a time such as 2026-03-02T09:00:00Z or how long ago, such as 1h, found {describe(text)}"
        )
    return instant
