"""A proxy on loopback that delays everything that it forwards, without changing order or speed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

CHUNK: Final = 1 << 16


class LatencyProxy:
    """A context manager that forwards connections from `port` to the port `target`. `delay` is one way, in seconds."""

    def __init__(self, target: int, delay: float) -> None:
        self.connections = 0
        self.most_connections = 0
        self._target, self._delay = target, delay
        self._loop = asyncio.new_event_loop()
        self._started: Future[int] = Future()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="latency-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._started.result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._started.set_result(server.sockets[0].getsockname()[1])
        await self._stopping.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.most_connections = max(self.connections, self.most_connections)
        upstream: asyncio.StreamWriter | None = None
        try:
            back, upstream = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(self._pump(reader.read, upstream), self._pump(back.read, writer))
        except (OSError, asyncio.CancelledError):
            pass  # one end closed, so the other one is closed too; or the proxy stops
        finally:
            self.connections -= 1
            for end in (writer, upstream):
                if end is not None:
                    end.close()

    async def _pump(self, read: Callable[[int], Awaitable[bytes]], writer: asyncio.StreamWriter) -> None:
        """Forward each part `delay` seconds after it arrived, and the end of the stream too."""
        in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def receive() -> None:
            data = b"-"
            while data:
                try:
                    data = await read(CHUNK)
                except OSError:
                    data = b""
                in_transit.put_nowait((self._loop.time() + self._delay, data))

        receiving = asyncio.create_task(receive())
        try:
            while True:
                due, data = await in_transit.get()
                await asyncio.sleep(due - self._loop.time())
                if not data:
                    raise ConnectionError("the other end closed the connection")
                writer.write(data)
                await writer.drain()
        finally:
            receiving.cancel()
