"""The program: Azure's SDK reads each partition, `store` keeps the facts, and changed summaries are written.

Both tasks run on one event loop. For each batch: validate it, and keep its facts and the position after it in one
transaction. Every second: write a line for each event that has changed, flush, and mark it as written. After a crash, a
line can be repeated, but none is lost. Of two lines about one event, the one with more `records` is newer; if they are
equal, the later one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import stat
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import IO, Any, Final

from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.amqp import AmqpMessageBodyType

from .join import due, event_summary
from .record import MAX_BODY, Unreadable, read
from .store import NEVER, Store

LOG: Final = logging.getLogger("event_summaries")
BATCH: Final = 300
BALANCE_SECONDS: Final = 5.0
"""Interval at which the SDK claims partitions that it lost."""
WRITE_SECONDS: Final = 1.0
REST: Final = 4
"""Writing pauses this many times its own duration: a burst from a thousand VMs then takes only a few lines."""
AT_ONCE: Final = 50
"""Summaries written before reading continues."""
FORGET_SECONDS: Final = 300.0
REPORT_SECONDS: Final = 60.0
BEHIND: Final = timedelta(minutes=5)
QUIET_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the program. Times are in seconds."""

    begin: str = "start"
    """Where to start in a partition without a checkpoint: `start` or `now`."""
    give_up: float = 86_400.0
    keep: float = 30 * 86_400.0
    max_bytes: int = 1 << 30
    once: bool = False
    """End when everything that was in the hub at the start is read and written."""


@dataclass
class Counts:
    """Counts since the start, for the log."""

    received: int = 0
    new: int = 0
    copies: int = 0
    about_vms: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    written: int = 0

    def __str__(self) -> str:
        """Return one line of JSON."""
        return json.dumps({**vars(self), "about_vms": dict(self.about_vms), "skipped": dict(self.skipped)})


