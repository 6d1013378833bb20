"""Delivers to Event Hubs over AMQP with Azure's SDK: it loses nothing and never hangs.

The SDK's sync client cannot be interrupted and deadlocks on close; its buffered mode loses. So: the asyncio client, on
a loop of its own, every call under a deadline, and a client that met any error which is not the record's own is thrown
away. It is connected on demand and closed when idle, since a namespace counts connections. The SDK repeats a send whose
acknowledgement is lost, so a consumer may see a record twice, with the same `message_id`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.eventhub import EventData, EventDataBatch
from azure.eventhub.aio import EventHubProducerClient

from exporter.choices import MessageFormat, Transport
from exporter.errors import Failure, Permanent, Retryable
from exporter.sinks.event_hubs.address import Address, default_credential
from exporter.sinks.event_hubs.errors import translate
from exporter.sinks.event_hubs.event_loop import Interrupted, LoopThread, Stuck
from exporter.sinks.event_hubs.messages import Message, message, partition_key

if TYPE_CHECKING:
    from exporter.core.records import Record


T = TypeVar("T")

_CLOSING: Final = 1.0  # seconds that a client gets to close
_STOPPING: Final = 0.5  # seconds for its thread to end
_GRACE: Final = 2.0  # seconds beyond the deadlines after which the loop counts as stuck
_STEPS: Final = 4  # deadlines in a send: to connect, and for the few batches that records fill


class EventHubsDestination:
    """Delivers to one event hub. The shape is described in `exporter.sinks`.

    Reached by `connection_string`, or by `fully_qualified_namespace` with an Azure identity; `credential` makes an
    asyncio credential and defaults to azure-identity's `DefaultAzureCredential`, of which there is one.
    `certificate_file` holds the CAs to trust instead of the public ones, and is read at each connection. `deadline` is
    for each step of a send (connecting, each batch), `idle_close` is the time without a record after which the
    connection is given back; all in seconds. Raises ValueError with a sentence for what cannot work.
    """

    name: Final = "event_hubs"
    batch_size: Final = 100

    def __init__(
        self,
        *,
        connection_string: str = "",
        fully_qualified_namespace: str = "",
        credential: Callable[[], Any] | None = None,
        event_hub: str = "",
        transport: Transport = "amqp",
        custom_endpoint: str = "",
        certificate_file: str = "",
        message_format: MessageFormat = "cloudevents",
        idle_close: float = 60.0,
        deadline: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        _quiet()
        self._address = Address(
            connection_string, fully_qualified_namespace, event_hub, transport, custom_endpoint, certificate_file
        )
        self._make_credential = (credential or default_credential()) if fully_qualified_namespace else None
        self._format = message_format
        self._idle_close = idle_close
        self._deadline = deadline
        self._monotonic = monotonic
        self._last_used = 0.0
        self._lock = threading.Lock()
        self._closed = False
        self._thread: LoopThread | None = None
        # These two belong to the loop.
        self._client: EventHubProducerClient | None = None
        self._credential: Any = None

    def send(self, records: Sequence[Record]) -> None:
        """Return once the hub has acknowledged every record; raise `Retryable` or `Permanent` otherwise.

        Records of one subject stay in their order. Nothing is sent when one of them can never be.
        """
        if not records:
            return
        grouped = [(key, self._messages(group)) for key, group in groupby(records, lambda r: partition_key(r.subject))]
        self._run(self._deliver(grouped), _STEPS * self._deadline)
        self._last_used = self._monotonic()

    def probe(self) -> int:
        """Open what a send opens, and send nothing. The bytes that a message may have; raises `Failure` as `send`."""
        return self._run(self._open(), 2 * self._deadline)

    def idle(self) -> float | None:
        """Give the connection back when it was not used for a while.

        Answers in how many seconds that will be; None when there is none to give back.
        """
        if self._thread is None or self._client is None:
            return None
        unused = self._monotonic() - self._last_used
        if unused < self._idle_close:
            return self._idle_close - unused
        with contextlib.suppress(Failure):  # closed or not, it is not used any more
            self._run(self._discard(), _CLOSING)
        return None

    def close(self) -> None:
        """End within 2 s, also a `send` that is under way in another thread, which then raises `Retryable`."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.interrupt()
        with contextlib.suppress(Stuck, Interrupted):
            thread.run(self._close(), _CLOSING)
        thread.stop(_STOPPING)

    def _messages(self, records: Any) -> list[Message]:
        try:
            return [message(record, self._format) for record in records]
        except (ValueError, TypeError) as error:
            raise Permanent("rejected", f"it cannot be encoded ({type(error).__name__})") from error

    def _run(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        """Run `work` on the loop; abandon the loop when it does not come back."""
        with self._lock:
            if self._closed:
                work.close()
                raise Retryable("closed", "going down")
            if self._thread is None:
                self._thread = LoopThread("event-hubs")
                self._client = self._credential = None
            thread = self._thread
        try:
            return thread.run(work, patience + _GRACE)
        except Interrupted as error:
            raise Retryable("closed" if self._closed else "other", "interrupted") from error
        except Stuck as error:
            with self._lock:
                self._thread = None if self._thread is thread else self._thread
            thread.stop(0)
            raise Retryable("timeout", "the SDK did not come back from a call") from error

    # --- on the loop ---------------------------------------------------------------------------------------------

    async def _deliver(self, grouped: Sequence[tuple[str | None, Sequence[Message]]]) -> None:
        try:
            client = await self._connected()
            batches = [batch for key, messages in grouped for batch in await self._fill(client, key, messages)]
        except Permanent:
            raise  # the record's own, found before anything was sent: the client is as good as before
        except BaseException as error:
            await self._discard()
            raise _failure(error, sending=False) from error
        for batch in batches:
            try:
                await asyncio.wait_for(client.send_batch(batch), self._deadline)
            except BaseException as error:
                await self._discard()
                raise _failure(error, sending=True) from error

    async def _open(self) -> int:
        try:
            client = await self._connected()
            batch = await asyncio.wait_for(client.create_batch(), self._deadline)
        except BaseException as error:
            await self._discard()
            raise _failure(error, sending=False) from error
        return batch.max_size_in_bytes

    async def _connected(self) -> EventHubProducerClient:
        if self._client is None:
            if self._make_credential is not None and self._credential is None:
                self._credential = self._make_credential()
            self._client = self._address.client(self._credential, self._address.tls_context())
        return self._client

    async def _fill(
        self, client: EventHubProducerClient, key: str | None, messages: Sequence[Message]
    ) -> list[EventDataBatch]:
        """All messages in as few batches as the hub's limit allows; Permanent if one of them alone is too large."""
        batches: list[EventDataBatch] = []
        for plain in messages:
            event = _event(plain)
            if batches and _added(batches[-1], event):
                continue
            batch = await asyncio.wait_for(client.create_batch(partition_key=key), self._deadline)
            if not _added(batch, event):
                limit = batch.max_size_in_bytes
                raise Permanent("too-large", f"{len(plain.body)} bytes, the event hub takes messages of {limit}")
            batches.append(batch)
        return batches

    async def _discard(self) -> None:
        """Throw the client away, with every connection that it forgets to close."""
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(Exception):  # closed or not, it is not used any more
            await asyncio.wait_for(client.close(), _CLOSING)
        thread = self._thread
        if thread is not None:
            thread.abort_connections()

    async def _close(self) -> None:
        await self._discard()
        if self._credential is not None:
            with contextlib.suppress(Exception):  # as above
                await self._credential.close()


def _event(plain: Message) -> EventData:
    event = EventData(plain.body)
    event.content_type = plain.content_type
    event.message_id = plain.message_id
    properties: dict[str | bytes, Any] = dict(plain.properties.items())
    event.properties = properties
    return event


def _added(batch: EventDataBatch, event: EventData) -> bool:
    try:
        batch.add(event)
    except ValueError:  # the SDK's word for a batch that is full
        return False
    return True


def _failure(error: BaseException, *, sending: bool) -> BaseException:
    """What to raise for `error`: a cancellation stays one, everything else becomes a `Failure`.

    Nothing that happens before a record is sent can be the record's own.
    """
    if isinstance(error, Failure | asyncio.CancelledError):
        return error
    if isinstance(error, TimeoutError):
        return Retryable("timeout", "Event Hubs did not answer in time")
    failure = translate(error)
    if isinstance(failure, Permanent) and not sending:
        return Retryable("configuration", f"Event Hubs refuses the connection ({failure.detail})", needs_operator=True)
    return failure


def _quiet() -> None:
    """Silence the SDK's log of each of its own attempts: the `Failure` is logged."""
    for library in ("azure", "uamqp", "aiohttp"):
        logging.getLogger(library).setLevel(logging.ERROR)
