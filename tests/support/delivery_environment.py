"""A delivery from a real outbox to a real destination, on a clock that advances from attempt to attempt."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from exporter.agent.delivery import Delivery, Destination
from exporter.core.records import Record
from exporter.core.state import State
from exporter.log.log import Log
from exporter.outbox.store import Outbox
from exporter.sinks.prometheus.sink import PrometheusSink
from exporter.sinks.reasons import REASONS
from tests.support.agent_environment import Clock
from tests.support.eventhubs_target import a_record
from tests.support.log_reading import PATIENCE, logged
from tests.support.metrics_reading import value


class Line:
    """The last part of the line: outbox, delivery, and destination. `go` runs until nothing waits any more."""

    def __init__(self, folder: Path, destination: Destination, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.destination = destination
        self.name = destination.name
        self.outbox = Outbox(folder / f"{self.name}.db", 50 << 20, (self.name,), now=self.clock.utc)
        self.outbox.release()
        self.state = State(birth=self.clock.utc(), vm_key="key")
        self.sink = PrometheusSink("1", (), include_process_metrics=False)
        self.text = io.StringIO()
        self.log = Log(None)
        self.waits: list[float] = []
        self.begin()

    def begin(self) -> None:
        """Start a delivery as a new process does: it tries at once."""
        self.log.close(PATIENCE)  # that of the process before
        self.log = Log(self.text, clock=lambda: self.clock.wall, monotonic=self.clock.monotonic)
        self.delivery = Delivery(
            self.destination,
            self.outbox,
            self.sink,
            self.log,
            monotonic=self.clock.monotonic,
            jitter=lambda: 0.0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.delivery.close()
        self.outbox.close()

    def logged(self) -> str:
        """Return all lines of the log so far."""
        return logged(self.log, self.text)

    def put(self, *records: Record) -> None:
        self.outbox.commit(self.state, records)

    def turn(self) -> float:
        """Run one tick as the loop does; the clock advances by the returned delay, which is recorded."""
        wait = self.delivery.tick()
        if wait:
            self.waits.append(round(wait, 3))
            self.clock.go(wait)
        return wait

    def waiting(self) -> int:
        return self.outbox.queues()[self.name].records

    def parked(self) -> int:
        return self.outbox.queues()[self.name].parked

    def go(self, turns: int = 60, until: Callable[[], bool] = lambda: False) -> None:
        """Run ticks until nothing waits, or until the condition holds; fail after this many ticks."""
        for _ in range(turns):
            if until() or not self.waiting():
                return
            self.turn()
        raise AssertionError(f"{self.waiting()} records still wait: {self.logged()[-2000:]}")

    def reasons(self) -> dict[str, int]:
        """Return how often each reason was counted, without zeros."""
        counted = {reason: int(self.failures(reason)) for reason in REASONS}
        return {reason: count for reason, count in counted.items() if count}

    def failures(self, reason: str) -> float:
        return value(self.sink, "destination_send_failures_total", destination=self.name, reason=reason) or 0.0

    def sent(self) -> float:
        return value(self.sink, "destination_records_sent_total", destination=self.name) or 0.0


def scenarios(events: int = 2, each: int = 3) -> list[Record]:
    """Return records of several events, interleaved as they arrive."""
    return [
        a_record(step * 10 + number, subject=f"event-{number}")
        for step in range(each)
        for number in range(1, events + 1)
    ]


def in_order(ids: Iterable[str], wanted: Sequence[Record]) -> bool:
    """Return whether the first copies of each event's records arrive in the order in which they were written, with none
    missing."""
    first = list(dict.fromkeys(ids))
    subjects = {record.subject for record in wanted}
    return all(
        [record_id for record_id in first if record_id in mine] == mine
        for mine in ([record.id for record in wanted if record.subject == subject] for subject in subjects)
    )
