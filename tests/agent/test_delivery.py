"""Delivery from the outbox: order, backoff, dead letters, sleep, and destinations that misbehave."""

from __future__ import annotations

import io
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.agent.delivery import IDLE_SECONDS, LOOK_AGAIN_SECONDS, QUIET_SECONDS, DeliveryThread, backoff
from exporter.agent.suspects import CERTAIN
from exporter.core.records import Record
from exporter.errors import Permanent, Retryable
from exporter.log.log import Log
from tests.support.delivery_environment import Line, in_order, scenarios
from tests.support.eventhubs_target import a_record
from tests.support.outbox_content import a_record as large_record


@dataclass
class Backend:
    """A destination with a scripted result for each record."""

    refuse: Callable[[Sequence[Record]], Exception | None] = lambda _records: None
    batch_size: int = 10
    subjects: int | None = 1
    name: str = "event_hubs"
    taken: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    idle_seconds: float | None = None
    idled: int = 0
    closed: int = 0
    received: threading.Event = field(default_factory=threading.Event)

    def send(self, records: Sequence[Record]) -> None:
        self.batches.append(len(records))
        error = self.refuse(records)
        if error is not None:
            raise error
        self.taken += [record.id for record in records]
        self.received.set()

    def idle(self) -> float | None:
        self.idled += 1
        return self.idle_seconds

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("failures", "failure", "jitter", "seconds"),
    [
        (1, Retryable("connect"), 0.0, 1.0),
        (2, Retryable("connect"), 0.0, 2.0),
        (3, Retryable("connect"), 0.0, 4.0),
        (4, Retryable("connect"), 0.0, 8.0),
        (5, Retryable("connect"), 0.0, 15.0),
        (5_000, Retryable("connect"), 0.0, 15.0),
        (5, Retryable("connect"), 1.0, 12.0),
        (1, Retryable("connect"), 1.0, 0.8),
        (1, Retryable("not-found", needs_operator=True), 0.0, 60.0),
        (1, Retryable("throttled", retry_after=33.0), 1.0, 33.0),
        (9, Retryable("throttled", retry_after=4.0), 0.0, 15.0),
        (1, Retryable("unauthorized", retry_after=120.0, needs_operator=True), 0.0, 120.0),
    ],
)
def test_backoff_grows_with_jitter(failures: int, failure: Retryable, jitter: float, seconds: float) -> None:
    """1, 2, 4, 8, 15 s, shortened by up to a fifth; 60 s for an operator; never less than `retry_after`."""
    assert backoff(failures, failure, jitter) == pytest.approx(seconds)


def test_records_are_sent_once_and_in_order_in_batches(tmp_path: Path) -> None:
    wanted = scenarios(events=3, each=30)
    with Line(tmp_path, Backend()) as line:
        line.put(*wanted)
        line.go()
        backend = line.destination
        assert isinstance(backend, Backend)
        assert in_order(backend.taken, wanted)
        assert len(backend.taken) == 90
        assert backend.batches == [10] * 9


@pytest.mark.parametrize(
    ("wanted", "seconds"), [(None, IDLE_SECONDS), (17.5, 17.5), (1e-9, 1e-9), (10 * IDLE_SECONDS, IDLE_SECONDS)]
)
def test_idle_delivery_sleeps_until_the_destination_is_due(
    tmp_path: Path, wanted: float | None, seconds: float
) -> None:
    """At most for the longest sleep."""
    backend = Backend(idle_seconds=wanted)
    with Line(tmp_path, backend) as line:
        assert [line.turn() for _ in range(3)] == [seconds] * 3
        assert backend.idled == 3
    assert backend.closed == 1


