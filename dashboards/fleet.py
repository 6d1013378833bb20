"""The dashboard of many VMs: what is coming, what is on, and who sees nothing. Made for a thousand."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as build

from dashboards import queries as ask
from dashboards import texts
from dashboards.frame import FLEET_UID, VM_UID, Section, annotation, dashboard, link, place
from dashboards.panels import (
    BAD,
    COUNTDOWN_CELLS,
    COUNTDOWN_WORDS,
    EVENT_WORDS,
    GOOD,
    NEUTRAL,
    SIGHT_WORDS,
    SOON,
    STATUS_WORDS,
    UNKNOWN,
    AnyPanel,
    Column,
    Line,
    Query,
    bars,
    coloured,
    curves,
    figure,
    rows,
    word_for_nothing,
)
from dashboards.queries import IS_SCHEDULED, IS_STARTED, fleet_events, fleet_silent_row, metric, worded

SHOW_VM: Final = (
    f"/d/{VM_UID}?${{datasource:queryparam}}&var-job=${{__data.fields.Job}}"
    "&var-instance=${__data.fields.Instance}&${__url_time_range}"
)
STANDALONE: Final = (word_for_nothing("no scale set"),)
SPANS: Final = (
    (0, 900, "in 15 minutes"),
    (900, 3600, "in an hour"),
    (3600, 6 * 3600, "in 6 hours"),
    (6 * 3600, 86400, "in a day"),
    (86400, 10**9, "later"),
)
APPROVERS: Final = {
    "us": "this agent",
    "not_us": "somebody else",
    "time": "nobody: NotBefore passed",
    "unknown": "not known",
}
GROUP: Final = "vmss_name, event_type, event_source"


def _now() -> Line:
    return [
        (4, figure(texts.FLEET_STARTED, Query(ask.vms(fleet_events(IS_STARTED)), "in maintenance"))),
        (4, figure(texts.FLEET_AHEAD, Query(ask.vms(fleet_events(IS_SCHEDULED)), "ahead"))),
        (5, figure(texts.FLEET_SOON, Query(ask.FLEET_NEXT, "next"))),
        (4, figure(texts.FLEET_BLIND, Query(ask.exporters(">= 2"), "blind"))),
        (3, figure(texts.FLEET_WARMING, Query(ask.exporters("== 1"), "not known yet"))),
        (
            4,
            figure(
                texts.FLEET_BEHIND,
                Query(
                    f"count(count by (job, instance) ({ask.FLEET_BEHIND}))\nor\n0 * count({ask.FLEET_SIGHT} < 3)",
                    "behind",
                ),
            ),
        ),
    ]


def _coming() -> Line:
    scheduled, not_before = fleet_events(IS_SCHEDULED), ask.FLEET_NOT_BEFORE
    columns = [
        Column("vmss_name", "Scale set", mappings=STANDALONE, width=170),
        Column("event_type", "Type", cell="color-text", mappings=(EVENT_WORDS,), width=240),
        Column("event_source", "Source", width=95),
        Column("Value #A", "VMs", "none", width=80),
        Column("Value #B", "Events", "none", width=80),
        Column("Value #C", "First start in", "dtdhms", COUNTDOWN_WORDS, COUNTDOWN_CELLS, "color-text", width=130),
        Column("Value #D", "Last start in", "dtdhms", COUNTDOWN_WORDS, width=130),
    ]
    table = rows(
        texts.FLEET_GROUPS,
        columns,
        Query(f"count by ({GROUP}) (count by ({GROUP}, job, instance) ({scheduled}))"),
        Query(f"count by ({GROUP}) (count by ({GROUP}, event_id) ({scheduled}))"),
        Query(f"min by ({GROUP}) ({not_before}) - time()"),
        Query(f"max by ({GROUP}) ({not_before}) - time()"),
        Query(fleet_silent_row(scheduled, vmss_name="–", event_source="–")),
    )
    return [(16, table), (8, bars(texts.FLEET_WHEN, *(Query(_between(low, high), text) for low, high, text in SPANS)))]


def _between(low: int, high: int) -> str:
    lower = "" if low == 0 else f" >= {low}"
    return ask.vms(f"({ask.FLEET_NOT_BEFORE}) - time(){lower} < {high}")


def _vms() -> Line:
    columns = [
        Column("vm_name", "VM", link=SHOW_VM, width=170),
        Column("vmss_name", "Scale set", mappings=STANDALONE, width=120),
        Column("event_type", "Type", cell="color-text", mappings=(EVENT_WORDS,), width=150),
        Column("event_status", "Status", cell="color-text", mappings=(STATUS_WORDS,), width=105),
        Column("event_source", "Source", width=90),
        Column("Value #B", "Starts in", "dtdhms", COUNTDOWN_WORDS, COUNTDOWN_CELLS, "color-text", width=115),
        Column("instance", "Instance"),
        Column("job", "Job"),
    ]
    labels = ("vm_name", "vmss_name", "event_status", "event_source", "instance", "job", "event_id")
    blank = dict.fromkeys(labels, "–")
    shown = "job, instance, vm_name, vmss_name, event_id, event_type, event_source, event_status"
    table = rows(
        texts.FLEET_EVENTS,
        columns,
        Query(f"topk(100, max by ({shown}) ({fleet_events(IS_STARTED)}))"),
        Query(f"bottomk(100, max by ({shown}) ({ask.FLEET_NOT_BEFORE}) - time())"),
        Query(fleet_silent_row(fleet_events(), **blank)),
    )
    return [(15, table), (9, _unseen())]


def _unseen() -> AnyPanel:
    columns = [
        Column("vm_name", "VM", link=SHOW_VM, width=150),
        Column("vmss_name", "Scale set", mappings=STANDALONE, width=110),
        Column("Value #A", "Sight", mappings=(SIGHT_WORDS,), cell="color-text", width=115),
        Column("Value #B", "Last good answer", "s", width=145),
        Column("instance", "Instance"),
        Column("job", "Job"),
    ]
    named = "job, instance, vm_name, vmss_name"
    unseen = f"topk(100, max by ({named}) ({ask.FLEET_SIGHT} > 0))"
    age = f"time() - ({metric('last_successful_poll_timestamp_seconds')} > 0)"
    silent = {"vm_name": "every VM is seen", "vmss_name": "–", "instance": "–", "job": "–"}
    all_seen = worded(f"0 * (count({ask.FLEET_SIGHT}) unless count({ask.FLEET_SIGHT} > 0))", **silent)
    return rows(
        texts.FLEET_UNSEEN,
        columns,
        Query(f"{unseen}\nor\n{all_seen}"),
        Query(f"{unseen} * 0 + on (job, instance) group_left () ({age})"),
    )


def _trends() -> Line:
    per_vm = f"count by (job, instance, event_type, event_status) ({fleet_events()})"
    lines = curves(
        texts.FLEET_OVER_TIME,
        Query(f"count by (event_type, event_status) ({per_vm})", "{{event_type}} {{event_status}}"),
        Query(ask.exporters("> 0"), "not known"),
    )
    week = f"sum by (event_type) (sum_over_time({ask.FLEET_STARTS}[7d]))"
    none = worded(f"(0 * (count({ask.FLEET_SIGHT}) unless count({week})))", event_type="none")
    weeks = Query(f"{week}\nor\n{none}", "{{event_type}}", interval="1h")
    return [
        (12, coloured(lines, not_known=UNKNOWN)),
        (12, curves(texts.FLEET_WEEKLY, weeks, stacked=True)),
    ]


def _started_by(word: str) -> str:
    starts = f'{ask.FLEET_STARTS.removesuffix("}")}, approved_by="{word}"}}'
    return f"sum(sum_over_time({starts}[$__range]))\nor\n0 * count({ask.FLEET_SIGHT})"


def _causes() -> Line:
    who = [Query(_started_by(word), text) for word, text in APPROVERS.items()]
    sights = {"not known yet": "== 1", "blind": "== 2", "down": "== 3"}
    unseen = curves(texts.FLEET_EXPORTERS, *(Query(ask.exporters(sight), name) for name, sight in sights.items()))
    late = f"topk(50, max by (job, instance, destination) ({ask.FLEET_BEHIND}))"
    waits = ((None, "text"), (600, SOON), (3600, BAD))
    columns = [
        Column("instance", "Instance", link=SHOW_VM, width=180),
        Column("destination", "Destination", width=110),
        Column("Value", "Oldest record", "s", steps=waits, cell="color-text", width=120),
        Column("job", "Job"),
    ]
    return [
        (7, bars(texts.FLEET_APPROVED, *who)),
        (9, coloured(unseen, not_known_yet=NEUTRAL, blind=UNKNOWN, down=BAD)),
        (8, rows(texts.FLEET_OUTBOXES, columns, Query(late))),
    ]


def build_fleet() -> build.Dashboard:
    """The dashboard of all VMs."""
    built = dashboard(
        "Azure Scheduled Events / Fleet",
        FLEET_UID,
        "What Azure is about to do to all VMs. Needs the recording rules of alerts/rules.yml.",
        every_instance=True,
        refresh="30s",
        since="now-6h",
    )
    built = built.link(link("VM", VM_UID, "${datasource:queryparam}&${job:queryparam}"))
    starts, ends = f"sum by (event_type) ({ask.FLEET_STARTS})", f"sum by (event_type, outcome) ({ask.FLEET_ENDS})"
    built = built.annotation(annotation("Starts", BAD, starts, "{{event_type}} started"))
    built = built.annotation(annotation("Ends", GOOD, ends, "{{event_type}} {{outcome}}"))
    sections = [
        Section("Now", [(5, _now())]),
        Section("Coming", [(9, _coming())]),
        Section("Which VMs", [(9, _vms())]),
        Section("Over time", [(8, _trends()), (8, _causes())]),
    ]
    return place(built, sections)
