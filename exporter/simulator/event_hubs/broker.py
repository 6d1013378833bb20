"""A local Event Hubs: AMQP 1.0 for Azure's own SDKs, in memory, on its own thread, with faults on request.

    with Broker() as broker:
        client = EventHubProducerClient.from_connection_string(broker.connection_string())

One port serves AMQP and AMQP over websocket; with `ssl_context`, both over TLS. Each fault (`simulator.faults`, of
`KINDS`) occurs once unless it has a count: `drop-before-store`, `rejected:com.microsoft:server-busy*3`,
`silent*always`. A fault occurs at one of these moments: `connect` (a TCP connection was accepted), `cbs` (a put-token),
`attach` (a link to an event hub), `management` (a request on $management), and `send` (a complete transfer to an event
hub, either one event or a batch).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Self

from exporter.simulator.event_hubs.connection import BrokerConnection
from exporter.simulator.event_hubs.store import Namespace, StoredMessage
from exporter.simulator.faults import FaultKind, Faults

KINDS: Final[Mapping[str, FaultKind]] = {
    "silent": FaultKind("accepts the connection, reads, never sends anything", where="connect", times=1),
    "cbs-refused": FaultKind("put-token gets a 401", where="cbs", times=1),
    "cbs-silent": FaultKind("put-token gets no response", where="cbs", times=1),
    "attach-refused": FaultKind(
        "detaches the link with the condition", condition="amqp:not-found", where="attach", times=1
    ),
    "management-silent": FaultKind("the request gets no response", where="management", times=1),
    "drop-before-store": FaultKind("connection reset, nothing stored", where="send", times=1),
    "drop-after-store": FaultKind("stored, connection reset, acknowledgement lost", where="send", times=1),
    "no-disposition": FaultKind("stored, never acknowledged, connection stays up", where="send", times=1),
    "released": FaultKind("not stored", where="send", times=1),
    "modified": FaultKind("not stored", where="send", times=1),
    "rejected": FaultKind(
        "not stored, rejected with the condition", condition="com.microsoft:server-busy", where="send", times=1
    ),
    "detach": FaultKind("not stored, link detached", condition="com.microsoft:server-busy", where="send", times=1),
    "accept": FaultKind("no fault: one send succeeds", where="send", times=1),
}
_HOST: Final = "127.0.0.1"
_TIMEOUT: Final = 10.0  # seconds for a call on the loop, far more than it needs


class Broker:
    """A namespace with event hubs (name to number of partitions). Every method may be called from any thread.

    `port` 0 selects a free port, which `stop` and `start` keep. `max_message_size` is in bytes. `faults` may be added
    and replaced while the broker runs.
    """

    def __init__(
        self,
        *,
        hubs: Mapping[str, int] | None = None,
        port: int = 0,
        faults: Iterable[str] = (),
        max_message_size: int = 1_048_576,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create a stopped broker. Raises FaultError for an unknown fault."""
        self.port = port
        self.faults = Faults(KINDS)
        self.faults.set(*faults)
        self._namespace = Namespace(self.faults, max_message_size, clock)
        for name, partitions in (hubs or {"scheduled-events": 4}).items():
            self.create_hub(name, partitions)
        self._ssl = ssl_context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread()
        self.unexpected_errors: list[BaseException | str] = []

    # --- starting and stopping --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the port. Raises OSError if it can't. Does nothing if the broker runs."""
        if self._loop is not None:
            return
        listening = socket.create_server((_HOST, self.port), backlog=512)
        self.port = listening.getsockname()[1]
        self._loop, self._stopping = asyncio.new_event_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._record_error)
        target, serving = self._loop.run_until_complete, self._serve(listening)
        self._thread = threading.Thread(target=target, args=(serving,), name="event-hubs-broker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Drop all connections and close the port. Messages stay; `start` opens the same port again."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_TIMEOUT)
            self._loop.close()
            self._loop = None

    def __enter__(self) -> Self:
        """See `start`."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """See `stop`."""
        self.stop()

    async def _serve(self, listening: socket.socket) -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: BrokerConnection(self._namespace), sock=listening, ssl=self._ssl, backlog=512
        )
        await self._stopping.wait()
        server.close()
        self._drop_all()
        for _ in range(3):  # asyncio calls connection_lost in the next iterations of the loop
            await asyncio.sleep(0)

    def _record_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep an error that is a bug of the broker; ignore OSError, which a peer causes by disconnecting."""
        del loop
        problem = context.get("exception")
        if not isinstance(problem, OSError):
            self.unexpected_errors.append(problem or str(context.get("message")))

    def _drop_all(self) -> None:
        for connection in list(self._namespace.connections):
            connection.drop()

    def _call(self, action: Callable[[], None]) -> None:
        """Run the action on the broker's loop. Raises RuntimeError if the broker isn't running."""
        if self._loop is None:
            raise RuntimeError("the broker is not running")

        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_TIMEOUT)

    # --- for clients ------------------------------------------------------------------------------------------------

    def connection_string(self, hub: str | None = None) -> str:
        """Return a connection string for Azure's SDKs, of the first event hub by default.

        With TLS it lacks `UseDevelopmentEmulator`, so the client also needs `custom_endpoint_address`,
        `transport_type`, and `connection_verify`.
        """
        name = hub or next(iter(self._namespace.hubs))
        text = f"Endpoint=sb://{_HOST}:{self.port};SharedAccessKeyName=local;SharedAccessKey=local;EntityPath={name}"
        return text if self._ssl else f"{text};UseDevelopmentEmulator=true"

    # --- for tests and the demo -------------------------------------------------------------------------------------

    def messages(self, hub: str | None = None) -> list[StoredMessage]:
        """Return the messages by partition, in order. Raises KeyError for an unknown event hub."""
        with self._namespace.changed:
            hubs = self._namespace.hubs
            chosen = hubs.values() if hub is None else [hubs[hub]]
            return [message for each in chosen for log in each.partitions.values() for message in log.messages]

    def wait_for(self, count: int, timeout: float) -> list[StoredMessage]:
        """Return all messages once `count` have been stored. Raises TimeoutError after `timeout` seconds."""
        space = self._namespace
        with space.changed:
            if not space.changed.wait_for(lambda: space.total_stored >= count, timeout):
                raise TimeoutError(f"{space.total_stored} of {count} messages stored after {timeout:g} s")
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
        """Wait until exactly `count` connections are open and at least `total` were ever accepted.

        Raises TimeoutError after `timeout` seconds.
        """
        changed = self._namespace.changed
        with changed:
            if not changed.wait_for(lambda: self.connections == count and self.total_connections >= total, timeout):
                raise TimeoutError(f"{self.connections} connections open, not {count}, after {timeout:g} s")

    def drop_connections(self) -> None:
        """Drop the connection of every client."""
        self._call(self._drop_all)

    def expire_token(self) -> None:
        """Let all tokens expire: links to event hubs are detached, new ones need a new put-token."""

        def expire() -> None:
            for connection in list(self._namespace.connections):
                connection.authorised = False
                connection.detach_hub_links("amqp:unauthorized-access", "ExpiredToken: The token is expired.")

        self._call(expire)

    def create_hub(self, name: str, partitions: int = 4) -> None:
        """Add an event hub."""
        self._namespace.create(name, partitions)

    def delete_hub(self, name: str) -> None:
        """Delete an event hub, even if clients use it. Raises KeyError if it doesn't exist."""

        def delete() -> None:
            with self._namespace.changed:
                del self._namespace.hubs[name]
            for connection in list(self._namespace.connections):
                connection.detach_hub_links("amqp:not-found", "The messaging entity was deleted.", hub=name)

        self._call(delete)
