"""The dashboards as code: two boards whose panels are each defined once.

`vm.py` and `fleet.py` define them, `draw.py` creates panels and boards with Grafana's SDK, `panel.py` contains texts
and colours, and `python -m dashboards.build` writes the JSON. This package imports nothing from the exporter. Start
with `vm.py`.
"""

from __future__ import annotations

from typing import Final

LEAST: Final = "10.4"
"""The oldest supported Grafana version: it knows every field (tests/dashboards/test_schema.py)."""

SCHEMA: Final = 39
"""The last schema version of the classic model that Grafana 10 to 13 import without loss."""

VM_UID: Final = "azure-scheduled-events-vm"
FLEET_UID: Final = "azure-scheduled-events-fleet"
