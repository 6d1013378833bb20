"""The agent's state at one moment as a JSON value, which `/api/v1/status` returns and the page is rendered from.

`exporter/schema/status.v1.json` describes the value. External texts are unchanged but truncated, with the number of
omitted characters. The size of the value is bounded whatever Azure sends: the number of events is limited, and an event
that is too large is replaced with its size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from exporter.core.document import alike
from exporter.core.policy import Presence, decision_summary
from exporter.core.record_factory import event_summary
from exporter.core.records import optional_timestamp, rounded, timestamp, vm_data
from exporter.core.scope import EventNow
from exporter.core.snapshot import HARMLESS, DestinationStatus, Gate, Status, severity_key
from exporter.core.state import Instant, Ownership, Phase, TrackedEvent
from exporter.core.strict_json import encodable
from exporter.page.sentences import verdict

TYPE: Final = "azure_scheduled_events.status.v1"
MAX_EVENTS: Final = 20
MAX_CLOSED: Final = 10
MAX_RESOURCES: Final = 5
"""Names of other VMs that are listed for one event."""
MAX_FAULTS: Final = 10
MAX_TEXT: Final = 600
"""Characters of one external text."""
MAX_EVENT_BYTES: Final = 64 * 1024
"""Size of Azure's event object, as compact JSON in UTF-8."""
STATUS_CONTENT_TYPE: Final = "application/json"
STATUS_HEADERS: Final = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"))
"""Headers of the response: browsers don't guess another type, and no proxy caches it."""

NO_POLICY: Final[Mapping[str, Any]] = {"takeover_after": None, "hold_file": "", "rules": None}
"""The policy for callers that don't know it."""

Value = dict[str, Any]
"""A JSON object."""

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def status_value(
    status: Status,
    now: Instant,
    version: str,
    *,
    policy: Mapping[str, Any] = NO_POLICY,
    gate: Gate | None = None,
    dashboard_url: str = "",
) -> Value:
    """Return the status of the agent at `now`.

    `policy` is the one in force, as `config.load` writes it; `gate` the response of `/-/gate`, None without one;
    `dashboard_url` the setting of that name.
    """
    own = [event for event in status.events if event.ownership is not Ownership.THEIRS]
    files = status.event_files
    value = {
        "agent": {"version": version, **_past("started", status.started, now)},
        "vm": vm_data(status.vm),
        "identity": "conflict" if status.identity_conflict else "known" if status.vm.name else "unknown",
        "source": _source(status, now),
        "document": _document(status, len(own)),
        "approval": {
            "mode": status.mode.value,
            "coordination": status.coordination.value,
            "takeover_after": policy["takeover_after"],
            "hold_file": _text(policy["hold_file"]),
            "held": status.held,
            "files": _files(status.files, policy["hold_file"]),
            "rules": encodable(policy["rules"]),
        },
        "events": [_event(status, event, now) for event in _worst(own)],
        "events_omitted": max(0, len(own) - MAX_EVENTS),
        **_closed(status),
        "destinations": [_destination(destination, now) for destination in status.destinations],
        "outbox": {
            "bytes": status.outbox.bytes,
            "capacity_bytes": status.outbox.capacity,
            "writable": status.outbox.writable,
        },
        "gate": {"open": gate.open, "sentence": gate.sentence} if gate else None,
        "event_files": {"path": _text(files.path), "error": _text(files.error)} if files.path else None,
    }
    head = {"type": TYPE, "as_of": timestamp(now.wall), "verdict": verdict(value)}
    return {**head, **value, "links": links(value, dashboard_url)}


def _worst(own: Iterable[EventNow]) -> list[EventNow]:
    """Return at most `MAX_EVENTS` events, the most severe first. If more, keep the most severe and started ones."""
    ranked = sorted(own, key=severity_key)
    others = sorted(ranked[1:], key=lambda event: event.tracked.started is None)
    return sorted([*ranked[:1], *others[: MAX_EVENTS - 1]], key=severity_key)


def status_body(value: Value) -> bytes:
    """Return the value as one line of strict JSON in UTF-8."""
    return (_encode(value) + "\n").encode()


def _files(files: Mapping[str, Presence], hold_file: str) -> Value:
    """Return the presence of the hold file and at most `MAX_EVENTS` other files."""
    shown = sorted(files, key=lambda path: (path != hold_file, path))[: MAX_EVENTS + 1]
    return {str(encodable(path)): files[path].value for path in shown}


def _text(text: str) -> str | None:
    """Return a text that every output can encode; None for ""."""
    return str(encodable(text)) or None


def _past(name: str, instant: Instant | datetime | None, now: Instant) -> Value:
    """Return the time of an instant and its age in seconds; an age of None: the clock was set back since."""
    if instant is None:
        return {f"{name}_at": None, f"{name}_seconds_ago": None}
    then = instant if isinstance(instant, Instant) else Instant(instant)
    return {f"{name}_at": timestamp(then.wall), f"{name}_seconds_ago": rounded(now.since(then))}


# --- source and document ----------------------------------------------------------------------------------------------


def _source(status: Status, now: Instant) -> Value:
    state, source = status.state, status.state.process.source
    since = None if source.up else source.failing or (state.outage.since if state.outage else None)
    # The time when the known document was read, perhaps by an earlier process.
    read = source.success or (state.last_good if state.document else None)
    return {
        "up": source.up,
        "fresh": status.fresh(now),
        "warming": status.warming(now),
        "failure": source.failure or None,
        **_past("failing_since", since, now),
        "last_poll_at": optional_timestamp(source.last_poll),
        **_past("last_read", read, now),
        "read_by_this_process": source.success is not None,
        "poll_interval_seconds": status.poll_interval,
        "stale_after_seconds": status.stale_after,
    }


