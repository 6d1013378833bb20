"""Marks for dashboards that are not ours: what Azure did, on the curves of whatever ran on the VM.

They ask for what alerts/rules.yml records, which has one series for each event and none else: a join at each point of a
curve would read ten thousand VMs for a handful of events.
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
        "Azure: under way",
        BAD,
        f'max by (vm_name, event_type, event_id) ({_EVENT}{{event_status="Started"}})',
        "{{event_type}} of {{vm_name}}",
    ),
    annotation(
        "Azure: over",
        GOOD,
        f"max by (vm_name, event_type, outcome) ({_CLOSED})",
        "{{event_type}} of {{vm_name}} {{outcome}}",
    ),
)
"""Grafana makes one region of samples that follow each other: its edges are the start and the end of an event. A VM
that is restarted is not scraped at its end; what became of its event is the last mark, at most five minutes late."""


def snippet() -> dict[str, Any]:
    """The part of a dashboard that holds the marks."""
    return {"annotations": {"list": [mark.build() for mark in MARKS]}}
