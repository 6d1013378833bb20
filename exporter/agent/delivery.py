"""From the outbox to one destination: next, send, settle. One `Delivery` per destination, on a thread of its own.

At least once, in order per event, one batch in flight. A destination that is down costs nobody anything but its own
queue.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from exporter.core.records import Record
from exporter.errors import Failure, Permanent, Retryable
from exporter.log.protocol import Logger
from exporter.outbox.queue import Queued
from exporter.outbox.store import Outbox
from exporter.retry import Backoff

SEND_BACKOFF: Final = Backoff(1.0, 15.0)
SLOW_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 60.0
"""Without a failure, after which a destination that comes and goes is said to be back."""


class Destination(Protocol):
    """One backend, as `exporter.sinks` describes it."""

    @property
    def name(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    def send(self, records: Sequence[Record]) -> None: ...
    def idle(self) -> None: ...
    def close(self) -> None: ...


class Metrics(Protocol):
    """Where the facts of a delivery are counted."""

    def sent(self, destination: str, records: int, duration: float) -> None: ...
    def send_failed(self, destination: str, reason: str) -> None: ...
    def dropped(self, destination: str, reason: str, records: int) -> None: ...


def backoff(failures: int, failure: Retryable, jitter: float) -> float:
    """Seconds to wait after the n-th failure in a row: 1, 2, 4, 8, 15, 15, … each shortened by up to a fifth by
    `jitter` (0 to 1), 60 where only a person can mend it, and never less than the destination asked for."""
    own = SLOW_SECONDS if failure.needs_operator else SEND_BACKOFF.after(failures)
    return max(own * (1 - 0.2 * jitter), failure.retry_after or 0.0)


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
        self._disk = f"outbox.{destination.name}"
        self._destination = destination
        self._outbox = outbox
        self._metrics = metrics
        self._log = log
        self._monotonic = monotonic
        self._now = now
        self._jitter = jitter
        self._failures = 0
        self._due = 0.0
        self._one_by_one = 0

    def tick(self) -> float:
        """Sends at most one batch. Answers in how many seconds to call again (0: at once, there may be more)."""
        now = self._monotonic()
        if now < self._due:
            return self._due - now
        try:
            waiting = self._outbox.next(self.name, 1 if self._one_by_one else self._destination.batch_size)
            if not waiting:
                self._destination.idle()
                self._well()
                return IDLE_SECONDS
            self._send(waiting)
        except Retryable as failure:
            return self._later(failure)
        return 0.0

    def _send(self, waiting: list[Queued]) -> None:
        began = self._monotonic()
        try:
            self._destination.send([queued.record for queued in waiting])
        except Permanent as failure:
            self._refused(waiting, failure)
            return
        self._one_by_one = max(0, self._one_by_one - 1)
        self._failures = 0
        self._metrics.sent(self.name, len(waiting), self._monotonic() - began)
        self._well()
        self._settled(lambda: self._outbox.delivered(self.name, [queued.seq for queued in waiting]))

    def _refused(self, waiting: list[Queued], failure: Permanent) -> None:
        """One of a batch will never be taken: find out which by sending one at a time, and park only that one."""
        if len(waiting) > 1:
            self._one_by_one = len(waiting)
            return
        queued = waiting[0]
        self._one_by_one = max(0, self._one_by_one - 1)
        self._metrics.send_failed(self.name, failure.reason)
        self._log.error(
            "record.parked",
            destination=self.name,
            id=queued.record.id,
            kind=queued.record.kind,
            reason=failure.reason,
            detail=failure.detail,
        )
        self._settled(lambda: self._outbox.park(self.name, queued.seq, f"{failure.reason}: {failure.detail}"[:500]))

    def _settled(self, settle: Callable[[], None]) -> None:
        """The outbox remembers what the disk does not take yet: a full disk stops no record that is already on it."""
        try:
            settle()
        except Failure as failure:
            self._log.failing(self._disk, "outbox.unwritable", reason=failure.reason, detail=failure.detail)
        else:
            self._log.recovered(self._disk, "outbox.recovered", quiet=QUIET_SECONDS, destination=self.name)

    def _well(self) -> None:
        """What waits is delivered, or nothing waits: said once that is so for good, not each time of a limit's."""
        self._log.recovered(self.name, "destination.recovered", quiet=QUIET_SECONDS, destination=self.name)

    def _later(self, failure: Retryable) -> float:
        self._failures += 1
        delay = backoff(self._failures, failure, self._jitter())
        self._due = self._monotonic() + delay
        self._metrics.send_failed(self.name, failure.reason)
        self._log.failing(
            self.name, "destination.failed", destination=self.name, reason=failure.reason, detail=failure.detail
        )
        with suppress(Failure):  # the disk is told of by the agent, whose records it refuses as well
            self._outbox.failed(self.name, failure.reason, self._now() + timedelta(seconds=delay))
        return delay

    def broke(self, error: Exception) -> float:
        """A mistake of ours came out of `tick`: counted, said, and tried again slowly. Answers the delay in seconds."""
        return self._later(Retryable("internal", f"{type(error).__name__}: {error}"[:200], needs_operator=True))

    def close(self) -> None:
        self._destination.close()
