"""The Alertmanager configuration of the compose file: it is valid and complete, and routes alerts as documented."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from benchmarks.fleet_month import SCENARIOS, Scenario
from benchmarks.notifications import Change, play
from tests.support.documentation import ROOT, blocks
from tests.support.peers import need

ALERTS: Final = ROOT / "alerts"
CONFIG: Final = ROOT / "deploy" / "compose" / "alertmanager.yml"
PAGE: Final = ROOT / "docs" / "alertmanager.md"
LOADED: Final[dict[str, Any]] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
RULES: Final[list[dict[str, Any]]] = [
    rule
    for group in yaml.safe_load((ALERTS / "rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
SEVERITY: Final = {rule["alert"]: rule["labels"]["severity"] for rule in RULES if "alert" in rule}
RECEIVER: Final = {"info": "none", "warning": "operators", "critical": "on-call"}
OWNERS: Final = {"info": "none", "warning": "shop", "critical": "shop-on-call"}

_NAMED: Final = re.findall(r"AzureScheduledEvents\w+", json.dumps(LOADED["route"]))
_REPRESENTATIVES: Final = sorted(
    {name for name in SEVERITY if any(name.startswith(named) for named in _NAMED)}
    | {next(name for name, word in SEVERITY.items() if word == severity) for severity in RECEIVER}
    | {name for name in SEVERITY if name.endswith("Wave")}
)
"""One alert of each severity, and each alert that a route names: together they cover every route."""

pytestmark = pytest.mark.peer("alertmanager")


def _amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([need("amtool"), *arguments], text=True, capture_output=True, check=False)


def _routed(receiver: str, **labels: str) -> None:
    recorded = [f"{name}={value}" for name, value in labels.items()]
    done = _amtool("config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={receiver}", *recorded)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_is_valid() -> None:
    """amtool accepts the file unchanged."""
    checked = _amtool("check-config", str(CONFIG))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("alert", _REPRESENTATIVES)
def test_an_alert_is_routed_by_severity_and_owner(alert: str) -> None:
    """info reaches no one; warnings and critical alerts reach their receiver, or that of the VM's owner."""
    severity = SEVERITY[alert]
    _routed(RECEIVER[severity], alertname=alert, severity=severity)
    _routed(OWNERS[severity], alertname=alert, severity=severity, tag_owner="shop")


def test_alerts_of_other_projects_reach_the_operators() -> None:
    """An unknown alert with an unknown severity is routed to `operators`."""
    _routed("operators", alertname="NodeDown", severity="page")


