"""Probes the address to listen on: whether it is free, already served by this agent, or taken by another program."""

from __future__ import annotations

import errno
from typing import Final

from exporter.commands.check.report import Finding, ProbeEnvironment, Report, fail, ok, warn
from exporter.commands.check.running import findings, identify
from exporter.config.schema import Settings
from exporter.web.server import RESERVED_PORTS, is_taken, listen

TOPIC: Final = "web"


def probe_web(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Bind the address and free it again."""
    host, port = settings.web.address
    address = settings.web.listen_address
    try:
        listen(host, port).close()
    except OSError as error:
        if is_taken(error):
            return Report(_taken(host, port, settings, environment, reserved=error.errno == errno.EACCES))
        return Report((fail(TOPIC, f"{error.strerror}: choose another web.listen_address"),))
    return Report((ok(TOPIC, f"{address} is free to listen on"),))


def _taken(
    host: str, port: int, settings: Settings, environment: ProbeEnvironment, *, reserved: bool = False
) -> tuple[Finding, ...]:
    address, timeouts = settings.web.listen_address, environment.timeouts
    occupant = identify(host, port, encrypted=bool(settings.web.config_file), seconds=timeouts.connect)
    if occupant.kind == "agent":
        served = ok(TOPIC, f"{address} is served by this agent, which is running")
        return (served, *(findings(occupant.status, settings) if occupant.status is not None else ()))
    if occupant.kind == "password":
        return (
            ok(
                TOPIC,
                f"{address} is served by this agent, which is running; it wants a password, of which the settings have "
                "only the hash, so it was not asked for its mode",
            ),
        )
    if occupant.kind == "certificate":
        return (warn(TOPIC, f"{address} is taken by what wants a client certificate: most likely this agent, running"),)
    who = f"by another program that calls itself {occupant.name}" if occupant.name else "by another program"
    if reserved and not occupant.name:
        who += f", or {RESERVED_PORTS}"
    advice = "stop that, or set web.listen_address to another port (and tell Prometheus)"
    return (fail(TOPIC, f"{address} is taken {who}: {advice}"),)
