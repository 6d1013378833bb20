"""What stands now, computed from the status at the moment of the scrape: pure, so that no gauge outlives its fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from exporter.core.policy import Decision
from exporter.core.snapshot import Status, urgency
from exporter.core.state import Instant, Phase, StartedBy, Tracked
from exporter.core.strict_json import encodable
from exporter.sinks.prometheus.catalogue import EVENT_SOURCES, EVENT_STATUSES, EVENT_TYPES, MODES, OTHER, RESOURCE_TYPES

MAX_EVENT_SERIES: Final = 50
MAX_LABEL: Final = 256  # what Azure allows as a name is far shorter; nothing from outside may bloat every scrape

Samples = Mapping[str, list[tuple[tuple[str, ...], float]]]
"""Family name to its series: label values in the catalogue's order, and the value."""


def word(value: str | None, known: tuple[str, ...]) -> str:
    """The word if the label's closed set has it, else `other`."""
    return value if value is not None and value in known else OTHER


def label(value: str) -> str:
    """Text from outside that any parser of the exposition formats takes."""
    cleaned: str = encodable(value)
    return cleaned if len(cleaned) <= MAX_LABEL else cleaned[: MAX_LABEL - 1] + "…"


class _Sheet:
    """Series by family. A value of None is not known, and what is not known has no series."""

    def __init__(self) -> None:
        self.samples: dict[str, list[tuple[tuple[str, ...], float]]] = {}

    def put(self, name: str, value: float | datetime | None, *labels: str) -> None:
        if value is None:
            return
        number = value.timestamp() if isinstance(value, datetime) else float(value)
        self.samples.setdefault(name, []).append((labels, number))


def before_the_first_status() -> Samples:
    """What can be said when nothing is known: the source is not up, no event is known, and the labels exist."""
    sheet = _Sheet()
    sheet.put("up", 0)
    _events(sheet, (), {})
    return sheet.samples


def state_of(status: Status, now: Instant) -> Samples:
    """Every gauge of the catalogue that has a value now."""
    sheet = _Sheet()
    _source(sheet, status, now)
    _vm(sheet, status)
    _events(sheet, status.named_events, status.decisions)
    _outputs(sheet, status)
    return sheet.samples


def _source(sheet: _Sheet, status: Status, now: Instant) -> None:
    source, document = status.source, status.state.document
    sheet.put("up", source.up)
    sheet.put("last_poll_timestamp_seconds", source.last_poll)
    sheet.put("last_successful_poll_timestamp_seconds", _last_read(status))
    sheet.put("poll_interval_seconds", status.poll_interval)
    sheet.put("source_warming", status.warming(now))
    if document is not None:
        sheet.put("document_incarnation", document.incarnation)
        sheet.put("document_events", len(document.events) + len(document.rejected))


def _last_read(status: Status) -> datetime | None:
    """How old what we show is: an earlier process may have read it, which is told once this one's first poll failed."""
    last = status.state.last_good
    earlier = last.wall if last is not None and status.source.last_poll is not None else None
    return status.source.last_success or earlier


def _vm(sheet: _Sheet, status: Status) -> None:
    vm = status.vm
    labels = (
        vm.name,
        vm.id,
        vm.subscription_id,
        vm.resource_group,
        vm.vmss_name,
        vm.location,
        vm.zone,
        vm.size,
        vm.priority,
        vm.node,
    )
    if any(labels):
        sheet.put("vm_info", 1, *map(label, labels))
    for mode in MODES:
        sheet.put("approval_mode", status.mode.value == mode, mode)
    sheet.put("approval_held", status.held)


def _events(sheet: _Sheet, own: Iterable[Tracked], decisions: Mapping[str, Decision]) -> None:
    counts = {(kind, status): 0 for kind in EVENT_TYPES for status in EVENT_STATUSES}
    found = sorted(own, key=urgency)
    for tracked in found:
        counts[word(tracked.event.event_type, EVENT_TYPES), word(tracked.event.status, EVENT_STATUSES)] += 1
    for labels, count in counts.items():
        sheet.put("events", count, *labels)
    for tracked in found[:MAX_EVENT_SERIES]:
        _event(sheet, tracked, decisions.get(tracked.key))
    sheet.put("event_series_dropped", max(0, len(found) - MAX_EVENT_SERIES))


def _event(sheet: _Sheet, tracked: Tracked, decision: Decision | None) -> None:
    event, name = tracked.event, label(tracked.event.event_id)
    started = tracked.phase is Phase.STARTED
    sheet.put(
        "event_info",
        1,
        name,
        word(event.event_type, EVENT_TYPES),
        word(event.source, EVENT_SOURCES),
        word(event.resource_type, RESOURCE_TYPES),
    )
    current = word(event.status, EVENT_STATUSES)
    for status in EVENT_STATUSES:
        sheet.put("event_status", status == current, name, status)
    sheet.put("event_not_before_timestamp_seconds", None if started else event.not_before, name)
    known = event.duration is not None and event.duration >= 0  # -1: unknown or not applicable
    sheet.put("event_advertised_duration_seconds", event.duration if known else None, name)
    sheet.put("event_first_seen_timestamp_seconds", tracked.first_seen, name)
    sheet.put("event_started_timestamp_seconds", tracked.started_at if started else None, name)
    if started:
        by = tracked.started_by or StartedBy.UNKNOWN
        sheet.put("event_started_by", 1, name, by.value)
    sheet.put("event_approved_timestamp_seconds", tracked.approval.accepted_at, name)
    sheet.put("event_resources", len(event.resources) if event.resources is not None else None, name)
    if decision is not None:
        sheet.put("event_decision", 1, name, decision.verdict.value, decision.reason.value, label(decision.rule))


def _outputs(sheet: _Sheet, status: Status) -> None:
    for destination in status.destinations:
        if not destination.configured:
            continue
        sheet.put("outbox_records", destination.records, destination.name)
        sheet.put("outbox_oldest_record_timestamp_seconds", destination.oldest, destination.name)
        sheet.put("destination_records_parked", destination.parked, destination.name)
        sheet.put("destination_last_success_timestamp_seconds", destination.last_success, destination.name)
    sheet.put("outbox_bytes", status.outbox.bytes)
    sheet.put("outbox_capacity_bytes", status.outbox.capacity)
    sheet.put("outbox_writable", status.outbox.writable)
