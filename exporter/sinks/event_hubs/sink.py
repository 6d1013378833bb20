"""The destination for Event Hubs over AMQP, with Azure's SDK: it loses no record and never blocks indefinitely.

The SDK's sync client can't be interrupted and deadlocks on close; its buffered mode loses messages. So this module uses
the asyncio client on a separate loop, with a deadline for every call, and discards a client after any error that the
record didn't cause. It connects on demand and disconnects when idle, because a namespace limits connections. The SDK
repeats a send whose acknowledgement is lost, so a consumer may receive a record twice, with the same `message_id`.

A batch has one partition key, so a backlog costs a round trip for each event. The SDK serializes the sends of a client,
and each client has a separate connection, so two concurrent batches need two connections. One is enough, unless a
backlog drains slowly; then several clients send batches of different subjects concurrently.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.eventhub import EventData, EventDataBatch
from azure.eventhub.aio import EventHubProducerClient
from msgspec import Struct, field

from exporter.config.schema import EventHubsSettings
from exporter.core.document import folded
from exporter.errors import Failure, Permanent, Retryable
from exporter.sinks.event_hubs.address import Address, default_credential
from exporter.sinks.event_hubs.errors import translate
from exporter.sinks.event_hubs.event_loop import LoopInterrupted, LoopThread, Stuck
from exporter.sinks.event_hubs.messages import message, partition_key

if TYPE_CHECKING:
    from exporter.core.records import Record


T = TypeVar("T")

_CLOSING: Final = 1.0  # seconds for a client to close
_STOPPING: Final = 0.5  # seconds for its thread to end
_GRACE: Final = 2.0  # seconds beyond the deadlines after which the loop counts as stuck
_STEPS: Final = 4  # deadlines in a send: to connect, and for the few batches that records fill
MAX_CONNECTIONS: Final = 5
"""Maximum number of connections, and of subjects whose records are being sent."""
WIDEN_AFTER: Final = 10
WIDEN_SECONDS: Final = 0.05
"""A backlog drains slowly if more than `WIDEN_AFTER` sends without a pause took this long on average.

