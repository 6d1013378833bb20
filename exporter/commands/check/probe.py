"""The doctor: everything that the settings point at, tried at once, within a bound, and said in sentences.

Nothing that matters is changed: no approval is sent, no record is published, no file stays behind. What is touched:
Azure switches Scheduled Events on for a VM that asks for the first time, Event Hubs sees a connection, the collector a
request without any record.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from exporter.commands.check.metadata import probe_metadata
from exporter.commands.check.outbox import probe_hold_file, probe_outbox, probe_recorder
from exporter.commands.check.report import ClockReading, Finding, Report, World, fail, ok, warn
from exporter.commands.check.web import probe_web
from exporter.config.schema import Settings
from exporter.core.folding import alike

Probe = Callable[[Settings, World], Report]

CLOCK_WARN_SECONDS = 2.0
CLOCK_FAIL_SECONDS = 30.0


def probes_for(settings: Settings) -> dict[str, Probe]:
    """What is to be tried, by topic, in the order in which it is told. A destination's library is imported by it."""
    found: dict[str, Probe] = {"metadata": probe_metadata}
    if settings.event_hubs.configured:
        found["event_hubs"] = _event_hubs
    if settings.otlp.configured:
        found["otlp"] = _otlp
    found["outbox"] = probe_outbox
    if settings.approval.hold_file:
        found["hold_file"] = probe_hold_file
    if settings.recorder.path:
        found["recorder"] = probe_recorder
    found["web"] = probe_web
    return found


def _event_hubs(settings: Settings, world: World) -> Report:
    from exporter.commands.check.event_hubs import probe_event_hubs  # noqa: PLC0415  # only what is configured is imported

    return probe_event_hubs(settings, world)


def _otlp(settings: Settings, world: World) -> Report:
    from exporter.commands.check.otlp import probe_otlp  # noqa: PLC0415  # only what is configured is imported

    return probe_otlp(settings, world)


def run_probes(settings: Settings, world: World, probes: Mapping[str, Probe] | None = None) -> tuple[Finding, ...]:
    """Every finding, in the order of the probes, after at most `patience.total` seconds.

    A probe that is not done by then is left behind on its daemon thread, and said to be late.
    """
    named = probes_for(settings) if probes is None else probes
    end = time.monotonic() + world.patience.total
    done: queue.SimpleQueue[tuple[str, Report]] = queue.SimpleQueue()
    for topic, probe in named.items():
        threading.Thread(target=_run, args=(topic, probe, settings, world, done), daemon=True).start()
    reports: dict[str, Report] = {}
    while len(reports) < len(named):
        try:
            topic, report = done.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        reports[topic] = report
    return _told(named, reports, world.patience.total)


def _run(
    topic: str, probe: Probe, settings: Settings, world: World, done: queue.SimpleQueue[tuple[str, Report]]
) -> None:
    try:
        report = probe(settings, world)
    except Exception as error:  # the end of a thread: what it could not do is said, and the others go on
        report = Report((fail(topic, f"could not be tried ({type(error).__name__}: {error}); please report this"),))
    done.put((topic, report))


def _told(named: Mapping[str, Probe], reports: Mapping[str, Report], total: float) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    for topic in named:
        late = (fail(topic, f"no result within {total:g} s: something on the way is silent; try again"),)
        findings += reports[topic].findings if topic in reports else late
    metadata, outbox = reports.get("metadata", Report()), reports.get("outbox", Report())
    findings += _ownership(metadata.vm_id, outbox.vm_id)
    readings = [reading for topic in named if topic in reports for reading in reports[topic].clocks]
    return (*findings, *_clock(readings))


def _ownership(vm_id: str, owner: str) -> list[Finding]:
    if not vm_id or not owner or alike(vm_id, owner):
        return []
    return [
        warn(
            "outbox",
            "the outbox belongs to another VM (a copied disk or a golden image): at its start the agent sets it aside "
            "under another name and begins a new one",
        )
    ]


def _clock(readings: list[ClockReading]) -> list[Finding]:
    """The most trustworthy comparison, judged only by what lies beyond its error; nothing when nobody told the time."""
    if not readings:
        return []
    best = min(readings, key=lambda reading: reading.error)
    off = max(0.0, abs(best.ahead) - best.error)
    if off <= CLOCK_WARN_SECONDS:
        return [ok("clock", f"this machine's clock agrees with that of {best.peer}")]
    direction = "behind" if best.ahead > 0 else "ahead of"
    sentence = (
        f"this machine's clock is {off:.0f} s {direction} that of {best.peer}: switch time synchronisation on (chrony "
        "or systemd-timesyncd); else the times in records and metrics are wrong, and Event Hubs refuses keys"
    )
    return [(fail if off > CLOCK_FAIL_SECONDS else warn)("clock", sentence)]
