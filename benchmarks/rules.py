"""How long a real Prometheus takes to evaluate alerts/rules.yml: `python -m benchmarks.rules [VMS …]`.

    python -m benchmarks.rules [--minutes 10] [--interval 30] [--evaluate 60] [3000 10000]

Every VM has the series that the rules read, as a real agent shows them in its state: every seventh has an event, one
in seventy is blind, down or has just begun. One server has them all, hundreds of VMs a page; Prometheus scrapes the
pages with `honor_labels`, each `interval` seconds, and evaluates the rules as it does in life. The times of polls move
on, all else stands still. `/api/v1/rules` is read once for each evaluation. Exit code 1 where a group takes more than
a third of its interval. A busy machine takes longer; its load is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.usage import load_average
from tests.support.dashboards_backfill import scraped
from tests.support.dashboards_stories import fleet
from tests.support.dashboards_world import RULES
from tests.support.peers import Daemon, prometheus, scrape

PAGE: Final = 500
"""VMs of one page."""
SHARE: Final = 1 / 3
"""Of its interval, what a group may take."""
SHOWN: Final = 8
_NAMES: Final = re.compile(r"(?<![:\w])(?:azure_scheduled_events_\w+|up)(?![:\w])")
_CLOCKS: Final = re.compile(r"azure_scheduled_events_last_(?:successful_)?poll_timestamp_seconds\{")
_OLD: Final = 300.0
"""Seconds: a poll that was longer ago than this at the start is a blind VM's, and stays where it is."""


@dataclass(slots=True)
class Page:
    """Some VMs: what stands still, and the series of times that move on with what they were at the start."""

    still: list[str] = field(default_factory=list)
    clocks: list[tuple[str, float]] = field(default_factory=list)

    def put(self, line: str, began: float) -> None:
        """Add a sample, `series value time`."""
        series, value, _ = line.rsplit(" ", 2)
        if _CLOCKS.match(series) and began - float(value) < _OLD:
            self.clocks.append((series, float(value)))
        else:
            self.still.append(f"{series} {value}\n")

    def text(self, elapsed: float) -> bytes:
        """The exposition, so many seconds after the start."""
        moved = (f"{series} {value + elapsed}\n" for series, value in self.clocks)
        return "".join((*self.still, *moved)).encode()


def pages(size: int, began: float, folder: Path) -> list[Page]:
    """All VMs of the fleet, with what the rules name."""
    read = {*_NAMES.findall(RULES.read_text(encoding="utf-8"))}
    scrapes = fleet(began, folder, size)
    found = []
    while group := list(islice(scrapes, PAGE)):
        page = Page()
        for line in scraped(group):
            if line.partition("{")[0] in read:
                page.put(line, began)
        found.append(page)
    return found


@contextmanager
def serving(found: Sequence[Page], began: float) -> Iterator[str]:
    """A server of the pages at `/0`, `/1`, …; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = found[int(self.path[1:])].text(time.time() - began)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@dataclass(slots=True)
class Times:
    """The evaluations of one group, in seconds: its interval, the whole of each, and those of each rule."""

    interval: float
    seen: str = ""
    whole: list[float] = field(default_factory=list)
    rules: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def slow(self) -> bool:
        """Whether it takes more than its share of the interval, at the median."""
        return statistics.median(self.whole) > SHARE * self.interval


def watch(daemon: Daemon, minutes: float) -> dict[str, Times]:
    """Every evaluation of these minutes, by group."""
    times: dict[str, Times] = {}
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for group in daemon.get("/api/v1/rules")["data"]["groups"]:
            kept = times.setdefault(group["name"], Times(float(group["interval"])))
            if group["lastEvaluation"].startswith("0001") or group["lastEvaluation"] == kept.seen:
                continue
            kept.seen = group["lastEvaluation"]
            kept.whole.append(group["evaluationTime"])
            for rule in group["rules"]:
                kept.rules[rule["name"]].append(rule["evaluationTime"])
                if rule["health"] == "err":
                    raise RuntimeError(f"{rule['name']}: {rule.get('lastError')}")
        time.sleep(1)
    return {name: kept for name, kept in times.items() if kept.whole}


def report(size: int, folder: Path, *, minutes: float, interval: int, evaluate: int) -> dict[str, Times]:
    """Serve a fleet, let a Prometheus live on it, print and return what the rules took."""
    began = time.time()
    found = pages(size, began, folder / "outboxes")
    with serving(found, began) as address:
        jobs: list[dict[str, Any]] = [
            scrape(
                f"page-{number}",
                address,
                metrics_path=f"/{number}",
                honor_labels=True,
                scrape_interval=f"{interval}s",
                scrape_timeout=f"{interval}s",
            )
            for number in range(len(found))
        ]
        with prometheus(folder / "prometheus", jobs, rules=[RULES], interval=f"{evaluate}s") as daemon:
            times = watch(daemon, minutes)
            series = daemon.query("sum(scrape_samples_scraped{job=~'page-.+'})")[0]["value"][1]
            firing = daemon.query("count(ALERTS{alertstate='firing'})")
    count = firing[0]["value"][1] if firing else 0
    print(f"\n{size:,} VMs, {int(series):,} series, scraped each {interval} s, {count} alerts firing\n")
    print(
        "| group | every | evaluations | median | slowest | its slowest rule |\n| --- | --: | --: | --: | --: | --- |"
    )
    for name, kept in times.items():
        rule, took = max(
            ((rule, statistics.median(all_)) for rule, all_ in kept.rules.items()), key=lambda pair: pair[1]
        )
        print(
            f"| `{name}` | {kept.interval:g} s | {len(kept.whole)} | {statistics.median(kept.whole):.2f} s | "
            f"{max(kept.whole):.2f} s | `{rule}`, {took:.2f} s |"
        )
    rules = [(statistics.median(all_), rule) for kept in times.values() for rule, all_ in kept.rules.items()]
    print("\n| rule | median |\n| --- | --: |")
    for took, rule in sorted(rules, reverse=True)[:SHOWN]:
        print(f"| `{rule}` | {took:.2f} s |")
    return times


def main() -> int:
    """Print the tables; 1 where a group is too slow."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("vms", nargs="*", type=int, default=[3000, 10_000], help="how many")
    parser.add_argument("--minutes", type=float, default=10, help="how long each Prometheus runs")
    parser.add_argument("--interval", type=int, default=30, help="seconds between two scrapes")
    parser.add_argument("--evaluate", type=int, default=60, help="seconds between two evaluations")
    told = parser.parse_args()
    slow = []
    for size in told.vms:
        print(f"load before: {load_average()} on {os.cpu_count()} cores", flush=True)
        with tempfile.TemporaryDirectory() as name:
            times = report(size, Path(name), minutes=told.minutes, interval=told.interval, evaluate=told.evaluate)
        slow += [f"{group} at {size:,} VMs" for group, kept in times.items() if kept.slow]
        print(f"load after: {load_average()}", flush=True)
    for group in slow:
        print(f"over a third of its interval: {group}")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
