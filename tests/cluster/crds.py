"""The definitions of other projects' objects that manifests and chart can create: PodMonitor, PrometheusRule,
GrafanaDashboard.

The Prometheus Operator's are its own. Azure's managed Prometheus has the same schema under another group, by Azure's
documentation (`prometheus-metrics-scrape-crd`). Its own file is in no registry, so the tests use the operator's under
Azure's group. grafana-operator is in no known registry: the tests have a definition with its group and names, and the
fields of its API reference that a dashboard may have, closed to others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.clients import Client, together
from tests.cluster.programs import Programs

OPERATOR: Final = "monitoring.coreos.com"
AZURE: Final = "azmonitoring.coreos.com"
GRAFANA: Final = "grafana.integreatly.org"

_TEXT: Final = {"type": "string"}
_GRAFANA_SPEC: Final = {
    "type": "object",
    "required": ["instanceSelector"],
    "properties": {
        "instanceSelector": {
            "type": "object",
            "properties": {
                "matchLabels": {"type": "object", "additionalProperties": _TEXT},
                "matchExpressions": {
                    "type": "array",
                    "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            },
        },
        "allowCrossNamespaceImport": {"type": "boolean"},
        "folder": _TEXT,
        "folderUID": _TEXT,
        "folderRef": _TEXT,
        "json": _TEXT,
        "gzipJson": {"type": "string", "format": "byte"},
        "url": _TEXT,
        "uid": _TEXT,
        "resyncPeriod": _TEXT,
        "suspend": {"type": "boolean"},
        "configMapRef": {
            "type": "object",
            "required": ["key"],
            "properties": {"name": _TEXT, "key": _TEXT, "optional": {"type": "boolean"}},
        },
        "datasources": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["inputName", "datasourceName"],
                "properties": {"inputName": _TEXT, "datasourceName": _TEXT},
            },
        },
    },
}


def make(kubectl: Client, programs: Programs) -> None:
    """Create all of them, and wait until the API server serves them."""
    operator = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in _files(programs)]
    definitions = [*operator, _under_azure(operator[0]), _grafana_dashboard()]
    kubectl.must("create", "-f", "-", stdin=together(definitions))
    for definition in definitions:
        name = f"customresourcedefinition/{definition['metadata']['name']}"
        kubectl.must("wait", "--for=condition=Established", "--timeout=60s", name)


def remove(kubectl: Client) -> None:
    """Delete them again, with all of their objects."""
    kubectl.must("delete", "customresourcedefinitions", "--all", "--wait")


def _files(programs: Programs) -> tuple[Path, ...]:
    return programs.pod_monitor, programs.prometheus_rule


def _under_azure(definition: dict[str, Any]) -> dict[str, Any]:
    plural = definition["spec"]["names"]["plural"]
    names = {key: value for key, value in definition["spec"]["names"].items() if key != "shortNames"}
    return {
        **definition,
        "metadata": {"name": f"{plural}.{AZURE}"},
        "spec": {**definition["spec"], "group": AZURE, "names": names},
    }


def _grafana_dashboard() -> dict[str, Any]:
    names = {"kind": "GrafanaDashboard", "listKind": "GrafanaDashboardList"}
    names |= {"plural": "grafanadashboards", "singular": "grafanadashboard"}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": _GRAFANA_SPEC}}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"grafanadashboards.{GRAFANA}"},
        "spec": {"group": GRAFANA, "scope": "Namespaced", "names": names, "versions": [version]},
    }
