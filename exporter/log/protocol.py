"""The protocol by which other packages write to a log; `log.Log` and `NullLogger` implement it."""

from __future__ import annotations

from typing import Any, Protocol


class Logger(Protocol):
    """A log of events, each a name plus fields. A repeating failure is logged once (`failing`), then counted, and its
    end is logged (`recovered`); `key` identifies the failure."""

    def info(self, event: str, **fields: object) -> None:
        """Log something that is expected."""

    def warn(self, event: str, **fields: object) -> None:
        """Log something that a person should examine within a day."""

    def error(self, event: str, **fields: object) -> None:
        """Log something that a person should examine now."""

    def failing(self, key: str, event: str, **fields: Any) -> None:
        """Log a failure that may repeat: a line at first, then one now and then with the number of those between."""

    def recovered(self, key: str, event: str, **fields: Any) -> None:
        """Log that the failure of this key has ended, if there was one and it does not return for `quiet` seconds."""


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
