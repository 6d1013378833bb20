"""Calls on daemon threads, for calls that may block indefinitely: the caller waits with a timeout, then abandons them.

    DaemonCall(look_up, "name-lookup").result(2.0)      its result or exception; TimeoutError: it continues, abandoned
    wait([DaemonCall(stop, "stop") for stop in ...], 2.0)       `concurrent.futures.wait`
    await in_thread(look_up, "name-lookup")             the same on an event loop

An executor doesn't work here: at its end, the process waits for the executor's threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class DaemonCall(Future[T]):
    """A call on its own daemon thread, started at once. Raises RuntimeError if the system can't start a thread."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # a running call can't be cancelled
        self.thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)
        self.thread.start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            result = call()
        except BaseException as error:  # `result` raises it
            self.set_exception(error)
        else:
            self.set_result(result)


def in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Start a `DaemonCall` and return it as a future of the running loop."""
    return asyncio.wrap_future(DaemonCall(call, name))
