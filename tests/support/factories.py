"""Factories for many tests: an event in Azure's form, a document, a service, a record, and a clock."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from exporter.core.records import Record
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService

AT: Final = datetime(2026, 3, 2, 9, 0, 20, tzinfo=UTC)


class Clock:
    """A clock that doesn't move unless a test sets it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def azure_event(
    event_id: str, event_type: str, resources: list[str], not_before: str | datetime, **fields: Any
) -> dict[str, Any]:
    """Return an event of the platform, Scheduled; `fields` replace its own, and `...` as a value omits the field."""
    given = {
        "EventId": event_id,
        "EventStatus": "Scheduled",
        "EventType": event_type,
        "ResourceType": "VirtualMachine",
        "Resources": resources,
        "NotBefore": not_before if isinstance(not_before, str) else f"{not_before:%a, %d %b %Y %H:%M:%S} GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    } | fields
    return {name: value for name, value in given.items() if value is not ...}


def as_started(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same event, Started."""
    return {**event, "EventStatus": "Started", "NotBefore": ""}


def document(number: Any, *events: Any) -> bytes:
    """Return the body of a response with these events."""
    return json.dumps({"DocumentIncarnation": number, "Events": events}).encode()


def service_of(scenario: str, speed: float = 1.0) -> Any:
    """Return a fixture: a metadata service that plays this scenario."""

    def service() -> Iterator[MetadataService]:
        with MetadataService(load(scenario), speed=speed) as running:
            yield running

    return pytest.fixture(service)


def a_record(
    number: int = 1,
    *,
    kind: str = "scheduled",
    subject: str = "event",
    vm: str = "web-1",
    time: datetime = AT,
    severity: str = "WARN",
    **data: Any,
) -> Record:
    """Return a record with an id that ends with this number; `data` replaces its own."""
    about = {"event": None, "event_id": subject.lower(), "vm": {"name": vm}}
    return Record(
        id=f"00000000-0000-5000-8000-{number:012}",
        kind=kind,
        source=f"urn:azure-vm:{vm}",
        subject=subject,
        time=time,
        severity=severity,
        data={**about, "severity": severity, "message": "A sentence", **data},
    )
