"""The local Event Hubs broker, used by Azure's own SDK: messages and transports."""

from __future__ import annotations

import asyncio
import datetime
import errno
import http.client
import itertools
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from azure.eventhub import EventData, TransportType

from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.event_hubs.frames import MAX_FRAME_SIZE
from tests.support.certificates import self_signed
from tests.support.eventhubs_broker import running_broker
from tests.support.eventhubs_client import HUB, PATIENCE, Peer, event, producer, receive, send
from tests.support.ports import reserved_port

broker = pytest.fixture(running_broker)

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=UTC)


# --- Azure's SDK as producer and consumer ---------------------------------------------------------------------------


def test_events_arrive_as_they_were_sent(broker: Broker) -> None:
    """Body, id, content type, properties, key, and order are the same in the broker and in each consumer group."""

    async def work() -> list[list[tuple[str, EventData]]]:
        async with producer(broker.connection_string()) as client:
            properties = await client.get_eventhub_properties()
            assert (properties["eventhub_name"], properties["partition_ids"]) == (HUB, ["0", "1", "2", "3"])
            for key in ("vm-a", "vm-b"):
                events = [event(f"{key} {i} é", f"id-{key}-{i}", {"kind": "scheduled", "vm": key}) for i in range(5)]
                await send(client, events, partition_key=key)
        text = broker.connection_string()
        return await asyncio.gather(*(receive(text, lambda got: len(got) == 10, group=name) for name in ("a", "b")))

    received, again = asyncio.run(work())
    assert {got.message_id for _, got in received} == {got.message_id for _, got in again}
    stored = broker.wait_for(10, PATIENCE)
    for key in ("vm-a", "vm-b"):
        messages = [message for message in stored if message.partition_key == key]
        assert [message.body.decode() for message in messages] == [f"{key} {i} é" for i in range(5)]
        assert [message.message_id for message in messages] == [f"id-{key}-{i}" for i in range(5)]
        assert {message.content_type for message in messages} == {"application/cloudevents+json"}
        assert all(message.application_properties == {"kind": "scheduled", "vm": key} for message in messages)
        assert len({message.partition for message in messages}) == 1
        events = [(partition, got) for partition, got in received if got.partition_key == key.encode()]
        assert [got.body_as_str() for _, got in events] == [message.body.decode() for message in messages]
        for (partition, got), message in zip(events, messages, strict=True):
            assert (partition, got.sequence_number, got.offset) == (
                message.partition,
                message.sequence_number,
                message.offset,
            )
            assert (got.message_id, got.content_type) == (message.message_id, message.content_type)
            assert got.properties == {b"kind": b"scheduled", b"vm": key.encode()}
            assert got.enqueued_time is not None
            assert abs(got.enqueued_time - message.enqueued_time) < timedelta(milliseconds=1)


def test_a_partition_key_always_selects_the_same_partition() -> None:
    """Keys spread over partitions, and another broker assigns each key to the same partition."""

    async def work(broker: Broker) -> None:
        async with producer(broker.connection_string()) as client:
            for number in (*range(12), *reversed(range(11))):
                await send(client, [event(str(number))], partition_key=f"key-{number}")
            await send(client, [event("to 3")], partition_id="3")
            for _ in range(4):
                await send(client, [event("anywhere")])

    async def both(first: Broker, second: Broker) -> None:
        await asyncio.gather(work(first), work(second))

    places = []
    with Broker() as first, Broker() as second:
        asyncio.run(both(first, second))
        for broker in (first, second):
            stored = broker.messages(HUB)
            places.append({(message.partition_key, message.partition) for message in stored if message.partition_key})
            assert [message.partition for message in stored if message.body == b"to 3"] == ["3"]
            assert len({message.partition for message in stored if message.body == b"anywhere"}) == 4
    assert places[0] == places[1]
    assert len(places[0]) == 12
    assert {partition for _, partition in places[0]} == {"0", "1", "2", "3"}
    assert {("key-0", "0"), ("key-1", "2")} <= places[0]  # the same in every process


def test_a_consumer_begins_at_its_position() -> None:
    """Every kind of position, inclusive or not, and "@latest" deliver exactly the messages after it."""
    seconds = itertools.count()
    with Broker(hubs={"hub": 1}, clock=lambda: NOON + timedelta(seconds=next(seconds))) as broker:

        async def read(position: object, inclusive: bool, meanwhile: Callable[[], Awaitable[None]] | None) -> list[str]:
            got = await receive(
                broker.connection_string(),
                lambda got: got[-1][1].body_as_str() == "last",
                position=position,
                starting_position_inclusive=inclusive,
                meanwhile=meanwhile,
            )
            return [read.body_as_str() for _, read in got if read.body_as_str() != "last"]

        async def work() -> list[list[str]]:
            async with producer(broker.connection_string()) as client:
                for number in range(5):
                    await send(client, [event(str(number))])
                stored = broker.messages()[2]
                assert stored.enqueued_time == NOON + timedelta(seconds=3)  # the hub was created at 0
                await send(client, [event("last")])
                positions = ("-1", stored.offset, stored.sequence_number, stored.enqueued_time)
                choices = [(position, inclusive) for position in positions for inclusive in (False, True)]
                behind = [read(position, inclusive, None) for position, inclusive in choices]
                beyond = [
                    read(position, False, lambda: send(client, [event("last")])) for position in ("@latest", 9999)
                ]
                return await asyncio.gather(*behind, *beyond)

        everything, after, including = list("01234"), list("34"), list("234")
        assert asyncio.run(work()) == [everything, everything, *([after, including] * 3), [], []]
        assert broker.unexpected_errors == []


