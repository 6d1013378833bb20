"""The fields of log lines about an event: those of every line, and those that tell what happened."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from exporter.core.record_factory import event_summary
from exporter.core.records import Record, optional_timestamp
from exporter.core.state import TrackedEvent, TransitionKind
from exporter.text.timeline import LONGEST_LIST, brief

_DATA: Final = ("seen_before", "notice_seconds", "started_by", "replaced_by", "reason", "rule", "attempt")
_DECISION: Final = ("verdict", "reason", "rule", "finding", "mode")
_STARTED: Final = ("started_by", "approved_at", "rule", "scheduled_duration_seconds")
_SUMMARY: Final = {
    TransitionKind.SCHEDULED: ("announced_duration_seconds",),
    TransitionKind.STARTED: (*_STARTED, "announced_duration_seconds"),
}
_CLOSED: Final = (
    *("first_seen", "seen_before", "notice_seconds", *_STARTED, "started_at", "started_duration_seconds"),
    *("announced_duration_seconds", "updates", "gaps", "gap_seconds", "unseen", "last_status"),
)
_OBSERVED: Final = ("interruptions_observed", "interruption_seconds", "interruption_longest_seconds")
_LONGEST_NAME: Final = 40


def fields_of(event_type: str | None, vm: str, not_before: datetime | None) -> dict[str, str]:
    """Return the known fields; `not_before` has the format of records, in UTC."""
    fields = {"event_type": event_type, "vm": vm, "not_before": optional_timestamp(not_before)}
    return {name: text for name, text in fields.items() if text}


def about(record: Record) -> dict[str, str]:
    """Return the fields of a record; empty if it isn't about an event."""
    event, vm = record.readable_event, record.data.get("vm")
    if not event:
        return {}
    found: dict[str, Any] = {
        "event_type": event.get("EventType"),
        "vm": vm.get("name") if isinstance(vm, dict) else None,
        "not_before": record.data.get("not_before"),
    }
    return {name: text for name, text in found.items() if isinstance(text, str) and text}


def story(record: Record, tracked: TrackedEvent | None) -> dict[str, object]:
    """Return what a record's line contains in addition to `about`, without unknown values.

    What concerns the whole event is from its summary: the one in its closing record, or until then that of `tracked`,
    the event as it is known now (None: unknown).
    """
    data, kind = record.data, record.kind
    summary = data.get("summary")
    names: tuple[str, ...] = _CLOSED if data.get("affects_self") is False else (*_CLOSED, *_OBSERVED)
    if kind in _SUMMARY and tracked is not None:
        summary, names = event_summary(tracked), _SUMMARY[TransitionKind(kind)]
    parts = ((data, _DATA), (data.get("decision"), _DECISION), (summary, names))
    found = {name: part.get(name) for part, names in parts if part for name in names}
    if summary and not summary["approved_at"]:
        found["rule"] = None  # its approval was not accepted
    if data.get("seen_before"):
        source = record.readable_event.get("EventSource")
        found["event_source"] = source and brief(source)
    for name, value in (data.get("interruption") or {}).items():
        found[f"interruption.{name}"] = value
    for name, change in list((data.get("changed") or {}).items())[:LONGEST_LIST]:
        for side, value in change.items():
            found[f"changed.{name[:_LONGEST_NAME]}.{side}"] = value and brief(value)
    return {
        name: ",".join(value) if isinstance(value, list) else value
        for name, value in found.items()
        if value not in (None, "", [])
    }
