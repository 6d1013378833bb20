"""Conversion of a record to an Event Hubs message."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC
from typing import Final

from azure.eventhub import EventData

from exporter.choices import MessageFormat
from exporter.core.records import CONTENT_TYPE, Record

# The service takes partition keys of up to 128 characters:
# https://learn.microsoft.com/dotnet/api/azure.messaging.eventhubs.producer.createbatchoptions.partitionkey
MAX_PARTITION_KEY: Final = 128
MAX_PROPERTY: Final = 256


def message(record: Record, message_format: MessageFormat) -> EventData:
    """Return the message of a record. Raises ValueError for a record that can't be encoded.

    All properties are strings, because the SDK for Python doesn't handle 32-bit numbers; unknown ones are omitted.
    """
    event = record.readable_event
    properties = {
        "kind": record.kind,
        "event_type": event.get("EventType"),
        "event_status": event.get("EventStatus"),
        "event_source": event.get("EventSource"),
        "vm": record.data["vm"]["name"],
    }
    sample = message_format == "azure-sample"
    made = EventData(_sample(record) if sample else record.to_json())
    made.content_type = "application/json" if sample else CONTENT_TYPE
    made.message_id = record.id
    made.properties = {name: text[:MAX_PROPERTY] for name, text in properties.items() if text and isinstance(text, str)}
    return made


def partition_key(subject: str) -> str | None:
    """Return the partition key: equal for equal subjects, so that an event's records stay in order; None if empty."""
    if len(subject) <= MAX_PARTITION_KEY:
        return subject or None
    return hashlib.sha256(subject.encode()).hexdigest()


def _sample(record: Record) -> bytes:
    """Return the JSON of Microsoft's sample "virtual-machines-python-scheduled-events-central-logging".

    As in the sample, Azure's fields are unchanged, except that NotBefore has no spaces and the resources are one text:
    all of them, joined by commas, where the sample keeps only the first. Without an event, only the last four fields.
    `Time` is UTC.
    """
    event = record.data["event"] if isinstance(record.data["event"], dict) else {}
    resources = event.get("Resources")
    not_before = event.get("NotBefore")
    fields = {name: value for name, value in event.items() if value is not None}
    if isinstance(resources, list):
        fields["Resources"] = ",".join(map(str, resources))
    if isinstance(not_before, str):
        fields["NotBefore"] = not_before.replace(" ", "_")
    fields |= {
        "Hostname": record.data["vm"]["name"] or "",
        "Time": record.time.astimezone(UTC).strftime("%H:%M:%S"),
        "Msg": record.data.get("message") or record.kind,
        "LogType": "DEBUG",
    }
    return json.dumps(fields).encode()
