"""The board of one VM: its scheduled events, their approval, and the health of its agent."""

from __future__ import annotations

from typing import Final

from dashboards import FLEET_UID, VM_UID
from dashboards import queries as ask
from dashboards.draw import annotation, bars, board, curves, figure, lanes, query, table
from dashboards.panel import (
    BAD,
    COUNTDOWN_CELLS,
    COUNTDOWN_STEPS,
    COUNTDOWN_WORDS,
    DECISION_WORDS,
    EVENT_WORDS,
    GOOD,
    NEUTRAL,
    NO_DATA,
    PURPLE,
    SOON,
    STATE_WORDS,
    STATUS_WORDS,
    UNKNOWN,
    VM_COUNTDOWN_WORDS,
    Column,
    words_for,
)
from dashboards.queries import appeared, growth, increase, metric, rate, vm_event

PER_VM: Final = "{{instance}}"
SHOW_SCALE_SET: Final = (
    f"/d/{FLEET_UID}?${{datasource:queryparam}}&${{job:queryparam}}"
    "&var-scale_set=${__value.raw}&${__url_time_range}"
)

# -- now

_OFF, _DRY_RUN, _ENFORCE = (metric("approval_mode", f'mode="{mode}"') for mode in ("off", "dry-run", "enforce"))
_MODES: Final = f"max by (job, instance) (\n  0 * {_OFF}\n  or 1 * {_DRY_RUN}\n  or 2 * {_ENFORCE}\n)"
_LAST_ANSWER: Final = f"({metric('last_successful_poll_timestamp_seconds')} > 0)"
_STARTS_IN: Final = f"{metric('event_not_before_timestamp_seconds')} - time()"

