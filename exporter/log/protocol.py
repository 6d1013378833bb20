"""The protocol by which other packages write to a log; `log.Log` and `NullLogger` implement it."""

from __future__ import annotations

from typing import Any, Protocol


class Logger(Protocol):
    """A log of events, each a name plus fields.

    A repeating failure is logged once (`failing`), then counted, and its end is logged (`recovered`); `key` identifies
    the failure.
    """

    def info(self, event: str, **fields: object) -> None:
        """Log an expected event."""

    def warn(self, event: str, **fields: object) -> None:
        """Log an event that needs attention within a day."""

    def error(self, event: str, **fields: object) -> None:
        """Log an event that needs attention now."""

    def failing(self, key: str, event: str, **fields: Any) -> None:
        """Log a failure that may repeat: one line at first, then occasional lines with the number of repeats."""

    def recovered(self, key: str, event: str, **fields: Any) -> None:
        """Log that the failure `key` has ended, if there was one and it doesn't return within `quiet` seconds."""


class NullLogger:
    """A log that writes nothing."""

    def info(self, event: str, **fields: object) -> None:
        """Do nothing."""

    def warn(self, event: str, **fields: object) -> None:
        """Do nothing."""

    def error(self, event: str, **fields: object) -> None:
        """Do nothing."""

    def failing(self, key: str, event: str, **fields: Any) -> None:
        """Do nothing."""

    def recovered(self, key: str, event: str, **fields: Any) -> None:
        """Do nothing."""
