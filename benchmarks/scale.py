"""A thousand VMs of one scale set, with the real decision code and the local broker: `python -m benchmarks.scale`.

It measures which VM approves and when; the cost of a VM's poll for different numbers of VMs, events, and waiting
records; and the consumer in deploy/consumers, which reads the records of all VMs, deduplicates them by `source` and
`id`, and joins them into one summary for each event.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from azure.eventhub.aio import EventHubConsumerClient

from benchmarks.drain import backlog, fill
from benchmarks.fleet import ANNOUNCED_AFTER, DESTINATION, FREEZE, REDEPLOY, Fleet, NoMetrics, fleet_scenario, name
from benchmarks.peers import Peers
from benchmarks.usage import load_average, usage
from deploy.consumers.python.event_summaries.consumer import BATCH, Consumer, Counts, Options
from deploy.consumers.python.event_summaries.join import event_summary
from deploy.consumers.python.event_summaries.record import read
from deploy.consumers.python.event_summaries.store import Store
from exporter.agent.delivery import Delivery
from exporter.config.schema import EventHubsSettings
from exporter.core.records import Record
from exporter.core.state import State
from exporter.log.log import Log
from exporter.outbox.store import Outbox
from exporter.secrets import Secret
from exporter.simulator.metadata.scenario import Scenario
from exporter.sinks.event_hubs.sink import EventHubsDestination

VMS: Final = 1_000
TAKEOVER: Final = 5.0
SHAPES: Final = ((1, 1), (10, 1), (100, 1), (1_000, 1), (100, 10), (100, 100), (10, 1_000))
"""Numbers of VMs and of events; each event names all VMs."""
BACKLOGS: Final = (0, 1_000, 10_000, 100_000)
SCENARIO_SECONDS: Final = 14
"""From the start of the agents to the end of the event."""
MIB: Final = 1 << 20


@contextmanager
def fleet(scenario: Scenario, **further: Any) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="azse-bench-") as folder:
        found = Fleet(Path(folder), scenario, **further)
        try:
            yield found
        finally:
            found.close()


def _report_posts(what: str, found: Fleet, *, expected: Iterable[str], not_before: float) -> bool:
    approvers = Counter(vm for _, vm, _ in found.platform.posts)
    first = min((at for at, _, _ in found.platform.posts), default=0.0) - ANNOUNCED_AFTER
    right = approvers == Counter(expected) and (not approvers or first >= not_before)
    shown = ", ".join(f"{vm} {count}x" for vm, count in approvers.items()) or "none"
    after = f"after {first:.2f} s" if approvers else ""
    print(f"  {what:<58} POSTs: {shown} {after}   {'OK' if right else 'WRONG'}", flush=True)
    return right


def leaders(vms: int) -> bool:
    """Report which VM approves and how long after the announcement. Polls are 1 s apart. Return whether all are
    right."""
    print(f"approver: {vms} VMs, one event that names all of them, takeover after {TAKEOVER:.0f} s if configured")
    fine = []
    cases: tuple[tuple[str, dict[str, Any], int, list[str], float], ...] = (
        ("all agents alive", {"takeover_after": TAKEOVER}, 12, [name(0)], 0.0),
        ("the leader's agent is dead, no takeover", {"dead": [0]}, 12, [], 0.0),
        ("the leader's agent is dead", {"dead": [0], "takeover_after": TAKEOVER}, 15, [name(1)], TAKEOVER),
        ("the leader reads but can't POST", {"mute": [0], "takeover_after": TAKEOVER}, 15, [name(1)], TAKEOVER),
        ("the first three are dead", {"dead": [0, 1, 2], "takeover_after": TAKEOVER}, 25, [name(3)], 3 * TAKEOVER),
    )
    for what, how, seconds, expected, not_before in cases:
        with fleet(fleet_scenario(vms, 1, shared=True), **how) as found:
            found.run(seconds)
            fine.append(_report_posts(what, found, expected=expected, not_before=not_before))
    with fleet(fleet_scenario(vms, 1, FREEZE, shared=True), dead=[0], takeover_after=TAKEOVER) as found:
        found.run(15)
        fine.append(_report_posts("a platform event, the leader's agent is dead", found, expected=[], not_before=0.0))
    few = min(vms, 100)
    with fleet(fleet_scenario(few, few, shared=False)) as found:
        found.run(8)
        every_vm = [name(number) for number in range(few)]
        own = all(event.endswith(f"{int(vm.removeprefix('web_')):012d}") for _, vm, event in found.platform.posts)
        right = own and Counter(vm for _, vm, _ in found.platform.posts) == Counter(every_vm)
        print(f"  {few} events at once, each of one VM: each VM approved only its own: {'OK' if right else 'WRONG'}")
        fine.append(right)
    return all(fine)


def costs() -> None:
    """Report the CPU time of one VM's poll."""
    print("cost of a VM's poll            unchanged ms   changed ms   records per VM")
    for vms, events in SHAPES:
        with fleet(fleet_scenario(vms, events, REDEPLOY, shared=True)) as found:
            found.run(2)
            found.cpu, found.ticks = 0.0, 0
            found.run(1)
            quiet = found.cpu / found.ticks
            found.cpu, found.ticks = 0.0, 0
            found.run(2)
            changed = max(0.0, found.cpu / found.ticks - quiet)
            records = len(found.records()) / vms
            print(
                f"  {vms:>5} VMs {events:>5} events{quiet * 1e3:>16.2f}{changed * 1e3:>13.2f}{records:>18.1f}",
                flush=True,
            )


