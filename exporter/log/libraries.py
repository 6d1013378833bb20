"""Redirects what libraries report through `logging` and `warnings` into the agent's own log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from exporter.log.log import Log

REPEAT_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 256

QUIET: Final[Mapping[str, int]] = {
    **dict.fromkeys(("azure", "azure.eventhub", "aiohttp", "asyncio"), logging.ERROR),
    **dict.fromkeys(("opentelemetry.exporter", "opentelemetry.sdk", "opentelemetry.attributes"), logging.CRITICAL),
}
"""Loggers and the level below which their messages are dropped: a failed send is logged as such. azure.eventhub warns
about each reconnect of an idle link, which is normal here; OpenTelemetry repeats values."""


class LibraryHandler(logging.Handler):
    """One handler for all libraries. The same message is logged at most once a minute, with the number of repeats."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        super().__init__(logging.WARNING)
        self._log = log
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one message on; a message that can't be formatted is passed on as it is."""
        repeated = self._repeated(record)
        if repeated is None:
            return
        fields: dict[str, object] = {"logger": record.name, "message": _message(record)}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = record.exc_info[1]
        if repeated:
            fields["repeated"] = repeated
        write = self._log.error if record.levelno >= logging.ERROR else self._log.warn
        write("library.message", **fields)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is logging's
        """Do nothing: the standard one prints a traceback, with the arguments in it."""

    def _repeated(self, record: logging.LogRecord) -> int | None:
        """How often the message was left out since it was last logged, or None if it is to be left out now."""
        key, now = (record.name, str(record.msg)[:200]), self._clock()
        with self._guard:
            logged, left_out = self._seen.pop(key, (float("-inf"), 0))
            due = now - logged >= REPEAT_SECONDS
            self._seen[key] = (now, 0) if due else (logged, left_out + 1)
            if len(self._seen) > _MAX_REMEMBERED:
                self._seen.pop(next(iter(self._seen)))
        return left_out if due else None


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit the format, or raise when printed, are a library's bug
        return str(record.msg)


@contextmanager
def captured_libraries(log: Log, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Within, all of `logging` and `warnings` goes to `log` alone; afterwards everything is as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in QUIET}
    root.handlers[:] = [LibraryHandler(log, clock)]
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
