"""How long the dashboards' panels take on a real Prometheus at 10,000 VMs: `python -m benchmarks.panels`.

    python -m benchmarks.panels [--vms 10000] [--rounds 5]

Every seventh VM has an event, one in seventy is not seen. Each VM has the series that rules and panels read, as a real
agent shows them in that state, two scrapes of them; behind these lie six hours of what the rules count each minute, and
seven days of what they record where something happened. First Prometheus evaluates alerts/rules.yml on it. Then, with
no rules beside it, it is asked every query of every panel as Grafana asks: those of the fleet board about all VMs and
about one owner's, those of the VM board about one VM. A panel's time is the sum of its queries'.

It also prints how long some panels would take without recording rules. Exit code 1 where a panel takes more than a
second. A busy machine takes longer; its load is printed.
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
from dashboards.queries import FLEET_GROUP, FLEET_SIGHT, chosen
from tests.support.dashboards_backfill import backfill, scraped
from tests.support.dashboards_stories import fleet, fleet_labels, kind_of, recorded, vm_of_fleet, written
from tests.support.dashboards_world import RULES, filled, load, panels
from tests.support.peers import Daemon, need, until

HOURS: Final = 6
RANGE: Final = HOURS * 3600
STEP: Final = 30
"""Seconds between two points: a curve of some 720 pixels, at Grafana's usual scrape interval of 15 s."""
MOST: Final = 1.0
"""Seconds that a panel may take."""
COMPARED: Final = "compared"
"""The job of the series that only the panels without rules read."""
_NAMES: Final = re.compile(r"(?<![:\w])(?:azure_scheduled_events_\w+|up)(?![:\w])")
"""What a query names of what is scraped."""
OWNER: Final = {"tag_owner": "shop"}
WITHOUT_RULES: Final = {
    "VMs with an event over time: VMs that nobody sees": f"count({chosen(FLEET_SIGHT)} > 0)",
    "Records late, refused or lost: lost in six hours": (
        "topk(50, sum by (job, instance, destination) (increase("
        'azure_scheduled_events_destination_records_dropped_total{job=~"$job"}[$__range])) > 0)'
    ),
    "any curve that joins what VMs are chosen by": f"count({FLEET_GROUP})",
}


@dataclass(frozen=True, slots=True)
class Times:
    """How long one panel took, in seconds for each round, and how many samples its queries read."""

    board: str
    panel: str
    queries: int
    seconds: Sequence[float]
    samples: int

    @property
    def median(self) -> float:
        """The usual time."""
        return statistics.median(self.seconds)


def history(end: float, size: int) -> Iterator[tuple[float, str, float]]:
    """What the rules had recorded: counts by sight and event each minute for six hours; and in seven days one start and
    end of every second VM, one in ten of them felt."""
    seen, on = Counter[str](), Counter[str]()
    for number in range(size):
        where = {"job": "fleet", **fleet_labels(number)}
        kind = kind_of(number)
        sight = {"warming": 1, "blind": 2, "down": 3}.get(kind, 0)
        seen[recorded("fleet", "up:vms", where | {"sight": str(sight)})] += 1
        if kind in ("soon", "later", "started", "terminated"):
            words = {"event_type": "Freeze" if kind == "started" else "Reboot", "event_status": "Scheduled"}
            on[recorded("fleet", "event_status:vms", where | words)] += 1
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
        if number % 20 == 0:
            yield moment, recorded("instance", "observed_interruption_seconds_sum:increase5m", vm), 5.5


def compared(end: float, size: int) -> Iterator[tuple[float, str, float]]:
    """What panels would read without the rules of a fleet: each VM's sight and group at each point, and a counter of
    lost records for each destination, as if it were scraped every four minutes."""
    for number in range(size):
        vm = vm_of_fleet(number) | {"job": COMPARED}
        series = [recorded("instance", "up:blindness", vm), recorded("instance", "vm_info:group", vm)]
        for name in ("event_hubs", "otlp"):
            labels = written({"job": vm["job"], "instance": vm["instance"], "destination": name, "reason": "full"})
            series.append(f"azure_scheduled_events_destination_records_dropped_total{{{labels}}}")
        for at in range(-RANGE, -120, 240):
            for one in series:
                yield end + at, one, 0


def lines(end: float, size: int, folder: Path) -> Iterator[str]:
    """Everything as OpenMetrics."""
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
    """A Prometheus of this folder that evaluates these rules every so many seconds. What was scraped stays known for an
    hour, since it takes minutes to put it on disk."""
    config = folder / "prometheus.yml"
    often = {"evaluation_interval": f"{interval}s"}
    text = json.dumps({"global": often, "rule_files": [str(path) for path in rules]})  # JSON is YAML
    config.write_text(text, encoding="utf-8")
    options = ["--web.listen-address=127.0.0.1:0", "--query.lookback-delta=1h", "--query.max-samples=500000000"]
    files = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", "--storage.tsdb.retention.time=30d"]
    return Daemon([need("prometheus"), *files, *options], folder)


