"""The Event Hubs destination: Azure's SDK with the local broker."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from exporter.errors import Permanent
from exporter.simulator.event_hubs.broker import Broker
from exporter.sinks.event_hubs import messages as eventhubs_messages
from tests.support.eventhubs_broker import FORGETFUL, collected, running_broker
from tests.support.eventhubs_target import (
    EVENT,
    SUBJECT,
    FailingCredential,
    a_record,
    destination,
    hub_destination,
    refused,
    text,
)

pytestmark = FORGETFUL
_collect = pytest.fixture(autouse=True)(collected)
broker = pytest.fixture(running_broker)


def test_one_record_is_one_message(broker: Broker) -> None:
    """Body, content type, id, key, and properties match the contract."""
    record = a_record()
    target = destination(broker)
    target.send([record])
    target.close()
    (stored,) = broker.messages()
    assert stored.body == record.to_json()
    assert json.loads(stored.body)["id"] == record.id
    assert stored.message_id == record.id
    assert stored.content_type == "application/cloudevents+json"
    assert stored.partition_key == SUBJECT
    assert {text(k): v for k, v in stored.application_properties.items()} == {
        "kind": "scheduled",
        "event_type": "Reboot",
        "event_status": "Scheduled",
        "event_source": "Platform",
        "vm": "web-1",
    }


def test_many_records_of_one_subject_keep_their_order(broker: Broker) -> None:
    """A hundred records of one event arrive in one partition, one message each."""
    target = destination(broker)
    target.send([a_record(n) for n in range(100)])
    target.send([a_record(n) for n in range(100, 150)])
    target.close()
    assert [text(m.message_id)[-3:] for m in broker.messages()] == [f"{n:03}" for n in range(150)]
    assert len({m.partition for m in broker.messages()}) == 1


def test_records_of_several_subjects_keep_their_keys(broker: Broker) -> None:
    """One send can have records of different subjects, each with its key."""
    target = destination(broker)
    target.send([a_record(n, subject=f"subject-{n % 2}") for n in range(4)])
    target.close()
    assert {(text(m.message_id)[-1], m.partition_key) for m in broker.messages()} == {
        (str(n), f"subject-{n % 2}") for n in range(4)
    }


def test_records_above_the_batch_limit_are_sent_in_several_batches() -> None:
    """All arrive, in order."""
    with Broker(max_message_size=20_000) as broker:
        target = destination(broker)
        target.send([a_record(n, message="x" * 6_000) for n in range(8)])
        target.close()
        assert [text(m.message_id)[-1] for m in broker.messages()] == [str(n) for n in range(8)]


def test_oversized_record_is_permanent_and_nothing_is_sent() -> None:
    """As a single record it can be parked."""
    with Broker(max_message_size=20_000) as broker:
        target = destination(broker)
        large = a_record(2, message="x" * 30_000)
        assert refused(target, a_record(1), large, a_record(3)).reason == "too-large"
        assert broker.messages() == []
        error = refused(target, large)
        assert type(error) is Permanent
        assert "20000" in str(error)
        target.send([a_record(1)])
        assert broker.total_connections == 1, "the record's own failure costs no connection"
        target.close()


def test_record_with_nan_is_sent_as_valid_json(broker: Broker) -> None:

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    target = destination(broker)
    target.send([a_record(1, event={**EVENT, "DurationInSeconds": float("nan")})])
    target.close()
    [message] = broker.messages()
    assert json.loads(message.body, parse_constant=refuse)["data"]["event"]["EventId"] == EVENT["EventId"]


@pytest.mark.parametrize(
    ("event", "known"),
    [
        (None, set()),
        ([], set()),
        ({"EventType": 5, "EventStatus": None, "EventSource": ""}, set()),
        ({"EventType": "x" * 1000, "EventStatus": "?"}, {"event_type", "event_status"}),
    ],
)
def test_properties_are_bounded_texts(event: Any, known: set[str]) -> None:
    """They are UTF-8, and omitted if unknown."""
    record = a_record(event=event)
    properties = eventhubs_messages.message(record, "azure-sample").properties
    assert set(properties) == {"kind", "vm"} | known
    assert all(isinstance(value, str) and len(value.encode()) <= 256 for value in properties.values())


@pytest.mark.parametrize(
    ("subject", "key"),
    [("", None), ("vm", "vm"), ("k" * 128, "k" * 128)],
)
def test_partition_key_is_the_subject(subject: str, key: str | None) -> None:
    """For every subject within the service's limit."""
    assert eventhubs_messages.partition_key(subject) == key


