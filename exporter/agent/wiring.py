"""From settings to what they describe: the policy, the destinations with their threads, and looks at the system."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exporter.agent.delivery import Delivery, Destination
from exporter.config.rules import RuleSettings
from exporter.config.schema import Settings
from exporter.core.lifecycle import HISTORY_BYTES
from exporter.core.policy import Coordination, Mode, Policy, Rule
from exporter.log.log import Log
from exporter.outbox.store import Outbox
from exporter.sinks.prometheus.sink import PrometheusSink

if TYPE_CHECKING:
    from exporter.sinks.otlp.sink import OtlpDestination

RETRY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 2.0
"""For all destinations together and the thread that asks who we are: the whole end takes less than 5 s."""


def boot_id() -> str:
    """Names this boot of the machine; empty where the system has no word for it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:64]
    except (OSError, ValueError):
        return ""


def rule_from(settings: RuleSettings) -> Rule:
    return Rule(
        name=settings.name,
        event_type=frozenset(settings.event_type),
        event_source=frozenset(settings.event_source) or None,
        min_duration=settings.min_duration,
        max_duration=settings.max_duration,
        settle=settings.settle or None,
        require_file=settings.require_file,
        when_quiet=settings.when_quiet,
    )


def policy_from(settings: Settings) -> Policy:
    approval = settings.approval
    return Policy(
        mode=Mode(approval.mode),
        coordination=Coordination(approval.coordination),
        takeover_after=approval.takeover_after,
        hold_file=approval.hold_file,
        rules=tuple(rule_from(rule) for rule in approval.rules),
    )


def history_bytes(settings: Settings) -> int:
    """The bound of what is remembered of events that are over: of a small outbox a quarter."""
    return min(HISTORY_BYTES, settings.outbox.max_bytes // 4)


def destinations_from(settings: Settings) -> dict[str, Callable[[], Destination]]:
    """How to make each configured destination. Making it imports its library, which is why it is not made here."""
    found: dict[str, Callable[[], Destination]] = {}
    if settings.event_hubs.configured:
        found["event_hubs"] = lambda: _event_hubs(settings)
    if settings.otlp.configured:
        found["otlp"] = lambda: otlp_destination(settings)
    return found


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


class DeliveryThread:
    """A thread that delivers to one destination until it is told to stop."""

    def __init__(
        self, name: str, make: Callable[[], Destination], outbox: Outbox, metrics: PrometheusSink, log: Log
    ) -> None:
        self.name = name
        self._make = make
        self._outbox = outbox
        self._metrics = metrics
        self._log = log
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._drained = threading.Event()
        self._delivery: Delivery | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There is something new to deliver."""
        self._drained.clear()
        self._wake.set()

    def _run(self) -> None:
        delivery = self._first()
        while delivery is not None and not self._stop.is_set():
            self._wake.clear()
            try:
                wait = delivery.tick()
            except Exception as error:  # one of the two loops: counted, said, and on it goes
                wait = delivery.broke(error)
            if wait > 0:
                if not self._wake.is_set():
                    self._drained.set()
                self._wake.wait(wait)

    def _first(self) -> Delivery | None:
        """The delivery, as soon as its destination can be made."""
        while not self._stop.is_set():
            try:
                self._delivery = Delivery(self._make(), self._outbox, self._metrics, self._log)
            except Exception as error:  # the same loop, before it turns
                self._metrics.send_failed(self.name, "configuration")
                self._log.failing(self.name, "destination.failed", destination=self.name, detail=str(error)[:300])
                self._drained.set()
                self._stop.wait(RETRY_SECONDS)
            else:
                return self._delivery
        return None

    def flush(self, seconds: float) -> None:
        """Waits until there is nothing left to send right now, at most so long."""
        self._wake.set()
        self._drained.wait(seconds)

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._delivery is not None:
            self._delivery.close()
        self._thread.join(STOP_SECONDS)
