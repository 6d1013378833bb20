"""The scenarios for tests of alerts and dashboards, run by the real agent: see `dashboards_lives`."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exporter.core.policy import Mode
from exporter.core.state import InterruptionKind
from exporter.simulator.metadata.scenario import Scenario, load, parse
from exporter.sinks.prometheus.catalogue import PREFIX
from exporter.sinks.prometheus.sink import PrometheusSink
from tests.support.dashboards_lives import Life, ObservedInterruption, scrapes

LENGTH: Final = 7200
"""Seconds of a scenario. Backfilled series have no stale markers and last for five more minutes, so series must end
earlier than that. Prometheus is queried for the end of the scenario."""

MOMENTS: Final = (*range(-LENGTH, -1800, 120), *range(-1800, 1, 60))
FREEZE: Final = {"EventType": "Freeze", "DurationInSeconds": 5}
LONG_FREEZE: Final = {"EventType": "Freeze", "DurationInSeconds": -1}
REBOOT: Final = {"EventType": "Reboot"}
RESTART: Final = {"EventType": "Reboot", "EventSource": "User"}


def id_of(label: str) -> str:
    """Return the EventId of the event with this label."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, label))


def _announced(at: float, label: str, event: dict[str, Any], *vms: str, **settings: Any) -> dict[str, Any]:
    """Return an announcement this many seconds before the end of the scenario."""
    fields = {"EventId": id_of(label), "Resources": list(vms), **event}
    return {"at": LENGTH + at, "do": "announce", "event": label, "notice": "15m", "fields": fields, **settings}


def _scenario(name: str, *steps: dict[str, Any], vms: tuple[str, ...]) -> Scenario:
    return parse(name, {"description": name, "vms": list(vms), "steps": list(steps)})


def _scheduled() -> Life:
    return Life(
        "web_1",
        _scenario(
            "scheduled",
            _announced(-6600, "past", FREEZE, "web_1", lasts=300),
            _announced(-180, "reboot", REBOOT, "web_2", "web_1", notice="25m"),
            _announced(-120, "next", FREEZE, "web_1", notice="30m"),
            _announced(-60, "neighbour", REBOOT, "web_2"),
            vms=("web_1", "web_2"),
        ),
        -LENGTH,
        "web",
    )


def _started() -> Life:
    return Life(
        "web_2",
        _scenario(
            "started",
            _announced(-6600, "past", FREEZE, "web_2", lasts=300, start_after_approval=100),
            _announced(-900, "freeze", FREEZE, "web_2", lasts="1h", start_after_approval=440),
            vms=("web_2",),
        ),
        -LENGTH,
        "web",
        Mode.ENFORCE,
        observed=(
            ObservedInterruption(-6480, InterruptionKind.CLOCK_STEP, 4.2),
            ObservedInterruption(-425, InterruptionKind.CLOCK_STEP, 7.2),
            ObservedInterruption(-425, InterruptionKind.STALL, 7.0),
        ),
    )


def _stale_scheduled() -> Life:
    reboot = _announced(-420, "reboot", REBOOT, "stale-2", "web_9")
    return Life(
        "stale-2", _scenario("stale", reboot, vms=("stale-2", "web_9")), -LENGTH, "web", without_data_since=-120
    )


def _down() -> Life:
    restart = _announced(-1500, "restart", RESTART, "gone-1")
    return Life("gone-1", _scenario("down", restart, vms=("gone-1",)), -LENGTH, "web", down_since=-590)


