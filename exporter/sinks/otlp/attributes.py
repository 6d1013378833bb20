"""What a record looks like as an OpenTelemetry log record: plain values, nothing of the SDK.

`azure_scheduled_event.*` is ours (OpenTelemetry keeps `azure.*` for itself). Values come from outside and may be
anything that JSON can say; whatever protobuf cannot carry is turned into something that it can, so that no value ever
costs a record.
"""

from __future__ import annotations

import json
import math
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
_INT64: Final = range(-(2**63), 2**63)
_MAX_BITS_AS_TEXT: Final = 256  # turning a huge integer into decimal text is slow, and refused beyond 4,300 digits
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
    values[f"{ROOT}.changed"] = list(_mapping(record.data.get("changed"))) or None
    for key in _FLATTENED:
        for name, value in _mapping(record.data.get(key)).items():
            if isinstance(value, str | int | float):  # nested ones stay in the other outputs
                values[f"{ROOT}.{key}.{_text(name)}"] = value
    if values[f"{ROOT}.duration"] == UNKNOWN_DURATION:
        del values[f"{ROOT}.duration"]
    attributes = {"log.record.uid": _text(record.id)}
    return attributes | {name: encodable(value) for name, value in values.items() if value is not None and value != ""}


def resource_attributes(record: Record) -> dict[str, AttributeValue]:
    """The VM that `record` speaks of, in OpenTelemetry's words; empty ones are left out."""
    vm = _mapping(record.data.get("vm"))
    attributes: dict[str, AttributeValue] = {"cloud.provider": "azure", "cloud.platform": "azure.vm"}
    for name, key in _RESOURCE_FIELDS:
        value = vm.get(key)
        if isinstance(value, str) and value:
            attributes[name] = _text(value)
    return attributes


def body(record: Record) -> str:
    """The sentence for a person, or the kind where there is none."""
    message = record.data.get("message")
    return _text(message) if isinstance(message, str) and message else _text(record.kind)


def unix_nanoseconds(instant: datetime) -> int:
    """Nanoseconds since 1970, whole microseconds, never negative (protobuf has no sign here)."""
    return max(0, (instant - _EPOCH) // timedelta(microseconds=1) * 1000)


def encodable(value: object) -> AttributeValue:
    """`value` as something that every OTLP receiver takes: cut, cleaned, or as JSON text."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value in _INT64 else _large(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(_text(item) for item in value[:_MAX_ITEMS])
    return _text(_json(value))


def _large(value: int) -> str:
    return str(value) if value.bit_length() <= _MAX_BITS_AS_TEXT else f"an integer of {value.bit_length()} bits"


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):  # an integer of thousands of digits; nesting without end
        return f"unprintable {type(value).__name__}"


def _text(value: str) -> str:
    """Without lone surrogates, which UTF-8 cannot carry, and of bounded length."""
    return value[:_MAX_TEXT].encode("utf-8", "replace").decode("utf-8")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
