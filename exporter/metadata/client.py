"""The HTTP client of the Azure metadata service: read the document, approve an event, ask who this VM is.

Whatever stands at the other end, a call returns or raises `MetadataError` by its deadline, having read at most
`max_bytes`. No proxy, redirect, cookie, content encoding or credential file ever takes part. What a document means is
decided elsewhere: `fetch` returns bytes.

Facts about the service are from Microsoft's documentation of Scheduled Events and of the Instance Metadata Service.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from exporter.http.deadline import Aborted, Resolve, Stage, Wire, http_client
from exporter.metadata.errors import (
    FOREIGN,
    RETRY_AFTER_SECONDS,
    MetadataError,
    is_page,
    one_line,
    status_reason,
    translate,
)
from exporter.retry import parse_http_date, parse_retry_after

BODY_BYTES = 4 * 1024 * 1024
DEADLINE_SECONDS = 5.0
FIRST_DEADLINE_SECONDS = 125.0  # the first request enables the service for the VM: two minutes, and some
IDENTITY_API_VERSION = "2021-12-13"

_HEADER_BYTES = 256 * 1024
_SNIPPET_BYTES = 2048
_SNIPPET_SECONDS = 1.0
PATIENT_AGAIN_SECONDS = 3600.0  # without any answer, before one poll waits as long as the first


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole 200. `read_at_monotonic`: when its last byte was there; `duration`: seconds since the request began."""

    body: bytes
    read_at_monotonic: float
    duration: float


@dataclass(frozen=True, slots=True)
class Compute:
    """Who this VM is: the few fields of `/metadata/instance/compute` that we take; "" for what is missing or odd.

    That document also holds user data and keys, so it is never kept, logged or passed on as a whole.
    """

    name: str = ""
    vm_id: str = ""
    resource_id: str = ""
    subscription_id: str = ""
    resource_group: str = ""
    vmss_name: str = ""
    location: str = ""
    zone: str = ""
    size: str = ""
    priority: str = ""


_COMPUTE_FIELDS = {
    "name": ("name", 512),
    "vm_id": ("vmId", 512),
    "resource_id": ("resourceId", 1024),
    "subscription_id": ("subscriptionId", 512),
    "resource_group": ("resourceGroupName", 512),
    "vmss_name": ("vmScaleSetName", 512),
    "location": ("location", 512),
    "zone": ("zone", 512),
    "size": ("vmSize", 512),
    "priority": ("priority", 512),
}


