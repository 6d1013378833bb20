"""The queue and the thread that writes: bounded, in order, never in the way of whoever logs."""

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
    """Keeps lines; waits in `write_line` while it is stuck, and raises while it is broken."""

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
    """A writer whose output has taken the line 0 and does not return."""
    output = Output()
    output.free.clear()
    writer = BackgroundWriter(output, lost)
    writer.put(b"0")
    assert output.entered.wait(PATIENCE)
    return writer, output


def test_what_found_no_room_is_reported_in_its_place() -> None:
    """The lines before the gap come first, then their number, then those that found room again."""
    writer, output = stuck()
    for number in range(1, MAX_WAITING_LINES + 8):
        writer.put(b"%d" % number)
    assert not writer.flush(0)
    output.free.set()
    assert writer.flush(PATIENCE)
    writer.put(b"next")
    assert writer.flush(PATIENCE)
    assert output.lines == [*numbered(*range(MAX_WAITING_LINES + 1)), b"lost 7", b"next"]


def test_the_queue_is_bounded_in_bytes_as_well() -> None:
    """A few huge lines are as much memory as many small ones; the small one after them still finds room."""
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
def test_what_can_not_be_written_is_reported_before_the_next_line_that_can(error: Exception) -> None:
    """Whatever the stream raises costs that line alone."""
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


def test_a_log_that_nobody_holds_leaves_no_thread() -> None:
    """The thread ends when its queue is ended, after the last line, and holds nothing then; a later line starts
    another."""
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


def test_a_line_that_found_no_thread_is_written_by_the_next_one() -> None:
    """A machine that can't start a thread now raises nowhere and loses nothing."""
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
def test_a_signal_handler_may_log_while_its_thread_is_logging() -> None:
    """In whatever moment it comes: nothing waits for itself, and every line is written or counted."""
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
    """A disk that takes a part of the first write, refuses the rest of it, and then has room again."""

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


def test_a_torn_line_does_not_take_the_next_one_with_it() -> None:
    """Where a part of a line was written, the next begins on a line of its own."""
    raw = _Filling()
    stream = UnbufferedStream(io.TextIOWrapper(io.BufferedWriter(raw)))
    with pytest.raises(OSError, match="No space"):
        stream.write_line(b"event=first\n")
    stream.write_line(b"event=second\n")
    stream.write_line(b"event=third\n")
    assert raw.taken == b"even\nevent=second\nevent=third\n"
