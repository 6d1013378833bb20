"""The queries of the dashboards on a Prometheus with the scrapes of all scenarios."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from dashboards.queries import CHOICES
from tests.support.dashboards_backfill import backfill, everything
from tests.support.peers import Daemon, prometheus, until
from tests.support.remote_write import write

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "alerts" / "rules.yml"
POINTS: Final = 180
"""Number of points of a graph in a panel."""

SPANS: Final = {"vm": 2 * 3600, "fleet": 6 * 3600}
"""The time range of each dashboard, in seconds."""

Series = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    """Return a committed dashboard: "vm" or "fleet"."""
    document: dict[str, Any] = json.loads((ROOT / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    return document


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return its panels without row headings."""
    return [panel for panel in document["panels"] if panel["type"] != "row"]


ALL: Final = {"job": ".+", "instance": ".+", **dict.fromkeys(CHOICES, ".*")}
"""The variables that select VMs, and the value that Grafana inserts for "All"."""


def filled(expression: str, job: str, span: int, instance: str = ".+", **choices: str) -> str:
    """Return a query as Grafana sends it, with its variables replaced; those that select VMs are "All" by default."""
    values = {
        "__rate_interval": "4m",
        "__interval": f"{max(60, span // POINTS)}s",
        "__range": f"{span}s",
        **ALL,
        "job": job,
        "instance": instance,
        **choices,
    }
    text = re.sub(r"\$\{?([a-zA-Z_]\w*)\}?", lambda variable: values[variable[1]], expression)
    assert "$" not in text.replace('"$1"', "")
    return text


