"""OpenTelemetry logs over OTLP/HTTP: each record is one log record, and a request has many.

The SDK's log processors lose records that the outbox keeps: they drop a batch seconds after the collector becomes
unavailable, and a flush always returns True. The SDK's exporter treats a redirect, a sign-in page, and a
`partial_success` with rejected records as success. So this package uses only the SDK's encoder, and `client` sends. The
SDK's log API is still private: only this file uses it, tested with the lowest and the newest version that
pyproject.toml allows.

The agent's own attributes are `azure_scheduled_event.*`, because OpenTelemetry reserves `azure.*`. Every output can
encode the values of a record (`core.strict_json.encodable`); this module truncates them and converts them to OTLP's
types.
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
"""Maximum size of a request with several records before compression. Collectors accept at least 4 MiB by default."""
SINGLE_SECONDS: Final = 600.0
"""Time after a partial rejection in which requests have one record, so that a rejection identifies its record."""


class OtlpDestination:
    """A destination for an OTLP/HTTP collector. `exporter.sinks` describes the interface.

    A send ends within the timeout of `settings`. It uses the proxies of `environ` and follows no redirects. The
    resource attributes and the service name of `settings` override a record's VM attributes. A connection that was
    unused for `idle_close` seconds is closed.
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
        self._single_until = -math.inf

    @property
    def batch_size(self) -> int:
        """Maximum records in one request: 1 for `SINGLE_SECONDS` after a partial rejection."""
        return 1 if self._monotonic() < self._single_until else BATCH_RECORDS

    def send(self, records: Sequence[Record]) -> None:
        """Send the records in one request, in order, and return once the collector has acknowledged all of them.

        Blocks. Raises `Retryable`, `Permanent`, or `PartlyRejected`; `Permanent` without a request for several records
        that are too large together.
        """
        content = self._encode(records)
        if len(records) > 1 and len(content) > BATCH_BYTES:
            raise Permanent("too-large", f"{len(content)} bytes in one request")
        try:
            self._client.post(content, len(records))
        except PartlyRejected:
            self._single_until = self._monotonic() + SINGLE_SECONDS
            raise
        finally:
            self._last_sent = self._monotonic()

    def probe(self) -> Mapping[str, str]:
        """Send an `ExportLogsServiceRequest` without records. Return the response headers. Raises as `send`."""
        return self._client.post(b"", 0)

    def idle(self) -> float | None:
        """Close the connection if it was unused for `idle_close` seconds.

        Return the seconds until then; None if there is no connection to close.
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
        """Close at once. A `send` running in another thread raises `Retryable`."""
        self._client.close()

    def _encode(self, records: Sequence[Record]) -> bytes:
        """Return the `ExportLogsServiceRequest` with these records. Raises Permanent if one can't be encoded.

        Consecutive records with the same VM attributes share one resource. A repeated field of protobuf may be encoded
        in several parts, so the order of the records is kept.
        """
        try:
            runs = groupby(records, resource_attributes)
            return b"".join(self._encode_run(of_vm, run) for of_vm, run in runs)
        except Exception as error:  # a record caused it: reject it, so that no other record waits for it
            raise Permanent("rejected", f"the record cannot be encoded ({type(error).__name__})") from error

    def _encode_run(self, of_vm: Mapping[str, AttributeValue], records: Iterable[Record]) -> bytes:
        resource = Resource({"service.version": __version__, **of_vm, **self._operator})
        entries = [ReadableLogRecord(_log_record(record), resource, self._scope) for record in records]
        return bytes(encode_logs(entries).SerializeToString())


def _log_record(record: Record) -> LogRecord:
    at = unix_nanoseconds(record.time)
    return LogRecord(
        timestamp=at,
        observed_timestamp=at,  # `time` is the time of observation; a retry must not change it
        severity_number=SeverityNumber(SEVERITY_NUMBERS.get(record.severity, 9)),
        severity_text=record.severity,
        body=body(record),
        event_name=f"{ROOT}.{record.kind}",
        attributes=log_attributes(record),
    )


AttributeValue = str | bool | int | float | tuple[str, ...]

ROOT: Final = "azure_scheduled_event"
UNKNOWN_DURATION: Final = -1
"""`DurationInSeconds` if Azure doesn't know the duration [Query for events]."""

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
    """Return the attributes of `record`, without unknown ones."""
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
    """Return the VM of `record` as OpenTelemetry's resource attributes, without empty ones."""
    vm = record.data["vm"]
    known = {name: _attribute(vm[key]) for name, key in _RESOURCE_FIELDS if vm.get(key)}
    return {"cloud.provider": "azure", "cloud.platform": "azure.vm", **known}


def body(record: Record) -> str:
    """Return the human-readable message, or the kind if there is none."""
    return str(_attribute(record.data.get("message") or record.kind))


def unix_nanoseconds(instant: datetime) -> int:
    """Return the nanoseconds since 1970, in whole microseconds, at least 0 (protobuf's field is unsigned)."""
    return max(0, (instant - _EPOCH) // timedelta(microseconds=1) * 1000)


def _attribute(value: Any) -> AttributeValue:
    """Return the value with a limited length; as JSON if OTLP has no type for it."""
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return tuple(item[:_MAX_TEXT] for item in value[:_MAX_ITEMS])
    return json.dumps(value, ensure_ascii=False)[:_MAX_TEXT]
