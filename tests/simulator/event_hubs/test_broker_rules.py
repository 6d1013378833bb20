"""The broker with peers that violate AMQP: each gets the error condition, and other clients aren't affected."""

from __future__ import annotations

import asyncio
import random

import pytest
from azure.eventhub import EventData

from exporter.simulator.event_hubs.amqp import Described, UInt, ULong, encode
from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.event_hubs.frames import (
    AMQP_HEADER,
    MAX_FRAME_SIZE,
    SASL_HEADER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
    frame,
)
from exporter.simulator.event_hubs.store import parse_message
from tests.support.eventhubs_broker import running_broker
from tests.support.eventhubs_client import HUB, PATIENCE, Peer, event, producer, receiver, send, sender

broker = pytest.fixture(running_broker)


def test_an_event_hub_needs_a_token(broker: Broker) -> None:
    """Without a put-token, a link to an event hub is refused as by Event Hubs; the connection stays open."""
    with Peer(broker.port) as peer:
        peer.begin()
        peer.send(sender(f"amqps://ns/{HUB}", 1))
        assert peer.expect(Attach).target is None
        assert condition(peer.expect(Detach).error) == "amqp:unauthorized-access"
        peer.put_token()
        peer.send(sender(f"amqps://ns/{HUB}", 1))
        assert peer.expect(Flow).handle == 0
        assert peer.expect(Flow).handle == 1
        broker.expire_token()
        assert condition(peer.expect(Detach).error) == "amqp:unauthorized-access"
        peer.send(sender(HUB, 2))
        assert condition(peer.expect(Detach).error) == "amqp:unauthorized-access"


def management(peer: Peer, number: int, **properties: object) -> int:
    """Return the status of READ on $management, with these application properties on an attached link."""
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": HUB, **properties}
    request = encode(Described(ULong(0x74), asked)) + encode(Described(ULong(0x77), "x"))
    peer.write(frame(0, Transfer(UInt(1), UInt(number), bytes([number]), UInt(number), True), request))
    peer.expect(Transfer)
    status = parse_message(peer.payload).application_properties["status-code"]
    assert isinstance(status, int)
    return status


def test_management_needs_a_token(broker: Broker) -> None:
    """Like an event hub, READ is refused on a connection without a put-token."""
    with Peer(broker.port) as peer:
        peer.begin()
        peer.send(sender("$management", 1), receiver("$management", 2))
        peer.send(Flow(UInt(0), UInt(5000), UInt(0), UInt(5000), UInt(2), UInt(0), UInt(100)))
        assert management(peer, 0) == 401
        peer.send(sender(f"amqps://ns/{HUB}", 3))
        assert condition(peer.expect(Detach).error) == "amqp:unauthorized-access"
        peer.put_token()
        peer.expect(Flow)
        assert management(peer, 1) == 200
        assert management(peer, 2, name="other") == 404


@pytest.mark.parametrize(
    ("attach", "expected"),
    [
        (sender("other", 1), "amqp:not-found"),
        (sender("a/b/c", 1), "amqp:not-found"),
        (sender(f"{HUB}/Partitions/4", 1), "com.microsoft:argument-out-of-range"),
        (receiver(HUB, 1), "amqp:not-allowed"),
        (sender(f"{HUB}/ConsumerGroups/g/Partitions/0", 1), "amqp:not-allowed"),
        (receiver(f"{HUB}/ConsumerGroups/g/Partitions/0", 1, "1 = 1"), "com.microsoft:argument-error"),
        (
            receiver(f"{HUB}/ConsumerGroups/g/Partitions/0", 1, "amqp.annotation.x-opt-offset > 'x'"),
            "com.microsoft:argument-error",
        ),
    ],
)
def test_links_to_unknown_addresses_are_detached_with_a_reason(broker: Broker, attach: Attach, expected: str) -> None:
    """A wrong name, partition, direction, or position gets the matching condition."""
    with Peer(broker.port) as peer:
        peer.begin()
        peer.put_token()
        peer.send(attach)
        assert condition(peer.expect(Detach).error) == expected


