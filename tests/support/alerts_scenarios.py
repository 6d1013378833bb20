"""Stories for the alerts: what Prometheus scrapes of a small fleet minute by minute, and what must fire whatever the
texts.

Each story begins after `AT` quiet minutes, at 00:20 UTC of 1 January 1970: promtool starts at 0. A story with a step
has a sample only every few minutes, at most four, because Prometheus looks back five.

If Prometheus is away, nothing is scraped and no rule is evaluated. promtool evaluates always: every sample is missing
instead, `up` included, and alerts of that time are ignored. Prometheus would also restore how long an alert has been
pending. That isn't modelled: such an alert fires later than in reality, by `for` at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.fleet_month import PREFIX, PROCESS, FleetSamples, Vm

AT: Final = 20
"""Quiet minutes before each story."""

DAY: Final = 1440
EVENT_HUBS: Final = '{destination="event_hubs"}'


@dataclass(frozen=True, slots=True)
class Fires:
    """A notification that must exist: of an alert with one of these names (a regular expression without the prefix),
    at least this severe, not muted, at most this many minutes after the story's begin, and to this receiver if given.
    `text`: a regular expression that its text contains when it is sent."""

    names: str
    within: int
    severity: str = "warning"
    receiver: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """A story of a fleet. Times are minutes.

    `step`: time between two scrapes, and between two evaluations of the rules.
    `must`: notifications that must exist. `notifies`: a regular expression of the alerts that may notify; None: any.
    `quiet`: no alert may notify before this minute. `untrue`: regular expressions that no text may contain.
    `away`: when Prometheus is away.
    """

    title: str
    happens: str
    vms: list[Vm]
    apply: Callable[[FleetSamples], None]
    minutes: int = 120
    step: int = 1
    must: tuple[Fires, ...] = ()
    notifies: str | None = None
    quiet: int = 0
    untrue: tuple[str, ...] = ()
    away: range = range(0)

    def samples(self) -> FleetSamples:
        """Return what Prometheus scrapes."""
        samples = FleetSamples(self.vms, AT + self.minutes, self.step)
        self.apply(samples)
        for vm in self.vms if self.away else ():
            samples[vm].away(self.away.start, self.away.stop, listed=False, restarts=False)
        return samples


def scale_set(name: str, size: int, owner: str = "") -> list[Vm]:
    """Return the VMs of a scale set of the subscription `production`."""
    return [Vm(f"{name}_{number}", name, "production", owner) for number in range(size)]


def single(*names: str, owner: str = "") -> list[Vm]:
    """Return single VMs of the subscription `production`."""
    return [Vm(name, "", "production", owner) for name in names]


DB1: Final = single("db1")[0]
OTHERS: Final = [*scale_set("api", 4), *single("db2")]
FEW: Final = [DB1, *OTHERS]
WEB: Final = scale_set("web", 8)
NO_ALERT: Final = ""
"""No alert may notify."""


def _quiet(samples: FleetSamples) -> None:
    """Nothing happens."""


# -- restarts that users request


def _restarted(samples: FleetSamples, vm: Vm, at: int, back: int | None) -> None:
    """A user restarts a VM, which approves at once; it is down from two minutes later until `back`; None: forever."""
    samples[vm].event(f"U-{vm.name}", "Reboot", "User", at, approved=at + 1, over=at + 12)
    samples[vm].away(at + 2, samples.minutes if back is None else back)


def _patch_night(samples: FleetSamples) -> None:
    for number, vm in enumerate(WEB):
        at = AT + number // 2 * 3
        _restarted(samples, vm, at, at + 6 if number < 2 else None)


BIG: Final = scale_set("web", 120)


def _patch_hours(samples: FleetSamples) -> None:
    for number, vm in enumerate(BIG):
        at = AT + 1 + number * 3
        samples[vm].event(f"U-{vm.name}", "Reboot", "User", at, approved=at + 2, over=at + 12)
        samples[vm].away(at + 3, samples.minutes if number % 2 else at + 9)


def _one_restart(samples: FleetSamples) -> None:
    _restarted(samples, DB1, AT, None)


def _short_restart(samples: FleetSamples) -> None:
    _restarted(samples, DB1, AT, AT + 6)


# -- agents that stop


def _dead_agent(samples: FleetSamples, back: int | None) -> None:
    """The agent of db1 stops ten minutes before the `NotBefore` of its reboot."""
    samples[DB1].event("R1", "Reboot", "Platform", AT, over=AT + 25)
    samples[DB1].away(AT + 5, samples.minutes if back is None else back)


def _dead_and_back(samples: FleetSamples) -> None:
    _dead_agent(samples, AT + 21)


def _dead_and_lost(samples: FleetSamples) -> None:
    _dead_agent(samples, None)


def _dead_and_canceled(samples: FleetSamples) -> None:
    _dead_agent(samples, AT + 75)


def _crash_loop(samples: FleetSamples) -> None:
    for minute in range(AT, AT + 120, 3):
        samples[DB1].away(minute, minute + 1)


def _fast_crash_loop(samples: FleetSamples) -> None:
    for minute in range(AT, AT + 120):
        samples[DB1].restart(minute)


def _stopped(samples: FleetSamples) -> None:
    samples[DB1].away(AT, AT + 45)


def _rings(samples: FleetSamples) -> None:
    for number, vm in enumerate([*WEB, *OTHERS]):
        at = AT + (0 if number < 2 else 60 if number < 6 else 120) + number
        own = samples[vm].series[f'{PREFIX}build_info{{version="1.1.0"}}']
        own[at:] = [None] * (samples.minutes - at)
        samples[vm].put('build_info{version="1.2.0"}', at + 1, samples.minutes, 1)
        samples[vm].away(at, at + 1)


def _upgraded_after_failures(samples: FleetSamples) -> None:
    """The counters of the old process end, and the new one has none yet."""
    failures = 'approval_request_failures_total{reason="timeout"}'
    paused = 'observed_interruption_seconds_sum{kind="stall",attributed="false"}'
    for name, count in ((failures, 7), (paused, 22)):
        samples[DB1].put(name, 0, AT, count)
    samples[DB1].away(AT, AT + 1)


def _mixed_modes(samples: FleetSamples) -> None:
    for vm in OTHERS[:3]:
        samples[vm].put('approval_mode{mode="enforce"}', AT, samples.minutes, 0)
        samples[vm].put('approval_mode{mode="dry-run"}', AT, samples.minutes, 1)


# -- maintenance by Azure


def _rebooted(samples: FleetSamples, vm: Vm, at: int, back: int | None, kind: str = "Reboot") -> None:
    """Azure restarts a VM at its `NotBefore`; it is down from a minute later until `back`; None: forever."""
    samples[vm].event(f"R-{vm.name}", kind, "Platform", at, over=at + 25)
    samples[vm].away(at + 16, samples.minutes if back is None else back)


def _reboot(samples: FleetSamples) -> None:
    _rebooted(samples, DB1, AT, AT + 21)


def _redeploy(samples: FleetSamples) -> None:
    _rebooted(samples, DB1, AT, None, "Redeploy")


def _freeze(samples: FleetSamples) -> None:
    samples[DB1].event("F1", "Freeze", "Platform", AT, over=AT + 20, duration=5)


def _long_freeze(samples: FleetSamples) -> None:
    _freeze(samples)
    name = 'observed_interruption_seconds_sum{kind="clock_step",attributed="true"}'
    samples[DB1].put(name, AT + 16, samples.minutes, 42)


def _pause(samples: FleetSamples) -> None:
    name = 'observed_interruption_seconds_sum{kind="clock_step",attributed="false"}'
    samples[DB1].put(name, AT, samples.minutes, 20)


def _stuck(samples: FleetSamples) -> None:
    samples[DB1].event("R1", "Reboot", "Platform", AT, over=samples.minutes)
    samples[DB1].away(AT + 16, AT + 20)


def _predicted(samples: FleetSamples) -> None:
    samples[DB1].event("H1", "Redeploy", "Platform", AT, notice=5 * DAY, over=AT + 90)


def _predicted_and_redeployed(samples: FleetSamples) -> None:
    samples[DB1].event("H1", "Redeploy", "Platform", AT, notice=5 * DAY, over=AT + 40)
    samples[DB1].event("U1", "Redeploy", "User", AT + 30, approved=AT + 31, over=AT + 40)
    samples[DB1].away(AT + 33, AT + 41)


def _approved_early(samples: FleetSamples) -> None:
    samples[DB1].event("R1", "Reboot", "Platform", AT, begins=AT + 3, over=AT + 12)
    samples[DB1].away(AT + 4, AT + 9)


def _host(samples: FleetSamples) -> None:
    for number, vm in enumerate(WEB[:5]):
        samples[vm].event(f"B-{vm.name}", "Reboot", "Platform", AT, notice=0, over=AT + 25)
        samples[vm].away(AT + 1, AT + 8 if number else samples.minutes)


def _power(samples: FleetSamples) -> None:
    for vm in WEB[:5]:
        samples[vm].away(AT, AT + 20)


def _wave(samples: FleetSamples) -> None:
    """Azure restarts the scale set web, half of it ten minutes after the other; web_3 doesn't return."""
    for number, vm in enumerate(WEB):
        at = AT + number // 4 * 10
        _rebooted(samples, vm, at, None if number == 3 else at + 22)