def test_long_partition_key_is_hashed(broker: Broker) -> None:
    """Equal subjects have equal keys, different ones different keys."""
    one, other = ("x" * 129, "x" * 130)
    assert eventhubs_messages.partition_key(one) != eventhubs_messages.partition_key(other)
    target = destination(broker)
    target.send([a_record(1, subject=one), a_record(2, subject=one)])
    target.close()
    assert {m.partition_key for m in broker.messages()} == {eventhubs_messages.partition_key(one)}


def test_sample_format_has_the_fields_of_microsofts_sample(broker: Broker) -> None:
    """As JSON."""
    target = destination(broker, message_format="azure-sample")
    target.send([a_record(1), a_record(2, event=None)])
    target.close()
    with_event, without = broker.messages()
    assert with_event.content_type == "application/json"
    last = {"Hostname": "web-1", "Time": "05:06:07", "Msg": "A sentence", "LogType": "DEBUG"}
    assert json.loads(with_event.body) == {
        **EVENT,
        "Resources": "web-1,web-2",
        "NotBefore": "Wed,_04_Mar_2026_05:21:07_GMT",
        **last,
    }
    assert json.loads(without.body) == last


def test_record_is_sent_over_websocket(broker: Broker) -> None:
    """Also to the port of an emulator."""
    target = destination(
        broker, transport="websocket", deadline=60
    )  # the first one imports aiohttp: under emulation, 5 s
    target.send([a_record()])
    target.close()
    assert len(broker.messages()) == 1


@pytest.mark.parametrize("transport", ["amqp", "websocket"])
def test_custom_endpoint_overrides_the_connection_string(broker: Broker, transport: Any) -> None:
    string = broker.connection_string().replace(f"127.0.0.1:{broker.port}", "127.0.0.1:1")
    target = hub_destination(string, transport=transport, custom_endpoint=f"sb://127.0.0.1:{broker.port}", deadline=5)
    target.send([a_record()])
    target.close()
    assert len(broker.messages()) == 1


def test_connection_is_made_on_demand_and_closed_when_idle(broker: Broker) -> None:
    """The next record connects again."""
    now = [0.0]
    target = destination(broker, idle_close=60, monotonic=lambda: now[0])
    target.idle()
    assert broker.total_connections == 0
    target.send([a_record(1)])
    now[0] = 59
    target.idle()
    assert broker.connections == 1
    now[0] = 60
    target.idle()
    broker.wait_connections(0, 30)
    target.send([a_record(2)])
    assert (broker.total_connections, len(broker.messages())) == (2, 2)
    target.close()
    broker.wait_connections(0, 30)


def test_close_of_an_unused_destination_starts_no_thread(broker: Broker) -> None:
    before = threading.enumerate()
    target = destination(broker)
    target.idle()
    assert threading.enumerate() == before
    target.close()
    target.close()


def test_credential_is_made_once_and_outlives_connections() -> None:
    """It is made on demand, shared by all clients, and closed at the end."""
    made: list[FailingCredential] = []

    def make() -> FailingCredential:
        made.append(FailingCredential())
        return made[-1]

    with Broker() as broker:
        target = hub_destination(
            fully_qualified_namespace="namespace.servicebus.windows.net",
            event_hub="scheduled-events",
            credential=make,
            custom_endpoint=f"sb://127.0.0.1:{broker.port}",
            deadline=5,
        )
        assert made == []
        refused(target)
        refused(target)
        target.close()
    assert len(made) == 1
    assert made[0].closed


def test_missing_identity_package_is_reported() -> None:
    """The error names the extra `identity`; a connection string doesn't import it."""
    program = (
        "import sys; sys.modules['azure.identity.aio'] = None\n"
        "from exporter.config.schema import EventHubsSettings\n"
        "from exporter.sinks.event_hubs.sink import EventHubsDestination\n"
        "EventHubsDestination(EventHubsSettings())\n"
        "assert 'azure.identity' not in sys.modules\n"
        "try: EventHubsDestination(EventHubsSettings(fully_qualified_namespace='x', event_hub='h'))\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert "azure-scheduled-events-exporter[identity]" in done.stdout
