"""How long the dashboards' panels take on a real Prometheus at 10,000 VMs: `python -m benchmarks.panels`.

    python -m benchmarks.panels [--vms 10000] [--rounds 5]

Every seventh VM has an event, one in seventy has no current data. Each VM has two scrapes of the series that rules and
panels read, as from a real agent in that state. Before them are six hours of the series that the rules record each
minute, and seven days of those that they record for events. First Prometheus evaluates alerts/rules.yml. Then, without
rules, it evaluates every query of every panel as Grafana sends it: those of the fleet board for all VMs and for the VMs
of one owner, those of the VM board for one VM. The time of a panel is the sum of its queries.

It also prints the time of some panels without recording rules. Exit code 1: a panel takes more than a second. A busy
machine takes longer; its load is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from benchmarks.usage import load_average
from dashboards.queries import FLEET_DATA_STATE, FLEET_GROUP, chosen
from tests.support.dashboards_backfill import backfill, scraped
from tests.support.dashboards_environment import RULES, filled, load, panels
from tests.support.dashboards_scenarios import (
    fleet,
    fleet_labels,
    kind_of,
    recorded,
    recorded_row,
    vm_of_fleet,
    written,
)
from tests.support.peers import Daemon, need, until

HOURS: Final = 6
RANGE: Final = HOURS * 3600
STEP: Final = 30
"""Seconds between two points: about 720 pixels, with Grafana's default scrape interval of 15 s."""
MOST: Final = 1.0
"""Seconds that a panel may take."""
COMPARED: Final = "compared"
"""The job of the series for panels without recording rules."""
_NAMES: Final = re.compile(r"(?<![:\w])(?:azure_scheduled_events_\w+|up)(?![:\w])")
"""The scraped metrics in a query."""
OWNER: Final = {"tag_owner": "shop"}
WITHOUT_RULES: Final = {
    "VMs with an event over time: VMs without current data": f"count({chosen(FLEET_DATA_STATE)} > 0)",
    "Records late, rejected, or lost: lost in six hours": (
        "topk(50, sum by (job, instance, destination) (increase("
        'azure_scheduled_events_destination_records_dropped_total{job=~"$job"}[$__range])) > 0)'
    ),
    "any curve that joins what VMs are chosen by": f"count({FLEET_GROUP})",
}


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds that one panel took in each round, and the number of samples that its queries read."""

    board: str
    panel: str
    queries: int
    seconds: Sequence[float]
    samples: int

    @property
    def median(self) -> float:
        """The median time."""
        return statistics.median(self.seconds)


def history(end: float, size: int) -> Iterator[tuple[float, str, float]]:
    """Yield recorded series.

    They are counts by data state and event, and the open events, each minute for six hours; and in seven days a start
    and an end of every second VM, one in ten of them with an observed interruption.
    """
    seen, on = Counter[str](), Counter[str]()
    for number in range(size):
        where = {"job": "fleet", **fleet_labels(number)}
        kind = kind_of(number)
        data_state = {"warming": 1, "stale": 2, "down": 3}.get(kind, 0)
        seen[recorded("fleet", "up:vms", where | {"data_state": str(data_state)})] += 1
        if kind in ("soon", "later", "started", "terminated"):
            words = {"event_type": "Freeze" if kind == "started" else "Reboot", "event_status": "Scheduled"}
            on[recorded("fleet", "event_status:vms", where | words)] += 1
            row = {"event_id": f"open-{number}", "event_source": "Platform", "outcome": "open", **words}
            del row["event_status"]
            for at in range(-RANGE, -60, 60):
                yield from recorded_row(end + at, vm_of_fleet(number), row, 900)
    for at in range(-RANGE, -60, 60):
        for series, count in (seen + on).items():
            yield end + at, series, count
    for number in range(0, size, 2):
        vm, moment = vm_of_fleet(number), end - 3600 - number * 7 * 86400 / size
        start, stop = (
            {"event_type": "Freeze", "started_by": "this_vm"},
            {"event_type": "Freeze", "outcome": "completed"},
        )
        yield moment, recorded("instance", "events_started:increase5m", vm | start), 1
        yield moment + 300, recorded("instance", "events_closed:increase5m", vm | stop), 1
        row = start | stop | {"event_id": f"past-{number}", "event_source": "Platform", "rule": "short-freeze"}
        for minute in range(15):
            yield from recorded_row(moment + 60 * minute, vm, row, 900, 5.5 if number % 20 == 0 else None)
        if number % 20 == 0:
            yield moment, recorded("instance", "observed_interruption_seconds_sum:increase5m", vm), 5.5


def compared(end: float, size: int) -> Iterator[tuple[float, str, float]]:
    """Yield the samples that panels would read without recording rules: the state and the group of each VM, and a
    counter of dropped records for each destination, every four minutes."""
    for number in range(size):
        vm = vm_of_fleet(number) | {"job": COMPARED}
        series = [recorded("instance", "up:data_state", vm), recorded("instance", "vm_info:group", vm)]
        for name in ("event_hubs", "otlp"):
            labels = written({"job": vm["job"], "instance": vm["instance"], "destination": name, "reason": "full"})
            series.append(f"azure_scheduled_events_destination_records_dropped_total{{{labels}}}")
        for at in range(-RANGE, -120, 240):
            for one in series:
                yield end + at, one, 0


def lines(end: float, size: int, folder: Path) -> Iterator[str]:
    """Yield all samples as OpenMetrics lines."""
    read = {*_NAMES.findall(RULES.read_text(encoding="utf-8"))}
    for board in ("fleet", "vm"):
        read |= {
            name
            for panel in panels(load(board))
            for target in panel["targets"]
            for name in _NAMES.findall(target["expr"])
        }
    for line in scraped(fleet(end, folder, size, (-60.0, 0.0))):
        if line.partition("{")[0] in read:
            yield line
    for at, series, value in history(end, size):
        yield f"{series} {value} {at:.3f}\n"
    for at, series, value in compared(end, size):
        yield f"{series} {value} {at:.3f}\n"


def serving(folder: Path, rules: Sequence[Path], interval: int) -> Daemon:
    """Return a Prometheus on this directory that evaluates these rules every `interval` seconds. Samples stay current
    for an hour, because writing them to disk takes minutes."""
    config = folder / "prometheus.yml"
    often = {"evaluation_interval": f"{interval}s"}
    text = json.dumps({"global": often, "rule_files": [str(path) for path in rules]})  # JSON is YAML
    config.write_text(text, encoding="utf-8")
    options = ["--web.listen-address=127.0.0.1:0", "--query.lookback-delta=1h", "--query.max-samples=500000000"]
    files = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", "--storage.tsdb.retention.time=30d"]
    return Daemon([need("prometheus"), *files, *options], folder)


class QueryClient:
    """Sends queries to a Prometheus as Grafana does: instant queries now, range queries over the last six hours."""

    def __init__(self, url: str, at: float) -> None:
        self._client, self._at = httpx.Client(base_url=url, timeout=300), at

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def query(self, expression: str, *, instant: bool) -> tuple[float, int]:
        """Run a query. Return its seconds and the number of samples that it read."""
        began = time.perf_counter()
        if instant:
            fields: dict[str, Any] = {"query": expression, "time": self._at, "stats": "all"}
            answer = self._client.post("/api/v1/query", data=fields)
        else:
            stop = int(self._at) // STEP * STEP
            fields = {"query": expression, "start": stop - RANGE, "end": stop, "step": STEP, "stats": "all"}
            answer = self._client.post("/api/v1/query_range", data=fields)
        took = time.perf_counter() - began
        return took, int(answer.raise_for_status().json()["data"]["stats"]["samples"]["totalQueryableSamples"])


def measure(client: QueryClient, board: str, rounds: int, **chosen_by: str) -> Iterator[Times]:
    """Yield the times of each panel of a board, each queried `rounds` times."""
    about = ", ".join(chosen_by.values()) or "all VMs"
    for panel in panels(load(board)):
        seconds, samples = [], 0
        for _ in range(rounds):
            answers = [
                client.query(
                    filled(target["expr"], "fleet", RANGE, **chosen_by),
                    instant=bool(target.get("instant")),
                )
                for target in panel["targets"]
            ]
            seconds.append(sum(took for took, _ in answers))
            samples = sum(count for _, count in answers)
        yield Times(f"{board}, {about}", panel["title"], len(panel["targets"]), seconds, samples)


def evaluations(client: QueryClient) -> Iterator[tuple[str, float]]:
    """Yield each group of rules with the seconds that its expressions take in sequence."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield group["name"], sum(client.query(rule["expr"], instant=True)[0] for rule in group["rules"])


