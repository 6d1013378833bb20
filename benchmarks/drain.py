"""The speed at which a backlog drains: `python -m benchmarks.drain [RECORDS]`; with latency: `… far [RECORDS]`.

The benchmark fills the outbox with events of five records each and starts `run` with one destination, which is in a
separate process. The baseline is a loop with the destination's SDK that sends the same records from memory in the same
batches: one for each event to Event Hubs, a hundred records a request over OTLP.

`far` adds 150 ms of round-trip time, and compares the delivery with one that has a single batch in flight and, for
OTLP, one record in each request.
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
from benchmarks.latency_proxy import LatencyProxy
from benchmarks.peers import Peers
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
BASELINE_SHARE: Final = 10
CAPACITY: Final = 1 << 30
COMMIT: Final = 500
MIB: Final = 1 << 20
FAR_RECORDS: Final = 1_000
ONE_WAY: Final = 0.075
"""Seconds."""
KINDS: Final = ("scheduled", "approval.decided", "approval.accepted", "started", "completed")


def backlog(count: int) -> Iterator[Record]:
    """Yield records like those of the agent, of about 1 KiB each."""
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
    """Write the backlog to an outbox. Return the seconds that it took."""
    began = time.monotonic()
    outbox = Outbox(path, CAPACITY, (destination,))
    records = backlog(count)
    while some := list(itertools.islice(records, COMMIT)):
        outbox.commit(State(birth=datetime.now(UTC)), some)
    outbox.close()
    return time.monotonic() - began


def drain(destination: str, count: int, peers: Peers) -> float:
    """Return the records a second of `run`, and print its use of memory."""
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


async def baseline_event_hubs(count: int, peers: Peers, per_batch: int) -> float:
    """Return the records a second of the SDK's asyncio client, from memory, with one batch in flight."""
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


def baseline_otlp(count: int, peers: Peers) -> float:
    """Return the records a second of the SDK's exporter, from memory, with the agent's number of records a request."""
    records = list(backlog(count))
    exporter = OTLPLogExporter(endpoint=f"{peers.endpoint}/v1/logs")
    resource, scope = Resource({"service.name": "baseline"}), InstrumentationScope("baseline")
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
    """A destination that accepts one batch of one event at a time, of at most `batch_size` records."""

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
    """Return the seconds until a backlog of `count` records is acknowledged and removed from the queue."""
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
    """Return the seconds for `count` records with one batch at a time and with the agent's delivery, by destination.

    For OTLP, the first value is extrapolated from a tenth of the records, because each one is a round trip.
    """
    print(f"{count} records with {2e3 * one_way:.0f} ms of round-trip time")
    with Peers() as peers:
        found = {
            "otlp": _far_otlp(peers, count, one_way),
            "event_hubs": _far_event_hubs(peers, count, one_way),
        }
    for name, (before, after) in found.items():
        print(f"  {name}: one batch at a time {before:.1f} s, agent {after:.1f} s: {before / after:.1f}x", flush=True)
    return found


def _far_otlp(peers: Peers, count: int, one_way: float) -> tuple[float, float]:
    with LatencyProxy(int(peers.endpoint.rpartition(":")[2]), one_way) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/v1/logs"
        few = max(1, count // BASELINE_SHARE)
        before = drained(OneAtATime(OtlpDestination(OtlpSettings(logs_url=url)), 1), few) * count / few
        return before, drained(OtlpDestination(OtlpSettings(logs_url=url)), count)


def _far_event_hubs(peers: Peers, count: int, one_way: float) -> tuple[float, float]:
    port = int(peers.connection_string.partition(";")[0].rpartition(":")[2])
    with LatencyProxy(port, one_way) as proxy:
        to_proxy = peers.connection_string.replace(f":{port};", f":{proxy.port};")
        single = EventHubsDestination(EventHubsSettings(connection_string=Secret(to_proxy)))
        before = drained(OneAtATime(single, single.batch_size), count)
        proxy.most_connections = 0
        after = drained(EventHubsDestination(EventHubsSettings(connection_string=Secret(to_proxy))), count)
        print(f"  event_hubs: at most {proxy.most_connections} connections while the backlog drained")
        return before, after


def main() -> int:
    if sys.argv[1:2] == ["far"]:
        print(f"load before: {load_average()}")
        far(int(sys.argv[2]) if len(sys.argv) > 2 else FAR_RECORDS)
        print(f"load after: {load_average()}")
        return 0
    count = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    baseline = max(count // BASELINE_SHARE, 1)
    print(f"load before: {load_average()}")
    with Peers() as peers:
        print("Event Hubs, one batch an event")
        fine = _compare(
            "event_hubs", count, peers, lambda: asyncio.run(baseline_event_hubs(baseline, peers, PER_EVENT))
        )
        single = asyncio.run(baseline_event_hubs(baseline, peers, 1))
        print(f"  baseline with one record a batch: {single:.0f} records/s", flush=True)
    with Peers() as peers:
        print(f"OTLP, {BATCH_RECORDS} records a request")
        fine = _compare("otlp", count, peers, lambda: baseline_otlp(baseline, peers)) and fine
    print(f"load after: {load_average()}")
    return int(not fine)


def _compare(name: str, count: int, peers: Peers, baseline: Callable[[], float]) -> bool:
    """Compare `run` with a baseline that is measured before and after, because the machine's load changes."""
    cpu = time.process_time()
    before = baseline()
    print(f"  CPU of the baseline {(time.process_time() - cpu) / (count // BASELINE_SHARE) * 1e3:.2f} ms a record")
    agent = drain(name, count, peers)
    after = baseline()
    ratio = (before + after) / 2 / agent
    print(f"  {name}: agent {agent:.0f} records/s, baseline {before:.0f} and {after:.0f} records/s: {ratio:.2f}x")
    return ratio < 2.0


if __name__ == "__main__":
    sys.exit(main())