def _document(status: Status, own: int) -> Value | None:
    document = status.state.document
    if document is None:
        return None
    events = sum(not event.is_unread for event in document.events)
    return {
        "incarnation": document.incarnation,
        "events": events,
        "events_of_other_vms": max(0, events - own),
        "unreadable": len(document.rejected),
    }


def _destination(destination: DestinationStatus, now: Instant) -> Value:
    return {
        "name": destination.name,
        "configured": destination.configured,
        "error": destination.error or None,
        "records": destination.records,
        **_past("oldest", destination.oldest, now),
        "parked": destination.parked,
        **_past("last_success", destination.last_success, now),
    }


# --- events -----------------------------------------------------------------------------------------------------------


class _Texts:
    """Truncates the external texts of one event; `omitted` is the number of omitted characters by name."""

    def __init__(self) -> None:
        self.omitted: dict[str, int] = {}

    def cut(self, name: str, text: str | None) -> str | None:
        if text is not None and len(text) > MAX_TEXT:
            self.omitted[name] = self.omitted.get(name, 0) + len(text) - MAX_TEXT
        return None if text is None else str(encodable(text[:MAX_TEXT]))

    def cut_all(self, name: str, texts: Iterable[str]) -> list[str | None]:
        return [self.cut(name, text) for text in texts]


def _event(status: Status, known: EventNow, now: Instant) -> Value:
    tracked, event, texts = known.tracked, known.tracked.event, _Texts()
    approval, observed, start = tracked.approval, tracked.interruptions, known.starts_at
    decision = status.state.process.decisions.get(tracked.key)
    return {
        "event_id": event.event_id,
        "event_type": texts.cut("event_type", tracked.event_type),
        "event_source": texts.cut("event_source", event.source),
        "event_status": texts.cut("event_status", event.status),
        "resource_type": texts.cut("resource_type", event.resource_type),
        "description": texts.cut("description", event.description),
        "status": known.phase.value,
        "not_before": optional_timestamp(tracked.not_before),
        "not_before_in_seconds": rounded((start - now.wall).total_seconds()) if start is not None else None,
        "announced_duration_seconds": event.announced_seconds,
        "names_this_vm": known.names_this_vm,
        "resources": _resources(tracked.resources, status.vm.name, texts),
        **_past("first_seen", tracked.first_seen, now),
        "seen_before": tracked.seen_before.value,
        **_past("started", tracked.started, now),
        "started_by": tracked.started_by.value if tracked.started_by else None,
        "decision": decision_summary(decision, status.mode) if decision is not None else None,
        **_past("approved", approval.accepted_at, now),
        "approval_rule": approval.rule or None,
        "approval_attempts": approval.attempts,
        "approval_failure": approval.last_failure or None,
        "approval_outdated": approval.outdated,
        "interruptions_observed": observed.count,
        "interruption_seconds": rounded(observed.total) if observed.count else None,
        "interruption_longest_seconds": rounded(observed.longest) if observed.count else None,
        "faults": texts.cut_all("faults", event.faults[:MAX_FAULTS]),
        "faults_omitted": max(0, len(event.faults) - MAX_FAULTS),
        "omitted_characters": texts.omitted,
        **_raw(event.raw),
    }


def _resources(names: tuple[str, ...] | None, vm_name: str, texts: _Texts) -> Value | None:
    if names is None:
        return None
    others = [name for name in names if not (vm_name and alike(name, vm_name))]
    return {
        "count": len(names),
        "others": texts.cut_all("resources", others[:MAX_RESOURCES]),
        "others_omitted": max(0, len(others) - MAX_RESOURCES),
    }


def _raw(raw: Mapping[str, Any]) -> Value:
    """Return Azure's object as received, or its size if it is too large. Every output can encode it."""
    size = len(_encode(raw).encode())
    if size > MAX_EVENT_BYTES:
        return {"event": None, "event_omitted_bytes": size}
    return {"event": raw, "event_omitted_bytes": 0}


def _closed(status: Status) -> Value:
    """Return the closed events, the newest first by the order in which they ended, not by the clock."""
    closed = [
        tracked
        for tracked in status.state.closed.values()
        if tracked.closed is not None
        and tracked.outcome is not None
        and EventNow(tracked, status.vm.name).ownership is not Ownership.THEIRS
    ]
    return {
        "closed": [_summary(tracked) for tracked in closed[::-1][:MAX_CLOSED]],
        "closed_omitted": max(0, len(closed) - MAX_CLOSED),
    }


def _summary(tracked: TrackedEvent) -> Value:
    texts = _Texts()
    summary = event_summary(tracked)
    del summary["unseen"]  # only in the closing record
    return {
        "event_id": tracked.event.event_id,
        "event_type": texts.cut("event_type", tracked.event_type),
        "omitted_characters": texts.omitted,
        "summary": summary,
    }


RUNBOOK: Final = (
    "https://github.com/azure-scheduled-events-exporter/azure-scheduled-events-exporter/blob/main/alerts/RUNBOOK.md"
)
"""The address in the alerts' `runbook_url`, without the section."""
PLACES: Final = ("{vm_name}", "{resource_group}")
"""Placeholders of a dashboard's address. A resource group is inserted in lower case: Azure's case of it varies."""
IMMINENT_SECONDS: Final = 600.0
"""The threshold of the alert AzureScheduledEventsMaintenanceImminent."""


def links(value: Mapping[str, Any], dashboard_url: str = "") -> dict[str, str | None]:
    """Return the addresses for a status: `runbook` and `dashboard`.

    `dashboard` is None if none is configured, or if the value of a placeholder is unknown.
    """
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
    """Return the alert for the most severe condition of a status; "" if there is none."""
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
