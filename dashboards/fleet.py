"""The board of many VMs, from top to bottom: current state, alerts, scheduled events, VMs, history, and delivery.

It is designed for ten thousand VMs; docs/benchmarks.md contains the duration of each panel.
"""

from __future__ import annotations

from typing import Final

from dashboards import FLEET_UID, VM_UID
from dashboards import queries as ask
from dashboards.draw import annotation, bars, board, curves, figure, query, table
from dashboards.panel import (
    ALARMING,
    ALERT_WORDS,
    BAD,
    CAREFUL,
    COUNTDOWN_CELLS,
    COUNTDOWN_STEPS,
    COUNTDOWN_WORDS,
    DATA_STATES,
    EVENT_WORDS,
    GOOD,
    MODE_WORDS,
    NEUTRAL,
    NO_RULES,
    NONE_CURRENT,
    OUTCOME_WORDS,
    PURPLE,
    SEEN_WORDS,
    SEVERITY_WORDS,
    SOON,
    STARTED_BY_WORDS,
    STATUS_WORDS,
    UNKNOWN,
    Column,
    word_for_nothing,
)
from dashboards.queries import (
    IS_SCHEDULED,
    IS_STARTED,
    fleet_events,
    fleet_metric,
    fleet_recorded,
    fleet_sights,
    fleet_silent_row,
    named,
    worded,
)

SHOW_VM: Final = (
    f"/d/{VM_UID}?{ask.CARRIED}&var-job=${{__data.fields.Job}}"
    "&var-instance=${__data.fields.Instance}&${__url_time_range}"
).replace("${job:queryparam}&", "")
SHOW_VM_THEN: Final = SHOW_VM.replace(
    "${__url_time_range}", "from=${__data.fields.From.numeric}&to=${__data.fields.To.numeric}"
)
"""From an hour before an event began until an hour after it."""
STANDALONE: Final = (word_for_nothing("no scale set"),)

_WORTH: Final = 'severity!="info"'
"""The alerts that send a notification."""

# -- now

ALL: Final = figure(
    title="VMs",
    description="All selected VMs, including those that are down.",
    solid=False,
    queries=[query(ask.FLEET_ALL, "VMs")],
    no_value=NO_RULES,
    steps=((None, "text"),),
    decimals=0,
)
IN_MAINTENANCE: Final = figure(
    title="VMs in maintenance",
    description="VMs with a started event. Only VMs with current data count.",
    queries=[query(ask.vms(fleet_events(IS_STARTED)), "in maintenance")],
    no_value=NONE_CURRENT,
    steps=ALARMING,
    decimals=0,
)
AHEAD: Final = figure(
    title="VMs scheduled",
    description="VMs that a scheduled event names. Only VMs with current data count.",
    queries=[query(ask.vms(fleet_events(IS_SCHEDULED)), "ahead")],
    no_value=NONE_CURRENT,
    steps=CAREFUL,
    decimals=0,
)
NEXT: Final = figure(
    title="Next start in",
    description="Time until the earliest NotBefore of all events.",
    queries=[query(ask.FLEET_NEXT, "next")],
    no_value=NONE_CURRENT,
    unit="dtdhms",
    steps=COUNTDOWN_STEPS,
    mappings=COUNTDOWN_WORDS,
)
UNWATCHED: Final = figure(
    title="Stale or down",
    description="Number of VMs without current data: the exporter is down, or the metadata service does not answer it.",
    queries=[query(ask.with_data_state("[23]"), "unwatched")],
    no_value=NO_RULES,
    steps=ALARMING,
    decimals=0,
)
_TROUBLED: Final = "\nor\n".join(
    (
        f"count by (job, instance) ({ask.chosen(f'({ask.FLEET_BEHIND} or {ask.FLEET_PARKED})')})",
        f"count by (job, instance) (sum_over_time({ask.FLEET_DROPPED}[$__range]))",
    )
)
TROUBLED: Final = figure(
    title="Records late or lost",
    description="VMs with a record that has waited for its destination for more than ten minutes, a parked record "
    "that the destination rejected, or a record lost in this range.",
    queries=[query(f"count({_TROUBLED})\nor\n0 * {fleet_sights('[0-2]')}", "troubled")],
    no_value=NO_RULES,
    steps=ALARMING,
    decimals=0,
)
FIRING: Final = figure(
    title="Alerts firing",
    description="Firing alerts, except those of severity info.",
    queries=[query(f"count({ask.alerts('firing', _WORTH)})\nor\n0 * {ask.FLEET_ALL}", "firing")],
    no_value=NO_RULES,
    steps=CAREFUL,
    decimals=0,
)

