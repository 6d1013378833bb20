"""Time that a real Prometheus takes to evaluate alerts/rules.yml: `python -m benchmarks.rules [VMS …]`.

    python -m benchmarks.rules [--minutes 10] [--interval 30] [--evaluate 60] [3000 10000]

Every VM has the series that the rules read, as a real agent exposes them: every seventh VM has an event, and one in
seventy has no data, is down, or has just started. One server serves them on pages of 500 VMs. Prometheus scrapes the
pages with `honor_labels` every `interval` seconds and evaluates the rules. Only the times of polls change. The
benchmark reads `/api/v1/rules` after each evaluation. The exit code is 1 if a group takes more than a third of its
interval. A busy machine takes longer, so the load is printed.
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
from tests.support.dashboards_environment import RULES
from tests.support.dashboards_scenarios import fleet
from tests.support.peers import Daemon, prometheus, scrape

PAGE: Final = 500
"""VMs on one page."""
SHARE: Final = 1 / 3
"""The share of its interval that a group may take."""
SHOWN: Final = 8
_NAMES: Final = re.compile(r"(?<![:\w])(?:azure_scheduled_events_\w+|up)(?![:\w])")
_CLOCKS: Final = re.compile(r"azure_scheduled_events_last_(?:successful_)?poll_timestamp_seconds\{")
_OLD: Final = 300.0
"""Seconds. A VM whose last poll is older than this at the start gets no data, and its time doesn't change."""


@dataclass(slots=True)
class Page:
    """A group of VMs: constant samples, and the series of times with their values at the start."""

    constant: list[str] = field(default_factory=list)
    clocks: list[tuple[str, float]] = field(default_factory=list)

    def put(self, line: str, began: float) -> None:
        """Add a sample, `series value time`."""
        series, value, _ = line.rsplit(" ", 2)
        if _CLOCKS.match(series) and began - float(value) < _OLD:
            self.clocks.append((series, float(value)))
        else:
            self.constant.append(f"{series} {value}\n")

    def text(self, elapsed: float) -> bytes:
        """Return the exposition `elapsed` seconds after the start."""
        advanced = (f"{series} {value + elapsed}\n" for series, value in self.clocks)
        return "".join((*self.constant, *advanced)).encode()


def pages(size: int, began: float, folder: Path) -> list[Page]:
    """Return all VMs of the fleet with the series that the rules read."""
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
    """Serve the pages at `/0`, `/1`, …. Yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = found[int(self.path[1:])].text(time.time() - began)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@dataclass(slots=True)
class Times:
    """The interval of one group and the times of its evaluations, in seconds: of the group and of each rule."""

    interval: float
    last_seen: str = ""
    group: list[float] = field(default_factory=list)
    rules: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def slow(self) -> bool:
        """Whether the median exceeds the allowed share of the interval."""
        return statistics.median(self.group) > SHARE * self.interval


def watch(daemon: Daemon, minutes: float) -> dict[str, Times]:
    """Return all evaluations in `minutes`, by group."""
    times: dict[str, Times] = {}
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for group in daemon.get("/api/v1/rules")["data"]["groups"]:
            kept = times.setdefault(group["name"], Times(float(group["interval"])))
            if group["lastEvaluation"].startswith("0001") or group["lastEvaluation"] == kept.last_seen:
                continue
            kept.last_seen = group["lastEvaluation"]
            kept.group.append(group["evaluationTime"])
            for rule in group["rules"]:
                kept.rules[rule["name"]].append(rule["evaluationTime"])
                if rule["health"] == "err":
                    raise RuntimeError(f"{rule['name']}: {rule.get('lastError')}")
        time.sleep(1)
    return {name: kept for name, kept in times.items() if kept.group}


def report(size: int, folder: Path, *, minutes: float, interval: int, evaluate: int) -> dict[str, Times]:
    """Serve a fleet to a Prometheus. Print and return the times of the rules."""
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
    print(f"\n{size:,} VMs, {int(series):,} series, scraped every {interval} s, {count} alerts firing\n")
    print("| group | interval | evaluations | median | slowest | slowest rule |\n| --- | --: | --: | --: | --: | --- |")
    for name, kept in times.items():
        rule, took = max(
            ((rule, statistics.median(all_)) for rule, all_ in kept.rules.items()), key=lambda pair: pair[1]
        )
        print(
            f"| `{name}` | {kept.interval:g} s | {len(kept.group)} | {statistics.median(kept.group):.2f} s | "
            f"{max(kept.group):.2f} s | `{rule}`, {took:.2f} s |"
        )
    rules = [(statistics.median(all_), rule) for kept in times.values() for rule, all_ in kept.rules.items()]
    print("\n| rule | median |\n| --- | --: |")
    for took, rule in sorted(rules, reverse=True)[:SHOWN]:
        print(f"| `{rule}` | {took:.2f} s |")
    return times


def main() -> int:
    """Print the tables. Return 1 if a group is too slow."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("vms", nargs="*", type=int, default=[3000, 10_000], help="number of VMs")
    parser.add_argument("--minutes", type=float, default=10, help="run time of each Prometheus")
    parser.add_argument("--interval", type=int, default=30, help="seconds between two scrapes")
    parser.add_argument("--evaluate", type=int, default=60, help="seconds between two evaluations")
    options = parser.parse_args()
    slow = []
    for size in options.vms:
        print(f"load before: {load_average()} on {os.cpu_count()} cores", flush=True)
        with tempfile.TemporaryDirectory() as name:
            times = report(
                size, Path(name), minutes=options.minutes, interval=options.interval, evaluate=options.evaluate
            )
        slow += [f"{group} at {size:,} VMs" for group, kept in times.items() if kept.slow]
        print(f"load after: {load_average()}", flush=True)
    for group in slow:
        print(f"takes more than a third of its interval: {group}")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