SHOP: Final = scale_set("web", 10, "shop")
DATA: Final = scale_set("batch", 10, "data")


def _two_waves(samples: FleetSamples) -> None:
    for vms, at in ((SHOP, AT), (DATA, AT + 3)):
        for number, vm in enumerate(vms):
            start = at + number // 5 * 15
            _rebooted(samples, vm, start, start + 22)


def _second_wave(samples: FleetSamples) -> None:
    for number, vm in enumerate(SHOP):
        start = AT + number // 5 * 180
        _rebooted(samples, vm, start, start + 22)


DEV: Final = scale_set("dev", 8)


def _second_loss(samples: FleetSamples) -> None:
    for vm in DEV:
        samples[vm].away(AT, samples.minutes)
    for vm in SHOP:
        samples[vm].away(AT + 60, samples.minutes)


MANY: Final = single(*(f"app{number}" for number in range(1, 9)))
SHOP_DB: Final = single("shop-db", owner="shop")[0]


def _wave_and_one(samples: FleetSamples) -> None:
    for vm in MANY:
        _rebooted(samples, vm, AT, AT + 22)
    _rebooted(samples, SHOP_DB, AT + 20, AT + 42)


# -- VMs that end


SIXTEEN: Final = scale_set("web", 16)


def _terminated(samples: FleetSamples) -> None:
    for vm in SIXTEEN[:8]:
        samples[vm].event(f"T-{vm.name}", "Terminate", "User", AT, notice=5, over=AT + 7)
        samples[vm].away(AT + 7, AT + 12)
        samples[vm].away(AT + 12, samples.minutes, listed=False)


