"""The HTTP client of the Azure metadata service: read the document, approve an event, read the VM's identity.

Whatever the peer does, a call returns or raises `MetadataError` by its deadline, and reads at most `max_bytes`. It
never uses a proxy, redirect, cookie, content encoding, or credential file: an `httpx.Client` that ignores the
environment sends prepared requests through `http.transport`. Documents aren't parsed here: `fetch` returns bytes.

Facts about the service come from Microsoft's documentation of Scheduled Events and the Instance Metadata Service.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx
from msgspec import Struct

from exporter.core.document import folded
from exporter.core.records import MAX_TAG_VALUE, Tags, Vm
from exporter.core.strict_json import encodable
from exporter.errors import parse_http_date, parse_retry_after
from exporter.http.deadline import Aborted, Exchange, Resolve, Stage
from exporter.http.tls import default_context
from exporter.http.transport import Transport, client_over
from exporter.metadata.errors import (
    FOREIGN,
    RETRY_AFTER_SECONDS,
    MetadataError,
    is_page,
    one_line,
    status_reason,
    translate,
)

BODY_BYTES: Final = 4 * 1024 * 1024
DEADLINE_SECONDS: Final = 5.0
FIRST_DEADLINE_SECONDS: Final = 125.0  # the first request enables the service for the VM, which takes up to 2 minutes
LONG_POLL_AFTER_SECONDS: Final = 3600.0  # after this long without a response, one poll waits as long as the first
IDENTITY_API_VERSION: Final = "2021-12-13"

_SNIPPET_BYTES: Final = 2048
_SNIPPET_SECONDS: Final = 1.0
_HEADERS: Final = {
    "Metadata": "true",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "azure-scheduled-events-exporter",
}


class MetadataResponse(Struct, frozen=True):
    """A complete 200. `read_at_monotonic` is when its last byte was read; `duration` is in seconds."""

    body: bytes
    read_at_monotonic: float
    duration: float


_INSTANCE_FIELDS: Final = {
    "name": "name",
    "id": "vmId",
    "resource_id": "resourceId",
    "subscription_id": "subscriptionId",
    "resource_group": "resourceGroupName",
    "vmss_name": "vmScaleSetName",
    "location": "location",
    "zone": "zone",
    "size": "vmSize",
    "priority": "priority",
}
"""Field of `Vm` → field of `/metadata/instance/compute`."""
MAX_INSTANCE_TEXT: Final = 512
"""Maximum length of these fields in characters."""


def parse_instance(body: bytes, tags: Sequence[str] = ()) -> Vm:
    """Return the VM of the instance document, with its tags of these names.

    Only listed fields are read: the document also contains user data, keys, and other tags, so it is never kept,
    logged, or passed on as a whole. A text that is too long or not printable becomes "": truncated, it could name
    another VM. `node` is not in the document. Raises MetadataError if the document is not a JSON object.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MetadataError("malformed", "the instance document is not JSON") from error
    if not isinstance(document, dict):
        raise MetadataError("malformed", "the instance document is not an object")
    texts: dict[str, Any] = {field: _plain(document.get(key)) for field, key in _INSTANCE_FIELDS.items()}
    return Vm(**texts, tags=_tags(document.get("tagsList"), tags))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and len(value) <= MAX_INSTANCE_TEXT and value.isprintable() else ""


def _tags(given: Any, names: Sequence[str]) -> Tags:
    """Return the tags of these names from `tagsList`, which is `[{"name": ..., "value": ...}, ...]`.

    The first of several tags of one name counts; "" if missing. Values are cut at `MAX_TAG_VALUE` characters.
    """
    values = {folded(name): "" for name in names}
    for item in given if isinstance(given, list) and values else ():
        name, value = (item.get("name"), item.get("value")) if isinstance(item, dict) else (None, None)
        if isinstance(name, str) and isinstance(value, str) and values.get(folded(name)) == "":
            values[folded(name)] = encodable(value[:MAX_TAG_VALUE])
    return tuple((name, values[folded(name)]) for name in names)