def _wrong() -> Life:
    vm = "wrong-1"
    change = {"at": LENGTH - 1500, "do": "change", "event": "changed", "fields": {"DurationInSeconds": 60}}
    user, disk = {"EventType": "Redeploy", "EventSource": "User"}, {"EventType": "Redeploy"}
    scenario = _scenario(
        "wrong",
        _announced(-7190, "endless", LONG_FREEZE, vm, lasts="5h"),
        _announced(-1700, "changed", FREEZE, vm, start_after_approval="1h", notice="1h"),
        change,
        _announced(-1000, "disk", disk, vm, notice="6d"),
        _announced(-700, "stolen", LONG_FREEZE, vm, lasts="1h"),
        {"at": LENGTH - 420, "do": "start", "event": "stolen"},
        _announced(-500, "waiting", user, vm),
        _announced(-120, "evicted", {"EventType": "Preempt"}, vm, notice=30, lasts="1h"),
        _announced(-100, "new", {"EventType": "Levitate"}, vm),
        vms=(vm,),
    )
    fails = {"approvals_fail_since": -1000, "destination_fails_since": -1400, "refused_at": -1900}
    return Life(vm, scenario, -LENGTH, "web", Mode.ENFORCE, capacity=90_112, prepare=_certificate, **fails)  # type: ignore[arg-type]  # times by name, all floats


def _led() -> Life:
    """Return a follower: the leader's approval starts the event of both VMs, and the event of only this VM is due."""
    scenario = _scenario(
        "led",
        _announced(-1200, "pair", LONG_FREEZE, "boss-1", "led-1", lasts="1h", notice="1h"),
        _announced(-1200, "due", LONG_FREEZE, "led-1", lasts="1h", notice="13m"),
        {"at": LENGTH - 425, "do": "start", "event": "pair"},
        vms=("boss-1", "led-1"),
    )
    return Life("led-1", scenario, -LENGTH, mode=Mode.ENFORCE)


def _first() -> Life:
    """Return a VM with its first two failed approvals and its first interruption, of 12 s, between two scrapes."""
    vm = "first-1"
    scenario = _scenario(
        "first",
        _announced(-112, "first", FREEZE, vm, lasts="1h"),
        {"at": LENGTH - 102, "do": "start", "event": "first"},
        vms=(vm,),
    )
    observed = (ObservedInterruption(-95, InterruptionKind.CLOCK_STEP, 12.0),)
    return Life(vm, scenario, -LENGTH, mode=Mode.ENFORCE, approvals_fail_since=-LENGTH, observed=observed)


def _closed() -> Life:
    """Return a VM whose events have ended: a freeze that it approved, and a reboot that Azure canceled."""
    vm = "closed-1"
    scenario = _scenario(
        "closed",
        _announced(-900, "frozen", FREEZE, vm, lasts=120, start_after_approval=100),
        _announced(-600, "dropped", REBOOT, vm),
        {"at": LENGTH - 300, "do": "cancel", "event": "dropped"},
        vms=(vm,),
    )
    observed = (ObservedInterruption(-790, InterruptionKind.CLOCK_STEP, 4.2),)
    return Life(vm, scenario, -LENGTH, mode=Mode.ENFORCE, observed=observed)


def _nameless() -> Life:
    reboot = _announced(-LENGTH, "reboot", REBOOT, "nameless-1", notice="3h")
    return Life("nameless-1", _scenario("nameless", reboot, vms=("nameless-1",)), -LENGTH, named=False)


def _certificate(sink: PrometheusSink, end: float) -> None:
    """Set a certificate that expires within a day, after a renewal that failed ten minutes ago."""
    sink.certificate_not_after = lambda: end + 86400
    sink.config_reload_failures = lambda: int(sink._now().wall.timestamp() > end - 600)


LIVES: Final = {
    "quiet": Life("quiet-1", load("quiet"), -LENGTH),
    "scheduled": _scheduled(),
    "started": _started(),
    "stale": Life("stale-1", load("quiet"), -LENGTH, without_data_since=-1200),
    "stale-scheduled": _stale_scheduled(),
    "warming": Life("new-1", load("quiet"), -120),
    "down": _down(),
    "wrong": _wrong(),
    "nameless": _nameless(),
    "led": _led(),
    "first": _first(),
    "closed": _closed(),
    "ahead": Life("ahead-1", load("quiet"), -LENGTH, clock_error=3600),
    "behind": Life("behind-1", load("quiet"), -LENGTH, clock_error=-3600),
    "ahead-stale": Life("ahead-2", load("quiet"), -LENGTH, without_data_since=-1200, clock_error=3600),
    "behind-hung": Life("behind-2", load("quiet"), -LENGTH, hangs_since=-1200, clock_error=-3600),
    "hung": Life("hung-1", load("quiet"), -LENGTH, hangs_since=-1200),
}