def _deleted(samples: FleetSamples) -> None:
    for vm in SIXTEEN[:8]:
        samples[vm].away(AT, AT + 5)
        samples[vm].away(AT + 5, samples.minutes, listed=False)


def _deleted_but_listed(samples: FleetSamples) -> None:
    for vm in SIXTEEN[:8]:
        samples[vm].away(AT, samples.minutes)


def _static_target(samples: FleetSamples) -> None:
    samples[DB1].event("T1", "Terminate", "User", AT, notice=8, over=AT + 12)
    samples[DB1].away(AT + 12, samples.minutes)


SPOT: Final = scale_set("spot", 60)


def _evictions(samples: FleetSamples) -> None:
    for number, vm in enumerate(SPOT[:50]):
        at = AT + number * 60 // 50
        samples[vm].event(f"P-{vm.name}", "Preempt", "Platform", at, notice=1, over=at + 2)
        samples[vm].away(at + 2, at + 7)
        samples[vm].away(at + 7, samples.minutes, listed=False)


def _deallocated(samples: FleetSamples) -> None:
    vm = samples.vms[0]
    samples[vm].event("P1", "Preempt", "Platform", AT, notice=1, over=AT + 2)
    samples[vm].away(AT + 2, samples.minutes)


# -- the metadata service and approvals


def _flapping(samples: FleetSamples) -> None:
    for minute in range(AT, AT + 60, 4):
        samples[DB1].without_data(minute, minute + 2)


def _held(samples: FleetSamples) -> None:
    samples[DB1].put("approval_held", 0, AT, 0)
    samples[DB1].put("approval_held", AT, AT + 10 * DAY, 1)
    samples[DB1].put("approval_held", AT + 10 * DAY, samples.minutes, 0)


def _refused(samples: FleetSamples) -> None:
    samples[DB1].event("U1", "Reboot", "User", AT, over=AT + 25)
    samples[DB1].put('approval_request_failures_total{reason="status-400"}', AT + 1, samples.minutes, 3)
    samples[DB1].away(AT + 16, AT + 20)