def test_unreadable_outbox_is_polled_each_second(tmp_path: Path) -> None:
    """No commit wakes the delivery when the file with old records can be opened."""
    wanted = [a_record(1)]
    with Line(tmp_path, Backend()) as line:
        line.put(*wanted)
        folder = line.outbox.path.parent
    folder.rename(tmp_path.with_name("elsewhere"))
    tmp_path.write_text("no folder")
    backend = Backend()
    with Line(tmp_path, backend) as line:
        assert line.turn() == LOOK_AGAIN_SECONDS
        tmp_path.unlink()
        tmp_path.with_name("elsewhere").rename(tmp_path)
        line.outbox.load()
        line.go()
        assert backend.taken == [record.id for record in wanted]
        assert line.turn() == IDLE_SECONDS


def test_recovery_is_logged_by_an_idle_delivery(tmp_path: Path) -> None:
    """After its longest sleep, without another send."""
    errors: list[Exception] = [Retryable("connect", "refused")]
    with Line(tmp_path, Backend(lambda _records: errors.pop() if errors else None)) as line:
        line.put(a_record(1))
        line.go()
        since = line.clock.mono
        while "event=destination.recovered" not in line.logged():
            line.turn()
        assert line.clock.mono - since <= QUIET_SECONDS + IDLE_SECONDS


def test_commit_wakes_a_sleeping_thread(tmp_path: Path) -> None:
    """It delivers at once, sleeps again without calling the destination, and stops at once."""
    backend = Backend()
    with Line(tmp_path, Backend()) as line:
        thread = DeliveryThread(backend.name, lambda: backend, line.outbox, line.sink, Log(io.StringIO()))
        thread.start()
        for number in range(1, 4):
            backend.received.clear()
            line.put(a_record(number))
            thread.wake()
            assert backend.received.wait(10)
            thread.flush(10)
        assert backend.taken == [a_record(number).id for number in range(1, 4)]
        assert line.waiting() == 0
        assert backend.idled <= 10
        began = time.monotonic()
        thread.stop()
        assert time.monotonic() - began < IDLE_SECONDS / 2
    assert backend.closed == 1


def test_rejected_record_of_a_batch_is_parked_alone(tmp_path: Path) -> None:
    """The other records are sent, and batches become large again."""
    wanted = [a_record(number, subject="one") for number in range(1, 26)]
    bad = {wanted[3].id, wanted[9].id}
    backend = Backend(lambda records: Permanent("rejected", "no") if bad & {record.id for record in records} else None)
    with Line(tmp_path, backend) as line:
        line.put(*wanted)
        line.go()
        assert backend.taken == [record.id for record in wanted if record.id not in bad]
        assert (line.parked(), line.waiting()) == (2, 0)
        assert line.reasons() == {"rejected": 2 * (1 + CERTAIN)}
        assert max(backend.batches) > 1
        assert backend.batches[0] > 1
        assert line.waits == [1] * (CERTAIN - 1)


def test_internal_error_is_counted_logged_and_retried(tmp_path: Path) -> None:
    errors: list[Exception] = [ZeroDivisionError("oops")]
    backend = Backend(lambda _records: errors.pop() if errors else None)
    with Line(tmp_path, backend) as line:
        line.put(a_record(1))
        with pytest.raises(ZeroDivisionError) as caught:
            line.delivery.tick()
        assert line.delivery.retry_after_internal_error(caught.value) == 60
        assert line.turn() == 60
        line.go()
        assert backend.taken == [a_record(1).id]
        assert "ZeroDivisionError" in line.logged()


def test_early_call_returns_the_remaining_wait(tmp_path: Path) -> None:
    """Nothing is sent."""
    backend = Backend(lambda _records: Retryable("connect"))
    with Line(tmp_path, backend) as line:
        line.put(a_record(1))
        line.turn()
        line.turn()
        line.clock.go(-1.5)
        assert line.delivery.tick() == pytest.approx(1.5)
        assert len(backend.batches) == 2


