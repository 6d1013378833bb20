"""The agent's own log: one line per event, a name plus fields, on standard error as logfmt or JSON.

    log.info("document.changed", incarnation=3)
    ts=2026-01-01T00:00:00.000Z level=info event=document.changed incarnation=3

Quoted text can't forge a line. A line contains no credentials, has at most `MAX_LINE` bytes, and is written completely
or not at all. Logging never raises and never blocks: a thread (`writer`) writes the lines from a bounded queue. Lines
that don't fit in the queue, or can't be written, are counted and reported (`log.lines_lost`) as soon as lines can be
written again. `close` waits a moment for the last lines; a killed process loses the lines in the queue.

A repeating failure is reported once, then counted, and its end is reported:

    log.failing("poll", "poll.failed", reason="timeout")   a line; repeats: one line per hour with repeated=N
    log.recovered("poll", "poll.recovered")                a line with failures=N and lasted_seconds, after a failure
    log.recovered("poll", "poll.recovered", quiet=60)      the same after 60 s without failure: flapping is one failure

Lines are rendered with the standard library's `json` instead of structlog: structlog's logfmt renderer doesn't escape
control characters and doesn't quote tabs, so an event's Description could control a terminal or forge fields, and
neither of its renderers can drop fields that don't fit (docs/decisions.md).
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TextIO

from msgspec import Struct, field

from exporter.choices import LogFormat, LogLevel
from exporter.log.writer import BackgroundWriter, LineWriter, UnbufferedStream
from exporter.secrets import Secret, Sieve
from exporter.text.terminal import PREFIXES, printable

MAX_LINE: Final = 4000
"""Bytes, without a priority. Writes of up to PIPE_BUF (4096 on Linux) to a pipe are atomic."""
MAX_VALUE: Final = 1000
"""Maximum length of one value, in characters."""
CLOSE_SECONDS: Final = 1.0
"""How long a command waits for its last lines when it ends."""
REMIND_SECONDS: Final = 3600.0

_RANK: Final[Mapping[str, int]] = {"debug": 0, "info": 1, "warn": 2, "error": 3}
_RESERVED: Final = ("ts", "level", "event")
_MAX_FAILURES: Final = 256
_MAX_REASONS: Final = 16
_LONGEST_INTEGER: Final = 10**18
QUIET: Final[Mapping[str, int]] = {
    **dict.fromkeys(("azure", "azure.eventhub", "aiohttp", "asyncio"), logging.ERROR),
    **dict.fromkeys(("opentelemetry.exporter", "opentelemetry.sdk", "opentelemetry.attributes"), logging.CRITICAL),
}
"""Loggers and the level below which their messages are dropped. Failed sends are logged by the agent. azure.eventhub
warns about each reconnect of an idle link, which is normal here; OpenTelemetry repeats values."""
_BARE: Final = re.compile(r"[A-Za-z0-9_.:/+@,-]+")


class _Failure(Struct):
    """A continuing failure. Times are seconds of the monotonic clock."""

    began: float
    last_began: float
    """When it last started: a flapping failure is one failure."""
    ended: float | None = None
    """When it last ended; None while it lasts."""
    count: int = 0
    reported: dict[str, float] = field(default_factory=dict)
    """The reported reasons, with the time of the last report."""
    unreported: int = 0
    quiet: float = 0.0
    """Seconds without failure after which it counts as ended."""
    recovery: tuple[str, Mapping[str, object]] = ("", MappingProxyType({}))
    """The event and the fields of the line that reports its end."""

    def is_due(self, reason: str, now: float) -> bool:
        """Return whether to report it now: the reason is new, or was last reported at least an hour ago."""
        last = self.reported.get(reason)
        if last is None:
            return len(self.reported) < _MAX_REASONS
        return now - last >= REMIND_SECONDS


class Log:
    """A log that writes lines to a stream; safe to use from any thread and from signal handlers.

    Fields are keywords. `key`, `level`, `event`, and `quiet` are parameters and can't be fields.
    """

    def __init__(
        self,
        stream: TextIO | LineWriter | None,
        *,
        level: LogLevel = "info",
        format: LogFormat = "logfmt",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        hide: Iterable[Secret] = (),
        priorities: bool = False,
    ) -> None:
        """Create a log. With `stream` None it writes nothing and starts no thread.

        `clock` returns POSIX seconds for `ts`, `monotonic` the seconds of a monotonic clock for durations. `hide` are
        secrets to replace in every line. With `priorities`, each line starts with a priority, which the journal strips
        (`text.terminal`).
        """
        self._rank = _RANK[level]
        render = _json if format == "json" else _logfmt
        self._renderer = _Renderer(render, clock, Sieve(hide), PREFIXES if priorities else {})
        self._monotonic = monotonic
        self._failures: dict[str, _Failure] = {}
        self._lock = threading.RLock()  # a signal handler may log while its thread is logging
        self._writer: BackgroundWriter | None = None
        if stream is not None:
            output = stream if isinstance(stream, LineWriter) else UnbufferedStream(stream)
            self._writer = BackgroundWriter(output, self._renderer.lines_lost)
            weakref.finalize(self, self._writer.end).atexit = False  # its thread must not outlive the log

    def debug(self, event: str, **fields: object) -> None:
        """Log an event that is only useful for debugging."""
        self._log("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log an expected event."""
        self._log("info", event, fields)

    def warn(self, event: str, **fields: object) -> None:
        """Log a problem despite which the agent continues."""
        self._log("warn", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a loss, or a problem that needs an operator."""
        self._log("error", event, fields)

    def failing(self, key: str, event: str, level: LogLevel = "warn", **fields: object) -> None:
        """Log a failure that may repeat: when it starts, when its `reason` field is new, and then every hour."""
        reason = _text(fields.get("reason", ""))[:64]
        now = self._monotonic()
        with self._lock:
            self._report_recovery(key, now)
            failure = self._failures[key] = self._failures.pop(key, _Failure(began=now, last_began=now))
            if failure.ended is not None:
                failure.last_began, failure.ended = now, None
            if len(self._failures) > _MAX_FAILURES:
                self._failures.pop(next(iter(self._failures)))
            failure.count += 1
            if not failure.is_due(reason, now):
                failure.unreported += 1
                return
            failure.reported[reason] = now
            repeated, failure.unreported = failure.unreported, 0
        if repeated:
            fields["repeated"] = repeated
        self._log(level, event, fields)

    def recovered(self, key: str, event: str, *, quiet: float = 0.0, **fields: object) -> None:
        """Log that the failure `key` has ended, with its count and duration, if there was one.

        With `quiet`, the end of a failure that lasted less than `quiet` seconds is logged by the first call at least
        `quiet` seconds after it, if the failure hasn't returned.
        """
        with self._lock:
            failure = self._failures.get(key)
            if failure is None:
                return
            now = self._monotonic()
            if failure.ended is None:
                failure.ended, failure.recovery = now, (event, fields)
                failure.quiet = quiet if now - failure.last_began < quiet else 0.0
            self._report_recovery(key, now)

    def _report_recovery(self, key: str, now: float) -> None:
        """Log the end of the failure `key`, if it counts as ended."""
        failure = self._failures.get(key)
        if failure is None or failure.ended is None:
            return
        if 0 <= now - failure.ended < failure.quiet:  # a clock that was set back must not keep it open
            return
        del self._failures[key]
        event, fields = failure.recovery
        lasted = round(failure.ended - failure.began, 3)
        self._log("info", event, {**fields, "failures": failure.count, "lasted_seconds": lasted})

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait for at most `seconds` until every line so far is written or counted as lost. Return whether it is."""
        return self._writer is None or self._writer.flush(seconds)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait for at most `seconds` for the last lines, then end the thread. A later line starts a new one."""
        self.flush(seconds)
        if self._writer is not None:
            self._writer.end()

    def _log(self, level: LogLevel, event: str, fields: Mapping[str, object]) -> None:
        if self._writer is not None and _RANK[level] >= self._rank:
            self._writer.put(self._renderer.line(level, event, fields))


class _Renderer:
    """The renderer of lines. It has no reference to the log, since the writer thread keeps a reference to it."""

    def __init__(
        self,
        render: Callable[[Mapping[str, object]], bytes],
        clock: Callable[[], float],
        redact: Sieve,
        prefixes: Mapping[LogLevel, str],
    ) -> None:
        self._render = render
        self._prefixes = prefixes
        self._clock = clock
        self._redact = redact

    def line(self, level: LogLevel, event: str, fields: Mapping[str, object]) -> bytes:
        """Return a line with the current time."""
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        shown = {"ts": moment, "level": level, "event": self._clean(event)}
        for key, value in fields.items():
            name = re.sub(r"[^A-Za-z0-9_.]", "_", key)[:64] or "_"
            shown[f"{key}_" if key in _RESERVED else name] = self._clean(value)
        return self._prefixes.get(level, "").encode() + self._render(shown)

    def lines_lost(self, count: int) -> bytes:
        """Return the line that replaces `count` lost lines."""
        return self.line("warn", "log.lines_lost", {"lines": count})

    def _clean(self, value: object) -> object:
        """Return a loggable value: numbers, booleans, and None unchanged, others as short text without secrets."""
        if value is None or isinstance(value, bool | int):
            return value if abs(value or 0) < _LONGEST_INTEGER else "a very long integer"
        if isinstance(value, float) and abs(value) < float("inf"):
            return value
        text = self._redact(_text(value), 4 * MAX_VALUE)
        return text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "..."


def _text(value: object) -> str:
    """Return any object as text. Never raises."""
    try:
        if isinstance(value, str):
            return str(value)
        if isinstance(value, BaseException):
            return f"{type(value).__name__}: {value}"
        if isinstance(value, Enum):
            return _text(value.value)
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            shown = sorted(map(str, value)) if isinstance(value, set | frozenset) else value
            return json.dumps(shown, default=str, ensure_ascii=False)
        return str(value)
    except Exception:  # an object from outside may do anything in its __str__
        return f"<unprintable {type(value).__name__}>"


def _encoded(value: object) -> str:
    """Return a value as JSON that can't end the string or the line, or control a terminal."""
    return printable(json.dumps(value, ensure_ascii=False))


def _logfmt(fields: Mapping[str, object]) -> bytes:
    """Return a logfmt line. Text without spaces and special characters is bare, other text is a JSON string."""
    parts = [
        f"{key}={value if isinstance(value, str) and _BARE.fullmatch(value) else _encoded(value)}"
        for key, value in fields.items()
    ]
    return _fit(parts, " ", "", "truncated=true", "")


def _json(fields: Mapping[str, object]) -> bytes:
    return _fit([f'"{key}": {_encoded(value)}' for key, value in fields.items()], ", ", "{", '"truncated": true', "}")


def _fit(parts: list[str], separator: str, first: str, mark: str, last: str) -> bytes:
    """Return a line of at most `MAX_LINE` bytes; fields that don't fit are dropped, which `mark` shows."""
    line = (first + separator.join(parts) + last + "\n").encode()
    if len(line) <= MAX_LINE:
        return line
    space = MAX_LINE - len((first + separator + mark + last + "\n").encode())
    kept: list[str] = []
    for part in parts:
        size = len((part + separator).encode())
        if size <= space:
            kept.append(part)
            space -= size
    return (first + separator.join([*kept, mark]) + last + "\n").encode()


class LibraryHandler(logging.Handler):
    """A handler for all libraries. Repeated messages are repeating failures: logged once, then hourly with a count."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log a library's message; one that can't be formatted is logged unformatted."""
        fields: dict[str, Any] = {"logger": record.name, "message": _message(record)}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = record.exc_info[1]
        level: LogLevel = "error" if record.levelno >= logging.ERROR else "warn"
        self._log.failing(f"library.{record.name}.{str(record.msg)[:200]}", "library.message", level=level, **fields)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name is logging's
        """Do nothing: the standard implementation prints a traceback with the arguments."""


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # a library's bug: arguments that don't match the format, or raise when formatted
        return str(record.msg)


@contextmanager
def captured_libraries(log: Log) -> Iterator[None]:
    """Redirect `logging` and `warnings` to `log` while the block runs, then restore the previous configuration."""
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