def test_a_message_over_the_limit_detaches_the_link() -> None:
    """Bytes beyond max-message-size aren't collected: the link is detached with message-size-exceeded."""
    with Broker(max_message_size=100_000) as broker, Peer(broker.port) as peer:
        peer.begin()
        peer.put_token()
        peer.send(sender(HUB, 1))
        for has_more in (True, True, False):
            transfer = Transfer(UInt(1), UInt(1), b"1", UInt(0), more=has_more)
            peer.write(frame(0, transfer, bytes(MAX_FRAME_SIZE - 200)))
        assert condition(peer.expect(Detach).error) == "amqp:link:message-size-exceeded"
        peer.send(Close())
        peer.expect(Close)
        assert broker.messages() == []
        assert broker.unexpected_errors == []


def test_an_invalid_message_is_rejected(broker: Broker) -> None:
    """Undecodable bytes get the outcome rejected and aren't stored."""
    with Peer(broker.port) as peer:
        peer.begin()
        peer.put_token()
        peer.send(sender(HUB, 1))
        peer.write(frame(0, Transfer(UInt(1), UInt(1), b"1", UInt(0)), b"\x00\x53\x75\x41"))
        state = peer.expect(Disposition).state
        assert isinstance(state, Described)
        assert (state.descriptor, condition(state.value[0])) == (0x25, "amqp:decode-error")
    assert broker.messages() == []


def test_a_detach_after_end_is_tolerated(broker: Broker) -> None:
    """Azure's SDK ends its session before it detaches its links; the connection stays open."""
    with Peer(broker.port) as peer:
        peer.begin()
        peer.put_token()
        peer.send(End(), Detach(UInt(0), True))
        peer.expect(End)
        peer.send(Begin(None, UInt(0), UInt(1), UInt(1)))
        peer.expect(Begin)


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (frame(0, Open("again")), "amqp:not-allowed"),
        (frame(0, Begin(None, UInt(0), UInt(1), UInt(1))), "amqp:not-allowed"),
        (frame(9, sender("$cbs", 1)), "amqp:not-allowed"),
        (frame(0, sender("$cbs", 0)) * 2, "amqp:session:handle-in-use"),
        (frame(0, sender("$cbs", 256)), "amqp:connection:framing-error"),
        (frame(0, Transfer(UInt(5), UInt(0))), "amqp:session:unattached-handle"),
        (frame(0, sender("$cbs", 0)) + frame(0, Transfer(UInt(0))), "amqp:invalid-field"),
        (frame(0, receiver("$cbs", 0)) + frame(0, Transfer(UInt(0), UInt(0))), "amqp:not-allowed"),
        (b"\xff" * 8, "amqp:decode-error"),
    ],
)
def test_a_violation_closes_the_connection_with_its_condition(broker: Broker, broken: bytes, expected: str) -> None:
    """The connection of a peer that violates AMQP is closed with the condition of the violated rule."""
    with Peer(broker.port) as peer:
        peer.begin()
        peer.write(broken)
        assert condition(peer.expect(Close).error) == expected


