"""Soak test: maintenance and failures for some minutes: `python -m benchmarks.soak --minutes N`.

One agent in a separate process handles maintenance events, twenty times as fast as in practice, while the metadata
service and both destinations fail in changing ways and a Prometheus scrapes the agent, if one is installed. At the end,
all failures are cleared, the agent delivers the waiting records, and stops. Then the test checks that:

- every record that the agent logged is at the event hub and at the collector (duplicates are allowed and counted);
- no approval was sent for an event after one that was accepted with 200;
- memory, threads, descriptors, and disk didn't grow, as judged by `growth` from one sample for each cycle.

`--leak-kib N` leaks N KiB in each cycle; such a run must fail. The agent inherits malloc's environment variables
(`MALLOC_ARENA_MAX=2` in the unit and the image).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import memory_profile
from benchmarks.agent import Agent
from benchmarks.growth import KIB, Sample, judge
from benchmarks.peers import DROP, Peers
from benchmarks.usage import load_average
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService, ReceivedPost

SPEED: Final = 20.0
CYCLE_SECONDS: Final = 12.0
ID_BYTES: Final = 256
ID_BLOCKS: Final = 5
"""Objects for each remembered id: its key, the approval, and their text."""
PATIENCE: Final = 180.0
SOURCE_FAULTS: Final = (
    "slow:0.2",
    "500",
    "429",
    "503",
    "404",
    "html",
    "empty",
    "truncated",
    "huge",
    "endless",
    "deep",
    "nan",
    "surrogate",
    "duplicate-keys",
    "bom",
    "drip:0.01",
    "reset",
    "half-close",
    "hang:2",
    "gap",
    "gzip:1",
    "post-400",
    "post-500",
    "post-hang:2",
    "post-reset",
)
HUB_FAULTS: Final = (
    "drop-before-store*2",
    "drop-after-store*2",
    "released*2",
    "modified*2",
    "rejected:com.microsoft:server-busy*2",
    "rejected:amqp:unauthorized-access*2",
    "detach*2",
    "attach-refused*1",
    "cbs-refused*1",
)
STATUSES: Final = (DROP, 302, 401, 408, 429, 500, 502, 503, 504)
NOT_RECORDS: Final = ("agent.listening",)


@dataclass(slots=True)
class Seen:
    """Results, collected from several threads."""

    logged: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    profile: list[dict[str, int]] = field(default_factory=list)
    """The lines of the current cycle."""
    samples: list[Sample] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def line(self, found: dict[str, Any]) -> None:
        """Handle a line of the agent's log. Lines with an id are records."""
        if "id" in found and ("subject" in found or found["event"] == "approval.failed"):
            self.logged.add(found["id"])
            self.kinds[found["event"]] += 1
        elif found.get("event") == memory_profile.PROFILED:
            self.profile.append(found)
        elif found.get("event") in ("agent.unexpected_error", "outbox.dropped", "record.parked"):
            self.errors.append(str(found)[:300])


def disturb(service: MetadataService, peers: Peers, seen: Seen, chance: random.Random) -> None:
    """Inject failures for a third of a cycle, then clear them."""
    source, hub, status = chance.choice(SOURCE_FAULTS), chance.choice(HUB_FAULTS), chance.choice(STATUSES)
    ways = chance.sample(("source", "hub", "hub-gone", "collector", "frozen"), k=3)
    if "source" in ways:
        service.fault(source)
        seen.faults[source] += 1
    if "hub" in ways:
        peers.ask("fault", text=hub)
        seen.faults[hub] += 1
    if "hub-gone" in ways:
        peers.ask("broker", word="stop")
        seen.faults["hub gone"] += 1
    if "collector" in ways:
        peers.ask("collector", status=status)
        seen.faults[f"collector {status or 'disconnects'}"] += 1
    if "frozen" in ways:
        peers.freeze()
        seen.faults["both paused"] += 1
    time.sleep(CYCLE_SECONDS / 3)
    clear_failures(service, peers)


def clear_failures(service: MetadataService, peers: Peers) -> None:
    peers.resume()
    service.fault()
    peers.ask("broker", word="start")
    peers.ask("clear")
    peers.ask("collector", status=200)


def sample(agent: Agent, seen: Seen) -> None:
    """Add a sample at the end of a cycle. Memory in use varies with the current work, so the minimum is used."""
    found, seen.profile = seen.profile, []
    if not found:
        return  # the machine was paused for the whole cycle
    ids = remembered(agent.folder)
    used = min(each["used"] for each in found) - ids * ID_BYTES
    blocks = min(each["blocks"] for each in found) - ids * ID_BLOCKS
    with contextlib.suppress(OSError):  # a file or thread disappeared meanwhile
        disk = sum(path.stat().st_size for path in agent.folder.iterdir())
        seen.samples.append(Sample(agent.usage(), disk, used, blocks, kept=found[-1]["kept"]))


