"""The alerts in the formats of other loaders: complete, and within the limits of each loader."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from deploy.loaders import ALERTS, MADE, azure_monitor, iso_duration, seconds
from tests.support.peers import need

RULES: Final = (ALERTS / "rules.yml").read_text(encoding="utf-8")
GROUPS: Final[list[dict[str, Any]]] = yaml.safe_load(RULES)["groups"]
OPERATOR: Final[dict[str, Any]] = yaml.safe_load((ALERTS / "prometheusrule.yaml").read_text(encoding="utf-8"))
AZURE: Final[dict[str, Any]] = json.loads((ALERTS / "azure-monitor.json").read_text(encoding="utf-8"))
RESOURCES: Final[list[dict[str, Any]]] = AZURE["resources"]
BY_SEVERITY: Final = {"critical": 0, "warning": 2, "info": 3}

EXPRESSION: Final = re.compile(r"\[(?!\[).*\]", re.DOTALL)
"""Texts that ARM evaluates instead of keeping them as they are."""

DURATION: Final = {"type": "string", "pattern": r"^PT(?=\d)(\d+H)?(\d+M)?(\d+S)?$"}
NAMED: Final = {"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"}
TEXTS: Final = {
    "type": "object",
    "patternProperties": {"^(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,1023}$": {"type": "string", "maxLength": 1024}},
    "additionalProperties": False,
}
RULE: Final = {
    "type": "object",
    "properties": {
        "record": NAMED,
        "alert": NAMED,
        "expression": {"type": "string", "minLength": 1},
        "for": DURATION,
        "severity": {"type": "integer", "minimum": 0, "maximum": 4},
        "labels": TEXTS | {"maxProperties": 10},
        "annotations": TEXTS,
        "resolveConfiguration": {
            "type": "object",
            "properties": {"autoResolved": {"const": True}, "timeToResolve": DURATION},
            "required": ["autoResolved", "timeToResolve"],
            "additionalProperties": False,
        },
        "actions": {"const": "[variables('actions')]"},
    },
    "required": ["expression"],
    "oneOf": [{"required": ["record"]}, {"required": ["alert", "severity", "actions"]}],
    "additionalProperties": False,
}
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "type": {"const": "Microsoft.AlertsManagement/prometheusRuleGroups"},
        "apiVersion": {"const": "2023-03-01"},
        "name": {"type": "string"},
        "location": {"type": "string"},
        "properties": {
            "type": "object",
            "properties": {
                "description": {"type": "string", "maxLength": 2048},
                "scopes": {"type": "string"},
                "clusterName": {"type": "string"},
                "enabled": {"type": "string"},
                "interval": DURATION,
                "rules": {"type": "array", "items": RULE, "minItems": 1, "maxItems": 20},
            },
            "required": ["description", "scopes", "clusterName", "enabled", "interval", "rules"],
            "additionalProperties": False,
        },
    },
    "required": ["type", "apiVersion", "name", "location", "properties"],
    "additionalProperties": False,
}
"""The schema of a rule group, after Microsoft's resource schema and the limits that `deploy/loaders.py` cites."""


def group_name(resource: dict[str, Any]) -> str:
    """Return the name of a rule group without its cluster."""
    match = re.fullmatch(r"\[concat\('([^']+)', variables\('suffix'\)\)\]", resource["name"])
    assert match, resource["name"]
    return match[1]


def iso_seconds(duration: str) -> int:
    match = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", duration)
    assert match, duration
    hours, minutes, rest = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + rest


def back(resource: dict[str, Any]) -> dict[str, Any]:
    """Return a rule group of the template in Prometheus' format."""
    return {
        "name": group_name(resource),
        "interval": f"{iso_seconds(resource['properties']['interval'])}s",
        "rules": [
            {key: rule[key] for key in ("record", "alert", "labels") if key in rule}
            | {"expr": rule["expression"]}
            | ({"annotations": _with_links(rule["annotations"])} if "annotations" in rule else {})
            | ({"for": f"{iso_seconds(rule['for'])}s"} if "for" in rule else {})
            for rule in resource["properties"]["rules"]
        ],
    }