def _clock(samples: FleetSamples, seconds: float) -> None:
    """db1 starts again with a clock that is off by this much: so is every time that it publishes."""
    samples[DB1].away(AT, AT + 2)
    of_its_clock = (PROCESS, f"{PREFIX}last_poll_timestamp_seconds", f"{PREFIX}last_successful_poll_timestamp_seconds")
    for name in of_its_clock:
        values = samples[DB1].series[name]
        values[AT + 2 :] = [None if value is None else value + seconds for value in values[AT + 2 :]]


def _clock_ahead(samples: FleetSamples) -> None:
    _clock(samples, 3600)


def _clock_behind(samples: FleetSamples) -> None:
    _clock(samples, -3600)


def _malformed(samples: FleetSamples) -> None:
    samples[DB1].event("E1", "Reboot", "Platform", AT, begins=AT + 40, over=AT + 40)
    samples[DB1].put('event_not_before_timestamp_seconds{event_id="E1"}', 0, samples.minutes, None)
    decision = 'event_decision{{event_id="E1",decision="hold",reason="{}",rule=""}}'
    samples[DB1].put(decision.format("no-rule"), 0, samples.minutes, None)
    samples[DB1].put(decision.format("malformed"), AT, AT + 40, 1)


def _unknown_type(samples: FleetSamples) -> None:
    samples[DB1].event("E1", "other", "Platform", AT, over=AT + 25)
    samples[DB1].put('unknown_values_total{field="EventType"}', 0, AT, 0)
    samples[DB1].put('unknown_values_total{field="EventType"}', AT, samples.minutes, 1)


# -- Prometheus, destinations, and files


def _partition(samples: FleetSamples) -> None:
    for vm in WEB:
        samples[vm].away(AT, AT + 30, restarts=False)


def _no_targets(samples: FleetSamples) -> None:
    for vm in samples.vms:
        samples[vm].away(AT, AT + 40, listed=False, restarts=False)


def _destination(samples: FleetSamples) -> None:
    for number, vm in enumerate(OTHERS[:4]):
        at = AT + number * 4
        samples[vm].put(f"outbox_records{EVENT_HUBS}", 0, samples.minutes, 0)
        samples[vm].put(f"outbox_records{EVENT_HUBS}", at, AT + 90, 4)
        samples[vm].put(f"outbox_oldest_record_timestamp_seconds{EVENT_HUBS}", at, AT + 90, 60.0 * at)


def _outbox(samples: FleetSamples) -> None:
    vm = samples[DB1]
    vm.put("outbox_capacity_bytes", 0, samples.minutes, 1000)
    vm.put(f"outbox_records{EVENT_HUBS}", 0, samples.minutes, 0)
    for minute in range(samples.minutes):
        vm.put("outbox_bytes", minute, minute + 1, min(1000.0, max(0.0, 10.0 * (minute - AT))))
    vm.put(f"outbox_records{EVENT_HUBS}", AT, samples.minutes, 100)
    vm.put(f"outbox_oldest_record_timestamp_seconds{EVENT_HUBS}", AT, samples.minutes, 60.0 * AT)
    name = 'destination_records_dropped_total{destination="event_hubs",reason="outbox-full"}'
    vm.put(name, 0, AT + 100, 0)
    for minute in range(AT + 100, samples.minutes):
        vm.put(name, minute, minute + 1, minute - AT - 99)


def _unwritable(samples: FleetSamples) -> None:
    samples[DB1].put("outbox_writable", 0, AT, 1)
    samples[DB1].put("outbox_writable", AT, AT + 60, 0)
    samples[DB1].put("outbox_writable", AT + 60, samples.minutes, 1)


def _certificate(samples: FleetSamples) -> None:
    samples[DB1].put("web_certificate_not_after_timestamp_seconds", 0, samples.minutes, 60.0 * AT + 14 * 86400)


NEVER_OBSERVED: Final = ("went down with",)

