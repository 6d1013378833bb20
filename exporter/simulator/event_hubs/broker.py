"""A local Event Hubs: AMQP 1.0 for Azure's own SDKs, in memory, on a thread of its own, with faults on request.

    with Broker() as broker:
        client = EventHubProducerClient.from_connection_string(broker.connection_string())

One port serves AMQP and AMQP over websocket; with `ssl_context`, both inside TLS.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from exporter.simulator.event_hubs.connection import Connection
from exporter.simulator.event_hubs.faults import KINDS
from exporter.simulator.event_hubs.session import Namespace
from exporter.simulator.event_hubs.store import Store, StoredMessage
from exporter.simulator.faults import Faults

DEFAULT_HUBS: Final[Mapping[str, int]] = {"scheduled-events": 4}
_TIMEOUT: Final = 10.0  # seconds the loop gets for any call; it never needs them

T = TypeVar("T")


class Broker:
    """A namespace with event hubs (name to number of partitions). Every method may be called from any thread.

    `port` 0 takes a free one, which is kept over `stop` and `start`. Kept are at most `max_messages` messages a
    partition, the oldest are dropped. `faults` are written as in `faults`.
    """

    def __init__(
        self,
        *,
        hubs: Mapping[str, int] = DEFAULT_HUBS,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: Iterable[str] = (),
        max_message_size: int = 1_048_576,
        max_messages: int = 200_000,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.host, self.port = host, port
        self._store = Store(max_messages=max_messages, clock=clock)
        for name, partitions in hubs.items():
            self._store.create(name, partitions)
        self._namespace = Namespace(self._store, Faults(KINDS), max_message_size)
        self._namespace.faults.set(*faults)
        self._ssl = ssl_context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._thread: threading.Thread | None = None
        self._stopping = asyncio.Event()
        self.unexpected_errors: list[BaseException | str] = []

    # --- starting and stopping --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the port, and return when it is open. Raises OSError when it can't be."""
        if self._thread is not None:
            return
        self._stopping = asyncio.Event()
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(started)), name="event-hubs-broker", daemon=True
        )
        self._thread.start()
        try:
            started.result(_TIMEOUT)
        except OSError:
            self._thread.join(_TIMEOUT)
            self._thread = None
            raise

    def stop(self) -> None:
        """Drop all connections and close the port. Messages stay; `start` opens the same port again."""
        if self._thread is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_TIMEOUT)
        self._thread = self._loop = None

    def __enter__(self) -> Self:
        """See `start`."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `stop`."""
        self.stop()

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._record_error)
        try:
            await self._listen()
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(None)
        await self._stopping.wait()
        self._close_port()
        self._drop_all()
        for _ in range(3):  # asyncio calls connection_lost in the next iterations of the loop
            await asyncio.sleep(0)

    async def _listen(self) -> None:
        if self._server is not None:
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._namespace), self.host, self.port, ssl=self._ssl, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def _record_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep what is a bug of the broker, and not what a peer causes by leaving in its TLS handshake."""
        del loop
        problem = context.get("exception")
        if not isinstance(problem, OSError):
            self.unexpected_errors.append(problem or str(context.get("message")))

    def _close_port(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _drop_all(self) -> None:
        for connection in list(self._namespace.connections):
            connection.drop()

    def _call(self, action: Callable[[], T]) -> T:
        """Run the action on the broker's loop. Raises RuntimeError when the broker is not running."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("the broker is not running")

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), loop).result(_TIMEOUT)

    # --- for clients ------------------------------------------------------------------------------------------------

    def connection_string(self, hub: str | None = None) -> str:
        """For Azure's SDKs; of the first event hub unless one is named.

        With TLS it is without `UseDevelopmentEmulator`, so the client needs `custom_endpoint_address`,
        `transport_type` and `connection_verify` too.
        """
        name = hub if hub is not None else next(iter(self._store.hubs), "")
        text = (
            f"Endpoint=sb://{self.host}:{self.port};SharedAccessKeyName=local;SharedAccessKey=local;EntityPath={name}"
        )
        return text if self._ssl else f"{text};UseDevelopmentEmulator=true"

    # --- for tests and the demo -------------------------------------------------------------------------------------

    def messages(self, hub: str | None = None) -> list[StoredMessage]:
        """The messages that are kept, by partition and in order. Raises KeyError for an unknown event hub."""
        return self._store.snapshot(hub)

    def wait_for(self, count: int, timeout: float) -> list[StoredMessage]:
        """All messages, once `count` were ever stored. Raises TimeoutError after `timeout` seconds."""
        self._store.wait(count, timeout)
        return self.messages()

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._namespace.connections)

    @property
    def total_connections(self) -> int:
        """Connections ever accepted."""
        return self._namespace.total_connections

    def wait_connections(self, count: int, timeout: float, *, total: int = 0) -> None:
        """Returns when exactly `count` connections are open and at least `total` were ever accepted.

        Raises TimeoutError after `timeout` seconds.
        """
        changed = self._namespace.changed
        with changed:
            if not changed.wait_for(lambda: self.connections == count and self.total_connections >= total, timeout):
                raise TimeoutError(f"{self.connections} connections open, not {count}, after {timeout:g} s")

    # --- faults -----------------------------------------------------------------------------------------------------

    def fault(self, text: str) -> None:
        """Queue a fault such as "drop-after-store" or "rejected:amqp:not-found*3"; ValueError for anything else."""
        self._namespace.faults.add(text)

    def clear_faults(self) -> None:
        """Forget the faults still to happen."""
        self._namespace.faults.set()

    @property
    def pending_faults(self) -> int:
        """How many faults are still to happen."""
        return self._namespace.faults.pending()

    def drop_connections(self) -> None:
        """Drop the connection of every client."""
        self._call(self._drop_all)

    def stop_listening(self) -> None:
        """Close the port and drop all connections: clients are refused until `listen_again`."""

        def close() -> None:
            self._close_port()
            self._drop_all()

        self._call(close)

    def listen_again(self) -> None:
        """Open the same port again. Raises OSError when it is taken."""
        if self._loop is None:
            raise RuntimeError("the broker is not running")
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_TIMEOUT)

    def expire_token(self) -> None:
        """Let all tokens expire: links to event hubs are detached, new ones need a new put-token."""

        def expire() -> None:
            for connection in list(self._namespace.connections):
                connection.authorised = False
                connection.detach_hub_links("amqp:unauthorized-access", "ExpiredToken: The token is expired.")

        self._call(expire)

    def create_hub(self, name: str, partitions: int = 4) -> None:
        """Add an event hub. Raises ValueError for a name that can't be one."""
        self._store.create(name, partitions)

    def delete_hub(self, name: str) -> None:
        """Delete an event hub that clients may be using. Raises KeyError when there is none."""

        def delete() -> None:
            self._store.delete(name)
            for connection in list(self._namespace.connections):
                connection.detach_hub_links("amqp:not-found", "The messaging entity was deleted.", hub=name)

        self._call(delete)
