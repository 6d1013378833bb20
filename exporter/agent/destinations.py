"""How each configured destination is made, for the agent and for `check --probe`. Making one imports its library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from exporter.agent.delivery import Destination
from exporter.config.schema import Settings

if TYPE_CHECKING:
    from exporter.sinks.event_hubs.sink import EventHubsDestination
    from exporter.sinks.otlp.sink import OtlpDestination


def destination_factories(settings: Settings) -> dict[str, Callable[[], Destination]]:
    """How to make each configured destination. Making it imports its library, which is why it is not made here."""
    factories: dict[str, Callable[[], Destination]] = {}
    if settings.event_hubs.configured:
        factories["event_hubs"] = lambda: event_hubs_destination(settings)
    if settings.otlp.configured:
        factories["otlp"] = lambda: otlp_destination(settings)
    return factories


def event_hubs_destination(settings: Settings, **further: Any) -> EventHubsDestination:
    """As the settings say; `check --probe` tries the same with `further` arguments. Raises ValueError."""
    from exporter.sinks.event_hubs.sink import EventHubsDestination  # noqa: PLC0415  # only what is configured is imported

    return EventHubsDestination(settings.event_hubs, **further)


def otlp_destination(settings: Settings) -> OtlpDestination:
    """As the settings say; `check --probe` tries the same. Raises ValueError."""
    from exporter.sinks.otlp.sink import OtlpDestination  # noqa: PLC0415  # only what is configured is imported

    return OtlpDestination(settings.otlp)