def _matchers(rule: dict[str, Any], end: str) -> list[tuple[str, str, str]]:
    """Return label, operator, and value of each matcher of one end of an inhibition."""
    found = [re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', text) for text in rule[f"{end}_matchers"]]
    return [(match[1], match[2], match[3]) for match in found if match]


def _names(matchers: list[tuple[str, str, str]]) -> set[str]:
    """Return the alerts that these matchers select by name."""
    kept = set(SEVERITY)
    for label, operator, value in matchers:
        if label == "alertname":
            kept = {name for name in kept if bool(re.fullmatch(value, name)) == operator.startswith("=")}
    return kept


@pytest.mark.parametrize("rule", LOADED["inhibit_rules"], ids=lambda rule: rule["source_matchers"][0])
def test_an_inhibition_names_alerts_that_exist_and_share_their_labels(rule: dict[str, Any]) -> None:
    """Each name in an inhibition is an alert's, and no alert mutes itself through labels that both ends have."""
    for end in ("source", "target"):
        matchers = _matchers(rule, end)
        assert len(matchers) == len(rule[f"{end}_matchers"])
        assert _names(matchers)
        for label, operator, value in matchers:
            if label == "alertname" and operator == "=~" and "(" in value:
                prefix, words = re.fullmatch(r"(\w+)\(([\w|]+)\)", value).groups()  # type: ignore[union-attr]  # no match fails the test
                assert {prefix + word for word in words.split("|")} <= set(SEVERITY)
    both = _names(_matchers(rule, "source")) & _names(_matchers(rule, "target"))
    assert not both or any(label == "scope" for label, _, _ in _matchers(rule, "target"))


def test_a_wave_of_a_subscription_mutes_only_other_waves() -> None:
    """Its VMs have many owners: a warning about a VM reaches its owner."""
    waves = {name for name in SEVERITY if name.endswith("Wave")}
    for rule in LOADED["inhibit_rules"]:
        if ("scope", "=", "subscription") in _matchers(rule, "source") and _names(_matchers(rule, "source")) & waves:
            assert _names(_matchers(rule, "target")) == waves
            assert ("tag_owner", "=", "") in _matchers(rule, "target")


@pytest.mark.parametrize("alert", ["FleetDown", "FleetDataStale"])
def test_an_alert_of_a_subscription_is_routed_to_the_operators_and_mutes_no_owners_alert(alert: str) -> None:
    """Its VMs have many owners, each of whom is notified of the own scale sets and VMs."""
    name = f"AzureScheduledEvents{alert}"
    _routed(RECEIVER[SEVERITY[name]], alertname=name, severity=SEVERITY[name], scope="subscription")
    for rule in LOADED["inhibit_rules"]:
        if name in _names(_matchers(rule, "source")) and ("scope", "=", "subscription") in _matchers(rule, "source"):
            assert ("tag_owner", "=", "") in _matchers(rule, "target")


VM: Final = {
    "job": "j",
    "subscription_id": "s",
    "resource_group": "g",
    "vmss_name": "w",
    "instance": "i",
    "event_type": "Reboot",
}
GROUP: Final = {name: VM[name] for name in ("job", "subscription_id", "resource_group", "event_type")}
SET: Final = {**GROUP, "vmss_name": VM["vmss_name"]}


@pytest.mark.parametrize(
    ("muting", "muted", "recorded"),
    [
        (
            {
                "alertname": "MaintenanceWave",
                "scope": "subscription",
                "job": "j",
                "subscription_id": "s",
                "event_type": "Reboot",
            },
            {"alertname": "MaintenanceImminent", "tag_owner": "shop", **VM},
            {"operators": 1, "shop": 1},
        ),
        (
            {
                "alertname": "MaintenanceWave",
                "scope": "subscription",
                "job": "j",
                "subscription_id": "s",
                "event_type": "Reboot",
            },
            {"alertname": "MaintenanceWave", "scope": "resource group", "tag_owner": "data", **GROUP},
            {"operators": 2},
        ),
        (
            {
                "alertname": "MaintenanceWave",
                "scope": "subscription",
                "job": "j",
                "subscription_id": "s",
                "event_type": "Reboot",
            },
            {"alertname": "MaintenanceWave", "scope": "resource group", **GROUP},
            {"operators": 1},
        ),
        (
            {"alertname": "MaintenanceWave", "scope": "resource group", "tag_owner": "shop", **GROUP},
            {"alertname": "MaintenanceImminent", "tag_owner": "shop", **VM},
            {"shop": 1},
        ),
        (
            {"alertname": "MaintenanceWave", "scope": "resource group", **GROUP},
            {"alertname": "MaintenanceWave", "scope": "scale set", **SET},
            {"operators": 1},
        ),
        (
            {"alertname": "MaintenanceWave", "scope": "resource group", **GROUP},
            {"alertname": "MaintenanceImminent", "tag_owner": "shop", **GROUP, "instance": "i"},
            {"operators": 1, "shop": 1},
        ),
        (
            {"alertname": "MaintenanceWave", "scope": "scale set", "tag_environment": "test", **SET},
            {"alertname": "MaintenanceImminent", "tag_environment": "production", **VM},
            {"operators": 2},
        ),
        (
            {"alertname": "MaintenanceWave", "scope": "scale set", "tag_environment": "test", **SET},
            {"alertname": "MaintenanceImminent", "tag_environment": "test", **VM},
            {"operators": 1},
        ),
        (
            {"alertname": "VMDidNotReturn", "cluster": "west", "tag_owner": "shop", **VM},
            {"alertname": "ExporterDown", "cluster": "north", "tag_owner": "shop", **VM},
            {"shop": 1, "shop-on-call": 1},
        ),
    ],
    ids=[
        "a subscription and a VM",
        "a subscription and an owner",
        "a subscription and a resource group",
        "a resource group and its VM",
        "a resource group and its scale set",
        "another owner",
        "another environment",
        "the same environment",
        "another cluster",
    ],
)
def test_an_alert_mutes_only_alerts_that_their_receivers_get_otherwise(
    muting: dict[str, str], muted: dict[str, str], recorded: dict[str, int], tmp_path: Path
) -> None:
    """A muted alert reaches the same receivers in another way; an alert about something else isn't muted."""
    begins = []
    for alert in (muting, muted):
        name = f"AzureScheduledEvents{alert['alertname']}"
        begins.append(frozenset({**alert, "alertname": name, "severity": SEVERITY[name]}.items()))
    scenario = Scenario("two alerts", 3, 1, lambda _: None)
    _, heard = play(scenario, [Change(0.0, begins, [])], 480.0, tmp_path)
    assert {receiver: count for (receiver, state), count in heard.items() if state == "firing"} == recorded


@pytest.mark.parametrize(
    ("other", "owner"),
    [({"vmss_name": "w2"}, {"tag_owner": "shop"}), ({"event_type": "Redeploy"}, {})],
    ids=["another scale set of an owner", "another type of event"],
)
def test_the_next_wave_notifies_while_the_first_continues(
    other: dict[str, str], owner: dict[str, str], tmp_path: Path
) -> None:
    """A wave mutes alerts of its VMs: the next one notifies within minutes, and the first one doesn't notify again."""
    name = "AzureScheduledEventsMaintenanceWave"
    wave = {"alertname": name, "severity": SEVERITY[name], "scope": "scale set", **SET, **owner}
    begins = [[frozenset(wave.items())], [frozenset({**wave, **other}.items())]]
    changes = [Change(0.0, begins[0], []), Change(30.0, begins[1], [])]
    _, heard = play(Scenario("two waves", 40, 1, lambda _: None), changes, 480.0, tmp_path)
    assert {receiver: count for (receiver, state), count in heard.items() if state == "firing"} == {
        "shop" if owner else "operators": 2
    }


def test_prometheus_of_the_compose_file_sends_to_its_alertmanager() -> None:
    """The service with the configuration is the one that Prometheus sends its alerts to."""
    services = yaml.safe_load((CONFIG.parent / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert "./alertmanager.yml:/etc/alertmanager/alertmanager.yml:ro" in services["alertmanager"]["volumes"]
    recorded = yaml.safe_load((CONFIG.parent / "prometheus.yml").read_text(encoding="utf-8"))
    assert recorded["alerting"]["alertmanagers"] == [{"static_configs": [{"targets": ["alertmanager:9093"]}]}]


@pytest.mark.linux("runs the documented line in a shell")
def test_another_tag_is_carried_by_the_line_in_the_docs(tmp_path: Path) -> None:
    """The documented sed adds a tag to every list that carries the VM's labels, and promtool accepts the result."""
    line = re.search(r"^sed (?:.*\\\n)+.*$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    assert line
    folder = tmp_path / "alerts"
    folder.mkdir()
    config = tmp_path / CONFIG.relative_to(ROOT)
    config.parent.mkdir(parents=True)
    config.write_bytes(CONFIG.read_bytes())
    before = (ALERTS / "rules.yml").read_text(encoding="utf-8")
    (folder / "rules.yml").write_text(before, encoding="utf-8")
    subprocess.run(["sh", "-c", line[0]], cwd=tmp_path, check=True)
    after = (folder / "rules.yml").read_text(encoding="utf-8")
    lists = re.findall(r"(?:by|group_left|on) \(([^()]*tag_owner[^()]*)\)", after)
    assert len(lists) > 30
    assert all("tag_cost_centre" in labels.split(", ") for labels in lists)
    assert after.count('"tag_environment"') == after.count('"tag_environment" "tag_cost_centre"') > 0
    assert re.sub(r',? "?tag_cost_centre"?', "", after) == before
    equal = [rule["equal"] for rule in yaml.safe_load(config.read_text(encoding="utf-8"))["inhibit_rules"]]
    assert [("tag_cost_centre" in labels) for labels in equal] == [("tag_environment" in labels) for labels in equal]
    checked = subprocess.run(
        [need("promtool"), "check", "rules", "--lint=all", "--lint-fatal", "rules.yml"],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("rule", [rule for rule in RULES if "alert" in rule], ids=lambda rule: str(rule["alert"]))
def test_an_alert_about_a_vm_carries_the_whole_list(rule: dict[str, Any]) -> None:
    """Every rule that carries labels of the VM carries the same list, so that one line adds another tag."""
    for labels in re.findall(r"\(([^()]*vm_name[^()]*)\)", rule["expr"]):
        assert labels.endswith("vm_name, vmss_name, subscription_id, resource_group, tag_owner, tag_environment")


def test_the_documented_route_to_an_owner_is_in_the_configuration() -> None:
    """The YAML on the page is the first part of the route to the owner `shop`."""
    (shown,) = [block for block in blocks(PAGE) if block.language == "yaml"]
    (route,) = yaml.safe_load(shown.text)
    (whole,) = [each for each in LOADED["route"]["routes"] if each.get("matchers") == route["matchers"]]
    assert route == {**whole, "routes": whole["routes"][: len(route["routes"])]}


def test_the_table_of_a_month_has_its_scenarios_and_their_sums() -> None:
    """docs/benchmarks.md has a row for each scenario and the sums, and docs/alertmanager.md has the total."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    section = text.partition("## Notifications in a month\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    scenarios = [row for row in rows[2:] if not row[0].startswith("**")]
    recorded = [(name, int(times), must) for name, _, times, _, _, _, must in scenarios]
    assert recorded == [(scenario.name, scenario.times, scenario.must or "none") for scenario in SCENARIOS]
    messages, pages = (sum(int(row[2]) * int(row[column]) for row in scenarios) for column in (4, 5))
    sums = [[cell.strip("*") for cell in row if cell.startswith("**")] for row in rows[-2:]]
    assert sums == [
        ["30 days", str(messages), str(pages)],
        ["One day", f"{messages / 30:.2f}", f"{pages / 30:.2f}"],
    ]
    assert f"**{messages} messages and {pages} pages**" in PAGE.read_text(encoding="utf-8")
    idle = [row[0] for row in scenarios if row[6] == "none" and row[4:6] != ["0", "0"]]
    assert not idle, "a message that needs no action"
