"""Records: the published form of every recorded fact, and every published kind.

One record = one CloudEvents 1.0 event = one OpenTelemetry log record = one Event Hubs message, with one id in all three
(`record_factory` derives it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Protocol
from urllib.parse import quote

from msgspec import Struct

from exporter.core.state import TransitionKind
from exporter.core.strict_json import encodable

SCHEMA_VERSION: Final = 1
DATA_SCHEMA: Final = "urn:azure-scheduled-events-exporter:schema:record:v1"
DEPTH: Final = 80  # of a record's data: an event's (`strict_json.encodable`) plus the levels around it
CONTENT_TYPE: Final = "application/cloudevents+json"


class RecordKind(StrEnum):
    """Published kinds of record that are not transitions of an event."""

    APPROVAL_DECIDED = "approval.decided"
    APPROVAL_ACCEPTED = "approval.accepted"
    APPROVAL_FAILED = "approval.failed"
    APPROVAL_OUTDATED = "approval.outdated"
    INTERRUPTION_OBSERVED = "interruption.observed"
    SOURCE_UNAVAILABLE = "source.unavailable"
    SOURCE_RECOVERED = "source.recovered"
    SOURCE_ANOMALY = "source.anomaly"
    DOCUMENT_REJECTED = "document.rejected"
    EVENT_REJECTED = "event.rejected"
    AGENT_STARTED = "agent.started"
    AGENT_STOPPED = "agent.stopped"


KINDS: Final = (*map(str, TransitionKind), *map(str, RecordKind))
"""Every published kind, transitions first."""


# Only configured tags are published, since tags may contain secrets. Azure compares their names ignoring case
# [Azure Resource Manager, Tag usage and recommendations]; they are published as configured.
MAX_TAGS: Final = 16
"""Each tag is a label of `vm_info`, on each VM of a fleet."""
MAX_TAG_NAME: Final = 512
"""Maximum number of characters in Azure."""
MAX_TAG_VALUE: Final = 256
"""Maximum number of characters in Azure; a longer value is cut."""

Tags = tuple[tuple[str, str], ...]
"""Name (as configured) and value of each published tag; "" if the VM doesn't have it, or it is unknown."""

_NO_LABEL: Final = re.compile(r"[^a-zA-Z0-9_]")


def tag_label(name: str) -> str:
    """Return the label of a tag on `vm_info`."""
    return "tag_" + _NO_LABEL.sub("_", name)


def unknown_tags(names: Iterable[str]) -> Tags:
    """Return the tags of a VM before the metadata service has returned them."""
    return tuple((name, "") for name in names)


class Vm(Struct, frozen=True):
    """The identity of this VM in records and on gauges. Empty strings are unknown.

    `tags` are the tags that the configuration names, in that order.
    """

    name: str = ""
    id: str = ""
    resource_id: str = ""
    subscription_id: str = ""
    resource_group: str = ""
    vmss_name: str = ""
    location: str = ""
    zone: str = ""
    size: str = ""
    priority: str = ""
    node: str = ""
    tags: Tags = ()

    @property
    def source(self) -> str:
        """The CloudEvents `source`: a URI reference."""
        if self.resource_id:
            return quote(self.resource_id, safe="/-._~()", errors="replace")
        if self.id:
            return f"urn:uuid:{quote(self.id, safe='-', errors='replace')}"
        return f"urn:azure-vm:{quote(self.name, safe='-._~', errors='replace') or 'unknown'}"


VM_TEXTS: Final = tuple(name for name in Vm.__struct_fields__ if name != "tags")
"""The text fields of a `Vm`, in the order in which they're published."""


@lru_cache(8)
def vm_data(vm: Vm) -> Mapping[str, Any]:
    """Return the VM as in records, event files, and status; null for unknown values.

    Cached: a VM has few identities in the life of a process.
    """
    texts = {name: getattr(vm, name) or None for name in VM_TEXTS}
    found: Mapping[str, Any] = encodable({**texts, "tags": {name: value or None for name, value in vm.tags}})
    return found


