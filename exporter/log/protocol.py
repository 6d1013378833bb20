"""What the scrape endpoint needs of a log: the agent's own (`log.Log`) has this shape."""

from __future__ import annotations

from typing import Any, Protocol


class Log(Protocol):
    """Events with fields. `trouble` says a repeating failure once, `over` that it has ended, if there was one."""

    def info(self, event: str, **fields: object) -> None: ...
    def trouble(self, key: str, event: str, **fields: Any) -> None: ...
    def over(self, key: str, event: str, **fields: Any) -> None: ...


class Silence:
    """Says nothing, for who has no log."""

    def info(self, event: str, **fields: object) -> None:
        """Nothing."""

    def trouble(self, key: str, event: str, **fields: Any) -> None:
        """Nothing."""

    def over(self, key: str, event: str, **fields: Any) -> None:
        """Nothing."""
