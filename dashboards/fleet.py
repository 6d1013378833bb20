"""The board of many VMs: what is coming, what is on, and who sees nothing. Made for a thousand."""

from __future__ import annotations

from typing import Final

from dashboards import queries as ask
from dashboards.board import FLEET_UID, VM_UID, Annotation, Board, Link, Row, Section
from dashboards.panel import (
    ALARMING,
    BAD,
    CAREFUL,
    COUNTDOWN_CELLS,
    COUNTDOWN_STEPS,
    COUNTDOWN_WORDS,
    EVENT_WORDS,
    GOOD,
    NEUTRAL,
    NO_RULES,
    NOBODY,
    PURPLE,
    SIGHT_WORDS,
    SOON,
    STATUS_WORDS,
    UNKNOWN,
    Bars,
    Column,
    Curves,
    Figure,
    Panel,
    Query,
    Table,
    word_for_nothing,
)
from dashboards.queries import IS_SCHEDULED, IS_STARTED, fleet_events, fleet_silent_row, metric, worded

SHOW_VM: Final = (
    f"/d/{VM_UID}?${{datasource:queryparam}}&var-job=${{__data.fields.Job}}"
    "&var-instance=${__data.fields.Instance}&${__url_time_range}"
)
STANDALONE: Final = (word_for_nothing("no scale set"),)

# -- now

IN_MAINTENANCE: Final = Panel(
    title="VMs in maintenance",
    description="VMs with an event under way. Only VMs that are seen count.",
    view=Figure(),
    queries=[Query(ask.vms(fleet_events(IS_STARTED)), "in maintenance")],
    no_value=NOBODY,
    steps=ALARMING,
    decimals=0,
)
AHEAD: Final = Panel(
    title="VMs scheduled",
    description="VMs that a scheduled event names. Only VMs that are seen count.",
    view=Figure(),
    queries=[Query(ask.vms(fleet_events(IS_SCHEDULED)), "ahead")],
    no_value=NOBODY,
    steps=CAREFUL,
    decimals=0,
)
NEXT: Final = Panel(
    title="Next start in",
    description="Time until the earliest NotBefore of all.",
    view=Figure(),
    queries=[Query(ask.FLEET_NEXT, "next")],
    no_value=NOBODY,
    unit="dtdhms",
    steps=COUNTDOWN_STEPS,
    mappings=COUNTDOWN_WORDS,
)
BLIND: Final = Panel(
    title="Blind or down",
    description="How many VMs nobody watches: the exporter does not answer, or the metadata service does not answer "
    "it.",
    view=Figure(),
    queries=[Query(ask.exporters(">= 2"), "blind")],
    no_value=NO_RULES,
    steps=ALARMING,
    decimals=0,
)
WARMING: Final = Panel(
    title="Not known yet",
    description="Exporters whose VM Azure may still be switching the service on for: five minutes after the first "
    "poll, or until an event was seen.",
    view=Figure(),
    queries=[Query(ask.exporters("== 1"), "not known yet")],
    no_value=NO_RULES,
    steps=((None, UNKNOWN), (0, GOOD), (1, NEUTRAL)),
    decimals=0,
)
BEHIND: Final = Panel(
    title="Outboxes behind",
    description="VMs with a record that has waited for its destination for more than ten minutes.",
    view=Figure(),
    queries=[
        Query(f"count(count by (job, instance) ({ask.FLEET_BEHIND}))\nor\n0 * count({ask.FLEET_SIGHT} < 3)", "behind")
    ],
    no_value=NO_RULES,
    steps=ALARMING,
    decimals=0,
)

# -- coming

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
    return ask.vms(f"({ask.FLEET_NOT_BEFORE}) - time(){lower} < {high}")


