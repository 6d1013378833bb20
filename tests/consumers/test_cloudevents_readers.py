"""Messages of the Event Hubs destination, read by the strict CloudEvents libraries of PyPI and npm: every kind of
record."""

from __future__ import annotations

import asyncio
import gc
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pytest
from cloudevents.core.bindings.amqp import AMQPMessage, from_amqp_event
from msgspec.structs import replace

from deploy.consumers.python.event_summaries.consumer import body_of
from exporter.core.record_factory import RecordFactory
from exporter.core.records import Record, Vm
from exporter.core.state import State
from exporter.simulator.event_hubs.broker import Broker
from tests.core.test_schema import EXAMPLES
from tests.support.core_documents import NOON
from tests.support.eventhubs_broker import FORGETFUL
from tests.support.eventhubs_client import receive
from tests.support.eventhubs_target import hub_destination
from tests.support.fleet_records import HUB
from tests.support.node import FOLDER, run_node
from tests.support.ports import reserved_port

pytestmark = [*FORGETFUL, pytest.mark.linux("the records are the same anywhere")]
ATTRIBUTES: Final = ("specversion", "id", "source", "type", "subject", "datacontenttype", "dataschema", "partitionkey")
ODD_VMS: Final = (
    Vm(),
    Vm(name="web-ä→日本 (1)%"),
    Vm(name="vm-0", id="5c7f1d3e-1c1a-4a3e-9d57-0d1f4c1f2b11"),
    Vm(name="vm-0", resource_id="/subscriptions/0b1f/resourceGroups/shop (prod) é/providers/x/virtualMachines/vm-0"),
    Vm(name="\ud800"),
)


def every_record() -> list[Record]:
    """Return one of each kind, and of VMs with names that make an unusual `source`."""
    odd = [RecordFactory(vm, NOON, 2).anomaly(State(NOON, vm_key="k"), "slow-first-answer")[1] for vm in ODD_VMS]
    kinds = [make()[1] for make in EXAMPLES.values()]
    # Each has its own id, because the examples come from different states.
    return [replace(record, id=str(uuid.UUID(int=number, version=5))) for number, record in enumerate([*kinds, *odd])]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message as Azure's SDK returns it, and the record that was sent."""

    content_type: object
    body: bytes
    sent: dict[str, Any]


@pytest.fixture(scope="module")
def arrived() -> Iterator[list[Arrived]]:
    """Messages that the real destination sent through the broker and a consumer received."""
    records = every_record()
    with reserved_port() as port, Broker(port=port) as broker:
        destination = hub_destination(broker.connection_string(HUB))
        for record in records:
            destination.send([record])
        destination.close()
        got = asyncio.run(receive(broker.connection_string(HUB), lambda some: len(some) == len(records)))
    found = {str(data.message_id): data for _, data in got}
    yield [
        Arrived(data.content_type, body_of(data), json.loads(record.to_json()))
        for record in records
        for data in [found[record.id]]
    ]
    gc.collect()


def test_the_cloudevents_library_of_pypi_reads_every_record(arrived: list[Arrived]) -> None:
    """As a structured message of its AMQP binding: attributes of the right types, time aware, data unchanged."""
    for one in arrived:
        event = from_amqp_event(AMQPMessage({"content-type": one.content_type}, {}, one.body))
        attributes = event.get_attributes()
        assert {name: attributes[name] for name in ATTRIBUTES} == {name: one.sent[name] for name in ATTRIBUTES}
        assert attributes.keys() == one.sent.keys() - {"data"}
        assert event.get_time() == datetime.fromisoformat(one.sent["time"])
        assert event.get_data() == one.sent["data"]


@pytest.mark.peer("node")
def test_the_cloudevents_library_of_npm_reads_every_record(arrived: list[Arrived]) -> None:
    """In strict mode, which checks each attribute against the schema of the specification; times to the millisecond."""
    lines = [json.dumps({"contentType": one.content_type, "body": one.body.decode()}) for one in arrived]
    read = [json.loads(line) for line in run_node(FOLDER / "cloudevents.mjs", given="\n".join(lines)).splitlines()]
    for one, event in zip(arrived, read, strict=True):
        assert event.pop("time") == one.sent["time"][:23] + "Z"
        assert event == {name: value for name, value in one.sent.items() if name != "time"}
