"""Records, destinations, and small measurements for the tests of the Event Hubs destination."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from exporter.config.schema import EventHubsSettings
from exporter.core.records import Record
from exporter.errors import Failure
from exporter.secrets import Secret
from exporter.simulator.event_hubs.broker import Broker
from exporter.sinks.event_hubs.sink import EventHubsDestination
from exporter.sinks.reasons import REASONS
from tests.support import factories

T = TypeVar("T")


AT = datetime(2026, 3, 4, 5, 6, 7, 890000, tzinfo=UTC)


SUBJECT = "A123BC45-1234-5678-AB90-ABCDEF123456"


EVENT: dict[str, Any] = {
    "EventId": SUBJECT,
    "EventType": "Reboot",
    "EventStatus": "Scheduled",
    "EventSource": "Platform",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-1", "web-2"],
    "NotBefore": "Wed, 04 Mar 2026 05:21:07 GMT",
    "DurationInSeconds": -1,
}


def a_record(number: int = 1, *, subject: str = SUBJECT, event: Any = EVENT, message: str = "A sentence") -> Record:
    """Return a record with an id that ends with this number."""
    return factories.a_record(number, subject=subject, time=AT, event=event, message=message)


def destination(broker: Broker, **options: Any) -> EventHubsDestination:
    """Return a destination at the broker, with five seconds for a send."""
    return hub_destination(broker.connection_string(), **{"deadline": 5.0, **options})


def hub_destination(connection_string: str = "", **options: Any) -> EventHubsDestination:
    """Return a destination with these settings and other arguments of `EventHubsDestination`."""
    further = {name: options.pop(name) for name in ("credential", "deadline", "monotonic") if name in options}
    return EventHubsDestination(EventHubsSettings(connection_string=Secret(connection_string), **options), **further)


def refused(target: EventHubsDestination, *records: Record) -> Failure:
    """Return the failure of one send."""
    with pytest.raises(Failure) as caught:
        target.send(records or [a_record()])
    assert caught.value.reason in REASONS
    return caught.value


def at_once(work: Callable[[str], T], faults: Iterable[str]) -> dict[str, T]:
    """Return the result of `work` for each fault, all at the same time: the SDK mostly sleeps."""
    names = list(faults)
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(work, names), strict=True))


def open_sockets() -> int:
    """Return the number of sockets that this process has open."""
    folder = "/proc/self/fd"
    return sum(
        os.path.exists(f"{folder}/{fd}") and "socket" in os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)
    )


def text(value: object) -> str:
    """Return text that AMQP may carry as bytes or as a string."""
    return value.decode() if isinstance(value, bytes) else str(value)


def body_of(message: Any) -> bytes:
    """Return the body of a message of the SDK."""
    return b"".join(message.body)


class FailingCredential:
    """An asyncio credential without any token."""

    def __init__(self) -> None:
        self.closed = False

    async def get_token(self, *_scopes: str, **_options: Any) -> Any:
        raise OSError("no identity endpoint")

    async def close(self) -> None:
        self.closed = True
