"""Notifications in a month of a fleet: `python -m benchmarks.notifications [VMS] [--factor N] [--only X]`.

Prometheus' engine (`promtool test rules`, which reports what fires) evaluates alerts/rules.yml once a minute on the
scenarios of `benchmarks.fleet_month`. Alerts that start or stop firing are sent at their minute to a real Alertmanager
with deploy/compose/alertmanager.yml, and a webhook counts its notifications. Time runs `factor` times as fast there:
each duration of the configuration is divided by it. Each scenario is played once, and counted as often as it happens
in a month. The time between scenarios is omitted, because nothing fires.

promtool's test engine is limited to 10,000 samples, about 400 VMs. `benchmarks.promtool` builds it without the limit.
Without Go, Debian's promtool is used: each VM then represents ten, and minimum numbers of VMs are a tenth.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from benchmarks.fleet_month import SCENARIOS, FleetSamples, Scenario, fleet
from benchmarks.promtool import unbound
from tests.support.machine import Missing
from tests.support.peers import Webhook, alertmanager_of, need, until

ROOT: Final = Path(__file__).parents[1]
RULES: Final = ROOT / "alerts" / "rules.yml"
CONFIG: Final = ROOT / "deploy" / "compose" / "alertmanager.yml"
VMS: Final = 3000
COPIES: Final = 10
"""The number of VMs that each VM represents if promtool is limited to 10,000 samples."""

FACTOR: Final = 120.0
MINUTE: Final = 60.0
SETTLE: Final = 20.0
"""Minutes after the last alert until the last notification: more than the longest group interval."""

FEW: Final = 300
"""VMs of the fleet of a scenario about few VMs."""
_GC_ENVIRONMENT: Final = {"GOGC": "400"}
"""Less frequent garbage collection: a fleet takes about 100 MB."""

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_ASKED: Final = re.compile(r", time: (?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?,\n\s+exp:.*\n\s+got: (.*)")
_LABELS: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Alert = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Change:
    """The alerts that start and stop firing in one minute of a scenario."""

    minute: float
    begins: list[Alert]
    ends: list[Alert]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one scenario: alerts by name, and notifications by receiver and state."""

    scenario: Scenario
    vms: int
    alerts: Counter[str]
    notifications: Counter[tuple[str, str]]

    def count(self, *, on_call: bool, state: str = "firing") -> int:
        """Return the number of notifications to on-call receivers, or to all others."""
        return sum(
            count
            for (receiver, status), count in self.notifications.items()
            if status == state and receiver.endswith("on-call") == on_call
        )


@dataclass(frozen=True, slots=True)
class Engine:
    """A promtool, and the number of VMs that each VM represents in it."""

    promtool: Path
    copies: int = 1


def engine() -> Engine:
    """Return a promtool without a limit, or Debian's."""
    try:
        return Engine(unbound())
    except Missing as missing:
        print(f"each VM represents {COPIES}, because Debian's promtool is limited: {missing}", flush=True)
        return Engine(Path(need("promtool")), COPIES)


