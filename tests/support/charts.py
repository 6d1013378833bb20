"""The chart as Helm renders it: documents by kind and name, and Helm's message if it rejects the values."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

import pytest
import yaml

from deploy.manifests import CHART, ROOT
from deploy.manifests.render import helm, template
from tests.support.peers import lacking

WEB: Final = {"configSecret": {"name": "web"}}

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast if PyYAML has libyaml: a set with the rules is 5,000 lines."""

VALUES: Final[dict[str, dict[str, Any]]] = {
    "defaults": {},
    "settings": {
        "settings": {
            "approval": {"rules": [{"name": "short", "event_type": ["Freeze"], "max_duration": 8, "settle": "30s"}]},
            "event_hubs": {"fully_qualified_namespace": "ns.servicebus.windows.net", "event_hub": "events"},
            "otlp": {"endpoint": "http://collector:4318", "compression": "gzip"},
            "records": {"scope": "all"},
            "outbox": {"max_bytes": 2097152},
        },
        "approval": {"mode": "enforce", "readyFiles": True},
        "eventFiles": True,
        "workloadIdentity": {"clientId": "00000000-0000-0000-0000-000000000000", "tenantId": "t"},
        "otlp": {"headersSecret": {"name": "otlp"}},
    },
    "text": {
        "settingsText": '[log]\nlevel = "debug"\n',
        "eventHubs": {"connectionStringSecret": {"name": "event-hubs"}},
    },
    "tls": {
        "web": {**WEB, "tls": True},
        "podMonitor": {"enabled": True, "tlsConfig": {"serverName": "agent.example.com"}},
    },
    "password": {"web": {**WEB, "password": True, "credentialsSecret": "scrape"}, "podMonitor": {"enabled": True}},
    "tls and password": {"web": {**WEB, "tls": True, "password": True, "credentialsSecret": "scrape"}},
    "hash alone": {"web": {**WEB, "tls": True, "password": True}},
    "client certificate": {"web": {**WEB, "tls": True, "clientCertificate": True, "credentialsSecret": "scrape"}},
    "one address": {"web": {"host": "127.0.0.1", "port": 9000}},
    "IPv6": {"web": {"host": "::"}},
    "operators": {
        "podMonitor": {"enabled": True, "namespace": "monitoring", "labels": {"release": "prometheus"}},
        "prometheusRule": {
            "enabled": True,
            "grafanaUrl": "https://graphs.example.com/",
            "labels": {"release": "prometheus"},
        },
        "dashboards": {
            "enabled": True,
            "annotations": {"grafana_folder": "Azure"},
            "grafanaOperator": {"enabled": True},
        },
    },
    "handshake": {
        "approval": {"mode": "enforce"},
        "handshake": {"enabled": True, "image": {"repository": "registry.example.com/kubectl", "tag": "1"}},
    },
    "azure": {"podMonitor": {"enabled": True, "apiVersion": "azmonitoring.coreos.com/v1"}},
    "windows": {"windows": {"enabled": True, "image": {"repository": "registry.example.com/azse", "tag": "1"}}},
    "everything of a pod": {
        "image": {"digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": {"create": False, "name": "mine"},
        "resources": {"limits": {"cpu": "1"}},
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": None},
        "tolerations": [],
        "nodeSelector": {"agentpool": "spot"},
        "affinity": {"nodeAffinity": None},
        "priorityClassName": "",
        "labels": {"team": "sre"},
        "podLabels": {"tier": "node"},
        "podAnnotations": {"a": "b"},
        "extraEnv": [{"name": "SCHEDULED_EVENTS_LOG_LEVEL", "value": "debug"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/run/ca"}],
        "networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        "log": {"format": "logfmt"},
        "outbox": {"hostPath": "/mnt/azse"},
    },
}
"""Sets of values that the chart is rendered with."""
VALUES["everything"] = {
    **VALUES["settings"],
    **VALUES["operators"],
    **VALUES["windows"],
    **VALUES["tls and password"],
    "podMonitor": {"enabled": True, "tlsConfig": {"insecureSkipVerify": True}},
    "networkPolicy": {"enabled": True},
}


def need_helm() -> str:
    """Return Helm's path; without it, skip the test with a message, or fail under CI=true."""
    try:
        return helm()
    except FileNotFoundError as error:
        lacking(str(error))


def render(values: Mapping[str, Any], release: str = "azse") -> list[dict[str, Any]]:
    """Return all documents of the chart with these values; fail with Helm's message if it rejects them."""
    need_helm()
    text = _text(json.dumps(values), release)
    return [document for document in yaml.load_all(text, Loader=LOADER) if document]


def refusal(values: Mapping[str, Any]) -> str:
    """Return Helm's message against these values; fail if it accepts them."""
    need_helm()
    try:
        template(values)
    except subprocess.CalledProcessError as error:
        said: str = error.stderr
        return said
    return pytest.fail(f"{CHART.relative_to(ROOT)} takes {values}")


@functools.cache
def _text(values: str, release: str) -> str:
    """Render each set once for all tests of a process: Helm reads a chart of 200 KB each time."""
    try:
        return template(json.loads(values), release=release, namespace="ns")
    except subprocess.CalledProcessError as error:
        return pytest.fail(error.stderr)


def daemonset(documents: list[dict[str, Any]], system: str = "linux") -> dict[str, Any]:
    """Return the DaemonSet of a system."""
    (found,) = [
        document
        for document in documents
        if document["kind"] == "DaemonSet"
        and document["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/os"] == system
    ]
    return found


def agent_of(documents: list[dict[str, Any]], system: str = "linux") -> dict[str, Any]:
    """Return the agent's container in it."""
    return container_of(documents, "agent", system)


def container_of(documents: list[dict[str, Any]], name: str, system: str = "linux") -> dict[str, Any]:
    """Return a container by its name."""
    containers = daemonset(documents, system)["spec"]["template"]["spec"]["containers"]
    (container,) = (one for one in containers if one["name"] == name)
    assert isinstance(container, dict)
    return container


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables with a value in the manifest."""
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
