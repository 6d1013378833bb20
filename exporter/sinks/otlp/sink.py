"""OpenTelemetry logs over OTLP/HTTP: one record, one log record, one request, and the truth about it.

The SDK's log processors lose what the outbox is there to keep (a batch is dropped seconds after the collector went
away, a flush says yes regardless), so the exporter alone is used and driven from outside. The SDK's log API is still
private: whatever touches it is in `_SdkExporter`, tested with the lowest and the newest version that pyproject.toml
allows.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from exporter import __version__
from exporter.errors import Failure, Permanent, Retryable
from exporter.sinks.otlp import attributes as words
from exporter.sinks.otlp.session import TruthfulSession

if TYPE_CHECKING:
    from exporter.core.records import Record


CompressionName = Literal["none", "gzip", "deflate"]

_MAX_OPERATION: Final = 2.0  # seconds for each operation of the socket; given more, the SDK begins to try again inside
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_SERVICE_NAME: Final = "azure-scheduled-events-exporter"
_COMPRESSIONS: Final[Mapping[str, Compression]] = {
    "none": Compression.NoCompression,
    "gzip": Compression.Gzip,
    "deflate": Compression.Deflate,
}

_log = logging.getLogger(__name__)


class OtlpDestination:
    """Delivers to an OTLP/HTTP collector. The shape is described in `exporter.sinks`.

    `url` is the whole address with its path; userinfo in it becomes basic authentication. A send ends within `timeout`
    seconds, whatever the collector does. A proxy of the environment is used, redirects are not followed. `resource`
    adds to or replaces the defaults of `service.*`; what a record says of its VM comes on top; and `operator` beats
    all: when None, what `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` say. Raises ValueError with a sentence.
    """

    name: Final = "otlp"
    batch_size: Final = 1

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 2.0,
        compression: CompressionName = "none",
        certificate_file: str = "",
        client_certificate_file: str = "",
        client_key_file: str = "",
        resource: Mapping[str, str] | None = None,
        operator: Mapping[str, str] | None = None,
        idle_close: float = 15.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        _check(url, headers or {})
        self._session = TruthfulSession(
            deadline=timeout, headers=headers or {}, certificate_file=certificate_file, wall=wall
        )
        self._exporter = _SdkExporter(
            url,
            self._session,
            timeout=min(timeout, _MAX_OPERATION),
            compression=_COMPRESSIONS[compression],
            files=(certificate_file, client_certificate_file, client_key_file),
        )
        self._defaults = {"service.name": _SERVICE_NAME, "service.version": __version__} | dict(resource or {})
        self._operator = OTELResourceDetector().detect() if operator is None else Resource(dict(operator))
        self._idle_close = idle_close
        self._monotonic = monotonic
        self._last_sent: float | None = None

    def send(self, records: Sequence[Record]) -> None:
        """Return once the collector has acknowledged every record; raise `Retryable` or `Permanent` otherwise."""
        for record in records:
            self._send_one(record)

    def probe(self) -> Mapping[str, str]:
        """POST a request without any record; the headers of the answer to it. Raises `Failure` as `send` does."""
        self._session.begin()
        return self._exporter.post_nothing()

    def idle(self) -> None:
        """Give the connection back when it was not used for a while: a collector closes it at some time anyway."""
        if self._last_sent is None or self._monotonic() - self._last_sent < self._idle_close:
            return
        self._last_sent = None
        self._session.close()

    def close(self) -> None:
        """End at once, also a `send` that is under way in another thread, which then raises `Retryable`."""
        self._session.end()
        self._exporter.shutdown()

    def _send_one(self, record: Record) -> None:
        resource = Resource({**self._defaults, **words.resource_attributes(record)}).merge(self._operator)
        try:
            self._exporter.export(record, resource)
        except Failure as failure:
            if self._session.ended.is_set() and isinstance(failure, Retryable):
                raise Retryable("closed", "going down") from failure
            raise
        self._last_sent = self._monotonic()
        if self._session.warning:
            _log.warning("the collector took a record with a warning: %s", self._session.warning)


class _SdkExporter:
    """All that is private or has changed in the SDK's logs: how a log record is built and how `export` ends.

    Up to 1.44 an exception of the session leaves `export()`; from 1.45 on it is swallowed and FAILURE returned.
    """

    def __init__(
        self,
        url: str,
        session: TruthfulSession,
        *,
        timeout: float,
        compression: Compression,
        files: tuple[str, str, str],
    ) -> None:
        _quiet()
        certificate_file, client_certificate_file, client_key_file = files
        self._session = session
        self._url = url
        self._timeout = timeout
        self._certificate = (client_certificate_file, client_key_file) if client_key_file else client_certificate_file
        self._scope = InstrumentationScope(_SERVICE_NAME, __version__)
        self._exporter = OTLPLogExporter(
            endpoint=url,
            certificate_file=certificate_file or None,
            client_certificate_file=client_certificate_file or None,
            client_key_file=client_key_file or None,
            timeout=timeout,
            compression=compression,
            session=session,
        )

    def post_nothing(self) -> Mapping[str, str]:
        """An empty `ExportLogsServiceRequest`, which the SDK would not send; raises `Failure`."""
        media = {"Content-Type": "application/x-protobuf"}
        answer = self._session.post(
            self._url, data=b"", headers=media, timeout=self._timeout, cert=self._certificate or None
        )
        return answer.headers

    def export(self, record: Record, resource: Resource) -> None:
        """Send one record; raises `Failure`."""
        if self._session.ended.is_set():
            raise Retryable("closed", "going down")
        self._session.begin()
        entry = ReadableLogRecord(_log_record(record), resource, self._scope)
        try:
            result = self._exporter.export([entry])
        except Failure:
            raise
        except Exception as error:  # whatever the SDK raises itself is before the request: the record's own
            raise self._unsent(type(error).__name__) from error
        if self._session.failure is not None:
            raise self._session.failure
        if result is not LogRecordExportResult.SUCCESS or not self._session.asked:
            raise self._unsent(result.name)

    def shutdown(self) -> None:
        """Close the session and end any waiting inside."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK's

    def _unsent(self, what: str) -> Failure:
        if self._session.asked:
            return Retryable("other", f"the exporter says {what}")
        return Permanent("rejected", f"the exporter cannot encode it ({what})")


def _check(url: str, headers: Mapping[str, str]) -> None:
    """Refuse what HTTP would refuse later, with the value in its complaint."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the address of an OTLP collector begins with http:// or https:// and names a host")
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("an OTLP header has a name that HTTP does not allow")
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise ValueError(f"the OTLP header {name} has a value that HTTP does not allow")


def _log_record(record: Record) -> LogRecord:
    at = words.unix_nanoseconds(record.time)
    return LogRecord(
        timestamp=at,
        observed_timestamp=at,  # `time` is when we observed it; a later try must not look like a later fact
        severity_number=SeverityNumber(words.SEVERITY_NUMBERS.get(record.severity, 9)),
        severity_text=record.severity,
        body=words.body(record),
        event_name=f"{words.ROOT}.{record.kind}",
        attributes=words.log_attributes(record),
    )


def _quiet() -> None:
    """The libraries tell each failure again, with address and body; `Failure` is the one account of it."""
    for library in ("opentelemetry.exporter", "opentelemetry.sdk", "opentelemetry.attributes", "urllib3"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
