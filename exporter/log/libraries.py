"""Redirects what libraries report through `logging` and `warnings` into the agent's own log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from exporter.choices import LogLevel
from exporter.log.log import Log

QUIET: Final[Mapping[str, int]] = {
    **dict.fromkeys(("azure", "azure.eventhub", "aiohttp", "asyncio"), logging.ERROR),
    **dict.fromkeys(
        ("opentelemetry.exporter", "opentelemetry.sdk", "opentelemetry.attributes"),
        logging.CRITICAL,
    ),
}
"""Loggers and the level below which their messages are dropped: a failed send is logged as such. azure.eventhub warns
about each reconnect of an idle link, which is normal here; OpenTelemetry repeats values."""


class LibraryHandler(logging.Handler):
    """One handler for all libraries. A message that a library repeats is logged as a failure that does: once, then each
    hour with the number of repeats."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one message on; a message that can't be formatted is passed on as it is."""
        fields: dict[str, Any] = {"logger": record.name, "message": _message(record)}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = record.exc_info[1]
        level: LogLevel = "error" if record.levelno >= logging.ERROR else "warn"
        self._log.failing(f"library.{record.name}.{str(record.msg)[:200]}", "library.message", level=level, **fields)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is logging's
        """Do nothing: the standard one prints a traceback, with the arguments in it."""


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit the format, or raise when printed, are a library's bug
        return str(record.msg)


@contextmanager
def captured_libraries(log: Log) -> Iterator[None]:
    """Within, all of `logging` and `warnings` goes to `log` alone; afterwards everything is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in QUIET}
    root.handlers[:] = [LibraryHandler(log)]
    root.setLevel(logging.WARNING)
    for name, quiet_level in QUIET.items():
        logging.getLogger(name).setLevel(quiet_level)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, own_level in levels.items():
            logging.getLogger(name).setLevel(own_level)
