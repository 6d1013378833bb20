"""Reads every partition of an event hub, for `tail`: Azure's SDK on a loop of its own, every call under a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.amqp import AmqpMessageBodyType
from msgspec import Struct

from exporter.config.schema import EventHubsSettings
from exporter.errors import Failure, Retryable
from exporter.sinks.event_hubs.address import Address, default_credential
from exporter.sinks.event_hubs.errors import translate
from exporter.sinks.event_hubs.event_loop import LoopInterrupted, LoopThread, Stuck

From = Literal["start", "now"] | datetime

DEADLINE: Final = 30.0  # seconds for each call
PATIENCE: Final = 300.0  # for all that comes before the first message
CLOSING: Final = 0.3  # seconds that the SDK gets to close; nothing depends on it
AT_ONCE: Final = 16
QUEUED: Final = 5_000
FULL_SECONDS: Final = 0.05
BALANCE_SECONDS: Final = 2.0  # after which the SDK takes up a partition that it has lost


class ReceivedMessage(Struct, frozen=True):
    """One message as plain values."""

    body: bytes
    properties: Mapping[str, str]
    message_id: str | None
    enqueued: datetime | None


class EventHubsReader:
    """Reads one event hub through a consumer group, and neither keeps nor moves anybody's position in it."""

    def __init__(self, settings: EventHubsSettings, begin: From, deadline: float = DEADLINE) -> None:
        """Raises ValueError with a sentence for what cannot work."""
        self._address = Address(settings)
        self._make_credential = default_credential() if settings.fully_qualified_namespace else None
        self._begin = begin
        self._deadline = deadline
        self._queue: queue.Queue[ReceivedMessage | Failure] = queue.Queue(QUEUED)
        self._thread = LoopThread("event-hubs")
        # These belong to the loop.
        self._client: EventHubConsumerClient | None = None
        self._credential: Any = None
        self._receiving: asyncio.Task[None] | None = None
        self._positions: dict[str, str | int | datetime] = {}
        self._behind: dict[str, int] = {}

    def open(self) -> int:
        """Connects and begins to receive. Answers the number of partitions; raises `Failure`."""
        try:
            return self._thread.run(self._open(), PATIENCE)
        except (Stuck, LoopInterrupted) as error:
            raise Retryable("timeout", "the SDK did not come back from a call") from error

    def get(self, timeout: float) -> ReceivedMessage | Failure | None:
        """The next message, or what went wrong (the SDK goes on by itself), or None after `timeout` seconds."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    @property
    def caught_up(self) -> bool:
        """Whether all that was there when it was opened has been received."""
        return not self._behind

    def close(self) -> None:
        """Ends within 2 s, whatever the SDK does."""
        self._thread.interrupt()
        with contextlib.suppress(Stuck, LoopInterrupted):
            self._thread.run(self._close(), 4 * CLOSING)
        self._thread.stop(CLOSING)

    # -- on the loop

    async def _open(self) -> int:
        try:
            if self._make_credential is not None:
                self._credential = self._make_credential()
            self._client = self._address.consumer(
                self._credential, self._address.tls_context(), load_balancing_interval=BALANCE_SECONDS
            )
            partitions = await asyncio.wait_for(self._client.get_partition_ids(), self._deadline)
            for first in range(0, len(partitions), AT_ONCE):  # each question takes the SDK half a second
                portion = partitions[first : first + AT_ONCE]
                positions = await asyncio.gather(*(self._position(self._client, partition) for partition in portion))
                self._positions |= zip(portion, positions, strict=True)
        except Exception as error:  # the border to the SDK
            raise _failure(error) from error
        self._receiving = asyncio.ensure_future(self._receive(self._client))
        return len(partitions)

    async def _position(self, client: EventHubConsumerClient, partition: str) -> str | int | datetime:
        """Where to begin. "Now" is where the partition ends at this moment, so that nothing after it is missed."""
        properties = await asyncio.wait_for(client.get_partition_properties(partition), self._deadline)
        begin, newest = self._begin, int(properties["last_enqueued_sequence_number"])
        if properties["is_empty"]:
            return "-1"
        if begin == "now":
            return newest
        since = properties["last_enqueued_time_utc"]
        if begin == "start" or since is None or since >= begin:
            self._behind[partition] = newest
        return "-1" if begin == "start" else begin

    async def _receive(self, client: EventHubConsumerClient) -> None:
        while True:
            try:
                await client.receive(
                    self._on_event,
                    on_error=self._on_error,
                    starting_position=self._positions,
                    starting_position_inclusive=isinstance(self._begin, datetime),
                )
            except Exception as error:  # the border to the SDK
                await self._on_error(None, error)
            await asyncio.sleep(BALANCE_SECONDS)

    async def _on_event(self, context: Any, event: EventData | None) -> None:
        if event is None:
            return
        message = _message(event)
        while True:
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(message)
                break
            await asyncio.sleep(FULL_SECONDS)
        if event.sequence_number is not None:
            # The SDK looks here again when it has to take up the partition anew.
            self._positions[context.partition_id] = event.sequence_number
            if event.sequence_number >= self._behind.get(context.partition_id, event.sequence_number):
                self._behind.pop(context.partition_id, None)

    async def _on_error(self, _context: Any, error: Exception) -> None:
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(_failure(error))

    async def _close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
        for part in (self._client, self._credential):
            if part is not None:
                with contextlib.suppress(Exception):  # closed or not, it is not used any more
                    await asyncio.wait_for(part.close(), CLOSING)
        self._thread.abort_connections()


def _failure(error: BaseException) -> Failure:
    if isinstance(error, Failure):
        return error
    failure = translate(error)
    if failure.reason == "unauthorized":
        return Retryable(
            failure.reason, "Event Hubs refuses the credential: expired, wrong, or without the claim Listen"
        )
    return failure


def _message(event: EventData) -> ReceivedMessage:
    """Plain values of what anybody may have sent; a body that is not made of bytes is taken as empty."""
    body = b""
    if event.body_type == AmqpMessageBodyType.DATA:
        parts: Any = event.body
        body = parts if isinstance(parts, bytes) else b"".join(parts)
    properties = {_text(name): _text(value) for name, value in (event.properties or {}).items()}
    return ReceivedMessage(
        body, properties, event.message_id if isinstance(event.message_id, str) else None, _enqueued(event)
    )


def _enqueued(event: EventData) -> datetime | None:
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        return event.enqueued_time
    return None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