def test_failure_and_recovery_are_logged_once(tmp_path: Path) -> None:
    down = [True]
    backend = Backend(lambda _records: Retryable("connect", "refused") if down else None)
    with Line(tmp_path, backend) as line:
        line.put(a_record(1))
        for _ in range(50):
            line.turn()
        down.clear()
        line.go()
        assert line.logged().count("event=destination.failed") == 1
        assert line.logged().count("event=destination.recovered") == 1
        assert line.reasons() == {"connect": 50}


def test_flapping_destination_is_logged_as_one_failure(tmp_path: Path) -> None:
    """A collector that rejects every other request by a rate limit is logged twice: failure and recovery."""
    sends = [0]

    def limited(_records: object) -> Retryable | None:
        sends[0] += 1
        return Retryable("throttled", "HTTP 429", retry_after=3.0) if limiting and sends[0] % 2 else None

    limiting = [True]
    with Line(tmp_path, Backend(limited)) as line:
        for number in range(1, 29):
            line.put(a_record(number, subject=f"event-{number}"))
            line.go()
            line.clock.go(20)
            line.delivery.tick()
        logged = line.logged()
        assert sends[0] > 50
        assert (logged.count("event=destination.failed"), logged.count("event=destination.recovered")) == (1, 0)
        limiting.clear()
        for _ in range(8):
            line.clock.go(10)
            line.delivery.tick()
        assert line.logged().count("event=destination.failed") == 1
        (recovered,) = [text for text in line.logged().splitlines() if "event=destination.recovered" in text]
        assert "failures=28 " in recovered
        line.clock.go(3600)
        line.delivery.tick()
        assert line.logged().count("event=destination.recovered") == 1


def test_delivery_continues_while_the_disk_rejects_writes(tmp_path: Path) -> None:
    """Records on disk are sent once each; the acknowledgements are saved later."""
    wanted = [a_record(number, subject=f"event-{number}") for number in range(1, 4)]
    backend = Backend()
    with Line(tmp_path, backend) as line:
        line.put(*wanted)
        with closing(sqlite3.connect(line.outbox.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert [line.turn() for _ in range(2)] == [0, 0]
            assert backend.taken == [record.id for record in wanted[:2]]
            assert line.waiting() == 3
            assert line.logged().count("event=outbox.unwritable") == 1
            line.turn()
            assert line.turn() == LOOK_AGAIN_SECONDS
            other.execute("ROLLBACK")
        line.turn()
        assert backend.taken == [record.id for record in wanted]
        assert line.waiting() == 0
        assert line.turn() == IDLE_SECONDS


def test_restart_continues_after_the_last_acknowledgement(tmp_path: Path) -> None:
    wanted = [a_record(number, subject=f"event-{number}") for number in range(1, 6)]
    backend = Backend()
    with Line(tmp_path, backend) as line:
        line.put(*wanted)
        line.turn()
        line.turn()
    with Line(tmp_path, backend) as line:
        line.go()
    assert backend.taken == [record.id for record in wanted]


def test_damaged_outbox_is_not_counted_as_a_failure_of_the_destination(tmp_path: Path) -> None:
    """The readable records are sent afterwards."""
    wanted = [large_record(number, subject=f"event-{number}", size=3_000) for number in range(1_500)]
    backend = Backend(subjects=None, batch_size=100)
    with Line(tmp_path, backend) as line:
        line.put(*wanted)
        with closing(sqlite3.connect(line.outbox.path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with line.outbox.path.open("r+b") as file:
            file.seek(600 * 4096)
            file.write(b"\xff" * 8192)
        line.go(until=lambda: line.delivery.tick() == LOOK_AGAIN_SECONDS)
        assert line.logged().count("event=outbox.unwritable") == 1
        assert line.turn() == LOOK_AGAIN_SECONDS
        line.outbox.used()  # as the agent does each second
        line.go()
        lost = sum(count for _, count in line.outbox.lost)
        assert 0 < lost <= 4
        assert len(set(backend.taken)) == len(wanted) - lost
        assert line.reasons() == {}
        assert "event=destination.failed" not in line.logged()