The first send isn't measured, because it may include connecting.
"""
_OPENING: Final = 5.0  # seconds to make a further connection, before the send continues without it


class _Portion(Struct):
    """The records of one subject in a send: their ids, their messages by partition key, and these as batches."""

    ids: frozenset[str]
    runs: list[tuple[str | None, list[EventData]]]
    batches: list[EventDataBatch] = field(default_factory=list)


class _DrainRate(Struct):
    """The speed at which a backlog drains, and the resulting number of connections."""

    connections: int = 1
    most: int = MAX_CONNECTIONS
    sends: int = 0
    seconds: float = 0.0

    def sent(self, seconds: float) -> None:
        """Add the duration of a send that had no pause before it."""
        self.sends += 1
        if self.sends > 1:
            self.seconds += seconds
        if self.sends > WIDEN_AFTER and self.seconds >= WIDEN_SECONDS * (self.sends - 1):
            self.connections = self.most

    def restart(self) -> None:
        """Return to one connection after a failed send."""
        self.connections, self.sends, self.seconds = 1, 0, 0.0

    def limit(self, connections: int) -> None:
        """Limit the connections for this backlog to those that could be made."""
        self.connections = self.most = connections


class EventHubsDestination:
    """A destination for one event hub. `exporter.sinks` describes the interface.

    It uses the connection string of `settings`, or its namespace with an Azure identity; then `credential` makes the
    asyncio credential, by default one `DefaultAzureCredential` of azure-identity. `deadline` (seconds) applies to each
    step of a send: connecting, and each batch. Raises ValueError if the settings can't work.
    """

    name: Final = "event_hubs"
    batch_size: Final = 100

    def __init__(
        self,
        settings: EventHubsSettings,
        *,
        credential: Callable[[], Any] | None = None,
        deadline: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = Address(settings)
        self._make_credential = (credential or default_credential()) if settings.fully_qualified_namespace else None
        self._format = settings.message_format
        self._idle_close = settings.idle_close
        self._deadline = deadline
        self._monotonic = monotonic
        self._last_used = 0.0
        self._drain_rate = _DrainRate()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: LoopThread | None = None
        # Used on the loop only.
        self._clients: list[EventHubProducerClient] = []
        self._credential: Any = None

    @property
    def subjects(self) -> int:
        """Maximum subjects in the next `send`: more than 1 while a backlog drains slowly."""
        return self._drain_rate.connections

    def send(self, records: Sequence[Record]) -> None:
        """Send the records, and return once the hub has acknowledged all of them.

        Blocks. Records of one subject stay in order. If one record can't be encoded or is too large, nothing is sent.
        Raises `Retryable` or `Permanent`, with the `acknowledged` ids if only some subjects were acknowledged.
        """
        if not records:
            return
        subjects: dict[str, list[Record]] = {}
        for record in records:
            subjects.setdefault(folded(record.subject), []).append(record)
        portions = [self._portion(of_subject) for of_subject in subjects.values()]
        began = self._monotonic()
        try:
            self._run(self._deliver(portions), (_STEPS + len(portions)) * self._deadline)
        except Failure:
            self._drain_rate.restart()
            raise
        self._last_used = self._monotonic()
        self._drain_rate.sent(self._last_used - began)

    def probe(self) -> int:
        """Connect as for a send. Return the maximum size of a message in bytes. Raises `Failure` as `send`."""
        return self._run(self._open(), 2 * self._deadline)

    def idle(self) -> float | None:
        """Close the connections if they were unused for the setting `idle_close`.

        Return the seconds until then; None if there is no connection to close.
        """
        self._drain_rate = _DrainRate()
        if self._thread is None or not self._clients:
            return None
        if len(self._clients) > 1:
            with contextlib.suppress(Failure):  # as below
                self._run(self._discard(keep=1), 2 * _CLOSING)
        unused = self._monotonic() - self._last_used
        if unused < self._idle_close:
            return self._idle_close - unused
        with contextlib.suppress(Failure):  # they are no longer used, even if not closed
            self._run(self._discard(), _CLOSING)
        return None

    def close(self) -> None:
        """Close within 2 s. A `send` running in another thread raises `Retryable`."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.interrupt()
        with contextlib.suppress(Stuck, LoopInterrupted):
            thread.run(self._close(), _CLOSING)
        thread.stop(_STOPPING)

    def _portion(self, records: Sequence[Record]) -> _Portion:
        """Encode the records of one subject. One subject has several keys if the case of its id changes."""
        try:
            runs = groupby(records, lambda record: partition_key(record.subject))
            return _Portion(
                frozenset(record.id for record in records),
                [(key, [message(record, self._format) for record in run]) for key, run in runs],
            )
        except Exception as error:  # a record caused it: reject it, so that no other record waits for it
            raise Permanent("rejected", f"the record cannot be encoded ({type(error).__name__})") from error

    def _run(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        """Run `work` on the loop; abandon the loop if it doesn't return."""
        with self._lock:
            if self._closed:
                work.close()
                raise Retryable("closed", "the agent is stopping")
            if self._thread is None:
                self._thread = LoopThread("event-hubs")
                self._clients, self._credential = [], None
            thread = self._thread
        try:
            return thread.run(work, patience + _GRACE)
        except LoopInterrupted as error:
            raise Retryable("closed" if self._closed else "other", "the call was interrupted") from error
        except Stuck as error:
            with self._lock:
                self._thread = None if self._thread is thread else self._thread
            thread.stop(0)
            raise Retryable("timeout", "a call of the SDK did not return") from error

    # --- on the loop ---------------------------------------------------------------------------------------------

    async def _deliver(self, portions: Sequence[_Portion]) -> None:
        try:
            client = await self._connected()
            for portion in portions:
                portion.batches = [
                    batch for key, messages in portion.runs for batch in await self._fill(client, key, messages)
                ]
        except Permanent:
            raise  # caused by the record, before anything was sent: the client is still usable
        except BaseException as error:
            await self._discard()
            raise _failure(error, sending=False) from error
        waiting, acknowledged = deque(portions), set[str]()
        connections = min(self._drain_rate.connections, len(waiting))
        # Always use this client, even if `close` has removed it from the others meanwhile.
        ready: list[EventHubProducerClient | None] = [client, *self._clients[1:connections]]
        ready += [None] * (connections - len(ready))
        sending = [self._fill_connection(each, waiting, acknowledged) for each in ready]
        try:
            errors = [error for error in await asyncio.gather(*sending, return_exceptions=True) if error is not None]
        except BaseException:  # canceled
            await self._discard()
            raise
        if connections > len(self._clients):
            self._drain_rate.limit(len(self._clients))
        if errors:
            await self._discard()
            failures = [_failure(error, sending=True) for error in errors]
            # Raise a transient failure first: one caused by a record occurs again in the next attempt.
            failure = min(failures, key=lambda failure: isinstance(failure, Permanent))
            if isinstance(failure, Failure):
                failure.acknowledged = frozenset(acknowledged)
            raise failure from errors[failures.index(failure)]

    async def _fill_connection(
        self, client: EventHubProducerClient | None, waiting: deque[_Portion], acknowledged: set[str]
    ) -> None:
        """Send the waiting portions one by one, each completely; make a further client if there is none."""
        client = client or await self._further()
        while waiting and client is not None:
            portion = waiting.popleft()
            for batch in portion.batches:
                await asyncio.wait_for(client.send_batch(batch), self._deadline)
            acknowledged |= portion.ids

    async def _open(self) -> int:
        try:
            client = await self._connected()
            batch = await asyncio.wait_for(client.create_batch(), self._deadline)
        except BaseException as error:
            await self._discard()
            raise _failure(error, sending=False) from error
        return batch.max_size_in_bytes

    async def _connected(self) -> EventHubProducerClient:
        """Return the first client; make it if there is none."""
        if not self._clients:
            if self._make_credential is not None and self._credential is None:
                self._credential = self._make_credential()
            self._clients.append(self._made())
        return self._clients[0]

    def _made(self) -> EventHubProducerClient:
        return self._address.client(self._credential, self._address.tls_context())

    async def _further(self) -> EventHubProducerClient | None:
        """Return a further, connected client; None if it can't be made, for example at the namespace's limit.

        Then the backlog drains over the existing ones.
        """
        client: EventHubProducerClient | None = None
        try:
            client = self._made()
            await asyncio.wait_for(client.create_batch(), _OPENING)
        except Exception:  # ignore any error: the first connection works and is enough
            await _close_all([client] if client else [])
            return None
        self._clients.append(client)
        return client

    async def _fill(
        self, client: EventHubProducerClient, key: str | None, messages: Sequence[EventData]
    ) -> list[EventDataBatch]:
        """Return the messages in as few batches as the hub's limit allows. Raises Permanent if one is too large."""
        batches: list[EventDataBatch] = []
        for event in messages:
            if batches and _added(batches[-1], event):
                continue
            batch = await asyncio.wait_for(client.create_batch(partition_key=key), self._deadline)
            if not _added(batch, event):
                parts: Any = event.body
                size, limit = len(b"".join(parts)), batch.max_size_in_bytes
                raise Permanent("too-large", f"the record has {size} bytes, the limit of the event hub is {limit}")
            batches.append(batch)
        return batches

    async def _discard(self, keep: int = 0) -> None:
        """Discard the clients, except the first `keep`.

        With `keep` 0, or if one doesn't close in time, discard all clients and abort every connection.
        """
        clients = self._clients[keep:]
        if not clients:
            return
        self._clients = self._clients[:keep]
        if await _close_all(clients) and keep:
            return
        thread, self._clients = self._thread, []
        if thread is not None:
            thread.abort_connections()

    async def _close(self) -> None:
        await self._discard()
        if self._credential is not None:
            with contextlib.suppress(Exception):  # as above
                await self._credential.close()


async def _close_all(clients: Sequence[EventHubProducerClient]) -> bool:
    """Close the clients. Return whether all closed in time; the others are not used again either."""
    closing = [asyncio.wait_for(client.close(), _CLOSING) for client in clients]
    return not any(await asyncio.gather(*closing, return_exceptions=True))


def _added(batch: EventDataBatch, event: EventData) -> bool:
    try:
        batch.add(event)
    except ValueError:  # the SDK's error for a full batch
        return False
    return True


def _failure(error: BaseException, *, sending: bool) -> BaseException:
    """Return the exception to raise for `error`: a cancellation unchanged, else a `Failure`.

    An error before the first send (`sending` false) is never attributed to a record.
    """
    if isinstance(error, Failure | asyncio.CancelledError):
        return error
    failure = translate(error)
    if isinstance(failure, Permanent) and not sending:
        return Retryable("configuration", f"Event Hubs rejected the connection ({failure.detail})", needs_operator=True)
    return failure
