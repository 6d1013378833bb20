"""A record as an Event Hubs message, in plain values without the SDK."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Final

from msgspec import Struct

from exporter.choices import MessageFormat
from exporter.core.records import CONTENT_TYPE, Record

# The service takes partition keys of up to 128 characters:
# https://learn.microsoft.com/dotnet/api/azure.messaging.eventhubs.producer.createbatchoptions.partitionkey
MAX_PARTITION_KEY: Final = 128
MAX_PROPERTY: Final = 256


class Message(Struct, frozen=True):
    """One message. Properties are strings only: a Python consumer and 32-bit numbers do not go together. One that is
    not known is left out."""

    body: bytes
    content_type: str
    message_id: str
    properties: Mapping[str, str]


def message(record: Record, message_format: MessageFormat) -> Message:
    """The message of a record. Raises ValueError for a record that cannot be encoded."""
    event = record.readable_event
    properties = {
        "kind": record.kind,
        "event_type": event.get("EventType"),
        "event_status": event.get("EventStatus"),
        "event_source": event.get("EventSource"),
        "vm": _mapping(record.data.get("vm")).get("name"),
    }
    sample = message_format == "azure-sample"
    return Message(
        body=_sample(record) if sample else record.to_json(),
        content_type="application/json" if sample else CONTENT_TYPE,
        message_id=record.id,
        properties={name: text for name, value in properties.items() if (text := _property(value))},
    )


def partition_key(subject: str) -> str | None:
    """Equal for equal subjects, so that the records of one event stay in order; None where there is none."""
    key = clean(subject)
    if len(key) <= MAX_PARTITION_KEY:
        return key or None
    return hashlib.sha256(key.encode()).hexdigest()


def clean(text: str) -> str:
    """Without lone surrogates, which UTF-8 and so AMQP cannot carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _sample(record: Record) -> bytes:
    """For consumers of Microsoft's sample "virtual-machines-python-scheduled-events-central-logging", as JSON.

    Like there: Azure's fields as they are, but the resources as one text (the sample drops all but the first, here they
    are joined by commas) and NotBefore without spaces; and where there is no event, only the last four fields. `Time`
    is UTC.
    """
    event = _mapping(record.data.get("event"))
    resources = event.get("Resources")
    not_before = event.get("NotBefore")
    fields = {name: value for name, value in event.items() if value is not None}
    if isinstance(resources, list):
        fields["Resources"] = ",".join(map(str, resources))
    if isinstance(not_before, str):
        fields["NotBefore"] = not_before.replace(" ", "_")
    fields |= {
        "Hostname": _mapping(record.data.get("vm")).get("name") or "",
        "Time": record.time.astimezone(UTC).strftime("%H:%M:%S"),
        "Msg": record.data.get("message") or record.kind,
        "LogType": "DEBUG",
    }
    return json.dumps(fields).encode()


def _property(value: object) -> str:
    return clean(value)[:MAX_PROPERTY] if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