def parse_compute(body: bytes) -> Compute:
    """The allow-listed fields. A text that is too long or not printable is "": cut, it would name another VM."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MetadataError("malformed", "the instance document is not JSON") from error
    if not isinstance(document, dict):
        raise MetadataError("malformed", "the instance document is not an object")
    return Compute(**{ours: _plain(document.get(theirs), cap) for ours, (theirs, cap) in _COMPUTE_FIELDS.items()})


def _plain(value: Any, cap: int) -> str:
    return value if isinstance(value, str) and len(value) <= cap and value.isprintable() else ""


@dataclass(frozen=True, slots=True)
class _Posting:
    """What one POST is sent by; several may be on their way."""

    wire: Wire
    client: httpx.Client


class MetadataClient:
    """One client for the life of the agent, used from one thread at a time; `approve` and `abort` may come from any.

    `url` is the service's base, `http://169.254.169.254` as a rule; httpx.InvalidURL when it is none. Until the first
    200 a poll may take `first_deadline` seconds, since that first request enables the service; afterwards `deadline`.
    After each hour without any answer one poll waits for `first_deadline` again: the service switches itself off after
    a day without requests, and a slow one must not be cut off for ever.
    """

    def __init__(
        self,
        url: str,
        api_version: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
        resolve: Resolve = socket.getaddrinfo,
        tls: ssl.SSLContext | None = None,
        deadline: float = DEADLINE_SECONDS,
        first_deadline: float = FIRST_DEADLINE_SECONDS,
        max_bytes: int = BODY_BYTES,
    ) -> None:
        self._monotonic = monotonic
        self._clock = clock
        self._deadline = deadline
        self._first_deadline = first_deadline
        self._max_bytes = max_bytes
        self._make_wire = partial(Wire, monotonic=monotonic, resolve=resolve, connect_seconds=deadline)
        self._wire = self._make_wire()
        self._polling = http_client(self._wire, tls)
        self._tls = tls
        self._aborted = False
        self._posting: list[_Posting] = []
        self._idle = [self._another()]
        base = url.rstrip("/") + "/metadata/"
        self._events = self._polling.build_request("GET", base + "scheduledevents", params={"api-version": api_version})
        self._compute = self._polling.build_request(
            "GET", base + "instance/compute", params={"api-version": IDENTITY_API_VERSION, "format": "json"}
        )
        self._failures = 0
        self._heard = monotonic()
        """When it last answered anything at all, or was last waited for in vain with patience."""
        self.first_answer_seen = False
        self.headers: Mapping[str, str] = {}
        """Of the last answer, whatever its status; names in any letter case. For `check`, which looks at its Date."""

    def answered_before(self, seconds: float) -> None:
        """An earlier process had its answer, so long ago: the patience for the first one ever is over."""
        self.first_answer_seen = True
        self._heard = self._monotonic() - seconds

    def fetch(self) -> Answer:
        """One poll of the document. Raises MetadataError for anything but a whole, plain 200."""
        began = self._monotonic()
        patient = not self.first_answer_seen or began - self._heard >= PATIENT_AGAIN_SECONDS
        try:
            body = self._get(self._events, self._first_deadline if patient else self._deadline)
        except MetadataError as error:
            self._failures += 1
            error.failures = self._failures
            waited = patient and error.reason == "timeout" and self._wire.stage is Stage.EXCHANGE
            if waited or self._wire.received:
                self._heard = self._monotonic()
            raise
        self._failures = 0
        self.first_answer_seen = True
        ended = self._heard = self._monotonic()
        return Answer(body=body, read_at_monotonic=ended, duration=ended - began)

    def approve(self, event_id: str) -> None:
        """Ask for the event to start now. Returns on 200 alone; sent once, whatever happens.

        Each approval has a connection of its own: on one kept alive, a peer that is just closing it would leave open
        whether the request arrived. An answer's body is not needed and not read, only an error's beginning. Callable
        from any thread, and from several at once.
        """
        try:
            posting = self._idle.pop()
        except IndexError:
            posting = self._another()
        try:
            request = posting.client.build_request(
                "POST",
                self._events.url,
                json={"StartRequests": [{"EventId": event_id}]},
                headers={"Connection": "close"},
            )
            posting.wire.begin(self._deadline, allowance=_HEADER_BYTES)
            self._exchange(posting.wire, posting.client, request, max_bytes=None)
        finally:
            self._idle.append(posting)

    def _another(self) -> _Posting:
        """One more place to post from: they are kept, since as many are needed as once hung together."""
        wire = self._make_wire()
        posting = _Posting(wire, http_client(wire, self._tls))
        self._posting.append(posting)
        if self._aborted:  # by another thread, perhaps just before this one was in the list
            wire.abort()
        return posting

    def instance(self) -> Compute:
        """Who this VM is. Raises MetadataError as `fetch` does."""
        return parse_compute(self._get(self._compute, self._deadline))

    def abort(self) -> None:
        """End whatever is in flight within a second, and every later call at once, with the reason `aborted`."""
        self._aborted = True
        self._wire.abort()
        for posting in list(self._posting):
            posting.wire.abort()

    def close(self) -> None:
        """Close the connections. Not while a call is in flight: `abort` it first."""
        self._polling.close()
        for posting in self._posting:
            posting.client.close()

    def _get(self, request: httpx.Request, seconds: float) -> bytes:
        # Chunk framing may double a body made of tiny chunks; more than that is not an answer.
        self._wire.begin(seconds, allowance=2 * self._max_bytes + _HEADER_BYTES)
        try:
            return self._poll(request)
        except MetadataError as error:
            # A connection kept alive that the peer closed meanwhile says nothing about the service: once more, at once.
            if error.reason != "reset" or self._wire.connected or self._wire.received:
                raise
        self._wire.restart()
        return self._poll(request)

    def _poll(self, request: httpx.Request) -> bytes:
        return self._exchange(self._wire, self._polling, request, max_bytes=self._max_bytes)

    def _exchange(self, wire: Wire, client: httpx.Client, request: httpx.Request, max_bytes: int | None) -> bytes:
        try:
            wire.slice()  # once aborted, nothing begins
            response = client.send(request, stream=True)
            if wire is self._wire:
                self.headers = response.headers
            try:
                if not wire.received:
                    # The library had it from before: it would pass for the answer to this request.
                    raise MetadataError("reset", "an answer that came before it was asked for")
                self._check_status(wire, response)
                return b"" if max_bytes is None else self._read(wire, response, max_bytes)
            finally:
                response.close()
        except FOREIGN as error:
            raise translate(error, wire) from error

    def _check_status(self, wire: Wire, response: httpx.Response) -> None:
        code = response.status_code
        if code == httpx.codes.OK:
            return
        # By the clock of who asks us to wait, where it is told: ours may have been set.
        now = parse_http_date(response.headers.get("date", ""))
        now = self._clock() if now is None else now
        retry_after = parse_retry_after(response.headers.get("retry-after", ""), now, RETRY_AFTER_SECONDS)
        detail = f"HTTP {code} {self._snippet(wire, response)}".rstrip()
        raise MetadataError(status_reason(code), detail, status_code=code, retry_after=retry_after)

    def _snippet(self, wire: Wire, response: httpx.Response) -> str:
        """The beginning of an error's text, as far as it comes quickly, safe for one line of a log; of a page only that
        it is one."""
        wire.shorten(_SNIPPET_SECONDS)
        text = bytearray()
        try:
            for part in response.iter_raw():
                text += part
                if len(text) >= _SNIPPET_BYTES:
                    break
        except Aborted:
            raise
        except FOREIGN:
            pass  # the status is the news
        said = text[:_SNIPPET_BYTES].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
        markup = "html" in response.headers.get("content-type", "").lower() or is_page(said)
        return "(an HTML or XML page)" if markup else one_line(said)

    def _read(self, wire: Wire, response: httpx.Response, max_bytes: int) -> bytes:
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise MetadataError("encoding", "a content encoding that was not asked for", status_code=200)
        announced = response.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > max_bytes:
            raise MetadataError("too-large", f"more than {max_bytes} bytes announced", status_code=200)
        body = bytearray()
        for part in response.iter_raw():  # no chunk size: it would collect parts and hide the time they take
            body += part
            if len(body) > max_bytes:
                raise MetadataError("too-large", f"more than {max_bytes} bytes", status_code=200)
            wire.slice()
        return bytes(body)