GROUPS: Final = Panel(
    title="What is coming, by scale set and type",
    description="Scheduled events of all VMs: how many VMs they name, how many events there are, and when they may "
    "start.",
    view=Table(
        [
            Column("vmss_name", "Scale set", mappings=STANDALONE, width=170),
            Column("event_type", "Type", cell="color-text", mappings=(EVENT_WORDS,), width=240),
            Column("event_source", "Source", width=95),
            Column("Value #A", "VMs", "none", width=80),
            Column("Value #B", "Events", "none", width=80),
            Column("Value #C", "First start in", "dtdhms", COUNTDOWN_WORDS, COUNTDOWN_CELLS, "color-text", width=130),
            Column("Value #D", "Last start in", "dtdhms", COUNTDOWN_WORDS, width=130),
        ]
    ),
    queries=[
        Query(f"count by ({_GROUP}) (count by ({_GROUP}, job, instance) ({_SCHEDULED}))"),
        Query(f"count by ({_GROUP}) (count by ({_GROUP}, event_id) ({_SCHEDULED}))"),
        Query(f"min by ({_GROUP}) ({ask.FLEET_NOT_BEFORE}) - time()"),
        Query(f"max by ({_GROUP}) ({ask.FLEET_NOT_BEFORE}) - time()"),
        Query(fleet_silent_row(_SCHEDULED, vmss_name="–", event_source="–")),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
)
WHEN: Final = Panel(
    title="When",
    description="How many VMs have an event whose NotBefore falls into each span from now.",
    view=Bars(),
    queries=[Query(_between(low, high), text) for low, high, text in _SPANS],
    no_value=NOBODY,
    steps=CAREFUL,
    decimals=0,
)

# -- which VMs

_EVENT_LABELS: Final = ("vm_name", "vmss_name", "event_status", "event_source", "instance", "job", "event_id")
_SHOWN: Final = "job, instance, vm_name, vmss_name, event_id, event_type, event_source, event_status"
_UNSEEN: Final = f"topk(100, max by (job, instance, vm_name, vmss_name) ({ask.FLEET_SIGHT} > 0))"
_ALL_SEEN: Final = worded(
    f"0 * (count({ask.FLEET_SIGHT}) unless count({ask.FLEET_SIGHT} > 0))",
    vm_name="every VM is seen",
    vmss_name="–",
    instance="–",
    job="–",
)
_AGE: Final = f"time() - ({metric('last_successful_poll_timestamp_seconds')} > 0)"

EVENTS: Final = Panel(
    title="VMs with an event",
    description="Up to a hundred VMs, those under way first, then by time of start. A name leads to the VM's own "
    "dashboard.",
    view=Table(
        [
            Column("vm_name", "VM", link=SHOW_VM, width=170),
            Column("vmss_name", "Scale set", mappings=STANDALONE, width=120),
            Column("event_type", "Type", cell="color-text", mappings=(EVENT_WORDS,), width=150),
            Column("event_status", "Status", cell="color-text", mappings=(STATUS_WORDS,), width=105),
            Column("event_source", "Source", width=90),
            Column("Value #B", "Starts in", "dtdhms", COUNTDOWN_WORDS, COUNTDOWN_CELLS, "color-text", width=115),
            Column("instance", "Instance"),
            Column("job", "Job"),
        ]
    ),
    queries=[
        Query(f"topk(100, max by ({_SHOWN}) ({fleet_events(IS_STARTED)}))"),
        Query(f"bottomk(100, max by ({_SHOWN}) ({ask.FLEET_NOT_BEFORE}) - time())"),
        Query(fleet_silent_row(fleet_events(), **dict.fromkeys(_EVENT_LABELS, "–"))),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
)
UNSEEN: Final = Panel(
    title="VMs that nobody sees",
    description="Exporters that are down, blind, or still warming up; and for how long the metadata service has not "
    "answered.",
    view=Table(
        [
            Column("vm_name", "VM", link=SHOW_VM, width=150),
            Column("vmss_name", "Scale set", mappings=STANDALONE, width=110),
            Column("Value #A", "Sight", mappings=(SIGHT_WORDS,), cell="color-text", width=115),
            Column("Value #B", "Last good answer", "s", width=145),
            Column("instance", "Instance"),
            Column("job", "Job"),
        ]
    ),
    queries=[
        Query(f"{_UNSEEN}\nor\n{_ALL_SEEN}"),
        Query(f"{_UNSEEN} * 0 + on (job, instance) group_left () ({_AGE})"),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
)

# -- over time

_EVENTS_PER_VM: Final = f"count by (job, instance, event_type, event_status) ({fleet_events()})"
_WEEK: Final = f"sum by (event_type) (sum_over_time({ask.FLEET_STARTS}[7d]))"
_NO_WEEK: Final = worded(f"(0 * (count({ask.FLEET_SIGHT}) unless count({_WEEK})))", event_type="none")
_APPROVERS: Final = {
    "us": "this agent",
    "not_us": "somebody else",
    "time": "nobody: NotBefore passed",
    "unknown": "not known",
}


def _started_by(word: str) -> str:
    starts = f'{ask.FLEET_STARTS.removesuffix("}")}, approved_by="{word}"}}'
    return f"sum(sum_over_time({starts}[$__range]))\nor\n0 * count({ask.FLEET_SIGHT})"


OVER_TIME: Final = Panel(
    title="VMs with an event over time",
    description="How many VMs have an event, by type and status. Purple: VMs that nobody sees, they may have one too.",
    view=Curves(colours={"not known": UNKNOWN}),
    queries=[
        Query(f"count by (event_type, event_status) ({_EVENTS_PER_VM})", "{{event_type}} {{event_status}}"),
        Query(ask.exporters("> 0"), "not known"),
    ],
    no_value=NO_RULES,
    steps=PURPLE,
    decimals=0,
)
WEEKLY: Final = Panel(
    title="Maintenance per week",
    description="Starts in the seven days before each moment, by type. An event of five VMs counts five times.",
    view=Curves(stacked=True),
    queries=[Query(f"{_WEEK}\nor\n{_NO_WEEK}", "{{event_type}}", interval="1h")],
    no_value=NO_RULES,
    steps=((None, NEUTRAL),),
    decimals=0,
)
APPROVED: Final = Panel(
    title="Who approved",
    description="How the maintenance of this range came to start, as far as it was seen. 'Somebody else' includes the "
    "other VMs of an event.",
    view=Bars(),
    queries=[Query(_started_by(word), text) for word, text in _APPROVERS.items()],
    no_value=NO_RULES,
    steps=((None, NEUTRAL),),
    decimals=0,
)
EXPORTERS: Final = Panel(
    title="VMs that nobody sees, over time",
    description="How many exporters are not known yet, blind, or down.",
    view=Curves(colours={"not known yet": NEUTRAL, "blind": UNKNOWN, "down": BAD}),
    queries=[
        Query(ask.exporters("== 1"), "not known yet"),
        Query(ask.exporters("== 2"), "blind"),
        Query(ask.exporters("== 3"), "down"),
    ],
    no_value=NO_RULES,
    decimals=0,
)
SLOWEST: Final = Panel(
    title="Slowest destinations",
    description="Destinations with a record that has waited for more than ten minutes, the longest waits first, up to "
    "fifty.",
    view=Table(
        [
            Column("instance", "Instance", link=SHOW_VM, width=180),
            Column("destination", "Destination", width=110),
            Column(
                "Value",
                "Oldest record",
                "s",
                steps=((None, "text"), (600, SOON), (3600, BAD)),
                cell="color-text",
                width=120,
            ),
            Column("job", "Job"),
        ]
    ),
    queries=[Query(f"topk(50, max by (job, instance, destination) ({ask.FLEET_BEHIND}))")],
    no_value="None is behind, as far as exporters answer",
)

# -- the board

BOARD: Final = Board(
    title="Azure Scheduled Events / Fleet",
    uid=FLEET_UID,
    description="What Azure is about to do to all VMs. Needs the recording rules of alerts/rules.yml.",
    refresh="30s",
    since="now-6h",
    every_instance=True,
    link=Link("VM", VM_UID, "${datasource:queryparam}&${job:queryparam}"),
    annotations=[
        Annotation("Starts", BAD, f"sum by (event_type) ({ask.FLEET_STARTS})", "{{event_type}} started"),
        Annotation("Ends", GOOD, f"sum by (event_type, outcome) ({ask.FLEET_ENDS})", "{{event_type}} {{outcome}}"),
    ],
    sections=[
        Section(
            "Now",
            [Row(5, [(4, IN_MAINTENANCE), (4, AHEAD), (5, NEXT), (4, BLIND), (3, WARMING), (4, BEHIND)])],
        ),
        Section("Coming", [Row(9, [(16, GROUPS), (8, WHEN)])]),
        Section("Which VMs", [Row(9, [(15, EVENTS), (9, UNSEEN)])]),
        Section(
            "Over time",
            [Row(8, [(12, OVER_TIME), (12, WEEKLY)]), Row(8, [(7, APPROVED), (9, EXPORTERS), (8, SLOWEST)])],
        ),
    ],
)