class Consumer:
    """Reads batches into a store and writes summaries to `output`, a text file."""

    def __init__(self, store: Store, output: IO[str], options: Options) -> None:
        self._store, self._output, self._options = store, output, options
        self._is_file = stat.S_ISREG(os.fstat(output.fileno()).st_mode)
        self.counts = Counts()
        self._last_batch = time.monotonic()
        self._newest: datetime | None = None
        self._failure: asyncio.Future[None] | None = None
        self._behind: dict[str, int] = {}
        """Number of the last message to read, by partition; only used for `once`."""

    # -- reading

    def keep(self, bodies: Iterable[bytes]) -> None:
        """Validate these messages and add their facts to the store; count the others."""
        facts = []
        for body in bodies:
            self.counts.received += 1
            try:
                fact = read(body)
            except Unreadable as error:
                self.counts.skipped[error.reason] += 1
                continue
            if fact.event_id is None:
                self.counts.about_vms[fact.kind] += 1
            else:
                facts.append(fact)
        new = self._store.add(facts)
        self.counts.new += new
        self.counts.copies += len(facts) - new

    async def on_batch(self, context: Any, events: list[EventData]) -> None:
        """Handle a batch of one partition. An error here ends the program; the SDK would continue."""
        if not events:
            return
        try:
            self.keep(map(body_of, events))
            await context.update_checkpoint(events[-1])
        except Exception as error:  # the SDK would log it and continue
            if self._failure is not None and not self._failure.done():
                self._failure.set_exception(error)
            raise
        self._last_batch = time.monotonic()
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            self._newest = events[-1].enqueued_time
        self._is_at(context.partition_id, events[-1].sequence_number)

    async def on_partition(self, context: Any) -> None:
        """Note the position of a partition that the SDK starts to read."""
        place = (context.fully_qualified_namespace, context.eventhub_name, context.consumer_group)
        for checkpoint in await self._store.list_checkpoints(*place):
            if checkpoint["partition_id"] == context.partition_id:
                self._is_at(context.partition_id, checkpoint["sequence_number"])
                return
        if self._options.begin == "now":
            self._behind.pop(context.partition_id, None)  # messages from before the start are skipped

    def _is_at(self, partition: str, number: int | None) -> None:
        if number is not None and number >= self._behind.get(partition, number):
            self._behind.pop(partition, None)

    async def on_error(self, context: Any, error: Exception) -> None:
        """Log the error; the SDK reconnects."""
        where = f"partition {context.partition_id}" if context is not None else "the event hub"
        LOG.warning("%s: %s: %s", where, type(error).__name__, str(error)[:300])

    # -- writing

    async def write_changed(self, now: datetime, *, caught_up: bool) -> None:
        """Write a line for each event that changed.

        If `caught_up`, also for each whose end is overdue. Before that, the record of its end may still be unread.
        """
        waiting = self._store.pending()
        give_up = self._options.give_up if caught_up else None
        if give_up is not None:
            overdue = self._store.overdue(_text(now - timedelta(seconds=give_up)))
            waiting = list(dict.fromkeys([*waiting, *overdue]))
        for first in range(0, len(waiting), AT_ONCE):
            self._write(waiting[first : first + AT_ONCE], _text(now), give_up)
            await asyncio.sleep(0)

    def _write(self, event_ids: list[str], now: str, give_up: float | None) -> None:
        written: dict[str, str] = {}
        for event_id in event_ids:
            found = event_summary(self._store.facts(event_id), now, give_up)
            self._output.write(json.dumps(found) + "\n")
            written[event_id] = NEVER if found["state"] in {"closed", "no-end"} else due(found)
        self._output.flush()
        if self._is_file:
            os.fsync(self._output.fileno())
        self._store.mark_written(written)
        self.counts.written += len(written)

    def _caught_up(self, now: datetime) -> bool:
        """Whether the last messages are recent; with `once`, whether everything is read that was there at the start."""
        if self._options.once:
            return not self._behind
        quiet = time.monotonic() - self._last_batch > QUIET_SECONDS
        return quiet or (self._newest is not None and now - self._newest < BEHIND)

    # -- the loop

    async def run(self, client: EventHubConsumerClient, stop: asyncio.Event) -> None:
        """Read and write until `stop` is set; with `once`, until everything is read.

        Raises sqlite3.Error for the store and OSError for the output. No saved position is ahead of the kept facts.
        """
        self._failure = asyncio.get_running_loop().create_future()
        if self._options.once:
            self._behind = await _ends(client)
        receiving = asyncio.ensure_future(
            client.receive_batch(
                self.on_batch,
                on_error=self.on_error,
                on_partition_initialize=self.on_partition,
                max_batch_size=BATCH,
                starting_position="-1" if self._options.begin == "start" else "@latest",
            )
        )
        writing = asyncio.ensure_future(self._write_forever())
        stopping = asyncio.ensure_future(stop.wait())
        ends: list[asyncio.Future[Any]] = [receiving, self._failure, writing, stopping]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.close(), CLOSE_SECONDS)
        for end in done:
            end.result()

    async def _write_forever(self) -> None:
        forgotten = reported = time.monotonic()
        logged = ""
        while True:
            began = time.monotonic()
            now = datetime.now(UTC)
            caught_up = self._caught_up(now)
            await self.write_changed(now, caught_up=caught_up)
            if began - forgotten > FORGET_SECONDS:
                forgotten = began
                self._store.forget(time.time() - self._options.keep, self._options.max_bytes)
            if began - reported > REPORT_SECONDS and str(self.counts) != logged:
                reported, logged = began, str(self.counts)
                LOG.info("%s", logged)
            if self._options.once and caught_up and not self._store.pending():
                return
            await asyncio.sleep(max(WRITE_SECONDS, REST * (time.monotonic() - began)))


async def _ends(client: EventHubConsumerClient) -> dict[str, int]:
    """Return the number of the last message of each partition that has any."""
    partitions = await client.get_partition_ids()
    found = await asyncio.gather(*map(client.get_partition_properties, partitions))
    return {one["id"]: one["last_enqueued_sequence_number"] for one in found if not one["is_empty"]}


def body_of(event: EventData) -> bytes:
    """Return the body as bytes, cut off when it is too large for a record; empty if it does not consist of bytes."""
    if event.body_type != AmqpMessageBodyType.DATA:
        return b""
    parts: Any = event.body
    body = bytearray()
    for part in [parts] if isinstance(parts, bytes) else parts:
        body += part
        if len(body) > MAX_BODY:
            break
    return bytes(body)


async def consume(client: EventHubConsumerClient, consumer: Consumer) -> None:
    """Run until SIGTERM or Ctrl-C."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt there
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await consumer.run(client, stop)


def _text(when: datetime) -> str:
    return when.isoformat(timespec="microseconds").replace("+00:00", "Z")
