"""How fast a backlog drains: `python -m benchmarks.drain [RECORDS]`, and over a long way `… far [RECORDS]`.

The outbox is filled first, by the outbox itself, with events of five records each. Then `run` is started on it with one
destination, which is in a process of its own, and compared with the destination's SDK in a bare loop. That sends the
same records out of memory, in the same portions: for Event Hubs one batch for each event, for OTLP a hundred records a
request.

`far` puts 150 ms of round trip before the destinations, and compares a delivery with one that has a single batch under
way and, for OTLP, a record a request, as versions before this one had.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from azure.eventhub.aio import EventHubProducerClient
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from benchmarks.agent import VM, Agent, document, event, metadata_service
from benchmarks.fleet import NoMetrics
from benchmarks.peers import Peers
from benchmarks.relay import Relay
from benchmarks.usage import load_average
from exporter.agent.delivery import Delivery, Destination
from exporter.config.schema import EventHubsSettings, OtlpSettings
from exporter.core.records import Record
from exporter.core.state import State
from exporter.log.log import Log
from exporter.outbox.store import Outbox
from exporter.secrets import Secret
from exporter.sinks.event_hubs.messages import message
from exporter.sinks.event_hubs.sink import EventHubsDestination
from exporter.sinks.otlp import sink as otlp_attributes
from exporter.sinks.otlp.sink import BATCH_RECORDS, OtlpDestination

RECORDS: Final = 100_000
PER_EVENT: Final = 5
BARE_SHARE: Final = 10
CAPACITY: Final = 1 << 30
COMMIT: Final = 500
MIB: Final = 1 << 20
FAR_RECORDS: Final = 1_000
ONE_WAY: Final = 0.075
"""Seconds."""
KINDS: Final = ("scheduled", "approval.decided", "approval.accepted", "started", "completed")


def backlog(count: int) -> Iterator[Record]:
    """Records as the agent writes them, of about 1 KiB each."""
    vm = {"name": VM, "id": "b1", "location": "westeurope", "size": "Standard_D4s_v5", "zone": "1", "resource_id": "/s"}
    for number in range(count):
        about = event(number // PER_EVENT)
        kind = KINDS[number % PER_EVENT]
        data = {
            "event": about,
            "event_id": str(about["EventId"]).lower(),
            "vm": vm,
            "transition": None,
            "document_incarnation": number,
            "affects_self": True,
            "severity": "INFO",
            "message": f"A record of the benchmark's backlog, {kind}",
            "not_before": "2100-01-01T00:00:00Z",
        }
        found = f"00000000-0000-5000-8000-{number:012d}"
        yield Record(found, kind, f"urn:uuid:{VM}", str(about["EventId"]), datetime.now(UTC), "INFO", data)


def fill(path: Path, destination: str, count: int) -> float:
    """Writes the backlog as the agent would. Answers the seconds it took."""
    began = time.monotonic()
    outbox = Outbox(path, CAPACITY, (destination,))
    records = backlog(count)
    while some := list(itertools.islice(records, COMMIT)):
        outbox.commit(State(birth=datetime.now(UTC)), some)
    outbox.close()
    return time.monotonic() - began


def drain(destination: str, count: int, peers: Peers) -> float:
    """Records a second of `run`; prints its memory along the way."""
    mark = "EVENT_HUBS" if destination == "event_hubs" else "OTLP"
    environ = {key: value for key, value in peers.environ.items() if mark in key}
    with tempfile.TemporaryDirectory(prefix="azse-bench-") as folder, metadata_service() as service:
        service.set_document(document(1))
        agent = Agent(Path(folder), service.url, f"--outbox.max-bytes={CAPACITY}", environ=environ)
        took = fill(agent.outbox, destination, count)
        print(f"  filled with {count} records in {took:.1f} s, {agent.outbox.stat().st_size / MIB:.0f} MiB", flush=True)
        with agent:
            agent.started()
            return _watch(agent, destination, count)


def _watch(agent: Agent, destination: str, count: int) -> float:
    label = f'{{destination="{destination}"}}'
    first, began = _sent(agent, label), time.monotonic()
    marks = iter((0.25, 0.5, 0.75, 1.0))
    mark = next(marks)
    before = agent.usage()
    memory = [before.rss / MIB]
    while True:
        sent, now = _sent(agent, label), time.monotonic()
        if sent >= mark * count:
            memory.append(agent.usage().rss / MIB)
            mark = next(marks, 2.0)
        if sent >= count:
            break
        time.sleep(1.0)
    shown = " ".join(f"{size:.1f}" for size in memory)
    usage = agent.usage()
    each = (usage.cpu - before.cpu) / (sent - first) * 1e3
    print(f"  RSS in MiB at 0, 25, 50, 75, 100 %: {shown}; CPU of the whole agent {each:.2f} ms a record")
    return (sent - first) / (now - began)


def _sent(agent: Agent, label: str) -> float:
    try:
        return agent.metric("destination_records_sent_total", label)
    except (urllib.error.URLError, TimeoutError):
        return 0.0


async def bare_event_hubs(count: int, peers: Peers, per_batch: int) -> float:
    """Records a second of the SDK's asyncio client, out of memory, one batch in flight."""
    records = list(backlog(count))
    logging.getLogger("azure").setLevel(logging.ERROR)
    async with EventHubProducerClient.from_connection_string(peers.connection_string) as client:
        began = time.monotonic()
        for start in range(0, count, per_batch):
            some = records[start : start + per_batch]
            batch = await client.create_batch(partition_key=some[0].subject)
            for record in some:
                batch.add(message(record, "cloudevents"))
            await client.send_batch(batch)
        return count / (time.monotonic() - began)


