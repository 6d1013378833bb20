"""Gauges, computed from the status at each scrape. Pure, so that no gauge outlives what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from exporter.core.policy import Decision
from exporter.core.record_factory import event_summary
from exporter.core.scope import EventNow
from exporter.core.snapshot import Status, urgency_key
from exporter.core.state import Instant, StartedBy, TrackedEvent
from exporter.core.strict_json import encodable
from exporter.sinks.prometheus import catalogue
from exporter.text.terminal import printable

MAX_EVENT_SERIES: Final = 50
"""Maximum number of events with separate series, for the most urgent events of this VM."""
CLOSED_SECONDS: Final = 900.0
"""How long the summary of an event stays after its end: several scrapes, also of a VM that Prometheus missed."""
MAX_LABEL: Final = 256
"""Maximum characters. Azure's names are far shorter; external text must not make scrapes large."""

Samples = Mapping[str, list[tuple[tuple[str, ...], float]]]
"""Series by family name: label values in the catalogue's order, and the value."""


def known_value(value: str | None, known: tuple[str, ...]) -> str:
    """Return `value` if it is in the closed set of its label, else `other`."""
    return value if value is not None and value in known else catalogue.OTHER


def label_value(value: str) -> str:
    """Return external text as a label value: at most `MAX_LABEL` characters, with invisible ones escaped."""
    cleaned = printable(encodable(value))
    return cleaned if len(cleaned) <= MAX_LABEL else cleaned[: MAX_LABEL - 1] + "…"


class _Gauges:
    """Series by family. An unknown value (None) has no series."""

    def __init__(self) -> None:
        self.samples: dict[str, list[tuple[tuple[str, ...], float]]] = {}

    def set(self, name: str, value: float | datetime | None, *labels: str) -> None:
        if value is None:
            return
        number = value.timestamp() if isinstance(value, datetime) else float(value)
        self.samples.setdefault(name, []).append((labels, number))


def gauges_before_first_status() -> Samples:
    """Return the gauges before the first status: the source is not up, and there are no events."""
    gauges = _Gauges()
    gauges.set("up", 0)
    _events(gauges, (), {})
    return gauges.samples


def gauges_of(status: Status, now: Instant) -> Samples:
    """Return every gauge that has a value at `now`, except those that the sink adds (the build, the certificate)."""
    gauges = _Gauges()
    _source(gauges, status, now)
    _vm(gauges, status)
    _events(gauges, status.named_events, status.state.process.decisions)
    _closed_events(gauges, status, now)
    _outputs(gauges, status)
    return gauges.samples


def _source(gauges: _Gauges, status: Status, now: Instant) -> None:
    source, document = status.state.process.source, status.state.document
    gauges.set("up", source.up)
    gauges.set("last_poll_timestamp_seconds", source.last_poll)
    gauges.set("last_successful_poll_timestamp_seconds", status.last_read)
    gauges.set("poll_interval_seconds", status.poll_interval)
    gauges.set("source_warming", status.warming(now))
    if document is not None:
        gauges.set("document_incarnation", document.incarnation)
        gauges.set("document_events", document.elements)


def _vm(gauges: _Gauges, status: Status) -> None:
    labels = [getattr(status.vm, field) for field in catalogue.VM_FIELDS]
    if any(labels):
        gauges.set("vm_info", 1, *map(label_value, (*labels, *(value for _, value in status.vm.tags))))
    for mode in catalogue.MODES:
        gauges.set("approval_mode", status.mode.value == mode, mode)
    gauges.set("approval_held", status.held)


