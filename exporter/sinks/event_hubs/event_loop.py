"""An event loop on a separate thread whose work can be interrupted within a limited time.

Azure's asyncio client can be canceled in most of its waits. This module covers the rest: a lookup that never returns
must not keep the process alive, sockets that the client leaks must not accumulate, and a loop that doesn't return is
abandoned.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, TypeVar

from exporter.daemon import in_thread

T = TypeVar("T")

_SETTLING = 0.3  # seconds for canceled work to clean up


class LoopThread:
    """A thread that runs coroutines one at a time. Any thread may call `interrupt` and `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = _Loop()
        self._running: Future[Any] | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        """Run `work` and return its result; block for at most `patience` seconds.

        Raises the errors of `work`, `LoopInterrupted` after `interrupt`, or `Stuck` if it doesn't return in time; then
        the loop must not be used again.
        """
        if not self._thread.is_alive():
            work.close()
            raise Stuck
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running = running
        try:
            return running.result(patience)
        except CancelledError:
            raise LoopInterrupted from None
        except TimeoutError:
            if running.done():
                raise
            running.cancel()
            raise Stuck from None
        finally:
            self._running = None

    def interrupt(self) -> None:
        """Cancel the running work; `run` raises `LoopInterrupted` at once, before the work has cleaned up."""
        running = self._running
        if running is not None:
            running.cancel()

    def abort_connections(self) -> None:
        """Close every connection made on this loop. Call it on the loop, when no connection is needed."""
        for transport in list(self._loop.transports):
            # CPython 3.11.2 (Debian 12) raises AttributeError for TLS closed twice, as aiohttp does.
            with contextlib.suppress(AttributeError):
                transport.abort()

    def stop(self, patience: float) -> None:
        """Stop the thread; after `patience` seconds abandon it, and it ends when it can."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patience)

    def _main(self) -> None:
        """Run the loop until it is stopped; then cancel remaining tasks, let them clean up, and close the loop."""
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self.abort_connections()
        with contextlib.suppress(TimeoutError):
            self._loop.run_until_complete(_settle(tasks))
        self._loop.close()


class Stuck(Exception):
    """The loop did not return in time."""


class LoopInterrupted(Exception):
    """`interrupt` was called."""


async def _settle(tasks: set[asyncio.Task[Any]]) -> None:
    async with asyncio.timeout(_SETTLING):
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports notify their protocols in the next iteration


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that keeps its connections, looks up names on daemon threads, and ignores unhandled errors."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: weakref.WeakSet[Any] = weakref.WeakSet()
        self.set_exception_handler(lambda _loop, _context: None)  # asyncio would log errors that no caller waits for

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """See the base class; keeps the transport for `abort_connections`."""
        connection = await super().create_connection(*args, **kwargs)
        self.transports.add(connection[0])
        return connection

    async def getaddrinfo(self, host: Any, port: Any, **kwargs: Any) -> Any:
        """See the base class; doesn't use an executor, because the process waits for its threads at exit."""
        return await in_thread(partial(socket.getaddrinfo, host, port, **kwargs), "event-hubs-lookup")
