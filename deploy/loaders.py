"""The alerts for other loaders than Prometheus' own, made of the one `alerts/rules.yml`: `python -m deploy.loaders`.

`alerts/prometheusrule.yaml` is for the Prometheus Operator, `alerts/azure-monitor.json` an ARM template for Azure's
managed Prometheus. Both hold every rule, in the same groups and the same order.

What Azure takes comes from Microsoft's reference of `Microsoft.AlertsManagement/prometheusRuleGroups` (API 2023-03-01),
the limits of a rule group from its "Azure Monitor service limits", the lengths from the schema that its own converter
(Azure/prometheus-collector, az-prom-rules-converter) validates with. `tests/project/test_loaders.py` holds them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

ALERTS: Final = Path(__file__).parents[1] / "alerts"
NAME: Final = "azure-scheduled-events-exporter"

SEVERITIES: Final = {"critical": 0, "warning": 2, "info": 3}
"""What a rule's label `severity` is at Azure Monitor (0 critical, 1 error, 2 warning, 3 informational, 4 verbose)."""

DEFAULT_INTERVAL: Final = "1m"
"""Of a group that names none: Prometheus' default, Azure's default, and the shortest that Azure takes."""
TIME_TO_RESOLVE: Final = "PT5M"
"""How long an alert of Azure must have been over before it is resolved (its default; 1 to 15 minutes)."""

_UNITS: Final = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_PART: Final = re.compile(r"(\d+)([wdhms])")
_SCHEMA: Final = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
_PARAMETERS: Final = {
    "azureMonitorWorkspaceResourceId": {
        "type": "string",
        "metadata": {"description": "Resource id of the Azure Monitor workspace that holds the exporter's metrics."},
    },
    "location": {
        "type": "string",
        "defaultValue": "[resourceGroup().location]",
        "metadata": {"description": "Region of the rule groups: that of the workspace."},
    },
    "clusterResourceId": {
        "type": "string",
        "defaultValue": "",
        "metadata": {"description": "Resource id of an AKS or Arc cluster: the rules then read its metrics alone."},
    },
    "clusterName": {
        "type": "string",
        "defaultValue": "",
        "metadata": {
            "description": "Value of the label cluster of that cluster's metrics; also ends the rule groups' names."
        },
    },
    "actionGroupResourceIds": {
        "type": "array",
        "defaultValue": [],
        "metadata": {"description": "Resource ids of the action groups that every alert notifies."},
    },
    "enabled": {
        "type": "bool",
        "defaultValue": True,
        "metadata": {"description": "Whether the rule groups are evaluated."},
    },
}
_VARIABLES: Final = {
    "suffix": "[if(empty(parameters('clusterName')), '', concat('-', parameters('clusterName')))]",
    "scopes": (
        "[if(empty(parameters('clusterResourceId')), createArray(parameters('azureMonitorWorkspaceResourceId')), "
        "createArray(parameters('azureMonitorWorkspaceResourceId'), parameters('clusterResourceId')))]"
    ),
    "actions": (
        "[map(parameters('actionGroupResourceIds'), "
        "lambda('id', createObject('actionGroupId', lambdaVariables('id'))))]"
    ),
}


def seconds(duration: str) -> int:
    """The seconds of a duration as Prometheus writes it, such as 1h30m. Raises ValueError for any other text."""
    parts = _PART.findall(duration)
    if not parts or "".join(count + unit for count, unit in parts) != duration:
        raise ValueError(f"{duration!r} is no duration of whole seconds")
    return sum(int(count) * _UNITS[unit] for count, unit in parts)


def iso_duration(duration: str) -> str:
    """A duration of Prometheus' as ISO 8601 writes it, in hours, minutes and seconds: 90m becomes PT1H30M."""
    hours, rest = divmod(seconds(duration), 3600)
    parts = zip((hours, *divmod(rest, 60)), "HMS", strict=True)
    return "PT" + ("".join(f"{count}{unit}" for count, unit in parts if count) or "0S")


def prometheus_rule(rules: str) -> str:
    """The Prometheus Operator's object of a rule file's text. Comments stay behind."""
    lines = [line for line in rules.splitlines() if not line.lstrip().startswith("#")]
    spec = "\n".join(f"  {line}".rstrip() for line in lines)
    spec = re.sub(r"\n{2,}", "\n", spec)
    return f"""\
# Made of rules.yml by `make generate`; why each rule is as it is stands there. A Prometheus loads this object when its
# ruleSelector takes the object's labels and its ruleNamespaceSelector the namespace that it is put into.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {NAME}
  labels:
    app.kubernetes.io/name: {NAME}
spec:
{spec}
"""


def azure_monitor(rules: str) -> str:
    """An ARM template with one rule group for each group of a rule file's text. Raises ValueError for what ARM would
    take for an expression of its own, KeyError for a severity that Azure has no word for."""
    template = {
        "$schema": _SCHEMA,
        "contentVersion": "1.0.0.0",
        "metadata": {"description": "Made of rules.yml by `make generate`; why each rule is as it is stands there."},
        "parameters": _PARAMETERS,
        "variables": _VARIABLES,
        "resources": [_azure_group(group) for group in yaml.safe_load(rules)["groups"]],
    }
    return json.dumps(template, indent=2) + "\n"


def _azure_group(group: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "Microsoft.AlertsManagement/prometheusRuleGroups",
        "apiVersion": "2023-03-01",
        "name": f"[concat('{group['name']}', variables('suffix'))]",
        "location": "[parameters('location')]",
        "properties": {
            "description": f"{NAME}: {group['name']}",
            "scopes": "[variables('scopes')]",
            "clusterName": "[if(empty(parameters('clusterName')), null(), parameters('clusterName'))]",
            "enabled": "[parameters('enabled')]",
            "interval": iso_duration(group.get("interval", DEFAULT_INTERVAL)),
            "rules": [_azure_rule(rule) for rule in group["rules"]],
        },
    }


def _azure_rule(rule: dict[str, Any]) -> dict[str, Any]:
    if "record" in rule:
        converted = {"record": rule["record"], "expression": _literal(rule["expr"])}
        return converted | ({"labels": rule["labels"]} if "labels" in rule else {})
    waits = {"for": iso_duration(rule["for"])} if "for" in rule else {}
    return {
        "alert": rule["alert"],
        "expression": _literal(rule["expr"]),
        **waits,
        "severity": SEVERITIES[rule["labels"]["severity"]],
        "labels": rule["labels"],
        "annotations": {name: _literal(text) for name, text in rule["annotations"].items()},
        "resolveConfiguration": {"autoResolved": True, "timeToResolve": TIME_TO_RESOLVE},
        "actions": "[variables('actions')]",
    }


def _literal(text: str) -> str:
    """The text without the line end that YAML's block style leaves, as ARM takes it as it stands."""
    text = text.rstrip("\n")
    if text.startswith("["):
        raise ValueError(f"ARM would read an expression of its own: {text}")
    return text


MADE: Final = {ALERTS / "prometheusrule.yaml": prometheus_rule, ALERTS / "azure-monitor.json": azure_monitor}
"""Each file that is made of `rules.yml`, and what makes its text of that file's text."""


def main() -> None:
    """Write the files."""
    rules = (ALERTS / "rules.yml").read_text(encoding="utf-8")
    for path, make in MADE.items():
        path.write_text(make(rules), encoding="utf-8")
        print(f"wrote {path.relative_to(ALERTS.parent)}")


if __name__ == "__main__":
    main()
