"""The generated files of deploy/helm and deploy/kubernetes. The chart is their source; `make generate` writes them.

values.schema.json and the table of the chart's README come from values.yaml and its comments. The kustomize base is
the chart rendered by Helm with its default values, including the comments; components are what other values add to
it. helm-docs and a schema plug-in aren't used: they need two kinds of annotations, and they don't know the agent's
settings. The schema takes those from `exporter.config.schema`, so it rejects misspelt settings too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
NAME: Final = "azure-scheduled-events-exporter"
CHART: Final = ROOT / "deploy" / "helm" / NAME
KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
NAMESPACE: Final = "azure-scheduled-events"
"""The namespace of the kustomize base and of the examples in the documentation."""