def _with_links(annotations: dict[str, str]) -> dict[str, str]:
    """Return the annotations with the default address of Grafana instead of ARM's parameter."""
    default = AZURE["parameters"]["grafanaUrl"]["defaultValue"]
    link = re.fullmatch(r"\[concat\(parameters\('grafanaUrl'\), '([^']+)'\)\]", annotations["dashboard_url"])
    assert link, annotations["dashboard_url"]
    return {**annotations, "dashboard_url": default + link[1]}


def _without_queries(text: str) -> str:
    """Return the text without its queries, which Azure doesn't evaluate."""
    before, _, rest = text.partition("{{- /* queries */ -}}")
    return (before.rstrip() + rest.partition("{{- /* end of queries */ -}}")[2].lstrip() if rest else text).rstrip("\n")


def plain(group: dict[str, Any]) -> dict[str, Any]:
    """Return a rule group with durations in seconds, without queries, and without line ends of YAML's blocks."""
    return {
        "name": group["name"],
        "interval": seconds(group.get("interval", "1m")),
        "rules": [
            rule
            | {"expr": rule["expr"].rstrip("\n")}
            | (
                {"annotations": {name: _without_queries(text) for name, text in rule["annotations"].items()}}
                if "annotations" in rule
                else {}
            )
            | ({"for": seconds(rule.get("for", "0s"))})
            for rule in group["rules"]
        ],
    }


def strings(value: object) -> list[str]:
    """Yield every text in a JSON value, except for keys."""
    if isinstance(value, dict):
        return [text for member in value.values() for text in strings(member)]
    if isinstance(value, list):
        return [text for member in value for text in strings(member)]
    return [value] if isinstance(value, str) else []


def promtool_finds_nothing(groups: list[dict[str, Any]], folder: Path) -> None:
    (folder / "rules.yml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    command = [need("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(folder / "rules.yml")]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_file_for_another_loader_is_current(path: Path) -> None:
    """Each file is what `make generate` makes of the current rules."""
    assert path.read_text(encoding="utf-8") == MADE[path](RULES)


