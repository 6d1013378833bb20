"""Delivers records from the outbox to one destination. Each destination has one `Delivery` and one thread.

Delivery is at least once, and in order per event: acknowledged records are marked as delivered before the next `send`.
A destination that is down delays only its own queue. While nothing waits, the thread sleeps until a commit wakes it or
its destination has something to do.

- A rejected batch is split in halves, down to one rejected record; then `suspects` decides about it.
- A transient failure doesn't split a batch at first.
- Sending starts again with one record, and doubles, if the request may have been too large, if failures continue (a
  limit may be smaller than a batch), or if an operator must fix the cause, which may be one of the records.

failure of the only record in a request                 meaning
`Permanent`: 400, 413, 422, rejected, too large         this record was rejected
one of `REJECTED_IF_REPEATED`: 500, a closed link       the same, from the `CERTAIN`th time in a row on
anything else: network, 429, 502 to 504, 401, 404       the destination failed: every record waits, in order
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from exporter.agent.log_fields import about
from exporter.agent.suspects import CERTAIN, NextSend, RejectionResult, Suspects
from exporter.core.records import Record
from exporter.errors import Backoff, Failure, PartlyRejected, Permanent, Retryable
from exporter.log.protocol import Logger
from exporter.outbox.errors import OutboxUnwritable
from exporter.outbox.queue import Queued
from exporter.outbox.store import Outbox

SEND_BACKOFF: Final = Backoff(1.0, 15.0)
SMALLER_AFTER: Final = 3
"""Failures in a row, of any kind, after which a batch counts as too large: some destinations return 429 or 503 for a
request that exceeds their size limit, not only for one that comes too early."""
OPERATOR_SECONDS: Final = 60.0
"""Time between two attempts if an operator must fix the cause."""
REJECTED_IF_REPEATED: Final = frozenset({"other", "protocol", "internal"})
"""Reasons that blame the destination, unless they repeat for one record and for no other."""
IDS_A_LINE: Final = 25
"""Maximum number of record ids in a log field, which has at most 1,000 characters."""
IDLE_SECONDS: Final = 60.0
"""The longest sleep, and so the longest delay after a lost wake-up. At most `QUIET_SECONDS`."""
LOOK_AGAIN_SECONDS: Final = 1.0
"""Time between attempts while the outbox can't be read or written."""
QUIET_SECONDS: Final = 60.0
"""Time without a failure after which a destination counts as recovered."""
STOP_SECONDS: Final = 2.0
"""Maximum time for all threads together to end, so that the process ends within 5 s."""


class Destination(Protocol):
    """One backend, as `exporter.sinks` describes it."""

    @property
    def name(self) -> str:
        """The metric label."""

    @property
    def batch_size(self) -> int:
        """Maximum number of records in one `send`."""

    @property
    def subjects(self) -> int | None:
        """Maximum number of subjects (event ids) in the next `send`; None: any number, in outbox order."""

    def send(self, records: Sequence[Record]) -> None:
        """Send the records and block until all are acknowledged.

        Raises `PartlyRejected`: all are settled, and some are lost. Raises `Retryable` or `Permanent`: only the records
        in its `acknowledged` were accepted.
        """

    def idle(self) -> float | None:
        """Do the idle work. Return the seconds until the next call is due; None: not before the next `send`."""

    def close(self) -> None:
        """Close the destination within 2 s, and abort a `send` on another thread."""


class DeliveryMetrics(Protocol):
    """The metrics of deliveries."""

    def sent(self, destination: str, records: int, duration: float) -> None:
        """Count `records` that were acknowledged after `duration` seconds."""

    def send_failed(self, destination: str, reason: str) -> None:
        """Count a failed attempt."""

    def dropped(self, destination: str, reason: str, records: int) -> None:
        """Count records that were lost undelivered."""


