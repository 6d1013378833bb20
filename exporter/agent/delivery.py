"""From the outbox to one destination: next, send, settle. One `Delivery` per destination, on a thread of its own.

At least once, in order per event: the next `send` begins when this one has ended, and what was acknowledged is settled.
A destination that is down delays nothing but its own queue. A batch that is refused is sent again in halves, until the
refused record is alone; `suspects` decides what becomes of that one. What may pass by itself leaves a batch whole,
unless it does not pass: a limit may be less than a batch. Where it may have been too much for the way there, or one of
its records may be the reason for what only a person can mend, sending begins again with one record, and doubles.
While nothing waits, the thread sleeps until it is woken by a commit or until its destination has something to do.

failure of a record that was sent alone                 is
`Permanent`: 400, 413, 422, rejected, too large         a refusal of this record
for one of `REFUSED_IF_REPEATED`: 500, a closed link    the same, from the `CERTAIN`th time in a row on
anything else: network, 429, 502 to 504, 401, 404       the destination's: every record waits, in order
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
"""Failures in a row, of whatever kind, after which a batch may be too much: some answer 429 or 503 to what is larger
than their limit, as they do to what comes too soon."""
OPERATOR_SECONDS: Final = 60.0
"""Between two attempts where only a person can mend what is wrong."""
REFUSED_IF_REPEATED: Final = frozenset({"other", "protocol", "internal"})
"""Reasons that are the destination's own, unless they come again and again for one record and for no other."""
IDS_A_LINE: Final = 25
"""Of records, in a field of the log, which has at most 1,000 characters."""
IDLE_SECONDS: Final = 60.0
"""The longest sleep. Not more than `QUIET_SECONDS`, and all that a lost wake would cost."""
LOOK_AGAIN_SECONDS: Final = 1.0
"""While the file can't be read, or the disk does not take what was settled."""
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
        """Returns when every record is acknowledged. Raises `PartlyRejected`, which settles all of them, or `Retryable`
        or `Permanent`, with what is `acknowledged`."""

    def idle(self) -> float | None:
        """Called when nothing waits. Answers in how many seconds to call again; None: not before the next `send`."""

    def close(self) -> None:
        """Ends within 2 s, also a `send` that is under way in another thread."""


class DeliveryMetrics(Protocol):
    """Where the facts of a delivery are counted."""

    def sent(self, destination: str, records: int, duration: float) -> None:
        """So many records were acknowledged after `duration` seconds."""

    def send_failed(self, destination: str, reason: str) -> None:
        """An attempt failed."""

    def dropped(self, destination: str, reason: str, records: int) -> None:
        """Records were given up undelivered."""