@dataclass(frozen=True, slots=True)
class Scrape:
    """The result of a scrape of one instance of a job at one time; None: no answer."""

    at: float
    job: str
    instance: str
    text: str | None


def scenario_scrapes(end: float, folder: Path) -> Iterator[Scrape]:
    """Yield every scrape of every scenario, in order of time within each scenario."""
    for job, life in LIVES.items():
        moments = [at for at in MOMENTS if at >= life.began]
        for at, text in scrapes(life, end, folder, moments):
            yield Scrape(end + at, job, f"{life.vm}:10169", text)


KINDS: Final = ("quiet", "soon", "later", "started", "terminated", "stale", "warming", "down")
FLEET_SIZE: Final = 1000


def kind_of(number: int) -> str:
    """Return which of the eight kinds this VM of the fleet is: 300 to 399 are set-3, the first hundred are in no set.

    In a larger fleet, each thousand is like the first.
    """
    number %= FLEET_SIZE
    if 300 <= number < 400:
        return "soon" if number < 350 else "later"
    if 400 <= number < 500 and number % 2:
        return "started"
    for first, last, kind in ((42, 43, "terminated"), (970, 973, "warming"), (980, 985, "down"), (990, 997, "stale")):
        if first <= number < last:
            return kind
    return "quiet"


def fleet_name(number: int) -> tuple[str, str]:
    """Return the name of the VM and its scale set."""
    vmss = f"set-{number // 100}" if number >= 100 else ""
    return f"{vmss or 'alone'}_{number:03d}", vmss


