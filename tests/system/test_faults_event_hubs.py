"""The fault matrix of Event Hubs: Azure's own SDK, a real broker that fails in every way, the real outbox and delivery.

No record is lost, only rejected records are parked, and each event's records arrive in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from exporter.agent.suspects import CERTAIN
from exporter.core.records import Record
from exporter.simulator.event_hubs.broker import Broker
from tests.support.agent_environment import Clock
from tests.support.delivery_environment import Line, in_order, scenarios
from tests.support.eventhubs_broker import FORGETFUL, collected
from tests.support.eventhubs_target import a_record, at_once, destination
from tests.support.ports import reserved_port

pytestmark = FORGETFUL
_collect = pytest.fixture(autouse=True)(collected)


def arrived(broker: Broker) -> list[str]:
    return [str(message.message_id) for message in broker.messages()]


WEATHER = (
    "drop-before-store*6",
    "drop-after-store*6",
    "detach*6",
    "no-disposition",
    "released",
    "modified",
    "rejected:com.microsoft:server-busy*6",
    "rejected:amqp:internal-error*6",
    "cbs-refused*6",
    "cbs-silent",
    "attach-refused:amqp:unauthorized-access*6",
    "attach-refused:amqp:not-found*6",
    "silent",
)


def test_every_fault_is_survived(tmp_path: Path) -> None:
    """After lost connections, links, and acknowledgements, rejections, and silence, everything has arrived in order,
    and no record is parked or dropped."""

    def through(fault: str) -> tuple[bool, int, int, int]:
        folder = tmp_path / fault.replace(":", "-").replace("*", "-")
        with Broker() as broker, Line(folder, destination(broker, deadline=1.5)) as line:
            wanted = scenarios()
            line.put(*wanted)
            line.turn()  # a first batch without a fault
            broker.faults.add(fault)
            broker.drop_connections()
            line.go()
            return in_order(arrived(broker), wanted), line.waiting(), line.parked(), broker.faults.pending()

    assert at_once(through, WEATHER) == dict.fromkeys(WEATHER, (True, 0, 0, 0))


def test_a_lost_acknowledgement_sends_a_duplicate(tmp_path: Path) -> None:
    """A stored record without an acknowledgement is sent again with the same id."""
    with Broker() as broker, Line(tmp_path, destination(broker, deadline=10.0)) as line:
        broker.faults.add("drop-after-store*2")
        line.put(a_record(1))
        line.go()
        assert set(arrived(broker)) == {a_record(1).id}
        assert len(arrived(broker)) > 1


def test_a_busy_server_is_not_called_for_four_seconds(tmp_path: Path) -> None:
    """After server-busy, the destination waits at least 4 s."""
    with Broker() as broker, Line(tmp_path, destination(broker, deadline=10.0)) as line:
        broker.faults.add("rejected:com.microsoft:server-busy*4")
        line.put(a_record(1))
        line.go()
        assert line.waits
        assert min(line.waits) >= 4


def test_rejection_for_hours_loses_nothing(tmp_path: Path) -> None:
    """During hours without a namespace, attempts continue; all records arrive in order when it is back."""
    with (
        reserved_port() as port,
        Broker(port=port) as broker,
        Line(tmp_path, destination(broker, deadline=10.0)) as line,
    ):
        broker.stop()
        wanted = []
        for hour in range(1, 7):
            wanted.append(a_record(hour, subject=f"event-{hour % 2}"))
            line.put(wanted[-1])
            line.turn()
            line.clock.go(3600)
        assert line.failures("connect") == 6
        assert line.waiting() == 6
        broker.start()
        line.go()
        assert in_order(arrived(broker), wanted)
        assert "event=destination.recovered" in line.logged()


def test_delays_grow_and_a_restart_tries_at_once(tmp_path: Path) -> None:
    """1, 2, 4, 8, 15, 15 s between attempts; a new process does not wait for the old one's next attempt."""
    with (
        reserved_port() as port,
        Broker(port=port) as broker,
        Line(tmp_path, destination(broker, deadline=10.0)) as line,
    ):
        broker.stop()
        line.put(a_record(1))
        for _ in range(6):
            line.turn()
        assert line.waits == [1, 2, 4, 8, 15, 15]
        line.begin()
        broker.start()
        assert line.turn() == 0
        assert arrived(broker) == [a_record(1).id]


def test_only_the_record_that_is_too_large_is_parked(tmp_path: Path) -> None:
    """A record over the hub's limit is parked and counted; the others arrive in order."""
    with Broker(max_message_size=20_000) as broker, Line(tmp_path, destination(broker)) as line:
        wanted = [a_record(number, subject="one") for number in range(1, 8)]
        huge = a_record(99, subject="one", message="x" * 50_000)
        line.put(*wanted[:3], huge, *wanted[3:])
        line.go()
        assert arrived(broker) == [record.id for record in wanted]
        assert (line.parked(), line.failures("too-large")) == (1, 1 + CERTAIN)
        assert "event=record.parked" in line.logged()
        assert line.sent() == 7


