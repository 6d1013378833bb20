"""Records and checkpoints in one SQLite file, so that they stay consistent after a crash.

One process at a time uses the file. A batch is one transaction: its facts, the events that they change, and the
position after it. So a killed process resumes exactly after its last kept fact. The file also holds which summaries are
pending: they are written again until `mark_written` records that they were.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from azure.eventhub.aio import CheckpointStore

from .record import AzureEvent, Fact, Place

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS checkpoints (hub TEXT PRIMARY KEY, checkpoint TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (
    event_id TEXT, source TEXT, id TEXT, object TEXT, fact TEXT NOT NULL, PRIMARY KEY (event_id, source, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    event_id TEXT, digest TEXT, object TEXT NOT NULL, PRIMARY KEY (event_id, digest)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    event_id TEXT PRIMARY KEY, received REAL NOT NULL, pending INTEGER NOT NULL, due TEXT NOT NULL DEFAULT '~'
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pending ON events (pending);
CREATE INDEX IF NOT EXISTS due ON events (due);
CREATE INDEX IF NOT EXISTS received ON events (received);
"""
NEVER: Final = "~"
"""`due` of an event that the program no longer expects to end: sorts after every time."""
KEPT: Final = 64
MAX_FACTS: Final = 200_000
"""Per event. A fleet of 10,000 VMs sends 60,000 for an event that affects all of them."""

_KEYS: Final = ("event_id", "source", "id", "event")
_DEFAULTS: Final = {field.name: field.default for field in fields(Fact) if field.name not in _KEYS}


class Busy(Exception):
    """Another process uses the file."""