def bare_otlp(count: int, peers: Peers) -> float:
    """Records a second of the SDK's exporter, out of memory, as many a request as the agent's."""
    records = list(backlog(count))
    exporter = OTLPLogExporter(endpoint=f"{peers.endpoint}/v1/logs")
    resource, scope = Resource({"service.name": "bare"}), InstrumentationScope("bare")
    began = time.monotonic()
    for start in range(0, count, BATCH_RECORDS):
        entries = [
            LogRecord(
                timestamp=otlp_attributes.unix_nanoseconds(record.time),
                severity_number=SeverityNumber.INFO,
                body=otlp_attributes.body(record),
                event_name=record.type,
                attributes=otlp_attributes.log_attributes(record),
            )
            for record in records[start : start + BATCH_RECORDS]
        ]
        exporter.export([ReadableLogRecord(entry, resource, scope) for entry in entries])
    return count / (time.monotonic() - began)


class OneAtATime:
    """A destination that takes one batch of one event at a time, of at most so many records."""

    subjects: Final = 1

    def __init__(self, destination: Destination, batch_size: int) -> None:
        self._destination = destination
        self.name, self.batch_size = destination.name, batch_size

    def send(self, records: Sequence[Record]) -> None:
        self._destination.send(records)

    def idle(self) -> float | None:
        return self._destination.idle()

    def close(self) -> None:
        self._destination.close()


def drained(destination: Destination, count: int) -> float:
    """Seconds from the first look at a backlog of so many records until all of it is acknowledged and settled."""
    with tempfile.TemporaryDirectory(prefix="azse-bench-") as folder:
        path = Path(folder) / "outbox.db"
        fill(path, destination.name, count)
        outbox = Outbox(path, CAPACITY, (destination.name,))
        outbox.release()
        delivery = Delivery(destination, outbox, NoMetrics(), Log(None))
        began = time.monotonic()
        while outbox.queues()[destination.name].records:
            time.sleep(delivery.tick())
        took = time.monotonic() - began
        delivery.tick()
        delivery.close()
        outbox.close()
    return took


def far(count: int, one_way: float = ONE_WAY) -> dict[str, tuple[float, float]]:
    """Seconds for so many records with one batch at a time, and as they are delivered; by destination.

    The former is measured with a tenth of the records of OTLP, of which each is a round trip.
    """
    print(f"{count} records over {2e3 * one_way:.0f} ms of round trip")
    with Peers() as peers:
        found = {
            "otlp": _far_otlp(peers, count, one_way),
            "event_hubs": _far_event_hubs(peers, count, one_way),
        }
    for name, (before, after) in found.items():
        print(f"  {name}: one batch at a time {before:.1f} s, now {after:.1f} s: {before / after:.1f}x", flush=True)
    return found


def _far_otlp(peers: Peers, count: int, one_way: float) -> tuple[float, float]:
    with Relay(int(peers.endpoint.rpartition(":")[2]), one_way) as relay:
        url = f"http://127.0.0.1:{relay.port}/v1/logs"
        few = max(1, count // BARE_SHARE)
        before = drained(OneAtATime(OtlpDestination(OtlpSettings(logs_url=url)), 1), few) * count / few
        return before, drained(OtlpDestination(OtlpSettings(logs_url=url)), count)


def _far_event_hubs(peers: Peers, count: int, one_way: float) -> tuple[float, float]:
    port = int(peers.connection_string.partition(";")[0].rpartition(":")[2])
    with Relay(port, one_way) as relay:
        to_relay = peers.connection_string.replace(f":{port};", f":{relay.port};")
        single = EventHubsDestination(EventHubsSettings(connection_string=Secret(to_relay)))
        before = drained(OneAtATime(single, single.batch_size), count)
        relay.most_connections = 0
        after = drained(EventHubsDestination(EventHubsSettings(connection_string=Secret(to_relay))), count)
        print(f"  event_hubs: at most {relay.most_connections} connections while the backlog drained")
        return before, after


def main() -> int:
    if sys.argv[1:2] == ["far"]:
        print(f"load before: {load_average()}")
        far(int(sys.argv[2]) if len(sys.argv) > 2 else FAR_RECORDS)  # after the word
        print(f"load after: {load_average()}")
        return 0
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    bare = max(count // BARE_SHARE, 1)
    print(f"load before: {load_average()}")
    with Peers() as peers:
        print("Event Hubs, one batch an event")
        fine = _compare("event_hubs", count, peers, lambda: asyncio.run(bare_event_hubs(bare, peers, PER_EVENT)))
        single = asyncio.run(bare_event_hubs(bare, peers, 1))
        print(f"  for comparison, the bare loop with one record a batch: {single:.0f} records/s", flush=True)
    with Peers() as peers:
        print(f"OTLP, {BATCH_RECORDS} records a request")
        fine = _compare("otlp", count, peers, lambda: bare_otlp(bare, peers)) and fine
    print(f"load after: {load_average()}")
    return int(not fine)


def _compare(name: str, count: int, peers: Peers, bare: Callable[[], float]) -> bool:
    """The bare loop runs before and after, since the machine's other load changes."""
    cpu = time.process_time()
    before = bare()
    print(f"  CPU of the bare loop {(time.process_time() - cpu) / (count // BARE_SHARE) * 1e3:.2f} ms a record")
    agent = drain(name, count, peers)
    after = bare()
    ratio = (before + after) / 2 / agent
    print(f"  {name}: agent {agent:.0f} records/s, bare loop {before:.0f} and {after:.0f} records/s: {ratio:.2f}x")
    return ratio < 2.0


if __name__ == "__main__":
    sys.exit(main())
