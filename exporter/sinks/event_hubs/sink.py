"""Delivers to Event Hubs over AMQP with Azure's SDK: it loses nothing and never hangs.

The SDK's sync client cannot be interrupted and deadlocks on close; its buffered mode loses. So: the asyncio client, on
a loop of its own, every call under a deadline, and a client that met any error which is not the record's own is thrown
away. It is connected on demand and closed when idle, since a namespace counts connections. The SDK repeats a send whose
acknowledgement is lost, so a consumer may see a record twice, with the same `message_id`.

A batch has one partition key, so that a backlog costs a round trip for each event. The SDK has a lock around each send
of a client, and each client has a connection of its own: two batches at a time are two connections. So one it is, but
for a backlog that drains slowly; then several lanes, each a client, send batches of different subjects at a time.
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

_CLOSING: Final = 1.0  # seconds that a client gets to close
_STOPPING: Final = 0.5  # seconds for its thread to end
_GRACE: Final = 2.0  # seconds beyond the deadlines after which the loop counts as stuck
_STEPS: Final = 4  # deadlines in a send: to connect, and for the few batches that records fill
LANES: Final = 5
"""At most so many connections, and subjects whose records are under way."""
WIDEN_AFTER: Final = 10
WIDEN_SECONDS: Final = 0.05
"""A backlog drains slowly after so many sends without a pause that took so long on average; the first, which may have
had to connect, is not counted."""
_OPENING: Final = 5.0  # seconds in which a further connection is made, or done without


class _Portion(Struct):
    """The records of one subject in a send: their ids, their messages by partition key, and these as batches."""

    ids: frozenset[str]
    runs: list[tuple[str | None, list[EventData]]]
    batches: list[EventDataBatch] = field(default_factory=list)


class _DrainRate(Struct):
    """How fast a backlog drains, and over how many lanes for that reason."""

    connections: int = 1
    most: int = LANES
    sends: int = 0
    seconds: float = 0.0

    def sent(self, seconds: float) -> None:
        """A send without a pause before it took so long."""
        self.sends += 1
        if self.sends > 1:
            self.seconds += seconds
        if self.sends > WIDEN_AFTER and self.seconds >= WIDEN_SECONDS * (self.sends - 1):
            self.connections = self.most

    def restart(self) -> None:
        """A send failed: what follows goes over one lane again."""
        self.connections, self.sends, self.seconds = 1, 0, 0.0

    def limit(self, connections: int) -> None:
        """There are no more than so many for this backlog."""
        self.connections = self.most = connections


class EventHubsDestination:
    """Delivers to one event hub. The shape is described in `exporter.sinks`.

    Reached by the connection string of `settings`, or by its namespace with an Azure identity; `credential` makes an
    asyncio credential and defaults to azure-identity's `DefaultAzureCredential`, of which there is one. `deadline` is
    for each step of a send (connecting, each batch), in seconds. Raises ValueError with a sentence for what cannot
    work.
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
        # These two belong to the loop.
        self._clients: list[EventHubProducerClient] = []
        self._credential: Any = None

    @property
    def subjects(self) -> int:
        """More than one while a backlog drains slowly."""
        return self._drain_rate.connections

    def send(self, records: Sequence[Record]) -> None:
        """Return once the hub has acknowledged every record; raise `Retryable` or `Permanent` otherwise.

        Records of one subject stay in their order. Nothing is sent when one of them can never be. Where those of one
        subject were acknowledged and those of another were not, the failure says so.
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
        """Open what a send opens, and send nothing. The bytes that a message may have; raises `Failure` as `send`."""
        return self._run(self._open(), 2 * self._deadline)

    def idle(self) -> float | None:
        """Give the connection back when it was not used for a while.

        Answers in how many seconds that will be; None when there is none to give back.
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
        with contextlib.suppress(Stuck, LoopInterrupted):
            thread.run(self._close(), _CLOSING)
        thread.stop(_STOPPING)

    def _portion(self, records: Sequence[Record]) -> _Portion:
        """Ids are compared in folded case, and a key has the case that the record has: a subject may have several."""
        try:
            runs = groupby(records, lambda record: partition_key(record.subject))
            return _Portion(
                frozenset(record.id for record in records),
                [(key, [message(record, self._format) for record in run]) for key, run in runs],
            )
        except Exception as error:  # whatever it is, it is a record's own: no other record waits for it
            raise Permanent("rejected", f"it cannot be encoded ({type(error).__name__})") from error

    def _run(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        """Run `work` on the loop; abandon the loop when it does not come back."""
        with self._lock:
            if self._closed:
                work.close()
                raise Retryable("closed", "going down")
            if self._thread is None:
                self._thread = LoopThread("event-hubs")
                self._clients, self._credential = [], None
            thread = self._thread
        try:
            return thread.run(work, patience + _GRACE)
        except LoopInterrupted as error:
            raise Retryable("closed" if self._closed else "other", "interrupted") from error
        except Stuck as error:
            with self._lock:
                self._thread = None if self._thread is thread else self._thread
            thread.stop(0)
            raise Retryable("timeout", "the SDK did not come back from a call") from error

    # --- on the loop ---------------------------------------------------------------------------------------------

    async def _deliver(self, portions: Sequence[_Portion]) -> None:
        try:
            client = await self._connected()
            for portion in portions:
                portion.batches = [
                    batch for key, messages in portion.runs for batch in await self._fill(client, key, messages)
                ]
        except Permanent:
            raise  # the record's own, found before anything was sent: the client is as good as before
        except BaseException as error:
            await self._discard()
            raise _failure(error, sending=False) from error
        waiting, acknowledged = deque(portions), set[str]()
        connections = min(self._drain_rate.connections, len(waiting))
        # What waits has this client at least, also where `close` has taken it from the others meanwhile.
        ready: list[EventHubProducerClient | None] = [client, *self._clients[1:connections]]
        ready += [None] * (connections - len(ready))
        sending = [self._fill_connection(lane, waiting, acknowledged) for lane in ready]
        try:
            errors = [error for error in await asyncio.gather(*sending, return_exceptions=True) if error is not None]
        except BaseException:  # cancelled
            await self._discard()
            raise
        if connections > len(self._clients):
            self._drain_rate.limit(len(self._clients))
        if errors:
            await self._discard()
            failures = [_failure(error, sending=True) for error in errors]
            # What may pass comes first: the record's own is found again, when nothing else is in its way.
            failure = min(failures, key=lambda failure: isinstance(failure, Permanent))
            if isinstance(failure, Failure):
                failure.acknowledged = frozenset(acknowledged)
            raise failure from errors[failures.index(failure)]

    async def _fill_connection(
        self, client: EventHubProducerClient | None, waiting: deque[_Portion], acknowledged: set[str]
    ) -> None:
        """Send what waits, one portion after the other, each whole; with a further client where there is none yet."""
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
        """The client of the first lane, made where there is none."""
        if not self._clients:
            if self._make_credential is not None and self._credential is None:
                self._credential = self._make_credential()
            self._clients.append(self._made())
        return self._clients[0]

    def _made(self) -> EventHubProducerClient:
        return self._address.client(self._credential, self._address.tls_context())

    async def _further(self) -> EventHubProducerClient | None:
        """A further client, connected. None where there can't be one, as in a namespace that has no connection left:
        then this backlog drains over those that there are."""
        client: EventHubProducerClient | None = None
        try:
            client = self._made()
            await asyncio.wait_for(client.create_batch(), _OPENING)
        except Exception:  # whatever it is, the first connection works and is enough
            await _close_all([client] if client else [])
            return None
        self._clients.append(client)
        return client

    async def _fill(
        self, client: EventHubProducerClient, key: str | None, messages: Sequence[EventData]
    ) -> list[EventDataBatch]:
        """All messages in as few batches as the hub's limit allows; Permanent if one of them alone is too large."""
        batches: list[EventDataBatch] = []
        for event in messages:
            if batches and _added(batches[-1], event):
                continue
            batch = await asyncio.wait_for(client.create_batch(partition_key=key), self._deadline)
            if not _added(batch, event):
                parts: Any = event.body
                size, limit = len(b"".join(parts)), batch.max_size_in_bytes
                raise Permanent("too-large", f"{size} bytes, the event hub takes messages of {limit}")
            batches.append(batch)
        return batches

    async def _discard(self, keep: int = 0) -> None:
        """Throw the clients away, but for the first so many, with every connection that they forget to close."""
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
    """Whether all of them closed in time; closed or not, they are not used any more."""
    closing = [asyncio.wait_for(client.close(), _CLOSING) for client in clients]
    return not any(await asyncio.gather(*closing, return_exceptions=True))


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
    failure = translate(error)
    if isinstance(failure, Permanent) and not sending:
        return Retryable("configuration", f"Event Hubs refuses the connection ({failure.detail})", needs_operator=True)
    return failure