def remembered(folder: Path) -> int:
    """Return the number of ids that the agent keeps for thirty days, in a bounded store: approved and started events.

    The soak test has more maintenance in a day than a VM in a year, so they would look like a leak.
    """
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'outbox.db'}?mode=ro", uri=True)) as db:
        row = db.execute("SELECT value FROM meta WHERE key = 'state'").fetchone()
    state = json.loads(row[0])["state"] if row else {}
    return len(state.get("sent", ())) + len(state.get("started_ids", ()))


@contextlib.contextmanager
def scraped(address: str, folder: Path) -> Iterator[str]:
    """Scrape the agent with a real Prometheus, if one is installed. Yield a description."""
    if shutil.which("prometheus") is None:
        yield "not scraped: Prometheus is not installed"
        return
    from tests.support.peers import prometheus, scrape  # noqa: PLC0415  # needs the tests' extras

    with prometheus(folder, [scrape("agent", address.removeprefix("http://"))], interval="1s") as server:
        yield "scraped by Prometheus every second"
        found = server.query('sum_over_time(up{job="agent"}[1h])'), server.query('count_over_time(up{job="agent"}[1h])')
        good, all_ = (float(each[0]["value"][1]) if each else 0.0 for each in found)
        print(f"Prometheus: {good:.0f} of {all_:.0f} scrapes succeeded")


def delivered(agent: Agent) -> bool:
    """Wait until no record is undelivered. Return whether that happened in time."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if not any(agent.metric("outbox_records", f'{{destination="{name}"}}') for name in ("event_hubs", "otlp")):
            return True
        time.sleep(1.0)
    return False


def soak(minutes: float, seed: int, leak: int) -> bool:
    seen, chance = Seen(), random.Random(seed)  # noqa: S311  # what fails next, not a secret
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="azse-soak-")))
        peers = stack.enter_context(Peers())
        service = stack.enter_context(MetadataService(load("demo"), speed=SPEED, repeat=True))
        flags = ("--approval.mode=enforce", "--source.poll-interval=100ms", "--event-hubs.idle-close=5s")
        folder = base / "agent"
        folder.mkdir()
        environ = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
        environ |= {**peers.environ, memory_profile.LEAK: str(round(leak * memory_profile.EVERY / CYCLE_SECONDS))}
        program = ("-m", "benchmarks.memory_profile")
        agent = Agent(folder, service.url, *flags, environ=environ, program=program, on_line=seen.line)
        stack.enter_context(agent).started()
        print(stack.enter_context(scraped(agent.url, base / "prometheus")), flush=True)
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            disturb(service, peers, seen, chance)
            time.sleep(CYCLE_SECONDS * 2 / 3)
            sample(agent, seen)
        service.set_document({"DocumentIncarnation": 999_999, "Events": []})
        empty = delivered(agent)
        code, _ = agent.stop()
        hub, otlp = peers.copies()
        again = sent_again(service.posts)
    if not empty:
        print("WRONG: undelivered records at the end")
    print(f"approvals: {len(service.posts)} POSTs, {again} of them after a 200 for the same event")
    return _judge(seen, hub, otlp, code, seed) and empty and not again


def sent_again(posts: Iterable[ReceivedPost]) -> int:
    """Return the number of POSTs for events that were already accepted with 200."""
    accepted: set[str] = set()
    again = 0
    for post in posts:
        again += sum(event_id in accepted for event_id in post.event_ids)
        accepted.update(post.event_ids if post.status == 200 else ())
    return again


def _judge(seen: Seen, hub: Counter[str], otlp: Counter[str], code: int, seed: int) -> bool:
    print(f"seed {seed}; {len(seen.logged)} records: {dict(seen.kinds.most_common())}")
    print(f"{sum(seen.faults.values())} failures of {len(seen.faults)} kinds: {dict(seen.faults.most_common())}")
    fine = code == 0
    print(f"exit code {code}")
    for name, copies in (("Event Hubs", hub), ("OTLP", otlp)):
        lost, unknown = seen.logged - copies.keys(), copies.keys() - seen.logged
        twice = sum(copies.values()) - len(copies)
        print(f"{name}: {len(copies)} ids, lost {len(lost)}, unknown {len(unknown)}, duplicates {twice}")
        fine = fine and not lost and not unknown
    for error in seen.errors[:10]:
        print(f"WRONG: {error}")
    return judge(seen.samples) and fine and not seen.errors


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description="Run the agent through maintenance and failures."
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))  # noqa: S311  # see `soak`
    parser.add_argument(
        "--leak-kib", type=float, default=0.0, help="leak this much in each cycle, to check that it is detected"
    )
    args = parser.parse_args()
    print(f"load before: {load_average()}", flush=True)
    fine = soak(args.minutes, args.seed, round(args.leak_kib * KIB))
    print(f"load after: {load_average()}; {'OK: nothing lost, no growth' if fine else 'FAILED'}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
