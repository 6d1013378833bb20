"""Where a person on call goes on from the page: the runbook's section for what the page says, and a dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from exporter.core.snapshot import HARMLESS
from exporter.core.state import Phase

RUNBOOK: Final = (
    "https://github.com/azure-scheduled-events-exporter/azure-scheduled-events-exporter/blob/main/alerts/RUNBOOK.md"
)
"""The same address as the alerts' `runbook_url`, which add a section as well."""
PLACES: Final = ("{vm_name}", "{resource_group}")
"""Of a dashboard's address: what they stand for is put in there. A resource group's name, of which Azure gives the case
now in one way and now in another, is put in in lower case."""
IMMINENT_SECONDS: Final = 600.0
"""As the alert AzureScheduledEventsMaintenanceImminent counts it."""


def links(value: Mapping[str, Any], dashboard_url: str = "") -> dict[str, str | None]:
    """The addresses for the JSON value of a status: `runbook`, and `dashboard`, which is null where none is configured
    or what its address has a place for is not known."""
    section = _section(value)
    return {
        "runbook": f"{RUNBOOK}#{section.lower()}" if section else RUNBOOK,
        "dashboard": _dashboard(dashboard_url, value["vm"]) if dashboard_url else None,
    }


def _dashboard(address: str, vm: Mapping[str, Any]) -> str | None:
    values = dict(zip(PLACES, (vm["name"], (vm["resource_group"] or "").lower()), strict=True))
    for place, text in values.items():
        if place in address and not text:
            return None
        address = address.replace(place, quote(text or "", safe=""))
    return address


def _section(value: Mapping[str, Any]) -> str:
    """The alert that tells the worst of it; empty where the runbook's beginning is the place."""
    source, events = value["source"], value["events"]
    if not source["fresh"] and (source["failure"] or source["last_read_at"]):
        return "AzureScheduledEventsSourceFailing" if source["failure"] else "AzureScheduledEventsDataStale"
    if value["identity"] == "unknown" and events:
        return "AzureScheduledEventsNameUnknown"
    if events:
        return _section_of_event(events[0])
    if not value["outbox"]["writable"]:
        return "AzureScheduledEventsOutboxUnwritable"
    if any(destination["parked"] for destination in value["destinations"]):
        return "AzureScheduledEventsDestinationParked"
    if any(destination["error"] for destination in value["destinations"]):
        return "AzureScheduledEventsDestinationBehind"
    return ""


def _section_of_event(event: Mapping[str, Any]) -> str:
    left = event["not_before_in_seconds"]
    if event["event_type"] == "Preempt":
        return "AzureScheduledEventsSpotPreemption"
    if event["status"] == Phase.STARTED:
        return "AzureScheduledEventsMaintenanceStuck"
    if event["event_type"] not in HARMLESS and left is not None and left < IMMINENT_SECONDS:
        return "AzureScheduledEventsMaintenanceImminent"
    return "AzureScheduledEventsMaintenanceScheduled"
