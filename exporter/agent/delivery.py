"""From the outbox to one destination: next, send, settle. One `Delivery` per destination, on a thread of its own.

At least once, in order per event: the next `send` begins when this one has ended, and what was acknowledged is settled.
A destination that is down delays nothing but its own queue. A batch that is refused for good is sent again in halves,
until the refused record is alone: the others arrive, some of them more than once. What may pass by itself leaves a
batch whole, unless it does not pass: a limit may be less than a batch. Where it may have been too much for the way
there, or one of its records may be the reason for what only a person can mend, sending begins again with one record,
and doubles: no record waits for one behind it.
While nothing waits, the thread sleeps until it is woken by a commit or until its destination has something to do.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from exporter.agent.log_fields import about
from exporter.core.records import Record
from exporter.errors import Failure, Permanent, Retryable
from exporter.log.protocol import Logger
from exporter.outbox.queue import Queued
from exporter.outbox.store import Outbox
from exporter.retry import Backoff

SEND_BACKOFF: Final = Backoff(1.0, 15.0)
SMALLER_AFTER: Final = 3
"""Failures in a row, of whatever kind, after which a batch may be too much: some answer 429 or 503 to what is larger
than their limit, as they do to what comes too soon."""
OPERATOR_SECONDS: Final = 60.0
"""Between two attempts where only a person can mend what is wrong."""
IDLE_SECONDS: Final = 60.0
"""The longest sleep. Not more than `QUIET_SECONDS`, and all that a lost wake would cost."""
LOOK_AGAIN_SECONDS: Final = 1.0
"""While the file is not open, or the disk does not take what was settled."""
QUIET_SECONDS: Final = 60.0
"""Without a failure, after which a destination that comes and goes is said to be back."""
STOP_SECONDS: Final = 2.0
"""For all destinations together and the thread that asks who we are: the whole end takes less than 5 s."""


class Destination(Protocol):
    """One backend, as `exporter.sinks` describes it."""

    @property
    def name(self) -> str:
        """The metric label."""

    @property
    def batch_size(self) -> int:
        """How many records it takes in one `send`."""

    @property
    def subjects(self) -> int | None:
        """Of how many subjects they may be now; None for any, in the order of the outbox."""

    def send(self, records: Sequence[Record]) -> None:
        """Returns when every record is acknowledged; raises `Retryable` or `Permanent`, with what is `acknowledged`."""

    def idle(self) -> float | None:
        """Called when nothing waits. Answers in how many seconds to call again; None: not before the next `send`."""

    def close(self) -> None:
        """Ends within 2 s, also a `send` that is under way in another thread."""


class Metrics(Protocol):
    """Where the facts of a delivery are counted."""

    def sent(self, destination: str, records: int, duration: float) -> None:
        """So many records were acknowledged after `duration` seconds."""

    def send_failed(self, destination: str, reason: str) -> None:
        """An attempt failed."""


def backoff(failures: int, failure: Retryable, jitter: float) -> float:
    """Seconds to wait after the n-th failure in a row: 1, 2, 4, 8, 15, 15, … each shortened by up to a fifth by
    `jitter` (0 to 1), 60 where only a person can mend it, and never less than the destination asked for."""
    own = OPERATOR_SECONDS if failure.needs_operator else SEND_BACKOFF.after(failures)
    return max(own * (1 - 0.2 * jitter), failure.retry_after or 0.0)


def _doubling(most: int) -> list[int]:
    """1, 2, 4, … up to less than `most`, the first of them last."""
    return [2**step for step in reversed(range((most - 1).bit_length()))]


class Delivery:
    """Sends what waits for one destination. `tick` is a plain call; the caller owns the thread and the clock."""

    def __init__(
        self,
        destination: Destination,
        outbox: Outbox,
        metrics: Metrics,
        log: Logger,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = destination.name
        self._disk_key = f"outbox.{destination.name}"
        self._destination = destination
        self._outbox = outbox
        self._metrics = metrics
        self._log = log
        self._monotonic = monotonic
        self._now = now
        self._jitter = jitter
        self._failures = 0
        self._due = 0.0
        self._portions: list[int] = []
        """At most so many records in each of the next batches, the last of these in the next one."""

    def tick(self) -> float:
        """Sends at most one batch. Answers in how many seconds to call again, if not woken before.

        0 means at once: there may be more. Raises only for a mistake of ours.
        """
        now = self._monotonic()
        if now < self._due:
            return self._due - now
        try:
            waiting = self._next()
            if not waiting:
                return self._idle()
            self._send(waiting)
        except Retryable as failure:
            return self._retry_later(failure)
        return 0.0

    def _next(self) -> list[Queued]:
        limit, subjects = self._destination.batch_size, self._destination.subjects
        if self._portions:
            limit, subjects = min(limit, self._portions[-1]), None if subjects is None else 1
        return self._outbox.next(self.name, limit, subjects)

    def _idle(self) -> float:
        """Nothing waits. Answers in how many seconds there is something to do without being woken."""
        self._portions.clear()
        close_in = self._destination.idle()
        self._recovered()
        longest = LOOK_AGAIN_SECONDS if self._outbox.must_look_again(self.name) else IDLE_SECONDS
        return longest if close_in is None else min(longest, close_in)

    def _send(self, waiting: list[Queued]) -> None:
        began = self._monotonic()
        try:
            self._destination.send([queued.record for queued in waiting])
        except Failure as failure:
            self._taken([queued for queued in waiting if queued.record.id in failure.acknowledged], began)
            if not isinstance(failure, Permanent):
                raise
            self._refused([queued for queued in waiting if queued.record.id not in failure.acknowledged], failure)
        else:
            self._portions[-1:] = []
            self._taken(waiting, began)

    def _taken(self, acknowledged: list[Queued], began: float) -> None:
        if not acknowledged:
            return
        self._failures = 0
        self._metrics.sent(self.name, len(acknowledged), self._monotonic() - began)
        self._recovered()
        self._settle(lambda: self._outbox.delivered(self.name, [queued.seq for queued in acknowledged]))

    def _refused(self, waiting: list[Queued], failure: Permanent) -> None:
        """One of these will never be taken: they are sent in halves, and what is refused alone is a dead letter."""
        self._portions[-1:] = []
        if len(waiting) > 1:
            half = len(waiting) // 2
            self._portions += [len(waiting) - half, half]
            return
        queued = waiting[0]
        self._metrics.send_failed(self.name, failure.reason)
        self._log.error(
            "record.parked",
            destination=self.name,
            id=queued.record.id,
            kind=queued.record.kind,
            **about(queued.record),
            reason=failure.reason,
            detail=failure.detail,
        )
        self._settle(lambda: self._outbox.park(self.name, queued.seq, f"{failure.reason}: {failure.detail}"[:500]))

    def _settle(self, write: Callable[[], None]) -> None:
        """The outbox remembers what the disk does not take yet: a full disk stops no record that is already on it."""
        try:
            write()
        except Failure as failure:
            self._log.failing(self._disk_key, "outbox.unwritable", reason=failure.reason, detail=failure.detail)
        else:
            self._log.recovered(self._disk_key, "outbox.recovered", quiet=QUIET_SECONDS, destination=self.name)

    def _recovered(self) -> None:
        """What waited is delivered, or nothing waits: logged once that lasts, not after each refusal of a limit."""
        self._log.recovered(self.name, "destination.recovered", quiet=QUIET_SECONDS, destination=self.name)

    def _retry_later(self, failure: Retryable) -> float:
        self._failures += 1
        if failure.smaller or failure.needs_operator or self._failures >= SMALLER_AFTER:
            self._portions = _doubling(self._destination.batch_size)
        delay = backoff(self._failures, failure, self._jitter())
        self._due = self._monotonic() + delay
        self._metrics.send_failed(self.name, failure.reason)
        self._log.failing(
            self.name, "destination.failed", destination=self.name, reason=failure.reason, detail=failure.detail
        )
        with suppress(Failure):  # the agent, whose records the disk refuses as well, logs that
            self._outbox.failed(self.name, failure.reason, self._now() + timedelta(seconds=delay))
        return delay

    def retry_after_mistake(self, error: Exception) -> float:
        """After a mistake of ours in `tick`: counts it, logs it, and answers in how many seconds to try again."""
        return self._retry_later(Retryable("internal", f"{type(error).__name__}: {error}"[:200], needs_operator=True))

    def close(self) -> None:
        """Ends the destination."""
        self._destination.close()


class DeliveryThread:
    """A thread that delivers to one destination until it is told to stop."""

    def __init__(
        self, name: str, make: Callable[[], Destination], outbox: Outbox, metrics: Metrics, log: Logger
    ) -> None:
        """`make` makes the destination, on the thread; it may raise, and is then called again later."""
        self.name = name
        self._make = make
        self._outbox = outbox
        self._metrics = metrics
        self._log = log
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._drained = threading.Event()
        self._waking = threading.Lock()
        """Between a look at `_wake` and what it says of `_drained`."""
        self._delivery: Delivery | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There is something new to deliver."""
        with self._waking:
            self._drained.clear()
            self._wake.set()

    def _run(self) -> None:
        delivery = self._first()
        while delivery is not None and not self._stop.is_set():
            self._wake.clear()
            try:
                wait = delivery.tick()
            except Exception as error:  # one of the two loops: counted, logged, and on it goes
                wait = delivery.retry_after_mistake(error)
            if wait > 0:
                with self._waking:
                    if not self._wake.is_set():
                        self._drained.set()
                self._wake.wait(wait)

    def _first(self) -> Delivery | None:
        """The delivery, as soon as its destination can be made."""
        while not self._stop.is_set():
            try:
                self._delivery = Delivery(self._make(), self._outbox, self._metrics, self._log)
            except Exception as error:  # the same loop, before it turns
                self._metrics.send_failed(self.name, "configuration")
                self._log.failing(self.name, "destination.failed", destination=self.name, detail=str(error)[:300])
                self._drained.set()
                self._stop.wait(OPERATOR_SECONDS)
            else:
                return self._delivery
        return None

    def flush(self, seconds: float) -> None:
        """Waits until there is nothing left to send right now, at most so long."""
        self._wake.set()
        self._drained.wait(seconds)

    def stop(self) -> None:
        """Ends the thread, and a send that is under way, within `STOP_SECONDS`."""
        self._stop.set()
        self._wake.set()
        if self._delivery is not None:
            self._delivery.close()
        self._thread.join(STOP_SECONDS)
