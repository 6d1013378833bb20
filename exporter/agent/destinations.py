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

    hubs = settings.event_hubs
    return EventHubsDestination(
        connection_string=hubs.connection_string.reveal(),
        fully_qualified_namespace=hubs.fully_qualified_namespace,
        event_hub=hubs.event_hub,
        transport=hubs.transport,
        custom_endpoint=hubs.custom_endpoint,
        certificate_file=hubs.certificate,
        message_format=hubs.message_format,
        idle_close=hubs.idle_close,
        **further,
    )


def otlp_destination(settings: Settings) -> OtlpDestination:
    """As the settings say; `check --probe` tries the same. Raises ValueError."""
    from exporter.sinks.otlp.sink import OtlpDestination  # noqa: PLC0415  # only what is configured is imported

    otlp = settings.otlp
    return OtlpDestination(
        otlp.logs_url,
        headers={name: value.reveal() for name, value in otlp.headers},
        timeout=otlp.timeout,
        compression=otlp.compression,
        certificate_file=otlp.certificate,
        client_certificate_file=otlp.client_certificate,
        client_key_file=otlp.client_key,
        operator={**dict(otlp.resource_attributes), "service.name": otlp.service_name},
    )