STATE: Final = figure(
    title="State",
    description="Events of this VM. Purple: unknown, because the exporter is down or has no current data from the "
    "metadata service. Blue: not known yet, because Azure may still be enabling Scheduled Events, or "
    "because there are events and the name of the VM is unknown.",
    queries=[query(ask.VM_STATE, PER_VM)],
    no_value=NO_DATA,
    steps=PURPLE,
    mappings=(STATE_WORDS,),
)
COUNTDOWN: Final = figure(
    title="Starts in",
    description="Time until the earliest NotBefore of an event that names this VM. An approval starts the event "
    "earlier. A dash: no start is known; the panel State shows why.",
    queries=[query(ask.VM_COUNTDOWN, PER_VM)],
    no_value="–",
    unit="dtdhms",
    steps=COUNTDOWN_STEPS,
    mappings=VM_COUNTDOWN_WORDS,
)
LAST_ANSWER: Final = figure(
    title="Last successful poll",
    description="Time since the last successful poll of the metadata service, which is the age of the data in the "
    "other panels.",
    solid=False,
    queries=[query(f"clamp_min(time() - {_LAST_ANSWER}, 0)", PER_VM)],
    no_value="Unknown",
    unit="s",
    steps=((None, UNKNOWN), (0, GOOD), (120, SOON), (300, BAD)),
    decimals=0,
)
MODE: Final = figure(
    title="Approval mode",
    description="Whether this agent approves events: off, dry-run (it decides but sends no approvals), or enforce.",
    solid=False,
    queries=[query(_MODES, PER_VM)],
    no_value=NO_DATA,
    steps=PURPLE,
    mappings=(words_for({0: ("off", "text"), 1: ("dry-run", "text"), 2: ("enforce", NEUTRAL)}),),
)
HOLD: Final = figure(
    title="Hold",
    description="Whether the hold file holds every approval: it exists, or its absence cannot be verified.",
    solid=False,
    queries=[query(metric("approval_held"), PER_VM)],
    no_value=NO_DATA,
    steps=PURPLE,
    mappings=(words_for({0: ("none", "text"), 1: ("held", SOON)}),),
)
EVENTS: Final = table(
    title="Events",
    description="Every event that names this VM. If there is none, the row shows the reason. A row 'unknown' next "
    "to events means that they are the last known ones.",
    columns=[
        Column("event_type", "Type", cell="color-text", mappings=(EVENT_WORDS,), width=150),
        Column("event_status", "Status", cell="color-text", mappings=(STATUS_WORDS,), width=105),
        Column("Value #B", "Starts in", "dtdhms", COUNTDOWN_WORDS, COUNTDOWN_CELLS, "color-text", width=120),
        Column("Value #C", "Announced", "s", width=95),
        Column("Value #D", "VMs", "none", width=55),
        Column("event_source", "Source", width=85),
        Column("Value #E", "First seen", "dateTimeFromNow", width=125),
        Column("Value #A", "Started", "dateTimeFromNow", width=125),
        Column("Value #F", "Approved here", "dateTimeFromNow", width=135),
        Column("instance", "Instance", width=150),
        Column("event_id", "Event"),
    ],
    # In the order of the rows: started events first, then by time of start.
    queries=[
        query(vm_event(f"1000 * {metric('event_started_timestamp_seconds')}")),
        query(f"sort({vm_event(_STARTS_IN)})"),
        query(vm_event(metric("event_advertised_duration_seconds"))),
        query(vm_event(metric("event_resources"))),
        query(vm_event(f"1000 * {metric('event_first_seen_timestamp_seconds')}")),
        query(vm_event(f"1000 * {metric('event_approved_timestamp_seconds')}")),
        query(ask.VM_EVENTS),
        query(ask.VM_SILENT_ROWS),
    ],
    no_value=NO_DATA,
    steps=PURPLE,
)
DECISIONS_NOW: Final = table(
    title="Current decisions",
    description="The current decision on every event of this VM: approve or hold, the reason, and the rule that "
    "matched; approved: Azure accepted this agent's approval. not-scheduled: the event has started, so there is "
    "nothing to approve.",
    columns=[
        Column("event_type", "Type", width=100),
        Column("decision", "Decision", cell="color-text", mappings=(DECISION_WORDS,), width=90),
        Column("reason", "Reason", width=150),
        Column("rule", "Rule", width=150),
        Column("instance", "Instance", width=150),
        Column("event_id", "Event"),
    ],
    queries=[query(ask.VM_DECIDED)],
    no_value="No known event names this VM",
)
APPROVALS: Final = bars(
    title="Approvals sent",
    description="Approvals in this range. Sent; failed: rejected or unanswered; postponed to the next document, "
    "because the document was too old or the final check found a hold; outdated: approved events that "
    "changed so that the rules would now hold them.",
    queries=[
        query(increase("approval_requests_total"), "sent"),
        query(
            f"round(sum({growth('approval_request_failures_total')}))\nor\n0 * {increase('approval_requests_total')}",
            "failed",
        ),
        query(increase("approvals_postponed_total"), "postponed"),
        query(increase("approvals_outdated_total"), "outdated"),
    ],
    no_value=NO_DATA,
    steps=((None, NEUTRAL),),
    decimals=0,
)

# -- in this range

_ATTRIBUTED: Final = metric("observed_interruption_seconds_sum", 'attributed="true"')
# Not increase(): it extrapolates at the edges of its window, and would show 7 s as 9.
_INTERRUPTED: Final = (
    f"sum by (kind) ({_ATTRIBUTED} - {_ATTRIBUTED} offset $__rate_interval\n"
    f"or {_ATTRIBUTED} and {appeared(_ATTRIBUTED, '$__rate_interval')}) > 0"
)
_NOTICE: Final = f"sum by (event_type) ({growth('notice_seconds_sum')})"
_NOTICED: Final = f"(sum by (event_type) ({growth('notice_seconds_count')}) > 0)"
_ABOUT_RULES: Final = 'reason!~"not-scheduled|already-approved|not-this-vm"'
"""Without decisions that don't depend on the rules: the event has started, or doesn't name this VM."""
_DECIDED: Final = growth("approval_decisions_total", _ABOUT_RULES)

