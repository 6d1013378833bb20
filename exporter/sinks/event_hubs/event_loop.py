"""An event loop on a thread of its own whose work can be broken off from outside, within a bounded time.

Azure's asyncio client can be cancelled in most of its waits. What remains is covered here: a name that the resolver
never answers must not hold the process back, sockets that the client forgot must not pile up, and a loop that does not
come back is abandoned.
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

_SETTLING = 0.3  # seconds that cancelled work gets to clean up


class LoopThread:
    """Runs coroutines one at a time. `interrupt` and `stop` may be called from any thread."""

    def __init__(self, name: str) -> None:
        self._loop = _Loop()
        self._running: Future[Any] | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        """What `work` returns or raises; `LoopInterrupted` when it was.

        Raises `Stuck` when it does not come back within `patience` seconds: the loop is of no more use then.
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
        """Cancel what is running; `run` raises `LoopInterrupted` at once, before the work has cleaned up."""
        running = self._running
        if running is not None:
            running.cancel()

    def abort_connections(self) -> None:
        """Close every connection made on this loop. To be called on the loop, when nobody needs any of them."""
        for transport in list(self._loop.transports):
            # CPython 3.11.2, which is Debian 12's, stumbles over TLS that was closed twice; aiohttp does that.
            with contextlib.suppress(AttributeError):
                transport.abort()

    def stop(self, patience: float) -> None:
        """End the thread; after `patience` seconds it is abandoned and ends when it can."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patience)

    def _main(self) -> None:
        """Run the loop until it is stopped; then cancel what is left, let it clean up, and close the loop."""
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self.abort_connections()
        with contextlib.suppress(TimeoutError):
            self._loop.run_until_complete(_settle(tasks))
        self._loop.close()


class Stuck(Exception):
    """The loop did not come back in time."""


class LoopInterrupted(Exception):
    """`interrupt` was called."""


async def _settle(tasks: set[asyncio.Task[Any]]) -> None:
    async with asyncio.timeout(_SETTLING):
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports tell their protocols in the next turn


class _Loop(asyncio.SelectorEventLoop):
    """Keeps its connections, looks up names on daemon threads, and drops errors that no caller waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: weakref.WeakSet[Any] = weakref.WeakSet()
        self.set_exception_handler(_ignore)

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """As the base's; the transport is kept for `abort_connections`."""
        connection = await super().create_connection(*args, **kwargs)
        self.transports.add(connection[0])
        return connection

    async def getaddrinfo(self, host: Any, port: Any, **kwargs: Any) -> Any:
        """As the base's, but not in an executor, whose threads the process would wait for at its end."""
        return await in_thread(partial(socket.getaddrinfo, host, port, **kwargs), "event-hubs-lookup")


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An error that no caller waits for is dropped; asyncio would log it."""