def test_the_operator_gets_every_rule_unchanged() -> None:
    """The PrometheusRule has the same groups, and a name and a label for selectors."""
    assert OPERATOR["spec"] == {"groups": GROUPS}
    assert (OPERATOR["apiVersion"], OPERATOR["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert OPERATOR["metadata"] == {
        "name": "azure-scheduled-events-exporter",
        "labels": {"app.kubernetes.io/name": "azure-scheduled-events-exporter"},
    }


def test_azure_gets_every_rule_once_and_unchanged() -> None:
    """Converted back, the rule groups are those of the rules: expressions, durations, labels, texts, and order."""
    assert [plain(back(resource)) for resource in RESOURCES] == [plain(group) for group in GROUPS]
    assert not [text for text in strings(RESOURCES) if "query" in text.replace("urlquery", "")]
    waves = [rule for group in GROUPS for rule in group["rules"] if rule.get("alert", "").endswith("Wave")]
    for rule in waves:
        assert _without_queries(rule["annotations"]["description"]).count(".") >= 2


@pytest.mark.peer("promtool")
def test_promtool_accepts_the_rules_of_the_other_loaders(tmp_path: Path) -> None:
    """promtool accepts the groups of each file without a warning."""
    promtool_finds_nothing(OPERATOR["spec"]["groups"], tmp_path)
    promtool_finds_nothing([back(resource) for resource in RESOURCES], tmp_path)


@pytest.mark.parametrize("resource", RESOURCES, ids=group_name)
def test_a_rule_group_is_valid_for_azure(resource: dict[str, Any]) -> None:
    """Members, names, lengths, durations, and the number of rules are within Microsoft's limits."""
    jsonschema.Draft202012Validator(SCHEMA).validate(resource)
    assert re.fullmatch(r"[^:@/#{}%&+*<>?]+", group_name(resource))
    assert 60 <= iso_seconds(resource["properties"]["interval"]) <= 15 * 60
    for rule in resource["properties"]["rules"]:
        if "alert" in rule:
            assert 60 <= iso_seconds(rule["resolveConfiguration"]["timeToResolve"]) <= 15 * 60
            assert iso_seconds(rule.get("for", "PT1M")) % 60 == 0


def test_azure_gets_the_severity_of_the_label() -> None:
    """Every alert has the Azure severity that matches its label."""
    alerts = [rule for resource in RESOURCES for rule in resource["properties"]["rules"] if "alert" in rule]
    assert {(rule["labels"]["severity"], rule["severity"]) for rule in alerts} == set(BY_SEVERITY.items())


def test_the_names_of_rule_groups_differ() -> None:
    """Rule groups of one resource group have distinct names, regardless of case."""
    names = [group_name(resource).lower() for resource in RESOURCES]
    assert len(set(names)) == len(names)


def test_a_recorded_series_comes_before_its_readers() -> None:
    """Within a group a rule reads only series that earlier rules, or it itself, recorded; other groups run at any
    time."""
    for resource in RESOURCES:
        rules = resource["properties"]["rules"]
        places = {rule["record"]: place for place, rule in enumerate(rules) if "record" in rule}
        for place, rule in enumerate(rules):
            later = [name for name, other in places.items() if name in rule["expression"] and other > place]
            assert later == [], rule


def test_the_template_declares_what_it_uses() -> None:
    """Expressions of ARM name declared parameters and variables, each of them is used, and no rule is an expression."""
    expressions = [text for text in strings(AZURE) if EXPRESSION.fullmatch(text)]
    for kind in ("parameters", "variables"):
        named = {name for text in expressions for name in re.findall(rf"{kind}\('(\w+)'\)", text)}
        assert named == set(AZURE[kind])
    for text in expressions:
        assert text.count("(") == text.count(")")
    rules = [rule for resource in RESOURCES for rule in resource["properties"]["rules"]]
    own = [text for rule in rules for text in strings({key: rule[key] for key in rule if key != "actions"})]
    assert {text for text in own if text.startswith("[")} == {
        rule["annotations"]["dashboard_url"] for rule in rules if "annotations" in rule
    }


def test_text_that_arm_would_evaluate_is_rejected() -> None:
    """A rule with a text that begins like an ARM expression ends the conversion with a message."""
    rule = {"record": "a:b:c", "expr": "[1]"}
    with pytest.raises(ValueError, match="ARM would evaluate this text"):
        azure_monitor(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))


@pytest.mark.parametrize(
    ("duration", "iso"),
    [("30s", "PT30S"), ("1m", "PT1M"), ("90m", "PT1H30M"), ("1h30m", "PT1H30M"), ("1d", "PT24H"), ("0s", "PT0S")],
)
def test_a_duration_keeps_its_length(duration: str, iso: str) -> None:
    """Prometheus' durations become ISO 8601 durations of the same length."""
    assert iso_duration(duration) == iso
    assert iso_seconds(iso) == seconds(duration)


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "5m!", "500ms", "1y"])
def test_a_duration_without_whole_seconds_is_rejected(text: str) -> None:
    """Any other text ends the conversion with a message."""
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)


def test_the_operator_gets_every_dashboard() -> None:
    """Each object names a dashboard's file as the key of the one ConfigMap, and has the dashboard's name."""
    folder = ALERTS.parent / "dashboards"
    objects = list(yaml.safe_load_all((folder / "grafana-operator.yaml").read_text(encoding="utf-8")))
    assert {shown["kind"] for shown in objects} == {"GrafanaDashboard"}
    assert {shown["spec"]["configMapRef"]["name"] for shown in objects} == {"azure-scheduled-events-dashboards"}
    named = {shown["metadata"]["name"]: shown["spec"]["configMapRef"]["key"] for shown in objects}
    boards = {json.loads(path.read_text(encoding="utf-8"))["uid"]: path.name for path in folder.glob("*.json")}
    assert named == boards
