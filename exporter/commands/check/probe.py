"""Runs all probes in parallel within a time limit, and probes the listen address.

Probes send no approval, publish no record, and leave no file behind. Side effects: the first request for events enables
Scheduled Events for the VM, Event Hubs gets a connection, and the collector gets an empty request.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Final

from exporter.commands.check.destinations import probe_event_hubs, probe_otlp
from exporter.commands.check.disk import probe_event_files, probe_hold_file, probe_outbox, probe_recorder
from exporter.commands.check.metadata import probe_metadata
from exporter.commands.check.report import ClockReading, Finding, ProbeEnvironment, Report, fail, ok, warn
from exporter.commands.check.running import findings, identify
from exporter.config.schema import Settings
from exporter.core.document import alike
from exporter.daemon import DaemonCall
from exporter.web.server import RESERVED_PORTS, is_taken, listen

Probe = Callable[[Settings, ProbeEnvironment], Report]

CLOCK_WARN_SECONDS: Final = 2.0
CLOCK_FAIL_SECONDS: Final = 30.0


def probes_for(settings: Settings) -> dict[str, Probe]:
    """Return the probes for these settings by topic, in the order in which their findings are printed."""
    probes: dict[str, Probe] = {"metadata": probe_metadata}
    if settings.event_hubs.configured:
        probes["event_hubs"] = probe_event_hubs
    if settings.otlp.configured:
        probes["otlp"] = probe_otlp
    probes["outbox"] = probe_outbox
    if settings.approval.hold_file:
        probes["hold_file"] = probe_hold_file
    if settings.recording.path:
        probes["recording"] = probe_recorder
    if settings.event_files.path:
        probes["event_files"] = probe_event_files
    return {**probes, "web": probe_web}


def run_probes(
    settings: Settings, environment: ProbeEnvironment, probes: Mapping[str, Probe] | None = None
) -> tuple[Finding, ...]:
    """Run the probes in parallel and return their findings in order, after at most `timeouts.total` seconds.

    `probes` defaults to `probes_for(settings)`. A probe that isn't done in time continues on its daemon thread, and a
    finding reports the timeout.
    """
    if probes is None:
        probes = probes_for(settings)
    calls = {topic: DaemonCall(partial(probe, settings, environment), topic) for topic, probe in probes.items()}
    wait(calls.values(), environment.timeouts.total)
    reports = {topic: _report(topic, call, environment.timeouts.total) for topic, call in calls.items()}
    found = [finding for report in reports.values() for finding in report.findings]
    vm_id, owner = (reports.get(topic, Report()).vm_id for topic in ("metadata", "outbox"))
    if vm_id and owner and not alike(vm_id, owner):
        sentence = (
            "the outbox belongs to another VM (a copied disk or a golden image): when the agent starts, it renames "
            "this outbox, keeps it, and begins a new one"
        )
        found.append(warn("outbox", sentence))
    return (*found, *_compare_clocks([reading for report in reports.values() for reading in report.clocks]))


def _report(topic: str, call: DaemonCall[Report], total: float) -> Report:
    if not call.done():
        return Report((fail(topic, f"no result within {total:g} s: a peer may not respond; try again"),))
    if (error := call.exception()) is None:
        return call.result()
    # A bug in one probe must not hide the others' findings.
    return Report((fail(topic, f"the test failed ({type(error).__name__}: {error}): please report this bug"),))


def _compare_clocks(readings: list[ClockReading]) -> list[Finding]:
    """Judge the reading with the smallest error, by the part that exceeds the error; empty without a reading."""
    if not readings:
        return []
    best = min(readings, key=lambda reading: reading.error)
    off = max(0.0, abs(best.ahead) - best.error)
    if off <= CLOCK_WARN_SECONDS:
        return [ok("clock", f"this machine's clock agrees with that of {best.peer}")]
    direction = "behind" if best.ahead > 0 else "ahead of"
    sentence = (
        f"this machine's clock is {off:.0f} s {direction} that of {best.peer}: enable time synchronization (chrony or "
        "systemd-timesyncd, on Windows w32time); a wrong clock falsifies the times in records and metrics, and Event "
        "Hubs rejects keys"
    )
    return [(fail if off > CLOCK_FAIL_SECONDS else warn)("clock", sentence)]


def probe_web(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Bind the address and free it again; if it is in use, identify the program that listens on it."""
    host, port = settings.web.address
    address = settings.web.listen_address
    try:
        listen(host, port).close()
    except OSError as error:
        if not is_taken(error):
            return Report((fail("web", f"{error.strerror}: choose another web.listen_address"),))
        reserved = error.errno == errno.EACCES
    else:
        return Report((ok("web", f"{address} is free to listen on"),))
    seconds = environment.timeouts.connect
    occupant = identify(host, port, encrypted=bool(settings.web.config_file), seconds=seconds)
    served = f"{address} is in use by this agent, which is running"
    if occupant.kind == "agent":
        reported = findings(occupant.status, settings) if occupant.status is not None else ()
        return Report((ok("web", served), *reported))
    if occupant.kind == "password":
        hidden = "it requires a password, of which the settings contain only the hash, so its status was not compared"
        return Report((ok("web", f"{served}; {hidden}"),))
    if occupant.kind == "certificate":
        likely = f"{address} is in use by a server that requires a client certificate, probably this agent"
        return Report((warn("web", likely),))
    occupied_by = f"by another program ({occupant.name})" if occupant.name else "by another program"
    if reserved and not occupant.name:
        occupied_by += f", or {RESERVED_PORTS}"
    advice = "stop it, or set web.listen_address to another port (also in Prometheus)"
    return Report((fail("web", f"{address} is in use {occupied_by}: {advice}"),))
