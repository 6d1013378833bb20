"""The alerts that an operator loads: they are lint-free, tested, documented, and use only metrics that exist."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dashboards import VM_UID
from exporter.metadata.errors import REASONS
from exporter.sinks.prometheus.sink import DROP_REASONS
from tests.support.dashboards_families import labels_of, metric_names
from tests.support.peers import need

ALERTS: Final = Path(__file__).parents[2] / "alerts"
RULES: Final[dict[str, Any]] = yaml.safe_load((ALERTS / "rules.yml").read_text(encoding="utf-8"))
CASES: Final = sorted(ALERTS.glob("rules_test_*.yml"))
RUNBOOK: Final = (
    "https://github.com/azure-scheduled-events-exporter/azure-scheduled-events-exporter/blob/main/alerts/RUNBOOK.md"
)
GRAFANA: Final = "https://grafana.example"
"""The address in rules.yml that users replace by that of their Grafana."""
SEVERITIES: Final = {"info", "warning", "critical"}
VM_LABELS: Final = ("vm_name", "vmss_name", "subscription_id", "resource_group", "tag_owner", "tag_environment")
"""The labels by which an alert about one VM is routed, in the order of the rules."""
COMMON: Final = {"job", "instance", "location", *VM_LABELS}
"""The labels that the recording rules and Prometheus add to every series."""


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


def test_promtool_finds_no_fault_in_the_rules() -> None:
    """promtool accepts the rules, with all lint checks."""
    checked = _promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("cases", [path.name for path in CASES])
def test_the_rules_pass_their_promtool_cases(cases: str) -> None:
    """Every case passes, including the exact text of summary and description."""
    tested = _promtool("test", "rules", cases)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("rule", ALERT_RULES, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_an_alert_has_a_firing_and_a_silent_case(rule: dict[str, Any]) -> None:
    """Each alert fires in one case and doesn't fire in another one; so does each severity of an alert with two."""
    severity = rule["labels"]["severity"]
    expected = [
        severity in {alert["exp_labels"]["severity"] for alert in case["exp_alerts"]}
        for case in _cases()
        if case["alertname"] == rule["alert"]
    ]
    assert True in expected
    assert False in expected


