"""The alerts as an operator loads them: clean, tested, explained, and fed by metrics that exist."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.dashboards_families import labels_of, metric_names
from tests.support.peers import need

ALERTS: Final = Path(__file__).parents[2] / "alerts"
RULES: Final[dict[str, Any]] = yaml.safe_load((ALERTS / "rules.yml").read_text(encoding="utf-8"))
CASES: Final = sorted(ALERTS.glob("rules_test_*.yml"))
RUNBOOK: Final = (
    "https://github.com/azure-scheduled-events-exporter/azure-scheduled-events-exporter/blob/main/alerts/RUNBOOK.md"
)
SEVERITIES: Final = {"info", "warning", "critical"}
VM_LABELS: Final = ("vm_name", "vmss_name", "subscription_id", "resource_group", "tag_owner", "tag_environment")
"""What an alert about one VM is routed by, in the order in which the rules write it."""
COMMON: Final = {"job", "instance", "location", *VM_LABELS}
"""What the recording rules and Prometheus add to every series."""


def _rules(kind: str) -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"] if kind in rule]


ALERT_RULES: Final = _rules("alert")
RECORDED: Final = {rule["record"] for rule in _rules("record")}


def _promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "GOGC": "400"}
    command = [need("promtool"), *arguments]
    return subprocess.run(command, cwd=ALERTS, env=environ, text=True, capture_output=True, check=False)


@functools.cache
def _cases() -> list[dict[str, Any]]:
    loaded = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in CASES]
    return [case for document in loaded for test in document["tests"] for case in test.get("alert_rule_test", [])]


def test_the_rules_are_clean() -> None:
    """promtool finds nothing to complain about, not even as lint."""
    checked = _promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("cases", [path.name for path in CASES])
def test_the_rules_do_what_their_cases_say(cases: str) -> None:
    """Every case beside the rules holds, to the letter of the text that a person reads."""
    tested = _promtool("test", "rules", cases)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("rule", ALERT_RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_has_a_firing_and_a_silent_case(rule: dict[str, Any]) -> None:
    """No alert is believed to fire, or to stay silent, that was never seen to."""
    expected = [bool(case["exp_alerts"]) for case in _cases() if case["alertname"] == rule["alert"]]
    assert True in expected
    assert False in expected


@pytest.mark.parametrize("rule", ALERT_RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_tells_a_person_what_to_do(rule: dict[str, Any]) -> None:
    """Severity, summary, description and a runbook section that exists and says what to do."""
    name, annotations = rule["alert"], rule["annotations"]
    assert re.fullmatch(r"AzureScheduledEvents[A-Z][A-Za-z]+", name)
    assert rule["labels"]["severity"] in SEVERITIES
    assert 0 < len(annotations["summary"]) < 100
    assert annotations["description"].endswith(".")
    assert annotations["runbook_url"] == f"{RUNBOOK}#{name.lower()}"
    section = _sections()[name]
    for part in ("**Means:**", "**Look at:**", "**Do:**"):
        assert part in section


def test_the_runbook_explains_no_alert_that_is_gone() -> None:
    """Sections and alerts are the same set, in the same order."""
    assert list(_sections()) == [rule["alert"] for rule in ALERT_RULES]


def test_every_metric_named_in_alerts_exists() -> None:
    """Rules, cases and runbook name only metrics of the catalogue and recorded ones."""
    for path in [ALERTS / "rules.yml", ALERTS / "RUNBOOK.md", *CASES]:
        named = set(re.findall(r"(?<![:\w-])azure_scheduled_events_\w+(?!\w*:)\b", path.read_text(encoding="utf-8")))
        assert named <= metric_names(), f"{path.name} names {sorted(named - metric_names())}"


def test_every_label_in_a_selector_exists() -> None:
    """A selector on a label that a metric does not have would never match, and nobody would notice."""
    for path in [ALERTS / "rules.yml", *CASES]:
        text = path.read_text(encoding="utf-8")
        for name, selector in re.findall(r"(?<![:\w])(azure_scheduled_events_\w+)\{([^}]*)\}", text):
            labels = set(re.findall(r"(\w+)\s*=?[=~!]", selector))
            assert labels <= labels_of(name) | COMMON, f"{name} has no {sorted(labels - labels_of(name))}"


def test_every_recorded_series_is_used_by_its_name() -> None:
    """A recorded name that is used is recorded, and follows level:metric:operation."""
    used = set(re.findall(r"\w+:azure_scheduled_events_\w+:\w+", (ALERTS / "rules.yml").read_text(encoding="utf-8")))
    assert used == RECORDED
    for name in RECORDED:
        metric = name.split(":")[1]
        assert any(metric in (known, known.removesuffix("_total")) for known in metric_names()), name


def _sections() -> dict[str, str]:
    parts = re.split(r"^## (\w+)\n", (ALERTS / "RUNBOOK.md").read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