class _Channel(Struct, frozen=True):
    """An exchange and its client, for one request at a time."""

    exchange: Exchange
    http: httpx.Client


class MetadataClient:
    """The process's client of the metadata service. One thread at a time; any may call `approve` and `abort`.

    `url` is the service's base, usually `http://169.254.169.254`; raises httpx.InvalidURL if invalid. `monotonic` is
    the clock of deadlines, `clock` that of HTTP dates (POSIX seconds). Until the first 200, a poll may take
    `first_deadline` seconds, since the first request enables the service; afterwards `deadline`. After each hour
    without any response, one poll may take `first_deadline` again: Azure disables the service after a day without
    requests [Azure, Scheduled Events: Enabling and disabling Scheduled Events], and enabling it takes that long.
    `instance` returns the VM's tags named in `tags`. `waiting` is called about four times a second while a GET waits,
    on its thread.
    """

    def __init__(
        self,
        url: str,
        api_version: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        resolve: Resolve = socket.getaddrinfo,
        tls: Callable[[], ssl.SSLContext] = default_context,
        deadline: float = DEADLINE_SECONDS,
        first_deadline: float = FIRST_DEADLINE_SECONDS,
        max_bytes: int = BODY_BYTES,
        tags: Sequence[str] = (),
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._monotonic = monotonic
        self._clock = clock
        self._resolve = resolve
        self._tls = tls
        self._deadline = deadline
        self._first_deadline = first_deadline
        self._max_bytes = max_bytes
        self._tags = tuple(tags)
        self._aborted = False
        self._polling = self._new_channel(waiting)
        self._posting: list[_Channel] = []
        self._idle = [self._new_posting_channel()]
        base, version = url.rstrip("/") + "/metadata/", {"api-version": api_version}
        self._events = httpx.Request("GET", base + "scheduledevents", params=version, headers=_HEADERS)
        as_json = {"api-version": IDENTITY_API_VERSION, "format": "json"}
        self._instance = httpx.Request("GET", base + "instance/compute", params=as_json, headers=_HEADERS)
        self._failures = 0
        self._last_answer_at = monotonic()
        """Monotonic time of the last response of any kind, or of the last timeout of a poll with `first_deadline`."""
        self.first_answer_seen = False
        self.headers: Mapping[str, str] = {}
        """The headers of the last response to a GET with any status; names in any case. `check` reads Date."""

    def answered_before(self, seconds: float) -> None:
        """Set how many seconds ago an earlier process got a response: `first_deadline` applies an hour after that."""
        self.first_answer_seen = True
        self._last_answer_at = self._monotonic() - seconds

    def fetch(self) -> MetadataResponse:
        """Poll the document once. Raises MetadataError for anything except a complete, unencoded 200."""
        began = self._monotonic()
        is_long = not self.first_answer_seen or began - self._last_answer_at >= LONG_POLL_AFTER_SECONDS
        exchange = self._polling.exchange
        try:
            body = self._get(self._events, self._first_deadline if is_long else self._deadline)
        except MetadataError as error:
            self._failures += 1
            error.failures = self._failures
            waited = is_long and error.reason == "timeout" and exchange.stage is Stage.EXCHANGE
            if waited or exchange.received:
                self._last_answer_at = self._monotonic()
            raise
        self._failures = 0
        self.first_answer_seen = True
        ended = self._last_answer_at = self._monotonic()
        return MetadataResponse(body=body, read_at_monotonic=ended, duration=ended - began)

    def instance(self) -> Vm:
        """Return Azure's description of this VM, with an empty `node`. Raises MetadataError, as `fetch` does."""
        return parse_instance(self._get(self._instance, self._deadline), self._tags)

    def approve(
        self, event_id: str, leave: Callable[[], None] = lambda: None, left: Callable[[], None] = lambda: None
    ) -> None:
        """Approve the event, so that it starts now. Returns only on 200; sends at most once. Raises MetadataError.

        `leave` is called on an open connection, right before the first byte is written, and `left` once that byte is
        written. An exception of `leave` is propagated. Nothing was sent unless `left` was called. From `leave` on, the
        response may take `deadline` seconds, however long connecting took.
        Each approval has its own connection: on a kept one that the peer is closing, it would be unclear whether the
        request arrived. Of the body, only the beginning of an error is read. May be called from several threads at
        once.
        """
        try:
            channel = self._idle.pop()
        except IndexError:
            channel = self._new_posting_channel()
        try:
            exchange = channel.exchange

            def leave_with_time() -> None:
                leave()
                exchange.prolong(self._deadline)

            approval, headers = {"StartRequests": [{"EventId": event_id}]}, {**_HEADERS, "Connection": "close"}
            exchange.begin(self._deadline, max_bytes=self._max_bytes, leave=leave_with_time, left=left)
            self._send(channel, httpx.Request("POST", self._events.url, json=approval, headers=headers))
            if exchange.unsent:
                raise MetadataError("reset", "the peer responded and closed before the request was sent")
        finally:
            self._idle.append(channel)

    def abort(self) -> None:
        """End all calls in flight within a second, and later ones at once, with the reason `aborted`."""
        self._aborted = True
        self._polling.exchange.abort()
        for channel in list(self._posting):
            channel.exchange.abort()

    def close(self) -> None:
        """Close the connections. Don't call it during another call: `abort` that first."""
        for channel in (self._polling, *self._posting):
            channel.http.close()

    def _new_channel(self, waiting: Callable[[], None] = lambda: None) -> _Channel:
        exchange = Exchange(self._monotonic, waiting)
        transport = Transport(exchange, connect_seconds=self._deadline, resolve=self._resolve, tls=self._tls)
        return _Channel(exchange, client_over(transport))

    def _new_posting_channel(self) -> _Channel:
        """Add a channel for POSTs. All are kept: there are at most as many as POSTs in flight at one time."""
        channel = self._new_channel()
        self._posting.append(channel)
        if self._aborted:  # `abort` may have run on another thread before this channel was in the list
            channel.exchange.abort()
        return channel

    def _get(self, request: httpx.Request, seconds: float) -> bytes:
        self._polling.exchange.begin(seconds, max_bytes=self._max_bytes)
        return self._send(self._polling, request)

    def _send(self, channel: _Channel, request: httpx.Request) -> bytes:
        """Return the body of a 200; b"" for a POST, whose body isn't read."""
        try:
            response = channel.http.send(request, stream=True)
            if channel is self._polling:
                self.headers = response.headers
            try:
                if response.status_code != httpx.codes.OK:
                    raise self._refused(channel.exchange, response)
                if request.method == "POST":
                    return b""
                if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
                    raise MetadataError("encoding", "the response has an unrequested content encoding", status_code=200)
                return b"".join(response.iter_raw())
            finally:
                response.close()
        except FOREIGN as error:
            raise translate(error, channel.exchange) from error

    def _refused(self, exchange: Exchange, response: httpx.Response) -> MetadataError:
        code = response.status_code
        # By the service's clock if it sends a Date: the clock of this VM may be wrong.
        now = parse_http_date(response.headers.get("date", ""))
        now = self._clock() if now is None else now
        retry_after = parse_retry_after(response.headers.get("retry-after", ""), now, RETRY_AFTER_SECONDS)
        detail = f"HTTP {code} {self._snippet(exchange, response)}".rstrip()
        return MetadataError(status_reason(code), detail, status_code=code, retry_after=retry_after)

    def _snippet(self, exchange: Exchange, response: httpx.Response) -> str:
        """Return the beginning of an error's body, if received within a second, as one printable line.

        For an HTML or XML page it is only a note.
        """
        exchange.shorten(_SNIPPET_SECONDS)
        data = bytearray()
        try:
            for part in response.iter_raw():
                data += part
                if len(data) >= _SNIPPET_BYTES:
                    break
        except Aborted:
            raise
        except FOREIGN:
            pass  # then only the status is reported
        text = data[:_SNIPPET_BYTES].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        markup = "html" in response.headers.get("content-type", "").lower() or is_page(text)
        return "(an HTML or XML page)" if markup else one_line(text)