def backoff(failures: int, failure: Failure, jitter: float) -> float:
    """Seconds to wait after the n-th failure in a row: 1, 2, 4, 8, 15, 15, … each shortened by up to a fifth by
    `jitter` (0 to 1), 60 where only a person can mend it, and never less than the destination asked for."""
    needs_operator = isinstance(failure, Retryable) and failure.needs_operator
    own = OPERATOR_SECONDS if needs_operator else SEND_BACKOFF.after(failures)
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
        """What was refused last; another record is tried next."""
        self._under_way: list[Queued] = []
        self._failures = 0
        self._repeated = (0, 0)
        """The row number of the record that failed alone for one of `REFUSED_IF_REPEATED`, and how often in a row."""
        self._due = 0.0
        self._batch_limits: list[int] = []
        """At most so many records in each of the next batches, the last of these in the next one."""

    def tick(self) -> float:
        """Sends at most one batch. Answers in how many seconds to call again, if not woken before.

        0 means at once: there may be more. Raises only for a mistake of ours.
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
            # Many old records that are refused must not keep a new event waiting for long.
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
        """Nothing is to be sent now. Answers in how many seconds there is something to do without being woken."""
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
        """Some of these are lost; the destination does not say which."""
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
        """None of these was acknowledged. Answers in how many seconds to go on."""
        if self._is_rejection(waiting, failure):
            return self._on_rejected(waiting[0], failure)
        if isinstance(failure, Retryable):
            return self._retry_later(failure)
        half = len(waiting) // 2
        self._batch_limits += [len(waiting) - half, half]
        return 0.0

    def _is_rejection(self, waiting: list[Queued], failure: Failure) -> bool:
        """Whether the destination refused one record, and not everything or one of several."""
        if len(waiting) != 1:
            return False
        if isinstance(failure, Permanent):
            return True
        seq, repeated = waiting[0].seq, 0
        if failure.reason in REFUSED_IF_REPEATED:
            repeated = 1 + (self._repeated[1] if self._repeated[0] == seq else 0)
        self._repeated = (seq, repeated)
        is_compared = self._suspects.step is not NextSend.ALL or seq in self._suspects.numbers
        return repeated >= CERTAIN or (repeated > 0 and is_compared)

    def _on_rejected(self, queued: Queued, failure: Failure) -> float:
        """The destination refused this record, sent alone. Answers in how many seconds to go on."""
        now = self._monotonic()
        self._metrics.send_failed(self.name, failure.reason)
        match self._suspects.refuse(queued.seq):
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
        """No other record waits: the refused one is tried again later, and when another one comes."""
        assert self._rejected is not None, "set before `NextSend.ANOTHER`"  # noqa: S101  # a mistake in this class
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
        """The outbox remembers what the disk does not take yet: a full disk stops no record that is already on it."""
        try:
            write()
        except Failure as failure:
            self._outbox_failed(failure)
        else:
            self._log.recovered(self._disk_key, "outbox.recovered", quiet=QUIET_SECONDS, destination=self.name)

    def _outbox_failed(self, failure: Failure) -> None:
        self._log.failing(self._disk_key, "outbox.unwritable", reason=failure.reason, detail=failure.detail)

    def _recovered(self) -> None:
        """What waited is delivered, or nothing waits: logged once that lasts, not after each refusal of a limit."""
        self._log.recovered(self.name, "destination.recovered", quiet=QUIET_SECONDS, destination=self.name)

    def _retry_later(self, failure: Retryable) -> float:
        self._metrics.send_failed(self.name, failure.reason)
        self._suspects.fail()
        smaller = failure.smaller or failure.needs_operator or self._failures + 1 >= SMALLER_AFTER
        return self._wait_for_all(failure, smaller=smaller)

    def _wait_for_all(self, failure: Failure, *, smaller: bool = True) -> float:
        """Nothing is sent before the back-off has passed; then one record is, if it shall be `smaller`."""
        if smaller:
            self._batch_limits = _doubling(self._destination.batch_size)
        delay = self._back_off(failure)
        self._due = self._monotonic() + delay
        return delay

    def _back_off(self, failure: Failure) -> float:
        """One more failure in a row, for the log, the page and the alerts. Answers how many seconds to wait."""
        self._failures += 1
        delay = backoff(self._failures, failure, self._jitter())
        self._log.failing(
            self.name, "destination.failed", destination=self.name, reason=failure.reason, detail=failure.detail
        )
        with suppress(Failure):  # the agent, whose records the disk refuses as well, logs that
            self._outbox.failed(self.name, failure.reason)
        return delay

    def retry_after_internal_error(self, error: Exception) -> float:
        """After a mistake of ours in `tick`: counts it, logs it, and answers in how many seconds to try again."""
        waiting, self._under_way = self._under_way, []
        failure = Retryable("internal", f"{type(error).__name__}: {error}"[:200], needs_operator=True)
        return self._on_failed(waiting, failure)

    def close(self) -> None:
        """Ends the destination."""
        self._destination.close()


class DeliveryThread:
    """A thread that delivers to one destination until it is told to stop."""

    def __init__(
        self, name: str, make: Callable[[], Destination], outbox: Outbox, metrics: DeliveryMetrics, log: Logger
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
                wait = delivery.retry_after_internal_error(error)
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
