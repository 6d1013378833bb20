"""Writes lines on a thread of its own: who logs never waits for a reader that does not read, a disk or a console.

One mechanism for every system and stream. A pipe that nobody drains has no time limit on Windows, where `poll` knows
sockets alone; a console there takes nothing while somebody selects text in it.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, TextIO, runtime_checkable

MAX_WAITING_LINES: Final = 1000
MAX_WAITING_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 0.1
"""After a pipe without room that another process made non-blocking."""


@runtime_checkable
class LineWriter(Protocol):
    """Where whole lines go."""

    def write_line(self, line: bytes) -> None:
        """Write the line, however long that takes. Raises when not all of it was written."""


class UnbufferedStream:
    """A text stream as a `LineWriter`. Its buffers are passed by, so that each line is written at once and as UTF-8.

    One write of a line is whole and mixes with no other writer of the same pipe: PIPE_BUF (4096 bytes on Linux) is
    more than a line, and Windows finishes one write to a pipe before it begins the next.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._torn = False

    def write_line(self, line: bytes) -> None:
        """Write the line. Raises OSError for a full disk or a reader that is gone, ValueError for a closed stream."""
        raw = _unbuffered(self._stream)
        if raw is None:
            self._stream.write(line.decode())
            self._stream.flush()
            return
        rest = b"\n" + line if self._torn else line
        while rest:
            written = raw.write(rest)
            if written is None:
                time.sleep(RETRY_SECONDS)
                continue
            rest = rest[written:]
            self._torn = bool(rest)


def _unbuffered(stream: TextIO) -> Any:
    """The stream's bytes without a buffer, None for one that has no bytes. Determined each time: it may be closed."""
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)


class BackgroundWriter:
    """A bounded queue of lines and the thread that writes them, which the first line starts.

    Lines that find no room, or can't be written, are counted; `lost_note` makes the line that reports how many, which
    is written in their place as soon as lines can be written again.
    """

    def __init__(
        self,
        output: LineWriter,
        lost_note: Callable[[int], bytes],
        # Not by `threading`, whose start takes a lock that is not reentrant, and waits for the new thread.
        start_thread: Callable[[Callable[[], None], tuple[()]], object] = _thread.start_new_thread,
    ) -> None:
        """`start_thread` raises RuntimeError when the system has no more threads."""
        self._output = output
        self._lost_note = lost_note
        self._start_thread = start_thread
        # The lock of a Condition is reentrant: a signal handler may log while its thread is logging. It is never held
        # while something is written.
        self._changed = threading.Condition()
        self._waiting: deque[bytes | int] = deque()
        """Lines, and between them how many found no room there."""
        self._bytes = 0
        self._running = False
        self._writing = False
        self._ending = False
        self._lost = 0
        """The lines before the next one that are not yet reported; for the thread alone."""

    def put(self, line: bytes) -> None:
        """Have the line written. Never waits, never raises."""
        size = len(line)
        with self._changed:
            if len(self._waiting) < MAX_WAITING_LINES and self._bytes + size <= MAX_WAITING_BYTES:
                self._waiting.append(line)
                self._bytes += size
            elif isinstance(self._waiting[-1], int):
                self._waiting[-1] += 1
            else:
                self._waiting.append(1)
            self._start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until every line is written or lost, for at most so many seconds. Whether it came to that."""
        with self._changed:
            if self._waiting:
                self._start()
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def end(self) -> None:
        """Let the thread end once every line is written; a later line starts another."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def _start(self) -> None:
        if self._running:
            return
        self._running, self._ending = True, False
        try:
            self._start_thread(self._run, ())
        except RuntimeError:  # the next line tries again
            self._running = False

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            if isinstance(entry, int):
                self._lost += entry
                self._report_lost()
            elif not (self._report_lost() and self._write(entry)):
                self._lost += 1

    def _next(self) -> bytes | int | None:
        """The next entry, or None when the thread is to end."""
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._ending)
            if not self._waiting:
                self._running = False
                return None
            entry = self._waiting.popleft()
            if isinstance(entry, bytes):
                self._bytes -= len(entry)
            self._writing = True
            return entry

    def _report_lost(self) -> bool:
        """Whether there is nothing left to report."""
        if self._lost and not self._write(self._lost_note(self._lost)):
            return False
        self._lost = 0
        return True

    def _write(self, line: bytes) -> bool:
        try:
            self._output.write_line(line)
        except Exception:  # whatever a stream raises, the log goes on
            return False
        return True
