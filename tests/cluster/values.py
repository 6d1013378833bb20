"""The values with which the chart is installed, and those that it must reject, as `helm --values` reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster import crds

Values = dict[str, Any]

TLS: Final[Values] = {
    "web": {"configSecret": {"name": "web"}, "tls": True, "password": True, "credentialsSecret": "credentials"},
}
WINDOWS: Final[Values] = {
    "windows": {"enabled": True, "image": {"repository": "registry.example.com/agent-windows", "tag": "0.1.0"}},
}
MONITORED: Final[Values] = {
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboards": {"enabled": True, "grafanaOperator": {"enabled": True, "folder": "Azure"}},
}
"""Values that need other projects' CRDs."""

EVERYTHING: Final[Values] = {
    **WINDOWS,
    **MONITORED,
    "podMonitor": {
        "enabled": True,
        "interval": "10s",
        "labels": {"release": "prometheus"},
        "tlsConfig": {
            "ca": {"secret": {"name": "ca", "key": "ca.crt"}},
            "serverName": "agent.example.com",
            "cert": {"secret": {"name": "credentials", "key": "tls.crt"}},
            "keySecret": {"name": "credentials", "key": "tls.key"},
        },
        "relabelings": [{"sourceLabels": ["__meta_kubernetes_namespace"], "targetLabel": "namespace"}],
        "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "python_.*"}],
    },
    "image": {"repository": "registry.example.com/agent", "tag": "0.1.0", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "approval": {"mode": "dry-run", "readyFiles": True},
    "settings": {"otlp": {"endpoint": "https://collector.example.com:4318"}, "records": {"scope": "all"}},
    "eventHubs": {"connectionStringSecret": {"name": "event-hubs"}},
    "otlp": {"headersSecret": {"name": "otlp"}},
    "web": {**TLS["web"], "clientCertificate": True, "port": 10170},
    "serviceAccount": {"annotations": {"example.com/owner": "operators"}},
    "labels": {"example.com/team": "operators"},
    "podLabels": {"example.com/tier": "node"},
    "podAnnotations": {"example.com/note": "everything"},
    "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/etc/ca/ca.crt"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca", "optional": True}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    "networkPolicy": {"enabled": True, "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
}
"""Each part switched on."""

AZURE: Final[Values] = {
    "podMonitor": {"enabled": True, "apiVersion": f"{crds.AZURE}/v1"},
    "workloadIdentity": {"clientId": "00000000-0000-0000-0000-000000000001"},
    "settings": {"event_hubs": {"fully_qualified_namespace": "hub.servicebus.windows.net", "event_hub": "events"}},
}
"""Azure's managed Prometheus, and a managed identity."""

POOLS: Final[dict[str, Values]] = {
    "amd64": {"nodeSelector": {"kubernetes.io/arch": "amd64"}},
    "arm64": {"nodeSelector": {"kubernetes.io/arch": "arm64"}, "approval": {"mode": "dry-run"}},
}
"""Two releases side by side, by their names."""

DOCUMENTED: Final = re.compile(r"^```yaml\n(# values\.yaml\n.*?)^```$", re.MULTILINE | re.DOTALL)


def documented(page: Path) -> Iterator[tuple[str, Values]]:
    """Return the values on a page of the documentation, each by the page's heading above it."""
    text = page.read_text(encoding="utf-8")
    for found in DOCUMENTED.finditer(text):
        heading = re.findall(r"^##+ (.*)$", text[: found.start()], re.MULTILINE)[-1]
        yield heading, yaml.safe_load(found[1])


@dataclass(frozen=True, slots=True)
class Refused:
    """Values that must be rejected, and the words that the message must contain."""

    name: str
    values: Values
    words: str


REFUSED: Final = (
    Refused("a misspelt key", {"podMonitr": {"enabled": True}}, "podMonitr"),
    Refused("a misspelt key within a section", {"web": {"prt": 10170}}, "prt"),
    Refused("an unknown approval mode", {"approval": {"mode": "on"}}, "mode"),
    Refused("YAML's bare on", {"approval": {"mode": True}}, "mode"),
    Refused("an invalid port", {"web": {"port": 70000}}, "port"),
    Refused("an invalid digest", {"image": {"digest": "latest"}}, "digest"),
    Refused("an unknown setting", {"settings": {"source": {"intervall": "1s"}}}, "intervall"),
    Refused(
        "a hold file of another kind",
        {"extraEnv": [{"name": "SCHEDULED_EVENTS_APPROVAL_HOLD_FILE", "value": "/hold"}]},
        "extraEnv",
    ),
    Refused("TLS without its Secret", {"web": {"tls": True}}, "web.configSecret.name"),
    Refused("Windows without an image", {"windows": {"enabled": True}}, "windows.image"),
)