def _all_evaluated(daemon: Daemon, since: datetime) -> bool:
    """Return whether each group was evaluated after `since`, except the history, whose samples are backfilled."""
    groups = daemon.get("/api/v1/rules")["data"]["groups"]
    return all(
        datetime.fromisoformat(group["lastEvaluation"]) > since for group in groups if "history" not in group["name"]
    )


def report(size: int, rounds: int, folder: Path, interval: int = 60) -> list[Times]:
    """Fill a Prometheus, evaluate the rules every `interval` seconds until each has read the results of the others, run
    the queries, print the times, and return those of the panels."""
    end = float(int(time.time()))
    began = time.perf_counter()
    backfill(lines(end, size, folder / "outboxes"), folder)
    print(f"{size:,} VMs written in {time.perf_counter() - began:.0f} s", flush=True)
    version = subprocess.run([need("prometheus"), "--version"], capture_output=True, text=True, check=True).stdout
    with serving(folder, [RULES], interval) as daemon:
        since = datetime.now(UTC) + timedelta(seconds=2 * interval)
        until(lambda: _all_evaluated(daemon, since), seconds=1800, every=1)
    with serving(folder, [], interval) as daemon:
        vm = vm_of_fleet(301 if size > 301 else 0)["instance"]
        series = daemon.query(f'count({{job="fleet", instance="{vm}"}})')[0]["value"][1]
        print(f"Prometheus {version.split()[2]}, {series} series per VM\n")
        client = QueryClient(daemon.url, time.time())
        found = [
            *measure(client, "fleet", rounds),
            *measure(client, "fleet", rounds, **OWNER),
            *measure(client, "vm", rounds, instance=vm),
        ]
        print("| board | panel | queries | median | slowest | samples |\n| --- | --- | --- | --- | --- | --- |")
        for one in found:
            print(
                f"| {one.board} | {one.panel} | {one.queries} | {one.median * 1000:.0f} ms | "
                f"{max(one.seconds) * 1000:.0f} ms | {one.samples:,} |"
            )
        print("\n| without the rules | seconds | samples |\n| --- | --- | --- |")
        for about, expression in WITHOUT_RULES.items():
            instant = "[$__range]" in expression
            took, samples = client.query(filled(expression, COMPARED, RANGE), instant=instant)
            print(f"| {about} | {took:.1f} | {samples:,} |")
        print("\n| rule group | seconds |\n| --- | --- |")
        for name, took in evaluations(client):
            print(f"| {name} | {took:.1f} |")
        client.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vms", type=int, default=10_000, help="number of VMs")
    parser.add_argument("--rounds", type=int, default=5, help="number of times each panel is queried")
    options = parser.parse_args()
    print(f"load before: {load_average()} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        found = report(options.vms, options.rounds, Path(folder))
    slow = [one for one in found if one.median > MOST]
    for one in slow:
        print(f"takes more than {MOST} s: {one.panel} ({one.board})")
    print(f"load after: {load_average()}")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