@pytest.mark.parametrize("rule", ALERT_RULES, ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_an_alert_has_texts_and_a_runbook_section(rule: dict[str, Any]) -> None:
    """Severity, a summary of at most eight words, a description, and a runbook section: meaning, checks, and remedy."""
    name, annotations = rule["alert"], rule["annotations"]
    assert re.fullmatch(r"AzureScheduledEvents[A-Z][A-Za-z]+", name)
    assert rule["labels"]["severity"] in SEVERITIES
    summary = re.sub(r"\{\{.*?\}\}", "value", re.sub(r"\{\{ (if|else|end)\b.*?\}\}", " ", annotations["summary"]))
    assert 0 < len(summary.split()) <= 8 + annotations["summary"].count("{{ else }}")
    for case in _cases():
        if case["alertname"] == name:
            for alert in case["exp_alerts"]:
                assert len(alert["exp_annotations"]["summary"]) < 100
    assert annotations["description"].endswith(".")
    assert annotations["runbook_url"] == f"{RUNBOOK}#{name.lower()}"
    assert annotations["dashboard_url"].startswith(f"{GRAFANA}/d/")
    meaning, checks, remedy = re.split(r"^\*\*(?:Check|Do):\*\* ", _sections()[name], flags=re.M)
    assert all(part.strip() for part in (meaning, checks, remedy))


def test_runbook_sections_match_the_alerts() -> None:
    """Sections and alerts are the same, in the same order, and the index links to each section once."""
    alerts = list(dict.fromkeys(rule["alert"] for rule in ALERT_RULES))
    assert list(_sections()) == alerts
    index = (ALERTS / "RUNBOOK.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert sorted(re.findall(r"\(#(\w+)\)", index)) == sorted(name.lower() for name in alerts)


def test_runbook_lists_the_alerts_by_severity() -> None:
    """The runbook names the critical and the info alerts; all others are warnings."""
    text = (ALERTS / "RUNBOOK.md").read_text(encoding="utf-8")
    listed = {
        found[1]: set(re.findall(r"\b[A-Z]\w+", found[2]))
        for found in re.finditer(r"^- `(critical|info)`: [^.]+\.\s+([^.]+)\.", text, re.M)
    }
    severities = {"critical", "info"}
    assert listed == {
        severity: {
            rule["alert"].removeprefix("AzureScheduledEvents")
            for rule in ALERT_RULES
            if rule["labels"]["severity"] == severity
        }
        for severity in severities
    }


def test_dashboard_links_select_the_vms_of_the_alert() -> None:
    """Each link opens a dashboard that exists, and each parameter is one of its variables."""
    boards = {}
    for path in (ALERTS.parent / "dashboards").glob("*.json"):
        board = json.loads(path.read_text(encoding="utf-8"))
        boards[board["uid"]] = {variable["name"] for variable in board["templating"]["list"]}
    for rule in ALERT_RULES:
        uid, _, parameters = rule["annotations"]["dashboard_url"].removeprefix(f"{GRAFANA}/d/").partition("?")
        names = set(re.findall(r"var-(\w+)=", parameters))
        assert names <= boards[uid]
        assert ("instance" in names) == (uid == VM_UID)


def test_runbook_explains_every_reason_of_a_failed_request() -> None:
    """Each `reason` of an alert about polls, approvals, or lost records is in a list by reason."""
    polls, lost = (_sections()[f"AzureScheduledEvents{name}"] for name in ("SourceFailing", "DestinationDropping"))
    assert {reason for reason in (*REASONS, "other") if f"`{reason}`" not in polls} == set()
    assert {reason for reason in DROP_REASONS if reason != "other" and f"`{reason}`" not in lost} == set()


def test_every_case_evaluates_the_groups_in_the_order_of_the_file() -> None:
    """promtool evaluates unlisted groups in any order; alerts would read values of the previous evaluation."""
    groups = [group["name"] for group in RULES["groups"]]
    for path in CASES:
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["group_eval_order"] == groups, path.name


def test_every_metric_named_in_alerts_exists() -> None:
    """Rules, cases, and runbook name only metrics of the catalogue and recorded series."""
    for path in [ALERTS / "rules.yml", ALERTS / "RUNBOOK.md", *CASES]:
        named = set(re.findall(r"(?<![:\w-])azure_scheduled_events_\w+(?!\w*:)\b", path.read_text(encoding="utf-8")))
        assert named <= metric_names(), f"{path.name} names {sorted(named - metric_names())}"


def test_every_label_in_a_selector_exists() -> None:
    """Selectors use only labels that the metric has; another label would silently never match."""
    for path in [ALERTS / "rules.yml", *CASES]:
        text = path.read_text(encoding="utf-8")
        for name, selector in re.findall(r"(?<![:\w])(azure_scheduled_events_\w+)\{([^}]*)\}", text):
            labels = set(re.findall(r"(\w+)\s*=?[=~!]", selector))
            assert labels <= labels_of(name) | COMMON, f"{name} has no {sorted(labels - labels_of(name))}"


def test_every_recorded_series_is_used_by_its_name() -> None:
    """Each recorded series that is used is recorded, and its name follows level:metric:operation."""
    used = set(re.findall(r"\w+:azure_scheduled_events_\w+:\w+", (ALERTS / "rules.yml").read_text(encoding="utf-8")))
    assert used == RECORDED
    for name in RECORDED:
        metric = name.split(":")[1]
        assert any(metric in (known, known.removesuffix("_total")) for known in metric_names()), name


def _sections() -> dict[str, str]:
    parts = re.split(r"^## (\w+)\n", (ALERTS / "RUNBOOK.md").read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