def _events(gauges: _Gauges, own: Iterable[EventNow], decisions: Mapping[str, Decision]) -> None:
    counts = {(kind, status): 0 for kind in catalogue.EVENT_TYPES for status in catalogue.EVENT_STATUSES}
    by_urgency = sorted(own, key=urgency_key)
    for now in by_urgency:
        event_type = known_value(now.tracked.event_type, catalogue.EVENT_TYPES)
        counts[event_type, known_value(now.phase, catalogue.EVENT_STATUSES)] += 1
    for labels, count in counts.items():
        gauges.set("events", count, *labels)
    shown: dict[str, EventNow] = {}  # two ids can have the same label value after escaping
    for now in by_urgency[:MAX_EVENT_SERIES]:
        shown.setdefault(label_value(now.tracked.event.event_id), now)
    for name, now in shown.items():
        _event(gauges, name, now, decisions.get(now.tracked.key))
    gauges.set("event_series_dropped", len(by_urgency) - len(shown))


def _event(gauges: _Gauges, name: str, now: EventNow, decision: Decision | None) -> None:
    tracked, event = now.tracked, now.tracked.event
    gauges.set(
        "event_info",
        1,
        name,
        known_value(tracked.event_type, catalogue.EVENT_TYPES),
        known_value(event.source, catalogue.EVENT_SOURCES),
        known_value(event.resource_type, catalogue.RESOURCE_TYPES),
    )
    current = known_value(now.phase, catalogue.EVENT_STATUSES)
    for status in catalogue.EVENT_STATUSES:
        gauges.set("event_status", status == current, name, status)
    gauges.set("event_not_before_timestamp_seconds", now.starts_at, name)
    gauges.set("event_advertised_duration_seconds", event.announced_seconds, name)
    gauges.set("event_first_seen_timestamp_seconds", tracked.first_seen.wall, name)
    gauges.set("event_started_timestamp_seconds", tracked.started_at, name)
    if tracked.started_at is not None:
        by = tracked.started_by or StartedBy.UNKNOWN
        gauges.set("event_started_by", 1, name, by.value)
    gauges.set("event_approved_timestamp_seconds", tracked.approval.accepted_at, name)
    gauges.set("event_resources", len(tracked.resources) if tracked.resources is not None else None, name)
    if decision is not None:
        gauges.set("event_decision", 1, name, decision.verdict.value, decision.reason.value, label_value(decision.rule))
    _summary(gauges, name, tracked)


def _closed_events(gauges: _Gauges, status: Status, now: Instant) -> None:
    shown = {labels[0] for labels, _ in gauges.samples.get("event_info", ())}
    for tracked in status.state.process.closed.values():
        name = label_value(tracked.event.event_id)
        if name not in shown and tracked.closed is not None and now.minus(tracked.closed) < CLOSED_SECONDS:
            shown.add(name)
            _summary(gauges, name, tracked)


def _summary(gauges: _Gauges, name: str, tracked: TrackedEvent) -> None:
    """Add what the closing record of the event contains, or would contain now."""
    summary = event_summary(tracked)
    gauges.set(
        "event_began_timestamp_seconds",
        tracked.started_at or tracked.first_seen.wall,
        name,
        known_value(tracked.event_type, catalogue.EVENT_TYPES),
        known_value(tracked.event.source, catalogue.EVENT_SOURCES),
        summary["started_by"] or "",
        label_value(summary["rule"]) if summary["approved_at"] else "",
        summary["outcome"] or "",
    )
    gauges.set("event_notice_seconds", summary["notice_seconds"], name)
    gauges.set("event_interruption_seconds", summary["interruption_seconds"], name)


def _outputs(gauges: _Gauges, status: Status) -> None:
    for destination in status.destinations:
        if not destination.configured:
            continue
        gauges.set("outbox_records", destination.records, destination.name)
        gauges.set("outbox_oldest_record_timestamp_seconds", destination.oldest, destination.name)
        gauges.set("destination_records_parked", destination.parked, destination.name)
        gauges.set("destination_last_success_timestamp_seconds", destination.last_success, destination.name)
    gauges.set("outbox_bytes", status.outbox.bytes)
    gauges.set("outbox_capacity_bytes", status.outbox.capacity)
    gauges.set("outbox_writable", status.outbox.writable)
