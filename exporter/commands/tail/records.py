"""Records read from the outbox file, or from messages of an event hub.

The outbox is read without writing to it, even while the agent uses it. An event hub can contain messages of any
sender, so every field is checked: a message is a CloudEvent of this program, has the format of Microsoft's
central-logging sample, or isn't a record.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from exporter.core.document import folded
from exporter.core.records import Record
from exporter.core.strict_json import encodable, loads
from exporter.errors import Permanent
from exporter.outbox.errors import SQLITE_ERRORS, message_of, refuse_directory
from exporter.outbox.file import file_uri, is_blank, is_ours

BUSY_SECONDS: Final = 5.0
ROWS_AT_ONCE: Final = 200


class Entry(Struct, frozen=True):
    """A record in the outbox: `waiting` are its pending destinations, `parked` those that rejected it, with reasons."""

    record: Record
    waiting: tuple[str, ...] = ()
    parked: tuple[tuple[str, str], ...] = ()


class OutboxReader:
    """A reader of an outbox file that returns only new entries on each call.

    With `wait_for_file`, a missing file counts as empty, and `file_missing` is True; without it, it's an error.
    `foreign` counts entries that aren't records.
    """

    def __init__(self, path: str, wait_for_file: bool = False) -> None:
        self.path = Path(path)
        self.file_missing = False
        self.foreign = 0
        self._wait_for_file = wait_for_file
        self._seq = 0
        self._inode: tuple[int, int] | None = None

    def new(self) -> Iterator[Entry]:
        """Yield the entries since the last call, oldest first; after a replacement of the file, all of its entries.

        Raises `Failure`, with path and reason as `detail`, if the file isn't readable.
        """
        try:
            refuse_directory(self.path)
            status = os.stat(self.path)
            if self._inode != (status.st_dev, status.st_ino):
                self._inode, self._seq = (status.st_dev, status.st_ino), 0
            with contextlib.closing(_open(self.path, self._wait_for_file)) as db:
                while rows := db.execute(_NEW, (self._seq, ROWS_AT_ONCE)).fetchall():
                    for seq, body, queue in rows:
                        self._seq = seq
                        record = record_in(body if isinstance(body, bytes) else str(body).encode())
                        if record is None:
                            self.foreign += 1
                            continue
                        yield _entry(record, queue)
            self.file_missing = False
        except (OSError, *SQLITE_ERRORS) as error:
            self.file_missing = self._wait_for_file and isinstance(error, FileNotFoundError)
            if self.file_missing:
                return
            raise Permanent("unreadable", message_of(error, self.path)) from error


_NEW: Final = (
    "SELECT r.seq, r.body, (SELECT json_group_array(json_array(destination, parked)) FROM queue q"
    " WHERE q.seq = r.seq) FROM records r WHERE r.seq > ? ORDER BY r.seq LIMIT ?"
)


def _open(path: Path, wait_for_file: bool) -> sqlite3.Connection:
    """Open a read-only connection; as an immutable file if no agent has it open and its directory is read-only."""
    uri = f"{file_uri(path.resolve())}?mode=ro"
    try:
        return _checked(uri, path, wait_for_file)
    except sqlite3.OperationalError:
        if path.with_name(f"{path.name}-wal").exists():
            raise
        return _checked(f"{uri}&immutable=1", path, wait_for_file)


def _checked(uri: str, path: Path, wait_for_file: bool) -> sqlite3.Connection:
    with contextlib.ExitStack() as undo:
        db = undo.enter_context(contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)))
        if not is_ours(db):
            if wait_for_file and is_blank(db):  # created, and not yet written to
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            raise Permanent("foreign", f"{path}: not an outbox of this version; check the path")
        undo.pop_all()
        return db


def _entry(record: Record, queue: str | None) -> Entry:
    destinations: list[tuple[str, str | None]] = json.loads(queue or "[]")
    waiting = tuple(name for name, reason in destinations if reason is None)
    return Entry(record, waiting, tuple((name, reason) for name, reason in destinations if reason is not None))


MAX_BODY: Final = 4 << 20
MAX_TEXT: Final = 2048
SEVERITIES: Final = ("INFO", "WARN", "ERROR")
_SAMPLE_FIELDS: Final = ("EventId", "EventType", "EventStatus", "ResourceType", "NotBefore", "Description")
_SAMPLE_NAMESPACE: Final = uuid.UUID("c9a1f9a8-5a1e-5c38-8f0a-6f7d2f1f5b40")


def record_of(
    body: bytes, properties: Mapping[str, str], message_id: str | None, enqueued: datetime | None
) -> Record | None:
    """Return the record in a message, or None if it's in neither format.

    `properties` are the message's application properties. `enqueued` (aware) is the time at which the hub stored it.
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
    """Return the record in the JSON text of a CloudEvent, or None if it isn't one."""
    content = _object(body)
    return _cloudevent(content) if content is not None else None


def _object(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object, made safe to encode again; None for anything else."""
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
    """Return the record in a message of Microsoft's sample, which has no date and no id.

    The hub's time replaces the date; the message id, or a hash of the content, replaces the id.
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
    """Return Azure's fields; the sample has the resources in one string, and underscores for spaces in NotBefore."""
    event = {name: content[name] for name in _SAMPLE_FIELDS if isinstance(content.get(name), str)}
    if "EventId" not in event:
        return {}
    if "NotBefore" in event:
        event["NotBefore"] = event["NotBefore"].replace("_", " ")
    resources = content.get("Resources")
    if isinstance(resources, str):
        event["Resources"] = [name.strip() for name in resources.split(",") if name.strip()]
    return event
