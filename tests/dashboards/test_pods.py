"""Alerts and dashboards if targets are pods: an instance, which is a node, has one pod after another."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.dashboards_environment import filled, load, panels
from tests.support.dashboards_families import labels_of, metric_names
from tests.support.peers import need

pytestmark = pytest.mark.peer("promtool")

RULES: Final = Path(__file__).parents[2] / "alerts" / "rules.yml"
WORDS: Final = {"event_status": "Started", "event_type": "Reboot", "attributed": "true", "le": "+Inf"}
"""Labels whose value a rule selects; the value of all others is arbitrary."""
PODS: Final = (
    ("node-1", "old", "1x20 stale"),
    ("node-1", "new", "_x22 1x20"),
    ("node-2", "only", "1x20 _x2 2x20"),
)
"""Instance, pod, and samples a minute apart: a rollout has reached only the first node."""

OVERLAPPING: Final = (("node-1", "old", "1x20 stale"), ("node-1", "new", "_x15 1x25"), ("node-2", "only", "1x40"))
"""The target of the old pod exists for five minutes longer, as it does for a scrape or two, or longer if federated."""


def _series(pods: Iterable[tuple[str, str, str]] = PODS) -> list[dict[str, str]]:
    made = []
    for name in sorted({*metric_names(), "up"}):
        own = labels_of(name) if name != "up" else set()
        for instance, pod, values in pods:
            labels = {label: WORDS.get(label, "a") for label in own} | {"job": "j", "instance": instance, "pod": pod}
            written = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
            # Counters of events during the rollout have no series before it.
            late = pod == "only" and name.endswith(("failures_total", "decisions_total", "seconds_sum"))
            made.append({"series": f"{name}{{{written}}}", "values": "_x22 1x20" if late else values})
    return made


def _output_of(case: dict[str, Any], folder: Path) -> str:
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
    (folder / "test.yml").write_text(yaml.safe_dump(document), encoding="utf-8")
    command = [need("promtool"), "test", "rules", str(folder / "test.yml")]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(("pods", "at"), [(PODS, "28m"), (OVERLAPPING, "18m")], ids=["one after the other", "both"])
def test_rules_and_panels_are_evaluated_while_a_node_has_had_two_pods(
    pods: Iterable[tuple[str, str, str]], at: str, tmp_path: Path
) -> None:
    """A pod that was replaced within a window makes no match ambiguous, which would break a rule for all nodes."""
    queries = {
        filled(target["expr"], "j", 3600)
        for name in ("vm", "fleet")
        for panel in panels(load(name))
        for target in panel["targets"]
    }
    asked = [{"expr": query, "eval_time": at, "exp_samples": []} for query in sorted(queries)]
    output = _output_of({"interval": "1m", "input_series": _series(pods), "promql_expr_test": asked}, tmp_path)
    assert len(queries) >= 40
    assert re.findall(r".*(?:err: |many-to-many|duplicate series).*", output) == []
    assert "got:" in output  # the queries were evaluated


def test_failed_approvals_of_a_new_pod_raise_the_alert_and_older_ones_of_its_predecessor_do_not(tmp_path: Path) -> None:
    """A series that appears after a pod's first scrape counts; older counts of its predecessor don't."""
    name = "azure_scheduled_events_approval_request_failures_total"
    series = [
        {"series": f'azure_scheduled_events_up{{job="j",instance="node-1",pod="{pod}"}}', "values": values}
        for _, pod, values in PODS[:2]
    ]
    series.append({"series": f'{name}{{job="j",instance="node-1",pod="old",reason="timeout"}}', "values": "5x20 stale"})
    silent = {"alertname": "AzureScheduledEventsApprovalFailing", "exp_alerts": []}
    quiet = [{**silent, "eval_time": f"{minute}m"} for minute in (15, 21, 23, 26, 28, 31, 40)]
    assert "SUCCESS" in _output_of({"interval": "1m", "input_series": series, "alert_rule_test": quiet}, tmp_path)
    series.append({"series": f'{name}{{job="j",instance="node-1",pod="new",reason="timeout"}}', "values": "_x24 3x20"})
    output = _output_of({"interval": "1m", "input_series": series, "alert_rule_test": quiet}, tmp_path)
    assert "3 approval requests from node-1 failed" in output
    assert set(re.findall(r"time: (\d+m)", output)) == {"26m", "28m", "31m"}
