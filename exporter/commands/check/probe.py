"""Runs the probes: everything that the settings point at is tried at once, within a time limit.

Nothing that matters is changed: no approval is sent, no record is published, no file stays behind. What is touched:
Azure switches Scheduled Events on for a VM that asks for the first time, Event Hubs sees a connection, the collector a
request without any record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import wait
from functools import partial
from typing import Final

from exporter.commands.check.event_files import probe_event_files
from exporter.commands.check.metadata import probe_metadata
from exporter.commands.check.outbox import probe_hold_file, probe_outbox, probe_recorder
from exporter.commands.check.report import ClockReading, Finding, ProbeEnvironment, Report, fail, ok, warn
from exporter.commands.check.web import probe_web
from exporter.config.schema import Settings
from exporter.core.document import alike
from exporter.daemon import DaemonCall

Probe = Callable[[Settings, ProbeEnvironment], Report]

CLOCK_WARN_SECONDS: Final = 2.0
CLOCK_FAIL_SECONDS: Final = 30.0


def probes_for(settings: Settings) -> dict[str, Probe]:
    """The probes that these settings ask for, by topic, in the order in which their findings are printed."""
    probes: dict[str, Probe] = {"metadata": probe_metadata}
    if settings.event_hubs.configured:
        from exporter.commands.check.event_hubs import probe_event_hubs  # noqa: PLC0415  # only what is configured

        probes["event_hubs"] = probe_event_hubs
    if settings.otlp.configured:
        from exporter.commands.check.otlp import probe_otlp  # noqa: PLC0415  # only what is configured

        probes["otlp"] = probe_otlp
    probes["outbox"] = probe_outbox
    if settings.approval.hold_file:
        probes["hold_file"] = probe_hold_file
    if settings.recorder.path:
        probes["recorder"] = probe_recorder
    if settings.event_files.path:
        probes["event_files"] = probe_event_files
    return {**probes, "web": probe_web}


def run_probes(
    settings: Settings, environment: ProbeEnvironment, probes: Mapping[str, Probe] | None = None
) -> tuple[Finding, ...]:
    """Every finding, in the order of the probes, after at most `timeouts.total` seconds.

    `probes` are by default those that the settings ask for. One that is not done in time is left behind on its daemon
    thread, and there is a finding that it was late.
    """
    if probes is None:
        probes = probes_for(settings)
    calls = {topic: DaemonCall(partial(probe, settings, environment), topic) for topic, probe in probes.items()}
    wait(calls.values(), environment.timeouts.total)
    reports = {topic: _report(topic, call) for topic, call in calls.items() if call.done()}
    return _all_findings(tuple(probes), reports, environment.timeouts.total)


def _report(topic: str, call: DaemonCall[Report]) -> Report:
    if (error := call.exception()) is None:
        return call.result()
    # One probe's mistake must not hide the others.
    return Report((fail(topic, f"could not be tried ({type(error).__name__}: {error}); please report this"),))


def _all_findings(topics: tuple[str, ...], reports: Mapping[str, Report], total: float) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    for topic in topics:
        late = (fail(topic, f"no result within {total:g} s: something on the way is silent; try again"),)
        findings += reports[topic].findings if topic in reports else late
    metadata, outbox = reports.get("metadata", Report()), reports.get("outbox", Report())
    findings += _compare_owners(metadata.vm_id, outbox.vm_id)
    readings = [reading for topic in topics if topic in reports for reading in reports[topic].clocks]
    return (*findings, *_compare_clocks(readings))


def _compare_owners(vm_id: str, owner: str) -> list[Finding]:
    """A warning when the outbox belongs to another VM than this one."""
    if not vm_id or not owner or alike(vm_id, owner):
        return []
    return [
        warn(
            "outbox",
            "the outbox belongs to another VM (a copied disk or a golden image): at its start the agent sets it aside "
            "under another name and begins a new one",
        )
    ]


def _compare_clocks(readings: list[ClockReading]) -> list[Finding]:
    """The reading with the least error, judged only by what lies beyond that error; nothing without any reading."""
    if not readings:
        return []
    best = min(readings, key=lambda reading: reading.error)
    off = max(0.0, abs(best.ahead) - best.error)
    if off <= CLOCK_WARN_SECONDS:
        return [ok("clock", f"this machine's clock agrees with that of {best.peer}")]
    direction = "behind" if best.ahead > 0 else "ahead of"
    sentence = (
        f"this machine's clock is {off:.0f} s {direction} that of {best.peer}: switch time synchronisation on (chrony "
        "or systemd-timesyncd, on Windows w32time); else the times in records and metrics are wrong, and Event Hubs "
        "refuses keys"
    )
    return [(fail if off > CLOCK_FAIL_SECONDS else warn)("clock", sentence)]
