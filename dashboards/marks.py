"""Annotations for other dashboards: Azure's events on the graphs of a workload.

They read the series that alerts/rules.yml records, one for each event. A join at each point of a graph would read ten
thousand VMs to find a few events.
"""

from __future__ import annotations

from typing import Any, Final

from dashboards.draw import annotation
from dashboards.panel import BAD, GOOD, SOON

_EVENT: Final = "instance_event_id:azure_scheduled_events_event_status:current"
_CLOSED: Final = "instance:azure_scheduled_events_events_closed:increase5m"

MARKS: Final = (
    annotation(
        "Azure: scheduled",
        SOON,
        f'max by (vm_name, event_type, event_id) ({_EVENT}{{event_status="Scheduled"}})',
        "{{event_type}} of {{vm_name}} is scheduled",
        enabled=False,
    ),
    annotation(
        "Azure: started",
        BAD,
        f'max by (vm_name, event_type, event_id) ({_EVENT}{{event_status="Started"}})',
        "{{event_type}} of {{vm_name}}",
    ),
    annotation(
        "Azure: ended",
        GOOD,
        f"max by (vm_name, event_type, outcome) ({_CLOSED})",
        "{{event_type}} of {{vm_name}} {{outcome}}",
    ),
)
"""Grafana draws consecutive samples as one region, from the start to the end of an event. A VM that restarts isn't
scraped at its end; the last annotation shows the outcome of its event, at most five minutes late."""


def snippet() -> dict[str, Any]:
    """Return the part of a dashboard that contains the annotations."""
    return {"annotations": {"list": [mark.build() for mark in MARKS]}}
