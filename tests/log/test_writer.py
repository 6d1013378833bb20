"""The queue and the writer thread: bounded, in order, and never blocking the caller."""

from __future__ import annotations

import io
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from exporter.log.writer import MAX_WAITING_BYTES, MAX_WAITING_LINES, BackgroundWriter, UnbufferedStream
from tests.support.log_reading import PATIENCE, wait_until_gone


class Output:
    """A writer that keeps lines; `write_line` blocks while it's stuck, and raises while it's broken."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.entered = threading.Event()
        self.free = threading.Event()
        self.free.set()
        self.broken: Exception | None = None

    def write_line(self, line: bytes) -> None:
        self.entered.set()
        assert self.free.wait(PATIENCE)
        if self.broken is not None:
            raise self.broken
        self.lines.append(line)


def lost(count: int) -> bytes:
    return b"lost %d" % count


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def stuck() -> tuple[BackgroundWriter, Output]:
    """Return a writer whose output has received line 0 and doesn't return."""
    output = Output()
    output.free.clear()
    writer = BackgroundWriter(output, lost)
    writer.put(b"0")
    assert output.entered.wait(PATIENCE)
    return writer, output


def test_lines_that_did_not_fit_are_reported_in_their_place() -> None:
    """The lines before the gap come first, then the number of lost lines, then the lines that fit again."""
    writer, output = stuck()
    for number in range(1, MAX_WAITING_LINES + 8):
        writer.put(b"%d" % number)
    assert not writer.flush(0)
    output.free.set()
    assert writer.flush(PATIENCE)
    writer.put(b"next")
    assert writer.flush(PATIENCE)
    assert output.lines == [*numbered(*range(MAX_WAITING_LINES + 1)), b"lost 7", b"next"]


def test_queue_is_bounded_in_bytes_too() -> None:
    """A few huge lines use as much memory as many small ones; a small line after them still fits."""
    writer, output = stuck()
    huge = b"x" * (MAX_WAITING_BYTES // 4 - 1)
    for _ in range(10):
        writer.put(huge)
    writer.put(b"1")
    output.free.set()
    assert writer.flush(PATIENCE)
    assert output.lines == [b"0", *[huge] * 4, b"lost 6", b"1"]
    for _ in range(4):
        writer.put(huge)
    assert writer.flush(PATIENCE)
    assert output.lines[-4:] == [huge] * 4


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("closed"), RuntimeError("odd")])
def test_lines_that_can_not_be_written_are_reported_before_the_next_one(error: Exception) -> None:
    """An exception of the stream costs only that line."""
    output = Output()
    writer = BackgroundWriter(output, lost)
    output.broken = error
    for _ in range(3):
        writer.put(b"a")
    assert writer.flush(PATIENCE)
    output.broken = None
    writer.put(b"b")
    assert writer.flush(PATIENCE)
    assert output.lines == [b"lost 3", b"b"]


def test_deleted_log_leaves_no_thread() -> None:
    """The thread ends when its queue is ended, after the last line, and keeps no reference; a later line starts
    another one."""
    output = Output()
    writer = BackgroundWriter(output, lost)
    writer.put(b"a")
    writer.end()
    writer.put(b"b")
    writer.end()
    assert writer.flush(PATIENCE)
    assert output.lines == [b"a", b"b"]
    held = weakref.ref(output)
    del output, writer
    wait_until_gone(held)


def test_line_without_a_thread_is_written_by_the_next_one() -> None:
    """If the system can't start a thread, nothing is raised or lost."""
    started: list[Callable[[], None]] = []

    def start(run: Callable[[], None], arguments: tuple[()]) -> None:
        assert arguments == ()
        started.append(run)
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        threading.Thread(target=run, daemon=True).start()

    output = Output()
    writer = BackgroundWriter(output, lost, start)
    writer.put(b"a")
    assert not output.lines
    writer.put(b"b")
    assert writer.flush(PATIENCE)
    assert output.lines == [b"a", b"b"]
    assert len(started) == 2
    writer.end()


@pytest.mark.linux("needs a timer signal")
def test_signal_handler_may_log_while_its_thread_is_logging() -> None:
    """At any moment: there is no deadlock, and every line is written or counted."""
    output = Output()
    writer = BackgroundWriter(output, lambda count: b"lost %d" % count)
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        handled += 1
        writer.put(b"handler")

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        deadline = time.monotonic() + PATIENCE
        count = 0
        while (handled < 300 or count < 3000) and time.monotonic() < deadline:
            writer.put(b"%d" % count)
            count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert writer.flush(PATIENCE)
    gaps = sum(int(line.split()[1]) for line in output.lines if line.startswith(b"lost"))
    lines = [line for line in output.lines if not line.startswith(b"lost")]
    assert len(lines) + gaps == count + handled
    own = [int(line) for line in lines if line != b"handler"]
    assert own == sorted(own)
    writer.end()


class _Filling(io.RawIOBase):
    """A disk that accepts a part of the first write, rejects the rest, and then has space again."""

    def __init__(self) -> None:
        self.taken = b""
        self._writes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._writes += 1
        if self._writes == 2:
            raise OSError(28, "No space left on device")
        part = bytes(data[:4]) if self._writes == 1 else bytes(data)
        self.taken += part
        return len(part)


def test_torn_line_does_not_damage_the_next_one() -> None:
    """After a partial write, the next line starts on a new line."""
    raw = _Filling()
    stream = UnbufferedStream(io.TextIOWrapper(io.BufferedWriter(raw)))
    with pytest.raises(OSError, match="No space"):
        stream.write_line(b"event=first\n")
    stream.write_line(b"event=second\n")
    stream.write_line(b"event=third\n")
    assert raw.taken == b"even\nevent=second\nevent=third\n"