TIMELINE: Final = lanes(
    title="Events over time",
    description="One lane for the VM and one for each event: scheduled, then started. Gaps are times without data.",
    queries=[query(ask.VM_STATE, PER_VM), query(ask.VM_EVENT_LANES, "{{event_type}} {{event_id}}")],
    no_value=NO_DATA,
    steps=PURPLE,
    mappings=(STATE_WORDS,),
)
NOTICE: Final = bars(
    title="Notice",
    description="Average time between the first sighting of an event and its NotBefore in this range, by type. "
    "Only events that arrived during uninterrupted polling count.",
    queries=[query(f"{_NOTICE}\n/\n{_NOTICED}", "{{event_type}}")],
    no_value="None measured in this range",
    unit="s",
    steps=((None, "text"), (0, BAD), (60, SOON), (600, GOOD)),
)
DECISIONS: Final = table(
    title="Decisions",
    description="Decisions on events in this range: approve or hold, the reason, and the rule that matched.",
    columns=[
        Column("event_type", "Type", width=90),
        Column("decision", "Decision", width=85),
        Column("reason", "Reason", width=115),
        Column("rule", "Rule", width=115),
        Column("Value", "Times", "none", width=60),
    ],
    queries=[query(f"round(sum by (event_type, decision, reason, rule) ({_DECIDED})) > 0")],
    no_value="None in this range",
)
INTERRUPTION: Final = curves(
    title="Interruption: observed and announced",
    description="Bars: interruption that this VM observed during an event, by detector (a clock step, or a stall "
    "without CPU). Line: the duration that the started event announced. An interruption can happen "
    "without being observed.",
    points=True,
    queries=[query(_INTERRUPTED, "observed ({{kind}})"), query(ask.VM_ANNOUNCED, "announced ({{event_type}})")],
    no_value="None observed",
    unit="s",
    steps=((None, NEUTRAL),),
)

# -- polling and delivery

_POLL_BUCKETS: Final = f"sum by (le) (rate({metric('poll_duration_seconds_bucket')}[$__rate_interval]))"
_OLDEST: Final = f"time() - ({metric('outbox_oldest_record_timestamp_seconds')} > 0) and {metric('outbox_records')} > 0"

