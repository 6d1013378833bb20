"""A bare client of the simulated metadata service, and clocks for it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.service import MetadataService
from tests.support.factories import Clock

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
COMPUTE = "/metadata/instance/compute?api-version=2021-12-13"
METADATA = {"Metadata": "true"}
MIGRATION = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
START = 1_790_000_000.25


class Unhurried:
    """A wall clock in which every span between two readings is at most `most` seconds.

    On a machine that stalls, a scenario loses no part: it continues from the last reading.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._now = time.time()
        self._read_at = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            now = time.monotonic()
            self._now += min(now - self._read_at, self._most)
            self._read_at = now
            return self._now


class Reply:
    """A whole response."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    service: MetadataService,
    path: str = EVENTS,
    method: str = "GET",
    *,
    headers: Mapping[str, str] = METADATA,
    body: bytes | None = None,
    timeout: float = 5.0,
) -> Reply:
    """Send one request on a separate connection."""
    connection = http.client.HTTPConnection(urlsplit(service.url).netloc, timeout=timeout)
    try:
        connection.request(method, path, body=body, headers=dict(headers))
        response = connection.getresponse()
        return Reply(response.status, dict(response.headers), response.read())
    finally:
        connection.close()


def approve(service: MetadataService, *event_ids: object) -> int:
    """Return the status of the response to a POST for these ids."""
    body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
    return ask(service, method="POST", body=body).status


def playing(name: str, clock: Clock, **options: Any) -> MetadataService:
    """Return a service that plays a shipped scenario on this clock."""
    return MetadataService(scenario.load(name), clock=clock, **options)