def backlogs() -> None:
    """Report the cost of the outbox's operations with a backlog."""
    print("cost with a backlog            open ms   commit ms   next and settle ms   file MiB")
    for count in BACKLOGS:
        with tempfile.TemporaryDirectory(prefix="azse-bench-") as folder:
            path = Path(folder) / "outbox.db"
            fill(path, DESTINATION, count)
            began = time.perf_counter()
            outbox = Outbox(path, 1 << 30, (DESTINATION,))
            opened = time.perf_counter() - began
            commit, settle = _one_by_one(outbox, count)
            size = outbox.used() / MIB
            outbox.close()
        print(
            f"  {count:>7} records{opened * 1e3:>18.1f}{commit * 1e3:>12.2f}{settle * 1e3:>18.2f}{size:>13.1f}",
            flush=True,
        )


def _one_by_one(outbox: Outbox, count: int) -> tuple[float, float]:
    """Return the seconds to commit one record and to remove one."""
    rounds = 200
    fresh = list(backlog(count + rounds))[count:]
    began = time.perf_counter()
    for record in fresh:
        outbox.commit(State(birth=datetime.now(UTC)), [record])
    committed = time.perf_counter()
    for _ in range(rounds):
        outbox.delivered(DESTINATION, [queued.seq for queued in outbox.next(DESTINATION, 1)])
    return (committed - began) / rounds, (time.perf_counter() - committed) / rounds


def through_the_broker(vms: int) -> bool:
    """Send the records of all VMs about one event, and read them with the consumer in deploy/consumers."""
    with Peers() as peers, fleet(fleet_scenario(vms, 1, shared=True)) as found, tempfile.TemporaryDirectory() as folder:
        found.run(SCENARIO_SECONDS)
        records = found.records()
        peers.ask("fault", text="drop-after-store*5")
        destination = EventHubsDestination(EventHubsSettings(connection_string=Secret(peers.connection_string)))
        began = time.monotonic()
        for member in found.members:
            delivery = Delivery(destination, member.outbox, NoMetrics(), Log(None), jitter=lambda: 1.0)
            while (wait := delivery.tick()) < 1.0 or any(member.outbox.next(DESTINATION, 1)):
                time.sleep(wait)
        print(
            f"through the broker: {len(records)} records of {vms} VMs sent in {time.monotonic() - began:.1f} s",
            flush=True,
        )
        destination.close()
        output = Path(folder) / "summaries.jsonl"
        counts, cpu, seconds = _consumed(peers.connection_string, output)
        summaries = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    sent_a_second, read_a_second = len(records) / SCENARIO_SECONDS, counts.received / cpu
    print(f"  the Python consumer: {counts.received} messages in {seconds:.1f} s, {cpu:.1f} s of them CPU", end="")
    print(f" ({read_a_second:.0f}/s of a core); the fleet sent {sent_a_second:.0f}/s: ", end="")
    print(f"{read_a_second / sent_a_second:.1f} times as fast as needed", flush=True)
    of_the_join(records)
    return _judge(vms, records, counts, summaries) and read_a_second > sent_a_second


