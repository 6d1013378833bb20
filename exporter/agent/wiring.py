"""From settings to what they describe: the policy, the destinations, and looks at the system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.agent.delivery import Destination
from exporter.config.schema import Settings
from exporter.core.lifecycle import HISTORY_BYTES
from exporter.core.policy import Policy

if TYPE_CHECKING:
    from exporter.sinks.otlp.sink import OtlpDestination


def boot_id() -> str:
    """Names this boot of the machine; empty where the system has no word for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""


def policy_from(settings: Settings) -> Policy:
    """The policy that `[approval]` describes."""
    approval = settings.approval
    return Policy(approval.mode, approval.coordination, approval.takeover_after, approval.hold_file, approval.rules)


def history_bytes(settings: Settings) -> int:
    """The bound of what is remembered of events that are over: of a small outbox a quarter."""
    return min(HISTORY_BYTES, settings.outbox.max_bytes // 4)


def destinations_from(settings: Settings) -> dict[str, Callable[[], Destination]]:
    """How to make each configured destination. Making it imports its library, which is why it is not made here."""
    factories: dict[str, Callable[[], Destination]] = {}
    if settings.event_hubs.configured:
        factories["event_hubs"] = lambda: _event_hubs(settings)
    if settings.otlp.configured:
        factories["otlp"] = lambda: otlp_destination(settings)
    return factories


def _event_hubs(settings: Settings) -> Destination:
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