class Store(CheckpointStore):
    """The file. As a checkpoint store, it serves only one process, which owns every partition."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open or create the file. Raises `Busy`, sqlite3.Error."""
        self._clock = clock
        self._db = sqlite3.connect(path, timeout=0.0)
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(SCHEMA)
        except sqlite3.OperationalError as error:
            self._db.close()
            if "locked" in str(error):
                raise Busy(f"another process uses {path}") from error
            raise
        self._owned: dict[str, dict[str, Any]] = {}
        self._kept: dict[tuple[str, AzureEvent], str] = {}
        """Digests of recently kept objects: VMs report an event at about the same time."""

    def close(self) -> None:
        """Close the file and discard uncommitted changes."""
        self._db.close()

    # -- records

    def add(self, facts: Iterable[Fact]) -> int:
        """Keep the facts that are about events, each once. Return the number of new ones.

        They are durable after the next commit.
        """
        new: dict[str, None] = {}
        count = 0
        for fact in facts:
            if fact.event_id is None:
                continue
            digest = self._keep_object(fact.event_id, fact.event)
            row = (fact.event_id, fact.source, fact.id, digest, _written(fact))
            count += (added := self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?, ?, ?, ?)", row).rowcount)
            if added:
                new[fact.event_id] = None
        self._db.executemany(
            "INSERT INTO events (event_id, received, pending) VALUES (?, ?, 1) "
            "ON CONFLICT DO UPDATE SET received = excluded.received, pending = 1",
            ((event_id, self._clock()) for event_id in new),
        )
        return count

    def facts(self, event_id: str) -> Iterator[Fact]:
        """Yield the kept facts of an event, at most MAX_FACTS."""
        rows = self._db.execute("SELECT digest, object FROM objects WHERE event_id = ?", (event_id,))
        objects = {digest: _object_read(text) for digest, text in rows}
        query = "SELECT source, id, object, fact FROM facts WHERE event_id = ? LIMIT ?"
        for source, record_id, digest, text in self._db.execute(query, (event_id, MAX_FACTS)):
            yield _read(event_id, source, record_id, objects.get(digest), text)

    def pending(self) -> list[str]:
        """Return the events whose summaries changed since they were written."""
        return [event_id for (event_id,) in self._db.execute("SELECT event_id FROM events WHERE pending = 1")]

    def overdue(self, before: str) -> list[str]:
        """Return the open events whose end was due before this time."""
        return [event_id for (event_id,) in self._db.execute("SELECT event_id FROM events WHERE due < ?", (before,))]

    def mark_written(self, due: Mapping[str, str]) -> None:
        """Record that these summaries were written. Values: the time from which the end is due, or NEVER."""
        rows = [(time, event_id) for event_id, time in due.items()]
        self._db.executemany("UPDATE events SET pending = 0, due = ? WHERE event_id = ?", rows)
        self._db.commit()

    def forget(self, before: float, max_bytes: int) -> int:
        """Drop the events without a record since this time (Unix), and the oldest ones of a file above `max_bytes`.

        Return the number of dropped events. The file does not shrink; its free pages are used again.
        """
        self._kept.clear()
        dropped = self._drop("received < ?", before)
        while self._used() > max_bytes:
            (count,) = self._db.execute("SELECT count(*) FROM events").fetchone()
            oldest = "event_id IN (SELECT event_id FROM events WHERE pending = 0 ORDER BY received LIMIT ?)"
            if not (some := self._drop(oldest, 1 + count // 10)):
                break
            dropped += some
        return dropped

    def _drop(self, which: str, value: float) -> int:
        """Drop events that aren't pending, by a condition from this module. Return their number."""
        query = f"SELECT event_id FROM events WHERE pending = 0 AND {which}"  # noqa: S608  # no text from outside
        rows = self._db.execute(query, (value,)).fetchall()
        for table in ("facts", "objects", "events"):
            self._db.executemany(f"DELETE FROM {table} WHERE event_id = ?", rows)  # noqa: S608  # as above
        self._db.commit()
        return len(rows)

    def _used(self) -> int:
        """Return the number of used bytes in the file."""
        pages, free, size = (
            int(self._db.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def _keep_object(self, event_id: str, event: AzureEvent | None) -> str | None:
        """Keep Azure's object once: it is the same in the records of all VMs, and can list a thousand of them."""
        if event is None:
            return None
        if (known := self._kept.get((event_id, event))) is not None:
            return known
        text = _object_written(event)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        self._db.execute("INSERT OR IGNORE INTO objects VALUES (?, ?, ?)", (event_id, digest, text))
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[event_id, event] = digest
        return digest

    # -- positions, as the SDK asks for them

    async def list_ownership(
        self,
        fully_qualified_namespace: str,  # noqa: ARG002  # the SDK's protocol
        eventhub_name: str,  # noqa: ARG002  # as above
        consumer_group: str,  # noqa: ARG002  # as above
        **_: Any,
    ) -> Iterable[dict[str, Any]]:
        """Return the owner of each partition: this process."""
        return list(self._owned.values())

    async def claim_ownership(self, ownership_list: Iterable[dict[str, Any]], **_: Any) -> Iterable[dict[str, Any]]:
        """Grant every claim."""
        claimed = [{**claim, "last_modified_time": time.time(), "etag": "1"} for claim in ownership_list]
        self._owned |= {claim["partition_id"]: claim for claim in claimed}
        return claimed

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **_: Any) -> None:
        """Commit the position and all facts added since the last commit."""
        row = (_hub(checkpoint), json.dumps(dict(checkpoint)))
        self._db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?)", row)
        self._db.commit()

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Iterable[dict[str, Any]]:
        """Return the positions of this hub and consumer group."""
        wanted = (fully_qualified_namespace, eventhub_name, consumer_group)
        rows = self._db.execute("SELECT checkpoint FROM checkpoints")
        found = [json.loads(text) for (text,) in rows]
        return [checkpoint for checkpoint in found if _names(checkpoint) == wanted]


def _names(checkpoint: Mapping[str, Any]) -> tuple[str, str, str]:
    return checkpoint["fully_qualified_namespace"], checkpoint["eventhub_name"], checkpoint["consumer_group"]


def _hub(checkpoint: Mapping[str, Any]) -> str:
    return "\n".join((*_names(checkpoint), checkpoint["partition_id"]))


def _written(fact: Fact) -> str:
    """Return the members that differ from their defaults, as JSON."""
    values = {name: value for name, default in _DEFAULTS.items() if (value := getattr(fact, name)) != default}
    if "place" in values:
        place: Place = values["place"]
        values["place"] = [place.subscription_id, place.resource_group, place.vmss_name, place.location, place.tags]
    return json.dumps(values, separators=(",", ":"))


def _read(event_id: str, source: str, record_id: str, event: AzureEvent | None, text: str) -> Fact:
    values = json.loads(text)
    if "place" in values:
        subscription_id, group, scale_set, location, tags = values["place"]
        tags = tuple((name, value) for name, value in tags)
        values["place"] = Place(subscription_id, group, scale_set, location, tags)
    if "unseen" in values:
        values["unseen"] = tuple(values["unseen"])
    return Fact(event_id=event_id, source=source, id=record_id, event=event, **values)


def _object_written(event: AzureEvent) -> str:
    return json.dumps({field.name: getattr(event, field.name) for field in fields(AzureEvent)}, separators=(",", ":"))


def _object_read(text: str) -> AzureEvent:
    values = json.loads(text)
    return AzureEvent(**{**values, "resources": tuple(values["resources"])})