def step_of(span: int) -> int:
    """Return the seconds between two points of a graph."""
    return max(60, span // POINTS)


@dataclass(frozen=True, slots=True)
class DashboardsEnvironment:
    """A Prometheus with the scrapes of all scenarios. `end` is their end, in seconds since the epoch."""

    http: httpx.Client
    end: float
    at: float
    """The time of queries: right after the end, when the rules were evaluated."""
    active: list[dict[str, Any]]
    """The alerts that are pending or firing at that time, with their texts."""
    groups: list[dict[str, Any]]
    """The groups of the rules that rendered those texts."""

    def ahead(self, seconds: float) -> Any:
        """Match a countdown to this many seconds after the end."""
        return pytest.approx(seconds - (self.at - self.end), abs=10)

    def now(self, expression: str) -> list[Series]:
        """Return the samples of an instant query."""
        return self._series(self._now(expression))

    def over(self, expression: str, span: int, step: int) -> list[Series]:
        """Return the series of a range query, aligned to whole steps as Grafana does."""
        return self._series(self._over(expression, span, step))

    def range(self, span: int, step: int) -> tuple[int, int]:
        """Return start and end of a range of this length, in whole steps."""
        stop = int(self.at) // step * step
        return stop - span // step * step, stop

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON response of Prometheus; hundreds of queries share one connection."""
        return self.http.get(path, params=parameters).raise_for_status().json()

    def _now(self, expression: str) -> Any:
        return self.get("/api/v1/query", query=expression, time=self.at, stats="all")

    def _over(self, expression: str, span: int, step: int) -> Any:
        start, stop = self.range(span, step)
        return self.get("/api/v1/query_range", query=expression, start=start, end=stop, step=step, stats="all")

    def _series(self, answer: Any) -> list[Series]:
        assert not answer.get("warnings"), answer["warnings"]
        result: list[Series] = answer["data"]["result"]
        return result

    def samples(self, expression: str) -> int:
        """Return the number of samples that Prometheus reads for an instant query."""
        return self._samples(self._now(expression))

    def _samples(self, answer: Any) -> int:
        return int(answer["data"]["stats"]["samples"]["totalQueryableSamples"])

    def target(
        self, target: dict[str, Any], which: str, job: str, instance: str = ".+", **choices: str
    ) -> list[Series]:
        """Return the result of a panel's query for the VMs of a job, one of them, or the selected ones."""
        return self._series(self._target(target, which, job, instance, **choices))

    def samples_of_point(self, target: dict[str, Any], which: str, job: str, instance: str = ".+") -> float:
        """Return the number of samples that Prometheus reads for each point in time of a panel's query."""
        span = SPANS[which]
        points = 1 if target.get("instant") else span // step_of(span)
        return self._samples(self._target(target, which, job, instance)) / points

    def _target(self, target: dict[str, Any], which: str, job: str, instance: str, **choices: str) -> Any:
        span = SPANS[which]
        expression = filled(target["expr"], job, span, instance, **choices)
        return self._now(expression) if target.get("instant") else self._over(expression, span, step_of(span))

    def answers(self, which: str, job: str) -> dict[str, list[dict[str, Any]]]:
        """Return the result of every query of a dashboard, by panel id, with the metadata of the data source."""
        answers: dict[str, list[dict[str, Any]]] = {}
        for panel in panels(load(which)):
            for target in panel["targets"]:
                step = step_of(SPANS[which])
                start, stop = self.range(SPANS[which], step)
                about = {"refId": target["refId"], "format": target["format"], "legend": target["legendFormat"]}
                span = {"from": start, "to": stop, "step": step}
                answer = {**about, **span, "result": self.target(target, which, job)}
                answers.setdefault(str(panel["id"]), []).append(answer)
        return answers

    def panel(self, which: str, title: str, job: str, **choices: str) -> list[list[Series]]:
        """Return the result of each query of the panel with this title."""
        panel = next(panel for panel in panels(load(which)) if panel["title"] == title)
        return [self.target(target, which, job, **choices) for target in panel["targets"]]

    def alerts(self, job: str) -> dict[str, dict[str, Any]]:
        """Return the pending and firing alerts of a job, by name."""
        return {alert["labels"]["alertname"]: alert for alert in self.active if alert["labels"].get("job") == job}


END: Final = datetime(2024, 3, 6, 12, 3, 20, tzinfo=UTC)
"""The end of the scenarios."""
ROUNDS: Final = 2
"""Number of evaluations of each rule: a group may read in the next round what another one recorded."""


@contextmanager
def environment(folder: Path) -> Iterator[DashboardsEnvironment]:
    """Provide a real Prometheus with all scenarios, and the results of the rules at the end of the scenarios.

    Nothing depends on the clock of this machine: the scenarios end at a fixed time, the queries of the rules contain
    that time, and their results are written with it.
    """
    end = END.timestamp()
    backfill(everything(end, folder / "outboxes"), folder)
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    with (
        prometheus(folder, [], receives=True) as daemon,
        httpx.Client(base_url=daemon.url, timeout=120) as client,
    ):
        found, at = _evaluated(DashboardsEnvironment(client, end, end, [], []), groups)
        active, shown = _rendered(groups, found, folder / "texts")
        states = ({**one["labels"], "__name__": "ALERTS", "alertstate": one["state"]} for one in active)
        write(client, [(labels, 1.0, at) for labels in states])
        yield DashboardsEnvironment(client, end, at, active, shown)


def _evaluated(lived: DashboardsEnvironment, groups: list[dict[str, Any]]) -> tuple[dict[str, list[Series]], float]:
    """Return the result of each alert by name, and its time. Recorded series are written to `lived`."""
    rules = [rule for group in groups for rule in group["rules"]]
    for _ in range(ROUNDS):
        lived = replace(lived, at=lived.at + 1)  # after the newest sample
        for rule in rules:
            if "record" in rule:
                own = {"__name__": rule["record"], **rule.get("labels", {})}
                samples = [
                    ({**one["metric"], **own}, float(one["value"][1]), lived.at) for one in lived.now(rule["expr"])
                ]
                write(lived.http, samples)
    return {rule["alert"]: lived.now(rule["expr"]) for rule in rules if "alert" in rule}, lived.at


def _rendered(
    groups: list[dict[str, Any]], found: dict[str, list[Series]], folder: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the alerts with their texts, and the groups of their rules, as rendered by another Prometheus.

    It receives the result of each alert, and the labels and texts of the alerts.
    """
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    rules = [{**rule, "expr": f"last_over_time(found:{rule['alert']}[30d])"} for rule in alerts]
    folder.mkdir()
    (folder / "rules.yml").write_text(json.dumps({"groups": [{"name": "found", "interval": "1s", "rules": rules}]}))
    with prometheus(folder, [], rules=[folder / "rules.yml"], receives=True) as daemon:
        with httpx.Client(base_url=daemon.url, timeout=60) as client:
            samples = [
                ({**one["metric"], "__name__": f"found:{name}"}, float(one["value"][1]), time.time())
                for name, series in found.items()
                for one in series
            ]
            write(client, samples)
        since = datetime.now(UTC)
        until(lambda: _last_evaluation(daemon) > since, seconds=120)
        return daemon.get("/api/v1/alerts")["data"]["alerts"], daemon.get("/api/v1/rules")["data"]["groups"]


def _last_evaluation(daemon: Daemon) -> datetime:
    (group,) = daemon.get("/api/v1/rules")["data"]["groups"]
    return datetime.fromisoformat(group["lastEvaluation"])
