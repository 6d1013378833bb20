"""The agent's own log: one line per event, a name plus fields, on standard error as logfmt or JSON.

    log.info("document.changed", incarnation=3)
    ts=2026-01-01T00:00:00.000Z level=info event=document.changed incarnation=3

A line can't be forged by what it quotes, holds no credential, is at most `MAX_LINE` bytes long and is written whole or
not at all. Logging never raises and waits at most `PATIENCE` seconds for a reader that does not read; lost lines are
counted and said (`log.lines_lost`) once there is room again.

A failure that repeats is said once, then counted, then said to be over:

    log.failing("poll", "poll.failed", reason="timeout")   a line; again: silence, and each hour a line with repeated=N
    log.recovered("poll", "poll.recovered")                a line with failures=N and lasted_seconds, after a failure
    log.recovered("poll", "poll.recovered", quiet=60)      the same, once it has lasted: what flaps is told once
"""

from __future__ import annotations

import json
import os
import re
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Literal, TextIO

from exporter.secrets import Secret, Sieve
from exporter.text.terminal import escape, visible

Level = Literal["debug", "info", "warn", "error"]
Format = Literal["logfmt", "json"]

# A pipe that polls writable takes PIPE_BUF (4096 on Linux) bytes at once, without blocking or mixing two writers.
MAX_LINE = 4000
MAX_VALUE = 1000
PATIENCE = 0.1
REMIND_SECONDS = 3600.0

_RANK: Mapping[str, int] = {"debug": 0, "info": 1, "warn": 2, "error": 3}
_RESERVED = ("ts", "level", "event")
_MAX_TROUBLES = 256
_MAX_REASONS = 16
_SHORTEST_HIDDEN = 6  # a shorter secret would blank out ordinary words
_BARE = re.compile(r"[A-Za-z0-9_.:/+@,-]+")


@dataclass(slots=True)
class _Trouble:
    """A failure that goes on: since when, how often, and the reasons already said with the time they were.

    One that comes and goes is one failure: `run` is when it last came, `ended` when it last went (None while it is
    there), `quiet` how long it must be away to be over, and `ending` the line that says so.
    """

    since: float
    run: float
    count: int = 0
    said: dict[str, float] = field(default_factory=dict)
    unsaid: int = 0
    ended: float | None = None
    quiet: float = 0.0
    ending: tuple[str, Mapping[str, object]] = ("", MappingProxyType({}))

    def is_over(self, now: float) -> bool:
        """Whether it has been away for long enough. A clock that was set back must not keep it for ever."""
        return self.ended is not None and not 0 <= now - self.ended < self.quiet