STORIES: Final = (
    Story("No events", "Nothing happens.", FEW, _quiet, 30, notifies=NO_ALERT),
    Story(
        "User patch night with a broken package",
        "Within ten minutes, a user restarts the eight VMs of the scale set web. Six of them never return.",
        [*WEB, *FEW],
        _patch_night,
        must=(Fires("", 60, text="web|production"),),
    ),
    Story(
        "User patch night of six hours",
        "A user restarts the 120 VMs of the scale set web, one every three minutes. Every second one never returns.",
        BIG,
        _patch_hours,
        450,
        3,
        must=(Fires("", 120, text="web|production"),),
    ),
    Story(
        "One user restart that never returns",
        "A user restarts db1, which approves at once and never returns.",
        FEW,
        _one_restart,
        notifies=NO_ALERT,
    ),
    Story(
        "User restart",
        "A user restarts db1, which approves at once and is back four minutes after it went down.",
        FEW,
        _short_restart,
        60,
        notifies=NO_ALERT,
    ),
    Story(
        "Azure reboot that returns",
        "Azure announces a reboot of db1, and restarts it at NotBefore. It is back after five minutes.",
        FEW,
        _reboot,
        60,
        must=(Fires("MaintenanceImminent", 10, text="db1"),),
        notifies="MaintenanceImminent",
    ),
    Story(
        "Azure redeployment that never returns",
        "Azure announces a redeployment of db1. The VM goes down a minute after NotBefore and never returns.",
        FEW,
        _redeploy,
        must=(Fires("MaintenanceImminent", 10), Fires("VMDidNotReturn", 50, "critical", text="db1")),
    ),
    Story(
        "Agent stops before a reboot",
        "Azure announces a reboot of db1 15 minutes ahead. Its agent stops ten minutes before NotBefore. The VM "
        "restarts, and returns six minutes after NotBefore.",
        FEW,
        _dead_and_back,
        60,
        must=(Fires("", 14, text="db1"),),
    ),
    Story(
        "Agent stops before a reboot that never returns",
        "As before, but the VM never returns.",
        FEW,
        _dead_and_lost,
        must=(Fires("", 14, text="db1"), Fires("", 60, "critical", text="db1")),
    ),
    Story(
        "Agent stops before a reboot that is canceled",
        "As before, but Azure cancels the reboot, and the VM stays up. Its agent is started an hour after NotBefore.",
        FEW,
        _dead_and_canceled,
        must=(Fires("", 14, text="db1"),),
        untrue=NEVER_OBSERVED,
    ),
    Story(
        "Crash loop",
        "For two hours, the agent of db1 answers two of every three scrapes, each time as a new process.",
        FEW,
        _crash_loop,
        150,
        must=(Fires("", 60, text="db1"),),
    ),
    Story(
        "Fast crash loop",
        "For two hours, the agent of db1 answers every scrape, each time as a new process.",
        FEW,
        _fast_crash_loop,
        150,
        must=(Fires("", 60, text="db1"),),
    ),
    Story(
        "Prometheus away for seven minutes during a wave",
        "Azure restarts the scale set web. web_3 never returns. Two minutes after it went down, Prometheus is away for "
        "seven minutes.",
        [*WEB, *FEW],
        _wave,
        must=(Fires("VMDidNotReturn", 62, "critical", text="web_3"),),
        away=range(AT + 18, AT + 25),
    ),
    Story(
        "Prometheus away for 50 minutes during a wave",
        "As before, but Prometheus is away for 50 minutes.",
        [*WEB, *FEW],
        _wave,
        must=(Fires("VMDidNotReturn", 105, "critical", text="web_3"),),
        away=range(AT + 18, AT + 68),
    ),
    Story(
        "Two waves of two owners",
        "Azure restarts the scale sets web of the owner shop and batch of the owner data, in one subscription.",
        [*SHOP, *DATA],
        _two_waves,
        must=(
            Fires("MaintenanceWave", 5, receiver="shop", text="web_0"),
            Fires("", 12, receiver="operators", text="batch_0"),
        ),
        notifies="MaintenanceWave|MaintenanceImminent",
    ),
    Story(
        "Second wave three hours later",
        "Azure restarts five VMs of the scale set web of the owner shop and, three hours later, the other five.",
        [*SHOP, *FEW],
        _second_wave,
        240,
        must=(
            Fires("MaintenanceWave", 5, receiver="shop", text="web_4"),
            Fires("MaintenanceWave", 185, receiver="shop", text="web_9"),
        ),
        notifies="MaintenanceWave",
    ),
    Story(
        "Wave of a subscription and a VM of another owner",
        "Azure restarts eight single VMs of a subscription and, 20 minutes later, shop-db of the owner shop.",
        [*MANY, *FEW, SHOP_DB],
        _wave_and_one,
        must=(Fires("MaintenanceWave", 5), Fires("MaintenanceImminent", 30, receiver="shop", text="shop-db")),
    ),
    Story(
        "Host failure of five VMs",
        "Five VMs go down a minute after their events are first seen, already started. Four return after seven "
        "minutes, web_0 never.",
        [*WEB, *FEW],
        _host,
        must=(Fires("VMDidNotReturn", 35, "critical", text="web_0"),),
    ),
    Story(
        "Loss of power without an event",
        "Five VMs of the scale set web go down without an event, and return after 20 minutes.",
        [*WEB, *FEW],
        _power,
        60,
        must=(Fires("", 12, text="web|production"),),
    ),
    Story(
        "Loss of a scale set while another one is down",
        "The scale set dev without an owner goes down without an event. An hour later, so does web of the owner shop.",
        [*DEV, *SHOP, *scale_set("api", 30)],
        _second_loss,
        must=(
            Fires("FleetDown", 15, "critical", receiver="on-call", text="dev_0"),
            Fires("FleetDown", 75, "critical", receiver="shop-on-call", text="web_0"),
        ),
    ),
    Story(
        "Reboot approved by another program",
        "Azure announces a reboot of db1. Another program approves it after three minutes; the VM is down for five.",
        FEW,
        _approved_early,
        60,
        must=(Fires("ApprovedExternally", 15, text="db1"),),
    ),
    Story(
        "Live migration",
        "Azure freezes db1 at NotBefore, for as long as announced.",
        FEW,
        _freeze,
        60,
        notifies=NO_ALERT,
    ),
    Story(
        "Freeze longer than announced",
        "Azure announces a freeze of 5 s. The agent observes an interruption of 42 s.",
        FEW,
        _long_freeze,
        60,
        must=(Fires("InterruptionLongerThanAnnounced", 20, text="42s"),),
    ),
    Story(
        "Unannounced pause",
        "The agent of db1 observes an interruption of 20 s without an event.",
        FEW,
        _pause,
        60,
        must=(Fires("UnannouncedInterruption", 5, text="20s"),),
    ),
    Story(
        "Maintenance that doesn't end",
        "Azure restarts db1. The VM is back after four minutes, but the event remains in the document.",
        FEW,
        _stuck,
        must=(Fires("MaintenanceStuck", 80, text="db1"),),
    ),
    Story(
        "Predicted hardware failure",
        "Azure announces a redeployment of db1 five days ahead, and cancels it after 90 minutes.",
        FEW,
        _predicted,
        must=(Fires("HardwareFailurePredicted", 2, "critical", text="5d"),),
    ),
    Story(
        "Predicted hardware failure that the owner acts on",
        "As before, but the owner redeploys db1 after half an hour. The VM is down for eight minutes.",
        FEW,
        _predicted_and_redeployed,
        60,
        must=(Fires("HardwareFailurePredicted", 2, "critical", text="5d"),),
        notifies="HardwareFailurePredicted",
    ),
    Story(
        "Scale-in with Terminate",
        "Autoscale deletes 8 of the 16 VMs of the scale set web, with five minutes of notice. Service discovery "
        "removes the targets five minutes after the VMs.",
        SIXTEEN,
        _terminated,
        60,
        notifies=NO_ALERT,
    ),
    Story(
        "Half a scale set deleted without Terminate",
        "8 of the 16 VMs of the scale set web are deleted without an event. Service discovery removes the targets five "
        "minutes later.",
        SIXTEEN,
        _deleted,
        60,
    ),
    Story(
        "Half a scale set deleted without Terminate, targets remain",
        "As before, but service discovery keeps the targets.",
        SIXTEEN,
        _deleted_but_listed,
        60,
        must=(Fires("FleetDown", 12, "critical", text="web|production"),),
    ),
    Story(
        "Static target of a deleted VM",
        "A user deletes db1. For two days, Prometheus still has it as a target.",
        FEW[:2],
        _static_target,
        2 * DAY,
        4,
        must=(Fires("ExporterDown", 26 * 60, text="db1"),),
        quiet=DAY,
    ),
    Story(
        "50 Spot evictions",
        "Within an hour, Azure evicts 50 of the 60 VMs of the scale set spot.",
        SPOT,
        _evictions,
        must=(Fires("EvictionWave", 60, text="spot|production"),),
        notifies="EvictionWave",
    ),
    Story(
        "Evicted Spot VM whose target remains",
        "Azure evicts spot_0 and deallocates it. Prometheus still has it as a target, for six hours.",
        SPOT[:6],
        _deallocated,
        360,
        4,
        notifies=NO_ALERT,
    ),
    Story(
        "Flapping metadata service",
        "For an hour, the metadata service of db1 doesn't respond in two of every four minutes.",
        FEW,
        _flapping,
        90,
        must=(Fires("", 20, text="db1"),),
    ),
    Story(
        "Hold file for ten days",
        "A hold file exists on db1 for ten days.",
        [DB1],
        _held,
        10 * DAY + 240,
        4,
        must=(Fires("ApprovalsHeld", 8 * DAY, text="db1"),),
    ),
    Story(
        "Approval refused three times",
        "A user requests a restart of db1. Within a minute, Azure rejects three approval requests with status 400. "
        "The VM restarts at NotBefore, and is back after five minutes.",
        FEW,
        _refused,
        60,
        must=(Fires("ApprovalFailing", 5, text=r"\b3 approval requests\b.*status-400"),),
    ),
    Story(
        "Clock ahead by an hour",
        "db1 starts with a clock that is an hour ahead.",
        FEW,
        _clock_ahead,
        90,
        must=(Fires("", 60, text="db1"),),
        untrue=("no successful poll",),
    ),
    Story(
        "Clock behind by an hour",
        "db1 starts with a clock that is an hour behind.",
        FEW,
        _clock_behind,
        90,
        must=(Fires("", 60, text="db1"),),
        untrue=("no successful poll",),
    ),
    Story(
        "Malformed event",
        "For 40 minutes, db1 has an event with an unreadable NotBefore.",
        FEW,
        _malformed,
        60,
        must=(Fires("EventRejected", 5, text="db1"),),
    ),
    Story(
        "Event of an unknown type",
        "db1 has an event of a type that this version doesn't know.",
        FEW,
        _unknown_type,
        90,
    ),
    Story(
        "Agent stopped without an event",
        "An operator stops the agent of db1 for 45 minutes.",
        FEW,
        _stopped,
        60,
        must=(Fires("ExporterDown", 12, text="db1"),),
    ),
    Story(
        "Upgrade in rings",
        "A new version of the agent is installed on 2, 4, and 7 VMs, an hour apart. Each agent misses one scrape.",
        [*WEB, *OTHERS],
        _rings,
        180,
        notifies=NO_ALERT,
    ),
    Story(
        "Upgrade of an agent that failed long ago",
        "The agent of db1 has counted seven failed approvals and an interruption. It is upgraded, and misses a scrape.",
        FEW,
        _upgraded_after_failures,
        notifies=NO_ALERT,
    ),
    Story(
        "Two approval modes",
        "Three of six agents run in dry-run mode for eight hours.",
        FEW,
        _mixed_modes,
        480,
        4,
        must=(Fires("MixedModes", 370),),
    ),
    Story(
        "Network partition of a scale set",
        "For 30 minutes, Prometheus can't reach the scale set web.",
        [*WEB, *FEW],
        _partition,
        60,
        must=(Fires("FleetDown", 12, "critical", text="web|production"),),
    ),
    Story(
        "Job without targets",
        "For 40 minutes, service discovery finds no targets.",
        FEW,
        _no_targets,
        60,
        must=(Fires("JobAbsent", 12, "critical"),),
    ),
    Story(
        "Destination without response",
        "For 90 minutes, Event Hubs accepts nothing. Four VMs have records for it.",
        FEW,
        _destination,
        must=(Fires("DestinationDown", 30, text="event_hubs"),),
    ),
    Story(
        "Full outbox",
        "Event Hubs accepts nothing from db1. Its outbox fills within 100 minutes, and then loses records.",
        FEW,
        _outbox,
        180,
        must=(Fires("OutboxAlmostFull", 90), Fires("DestinationDropping", 105, "critical", text="db1")),
    ),
    Story(
        "Outbox not writable",
        "For an hour, the disk of db1 is full.",
        FEW,
        _unwritable,
        90,
        must=(Fires("OutboxUnwritable", 8, "critical", text="db1"),),
    ),
    Story(
        "Expiring certificate",
        "The certificate of db1's metrics endpoint expires in 14 days.",
        FEW,
        _certificate,
        60,
        must=(Fires("CertificateExpiring", 5, text="db1"),),
    ),
)