class Asker:
    """Asks a Prometheus as Grafana does: instant queries now, curves of six hours up to now."""

    def __init__(self, url: str, at: float) -> None:
        self._client, self._at = httpx.Client(base_url=url, timeout=300), at

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def ask(self, expression: str, *, instant: bool, step: int = STEP) -> tuple[float, int]:
        """How long it took, in seconds, and how many samples it read."""
        began = time.perf_counter()
        if instant:
            fields: dict[str, Any] = {"query": expression, "time": self._at, "stats": "all"}
            answer = self._client.post("/api/v1/query", data=fields)
        else:
            stop = int(self._at) // step * step
            fields = {"query": expression, "start": stop - RANGE, "end": stop, "step": step, "stats": "all"}
            answer = self._client.post("/api/v1/query_range", data=fields)
        took = time.perf_counter() - began
        return took, int(answer.raise_for_status().json()["data"]["stats"]["samples"]["totalQueryableSamples"])


def measure(asker: Asker, board: str, rounds: int, **chosen_by: str) -> Iterator[Times]:
    """Each panel of a board, asked so many times."""
    about = ", ".join(chosen_by.values()) or "all VMs"
    for panel in panels(load(board)):
        seconds, samples = [], 0
        for _ in range(rounds):
            answers = [
                asker.ask(
                    filled(target["expr"], "fleet", RANGE, **chosen_by),
                    instant=bool(target.get("instant")),
                    step=3600 if target["interval"] == "1h" else STEP,
                )
                for target in panel["targets"]
            ]
            seconds.append(sum(took for took, _ in answers))
            samples = sum(count for _, count in answers)
        yield Times(f"{board}, {about}", panel["title"], len(panel["targets"]), seconds, samples)


def evaluations(asker: Asker) -> Iterator[tuple[str, float]]:
    """How long the expressions of each group of rules take, one after another, in seconds."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield group["name"], sum(asker.ask(rule["expr"], instant=True)[0] for rule in group["rules"])


def _all_evaluated(daemon: Daemon, since: datetime) -> bool:
    """Whether each group was evaluated after that time, but for the history, which is put there as it would be."""
    groups = daemon.get("/api/v1/rules")["data"]["groups"]
    return all(
        datetime.fromisoformat(group["lastEvaluation"]) > since for group in groups if "history" not in group["name"]
    )


def report(size: int, rounds: int, folder: Path, interval: int = 60) -> list[Times]:
    """Fill a Prometheus, let it evaluate the rules every `interval` seconds until each has read what the others record,
    ask it, print what it took, and return the panels' times."""
    end = float(int(time.time()))
    began = time.perf_counter()
    backfill(lines(end, size, folder / "outboxes"), folder)
    print(f"{size:,} VMs on disk after {time.perf_counter() - began:.0f} s", flush=True)
    version = subprocess.run([need("prometheus"), "--version"], capture_output=True, text=True, check=True).stdout
    with serving(folder, [RULES], interval) as daemon:
        since = datetime.now(UTC) + timedelta(seconds=2 * interval)
        until(lambda: _all_evaluated(daemon, since), seconds=1800, every=1)
    with serving(folder, [], interval) as daemon:
        vm = vm_of_fleet(301 if size > 301 else 0)["instance"]
        series = daemon.query(f'count({{job="fleet", instance="{vm}"}})')[0]["value"][1]
        print(f"Prometheus {version.split()[2]}, {series} series of a VM\n")
        asker = Asker(daemon.url, time.time())
        found = [
            *measure(asker, "fleet", rounds),
            *measure(asker, "fleet", rounds, **OWNER),
            *measure(asker, "vm", rounds, instance=vm),
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
            took, samples = asker.ask(filled(expression, COMPARED, RANGE), instant=instant)
            print(f"| {about} | {took:.1f} | {samples:,} |")
        print("\n| group of rules | seconds |\n| --- | --- |")
        for name, took in evaluations(asker):
            print(f"| {name} | {took:.1f} |")
        asker.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vms", type=int, default=10_000, help="how many")
    parser.add_argument("--rounds", type=int, default=5, help="how often each panel is asked")
    options = parser.parse_args()
    print(f"load before: {load_average()} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        found = report(options.vms, options.rounds, Path(folder))
    slow = [one for one in found if one.median > MOST]
    for one in slow:
        print(f"over {MOST} s: {one.panel} ({one.board})")
    print(f"load after: {load_average()}")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