POLLS: Final = curves(
    title="Polls",
    description="Polls of the metadata service per second, and failed polls by reason.",
    colours={"all": GOOD, "failed": BAD},
    queries=[
        query(rate("polls_total", "job"), "all"),
        query(f"{rate('poll_failures_total', 'reason')} > 0", "failed: {{reason}}"),
    ],
    no_value=NO_DATA,
    unit="reqps",
)
POLL_DURATION: Final = curves(
    title="Poll duration",
    description="Response time of the metadata service: the median (p50) and the 99th percentile (p99).",
    queries=[
        query(f"histogram_quantile(0.5, {_POLL_BUCKETS})", "p50"),
        query(f"histogram_quantile(0.99, {_POLL_BUCKETS})", "p99"),
    ],
    no_value=NO_DATA,
    unit="s",
    steps=((None, GOOD), (5, BAD)),
)
WAITING: Final = curves(
    title="Records waiting",
    description="Records in the outbox that a destination has not received yet. Delivery is retried.",
    queries=[query(f"sum by (destination) ({metric('outbox_records')})", "{{destination}}")],
    no_value=NO_DATA,
    steps=((None, GOOD), (1, SOON)),
    decimals=0,
)
ALL_EVENTS: Final = figure(
    title="Events, all VMs",
    description="All events in the document of this VM, including those of other VMs in the same scale set or "
    "availability set.",
    solid=False,
    queries=[query(f"{metric('document_events')} and on (job, instance) {metric('up')} == 1", PER_VM)],
    no_value="Unknown",
    steps=((None, UNKNOWN), (0, "text")),
    decimals=0,
)
DESTINATIONS: Final = table(
    title="Destinations",
    description="For each destination: records waiting now, and how long the oldest has waited; records sent and "
    "lost, and failed sends, in this range; rejected records that are parked.",
    columns=[
        Column("destination", "Destination", width=105),
        Column("Value #A", "Waiting", "none", width=75),
        Column("Value #B", "Oldest", "s", width=95, steps=((None, "text"), (60, SOON), (600, BAD)), cell="color-text"),
        Column("Value #C", "Sent", "none", width=70),
        Column("Value #D", "Failed sends", "none", width=110, steps=((None, "text"), (1, SOON)), cell="color-text"),
        Column("Value #E", "Lost", "none", width=65, steps=((None, "text"), (1, BAD)), cell="color-text"),
        Column("Value #F", "Rejected", "none", width=80, steps=((None, "text"), (1, BAD)), cell="color-text"),
    ],
    queries=[
        query(f"sum by (destination) ({metric('outbox_records')})"),
        query(f"max by (destination) ({_OLDEST})"),
        query(increase("destination_records_sent_total", "destination")),
        query(increase("destination_send_failures_total", "destination")),
        query(increase("destination_records_dropped_total", "destination")),
        query(f"sum by (destination) ({metric('destination_records_parked')})"),
    ],
    no_value=NO_DATA,
)
OUTBOX: Final = figure(
    title="Outbox",
    description="Used share of the outbox. Records wait there until every destination has received them. When it "
    "is full, the oldest are dropped.",
    solid=False,
    queries=[query(f"{metric('outbox_bytes')} / ({metric('outbox_capacity_bytes')} > 0)", PER_VM)],
    no_value=NO_DATA,
    unit="percentunit",
    steps=((None, UNKNOWN), (0, GOOD), (0.5, SOON), (0.8, BAD)),
    decimals=0,
)
WRITABLE: Final = figure(
    title="Outbox writes",
    description="Whether the exporter can write its outbox. While it cannot, it approves no event, and new "
    "records wait in memory.",
    solid=False,
    queries=[query(metric("outbox_writable"), PER_VM)],
    no_value=NO_DATA,
    steps=PURPLE,
    mappings=(words_for({0: ("failing", BAD), 1: ("working", GOOD)}),),
)
MACHINE: Final = table(
    title="This VM",
    description="Properties of the VM from the metadata service.",
    columns=[
        Column("vm_name", "VM"),
        Column("vmss_name", "Scale set", link=SHOW_SCALE_SET, link_title="Show this scale set"),
        Column("location", "Region", width=110),
        Column("zone", "Zone", width=60),
        Column("vm_size", "Size", width=140),
        Column("priority", "Priority", width=80),
        *(Column(tag, tag.replace("_", " ").capitalize(), width=140) for tag in ask.TAGS),
        Column("resource_group", "Resource group"),
        Column("subscription_id", "Subscription", width=290),
        Column("node", "Node", width=68),
    ],
    queries=[query(metric("vm_info"))],
    no_value="Unknown",
)

# -- the board

_STARTS: Final = (
    f"1000 * {metric('event_started_timestamp_seconds')} * on (job, instance, event_id) group_left (event_type) "
    f"{metric('event_info')}"
)
_ENDS: Final = f"sum by (event_type, outcome) (increase({metric('events_closed_total')}[$__rate_interval])) > 0"

BOARD: Final = board(
    title="Azure Scheduled Events / VM",
    uid=VM_UID,
    description="Scheduled events of this VM, their approval, and the health of its agent.",
    refresh="10s",
    since="now-6h",
    of_instances=True,
    link=("Fleet", FLEET_UID),
    annotations=[
        annotation("Starts", BAD, _STARTS, "{{event_type}} started", value_is_time=True),
        annotation("Ends", GOOD, _ENDS, "{{event_type}} {{outcome}}"),
    ],
    sections={
        "Now": [
            (5, [(7, STATE), (6, COUNTDOWN), (4, LAST_ANSWER), (4, MODE), (3, HOLD)]),
            (7, [(24, EVENTS)]),
            (6, [(16, DECISIONS_NOW), (8, APPROVALS)]),
        ],
        "In this range": [(6, [(24, TIMELINE)]), (8, [(6, NOTICE), (8, DECISIONS), (10, INTERRUPTION)])],
        "Polling and delivery": [
            (7, [(7, POLLS), (7, POLL_DURATION), (7, WAITING), (3, ALL_EVENTS)]),
            (6, [(16, DESTINATIONS), (4, OUTBOX), (4, WRITABLE)]),
            (4, [(24, MACHINE)]),
        ],
    },
)