# -- alerts and missing data

_BY_ALERT: Final = "alertname, severity"
_PLACES: Final = "vmss_name, location, subscription_id"
_UNWATCHED: Final = fleet_sights("[23]", _PLACES)
_ANY_ALERT: Final = f"count({ask.alerts('firing|pending')})"
_NO_ALERT: Final = worded(f"(0 * ({ask.FLEET_ALL} unless {_ANY_ALERT}))", alertname="none", severity="–")


def _short(counted: str) -> str:
    """Return the same samples without the common prefix of the alert names."""
    return f'label_replace({counted}, "alertname", "$1", "alertname", "AzureScheduledEvents(.+)")'


_FIRING: Final = "\nor\n".join(
    f"count by ({_BY_ALERT}) ({ask.alerts('firing', severity)})"
    for severity in ('severity="critical"', 'severity!~"critical|info"', 'severity="info"')
)
"""The most severe come first."""

ALERTS: Final = table(
    title="Alerts",
    description="Firing and pending alerts (AzureScheduledEvents…) of the selected VMs, and those of a "
    "subscription, a scale set, or a job that these VMs may belong to.",
    columns=[
        Column("alertname", "Alert", cell="color-text", mappings=(ALERT_WORDS,)),
        Column("severity", "Severity", cell="color-text", mappings=(SEVERITY_WORDS,), width=85),
        Column("Value #A", "Firing", "none", width=65),
        Column("Value #B", "Pending", "none", width=75),
    ],
    queries=[
        query(_short(_FIRING)),
        query(_short(f"count by ({_BY_ALERT}) ({ask.alerts('pending')})")),
        query(_NO_ALERT),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
)
PLACES: Final = table(
    title="Missing data, by scale set",
    description="Scale sets, and regions of VMs without one, with VMs whose data is stale or whose exporter is "
    "down: their number, and their share of the scale set. Not yet: VMs whose events are not known yet. The twenty "
    "with the highest numbers.",
    columns=[
        Column("vmss_name", "Scale set", mappings=(*STANDALONE, SEEN_WORDS), cell="color-text"),
        Column("location", "Region", width=120),
        Column("Value #A", "No data", "none", width=85),
        Column("Value #B", "Not yet", "none", width=80),
        Column(
            "Value #C",
            "Share",
            "percentunit",
            steps=((None, "text"), (0.05, SOON), (0.5, BAD)),
            cell="color-text",
            width=65,
        ),
        Column("subscription_id", "Subscription", width=345),
    ],
    queries=[
        query(f"topk(20, {_UNWATCHED})"),
        query(f"topk(20, {fleet_sights('1', _PLACES)})"),
        query(f"topk(20, {_UNWATCHED}) / {fleet_sights(by=_PLACES)}"),
        query(
            worded(
                f"(0 * ({ask.FLEET_ALL} unless {ask.FLEET_SOME_UNSEEN}))",
                vmss_name="none: all data is current",
                location="–",
                subscription_id="–",
            )
        ),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
)

# -- scheduled

_SCHEDULED: Final = fleet_events(IS_SCHEDULED)
_GROUP: Final = "vmss_name, event_type, event_source"
_SPANS: Final = (
    (0, 900, "in 15 minutes"),
    (900, 3600, "in an hour"),
    (3600, 6 * 3600, "in 6 hours"),
    (6 * 3600, 86400, "in a day"),
    (86400, 10**9, "later"),
)


def _between(low: int, high: int) -> str:
    lower = "" if low == 0 else f" >= {low}"
    return ask.vms(f"{ask.FLEET_NOT_BEFORE} - time(){lower} < {high}")


GROUPS: Final = table(
    title="Scheduled events, by scale set and type",
    description="Scheduled events of all VMs: the number of VMs that they name, the number of events, and when "
    "they can start.",
    columns=[
        Column("vmss_name", "Scale set", mappings=STANDALONE, width=170),
        Column("event_type", "Type", cell="color-text", mappings=(EVENT_WORDS,), width=200),
        Column("event_source", "Source", width=95),
        Column("Value #A", "VMs", "none", width=80),
        Column("Value #B", "Events", "none", width=80),
        Column("Value #C", "First start in", "dtdhms", COUNTDOWN_WORDS, COUNTDOWN_CELLS, "color-text", width=130),
        Column("Value #D", "Last start in", "dtdhms", COUNTDOWN_WORDS, width=130),
    ],
    queries=[
        query(f"count by ({_GROUP}) (count by ({_GROUP}, job, instance) ({_SCHEDULED}))"),
        query(f"count by ({_GROUP}) (count by ({_GROUP}, event_id) ({_SCHEDULED}))"),
        query(f"min by ({_GROUP}) ({ask.FLEET_NOT_BEFORE}) - time()"),
        query(f"max by ({_GROUP}) ({ask.FLEET_NOT_BEFORE}) - time()"),
        query(fleet_silent_row(_SCHEDULED, vmss_name="–", event_source="–")),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
)
WHEN: Final = bars(
    title="Scheduled starts",
    description="Number of VMs with an event whose NotBefore is in each period from now.",
    queries=[query(_between(low, high), text) for low, high, text in _SPANS],
    no_value=NONE_CURRENT,
    steps=CAREFUL,
    decimals=0,
)

# -- VMs

_EVENT_LABELS: Final = ("vm_name", "vmss_name", "event_status", "event_source", "instance", "job", "event_id")
_SHOWN: Final = "job, instance, vm_name, vmss_name, event_id, event_type, event_source, event_status"
_NOT_SEEN: Final = named(f"({ask.FLEET_DATA_STATE} > 0)", "vm_name", "vmss_name")
_UNSEEN: Final = f"topk(100, max by (job, instance, vm_name, vmss_name) ({_NOT_SEEN}))"
_ALL_SEEN: Final = worded(
    f"0 * ({ask.FLEET_ALL} unless {ask.FLEET_SOME_UNSEEN})",
    vm_name="none: all data is current",
    vmss_name="–",
    instance="–",
    job="–",
)
_AGE: Final = f"time() - ({fleet_metric('last_successful_poll_timestamp_seconds')} > 0)"

_DUE: Final = f"max by (job, instance, event_id) ({fleet_metric('event_not_before_timestamp_seconds')})"
_URGENT: Final = f"bottomk(100, max by ({_SHOWN}) ({ask.FLEET_BY_URGENCY}))"

EVENTS: Final = table(
    title="VMs with an event",
    description="Up to a hundred VMs: first events that take a VM down, then freezes and deletions, each by time of "
    "start. The name of a VM links to its dashboard.",
    columns=[
        Column("vm_name", "VM", link=SHOW_VM),
        Column("vmss_name", "Scale set", mappings=STANDALONE, width=110),
        Column("event_type", "Type", cell="color-text", mappings=(EVENT_WORDS,), width=150),
        Column("event_status", "Status", cell="color-text", mappings=(STATUS_WORDS,), width=105),
        Column("event_source", "Source", width=90),
        Column("Value #B", "Starts in", "dtdhms", COUNTDOWN_WORDS, COUNTDOWN_CELLS, "color-text", width=115),
        Column("instance", "Instance", hidden=True),
        Column("job", "Job", hidden=True),
    ],
    queries=[
        query(_URGENT),
        query(ask.of_event(_URGENT, f"{_DUE} - time()")),
        query(fleet_silent_row(fleet_events(), **dict.fromkeys(_EVENT_LABELS, "–"))),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
)
UNSEEN: Final = table(
    title="VMs without current data",
    description="VMs whose exporter is down, stale, or warming up, and the time since its last successful poll of "
    "the metadata service.",
    columns=[
        Column("vm_name", "VM", link=SHOW_VM),
        Column("vmss_name", "Scale set", mappings=STANDALONE, width=110),
        Column("Value #A", "Data", mappings=(DATA_STATES,), cell="color-text", width=115),
        Column("Value #B", "Last successful poll", "s", width=160),
        Column("instance", "Instance", hidden=True),
        Column("job", "Job", hidden=True),
    ],
    queries=[
        query(f"{_UNSEEN}\nor\n{_ALL_SEEN}"),
        query(f"{_UNSEEN} * 0 + on (job, instance) group_left () (max by (job, instance) ({_AGE}))"),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
)

# -- in this range

_ROWS: Final = f"topk(500, 1000 * {ask.FLEET_BEGAN})"
_HOUR: Final = 3_600_000
_NO_ROW: Final = worded(f"(0 * ({ask.FLEET_ALL} unless count({ask.FLEET_BEGAN})))", vm_name="none", outcome="–")

LAST_NIGHT: Final = table(
    title="Events in this range",
    description="One row for each event and VM, the newest first; up to five hundred. Began: its start, or when it was "
    "first seen. Started by: an approval of this VM, of another approver or VM, or NotBefore; the rule is that of this "
    "VM's approval. Outcome open: the VM has not recorded an end, for example because it was deleted. The name of a VM "
    "links to its dashboard at that time.",
    columns=[
        Column("Value #A", "Began", "dateTimeAsIso", width=170),
        Column("vm_name", "VM", link=SHOW_VM_THEN),
        Column("vmss_name", "Scale set", mappings=STANDALONE, width=150),
        Column("event_type", "Type", width=90),
        Column("event_source", "Source", width=85),
        Column("Value #B", "Notice", "s", width=95),
        Column("started_by", "Started by", cell="color-text", mappings=(STARTED_BY_WORDS,), width=150),
        Column("rule", "Rule", width=130),
        Column("Value #C", "Interruption", "s", width=110),
        Column("outcome", "Outcome", cell="color-text", mappings=(OUTCOME_WORDS,), width=100),
        Column("instance", "Instance", hidden=True),
        Column("job", "Job", hidden=True),
        Column("Value #D", "From", hidden=True),
        Column("Value #E", "To", hidden=True),
    ],
    queries=[
        query(_ROWS),
        query(ask.of_event(_ROWS, ask.FLEET_NOTICE)),
        query(ask.of_event(_ROWS, ask.FLEET_INTERRUPTION)),
        query(f"{_ROWS} - {_HOUR}"),
        query(f"{_ROWS} + {_HOUR}"),
        query(_NO_ROW),
    ],
    no_value=NO_RULES,
)

_STARTERS: Final = {
    "this_vm": "By this VM",
    "other": "By others",
    "not_before": "NotBefore passed",
    "unknown": "Unknown",
}
_OUTCOMES: Final = {"completed": "Completed", "canceled": "Canceled", "ended": "Unknown outcome"}


def _summed(series: str, *matchers: str) -> str:
    """Return the sum in this range, by type."""
    return f"sum by (event_type) (sum_over_time({fleet_recorded(series, *matchers)}[$__range]))"


_OUTCOME_QUERIES: Final = [
    *(_summed(ask.FLEET_STARTS, f'started_by="{word}"') for word in _STARTERS),
    *(_summed(ask.FLEET_ENDS, f'outcome="{word}"') for word in _OUTCOMES),
]
_ANY_OUTCOME: Final = f"count({_summed(ask.FLEET_STARTS)} or {_summed(ask.FLEET_ENDS)})"
OUTCOMES: Final = table(
    title="Starts and ends of events",
    description="Starts and ends in this range, by type; an event of five VMs counts five times. Starts, by what "
    "started the event: an approval of this VM, of another approver or VM, or NotBefore. Unknown "
    "outcome: the end was not observed.",
    columns=[
        Column("event_type", "Type", width=100),
        *(
            Column(f"Value #{letter}", heading, "none", width=len(heading) * 7 + 40)
            for letter, heading in zip("ABCDEFG", (*_STARTERS.values(), *_OUTCOMES.values()), strict=True)
        ),
    ],
    queries=[
        *(query(asked) for asked in _OUTCOME_QUERIES),
        query(worded(f"(0 * ({ask.FLEET_ALL} unless {_ANY_OUTCOME}))", event_type="none")),
    ],
    no_value=NO_RULES,
    decimals=0,
)
INTERRUPTION: Final = curves(
    title="Interruption: observed and announced",
    description="Interruption that VMs observed during an event, within five minutes each: the longest, and the "
    "p99 of the VMs with one. Also the longest duration that a started event announced. An "
    "interruption can happen without being observed.",
    points=True,
    colours={"announced": NEUTRAL, "observed, longest": BAD, "observed, p99": SOON},
    queries=[
        query(f"max({ask.FLEET_OBSERVED})", "observed, longest"),
        query(f"quantile(0.99, {ask.FLEET_OBSERVED})", "observed, p99"),
        query(f"max({ask.FLEET_ANNOUNCED})", "announced, longest"),
    ],
    no_value="None observed",
    unit="s",
    steps=((None, NEUTRAL),),
)
OVER_TIME: Final = curves(
    title="VMs with an event over time",
    description="Number of VMs with an event, by type and status. Purple: VMs without current data, which may "
    "have one too.",
    colours={"unknown": UNKNOWN},
    queries=[
        query(f"sum by (event_type, event_status) ({ask.FLEET_EVENTS_COUNTED})", "{{event_type}} {{event_status}}"),
        query(ask.with_data_state("[1-3]"), "unknown"),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
    decimals=0,
)
# -- delivery and agents

_COUNTED_MODES: Final = f"sum by (mode, version) ({fleet_recorded('fleet:azure_scheduled_events_approval_mode:vms')})"

MODES: Final = table(
    title="Mode and version",
    description="Number of agents by approval mode (enforce approves, dry-run only decides, off does neither) and "
    "version. One row at 100 % means a uniform fleet; more rows mean a rollout that is in progress or "
    "incomplete.",
    columns=[
        Column("mode", "Mode", cell="color-text", mappings=(MODE_WORDS,), width=100),
        Column("version", "Version", width=110),
        Column("Value #A", "VMs", "none", width=75),
        Column("Value #B", "Share", "percentunit", steps=((None, SOON), (1, GOOD)), cell="color-text", width=90),
    ],
    queries=[
        query(f"sort_desc({_COUNTED_MODES})"),
        query(f"{_COUNTED_MODES} / scalar(sum({_COUNTED_MODES}))"),
    ],
    no_value=NONE_CURRENT,
)
_OF_RECORDS: Final = "job, instance, vm_name, destination"
RECORDS: Final = table(
    title="Records late, rejected, or lost",
    description="Destinations with a record that has waited for more than ten minutes; parked records that were "
    "rejected; and records lost in this range. Up to fifty VMs of each.",
    columns=[
        Column("vm_name", "VM", link=SHOW_VM),
        Column("destination", "Destination", width=110),
        Column(
            "Value #A",
            "Oldest waits",
            "s",
            steps=((None, "text"), (600, SOON), (3600, BAD)),
            cell="color-text",
            width=115,
        ),
        Column("Value #B", "Rejected", "none", steps=((None, "text"), (1, BAD)), cell="color-text", width=80),
        Column("Value #C", "Lost", "none", steps=((None, "text"), (1, BAD)), cell="color-text", width=70),
        Column("instance", "Instance", hidden=True),
        Column("job", "Job", hidden=True),
    ],
    queries=[
        query(f"topk(50, max by ({_OF_RECORDS}) ({named(ask.FLEET_BEHIND, 'vm_name')}))"),
        query(f"topk(50, max by ({_OF_RECORDS}) ({named(ask.FLEET_PARKED, 'vm_name')}))"),
        query(f"topk(50, {ask.FLEET_LOST})"),
    ],
    no_value="None on exporters that answer",
)

# -- the board

BOARD: Final = board(
    title="Azure Scheduled Events / Fleet",
    uid=FLEET_UID,
    description="Scheduled events of all VMs. Requires the recording rules in alerts/rules.yml.",
    refresh="30s",
    since="now-6h",
    of_instances=False,
    link=("VM", VM_UID),
    annotations=[
        annotation(
            "Starts", BAD, f"sum by (event_type) ({fleet_recorded(ask.FLEET_STARTS)})", "{{event_type}} started"
        ),
        annotation(
            "Ends",
            GOOD,
            f"sum by (event_type, outcome) ({fleet_recorded(ask.FLEET_ENDS)})",
            "{{event_type}} {{outcome}}",
        ),
    ],
    sections={
        "Now": [
            (
                4,
                [(2, ALL), (4, IN_MAINTENANCE), (4, AHEAD), (4, NEXT), (3, UNWATCHED), (4, TROUBLED), (3, FIRING)],
            )
        ],
        "Alerts and missing data": [(7, [(9, ALERTS), (15, PLACES)])],
        "Scheduled": [(8, [(16, GROUPS), (8, WHEN)])],
        "VMs": [(8, [(14, EVENTS), (10, UNSEEN)])],
        "In this range": [
            (9, [(24, LAST_NIGHT)]),
            (7, [(13, OUTCOMES), (11, INTERRUPTION)]),
            (7, [(24, OVER_TIME)]),
        ],
        "Delivery and agents": [(7, [(14, RECORDS), (10, MODES)])],
    },
)
