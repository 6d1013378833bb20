"""A message of an event hub as a record: our own format, and that of Microsoft's central-logging sample.

The hub holds whatever anybody sent to it, so every field is checked; what is in neither format is no record.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from exporter.core.document import folded
from exporter.core.records import Record
from exporter.core.strict_json import encodable, loads

MAX_BODY: Final = 4 << 20
MAX_TEXT: Final = 2048
SEVERITIES: Final = ("INFO", "WARN", "ERROR")
_SAMPLE_FIELDS: Final = ("EventId", "EventType", "EventStatus", "ResourceType", "NotBefore", "Description")
_SAMPLE_NAMESPACE: Final = uuid.UUID("c9a1f9a8-5a1e-5c38-8f0a-6f7d2f1f5b40")


def record_of(
    body: bytes, properties: Mapping[str, str], message_id: str | None, enqueued: datetime | None
) -> Record | None:
    """The record in a message, or None if it is in neither format.

    `properties` are its application properties; `enqueued` (aware) is when the hub stored it.
    """
    if len(body) > MAX_BODY:
        return None
    content = _object(body)
    if content is None:
        return None
    if "specversion" in content:
        return _cloudevent(content)
    return _sample(content, properties, message_id, enqueued)


def record_in(body: bytes) -> Record | None:
    """The record in the JSON text of a CloudEvent, or None."""
    content = _object(body)
    return _cloudevent(content) if content is not None else None


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object, made safe to encode again; None for anything else."""
    try:
        content = loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return encodable(content) if isinstance(content, dict) else None


def _cloudevent(content: Mapping[str, Any]) -> Record | None:
    texts = [content.get(name) for name in ("id", "source", "type", "subject", "time")]
    if not all(isinstance(text, str) and 0 < len(text) <= MAX_TEXT for text in texts):
        return None
    prefix, _, rest = content["type"].partition(".")
    kind, _, version = rest.rpartition(".v")
    data, time = content.get("data"), _time(content["time"])
    if prefix != "azure_scheduled_event" or not kind or not version.isdigit() or time is None:
        return None
    if not isinstance(data, dict) or data.get("severity") not in SEVERITIES:
        return None
    return Record(content["id"], kind, content["source"], content["subject"], time, data["severity"], data)


def _time(text: str) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _sample(
    content: Mapping[str, Any], properties: Mapping[str, str], message_id: str | None, enqueued: datetime | None
) -> Record | None:
    """The record in a message of the sample, which has no date and no id.

    The hub's own time stands for the one, and the message id, or else a hash of the content, for the other.
    """
    message, host = content.get("Msg"), content.get("Hostname")
    if not isinstance(message, str) or not isinstance(host, str) or "Time" not in content:
        return None
    event = _sample_event(content)
    kind = properties.get("kind") or {"Scheduled": "scheduled", "Started": "started"}.get(
        str(event.get("EventStatus")), "message"
    )
    text = json.dumps(content, sort_keys=True)
    subject = str(event.get("EventId") or host or "vm")[:MAX_TEXT]
    data = {
        "event": event or None,
        "vm": {"name": host or None},
        "kind": kind[:MAX_TEXT],
        "event_id": folded(subject) if event else None,
        "severity": "INFO",
        "message": message,
    }
    return Record(
        id=message_id or str(uuid.uuid5(_SAMPLE_NAMESPACE, text)),
        kind=kind[:MAX_TEXT],
        source=f"urn:azure-vm:{host[:MAX_TEXT]}",
        subject=subject,
        time=enqueued or datetime.fromtimestamp(0, UTC),
        severity="INFO",
        data=data,
    )


def _sample_event(content: Mapping[str, Any]) -> dict[str, Any]:
    """Azure's fields from the sample's spelling, which has the resources in one string and NotBefore without spaces."""
    event = {name: content[name] for name in _SAMPLE_FIELDS if isinstance(content.get(name), str)}
    if "EventId" not in event:
        return {}
    if "NotBefore" in event:
        event["NotBefore"] = event["NotBefore"].replace("_", " ")
    resources = content.get("Resources")
    if isinstance(resources, str):
        event["Resources"] = [name.strip() for name in resources.split(",") if name.strip()]
    return event
