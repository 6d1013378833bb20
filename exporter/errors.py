"""How anything outside can fail us, said in the type: whose fault it is and whether to try again.

    Failure              something outside did not do what we asked
    ├── Retryable        weather: try again, sooner or later (`retry_after`, `needs_operator`)
    ├── Permanent        this very thing will never be taken: it becomes a dead letter
    ├── SourceFailure    the metadata service gave no usable answer; `MetadataError` in `metadata.errors`
    └── OutboxError      the disk: `outbox.errors`

Foreign exceptions are translated into these at the border, in one table per backend, with the cause kept. `reason` is a
word of a small closed set: it is a metric label and a log field. `str(failure)` never holds a secret.
"""

from __future__ import annotations

from typing import Final

from exporter.retry import Backoff

SOURCE_BACKOFF: Final = Backoff(1.0, 1.8)
"""The next poll comes within 2 s of a bad answer, also on a busy machine: a Spot eviction has 30 s of notice."""


class Failure(Exception):
    """Something outside did not do what we asked.

    `reason` is a closed word and `detail` a sentence for a person. `status_code` is the HTTP status that was answered,
    `retry_after` how long the other side asks to be left alone, in seconds; each None where there was none.
    """

    def __init__(
        self, reason: str, detail: str = "", *, status_code: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.status_code = status_code
        self.retry_after = retry_after


class Retryable(Failure):
    """Try again; slowly where `needs_operator`: only a person can mend it."""

    def __init__(
        self, reason: str, detail: str = "", *, retry_after: float | None = None, needs_operator: bool = False
    ) -> None:
        super().__init__(reason, detail, retry_after=retry_after)
        self.needs_operator = needs_operator


class SourceFailure(Failure):
    """The metadata service gave no usable answer. `failures` says how many in a row, this one included."""

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
        """Seconds to leave the service alone: less than 2, or as long as it asks."""
        return max(SOURCE_BACKOFF.after(self.failures), self.retry_after or 0.0)


class Permanent(Failure):
    """Never try this very thing again."""