class VmIdentity(Struct, frozen=True):
    """The identity of this VM as far as it's known, and how far it can be trusted."""

    vm: Vm = Vm()
    conflict: bool = False
    """Whether the configured name differs from the one that the metadata service returns."""
    confirmed: bool = True
    """Whether the metadata service returned this name, or has none to return."""


class Storable(Protocol):
    """What the outbox needs of a record to write it."""

    @property
    def id(self) -> str:
        """The record's id."""

    @property
    def subject(self) -> str:
        """The EventId, or the name of the VM."""

    @property
    def time(self) -> datetime:
        """Time of the observation."""

    def to_json(self) -> bytes:
        """Return the structured CloudEvent in UTF-8."""


_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Record(Struct, frozen=True):
    """One published fact. `data` is JSON-shaped."""

    id: str
    kind: str
    source: str
    subject: str
    time: datetime
    severity: str
    data: Mapping[str, Any]

    @property
    def type(self) -> str:
        """The CloudEvents `type`."""
        return f"azure_scheduled_event.{self.kind}.v{SCHEMA_VERSION}"

    @property
    def readable_event(self) -> Mapping[str, Any]:
        """Azure's object with the last readable value of each field that can't be read in it.

        Empty for a record that isn't about an event, even if it contains an element of the document.
        """
        event, earlier = self.data.get("event"), self.data.get("last_readable")
        if not self.data.get("event_id") or not isinstance(event, Mapping):
            return {}
        return {**event, **earlier} if isinstance(earlier, Mapping) else event

    def to_cloudevent(self) -> dict[str, Any]:
        """Return the record as a CloudEvents 1.0 event in its JSON form."""
        return {
            "specversion": "1.0",
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "subject": self.subject,
            "time": timestamp(self.time),
            "datacontenttype": "application/json",
            "dataschema": DATA_SCHEMA,
            "partitionkey": self.subject,
            "data": self.data,
        }

    def to_json(self) -> bytes:
        """Return the structured CloudEvent in UTF-8. Never raises: values that JSON can't represent are replaced.

        Records of `RecordFactory` are encodable already, so `encodable` only runs if the encoder rejects one.
        """
        event = self.to_cloudevent()
        try:
            text = _encode(event)
            if "\\u0000" not in text and text.count("{") + text.count("[") <= DEPTH:
                return text.encode()
        except (ValueError, TypeError, RecursionError):
            pass  # NaN, a lone surrogate, a foreign type, or too deep
        return _encode(encodable(event, DEPTH)).encode()

    @classmethod
    def from_json(cls, body: bytes | str) -> Record:
        """Return the record that `to_json` wrote; raises ValueError or KeyError for anything else."""
        try:
            event = json.loads(body if isinstance(body, str) else body.decode())
            prefix, _, rest = event["type"].partition(".")
            kind, _, _ = rest.rpartition(".v")
            texts = [event[name] for name in ("id", "source", "subject")] + [event["data"]["severity"]]
            time = datetime.fromisoformat(event["time"])
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a record: {error!r}") from error
        if prefix != "azure_scheduled_event" or not kind or time.tzinfo is None:
            raise ValueError(f"not a record: {event['type']!r} at {event['time']!r}")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not a record: id, source, subject and severity are strings")
        "".join(texts).encode()  # half a surrogate pair, only present in damaged data, is a ValueError
        record_id, source, subject, severity = texts
        return cls(record_id, kind, source, subject, time, severity, event["data"])


def timestamp(value: datetime) -> str:
    """Return an instant as RFC 3339 in UTC with microseconds."""
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def optional_timestamp(value: datetime | None) -> str | None:
    """Return an instant as published (`timestamp`); None for None."""
    return timestamp(value) if value is not None else None


def rounded(seconds: float | None) -> float | None:
    """Return a number of seconds as published: to the millisecond."""
    return None if seconds is None else round(seconds, 3)
