"""Backlogs that drain slowly use several connections; each event's records use one at a time."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from exporter.core.records import Record
from exporter.errors import Failure, Retryable
from exporter.simulator.event_hubs.broker import Broker
from exporter.sinks.event_hubs.sink import MAX_CONNECTIONS, WIDEN_AFTER, WIDEN_SECONDS, EventHubsDestination
from tests.support.delivery_environment import Line, in_order
from tests.support.eventhubs_broker import FORGETFUL, collected, running_broker
from tests.support.eventhubs_target import a_record, at_once, destination, refused

pytestmark = FORGETFUL
_collect = pytest.fixture(autouse=True)(collected)
broker = pytest.fixture(running_broker)


def slow(broker: Broker, **options: Any) -> EventHubsDestination:
    """Return a destination whose clock makes every send seem too slow."""
    return destination(broker, monotonic=itertools.count(0.0, 2 * WIDEN_SECONDS).__next__, **options)


def widened(broker: Broker, **options: Any) -> EventHubsDestination:
    """Return the same after enough sends to use all connections."""
    target = slow(broker, **options)
    for number in range(WIDEN_AFTER + 1):
        target.send([a_record(900 + number, subject=f"before-{number}")])
    assert target.subjects == MAX_CONNECTIONS
    target.send([a_record(950 + number, subject=f"before-{number}") for number in range(MAX_CONNECTIONS)])
    broker.wait_connections(MAX_CONNECTIONS, 30)
    return target


def backlog(events: int, each: int = 3) -> list[Record]:
    """Return this many records of each event, with two events interleaved."""
    return [
        a_record(pair * 100 + step * 10 + of_pair, subject=f"event-{pair}-{of_pair}")
        for pair in range(events // 2)
        for step in range(each)
        for of_pair in (0, 1)
    ]


def arrived(broker: Broker) -> list[str]:
    return [str(message.message_id) for message in broker.messages()]


def test_fast_backlog_uses_one_connection(tmp_path: Path, broker: Broker) -> None:
    """Further connections would only count against the namespace's limit."""
    wanted = backlog(40)
    with Line(tmp_path, destination(broker, monotonic=lambda: 0.0)) as line:
        line.put(*wanted)
        line.go()
    assert in_order(arrived(broker), wanted)
    assert broker.total_connections == 1


def test_slow_backlog_uses_several_connections_until_it_is_drained(tmp_path: Path, broker: Broker) -> None:
    """Each record arrives once, each event in order with its key; then one connection remains."""
    wanted = backlog(60)
    target = slow(broker)
    with Line(tmp_path, target) as line:
        line.put(*wanted)
        line.go()
        assert in_order(arrived(broker), wanted)
        assert len(arrived(broker)) == len(wanted)
        assert {(m.message_id, m.partition_key) for m in broker.messages()} == {(r.id, r.subject) for r in wanted}
        assert (broker.connections, broker.total_connections) == (MAX_CONNECTIONS, MAX_CONNECTIONS)
        line.turn()
        broker.wait_connections(1, 30)
        assert target.subjects == 1


def test_few_events_use_one_connection(tmp_path: Path, broker: Broker) -> None:
    """However slowly they drain."""
    with Line(tmp_path, slow(broker)) as line:
        for start in range(0, 300, 60):
            line.put(*(a_record(start + number, subject=f"event-{number % WIDEN_AFTER}") for number in range(60)))
            line.go()
            line.turn()
    assert len(arrived(broker)) == 300
    assert broker.total_connections == 1


def test_hanging_connection_fails_only_its_event(broker: Broker) -> None:
    """The send ends by the deadline, other events are acknowledged, and every connection is closed."""
    target = widened(broker, deadline=2.0)
    broker.faults.add("no-disposition")
    some = [a_record(number, subject=f"event-{number}") for number in range(1, MAX_CONNECTIONS + 1)]
    error = refused(target, *some)
    assert isinstance(error, Retryable)
    assert error.reason == "timeout"
    assert len(error.acknowledged) == MAX_CONNECTIONS - 1
    assert error.acknowledged < {record.id for record in some}
    broker.wait_connections(0, 30)
    assert target.subjects == 1
    target.send([record for record in some if record.id not in error.acknowledged])
    assert {record.id for record in some} <= set(arrived(broker))
    target.close()


def test_event_ids_that_differ_in_case_share_a_connection(broker: Broker) -> None:
    """The second record waits for the acknowledgement of the first."""
    target = widened(broker, deadline=2.0)
    broker.faults.add("no-disposition")
    error = refused(target, a_record(1, subject="Event-A"), a_record(2, subject="event-a"))
    assert error.reason == "timeout"
    assert a_record(1).id in arrived(broker)
    assert a_record(2).id not in arrived(broker)
    assert error.acknowledged == frozenset()
    target.close()


def test_backlog_drains_over_the_only_available_connection(tmp_path: Path, broker: Broker) -> None:
    """That is no failure, and no further connection is tried until the backlog is drained."""
    wanted = backlog(60)
    with Line(tmp_path, slow(broker)) as line:
        line.put(*wanted)
        line.turn()
        broker.faults.add("attach-refused:amqp:resource-limit-exceeded*always")
        line.go(turns=100, until=lambda: broker.total_connections > 1)
        asked = broker.total_connections
        line.go(turns=100)
        assert in_order(arrived(broker), wanted)
        assert len(arrived(broker)) == len(wanted)
        assert broker.total_connections == asked
        assert (line.reasons(), line.waits) == ({}, [])
        broker.wait_connections(1, 30)


WEATHER = (
    "drop-before-store*6",
    "drop-after-store*6",
    "detach*6",
    "no-disposition*2",
    "released",
    "modified",
    "rejected:com.microsoft:server-busy*6",
    "rejected:amqp:internal-error*6",
    "cbs-refused*6",
    "cbs-silent",
    "silent*2",
)


def test_several_connections_survive_every_fault(tmp_path: Path) -> None:
    """Everything arrives in order, with few duplicates, and nothing is parked."""

    def through(fault: str) -> tuple[bool, int, int, bool]:
        folder = tmp_path / fault.replace(":", "-").replace("*", "-")
        with Broker() as broker, Line(folder, slow(broker, deadline=1.5)) as line:
            wanted = backlog(60)
            line.put(*wanted)
            line.go(until=lambda: broker.connections > 1)
            broker.faults.add(fault)
            if fault.startswith(("cbs", "silent")):
                broker.drop_connections()
            line.go(turns=120)
            copies = sum(Counter(arrived(broker)).values()) - len(wanted)
            # The SDK itself sends a batch up to eight times; a batch is three records.
            return in_order(arrived(broker), wanted), line.waiting(), line.parked(), copies <= 8 * MAX_CONNECTIONS * 3

    assert at_once(through, WEATHER) == dict.fromkeys(WEATHER, (True, 0, 0, True))


def test_close_ends_a_send_over_several_connections(broker: Broker) -> None:
    """The send in another thread returns at once."""
    target = widened(broker, deadline=60.0)
    broker.faults.add("no-disposition*always")
    failures: list[Failure] = []

    def send() -> None:
        try:
            target.send([a_record(number, subject=f"event-{number}") for number in range(MAX_CONNECTIONS)])
        except Failure as failure:
            failures.append(failure)

    before = len(broker.messages())
    sender = threading.Thread(target=send)
    sender.start()
    broker.wait_for(before + MAX_CONNECTIONS, 30)
    target.close()
    sender.join(30)
    assert [failure.reason for failure in failures] == ["closed"]
    broker.wait_connections(0, 30)
