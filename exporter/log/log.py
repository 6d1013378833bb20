"""The agent's own log: one line per event, a name plus fields, on standard error as logfmt or JSON.

    log.info("document.changed", incarnation=3)
    ts=2026-01-01T00:00:00.000Z level=info event=document.changed incarnation=3

A line can't be forged by what it quotes, holds no credential, is at most `MAX_LINE` bytes long and is written whole or
not at all. Logging never raises and never waits: a thread writes the lines (`writer`), from a bounded queue. Lines that
find no room, or can't be written, are counted and reported (`log.lines_lost`) once lines can be written again. `close`
waits a moment for the last lines; a process that is killed loses those that are in the queue.

A failure that repeats is reported once, then counted, then reported to be over:

    log.failing("poll", "poll.failed", reason="timeout")   a line; again: silence, and each hour a line with repeated=N
    log.recovered("poll", "poll.recovered")                a line with failures=N and lasted_seconds, after a failure
    log.recovered("poll", "poll.recovered", quiet=60)      the same once it has lasted: flapping is reported once

The lines are rendered here, with `json` of the standard library, and not by structlog: its renderer of logfmt writes
control characters as they are and a tab without quotation marks, so that a Description could act on a terminal or make
up fields, and neither of its renderers can leave out the fields that do not fit (docs/decisions.md).
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
"""Bytes, without a priority. A pipe takes PIPE_BUF (4096 on Linux) as a whole, without mixing two writers."""
MAX_VALUE: Final = 1000
"""Characters of one value."""
CLOSE_SECONDS: Final = 1.0
"""How long the end of a command waits for its last lines."""
REMIND_SECONDS: Final = 3600.0

_RANK: Final[Mapping[str, int]] = {"debug": 0, "info": 1, "warn": 2, "error": 3}
_RESERVED: Final = ("ts", "level", "event")
_MAX_FAILURES: Final = 256
_MAX_REASONS: Final = 16
_LONGEST_INTEGER: Final = 10**18
QUIET: Final[Mapping[str, int]] = {
    **dict.fromkeys(("azure", "azure.eventhub", "aiohttp", "asyncio"), logging.ERROR),
    **dict.fromkeys(
        ("opentelemetry.exporter", "opentelemetry.sdk", "opentelemetry.attributes"),
        logging.CRITICAL,
    ),
}
"""Loggers and the level below which their messages are dropped: a failed send is logged as such. azure.eventhub warns
about each reconnect of an idle link, which is normal here; OpenTelemetry repeats values."""
_BARE: Final = re.compile(r"[A-Za-z0-9_.:/+@,-]+")


class _Failure(Struct):
    """A failure that goes on. Times are seconds of the monotonic clock."""

    began: float
    last_began: float
    """When it last began: a flapping failure is one failure."""
    ended: float | None = None
    """When it last ended; None while it lasts."""
    count: int = 0
    reported: dict[str, float] = field(default_factory=dict)
    """The reasons that were reported, with the time of the last report."""
    unreported: int = 0
    quiet: float = 0.0
    """For how many seconds it must not return to be over."""
    recovery: tuple[str, Mapping[str, object]] = ("", MappingProxyType({}))
    """The event and the fields of the line that reports it to be over."""

    def is_due(self, reason: str, now: float) -> bool:
        """Whether to report it now: the reason is a new one, or was last reported an hour ago."""
        last = self.reported.get(reason)
        if last is None:
            return len(self.reported) < _MAX_REASONS
        return now - last >= REMIND_SECONDS


class Log:
    """Writes lines to a stream; safe to use from any thread and from signal handlers.

    Fields are keywords; `key`, `level`, `event` and `quiet` are taken by the parameters.
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
        """`stream` None writes nothing and starts no thread. `clock` gives POSIX seconds for `ts`, `monotonic` those of
        a monotonic clock for durations. `hide` are secrets that are replaced in every line. With `priorities` each line
        begins with its own for the journal, which takes it away (`text.terminal`)."""
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
            weakref.finalize(self, self._writer.end).atexit = False  # its thread must not outlive a log that is gone

    def debug(self, event: str, **fields: object) -> None:
        """Log something that only helps to find a bug."""
        self._log("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log something that is expected."""
        self._log("info", event, fields)

    def warn(self, event: str, **fields: object) -> None:
        """Log something that is not as it should be while the agent continues."""
        self._log("warn", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log that something was lost, or needs a person."""
        self._log("error", event, fields)

    def failing(self, key: str, event: str, level: LogLevel = "warn", **fields: object) -> None:
        """Log a failure that may repeat: when it begins, when its `reason` field is a new one, then each hour."""
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
        """Log that the failure `key` has ended, with its number and duration, if there was one.

        With `quiet`, a failure that lasted less than so many seconds may return at once: its end is logged by the first
        call that is so many seconds after it, if it did not return.
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
        """Report that the failure is over, if it is."""
        failure = self._failures.get(key)
        if failure is None or failure.ended is None:
            return
        if 0 <= now - failure.ended < failure.quiet:  # a clock that was set back must not keep it for ever
            return
        del self._failures[key]
        event, fields = failure.recovery
        lasted = round(failure.ended - failure.began, 3)
        self._log("info", event, {**fields, "failures": failure.count, "lasted_seconds": lasted})

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until every line so far is written or counted as lost, for at most so many seconds. Whether it is."""
        return self._writer is None or self._writer.flush(seconds)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Give the last lines so many seconds to be written, then let the thread end. A later line starts another."""
        self.flush(seconds)
        if self._writer is not None:
            self._writer.end()

    def _log(self, level: LogLevel, event: str, fields: Mapping[str, object]) -> None:
        if self._writer is not None and _RANK[level] >= self._rank:
            self._writer.put(self._renderer.line(level, event, fields))


class _Renderer:
    """Makes a line of an event and its fields. It does not know the log: the thread that writes holds it."""

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
        """The line, of now."""
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        shown = {"ts": moment, "level": level, "event": self._clean(event)}
        for key, value in fields.items():
            shown[f"{key}_" if key in _RESERVED else _key(key)] = self._clean(value)
        return self._prefixes.get(level, "").encode() + self._render(shown)

    def lines_lost(self, count: int) -> bytes:
        """The line that reports how many are missing in its place."""
        return self.line("warn", "log.lines_lost", {"lines": count})

    def _clean(self, value: object) -> object:
        """A value that may be logged: numbers, booleans and None unchanged, all else as short text without secrets."""
        if value is None or isinstance(value, bool | int):
            return value if abs(value or 0) < _LONGEST_INTEGER else "a very long integer"
        if isinstance(value, float) and abs(value) < float("inf"):
            return value
        text = self._redact(_text(value), 4 * MAX_VALUE)
        return text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "..."


def _text(value: object) -> str:
    """Any object as text. Never raises."""
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


def _key(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", key)[:64] or "_"


def _encoded(value: object) -> str:
    """A value as JSON that can't end the string or the line, nor control a terminal."""
    return printable(json.dumps(value, ensure_ascii=False))


def _logfmt(fields: Mapping[str, object]) -> bytes:
    """Words without a space, quotation mark or anything else that needs care stay bare, other text is a JSON string."""
    parts = [
        f"{key}={value if isinstance(value, str) and _BARE.fullmatch(value) else _encoded(value)}"
        for key, value in fields.items()
    ]
    return _fit(parts, " ", "", "truncated=true", "")


def _json(fields: Mapping[str, object]) -> bytes:
    return _fit([f'"{key}": {_encoded(value)}' for key, value in fields.items()], ", ", "{", '"truncated": true', "}")


def _fit(parts: list[str], separator: str, first: str, mark: str, last: str) -> bytes:
    """A line of at most `MAX_LINE` bytes; fields that do not fit are left out, which `mark` shows."""
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