@pytest.mark.parametrize(
    "greeting", [b"AMQP\x00\x00\x09\x01", b"HTTP/1.1", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1", b"\x00" * 8]
)
def test_other_protocols_get_the_header_of_amqp(broker: Broker, greeting: bytes) -> None:
    """A wrong protocol header gets the right one and the end of the connection."""
    with Peer(broker.port) as peer:
        peer.write(greeting)
        assert peer.read_all() == SASL_HEADER


def test_random_frames_affect_no_other_client(broker: Broker) -> None:
    """Hundreds of connections that send damaged frames each end separately, and the SDK's next event is stored."""
    chance = random.Random(20260301)  # noqa: S311  # damage must be the same in every run
    good = [
        frame(0, Open("peer")),
        frame(0, Begin(None, UInt(0), UInt(5000), UInt(5000))),
        frame(0, sender("$cbs", 0)),
        frame(0, receiver("$cbs", 1)),
        frame(0, Transfer(UInt(0), UInt(0), b"0", UInt(0)), encode(Described(ULong(0x77), "x"))),
        frame(0, sender(HUB, 2)),
        frame(0, receiver(f"{HUB}/ConsumerGroups/g/Partitions/0", 3)),
        frame(0, Flow(UInt(0), UInt(9), UInt(0), UInt(9), UInt(3), UInt(0), UInt(2**32 - 1), echo=True)),
        frame(0, Transfer(UInt(2), UInt(1), b"1", UInt(0x80013700)), encode(Described(ULong(0x75), b"\x00\x53\x75"))),
        frame(0, Detach(UInt(2))),
        frame(0, End()),
    ]
    for number in range(300):
        with Peer(broker.port) as peer:
            peer.write(AMQP_HEADER)
            conversation = bytearray(b"".join(good if number % 3 else chance.sample(good, len(good))))
            for _ in range(chance.randrange(1, 5)):
                place = chance.randrange(len(conversation))
                conversation[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
            peer.write(bytes(conversation) if number % 5 else chance.randbytes(200))
    broker.wait_connections(0, PATIENCE, total=300)
    assert broker.unexpected_errors == []

    async def scenario() -> None:
        async with producer(broker.connection_string()) as client:
            await send(client, [event("still here")])

    asyncio.run(scenario())
    assert [message.body for message in broker.messages()] == [b"still here"]


def test_a_slow_reader_delays_no_other_client() -> None:
    """A consumer that gives credit for all messages without reading delays no sender and misses no message."""

    async def scenario(broker: Broker) -> None:
        async with producer(broker.connection_string()) as client:
            for _ in range(30):
                await send(client, [EventData(bytes(9000)) for _ in range(100)], partition_id="0")

    with Broker() as broker, Peer(broker.port) as peer:
        peer.begin()
        peer.put_token()
        peer.send(receiver(f"{HUB}/ConsumerGroups/g/Partitions/0", 1))
        peer.send(Flow(UInt(0), UInt(2**31), UInt(0), UInt(5000), UInt(1), UInt(0), UInt(100_000)))
        asyncio.run(scenario(broker))
        for sequence in range(3000):
            peer.expect(Transfer)
            assert parse_message(peer.payload).annotations["x-opt-sequence-number"] == sequence
        assert broker.unexpected_errors == []


def test_credit_excludes_messages_in_flight() -> None:
    """Credit counts from what the peer has received (part 2, 2.6.7): messages in flight use it up."""

    async def fill(broker: Broker) -> None:
        async with producer(broker.connection_string()) as client:
            await send(client, [event(f"{number}") for number in range(5)])

    def flow(received: int, credit: int) -> Flow:
        return Flow(UInt(0), UInt(100), UInt(0), UInt(100), UInt(1), UInt(received), UInt(credit), echo=True)

    with Broker(hubs={HUB: 1}) as broker, Peer(broker.port) as peer:
        asyncio.run(fill(broker))
        peer.begin()
        peer.put_token()
        peer.send(receiver(f"{HUB}/ConsumerGroups/g/Partitions/0", 1, "amqp.annotation.x-opt-offset > '-1'"))
        # From the peer: number received and credit. From the broker: number sent and remaining credit.
        for received, credit, sent, left in ((0, 2, 2, 0), (0, 2, 2, 0), (1, 2, 3, 0), (0, 3, 3, 0), (3, 9, 5, 7)):
            peer.send(flow(received, credit))
            while (answer := peer.expect(Flow)).handle != 1:
                """Return the flows of the link to $cbs."""
            assert (answer.delivery_count, answer.link_credit) == (sent, left), (received, credit)


def condition(error: Described | None) -> str:
    """Return the condition of an AMQP error."""
    assert error is not None
    return str(error.value[0])
