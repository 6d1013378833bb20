"""What the other packages need of a log: `log.Log` and `NullLogger` have this shape."""

from __future__ import annotations

from typing import Any, Protocol


class Logger(Protocol):
    """Events, each a name plus fields. A repeating failure is logged once (`failing`), then counted, and logged to be
    over (`recovered`) if there was one; `key` tells one failure from another."""

    def info(self, event: str, **fields: object) -> None:
        """Something that went as it should."""

    def warn(self, event: str, **fields: object) -> None:
        """Something that a person should look at in the morning."""

    def error(self, event: str, **fields: object) -> None:
        """Something that a person should look at now."""

    def failing(self, key: str, event: str, **fields: Any) -> None:
        """A failure that may repeat: a line at first, then one now and then with the number of those between."""

    def recovered(self, key: str, event: str, **fields: Any) -> None:
        """The failure of this key has ended: a line, if there was one and it stays away for `quiet` seconds."""


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
