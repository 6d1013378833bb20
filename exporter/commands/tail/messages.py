"""A message of an event hub as a record: our own format, and that of Microsoft's central-logging sample.

Whoever may send to the hub can write anything there, so every field is checked. Whatever is not ours is no record.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from exporter.core.records import Record
from exporter.core.strict_json import encodable

MAX_BODY: Final = 4 << 20
MAX_TEXT: Final = 2048
SEVERITIES: Final = ("INFO", "WARN", "ERROR")
_SAMPLE_FIELDS: Final = ("EventId", "EventType", "EventStatus", "ResourceType", "NotBefore", "Description")
_SAMPLE_NAMESPACE: Final = uuid.UUID("c9a1f9a8-5a1e-5c38-8f0a-6f7d2f1f5b40")


def record_of(
    body: bytes, properties: Mapping[str, str], message_id: str | None, enqueued: datetime | None
) -> Record | None:
    """The record in a message, or None when it is none of ours."""
    if len(body) > MAX_BODY:
        return None
    found = _object(body)
    if found is None:
        return None
    if "specversion" in found:
        return _cloudevent(found)
    return _sample(found, properties, message_id, enqueued)


def record_in(body: bytes) -> Record | None:
    """The record in the JSON text of a CloudEvent, or None."""
    found = _object(body)
    return _cloudevent(found) if found is not None else None


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object, made safe to encode again; None for anything else."""
    try:
        found = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return encodable(found) if isinstance(found, dict) else None


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _cloudevent(found: Mapping[str, Any]) -> Record | None:
    texts = [found.get(name) for name in ("id", "source", "type", "subject", "time")]
    if not all(isinstance(text, str) and 0 < len(text) <= MAX_TEXT for text in texts):
        return None
    prefix, _, rest = found["type"].partition(".")
    kind, _, version = rest.rpartition(".v")
    data, time = found.get("data"), _time(found["time"])
    if prefix != "azure_scheduled_event" or not kind or not version.isdigit() or time is None:
        return None
    if not isinstance(data, dict) or data.get("severity") not in SEVERITIES:
        return None
    return Record(found["id"], kind, found["source"], found["subject"], time, data["severity"], data)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _sample(
    found: Mapping[str, Any], properties: Mapping[str, str], message_id: str | None, enqueued: datetime | None
) -> Record | None:
    """The sample's messages carry a time without a date, and no id: the hub's own time, and what the sender added."""
    message, host = found.get("Msg"), found.get("Hostname")
    if not isinstance(message, str) or not isinstance(host, str) or "Time" not in found:
        return None
    event = _sample_event(found)
    kind = properties.get("kind") or {"Scheduled": "scheduled", "Started": "started"}.get(
        str(event.get("EventStatus")), "message"
    )
    text = json.dumps(found, sort_keys=True)
    subject = str(event.get("EventId") or host or "vm")[:MAX_TEXT]
    data = {"event": event or None, "vm": {"name": host}, "severity": "INFO", "message": message}
    return Record(
        id=message_id or str(uuid.uuid5(_SAMPLE_NAMESPACE, text)),
        kind=kind[:MAX_TEXT],
        source=f"urn:azure-vm:{host[:MAX_TEXT]}",
        subject=subject,
        time=enqueued or datetime.fromtimestamp(0, UTC),
        severity="INFO",
        data=data,
    )


def _sample_event(found: Mapping[str, Any]) -> dict[str, Any]:
    """Azure's fields as they were before the sample's spelling: resources in one text, NotBefore without spaces."""
    event = {name: found[name] for name in _SAMPLE_FIELDS if isinstance(found.get(name), str)}
    if "EventId" not in event:
        return {}
    if "NotBefore" in event:
        event["NotBefore"] = event["NotBefore"].replace("_", " ")
    resources = found.get("Resources")
    if isinstance(resources, str):
        event["Resources"] = [name.strip() for name in resources.split(",") if name.strip()]
    return event
