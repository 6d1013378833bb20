"""How anything outside can fail us, said in the type: whose fault it is and whether to try again.

    Failure
    ├── Retryable    weather: try again (sooner or later, see `retry_after` and `slow`)
    └── Permanent    this very thing will never be taken: park it

Foreign exceptions are translated into these at the border, in one place per backend, with the cause kept. `reason` is a
word of a small closed set: it is a metric label and a log field. `str(failure)` never holds a secret.
"""

from __future__ import annotations

from typing import Final


class Failure(Exception):
    """Something outside did not do what we asked. `reason` is a closed word, `detail` a sentence for a person."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


BACKOFF_SECONDS: Final = (1.0, 1.8)
"""After the first bad answer of the source, and after each further one in a row: the next poll comes within 2 s, also
on a busy machine, since a Spot eviction has 30 s of notice."""


def backoff(failures: int) -> float:
    """Seconds to leave the source alone after so many bad answers in a row."""
    return BACKOFF_SECONDS[min(max(failures, 1), len(BACKOFF_SECONDS)) - 1]


class Retryable(Failure):
    """Try again. `retry_after` in seconds when the other side said so; `slow` when only a person can mend it."""

    def __init__(self, reason: str, detail: str = "", *, retry_after: float | None = None, slow: bool = False) -> None:
        super().__init__(reason, detail)
        self.retry_after = retry_after
        self.slow = slow


class Permanent(Failure):
    """Never try this very thing again."""
