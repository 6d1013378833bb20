"""The dashboards as code: two boards made of panels that are each described once.

`vm.py` and `fleet.py` describe them, `draw.py` makes panels and boards by Grafana's SDK, `panel.py` has their words and
colours, and `python -m dashboards.build` writes the JSON. Nothing of the exporter is imported here. Begin reading in
`vm.py`.
"""

from __future__ import annotations

from typing import Final

LEAST: Final = "10.4"
"""The oldest Grafana that the dashboards are made for: it knows every field (tests/dashboards/test_schema.py)."""

SCHEMA: Final = 39
"""The last schema of the classic model that Grafana 10 to 13 all import without a migration that loses something."""

VM_UID: Final = "azure-scheduled-events-vm"
FLEET_UID: Final = "azure-scheduled-events-fleet"