def test_large_messages_are_sent_in_several_frames(broker: Broker) -> None:
    """A message beyond the frame size is complete in both directions; one beyond the limit is never sent."""
    body = bytes(range(256)) * (10 * MAX_FRAME_SIZE // 256)

    async def work() -> bytes:
        async with producer(broker.connection_string()) as client:
            await send(client, [EventData(body)])
            with pytest.raises(ValueError, match="size"):
                await client.send_batch([EventData(bytes(1_100_000))])
        ((_, received),) = await receive(broker.connection_string(), lambda got: len(got) == 1)
        return received.body_as_str(encoding="latin-1").encode("latin-1")

    assert asyncio.run(work()) == body
    assert broker.messages()[0].body == body


def test_many_clients_are_served_at_once(broker: Broker) -> None:
    """A dozen SDK clients send while a hundred idle connections are open; all are counted and none remains."""
    peers = [Peer(broker.port) for _ in range(100)]
    for peer in peers:
        peer.begin()

    async def send_three(name: str) -> None:
        async with producer(broker.connection_string()) as client:
            for number in range(3):
                await send(client, [event(f"{name} {number}")], partition_key=name)

    async def work() -> None:
        await asyncio.gather(*(send_three(f"vm-{number}") for number in range(12)))

    asyncio.run(work())
    assert len(broker.wait_for(36, PATIENCE)) == 36
    broker.wait_connections(100, PATIENCE)
    assert broker.total_connections == 112
    for peer in peers:
        peer.__exit__()
    broker.wait_connections(0, PATIENCE)


# --- websocket and TLS ----------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Return a server's context with a new certificate for 127.0.0.1, and the file by which a client trusts it."""
    file = folder / "broker.pem"
    file.write_text("".join(self_signed("local broker")))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context, str(file)


@pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")  # the SDK's call of aiohttp
def test_websocket_and_tls_carry_the_same_messages(tmp_path: Path) -> None:
    """Over websocket, TLS, and both, the SDK sends and receives the same as without."""
    context, trusted = certificate(tmp_path)

    async def work(broker: Broker, transport: TransportType, tls: bool) -> list[tuple[str, EventData]]:
        options = {"transport_type": transport, "custom_endpoint_address": f"sb://127.0.0.1:{broker.port}"}
        if tls:
            options["connection_verify"] = trusted
        async with producer(broker.connection_string(), **options) as client:
            for _ in range(3):
                await send(client, [event("x" * 2000) for _ in range(100)], partition_key=f"{transport}")
        name = f"{transport}".encode()
        return await receive(
            broker.connection_string(),
            lambda got: sum(read.partition_key == name for _, read in got) == 300,
            client_options=options,
        )

    async def work_on_all(plain: Broker, secure: Broker) -> list[list[tuple[str, EventData]]]:
        amqp, websocket = TransportType.Amqp, TransportType.AmqpOverWebsocket
        coroutines = [work(plain, websocket, False), work(secure, amqp, True), work(secure, websocket, True)]
        return await asyncio.gather(*coroutines)

    with Broker(hubs={"hub": 2}) as plain, Broker(hubs={"hub": 2}, ssl_context=context) as secure:
        for received in asyncio.run(work_on_all(plain, secure)):
            assert {got.body_as_str() for _, got in received} == {"x" * 2000}
        assert (len(plain.messages()), len(secure.messages())) == (300, 600)
        for broker in (plain, secure):
            broker.wait_connections(0, PATIENCE)
            assert broker.unexpected_errors == []


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/metrics", {}, 404),
        ("/$servicebus/websocket", {"Upgrade": "websocket"}, 400),
        ("/$servicebus/websocket", {"Upgrade": "websocket", "Sec-WebSocket-Protocol": "AMQPWSB10"}, 400),
    ],
)
def test_other_http_requests_get_a_readable_error(
    broker: Broker, path: str, headers: dict[str, str], status: int
) -> None:
    """A browser, or a client without the subprotocol, gets a text with the expected request."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=PATIENCE)
    connection.request("GET", path, headers=headers)
    with connection.getresponse() as response:
        assert response.status == status
        assert b"websocket" in response.read().lower()
    connection.close()


def test_stop_and_start_keep_port_and_messages() -> None:
    """A restarted broker has the same port and messages; a used port raises OSError."""

    async def work(broker: Broker) -> None:
        async with producer(broker.connection_string()) as client:
            await send(client, [event("x")])

    with reserved_port() as port:
        broker = Broker(port=port)
        with broker:
            asyncio.run(work(broker))
            with pytest.raises(OSError, match=str(port)) as refused:
                Broker(port=port).start()
            assert refused.value.errno == errno.EADDRINUSE
        broker.stop()
        with pytest.raises(RuntimeError, match="not running"):
            broker.expire_token()
        with broker:
            assert broker.port == port
            asyncio.run(work(broker))
            assert len(broker.wait_for(2, PATIENCE)) == 2
            with pytest.raises(TimeoutError, match="2 of 3"):
                broker.wait_for(3, 0)
