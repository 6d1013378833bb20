"""What the rooms need of a log. `log.Log` has this shape, and so has a test's."""

from __future__ import annotations

from typing import Any, Protocol


class Logger(Protocol):
    """Events, each a name plus fields. A repeating failure is said once (`failing`), then counted, and said to have
    ended (`recovered`) if there was one; `key` tells one failure from another."""

    def info(self, event: str, **fields: object) -> None:
        """Something that went as it should."""

    def warn(self, event: str, **fields: object) -> None:
        """Something that a person should look at in the morning."""

    def error(self, event: str, **fields: object) -> None:
        """Something that a person should look at now."""

    def failing(self, key: str, event: str, **fields: Any) -> None:
        """A failure that may repeat: a line at first, then one now and then with the number of those between."""

    def recovered(self, key: str, event: str, **fields: Any) -> None:
        """The failure of this key has ended. Silent where there was none."""


class NullLogger:
    """A log that writes nothing."""

    def info(self, event: str, **fields: object) -> None:
        """Nothing."""

    def warn(self, event: str, **fields: object) -> None:
        """Nothing."""

    def error(self, event: str, **fields: object) -> None:
        """Nothing."""

    def failing(self, key: str, event: str, **fields: Any) -> None:
        """Nothing."""

    def recovered(self, key: str, event: str, **fields: Any) -> None:
        """Nothing."""
