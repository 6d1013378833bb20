"""Writes lines on a separate thread, so that logging never waits for a blocked reader, disk, or console.

One mechanism for every system and stream. On Windows, writing to a full pipe can't be limited in time (`poll` supports
only sockets), and a console blocks writers while text is selected in it.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TextIO, runtime_checkable

MAX_WAITING_LINES: Final = 1000
MAX_WAITING_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 0.1
"""Delay before a retry if a pipe is full and another process made it non-blocking."""


@runtime_checkable
class LineWriter(Protocol):
    """A destination for complete lines."""

    def write_line(self, line: bytes) -> None:
        """Write the line; may block without limit. Raises if the line wasn't written completely."""


class UnbufferedStream:
    """A text stream as a `LineWriter`. It bypasses the stream's buffers: each line is written at once, as UTF-8.

    The write of a line to a pipe is atomic: a line is shorter than PIPE_BUF (4096 bytes on Linux), and Windows finishes
    one write to a pipe before it starts the next.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._torn = False

    def write_line(self, line: bytes) -> None:
        """Write the line. Raises OSError for a full disk or a closed pipe, ValueError for a closed stream."""
        buffer = getattr(self._stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)
        if raw is None:  # a pure text stream
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


class BackgroundWriter:
    """A bounded queue of lines, and the thread that writes them, which the first line starts.

    Lines that don't fit, or can't be written, are counted; `lost_note` makes the line with their number, which is
    written in their place as soon as lines can be written again.
    """

    def __init__(
        self,
        output: LineWriter,
        lost_note: Callable[[int], bytes],
        # Not `threading`: its start acquires a lock that isn't reentrant, and waits for the new thread.
        start_thread: Callable[[Callable[[], None], tuple[()]], object] = _thread.start_new_thread,
    ) -> None:
        """Create an idle writer. `start_thread` raises RuntimeError if the system can't start another thread."""
        self._output = output
        self._lost_note = lost_note
        self._start_thread = start_thread
        # The lock of a Condition is reentrant: a signal handler may log while its thread is logging. It's never held
        # during a write.
        self._changed = threading.Condition()
        self._waiting: deque[bytes | int] = deque()
        """Lines and, between them, the number of lines that didn't fit there."""
        self._bytes = 0
        self._running = False
        self._writing = False
        self._ending = False
        self._lost = 0
        """Number of unreported lost lines before the next line; used only by the thread."""

    def put(self, line: bytes) -> None:
        """Queue the line. Never blocks, never raises."""
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
        """Wait for at most `seconds` until every line is written or lost. Return whether that is so."""
        with self._changed:
            if self._waiting:
                self._start()
            return self._changed.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def end(self) -> None:
        """End the thread when every line is written; a later line starts a new one."""
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
        """Wait for the next entry and return it; None if the thread should end."""
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
        """Report lost lines. Return whether none are left to report."""
        if self._lost and not self._write(self._lost_note(self._lost)):
            return False
        self._lost = 0
        return True

    def _write(self, line: bytes) -> bool:
        try:
            self._output.write_line(line)
        except Exception:  # the log must continue, whatever a stream raises
            return False
        return True