def fleet_labels(number: int) -> dict[str, str]:
    """Return the labels that select this VM of the fleet.

    Half of the VMs are in each subscription, and the hundreds alternate between two regions. 300 to 399 belong to one
    owner and 400 to 499 to another one. Those from 600 on have no tag `environment`.
    """
    return {
        "subscription_id": "0b1f6471-1bf0-4dda-aec3-cb9272f09590"
        if number % FLEET_SIZE < 500
        else "8d10da13-8125-4ba9-a717-bf7490507b3d",
        "location": ("westeurope", "northeurope")[number // 100 % 2],
        "vmss_name": fleet_name(number)[1],
        "tag_owner": {3: "shop", 4: "bank"}.get(number // 100 % 10, ""),
        "tag_environment": "prod" if number % FLEET_SIZE < 600 else "",
    }


_EVENTS: Final[dict[str, dict[str, Any]]] = {
    "soon": _announced(-600, "soon", REBOOT, "NAME", "n2", "n3", "n4", "n5", notice=1200),
    "later": _announced(-600, "later", REBOOT, "NAME", "n2", "n3", "n4", "n5", notice=3600),
    "started": _announced(-1500, "started", FREEZE, "NAME", lasts="1h"),
    "terminated": _announced(
        -600, "terminated", {"EventType": "Terminate", "EventSource": "User"}, "NAME", notice="2h"
    ),
}


def fleet(end: float, folder: Path, size: int = FLEET_SIZE, moments: Sequence[float] = (0.0,)) -> Iterator[Scrape]:
    """Yield a scrape of this many VMs at each moment (seconds before the end).

    Eight agents were run; each VM has the metrics of one of them under its own name.
    """
    texts = {kind: _life_of(kind, end, folder) for kind in KINDS}
    for number in range(size):
        kind, (name, vmss) = kind_of(number), fleet_name(number)
        text = texts[kind]
        if text is not None:
            text = text.replace("VMSS", vmss).replace("NAME", name).replace(id_of(kind), _event_of(number))
            chosen = written({name: word for name, word in fleet_labels(number).items() if name != "vmss_name"})
            text = text.replace('subscription_id="",', "").replace('location="westeurope"', chosen)
        for at in moments:
            yield Scrape(end + at, "fleet", f"{name}:10169", text)


def written(labels: dict[str, str]) -> str:
    """Return labels as Prometheus stores them, without braces and without empty ones."""
    return ",".join(f'{name}="{word}"' for name, word in labels.items() if word)


def _event_of(number: int) -> str:
    """Return the id of the event that names this VM; a reboot of set-3 names five."""
    kind = kind_of(number)
    return id_of(f"{kind} {number // 5 if kind in ('soon', 'later') else number}")


def _life_of(kind: str, end: float, folder: Path) -> str | None:
    steps = [_EVENTS[kind]] if kind in _EVENTS else []
    scenario = _scenario(kind, *steps, vms=("NAME", "n2", "n3", "n4", "n5"))
    life = Life(
        "NAME",
        scenario,
        -120 if kind == "warming" else -LENGTH,
        "VMSS",
        without_data_since=-1200 if kind == "stale" else 1.0,
        down_since=0 if kind == "down" else 1.0,
    )
    text = next(text for at, text in scrapes(life, end, folder / kind, [0.0]))
    # No panel of the fleet reads a histogram, and histograms are half of the text.
    return text and "".join(line for line in text.splitlines(keepends=True) if "_bucket{" not in line)


def recorded_before(end: float) -> Iterator[tuple[float, str, float]]:
    """Yield times, series, and values that the rules recorded before.

    They are names and announcements of targets that are down now, ten days of starts and ends of the fleet (28 a day),
    three interruptions, and lost records.
    """
    for number in range(FLEET_SIZE):
        if kind_of(number) == "down":
            yield end - 60, recorded("instance", "vm_info:group", vm_of_fleet(number)), 1
    yield end - 660, recorded("instance", "vm_info:group", _vm_of_scenario("down")), 1
    down = {"job": "down", "instance": f"{LIVES['down'].vm}:10169"}
    event = {"event_id": id_of("restart"), "event_type": "Reboot", "event_source": "User"}
    yield end - 60, recorded("instance", "up:down_timestamp", down), end + LIVES["down"].down_since
    yield end - 60, recorded("instance_event_id", "event_status:outage_timestamp", down | event), 0
    yield from _recorded_counts(end)
    yield from _recorded_events(end)
    for number in range(280):
        at = end - 3600 - number * 3085
        vm = vm_of_fleet(number * 37 % FLEET_SIZE)
        kind, identity = (
            ("Freeze", "Reboot", "Redeploy")[number % 3],
            ("this_vm", "other", "not_before", "not_before")[number % 4],
        )
        start, stop = {"event_type": kind, "started_by": identity}, {"event_type": kind, "outcome": "completed"}
        yield at, recorded("instance", "events_started:increase5m", vm | start), 1
        yield at, recorded("instance", "events_closed:increase5m", vm | stop), 1
        event_id = id_of(f"past {number}")
        row = start | stop | {"rule": "short-freeze" if identity == "this_vm" else "", "event_source": "Platform"}
        yield from recorded_row(at, vm, row | {"event_id": event_id, "started_by": identity}, 900, 4.2 + number)
    frozen = {"event_type": "Freeze", "event_source": "Platform", "started_by": "this_vm", "rule": "short-freeze"}
    for number, seconds in ((402, 4.2), (404, 5.1)):
        row = frozen | {"event_id": id_of(f"frozen {number}"), "outcome": "completed"}
        yield from recorded_row(end - number, vm_of_fleet(number), row, 900, seconds)
    evicted = {"event_id": id_of("evicted"), "event_type": "Preempt", "event_source": "Platform", "outcome": "open"}
    yield from recorded_row(end - 5400, vm_of_fleet(98), evicted, 30)
    for number, seconds in ((401, 4.0), (403, 7.0), (405, 31.0)):
        observed = recorded("instance", "observed_interruption_seconds_sum:increase5m", vm_of_fleet(number))
        yield end - 1200, observed, seconds
    lost = vm_of_fleet(777) | {"destination": "otlp", "reason": "full"}
    yield end - 7200, recorded("instance", "destination_records_dropped:increase5m", lost), 12


def recorded_row(
    at: float, vm: dict[str, str], row: dict[str, str], notice: float, interruption: float | None = None
) -> Iterator[tuple[float, str, float]]:
    """Yield what the rules recorded at this time of an event that began then."""
    event = {"job": vm["job"], "instance": vm["instance"], "event_id": row["event_id"]}
    yield at, recorded("instance_event_id", "event_began_timestamp_seconds:located", vm | row), at
    yield at, recorded("instance_event_id", "event_notice_seconds:max", event), notice
    if interruption is not None:
        yield at, f"{PREFIX}event_interruption_seconds{{{written(event)}}}", interruption


def recorded(level: str, name: str, labels: dict[str, str]) -> str:
    """Return the start of an exposition line of a recorded series."""
    return f"{level}:{PREFIX}{name}{{{written(labels)}}}"


def vm_of_fleet(number: int) -> dict[str, str]:
    """Return the labels of this VM in a recorded series."""
    name, _ = fleet_name(number)
    return {"job": "fleet", "instance": f"{name}:10169", "vm_name": name, **fleet_labels(number)}


def _vm_of_scenario(job: str) -> dict[str, str]:
    life = LIVES[job]
    where = {"vmss_name": life.vmss, "location": "westeurope"}
    return {"job": job, "instance": f"{life.vm}:10169", "vm_name": life.vm, **where}


def _recorded_events(end: float) -> Iterator[tuple[float, str, float]]:
    """Yield the events of the fleet that the rules recorded in the half hour before."""
    for number in range(FLEET_SIZE):
        kind = kind_of(number)
        if kind not in _EVENTS:
            continue
        event = _EVENTS[kind]
        vm = {name: word for name, word in vm_of_fleet(number).items() if name != "location"}
        vm |= {"event_id": _event_of(number), "event_type": event["fields"]["EventType"]}
        vm["event_source"] = event["fields"].get("EventSource", "Platform")
        for at in range(max(-1800, int(event["at"]) - LENGTH), -60, 60):
            status = {"event_status": "Started" if kind == "started" and at > -600 else "Scheduled"}
            yield end + at, recorded("instance_event_id", "event_status:current", vm | status), 1


def _recorded_counts(end: float) -> Iterator[tuple[float, str, float]]:
    """Yield the counts of the rules in the six hours before: VMs by data state, and events of the fleet."""
    for job, life in LIVES.items():
        where = {"job": job, "vmss_name": life.vmss, "location": "westeurope"} if life.named else {"job": job}
        for at in range(int(life.began), -60, 60):
            new = at < life.began + 300 or not life.named
            data_state = 3 if at >= life.down_since else 2 if at >= life.without_data_since else int(new)
            yield end + at, recorded("fleet", "up:vms", where | {"data_state": str(data_state)}), 1
    for at in range(-21600, -120, 240):
        seen, on = Counter[str](), Counter[str]()
        for number in range(FLEET_SIZE):
            kind, where = kind_of(number), {"job": "fleet", **fleet_labels(number)}
            data_state = 2 if kind == "stale" and at > -1200 else 0
            seen[recorded("fleet", "up:vms", where | {"data_state": str(data_state)})] += 1
            if kind in _EVENTS and at > _EVENTS[kind]["at"] - LENGTH:
                status = "Started" if kind == "started" and at > -600 else "Scheduled"
                words = {"event_type": _EVENTS[kind]["fields"]["EventType"], "event_status": status}
                on[recorded("fleet", "event_status:vms", where | words)] += 1
        for series, count in (seen + on).items():
            yield end + at, series, count
