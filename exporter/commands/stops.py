"""Stopping a command from outside: by signals and, on Windows, by console events.

with on_stop(event.set): …        calls the function, for a command that watches an event
with interrupted_on_stop(): …     raises KeyboardInterrupt, for a command that may be interrupted anywhere
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Final

from exporter.windows.system import watch

Handler = Callable[[int, FrameType | None], None]

_SIGNALS: Final = tuple(number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP"))


def stop_by(stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` on a separate thread each time the process is asked to end. Return a function that undoes this.

    Triggers: Ctrl-C, SIGTERM, and SIGHUP; on Windows Ctrl-C, Ctrl-Break, and a closed console window. `stop` must
    return at once, and may be called more than once.
    """
    if sys.platform == "win32":
        return watch(stop)
    return _watch_signals(_SIGNALS, stop)


def leave_on_signal() -> None:
    """End the process with exit code 0 on a stop signal, until `stop_by` takes over: nothing needs cleanup yet.

    Does nothing on Windows, where the service manager or the console ends a starting process.
    """
    if sys.platform != "win32":
        _handle(_SIGNALS, lambda *_: os._exit(0))


def on_stop(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """Return a context manager that applies `stop_by` while the block runs."""
    return _undone(stop_by(stop))


def interrupted_on_stop() -> AbstractContextManager[None]:
    """Return a context manager in which every trigger of `stop_by` raises KeyboardInterrupt in the main thread."""
    if sys.platform == "win32":
        return _undone(watch(_thread.interrupt_main))
    return _undone(_handle((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler))


def left_on_stop() -> AbstractContextManager[None]:
    """Return a context manager in which every trigger of `stop_by` ends the process at once, without cleanup.

    On Linux that is the default. On Windows, Ctrl-C would have to wait until the main thread runs Python code again.
    """
    return (
        _undone(watch(lambda: os._exit(128 + signal.SIGINT))) if sys.platform == "win32" else contextlib.nullcontext()
    )


@contextlib.contextmanager
def _undone(undo: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        undo()


def _watch_signals(numbers: tuple[signal.Signals, ...], stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` for each of these signals, on a thread that reads Python's wakeup file descriptor.

    Python runs signal handlers only on the main thread, and only once that runs Python code again: never, if it's in a
    call that doesn't return. Does nothing outside the main thread.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return lambda: None
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    undo_handlers = _handle(numbers, lambda *_: None)

    def watch_pipe() -> None:
        while number := os.read(reader, 1):
            if number[0] in numbers:
                stop()
        os.close(reader)

    _thread.start_new_thread(watch_pipe, ())

    def undo() -> None:
        undo_handlers()
        signal.set_wakeup_fd(earlier)
        os.close(writer)

    return undo


def _handle(numbers: tuple[signal.Signals, ...], handler: Handler) -> Callable[[], None]:
    """Handle these signals, except a SIGHUP that is ignored (`nohup`). Return a function that undoes this.

    Does nothing outside the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    ignored = [number for number in numbers if number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN]
    before = [(number, signal.signal(number, handler)) for number in numbers if number not in ignored]

    def undo() -> None:
        for number, earlier in before:
            signal.signal(number, earlier)

    return undo