def _consumed(connection_string: str, output: Path) -> tuple[Counts, float, float]:
    """Return the consumer's counts for all records, and its CPU and elapsed seconds, connecting included."""
    with output.open("w", encoding="utf-8") as lines:
        store = Store(output.with_suffix(".db"))
        consumer = Consumer(store, lines, Options(once=True))

        async def consume() -> None:
            client = EventHubConsumerClient.from_connection_string(
                connection_string, consumer_group="$Default", checkpoint_store=store
            )
            await consumer.run(client, asyncio.Event())

        cpu, began = time.process_time(), time.monotonic()
        asyncio.run(consume())
        cpu, seconds = time.process_time() - cpu, time.monotonic() - began
        store.close()
    return consumer.counts, cpu, seconds


def of_the_join(records: list[Record]) -> None:
    """Report the speed of the consumer without the SDK, for these records and for records of a single VM."""
    with tempfile.TemporaryDirectory() as folder, fleet(fleet_scenario(1, 1, shared=True)) as single:
        single.run(SCENARIO_SECONDS)
        for what, bodies in (
            ("that name all", [record.to_json() for record in records]),
            ("of one VM", [record.to_json() for record in single.records()] * (len(records) // 5)),
        ):
            store, began = Store(Path(folder) / f"{what}.db"), time.process_time()
            facts = [read(body) for body in bodies]
            for first in range(0, len(facts), BATCH):
                store.add(facts[first : first + BATCH])
            for event_id in store.pending():
                event_summary(store.facts(event_id), facts[-1].time, None)
            cpu = time.process_time() - began
            store.close()
            size = sum(map(len, bodies)) / len(bodies) / 1024
            print(f"  read, store, join {len(bodies)} records {what} ({size:.1f} KiB each): {len(bodies) / cpu:.0f}/s")


def _judge(vms: int, records: list[Record], counts: Counts, summaries: list[dict[str, Any]]) -> bool:
    about_events = {(record.source, record.id) for record in records if record.data["event"] is not None}
    about_vms = len({(record.source, record.id) for record in records}) - len(about_events)
    last = summaries[-1]
    print(f"  received {counts.received}, duplicates {counts.copies}; ", end="")
    print(f"missing {len(about_events) - counts.new}; about VMs {counts.about_vms.total()} (sent {about_vms})")
    print(
        f"  one summary in {len(summaries)} lines: {last['records']} records of {len(last['reported_by'])} VMs, ",
        end="",
    )
    print(f"{last['outcome']}, approved by {last['approved_by_vm']}, conflicts {last['conflicts']}")
    whole = counts.new == last["records"] == len(about_events) and last["reported_by"] == last["resources"]
    return whole and len(last["resources"]) == vms and last["outcome"] == "completed" and not counts.skipped


def _open_enough() -> None:
    """Raise the limit of file descriptors to the maximum. Windows has no such limit."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  # not available on Windows

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    vms = int(sys.argv[1]) if len(sys.argv) > 1 else VMS
    _open_enough()
    print(f"load before: {load_average()}")
    fine = through_the_broker(vms)
    fine = leaders(vms) and fine
    costs()
    backlogs()
    peak = usage(os.getpid()).peak_rss / MIB
    print(f"load after: {load_average()}; peak RSS of everything {peak:.0f} MiB")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
