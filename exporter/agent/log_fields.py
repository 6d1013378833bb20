"""The common fields of log lines about an event: its type, its VM, and its `NotBefore`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from exporter.core.records import Record, optional_timestamp


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