class Refused:
    """The destination, at a broker that detaches the link while any of these records is in a request."""

    def __init__(self, broker: Broker, ids: set[str]) -> None:
        self._broker, self._ids = broker, ids
        self._target = destination(broker, deadline=10.0)
        self.name, self.batch_size = self._target.name, self._target.batch_size

    @property
    def subjects(self) -> int | None:
        return self._target.subjects

    def send(self, records: Sequence[Record]) -> None:
        self._broker.faults.set()
        if any(record.id in self._ids for record in records):
            self._broker.faults.add("detach:amqp:link:message-size-exceeded*always")
        self._target.send(records)

    def idle(self) -> float | None:
        return self._target.idle()

    def close(self) -> None:
        self._target.close()


def test_a_record_for_which_the_link_is_closed_is_parked(tmp_path: Path) -> None:
    """The hub rejects one record by detaching the link, as AMQP specifies for a message over the limit: the others
    arrive, that one is parked, and no send failure is counted as a lost connection."""
    wanted = [a_record(number, subject=f"event-{number % 3}") for number in range(1, 9)]
    with Broker() as broker, Line(tmp_path, Refused(broker, {wanted[2].id})) as line:
        line.put(*wanted)
        for number in range(20, 20 + 4 * CERTAIN):
            line.turn()
            line.put(a_record(number, subject=f"event-{number}"))
            line.turn()
        line.go(until=lambda: line.waiting() == 0)
        assert line.parked() == 1
        assert wanted[2].id not in arrived(broker)
        assert {record.id for record in wanted} - {wanted[2].id} <= set(arrived(broker))
        assert set(line.reasons()) == {"other"}


def test_a_hub_that_closes_every_link_parks_nothing(tmp_path: Path) -> None:
    """While every link is detached under its first send, nothing is accepted, so nothing is parked; then all arrive."""
    wanted = [a_record(number, subject=f"event-{number % 3}") for number in range(1, 9)]
    with Broker() as broker, Line(tmp_path, destination(broker, deadline=10.0)) as line:
        line.put(a_record(100))
        line.go()
        broker.faults.add("detach:amqp:link:detach-forced*always")
        line.put(*wanted)
        for _ in range(2 * CERTAIN):
            line.turn()
        assert (line.parked(), line.waiting()) == (0, len(wanted))
        broker.faults.set()
        line.go()
        assert (line.parked(), line.waiting()) == (0, 0)
        assert {record.id for record in wanted} <= set(arrived(broker))


def test_a_deleted_and_recreated_hub_gets_every_record(tmp_path: Path) -> None:
    """While the hub does not exist, everything is kept and retried slowly; once it is back, all of it arrives."""
    with Broker() as broker, Line(tmp_path, destination(broker, deadline=10.0)) as line:
        line.put(a_record(1))
        line.go()
        broker.delete_hub("scheduled-events")
        line.put(a_record(2), a_record(3))
        line.turn()
        assert line.waiting() == 2
        assert line.failures("not-found") >= 1
        assert max(line.waits) == 60
        broker.create_hub("scheduled-events")
        line.go()
        assert arrived(broker) == [a_record(2).id, a_record(3).id]
        assert line.parked() == 0


def test_an_expired_token_is_replaced(tmp_path: Path) -> None:
    """A token that expires between two records loses nothing: the destination sends a new one."""
    with Broker() as broker, Line(tmp_path, destination(broker, deadline=10.0)) as line:
        line.put(a_record(1))
        line.go()
        broker.expire_token()
        line.put(a_record(2))
        line.go()
        assert arrived(broker) == [a_record(1).id, a_record(2).id]


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    """After `idle_close` no connection is left; the next record opens one and arrives."""
    with Broker() as broker:
        clock = Clock()
        target = destination(broker, idle_close=60.0, monotonic=clock.monotonic)
        with Line(tmp_path, target, clock) as line:
            line.put(a_record(1))
            line.go()
            line.turn()
            broker.wait_connections(1, 30)
            line.clock.go(61)
            line.turn()
            broker.wait_connections(0, 30)
            line.put(a_record(2))
            line.go()
            assert arrived(broker) == [a_record(1).id, a_record(2).id]


def test_connections_lost_between_records_lose_nothing(tmp_path: Path) -> None:
    """With all connections lost after each record, no record is lost or out of order."""
    with Broker() as broker, Line(tmp_path, destination(broker, deadline=10.0)) as line:
        wanted = [a_record(number, subject="one") for number in range(1, 6)]
        for record in wanted:
            line.put(record)
            line.go()
            broker.drop_connections()
        assert in_order(arrived(broker), wanted)