def backoff(failures: int, failure: Failure, jitter: float) -> float:
    """Return the seconds to wait after the n-th failure in a row: 1, 2, 4, 8, 15, 15, …; 60 if it needs an operator.

    `jitter` (0 to 1) shortens the wait by up to a fifth. It is never shorter than the `retry_after` of the failure.
    """
    needs_operator = isinstance(failure, Retryable) and failure.needs_operator
    own = OPERATOR_SECONDS if needs_operator else SEND_BACKOFF.after(failures)
    return max(own * (1 - 0.2 * jitter), failure.retry_after or 0.0)


def _doubling(most: int) -> list[int]:
    """Return the powers of two that are less than `most`, in descending order."""
    return [2**step for step in reversed(range((most - 1).bit_length()))]


class Delivery:
    """The delivery to one destination. The caller owns the thread and calls `tick`."""

    def __init__(
        self,
        destination: Destination,
        outbox: Outbox,
        metrics: DeliveryMetrics,
        log: Logger,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = destination.name
        self._disk_key = f"outbox.{destination.name}"
        self._destination = destination
        self._outbox = outbox
        self._metrics = metrics
        self._log = log
        self._monotonic = monotonic
        self._jitter = jitter
        self._suspects = Suspects()
        self._rejected: tuple[Queued, Failure] | None = None
        """The record that was rejected last, and why; another record is tried next."""
        self._under_way: list[Queued] = []
        self._failures = 0
        self._repeated = (0, 0)
        """Row number of the record that failed in its own request for `REJECTED_IF_REPEATED`, and how often."""
        self._due = 0.0
        self._batch_limits: list[int] = []
        """Maximum number of records of each of the next batches; the last number is for the next batch."""

    def tick(self) -> float:
        """Send at most one batch. Return the seconds until the next call is due; 0 if more records may be waiting.

        A wake-up may come earlier. Blocks while the destination does. Propagates only programming errors.
        """
        now = self._monotonic()
        if now < self._due:
            return self._due - now
        try:
            waiting = self._next(now)
        except OutboxUnwritable as failure:  # not the destination's fault
            self._outbox_failed(failure)
            return LOOK_AGAIN_SECONDS
        if not waiting and self._suspects.step is not NextSend.ANOTHER:
            return self._idle(now)
        return self._send(waiting) if waiting else self._wait_for_another(now)

    def _next(self, now: float) -> list[Queued]:
        suspects = self._suspects
        if suspects.step is NextSend.ANOTHER:
            # Many rejected old records must not delay a new event for long.
            youngest = len(suspects.numbers) >= CERTAIN
            if other := self._outbox.another(self.name, suspects.numbers, youngest=youngest):
                return other
        while (seq := suspects.due(now)) is not None:
            if suspect := self._outbox.waiting(self.name, seq):
                return suspect
            suspects.forget(seq)
        if suspects.step is NextSend.ANOTHER or suspects.are_too_many:
            return []
        limit, subjects = self._destination.batch_size, self._destination.subjects
        if self._batch_limits:
            limit, subjects = min(limit, self._batch_limits[-1]), None if subjects is None else 1
        batch = self._outbox.next(self.name, limit, subjects, suspects.numbers)
        if batch and (seq := suspects.unproven()) is not None:
            return self._outbox.waiting(self.name, seq) or batch
        return batch

    def _idle(self, now: float) -> float:
        """Handle an empty queue. Return the seconds until the next call is due without a wake-up."""
        self._batch_limits.clear()
        close_in = self._destination.idle()
        if not self._suspects.numbers:
            self._recovered()
        longest = LOOK_AGAIN_SECONDS if self._outbox.needs_polling(self.name) else IDLE_SECONDS
        return min(longest, longest if close_in is None else close_in, self._suspects.next_due() - now)

    def _send(self, waiting: list[Queued]) -> float:
        began = self._monotonic()
        is_batch = waiting[0].seq not in self._suspects.numbers and self._suspects.step is NextSend.ALL
        self._under_way = waiting
        failure: Failure | None = None
        try:
            self._destination.send([queued.record for queued in waiting])
        except Failure as error:
            failure = error
        self._under_way = []
        if is_batch and not isinstance(failure, Retryable):
            self._batch_limits[-1:] = []
        if failure is None:
            self._on_acknowledged(waiting, began)
            return 0.0
        if isinstance(failure, PartlyRejected):
            self._on_acknowledged(waiting, began, failure.rejected)
            self._on_partly_rejected(waiting, failure)
            return 0.0
        self._on_acknowledged([queued for queued in waiting if queued.record.id in failure.acknowledged], began)
        return self._on_failed([queued for queued in waiting if queued.record.id not in failure.acknowledged], failure)

    def _on_acknowledged(self, acknowledged: list[Queued], began: float, rejected: int = 0) -> None:
        if not acknowledged:
            return
        numbers = [queued.seq for queued in acknowledged]
        self._failures, self._repeated = 0, (0, 0)
        self._suspects.accept(numbers, self._monotonic())
        self._metrics.sent(self.name, len(numbers) - rejected, self._monotonic() - began)
        self._recovered()
        self._settle(lambda: self._outbox.delivered(self.name, numbers))

    def _on_partly_rejected(self, waiting: list[Queued], failure: PartlyRejected) -> None:
        """Count and log the loss of some of these records; the destination doesn't report which."""
        self._metrics.dropped(self.name, "rejected", failure.rejected)
        ids = [queued.record.id for queued in waiting]
        for first in range(0, len(ids), IDS_A_LINE):
            self._log.error(
                "destination.rejected_records",
                destination=self.name,
                records=failure.rejected,
                of=len(ids),
                detail=failure.detail,
                ids=" ".join(ids[first : first + IDS_A_LINE]),
            )

    def _on_failed(self, waiting: list[Queued], failure: Failure) -> float:
        """Handle a failure of records that were not acknowledged. Return the seconds until the next call is due."""
        if self._is_rejection(waiting, failure):
            return self._on_rejected(waiting[0], failure)
        if isinstance(failure, Retryable):
            self._metrics.send_failed(self.name, failure.reason)
            self._suspects.fail()
            smaller = failure.smaller or failure.needs_operator or self._failures + 1 >= SMALLER_AFTER
            return self._wait_for_all(failure, smaller=smaller)
        half = len(waiting) // 2
        self._batch_limits += [len(waiting) - half, half]
        return 0.0

    def _is_rejection(self, waiting: list[Queued], failure: Failure) -> bool:
        """Return whether the failure is a rejection of one known record, not of a batch or of everything."""
        if len(waiting) != 1:
            return False
        if isinstance(failure, Permanent):
            return True
        seq, repeated = waiting[0].seq, 0
        if failure.reason in REJECTED_IF_REPEATED:
            repeated = 1 + (self._repeated[1] if self._repeated[0] == seq else 0)
        self._repeated = (seq, repeated)
        is_compared = self._suspects.step is not NextSend.ALL or seq in self._suspects.numbers
        return repeated >= CERTAIN or (repeated > 0 and is_compared)

    def _on_rejected(self, queued: Queued, failure: Failure) -> float:
        """Handle the rejection of the only record in a request. Return the seconds until the next call is due."""
        now = self._monotonic()
        self._metrics.send_failed(self.name, failure.reason)
        match self._suspects.reject(queued.seq):
            case RejectionResult.TRY_ANOTHER:
                self._rejected = queued, failure
            case RejectionResult.NOTHING_ACCEPTED:
                return self._wait_for_all(failure)
            case RejectionResult.AGAIN_LATER:
                self._suspects.postpone(queued.seq, now + backoff(1, failure, self._jitter()))
            case RejectionResult.PARK:
                self._park(queued, failure)
        return 0.0

    def _wait_for_another(self, now: float) -> float:
        """Postpone the rejected record until its back-off ends or another record arrives, since no other one waits."""
        assert self._rejected is not None, "set before `NextSend.ANOTHER`"  # noqa: S101  # a bug in this class
        queued, failure = self._rejected
        self._suspects.postpone(queued.seq, now + self._back_off(failure))
        return 0.0

    def _park(self, queued: Queued, failure: Failure) -> None:
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
        """Save a result. If the disk fails, the outbox keeps it in memory: delivery continues on a full disk."""
        try:
            write()
        except Failure as failure:
            self._outbox_failed(failure)
        else:
            self._log.recovered(self._disk_key, "outbox.recovered", quiet=QUIET_SECONDS, destination=self.name)

    def _outbox_failed(self, failure: Failure) -> None:
        self._log.failing(self._disk_key, "outbox.unwritable", reason=failure.reason, detail=failure.detail)

    def _recovered(self) -> None:
        """Log the recovery once it has lasted, and not after each rate-limited request."""
        self._log.recovered(self.name, "destination.recovered", quiet=QUIET_SECONDS, destination=self.name)

    def _wait_for_all(self, failure: Failure, *, smaller: bool = True) -> float:
        """Pause all sending for the back-off; if `smaller`, continue with one record. Return the seconds."""
        if smaller:
            self._batch_limits = _doubling(self._destination.batch_size)
        delay = self._back_off(failure)
        self._due = self._monotonic() + delay
        return delay

    def _back_off(self, failure: Failure) -> float:
        """Count, log, and store one more failure in a row. Return the seconds to wait."""
        self._failures += 1
        delay = backoff(self._failures, failure, self._jitter())
        self._log.failing(
            self.name, "destination.failed", destination=self.name, reason=failure.reason, detail=failure.detail
        )
        with suppress(Failure):  # the agent's own commits fail too, and it logs that
            self._outbox.failed(self.name, failure.reason)
        return delay

    def retry_after_internal_error(self, error: Exception) -> float:
        """Count and log a programming error that `tick` raised. Return the seconds until the next attempt."""
        waiting, self._under_way = self._under_way, []
        failure = Retryable("internal", f"{type(error).__name__}: {error}"[:200], needs_operator=True)
        return self._on_failed(waiting, failure)

    def close(self) -> None:
        """Close the destination, and abort a send on another thread."""
        self._destination.close()


class DeliveryThread:
    """A thread that delivers to one destination until `stop`."""

    def __init__(
        self, name: str, make: Callable[[], Destination], outbox: Outbox, metrics: DeliveryMetrics, log: Logger
    ) -> None:
        """Prepare the thread. `make` creates the destination on it; if it raises, it is called again later."""
        self.name = name
        self._make = make
        self._outbox = outbox
        self._metrics = metrics
        self._log = log
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._drained = threading.Event()
        self._waking = threading.Lock()
        """Makes reading `_wake` and setting `_drained` atomic."""
        self._delivery: Delivery | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which creates the destination."""
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread for new records, from any thread."""
        with self._waking:
            self._drained.clear()
            self._wake.set()

    def _run(self) -> None:
        delivery = self._create()
        while delivery is not None and not self._stop.is_set():
            self._wake.clear()
            try:
                wait = delivery.tick()
            except Exception as error:  # one of the two loops that catch every error: count it, log it, and continue
                wait = delivery.retry_after_internal_error(error)
            if wait > 0:
                with self._waking:
                    if not self._wake.is_set():
                        self._drained.set()
                self._wake.wait(wait)

    def _create(self) -> Delivery | None:
        """Return the delivery once its destination can be created; None if `stop` was called before."""
        while not self._stop.is_set():
            try:
                self._delivery = Delivery(self._make(), self._outbox, self._metrics, self._log)
            except Exception as error:  # the same loop, before its first pass
                self._metrics.send_failed(self.name, "configuration")
                self._log.failing(self.name, "destination.failed", destination=self.name, detail=str(error)[:300])
                self._drained.set()
                self._stop.wait(OPERATOR_SECONDS)
            else:
                return self._delivery
        return None

    def flush(self, seconds: float) -> None:
        """Block until nothing is left to send now, at most for `seconds`."""
        self._wake.set()
        self._drained.wait(seconds)

    def stop(self) -> None:
        """End the thread and abort its current send, within `STOP_SECONDS`."""
        self._stop.set()
        self._wake.set()
        if self._delivery is not None:
            self._delivery.close()
        self._thread.join(STOP_SECONDS)
