"""Reader of every partition of an event hub, for `tail`: Azure's SDK on a separate loop, each call with a deadline."""

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
PATIENCE: Final = 300.0  # to connect and look up all partitions
CLOSING: Final = 0.3  # seconds; the SDK's close is optional
AT_ONCE: Final = 16
QUEUED: Final = 5_000
FULL_SECONDS: Final = 0.05
BALANCE_SECONDS: Final = 2.0  # after which the SDK resumes a lost partition


class ReceivedMessage(Struct, frozen=True):
    """One received message as plain values."""

    body: bytes
    properties: Mapping[str, str]
    message_id: str | None
    enqueued: datetime | None


class EventHubsReader:
    """Reads one event hub through a consumer group, without storing or moving checkpoints."""

    def __init__(self, settings: EventHubsSettings, begin: From, deadline: float = DEADLINE) -> None:
        """Prepare the reader without connecting. Raises ValueError if the settings can't work."""
        self._address = Address(settings)
        self._make_credential = default_credential() if settings.fully_qualified_namespace else None
        self._begin = begin
        self._deadline = deadline
        self._queue: queue.Queue[ReceivedMessage | Failure] = queue.Queue(QUEUED)
        self._thread = LoopThread("event-hubs")
        # Used on the loop only.
        self._client: EventHubConsumerClient | None = None
        self._credential: Any = None
        self._receiving: asyncio.Task[None] | None = None
        self._positions: dict[str, str | int | datetime] = {}
        self._behind: dict[str, int] = {}

    def open(self) -> int:
        """Connect and begin to receive. Return the number of partitions. Raises `Failure`."""
        try:
            return self._thread.run(self._open(), PATIENCE)
        except (Stuck, LoopInterrupted) as error:
            raise Retryable("timeout", "a call of the SDK did not return") from error

    def get(self, timeout: float) -> ReceivedMessage | Failure | None:
        """Return the next message or failure, after which the SDK retries; None after `timeout` seconds."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    @property
    def caught_up(self) -> bool:
        """Whether all messages that existed at the opening were received."""
        return not self._behind

    def close(self) -> None:
        """Close within 2 s, even if the SDK doesn't return."""
        self._thread.interrupt()
        with contextlib.suppress(Stuck, LoopInterrupted):
            self._thread.run(self._close(), 4 * CLOSING)
        self._thread.stop(CLOSING)

    # -- on the loop

    async def _open(self) -> int:
        try:
            if self._make_credential is not None:
                self._credential = self._make_credential()
            context = self._address.tls_context()
            self._client = self._address.consumer(self._credential, context, load_balancing_interval=BALANCE_SECONDS)
            partitions = await asyncio.wait_for(self._client.get_partition_ids(), self._deadline)
            for first in range(0, len(partitions), AT_ONCE):  # each lookup takes the SDK 0.5 s
                portion = partitions[first : first + AT_ONCE]
                positions = await asyncio.gather(*(self._position(self._client, partition) for partition in portion))
                self._positions |= zip(portion, positions, strict=True)
        except Exception as error:  # any error of the SDK
            raise _failure(error) from error
        self._receiving = asyncio.ensure_future(self._receive(self._client))
        return len(partitions)

    async def _position(self, client: EventHubConsumerClient, partition: str) -> str | int | datetime:
        """Return the starting position. "now" is the partition's current end, so that no later message is missed."""
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
            except Exception as error:  # any error of the SDK
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
            # The SDK reads this again to resume the partition.
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
                with contextlib.suppress(Exception):  # it is no longer used, even if not closed
                    await asyncio.wait_for(part.close(), CLOSING)
        self._thread.abort_connections()


def _failure(error: BaseException) -> Failure:
    if isinstance(error, Failure):
        return error
    failure = translate(error)
    if failure.reason == "unauthorized":
        detail = "Event Hubs rejected the credential: expired, invalid, or without the Listen claim"
        return Retryable(failure.reason, detail)
    return failure


def _message(event: EventData) -> ReceivedMessage:
    """Return a message of any sender as plain values; a body that isn't bytes is empty."""
    body = b""
    if event.body_type == AmqpMessageBodyType.DATA:
        parts: Any = event.body
        body = parts if isinstance(parts, bytes) else b"".join(parts)
    properties = {_text(name): _text(value) for name, value in (event.properties or {}).items()}
    message_id = event.message_id if isinstance(event.message_id, str) else None
    return ReceivedMessage(body, properties, message_id, _enqueued(event))


def _enqueued(event: EventData) -> datetime | None:
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        return event.enqueued_time
    return None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
