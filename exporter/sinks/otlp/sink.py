"""OpenTelemetry logs over OTLP/HTTP: one record is one log record, and a request holds many.

The SDK's log processors lose what the outbox is there to keep (a batch is dropped seconds after the collector went
away, a flush returns True regardless), and its exporter calls a redirect, a log in page and a `partial_success` with
rejected records a success. So of the SDK only the encoder is used, and `client` sends. Its log API is still private:
whatever touches it is in this file, tested with the lowest and the newest version that pyproject.toml allows.

Of the attributes `azure_scheduled_event.*` is ours (OpenTelemetry keeps `azure.*` for itself). The core makes records
of values that every output can encode (`core.strict_json.encodable`); here they are cut and given one of OTLP's types.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from exporter import __version__
from exporter.config.schema import OtlpSettings
from exporter.errors import PartlyRejected, Permanent
from exporter.sinks.otlp.client import CollectorClient

if TYPE_CHECKING:
    from exporter.core.records import Record


BATCH_RECORDS: Final = 100
BATCH_BYTES: Final = 1 << 20
"""Of a request with more than one record, before it is compressed. Collectors take 4 MiB and more by default."""
ALONE_SECONDS: Final = 600.0
"""After a rejection of some records of a request, requests have one record, so that the next one names its record."""


class OtlpDestination:
    """Delivers to an OTLP/HTTP collector. The shape is described in `exporter.sinks`.

    A send ends within the timeout of `settings`, whatever the collector does. A proxy that `environ` names is used,
    redirects are not followed. The resource attributes and the service name of `settings` replace what a record knows
    of its VM. A connection that was not used for `idle_close` seconds is closed.
    """

    name: Final = "otlp"
    subjects: Final = None

    def __init__(
        self,
        settings: OtlpSettings,
        *,
        environ: Mapping[str, str] = os.environ,
        idle_close: float = 15.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = CollectorClient(settings, environ, wall)
        self._scope = InstrumentationScope("azure-scheduled-events-exporter", __version__)
        self._operator = {**dict(settings.resource_attributes), "service.name": settings.service_name}
        self._idle_close = idle_close
        self._monotonic = monotonic
        self._last_sent: float | None = None
        self._alone_until = -math.inf

    @property
    def batch_size(self) -> int:
        """Records in one request: one, for `ALONE_SECONDS` after some of a request were rejected."""
        return 1 if self._monotonic() < self._alone_until else BATCH_RECORDS

    def send(self, records: Sequence[Record]) -> None:
        """Return once the collector has acknowledged every record; raise `Retryable`, `Permanent` or `PartlyRejected`
        otherwise.

        All of them are one request, in their order. What is too much for one is refused without a request.
        """
        content = self._encode(records)
        if len(records) > 1 and len(content) > BATCH_BYTES:
            raise Permanent("too-large", f"{len(content)} bytes in one request")
        try:
            self._client.post(content, len(records))
        except PartlyRejected:
            self._alone_until = self._monotonic() + ALONE_SECONDS
            raise
        finally:
            self._last_sent = self._monotonic()

    def probe(self) -> Mapping[str, str]:
        """POST an `ExportLogsServiceRequest` without any record; the headers of the answer. Raises as `send` does."""
        return self._client.post(b"", 0)

    def idle(self) -> float | None:
        """Give the connection back when it was not used for a while: a collector closes it at some time anyway.

        Answers in how many seconds that will be; None when there is none to give back.
        """
        if self._last_sent is None:
            return None
        unused = self._monotonic() - self._last_sent
        if unused < self._idle_close:
            return self._idle_close - unused
        self._last_sent = None
        self._client.give_back()
        return None

    def close(self) -> None:
        """End at once, also a `send` that is under way in another thread, which then raises `Retryable`."""
        self._client.close()

    def _encode(self, records: Sequence[Record]) -> bytes:
        """The `ExportLogsServiceRequest` with these records; Permanent where there is none.

        What the records know of their VM is written once for all that know the same in a row: a repeated field of
        protobuf may come in several pieces, and the order of the records is kept.
        """
        try:
            runs = groupby(records, resource_attributes)
            return b"".join(self._encode_run(of_vm, run) for of_vm, run in runs)
        except Exception as error:  # whatever the SDK raises is a record's own: no other record waits for it
            raise Permanent("rejected", f"it cannot be encoded ({type(error).__name__})") from error

    def _encode_run(self, of_vm: Mapping[str, AttributeValue], records: Iterable[Record]) -> bytes:
        resource = Resource({"service.version": __version__, **of_vm, **self._operator})
        entries = [ReadableLogRecord(_log_record(record), resource, self._scope) for record in records]
        return bytes(encode_logs(entries).SerializeToString())


def _log_record(record: Record) -> LogRecord:
    at = unix_nanoseconds(record.time)
    return LogRecord(
        timestamp=at,
        observed_timestamp=at,  # `time` is when we observed it; a later try must not look like a later fact
        severity_number=SeverityNumber(SEVERITY_NUMBERS.get(record.severity, 9)),
        severity_text=record.severity,
        body=body(record),
        event_name=f"{ROOT}.{record.kind}",
        attributes=log_attributes(record),
    )


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
    ("started_by", "started_by"),
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
_FLATTENED: Final = ("decision", "summary", "interruption")

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