def changes(scenario: Scenario, size: int, by: Engine) -> list[Change]:
    """Return what fires in a scenario of `size` VMs. If each VM represents several, the rules' minimum numbers of VMs
    are divided by that number, and each alert about a VM is repeated."""
    copies = by.copies
    samples = FleetSamples(fleet(size // copies), scenario.minutes)
    scenario.apply(samples)
    with tempfile.TemporaryDirectory() as name:
        path, rules = Path(name) / "test.yml", Path(name) / "rules.yml"
        least = {f">= {count}\n": f">= {-(-count // copies)}\n" for count in (3, 5)}
        text = RULES.read_text(encoding="utf-8")
        rules.write_text(re.sub(r">= [35]\n", lambda found: least[found[0]], text), encoding="utf-8")
        with path.open("w", encoding="utf-8") as file:
            file.write(f"rule_files: ['{rules}']\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n")
            for series, values in samples.series():
                file.write(f"  - {{series: '{series}', values: '{values}'}}\n")
            file.write("  promql_expr_test:\n")
            firing = 'ALERTS{alertstate="firing"}'
            before = f"({firing} offset 1m)"
            for minute in range(scenario.minutes):
                for word, asked in (("begins", f"{firing} unless {before}"), ("ends", f"{before} unless {firing}")):
                    expr = f'label_replace({asked}, "edge", "{word}", "", "")'
                    file.write(f"  - {{expr: '{expr}', eval_time: {minute}m, exp_samples: []}}\n")
        command = [str(by.promtool), "test", "rules", str(path)]
        done = subprocess.run(command, env=os.environ | _GC_ENVIRONMENT, text=True, capture_output=True, check=False)
    output = done.stdout + done.stderr
    if not re.search(r"^  SUCCESS|^    expr: ", output, flags=re.M) or re.search(r"\berr(or)?:", output):
        raise RuntimeError(output.strip()[:2000])
    return [
        Change(change.minute, _copied(change.begins, copies), _copied(change.ends, copies)) for change in _read(output)
    ]


def _copied(alerts: list[Alert], copies: int) -> list[Alert]:
    """Return each alert about a VM `copies` times, with different VMs and events; others unchanged."""
    own = ("instance", "vm_name", "event_id")
    made = []
    for alert in alerts:
        labels = dict(alert)
        for number in range(copies if "instance" in labels else 1):
            ours = {name: f"{text}-{number}" if name in own and number else text for name, text in labels.items()}
            made.append(frozenset(ours.items()))
    return made


def _read(output: str) -> Iterator[Change]:
    """Yield the results that promtool reports as unexpected, by minute."""
    found: dict[float, Change] = {}
    for hours, minutes, seconds, got in _ASKED.findall(output):
        minute = int(hours or 0) * 60 + int(minutes or 0) + int(seconds or 0) / 60
        change = found.setdefault(minute, Change(minute, [], []))
        for sample in re.findall(r"\{((?:\w+=\"(?:[^\"\\]|\\.)*\"(?:, )?)+)\}", got):
            labels = dict(_LABELS.findall(sample))
            edge = labels.pop("edge")
            labels.pop("alertstate")
            labels.pop("__name__", None)
            (change.begins if edge == "begins" else change.ends).append(frozenset(labels.items()))
    return iter(sorted(found.values(), key=lambda change: change.minute))


def scaled(config: dict[str, Any], factor: float, url: str) -> dict[str, Any]:
    """Return an Alertmanager configuration with durations divided by `factor` and `url` for each webhook."""

    def walk(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: walk(member, name) for name, member in value.items()}
        if isinstance(value, list):
            return [walk(member, key) for member in value]
        if key in ("group_wait", "group_interval", "repeat_interval"):
            return f"{max(1, round(float(value[:-1]) * _UNITS[value[-1]] * 1000 / factor))}ms"
        return url if key == "url" else value

    changed: dict[str, Any] = walk(config)
    return changed


def _post(client: httpx.Client, alerts: Sequence[Alert], since: dict[Alert, datetime], *, over: bool) -> None:
    now = datetime.now(UTC)
    end = now if over else now + timedelta(days=1)
    body = [
        {"labels": dict(alert), "startsAt": since.setdefault(alert, now).isoformat(), "endsAt": end.isoformat()}
        for alert in alerts
    ]
    if over:
        for alert in alerts:
            since.pop(alert)
    if body:
        client.post("/api/v2/alerts", json=body).raise_for_status()


def play(
    scenario: Scenario, timeline: Sequence[Change], factor: float, folder: Path
) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Send the changes of a scenario to an Alertmanager, `factor` times as fast. Return alerts and notifications."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    since: dict[Alert, datetime] = {}
    minute = MINUTE / factor
    with (
        Webhook() as hook,
        alertmanager_of(folder, scaled(config, factor, hook.url)) as manager,
        httpx.Client(base_url=manager.url, timeout=30) as client,
    ):
        until(lambda: client.get("/-/ready").is_success)
        first = timeline[0].minute if timeline else 0
        start = time.monotonic()
        for change in timeline:
            time.sleep(max(0.0, start + (change.minute - first) * minute - time.monotonic()))
            _post(client, change.begins, since, over=False)
            _post(client, change.ends, since, over=True)
        if timeline:
            time.sleep(max(0.0, start + (scenario.minutes + scenario.tail - first) * minute - time.monotonic()))
            _post(client, list(since), since, over=True)
            time.sleep(SETTLE * minute)
        notifications = Counter((body["receiver"], body["status"]) for body in list(hook.received))
    names = Counter(dict(alert)["alertname"] for change in timeline for alert in change.begins)
    return names, notifications


def outcome_of(scenario: Scenario, size: int, timeline: Future[list[Change]], factor: float) -> Outcome:
    """Play a scenario as soon as its alerts are known."""
    with tempfile.TemporaryDirectory() as name:
        found = Outcome(scenario, size, *play(scenario, timeline.result(), factor, Path(name)))
    print(f"{scenario.name}: {size:,} VMs, {dict(found.alerts)} -> {dict(found.notifications)}", flush=True)
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the notifications of each scenario, of the month, and of a day as a Markdown table."""
    lines = [
        "|Scenario|VMs|Times|Alerts|Messages|Pages|Action|",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    messages = pages = 0
    for each in outcomes:
        quiet, loud = each.count(on_call=False), each.count(on_call=True)
        messages += quiet * each.scenario.times
        pages += loud * each.scenario.times
        alerts = sum(each.alerts.values())
        lines.append(
            f"|{each.scenario.name}|{each.vms:,}|{each.scenario.times}|{alerts:,}|{quiet}|{loud}|"
            f"{each.scenario.must or 'none'}|"
        )
    lines.append(f"|**30 days**||||**{messages}**|**{pages}**||")
    lines.append(f"|**One day**||||**{messages / 30:.2f}**|**{pages / 30:.2f}**||")
    return "\n".join(lines)


def main() -> None:
    """Print the table of a month."""
    parser = argparse.ArgumentParser(description="Notifications of a month.")
    parser.add_argument("vms", nargs="?", type=int, default=VMS)
    parser.add_argument("--factor", type=float, default=FACTOR)
    parser.add_argument("--only", default="", help="scenarios whose name matches this")
    options = parser.parse_args()
    by = engine()
    scenarios = [scenario for scenario in SCENARIOS if re.search(options.only, scenario.name)]
    # An engine uses a core; waiting for an Alertmanager uses none.
    with ThreadPoolExecutor(2) as engines, ThreadPoolExecutor(len(scenarios)) as clocks:
        outcomes = {}
        for scenario in sorted(scenarios, key=lambda scenario: (scenario.few, -scenario.minutes - scenario.tail)):
            size = min(options.vms, FEW * by.copies) if scenario.few else options.vms
            timeline = engines.submit(changes, scenario, size, by)
            outcomes[scenario] = clocks.submit(outcome_of, scenario, size, timeline, options.factor)
        found = [outcomes[scenario].result() for scenario in scenarios]
    print(f"\neach VM represents {by.copies}, time {options.factor:g} times as fast\n\n{table(found)}")


if __name__ == "__main__":
    main()
