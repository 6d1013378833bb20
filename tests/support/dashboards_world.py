"""The dashboards' queries on a Prometheus that has lived through the stories."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from dashboards.queries import CHOICES
from tests.support.dashboards_backfill import backfill, everything
from tests.support.dashboards_stories import FLEET_SIZE
from tests.support.peers import Daemon, prometheus, until

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "alerts" / "rules.yml"
POINTS: Final = 180
"""How many points a curve of a panel has."""

SPANS: Final = {"vm": 2 * 3600, "fleet": 6 * 3600}
"""The range, in seconds, that each dashboard is looked at with."""

Series = dict[str, Any]


def load(name: str) -> dict[str, Any]:
    """A committed dashboard: "vm" or "fleet"."""
    document: dict[str, Any] = json.loads((ROOT / "dashboards" / f"{name}.json").read_text(encoding="utf-8"))
    return document


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Its panels without the row headings; each query has the least interval of its panel, as Grafana hands it on."""
    drawn = [panel for panel in document["panels"] if panel["type"] != "row"]
    return [
        {**panel, "targets": [{**target, "interval": panel.get("interval", "")} for target in panel["targets"]]}
        for panel in drawn
    ]


ALL: Final = {"job": ".+", "instance": ".+", **dict.fromkeys(CHOICES, ".*")}
"""The variables that VMs are chosen by, and what Grafana puts in their place for "All"."""


def filled(expression: str, job: str, span: int, instance: str = ".+", **choices: str) -> str:
    """A query as Grafana sends it, with its variables replaced; those that VMs are chosen by stand at "All"."""
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


def step_of(target: dict[str, Any], span: int) -> int:
    """Seconds between two points of a curve."""
    return 3600 if target.get("interval") == "1h" else max(60, span // POINTS)


@dataclass(frozen=True, slots=True)
class World:
    """A Prometheus with the stories behind it. `end` is when they end, in seconds since the epoch."""

    http: httpx.Client
    end: float
    at: float
    """When it is looked at: a little later, since the rules need some evaluations to record what they see."""
    active: list[dict[str, Any]]
    """The alerts that were pending or firing then; minutes later the last scrapes are too old for any."""
    groups: list[dict[str, Any]]
    """The groups of rules as they were evaluated."""

    def ahead(self, seconds: float) -> Any:
        """About so many seconds after the end, as seen from now: what a countdown shows."""
        return pytest.approx(seconds - (self.at - self.end), abs=10)

    def now(self, expression: str) -> list[Series]:
        """The samples of an instant query."""
        return self._series(self._now(expression))

    def over(self, expression: str, span: int, step: int) -> list[Series]:
        """The series of a range query, at whole steps as Grafana asks for them."""
        return self._series(self._over(expression, span, step))

    def range(self, span: int, step: int) -> tuple[int, int]:
        """From when to when a range of this length goes, in whole steps."""
        stop = int(self.at) // step * step
        return stop - span // step * step, stop

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON answer of Prometheus, over one connection: there are hundreds of questions."""
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
        """The samples that Prometheus looks at for an instant query."""
        return self._samples(self._now(expression))

    def _samples(self, answer: Any) -> int:
        return int(answer["data"]["stats"]["samples"]["totalQueryableSamples"])

    def target(
        self, target: dict[str, Any], which: str, job: str, instance: str = ".+", **choices: str
    ) -> list[Series]:
        """What a panel's query gives for the VMs of a job, or one of them, or those that are chosen."""
        return self._series(self._target(target, which, job, instance, **choices))

    def samples_of_point(self, target: dict[str, Any], which: str, job: str, instance: str = ".+") -> float:
        """The samples that Prometheus looks at for each point in time of a panel's query."""
        span = SPANS[which]
        points = 1 if target.get("instant") else span // step_of(target, span)
        return self._samples(self._target(target, which, job, instance)) / points

    def _target(self, target: dict[str, Any], which: str, job: str, instance: str, **choices: str) -> Any:
        span = SPANS[which]
        expression = filled(target["expr"], job, span, instance, **choices)
        return self._now(expression) if target.get("instant") else self._over(expression, span, step_of(target, span))

    def answers(self, which: str, job: str) -> dict[str, list[dict[str, Any]]]:
        """What every query of a dashboard gives, by the panel's id, with what a data source knows about each."""
        answers: dict[str, list[dict[str, Any]]] = {}
        for panel in panels(load(which)):
            for target in panel["targets"]:
                step = step_of(target, SPANS[which])
                start, stop = self.range(SPANS[which], step)
                about = {"refId": target["refId"], "format": target["format"], "legend": target["legendFormat"]}
                span = {"from": start, "to": stop, "step": step}
                answer = {**about, **span, "result": self.target(target, which, job)}
                answers.setdefault(str(panel["id"]), []).append(answer)
        return answers

    def panel(self, which: str, title: str, job: str, **choices: str) -> list[list[Series]]:
        """What each query of the panel with this title gives."""
        panel = next(panel for panel in panels(load(which)) if panel["title"] == title)
        return [self.target(target, which, job, **choices) for target in panel["targets"]]

    def alerts(self, job: str) -> dict[str, dict[str, Any]]:
        """The active alerts of a job, pending or firing, by name."""
        return {alert["labels"]["alertname"]: alert for alert in self.active if alert["labels"].get("job") == job}


RULES_SECONDS: Final = 2
"""How often rules are evaluated that say nothing else."""


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """All stories up to now in a real Prometheus that has evaluated the rules on them."""
    end = float(int(time.time()))
    backfill(everything(end, folder / "outboxes"), folder)
    with prometheus(folder, [], rules=[RULES], interval=f"{RULES_SECONDS}s") as daemon:
        until(lambda: daemon.query(f"count({SIGHT}) == {FLEET_SIZE}"), seconds=120)
        until(lambda: {"fleet", "wrong", "down"} <= _alerting(daemon), seconds=120)
        since = datetime.now(UTC) + 2 * timedelta(
            seconds=RULES_SECONDS
        )  # an alert may wait for what another group records
        until(lambda: _all_evaluated(daemon, since), seconds=120)
        active = daemon.get("/api/v1/alerts")["data"]["alerts"]
        groups, at = daemon.get("/api/v1/rules")["data"]["groups"], time.time()
    # Without the rules from here on: a thousand VMs every two seconds would cost a core as long as the tests last.
    with prometheus(folder, []) as daemon, httpx.Client(base_url=daemon.url, timeout=60) as client:
        yield World(client, end, at, active, groups)


SIGHT: Final = 'instance:azure_scheduled_events_up:blindness{job="fleet"}'


def _all_evaluated(daemon: Daemon, since: datetime) -> bool:
    """Whether every group of rules was evaluated after that time, but for those of a longer interval."""
    groups = daemon.get("/api/v1/rules")["data"]["groups"]
    often = [group for group in groups if group["interval"] <= RULES_SECONDS]
    return bool(often) and all(datetime.fromisoformat(group["lastEvaluation"]) > since for group in often)


def _alerting(daemon: Daemon) -> set[str]:
    return {alert["labels"].get("job", "") for alert in daemon.get("/api/v1/alerts")["data"]["alerts"]}
