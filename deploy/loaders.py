"""Generate the alert files for other loaders from `alerts/rules.yml`: `python -m deploy.loaders`.

`alerts/prometheusrule.yaml` is for the Prometheus Operator, `alerts/azure-monitor.json` an ARM template for Azure's
managed Prometheus. Both contain every rule, in the same groups and the same order.

What Azure accepts is defined by Microsoft's reference of `Microsoft.AlertsManagement/prometheusRuleGroups` (API
2023-03-01), the limits of a rule group by its "Azure Monitor service limits", and the lengths by the schema of its
converter (Azure/prometheus-collector, az-prom-rules-converter). `tests/project/test_loaders.py` checks them.
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
"""Azure Monitor's number for the label `severity` (0 critical, 1 error, 2 warning, 3 informational, 4 verbose)."""

GRAFANA: Final = "https://grafana.example"
"""The address in the links of `rules.yml` that users replace by that of their Grafana."""

DEFAULT_INTERVAL: Final = "1m"
"""Interval of a group without one: the default of Prometheus and Azure, and the shortest that Azure accepts."""
TIME_TO_RESOLVE: Final = "PT5M"
"""How long an alert must have stopped firing before Azure resolves it (its default; 1 to 15 minutes)."""

_UNITS: Final = {"w": 604800, "d": 86400, "h": 3600, "m": 60, "s": 1}
_PART: Final = re.compile(r"(\d+)([wdhms])")
_QUERIES: Final = re.compile(r"\s*\{\{- /\* queries \*/ -\}\}.*\{\{- /\* end of queries \*/ -\}\}\s*", re.DOTALL)
"""The part of a text that queries Prometheus: names of VMs and times. Azure evaluates no queries in texts, and limits
their length."""
_SCHEMA: Final = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"
_PARAMETERS: Final = {
    "azureMonitorWorkspaceResourceId": {
        "type": "string",
        "metadata": {"description": "Resource id of the Azure Monitor workspace that holds the exporter's metrics."},
    },
    "location": {
        "type": "string",
        "defaultValue": "[resourceGroup().location]",
        "metadata": {"description": "Region of the rule groups, which is the region of the workspace."},
    },
    "clusterResourceId": {
        "type": "string",
        "defaultValue": "",
        "metadata": {"description": "Resource id of an AKS or Arc cluster: the rules then read only its metrics."},
    },
    "clusterName": {
        "type": "string",
        "defaultValue": "",
        "metadata": {
            "description": "Value of the label cluster in the metrics of that cluster; also ends rule group names."
        },
    },
    "actionGroupResourceIds": {
        "type": "array",
        "defaultValue": [],
        "metadata": {"description": "Resource ids of the action groups that every alert notifies."},
    },
    "grafanaUrl": {
        "type": "string",
        "defaultValue": GRAFANA,
        "metadata": {"description": "Address of the Grafana that has the dashboards, for the links of the alerts."},
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
    """Return the seconds of a duration in Prometheus' format, such as 1h30m. Raise ValueError for any other text."""
    parts = _PART.findall(duration)
    if not parts or "".join(count + unit for count, unit in parts) != duration:
        raise ValueError(f"{duration!r} is not a duration in whole seconds")
    return sum(int(count) * _UNITS[unit] for count, unit in parts)


def iso_duration(duration: str) -> str:
    """Return a Prometheus duration in ISO 8601 format, with hours, minutes, and seconds: 90m becomes PT1H30M."""
    hours, rest = divmod(seconds(duration), 3600)
    parts = zip((hours, *divmod(rest, 60)), "HMS", strict=True)
    return "PT" + ("".join(f"{count}{unit}" for count, unit in parts if count) or "0S")


def prometheus_rule(rules: str) -> str:
    """Return the PrometheusRule object for the text of a rule file, without its comments."""
    lines = [line for line in rules.splitlines() if not line.lstrip().startswith("#")]
    spec = "\n".join(f"  {line}".rstrip() for line in lines)
    spec = re.sub(r"\n{2,}", "\n", spec)
    return f"""\
# Generated from rules.yml by `make generate`; rules.yml contains the comments. Prometheus loads this object if its
# ruleSelector matches the labels of the object, and its ruleNamespaceSelector matches the namespace.
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
    """Return an ARM template with one rule group for each group in the text of a rule file.

    Raise ValueError for a text that ARM would evaluate as an expression, KeyError for a severity unknown to Azure.
    """
    template = {
        "$schema": _SCHEMA,
        "contentVersion": "1.0.0.0",
        "metadata": {"description": "Generated from rules.yml by `make generate`; rules.yml contains the comments."},
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
        "annotations": {name: _annotation(text) for name, text in rule["annotations"].items()},
        "resolveConfiguration": {"autoResolved": True, "timeToResolve": TIME_TO_RESOLVE},
        "actions": "[variables('actions')]",
    }


def _annotation(text: str) -> str:
    """Return an annotation without queries; a link to Grafana as an ARM expression.

    Raise ValueError for a quote in a link.
    """
    if not text.startswith(GRAFANA):
        return _literal(_QUERIES.sub("", text))
    if "'" in text:
        raise ValueError(f"ARM would end the text at the quote: {text}")
    return f"[concat(parameters('grafanaUrl'), '{text.removeprefix(GRAFANA)}')]"


def _literal(text: str) -> str:
    """Return the text without the trailing line end of YAML's block style. ARM doesn't evaluate the result."""
    text = text.rstrip("\n")
    if text.startswith("["):
        raise ValueError(f"ARM would evaluate this text as an expression: {text}")
    return text


MADE: Final = {ALERTS / "prometheusrule.yaml": prometheus_rule, ALERTS / "azure-monitor.json": azure_monitor}
"""Each file that is generated from `rules.yml`, and the function that returns its text."""


def main() -> None:
    """Write the files."""
    rules = (ALERTS / "rules.yml").read_text(encoding="utf-8")
    for path, make in MADE.items():
        path.write_text(make(rules), encoding="utf-8")
        print(f"wrote {path.relative_to(ALERTS.parent)}")


if __name__ == "__main__":
    main()
