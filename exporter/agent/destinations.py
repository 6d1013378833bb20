"""Factories of the configured destinations. Only creating a destination imports its library."""

from __future__ import annotations

from collections.abc import Callable

from exporter.agent.delivery import Destination
from exporter.config.schema import Settings


def destination_factories(settings: Settings) -> dict[str, Callable[[], Destination]]:
    """Return the factory of each configured destination, by name. A factory imports a library and may raise."""
    factories: dict[str, Callable[[], Destination]] = {}
    if settings.event_hubs.configured:
        factories["event_hubs"] = lambda: _event_hubs(settings)
    if settings.otlp.configured:
        factories["otlp"] = lambda: _otlp(settings)
    return factories


def _event_hubs(settings: Settings) -> Destination:
    from exporter.sinks.event_hubs.sink import EventHubsDestination  # noqa: PLC0415  # only what is configured is imported

    return EventHubsDestination(settings.event_hubs)


def _otlp(settings: Settings) -> Destination:
    from exporter.sinks.otlp.sink import OtlpDestination  # noqa: PLC0415  # only what is configured is imported

    return OtlpDestination(settings.otlp)
