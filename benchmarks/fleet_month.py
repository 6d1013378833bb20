"""A month of a fleet as a list of scenarios: the samples that Prometheus scrapes each minute, in promtool's format.

Each scenario contains the whole fleet, but only the series that the rules read: twelve for a VM without events. The
time between scenarios is omitted, because nothing fires. Times are minutes since the start of a scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

PREFIX: Final = "azure_scheduled_events_"
PROCESS: Final = "process_start_time_seconds"
JOB: Final = "azure-scheduled-events-exporter"
SETS: Final = 30
WARM: Final = 10
"""Minutes without changes at the start of each scenario."""

Values = list[float | None]
"""One sample each minute, or every few minutes; None: no sample."""


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM of the fleet, and the labels that route its alerts."""

    name: str
    vmss: str
    subscription: str
    owner: str

    @property
    def target(self) -> str:
        """The labels that Prometheus adds to all of its series."""
        return f'job="{JOB}",instance="{self.name}:10169"'

    @property
    def info(self) -> str:
        """The labels of its `vm_info`."""
        owner = f',tag_owner="{self.owner}"' if self.owner else ""
        return (
            f'vm_name="{self.name}",vmss_name="{self.vmss}",subscription_id="{self.subscription}",'
            f'resource_group="shop",location="{self.subscription}"{owner}'
        )


def fleet(size: int) -> list[Vm]:
    """Return `size` VMs: nine tenths in 30 scale sets, one tenth single; two thirds in one subscription and region, one
    third in another. The team `shop` owns every third scale set."""
    each = size * 9 // 10 // SETS
    vms = []
    for number in range(size):
        group, rest = divmod(number, each)
        subscription = "west" if number < size * 2 // 3 else "north"
        if group < SETS:
            vms.append(Vm(f"set{group}_{rest}", f"set{group}", subscription, "" if group % 3 else "shop"))
        else:
            vms.append(Vm(f"vm{number}", "", subscription, ""))
    return vms


@dataclass(frozen=True, slots=True)
class Announced:
    """An event of a VM: the minutes of its first sight, `NotBefore`, start, and end."""

    ident: str
    kind: str
    source: str
    start: int
    not_before: int
    begins: int
    over: int


