"""What stops a command from outside: signals, and on Windows what ends a console.

with on_stop(event.set): …        the function is called, for a command that looks at an event
with interrupted_on_stop(): …     KeyboardInterrupt, for a command that is interrupted wherever it waits
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
    """Call `stop`, on a thread of its own, whenever the process is to end. Returns what undoes that.

    Ctrl-C, SIGTERM and SIGHUP; on Windows Ctrl-C, Ctrl-Break, a closed console window. `stop` returns at once, and may
    be called more than once.
    """
    if sys.platform == "win32":
        return watch(stop)
    return _watch_signals(_SIGNALS, stop)


def leave_on_signal() -> None:
    """End the process with 0 at such a signal, until `stop_by` handles it: there is nothing yet that has to be stopped.

    Not on Windows, where a service or a console ends a process that is starting by itself.
    """
    if sys.platform != "win32":
        _handle(_SIGNALS, lambda *_: os._exit(0))


def on_stop(stop: Callable[[], None]) -> AbstractContextManager[None]:
    """As `stop_by`, for as long as the block runs."""
    return _undone(stop_by(stop))


def interrupted_on_stop() -> AbstractContextManager[None]:
    """Let all that `stop_by` names raise KeyboardInterrupt in the main thread, as Ctrl-C does by itself."""
    if sys.platform == "win32":
        return _undone(watch(_thread.interrupt_main))
    return _undone(_handle((signal.SIGTERM, signal.SIGHUP), signal.default_int_handler))


def left_on_stop() -> AbstractContextManager[None]:
    """Let all that `stop_by` names end the process at once, for a command that leaves nothing to be tidied up.

    On Linux each does so by itself. On Windows Ctrl-C would wait until the main thread waits no more.
    """
    return _undone(watch(_leave)) if sys.platform == "win32" else contextlib.nullcontext()


@contextlib.contextmanager
def _undone(undo: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        undo()


def _leave() -> None:
    os._exit(128 + signal.SIGINT)


def _watch_signals(numbers: tuple[signal.Signals, ...], stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` for each of these signals, on a thread that reads what Python writes down when one arrives.

    A handler of Python's runs on the main thread alone, and not before that runs Python again: never, if it is in a
    call that does not return, or went into one in the moment at which the signal arrived. Does nothing outside of the
    main thread.
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
    """Handle these signals, but not a SIGHUP that is ignored, as `nohup` does it.

    Does nothing outside of the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    ignored = [number for number in numbers if number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN]
    before = [(number, signal.signal(number, handler)) for number in numbers if number not in ignored]

    def undo() -> None:
        for number, earlier in before:
            signal.signal(number, earlier)

    return undo
