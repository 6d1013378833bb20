"""Calls on daemon threads: what may block for good is waited for as long as wanted, and then left behind.

    DaemonCall(look_up, "name-lookup").result(2.0)      what it returns or raises; TimeoutError: it goes on without us
    wait([DaemonCall(stop, "stop") for stop in ...], 2.0)       `concurrent.futures.wait`
    await in_thread(look_up, "name-lookup")             the same on an event loop

An executor's threads would be waited for at the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class DaemonCall(Future[T]):
    """A call on a daemon thread of its own, from now on. Raises RuntimeError if the system has no thread for it."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # a call under way can't be cancelled
        self.thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)
        self.thread.start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            result = call()
        except BaseException as error:  # raised where the result is asked for
            self.set_exception(error)
        else:
            self.set_result(result)


def in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """A `DaemonCall`, to be awaited on the running loop."""
    return asyncio.wrap_future(DaemonCall(call, name))
