"""Azure's own SDK as the tests use it, and a bare AMQP peer for behaviour that no SDK has."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage

from exporter.simulator.event_hubs.amqp import Described, Symbol, UInt, ULong, encode
from exporter.simulator.event_hubs.frames import (
    AMQP_HEADER,
    HEADER_SIZE,
    Attach,
    Begin,
    Open,
    Performative,
    Transfer,
    frame,
    next_frame,
    source,
    target,
)

P = TypeVar("P", bound=tuple[Any, ...])
PATIENCE = 60.0
GROUP = "$Default"
HUB = "scheduled-events"


def event(body: str, message_id: str | None = None, properties: Mapping[str, str] | None = None) -> EventData:
    """Return an event as the agent sends it."""
    made = EventData(body)
    if message_id is not None:
        made.message_id = message_id
    made.content_type = "application/cloudevents+json"
    for key, value in (properties or {}).items():
        made.properties[key] = value
    return made


def producer(connection_string: str, **options: Any) -> EventHubProducerClient:
    """Return the SDK's asyncio producer with the minimum number of attempts that it permits: two."""
    settings = {"retry_total": 0, "retry_backoff_factor": 0.05, **options}
    return EventHubProducerClient.from_connection_string(connection_string, **settings)


async def send(
    client: EventHubProducerClient, events: Iterable[EventData | AmqpAnnotatedMessage], **where: Any
) -> None:
    """Send one batch and wait for its acknowledgement."""
    batch = await client.create_batch(**where)
    for data in events:
        batch.add(data)
    await asyncio.wait_for(client.send_batch(batch), PATIENCE)


async def receive(
    connection_string: str,
    enough: Callable[[list[tuple[str, EventData]]], bool],
    *,
    group: str = GROUP,
    position: Any = "-1",
    meanwhile: Callable[[], Awaitable[None]] | None = None,
    client_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[tuple[str, EventData]]:
    """Return what a consumer gets, as (partition, event), until it is `enough`; `meanwhile` runs repeatedly until
    then."""
    received: list[tuple[str, EventData]] = []
    done = asyncio.Event()
    errors: list[Exception] = []

    async def on_event(context: Any, data: EventData | None) -> None:
        assert data is not None  # it is None only with a maximum waiting time
        received.append((context.partition_id, data))
        if enough(received):
            done.set()

    async def on_error(_context: Any, error: Exception) -> None:
        errors.append(error)
        done.set()

    client = EventHubConsumerClient.from_connection_string(
        connection_string, consumer_group=group, retry_total=0, **(client_options or {})
    )
    async with client:
        task = asyncio.ensure_future(
            client.receive(on_event=on_event, on_error=on_error, starting_position=position, **options)
        )
        async with asyncio.timeout(PATIENCE):
            while meanwhile is not None and not done.is_set():
                await meanwhile()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), 0.1)
            await done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if errors:
        raise errors[0]
    return received


class Peer:
    """A bare AMQP client that writes and reads frame by frame."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._buffer = bytearray()
        self.payload = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self, *data: bytes) -> None:
        self._socket.sendall(b"".join(data))

    def send(self, *performatives: Performative, channel: int = 0) -> None:
        self.write(*(frame(channel, performative) for performative in performatives))

    def begin(self) -> None:
        """Open a connection and a session on channel 0, and read the responses."""
        self.write(AMQP_HEADER)
        self.send(Open("peer"), Begin(None, UInt(0), UInt(5000), UInt(5000)))
        assert self.read(HEADER_SIZE) == AMQP_HEADER
        self.expect(Open)
        self.expect(Begin)

    def put_token(self) -> None:
        """Put a token, to be authorized for event hubs."""
        self.send(sender("$cbs", 0))
        request = encode(Described(ULong(0x74), {"operation": "put-token"})) + encode(Described(ULong(0x77), "token"))
        self.write(frame(0, Transfer(UInt(0), UInt(0), b"0", UInt(0), True), request))

    def read(self, size: int) -> bytes:
        """Return exactly this many bytes; fewer only if the peer closed."""
        while len(self._buffer) < size and self._fill():
            pass
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def read_all(self) -> bytes:
        """Return everything until the broker closes."""
        while self._fill():
            pass
        return bytes(self._buffer)

    def expect(self, kind: type[P]) -> P:
        """Return the next performative of that kind with its `payload`; others are skipped."""
        while True:
            received = next_frame(self._buffer)
            if received is None and not self._fill():
                raise ConnectionError(f"closed before {kind.__name__}")
            if received is not None and isinstance(received.performative, kind):
                self.payload = received.payload
                return received.performative

    def _fill(self) -> bool:
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)


def sender(address: str, handle: int) -> Attach:
    """Return the attach of a link on which a client sends."""
    return Attach(f"s-{handle}", UInt(handle), False, source=source("me"), target=target(address))


def receiver(address: str, handle: int, selector: str | None = None) -> Attach:
    """Return the attach of a link on which a client receives, from a position if a selector is given."""
    name = Symbol("apache.org:selector-filter:string")
    origin = source(address)
    if selector is not None:
        origin.value[7] = {name: Described(name, selector)}
    return Attach(f"r-{handle}", UInt(handle), True, source=origin, target=target("me"))