@dataclass(slots=True)
class VmSeries:
    """The series of one VM, with a sample every `step` minutes."""

    vm: Vm
    minutes: int
    step: int = 1
    series: dict[str, Values] = field(default_factory=dict)
    events: list[Announced] = field(default_factory=list)

    def __post_init__(self) -> None:
        every = -(-self.minutes // self.step)
        clock: Values = [60.0 * self.step * at for at in range(every)]
        one: Values = [1.0] * every
        self.series["up"] = list(one)
        self.series[PROCESS] = [-86400.0] * every
        for name, values in (("up", one), ("last_poll_timestamp_seconds", clock), ("polls_total", clock)):
            self.series[PREFIX + name] = list(values)
        self.series[PREFIX + "last_successful_poll_timestamp_seconds"] = list(clock)
        self.series[PREFIX + "poll_interval_seconds"] = list(one)
        self.series[f'{PREFIX}poll_failures_total{{reason="timeout"}}'] = [0.0] * every
        self.series[f"{PREFIX}vm_info{{{self.vm.info}}}"] = list(one)
        self.series[f'{PREFIX}approval_mode{{mode="enforce"}}'] = list(one)
        self.series[f'{PREFIX}approval_mode{{mode="dry-run"}}'] = [0.0] * every
        self.series[f'{PREFIX}build_info{{version="1.1.0"}}'] = list(one)

    def samples(self, start: int, end: int) -> range:
        """Return the indexes of the samples from minute `start` until `end`."""
        return range(max(0, -(-start // self.step)), -(-min(end, self.minutes) // self.step))

    def put(self, name: str, start: int, end: int, value: float | None) -> None:
        """Set a series, created if missing, to one value from minute `start` until `end`."""
        values = self.series.setdefault(PREFIX + name, [None] * -(-self.minutes // self.step))
        for at in self.samples(start, end):
            values[at] = value

    def without_data(self, start: int, end: int) -> None:
        """The metadata service doesn't respond in these minutes."""
        self.put("up", start, end, 0)
        self.put("last_successful_poll_timestamp_seconds", start, end, 60.0 * start)
        failures = self.series[f'{PREFIX}poll_failures_total{{reason="timeout"}}']
        polls = self.series[PREFIX + "polls_total"]
        for at in self.samples(start, self.minutes):
            away = min(at * self.step, end) - start
            failures[at] = (failures[at] or 0.0) + 20.0 * away  # each takes three seconds
            polls[at] = (polls[at] or 0.0) - 40.0 * away

    def away(self, start: int, end: int, *, listed: bool = True, restarts: bool = True) -> None:
        """The exporter doesn't respond in these minutes; `listed`: service discovery still lists it as a target;
        `restarts`: a new process answers afterwards."""
        for name, values in self.series.items():
            for at in self.samples(start, end):
                values[at] = (0.0 if listed else None) if name == "up" else None
        if restarts and end < self.minutes:
            self.restart(end)

    def restart(self, minute: int) -> None:
        """A new process answers from this minute on: it started 20 s earlier, and counts its polls from 0."""
        for at in self.samples(minute, self.minutes):
            self.series[PROCESS][at] = 60.0 * minute - 20
            self.series[PREFIX + "polls_total"][at] = 60.0 * (at * self.step - minute) + 20
            self.series[f'{PREFIX}poll_failures_total{{reason="timeout"}}'][at] = 0.0

    def event(
        self,
        ident: str,
        kind: str,
        source: str,
        start: int,
        *,
        notice: int = 15,
        begins: int | None = None,
        approved: int | None = None,
        over: int,
        resources: int = 1,
        duration: float | None = None,
    ) -> None:
        """Add an event that is in the document from minute `start` to `over`, and Started from `begins`, from the
        minute after this VM `approved` it, or after its notice. `duration`: seconds that it announces."""
        if begins is None:
            begins = start + notice if approved is None else approved + 1
        self.events.append(Announced(ident, kind, source, start, start + notice, begins, over))
        seen = f'event_id="{ident}"'
        about = f'{seen},event_type="{kind}",event_source="{source}",resource_type="VirtualMachine"'
        self.put(f"event_info{{{about}}}", start, over, 1)
        self.put(f'event_status{{{seen},event_status="Scheduled"}}', start, begins, 1)
        self.put(f'event_status{{{seen},event_status="Scheduled"}}', begins, over, 0)
        self.put(f'event_status{{{seen},event_status="Started"}}', start, begins, 0)
        self.put(f'event_status{{{seen},event_status="Started"}}', begins, over, 1)
        self.put(f"event_first_seen_timestamp_seconds{{{seen}}}", start, over, 60.0 * start)
        self.put(f"event_resources{{{seen}}}", start, over, resources)
        self.put(f"event_not_before_timestamp_seconds{{{seen}}}", start, min(begins, over), 60.0 * (start + notice))
        self.put(f"event_started_timestamp_seconds{{{seen}}}", begins, over, 60.0 * begins)
        if duration is not None:
            self.put(f"event_advertised_duration_seconds{{{seen}}}", start, over, duration)
        held = f'event_decision{{{seen},decision="hold",reason="no-rule",rule=""}}'
        self.put(held, start, over if approved is None else approved, 1)
        starter = "other" if begins < start + notice else "not_before"
        if approved is not None:
            starter = "this_vm"
            self.put(f'event_decision{{{seen},decision="approve",reason="",rule="users"}}', approved, over, 1)
            self.put(f"event_approved_timestamp_seconds{{{seen}}}", approved, over, 60.0 * approved)
        self.put(f'event_started_by{{{seen},started_by="{starter}"}}', begins, over, 1)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield each series with its values in promtool's format."""
        for name, values in self.series.items():
            metric, _, labels = name.rstrip("}").partition("{")
            yield f"{metric}{{{self.vm.target}{',' if labels else ''}{labels}}}", written(values)


def written(values: Values) -> str:
    """Return values in promtool's short form: runs of one value or one step, `_` for none, `stale` if a series ends."""
    parts: list[str] = []
    at = 0
    while at < len(values):
        value = values[at]
        step = 0.0
        if value is not None and at + 1 < len(values):
            after = values[at + 1]
            step = after - value if after is not None else 0.0
        end = at + 1
        while end < len(values) and _follows(values[end - 1], values[end], step):
            end += 1
        if value is None:
            ended = at > 0
            parts += ["stale"] * ended + [f"_x{end - at - ended}"] * (end - at > ended)
        else:
            parts.append(f"{value:g}" if end == at + 1 else f"{value:.10g}{step:+g}x{end - at - 1}")
        at = end
    return " ".join(parts)


def _follows(before: float | None, value: float | None, step: float) -> bool:
    if before is None or value is None:
        return before is value
    return value - before == step


@dataclass(slots=True)
class FleetSamples:
    """The fleet that a scenario changes. Only VMs that it changes have entries in `changed`."""

    vms: list[Vm]
    minutes: int
    step: int = 1
    changed: dict[str, VmSeries] = field(default_factory=dict)

    def __getitem__(self, vm: Vm) -> VmSeries:
        return self.changed.setdefault(vm.name, VmSeries(vm, self.minutes, self.step))

    def share(self, part: float, *, vmss: str | None = None, skip: int = 0) -> list[Vm]:
        """Return this share of the fleet, from one scale set or spread over all VMs, without the first `skip`."""
        count = max(1, round(len(self.vms) * part))
        if vmss is not None:
            return [vm for vm in self.vms if vm.vmss == vmss][skip : skip + count]
        stride = max(1, len(self.vms) // (count + skip))
        return self.vms[::stride][skip : skip + count]

    def series(self) -> Iterator[tuple[str, str]]:
        """Yield every series of the fleet."""
        for vm in self.vms:
            yield from (self.changed.get(vm.name) or VmSeries(vm, self.minutes, self.step)).lines()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario that happens `times` in a month. `tail`: how many minutes alerts that fire at its end continue. `few`:
    the number of VMs doesn't depend on the size of the fleet."""

    name: str
    minutes: int
    times: int
    apply: Callable[[FleetSamples], None]
    must: str = ""
    tail: int = 0
    few: bool = False


def _no_events(samples: FleetSamples) -> None:
    """Nothing happens."""


def _autoscale(samples: FleetSamples) -> None:
    """A tenth of the fleet is deleted with ten minutes of notice; half of the targets stay for half an hour."""
    for number, vm in enumerate(samples.share(0.1)):
        at = WARM + number % 5
        samples[vm].event(f"T{number}", "Terminate", "Platform" if number % 2 else "User", at, notice=10, over=at + 14)
        samples[vm].away(at + 12, at + 42, listed=number % 3 != 0)
        samples[vm].away(at + 42, samples.minutes, listed=False)


def _early_autoscale(samples: FleetSamples) -> None:
    """The same, approved at once by another approver, in a scale set that is nearly emptied."""
    for number, vm in enumerate(samples.share(0.025, vmss="set4")):
        samples[vm].event(f"T{number}", "Terminate", "Platform", WARM, begins=WARM + 2, over=WARM + 6)
        samples[vm].away(WARM + 4, WARM + 34)
        samples[vm].away(WARM + 34, samples.minutes, listed=False)


def _migrations(samples: FleetSamples) -> None:
    """One VM after another freezes, every 14 minutes: 100 a day."""
    for number, vm in enumerate(samples.vms[:: len(samples.vms) // 6][:6]):
        at = WARM + number * 14
        samples[vm].event(f"F{number}", "Freeze", "Platform", at, over=at + 25)


def _wave(samples: FleetSamples) -> None:
    """A fifteenth of the fleet restarts, twenty VMs every 15 minutes; each is down for six minutes."""
    for number, vm in enumerate(samples.share(1 / 15)):
        at = WARM + number // max(1, len(samples.vms) // 150) * 15
        samples[vm].event(f"R{number}", "Reboot", "Platform", at, over=at + 25)
        samples[vm].away(at + 16, at + 22)


def _set_wave(samples: FleetSamples) -> None:
    """One scale set of the shop is redeployed, one eighth at a time."""
    vms = [vm for vm in samples.vms if vm.vmss == "set3"]
    for number, vm in enumerate(vms):
        at = WARM + number * 8 // len(vms) * 12
        samples[vm].event(f"D{number}", "Redeploy", "Platform", at, notice=10, over=at + 20)
        samples[vm].away(at + 11, at + 17)


def _spot(samples: FleetSamples) -> None:
    """Four Spot VMs are evicted."""
    for number, vm in enumerate(samples.share(0.004, vmss="set2")[:4]):
        samples[vm].event(f"P{number}", "Preempt", "Platform", WARM + number, notice=1, over=WARM + number + 2)
        samples[vm].away(WARM + number + 2, WARM + 30)
        samples[vm].away(WARM + 30, samples.minutes, listed=False)


def _spot_wave(samples: FleetSamples) -> None:
    """Half of a Spot scale set is evicted within an hour."""
    vms = [vm for vm in samples.vms if vm.vmss == "set2"]
    for number, vm in enumerate(vms[::2]):
        at = WARM + number * 60 // len(vms[::2])
        samples[vm].event(f"P{number}", "Preempt", "Platform", at, notice=1, over=at + 2)
        samples[vm].away(at + 2, samples.minutes, listed=False)


def _outage(samples: FleetSamples) -> None:
    """The metadata service of a region fails for twenty minutes."""
    for number, vm in enumerate(vm for vm in samples.vms if vm.subscription == "west"):
        samples[vm].without_data(WARM + number % 2, WARM + 20 + number % 3)


def _partition(samples: FleetSamples) -> None:
    """Prometheus can't reach a scale set for half an hour."""
    for vm in samples.vms:
        if vm.vmss == "set6":
            samples[vm].away(WARM, WARM + 30, restarts=False)


def _one_without_data(samples: FleetSamples) -> None:
    """The metadata service of one VM doesn't respond for half an hour."""
    samples[samples.vms[-1]].without_data(WARM, WARM + 30)


def _one_down(samples: FleetSamples) -> None:
    """One exporter stops, and is started again after forty minutes."""
    samples[samples.vms[7]].away(WARM, WARM + 40)


def _predicted(samples: FleetSamples) -> None:
    """Azure predicts a hardware failure in five days; the owner redeploys after half an hour."""
    vm = samples[samples.vms[1]]
    vm.event("H", "Redeploy", "Platform", WARM, notice=5 * 1440, over=WARM + 40, begins=WARM + 9999)
    vm.event("U", "Redeploy", "User", WARM + 30, over=WARM + 40, begins=WARM + 33)
    vm.away(WARM + 34, WARM + 42)


def _user(samples: FleetSamples) -> None:
    """Thirty users restart one VM each, at NotBefore; one VM stays down."""
    for number, vm in enumerate(samples.vms[:: len(samples.vms) // 30][:30]):
        samples[vm].event(f"U{number}", "Reboot", "User", WARM + number, over=WARM + number + 20)
        samples[vm].away(WARM + number + 16, samples.minutes if number == 0 else WARM + number + 19)


def _host_failure(samples: FleetSamples) -> None:
    """A host fails: five VMs go down with events that are first seen Started; one stays down for fifty minutes."""
    for number, vm in enumerate(samples.share(5 / len(samples.vms), skip=3)):
        samples[vm].event(f"B{number}", "Reboot", "Platform", WARM, notice=0, over=WARM + 25)
        samples[vm].away(WARM + 2, WARM + (52 if number == 0 else 8))


def _pause(samples: FleetSamples) -> None:
    """One VM pauses for 20 s without an event."""
    name = 'observed_interruption_seconds_sum{kind="clock_step",attributed="false"}'
    samples[samples.vms[11]].put(name, WARM + 20, samples.minutes, 20)


def _rollout(samples: FleetSamples) -> None:
    """A new version is rolled out within an hour; each exporter is down for a minute."""
    for number, vm in enumerate(samples.vms):
        at = WARM + number * 60 // len(samples.vms)
        samples[vm].series[f'{PREFIX}build_info{{version="1.1.0"}}'][at:] = [None] * (samples.minutes - at)
        samples[vm].put('build_info{version="1.2.0"}', at + 1, samples.minutes, 1)
        samples[vm].away(at, at + 1)


def _job_gone(samples: FleetSamples) -> None:
    """Service discovery finds nothing for forty minutes."""
    for vm in samples.vms:
        samples[vm].away(WARM, WARM + 40, listed=False, restarts=False)


def _destination(samples: FleetSamples) -> None:
    """A destination rejects everything for two hours; every four minutes one more VM has records for it."""
    for number, vm in enumerate(samples.vms[:30]):
        at = WARM + 4 * number
        samples[vm].put('outbox_records{destination="event_hubs"}', 0, samples.minutes, 0)
        samples[vm].put('outbox_records{destination="event_hubs"}', at, WARM + 120, 2)
        samples[vm].put('outbox_oldest_record_timestamp_seconds{destination="event_hubs"}', at, WARM + 120, 60.0 * at)


SCENARIOS: Final = (
    Scenario("an hour without events", 30, 30, _no_events),
    Scenario("autoscale deletes a tenth of the fleet", 75, 30, _autoscale),
    Scenario("autoscale empties a scale set, approved early", 55, 10, _early_autoscale),
    Scenario("6 live migrations (100 a day)", 120, 500, _migrations, few=True),
    Scenario("4 Spot VMs are evicted", 45, 20, _spot, few=True),
    Scenario("30 users restart a VM, one VM stays down", 100, 4, _user, few=True),
    Scenario("an agent rollout within an hour", 85, 2, _rollout),
    Scenario("half of a Spot scale set is evicted", 85, 1, _spot_wave, "add capacity", 360),
    Scenario("a wave restarts 200 VMs, 20 every 15 min", 190, 1, _wave, "check capacity", 360),
    Scenario("a wave redeploys one scale set", 120, 2, _set_wave, "check capacity", 360),
    Scenario("the metadata service of a region fails for 20 min", 50, 1, _outage, "wait, or fix it"),
    Scenario("a scale set is unreachable for 30 min", 55, 1, _partition, "fix the network"),
    Scenario("one VM gets no data for 30 min", 50, 3, _one_without_data, "fix the VM", few=True),
    Scenario("one exporter is down for 40 min", 60, 4, _one_down, "start it", few=True),
    Scenario("hardware failure is predicted", 60, 1, _predicted, "redeploy", few=True),
    Scenario("a host fails, 1 of its 5 VMs does not return", 85, 2, _host_failure, "start the VM", few=True),
    Scenario("a VM pauses for 20 s", 50, 3, _pause, "investigate", few=True),
    Scenario("the job has no targets for 40 min", 65, 1, _job_gone, "fix service discovery"),
    Scenario("a destination rejects all records for two hours", 140, 1, _destination, "fix it", few=True),
)
