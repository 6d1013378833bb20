"""Names and content of the event files. Pure: the caller passes the time.

The schemas for readers are `exporter/schema/event_file.v1.json` and `exporter/schema/event_files_status.v1.json`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from exporter.core.decision import match
from exporter.core.policy import Decision, Mode, Rule, decision_summary, prepared_path
from exporter.core.records import Vm, optional_timestamp, timestamp, vm_data
from exporter.core.scope import EventNow
from exporter.core.snapshot import Status, urgency_key

EVENT_TYPE: Final = "azure_scheduled_events.event_file.v1"
STATUS_TYPE: Final = "azure_scheduled_events.event_files_status.v1"
STATUS_NAME: Final = "status.json"
SUFFIX: Final = ".json"
MAX_FILES: Final = 50
"""Maximum number of event files, for the most urgent events of this VM."""
MAX_BYTES: Final = 256 << 10
"""Maximum size of one file; in an event file that would be larger, `event` is null."""
MAX_TEXT: Final = 1000
"""Maximum characters of one external text.

It keeps an event file without `event`, and `status.json`, below `MAX_BYTES`, even if every character is escaped.
"""

_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9-]{1,100}")
_NOT_A_NAME: Final = re.compile(r"(?i)status|con|prn|aux|nul|(com|lpt)[0-9]")
"""Names reserved for `status.json` and for Windows devices, also with `.json` [Naming files, paths, namespaces]."""
_SURE_NAME: Final = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}|[0-9a-f]{64}")
"""A GUID, as Azure's ids are, or a digest: names that other programs don't use."""
_OPENING: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"azure_scheduled_events\.(\w+)\.v[0-9]+"')
"""First bytes of each file of this program, including truncated ones."""


def file_name(event_id: str) -> str:
    """Return the name of a new event file: the id as received, or the SHA-256 of an id that is unsafe as a name."""
    if _PLAIN_ID.fullmatch(event_id) and not _NOT_A_NAME.fullmatch(event_id):
        return event_id + SUFFIX
    return hashlib.sha256(event_id.encode("utf-8", "replace")).hexdigest() + SUFFIX


def may_be_ours(name: str) -> bool:
    """Return whether an event file could have this name."""
    stem = name.removesuffix(SUFFIX)
    return stem != name and bool(_PLAIN_ID.fullmatch(stem)) and not _NOT_A_NAME.fullmatch(stem)


def is_event_file(name: str, content: bytes) -> bool:
    """Return whether any version of this program wrote a file with this name and content.

    That includes a truncated file that begins like an event file, and a file that a power failure left blank, if its
    name is a GUID or a digest.
    """
    if not content.strip(b"\0"):
        return bool(_SURE_NAME.fullmatch(name.removesuffix(SUFFIX)))
    return _type_of(content) == b"event_file"


def is_status_file(content: bytes) -> bool:
    """Return whether a `status.json` with this content may be replaced: this program wrote it, or it is blank."""
    return not content.strip(b"\0") or _type_of(content) == b"event_files_status"


def _type_of(content: bytes) -> bytes:
    opening = _OPENING.match(content)
    return opening[1] if opening else b""


def named_files(status: Status) -> dict[str, EventNow]:
    """Return the events that have a file, most urgent first, by the name that a new file gets."""
    most_urgent = sorted(status.named_events, key=urgency_key)[:MAX_FILES]
    return {file_name(now.tracked.event.event_id): now for now in most_urgent}


def event_fields(
    now: EventNow, decision: Decision | None, *, vm: Vm, mode: Mode, rules: Iterable[Rule]
) -> dict[str, Any]:
    """Return the members of an event file, except `type` and `written_at`."""
    tracked, event = now.tracked, now.tracked.event
    rule = match(rules, event)[0]
    return {
        "vm": _cut(vm_data(vm)),
        "event_id": event.event_id,
        "event": event.raw,
        "event_type": _cut(tracked.event_type),
        "status": now.phase.value,
        "not_before": optional_timestamp(tracked.not_before),
        "first_seen_at": timestamp(tracked.first_seen.wall),
        "started_at": optional_timestamp(tracked.started_at),
        "started_by": tracked.started_by.value if tracked.started_by else None,
        "decision": decision_summary(decision, mode) if decision is not None else None,
        "ready_file": prepared_path(rule, event) if rule is not None else None,
        "approved_at": optional_timestamp(tracked.approval.accepted_at),
        "approval_outdated": tracked.approval.outdated,
    }


def event_file(fields: Mapping[str, Any], now: datetime) -> bytes:
    """Return the content of an event file, at most `MAX_BYTES`: Azure's object is omitted if it doesn't fit."""
    head = {"type": EVENT_TYPE, "written_at": timestamp(now)}
    size = len(json.dumps(fields["event"], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
    if size <= MAX_BYTES:
        content = _encoded({**head, **fields})
        if len(content) <= MAX_BYTES:
            return content
    return _encoded({**head, **fields, "event": None, "event_omitted_bytes": size})


def status_fields(status: Status, files: Sequence[str], *, version: str, running: bool) -> dict[str, Any]:
    """Return the members of `status.json`, except `type` and `written_at`. `files` are the names of the event files."""
    source = status.state.process.source
    return {
        "vm": _cut(vm_data(status.vm)),
        "up": source.up,
        "last_read_at": optional_timestamp(status.last_read),
        "failure": source.failure or None,
        "mode": status.mode.value,
        "version": version,
        "started_at": timestamp(status.started.wall),
        "events": list(files),
        "running": running,
    }


def status_file(fields: Mapping[str, Any], now: datetime) -> bytes:
    """Return the content of `status.json`."""
    return _encoded({"type": STATUS_TYPE, "written_at": timestamp(now), **fields})


def _cut(value: Any) -> Any:
    """Return the value with each text in it cut to `MAX_TEXT`."""
    if isinstance(value, Mapping):
        return {name: _cut(item) for name, item in value.items()}
    return value[:MAX_TEXT] if isinstance(value, str) else value


def _encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace") + b"\n"
