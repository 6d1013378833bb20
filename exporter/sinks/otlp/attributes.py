"""What a record looks like as an OpenTelemetry log record: plain values, nothing of the SDK.

`azure_scheduled_event.*` is ours (OpenTelemetry keeps `azure.*` for itself). The core makes records of values that
every output can encode (`core.strict_json.encodable`); here they are cut and given one of OTLP's types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from exporter.core.records import Record

AttributeValue = str | bool | int | float | tuple[str, ...]

ROOT: Final = "azure_scheduled_event"
UNKNOWN_DURATION: Final = -1
"""`DurationInSeconds` where Azure does not know it [Query for events]."""

_MAX_TEXT: Final = 8192
_MAX_ITEMS: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# https://opentelemetry.io/docs/specs/otel/logs/data-model/#field-severitynumber: the smallest number of each range
SEVERITY_NUMBERS: Final[Mapping[str, int]] = {"INFO": 9, "WARN": 13, "ERROR": 17}

# attribute below the root → Azure's field
_EVENT_FIELDS: Final = (
    ("id", "EventId"),
    ("type", "EventType"),
    ("status", "EventStatus"),
    ("source", "EventSource"),
    ("resource_type", "ResourceType"),
    ("resources", "Resources"),
    ("duration", "DurationInSeconds"),
    ("description", "Description"),
)
# attribute below the root → key of `data`
_DATA_FIELDS: Final = (
    ("not_before", "not_before"),
    ("incarnation", "document_incarnation"),
    ("transition", "transition"),
    ("affects_self", "affects_self"),
    ("seen_before", "seen_before"),
    ("gap", "gap_seconds"),
    ("notice", "notice_seconds"),
    ("approved_by", "approved_by"),
    ("approval.attempt", "attempt"),
    ("approval.status_code", "status_code"),
    ("approval.reason", "reason"),
    ("approval.rule", "rule"),
    ("error", "error"),
    ("fault", "fault"),
    ("unexpected", "unexpected"),
    ("unseen", "unseen"),
)
# key of `data` whose scalars are spread out flat below an attribute of the same name
_FLATTENED: Final = ("decision", "account", "interruption")

_RESOURCE_FIELDS: Final = (
    ("cloud.region", "location"),
    ("cloud.account.id", "subscription_id"),
    ("cloud.availability_zone", "zone"),
    ("cloud.resource_id", "resource_id"),
    ("host.id", "id"),
    ("host.name", "name"),
    ("host.type", "size"),
)


def log_attributes(record: Record) -> dict[str, AttributeValue]:
    """The attributes of `record`; what it does not know is left out."""
    event = record.readable_event
    values: dict[str, Any] = {f"{ROOT}.{name}": event.get(field) for name, field in _EVENT_FIELDS}
    values |= {f"{ROOT}.{name}": record.data.get(key) for name, key in _DATA_FIELDS}
    values[f"{ROOT}.changed"] = list(record.data.get("changed") or ()) or None
    for key in _FLATTENED:
        for name, value in (record.data.get(key) or {}).items():
            if isinstance(value, str | int | float):  # nested ones stay in the other outputs
                values[f"{ROOT}.{key}.{name}"] = value
    if values[f"{ROOT}.duration"] == UNKNOWN_DURATION:
        del values[f"{ROOT}.duration"]
    attributes: dict[str, AttributeValue] = {"log.record.uid": record.id}
    return attributes | {name: _attribute(value) for name, value in values.items() if value is not None and value != ""}


def resource_attributes(record: Record) -> dict[str, AttributeValue]:
    """The VM that `record` speaks of, in OpenTelemetry's words; empty ones are left out."""
    vm = record.data["vm"]
    known = {name: _attribute(vm[key]) for name, key in _RESOURCE_FIELDS if vm.get(key)}
    return {"cloud.provider": "azure", "cloud.platform": "azure.vm", **known}


def body(record: Record) -> str:
    """The sentence for a person, or the kind where there is none."""
    return str(_attribute(record.data.get("message") or record.kind))


def unix_nanoseconds(instant: datetime) -> int:
    """Nanoseconds since 1970, whole microseconds, never negative (protobuf has no sign here)."""
    return max(0, (instant - _EPOCH) // timedelta(microseconds=1) * 1000)


def _attribute(value: Any) -> AttributeValue:
    """A value of bounded length; one that OTLP has no type for as JSON."""
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(item[:_MAX_TEXT] for item in value[:_MAX_ITEMS])
    return json.dumps(value, ensure_ascii=False)[:_MAX_TEXT]
