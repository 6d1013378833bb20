"""The whole of it, compressed, for minutes: `python -m benchmarks.soak --minutes N`.

One agent in a process of its own lives through maintenance after maintenance, twenty times faster than platforms are,
while the metadata service fails in changing ways, both destinations come and go, and a Prometheus scrapes (where one is
installed). At the end everything is mended, the agent delivers what waits and is told to stop. Then:

- every record that the agent logged is at the event hub and at the collector (an id may be there twice: at least once
  is the promise; how many were is told);
- no event was sent an approval again after one that was answered 200;
- memory, threads, descriptors and disk did not grow, as `growth` judges it by one sample for each cycle.

`--leak-kib N` has the agent lose so much in each cycle: such a run has to fail. What the environment says to malloc
(`MALLOC_ARENA_MAX=2`, as the unit and the image have it) holds for the agent too.
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

from benchmarks import weighed
from benchmarks.agent import Agent
from benchmarks.growth import KIB, Sample, judge
from benchmarks.peers import DROP, Peers
from benchmarks.usage import load_average
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService, Post

SPEED: Final = 20.0
CYCLE_SECONDS: Final = 12.0
ID_BYTES: Final = 256
ID_BLOCKS: Final = 5
"""What an id that is remembered takes: its key, what was sent, and their text."""
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
    """What came to light, from several threads."""

    told: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    weighed: list[dict[str, int]] = field(default_factory=list)
    """In this cycle."""
    samples: list[Sample] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def line(self, found: dict[str, Any]) -> None:
        """A line of the agent's log: those with an id are records."""
        if "id" in found and ("subject" in found or found["event"] == "approval.failed"):
            self.told.add(found["id"])
            self.kinds[found["event"]] += 1
        elif found.get("event") == weighed.WEIGHED:
            self.weighed.append(found)
        elif found.get("event") in ("agent.unexpected_error", "outbox.dropped", "record.parked"):
            self.errors.append(str(found)[:300])


def disturb(service: MetadataService, peers: Peers, seen: Seen, chance: random.Random) -> None:
    """One cycle: a third of it something of each kind goes wrong, then all is well again."""
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
        seen.faults[f"collector {status or 'hangs up'}"] += 1
    if "frozen" in ways:
        peers.freeze()
        seen.faults["both silent"] += 1
    time.sleep(CYCLE_SECONDS / 3)
    mend(service, peers)


def mend(service: MetadataService, peers: Peers) -> None:
    peers.resume()
    service.fault()
    peers.ask("broker", word="start")
    peers.ask("clear")
    peers.ask("collector", status=200)


def sample(agent: Agent, seen: Seen) -> None:
    """Notes how the agent stands at the end of a cycle. What is in use varies with what it is just doing: the least."""
    found, seen.weighed = seen.weighed, []
    if not found:
        return  # the machine stood still for the whole of it
    ids = remembered(agent.folder)
    used = min(each["used"] for each in found) - ids * ID_BYTES
    blocks = min(each["blocks"] for each in found) - ids * ID_BLOCKS
    with contextlib.suppress(OSError):  # a file or a thread that ends just now
        disk = sum(path.stat().st_size for path in agent.folder.iterdir())
        seen.samples.append(Sample(agent.usage(), disk, used, blocks, kept=found[-1]["kept"]))


def remembered(folder: Path) -> int:
    """How many ids the agent remembers for thirty days, in a bounded store: those it sent for, and those that started.

    The soak's day has more maintenance than a year elsewhere, so that they would pass for a leak.
    """
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'outbox.db'}?mode=ro", uri=True)) as db:
        row = db.execute("SELECT value FROM meta WHERE key = 'state'").fetchone()
    state = json.loads(row[0])["state"] if row else {}
    return len(state.get("sent", ())) + len(state.get("started_ids", ()))


@contextlib.contextmanager
def scraped(address: str, folder: Path) -> Iterator[str]:
    """A real Prometheus where there is one, else nothing; what to call it."""
    if shutil.which("prometheus") is None:
        yield "no Prometheus is installed here: not scraped"
        return
    from tests.support.peers import prometheus, scrape  # noqa: PLC0415  # needs the tests' extras

    with prometheus(folder, [scrape("agent", address.removeprefix("http://"))], interval="1s") as server:
        yield "scraped by a Prometheus each second"
        found = server.query('sum_over_time(up{job="agent"}[1h])'), server.query('count_over_time(up{job="agent"}[1h])')
        good, all_ = (float(each[0]["value"][1]) if each else 0.0 for each in found)
        print(f"Prometheus: {good:.0f} of {all_:.0f} scrapes succeeded")


def delivered(agent: Agent) -> bool:
    """Waits until nothing is on its way any more."""
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
        environ |= {**peers.environ, weighed.LEAK: str(round(leak * weighed.EVERY / CYCLE_SECONDS))}
        program = ("-m", "benchmarks.weighed")
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
        print("WRONG: records still waited at the end")
    print(f"approvals: {len(service.posts)} POSTs, {again} of them after a 200 for the same event")
    return _judge(seen, hub, otlp, code, seed) and empty and not again


def sent_again(posts: Iterable[Post]) -> int:
    """How many POSTs came for events that had their 200 already."""
    accepted: set[str] = set()
    again = 0
    for post in posts:
        again += sum(event_id in accepted for event_id in post.event_ids)
        accepted.update(post.event_ids if post.status == 200 else ())
    return again


def _judge(seen: Seen, hub: Counter[str], otlp: Counter[str], code: int, seed: int) -> bool:
    print(f"seed {seed}; {len(seen.told)} records: {dict(seen.kinds.most_common())}")
    print(f"disturbed {sum(seen.faults.values())} times, in {len(seen.faults)} ways: {dict(seen.faults.most_common())}")
    fine = code == 0
    print(f"exit code {code}")
    for name, copies in (("Event Hubs", hub), ("OTLP", otlp)):
        lost, unknown = seen.told - copies.keys(), copies.keys() - seen.told
        twice = sum(copies.values()) - len(copies)
        print(f"{name}: {len(copies)} ids, lost {len(lost)}, unknown {len(unknown)}, further copies {twice}")
        fine = fine and not lost and not unknown
    for error in seen.errors[:10]:
        print(f"WRONG: {error}")
    return judge(seen.samples) and fine and not seen.errors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Run everything for minutes.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))  # noqa: S311  # see `soak`
    parser.add_argument("--leak-kib", type=float, default=0.0, help="lose so much in each cycle, to see it found")
    args = parser.parse_args()
    print(f"load before: {load_average()}", flush=True)
    fine = soak(args.minutes, args.seed, round(args.leak_kib * KIB))
    print(f"load after: {load_average()}; {'nothing lost, nothing grew' if fine else 'NOT as it must be'}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