class Log:
    """Writes to `stream` (None: nowhere). `clock` gives Unix seconds, `monotonic` those that no one can set, for how
    long something lasted; `hide` are secrets to blank out everywhere.

    Safe to use from any thread. Fields are keywords; `key`, `level` and `event` are taken by the parameters.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        level: Level = "info",
        format: Format = "logfmt",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        hide: Iterable[Secret] = (),
    ) -> None:
        self._rank = _RANK[level]
        self._render = _json if format == "json" else _logfmt
        self._clock = clock
        self._monotonic = monotonic
        self._hidden = Sieve(hide, _SHORTEST_HIDDEN)
        self._window = 4 * MAX_VALUE + self._hidden.longest  # no secret is cut before it is hidden
        self._lock = threading.RLock()  # a signal handler may log while its thread is logging
        self._out = _Out(stream)
        self._troubles: dict[str, _Trouble] = {}

    def debug(self, event: str, **fields: object) -> None:
        """For a developer who looks for a fault."""
        self._log("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Something happened, as it should."""
        self._log("info", event, fields)

    def warn(self, event: str, **fields: object) -> None:
        """Something is not as it should be, and the agent goes on."""
        self._log("warn", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something was lost, or needs a person."""
        self._log("error", event, fields)

    def failing(self, key: str, event: str, level: Level = "warn", **fields: object) -> None:
        """A failure that may repeat: said when it begins, when its `reason` field is a new one, then once an hour."""
        reason = _text(fields.get("reason", ""))[:64]
        now = self._monotonic()
        with self._lock:
            self._settle(key, now)
            trouble = self._troubles[key] = self._troubles.pop(key, _Trouble(since=now, run=now))
            if trouble.ended is not None:
                trouble.run, trouble.ended = now, None
            if len(self._troubles) > _MAX_TROUBLES:
                self._troubles.pop(next(iter(self._troubles)))
            trouble.count += 1
            if not _due(trouble, reason, now):
                trouble.unsaid += 1
                return
            trouble.said[reason] = now
            repeated, trouble.unsaid = trouble.unsaid, 0
        if repeated:
            fields["repeated"] = repeated
        self._log(level, event, fields)

    def recovered(self, key: str, event: str, *, quiet: float = 0.0, **fields: object) -> None:
        """The failure `key` has ended: said with how often and how long, and only if there was one.

        With `quiet`, one that was there for less than so many seconds may come again at once: that it is over is said
        by the first call so many seconds after it went, if it stayed away.
        """
        with self._lock:
            trouble = self._troubles.get(key)
            if trouble is None:
                return
            now = self._monotonic()
            if trouble.ended is None:
                trouble.ended, trouble.ending = now, (event, fields)
                trouble.quiet = quiet if now - trouble.run < quiet else 0.0
            self._settle(key, now)

    def _settle(self, key: str, now: float) -> None:
        """Say that the failure is over, if it is."""
        trouble = self._troubles.get(key)
        if trouble is None or trouble.ended is None or not trouble.is_over(now):
            return
        del self._troubles[key]
        event, fields = trouble.ending
        lasted = round(trouble.ended - trouble.since, 3)
        self._log("info", event, {**fields, "failures": trouble.count, "lasted_seconds": lasted})

    def _log(self, level: Level, event: str, fields: Mapping[str, object]) -> None:
        if _RANK[level] < self._rank:
            return
        now = self._clock()
        with self._lock:
            if self._out.lost:
                note = self._line(now, "warn", "log.lines_lost", {"lines": self._out.lost})
                if not self._out.write(note, waits=False):
                    self._out.lost += 1
                    return
                self._out.lost = 0
            if not self._out.write(self._line(now, level, event, fields)):
                self._out.lost += 1

    def _line(self, now: float, level: Level, event: str, fields: Mapping[str, object]) -> bytes:
        named = {(f"{key}_" if key in _RESERVED else key): value for key, value in fields.items()}
        head: list[tuple[str, object]] = [("ts", _timestamp(now)), ("level", level), ("event", self._clean(event))]
        return self._render([*head, *((_key(key), self._clean(value)) for key, value in named.items())])

    def _clean(self, value: object) -> object:
        """A value that may be shown: numbers, booleans and None as they are, all else as short text without secrets."""
        if value is None or isinstance(value, bool | int):
            return value if abs(value or 0) < 10**18 else "a very long integer"
        if isinstance(value, float) and abs(value) < float("inf"):
            return value
        text = self._hidden(_text(value)[: self._window])
        return text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "..."


class _Out:
    """The stream, written without waiting for a reader that does not read."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._torn = False
        self.lost = 0

    def write(self, line: bytes, waits: bool = True) -> bool:
        """Whether the whole line went out. A closed stream, a full disk or a reader that is gone or stuck is a no."""
        if self._stream is None:
            return True
        try:
            descriptor = self._descriptor(self._stream)
            if descriptor is not None:
                return self._write(descriptor, b"\n" + line if self._torn else line, PATIENCE if waits else 0)
            self._stream.write(line.decode())
            self._stream.flush()
        except (OSError, ValueError):
            return False
        return True

    @staticmethod
    def _descriptor(stream: TextIO) -> int | None:
        """Asked for each time: the number of a stream that was closed may by now be another file's."""
        if not hasattr(select, "poll"):
            return None
        try:
            return stream.fileno()
        except (OSError, ValueError, AttributeError):
            return None

    def _write(self, descriptor: int, line: bytes, patience: float) -> bool:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        while line:
            if not poll.poll(patience * 1000):
                return False
            line = line[os.write(descriptor, line) :]
            self._torn = bool(line)
        return True


def _due(trouble: _Trouble, reason: str, now: float) -> bool:
    said = trouble.said.get(reason)
    if said is None:
        return len(trouble.said) < _MAX_REASONS
    return now - said >= REMIND_SECONDS


def _timestamp(now: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    try:
        moment = datetime.fromtimestamp(now, UTC)
    except (OverflowError, OSError, ValueError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    """Any object as text, whatever its `str` does."""
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
            return json.dumps(_sequence(value), default=str, ensure_ascii=False)
        return str(value)
    except Exception:  # an object from outside may do anything in its __str__
        return f"<unprintable {type(value).__name__}>"


def _sequence(value: object) -> object:
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else value


def _key(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", key)[:64] or "_"


def _escaped(text: str) -> str:
    """Inside quotation marks: nothing that ends the string, the line, or changes how a terminal shows either."""
    return "".join(ch if visible(ch) and ch not in '"\\' else escape(ch) for ch in text)


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _logfmt(pairs: Iterable[tuple[str, object]]) -> bytes:
    parts = []
    for key, value in pairs:
        if isinstance(value, str) and not _BARE.fullmatch(value):
            parts.append(f'{key}="{_escaped(value)}"')
        else:
            parts.append(f"{key}={_scalar(value)}")
    return _fit(parts, " ", "", "truncated=true", "")


def _json(pairs: Iterable[tuple[str, object]]) -> bytes:
    parts = [
        f'"{key}": ' + (f'"{_escaped(value)}"' if isinstance(value, str) else _scalar(value)) for key, value in pairs
    ]
    return _fit(parts, ", ", "{", '"truncated": true', "}")


def _fit(parts: list[str], between: str, first: str, mark: str, last: str) -> bytes:
    """A line of at most `MAX_LINE` bytes; fields that find no room are left out, and that is said."""
    room = MAX_LINE - len((first + between + mark + last + "\n").encode())
    kept: list[str] = []
    for part in parts:
        size = len(part.encode("utf-8", "backslashreplace")) + len(between)
        if size <= room:
            kept.append(part)
            room -= size
    if len(kept) < len(parts):
        kept.append(mark)
    return (first + between.join(kept) + last + "\n").encode("utf-8", "backslashreplace")
