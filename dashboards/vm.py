"""The dashboard of one VM: what Azure is about to do to it, and whether anybody would know."""

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
    SOON,
    STATUS_WORDS,
    AnyPanel,
    Column,
    Line,
    Query,
    bars,
    coloured,
    curves,
    figure,
    lanes,
    rows,
)
from dashboards.queries import appeared, growth, increase, metric, rate, vm_event

PER_VM: Final = "{{instance}}"
ENFORCE, DRY_RUN, OFF = 'mode="enforce"', 'mode="dry-run"', 'mode="off"'
NEWS: Final = 'reason!~"not-scheduled|already-approved|not-this-vm"'
"""Decisions that say nothing about the rules: the event runs already, or is a neighbour's."""

DURING_AN_EVENT: Final = 'attributed="true"'
NOT_BEFORE: Final = "event_not_before_timestamp_seconds"
FELT: Final = "observed_interruption_seconds_sum"


def _state() -> Line:
    modes = (
        f"max by (job, instance) (\n  0 * {metric('approval_mode', OFF)}\n"
        f"  or 1 * {metric('approval_mode', DRY_RUN)}\n  or 2 * {metric('approval_mode', ENFORCE)}\n)"
    )
    answered = f"({metric('last_successful_poll_timestamp_seconds')} > 0)"
    return [
        (7, figure(texts.VM_STATE, Query(ask.VM_STATE, PER_VM))),
        (6, figure(texts.VM_COUNTDOWN, Query(ask.VM_COUNTDOWN, PER_VM))),
        (4, figure(texts.VM_AGE, Query(f"clamp_min(time() - {answered}, 0)", PER_VM), solid=False)),
        (4, figure(texts.VM_MODE, Query(modes, PER_VM), solid=False)),
        (3, figure(texts.VM_HOLD, Query(metric("approval_held"), PER_VM), solid=False)),
    ]


def _events() -> AnyPanel:
    columns = [
        Column("event_type", "Type", cell="color-text", mappings=(EVENT_WORDS,), width=150),
        Column("event_status", "Status", cell="color-text", mappings=(STATUS_WORDS,), width=105),
        Column("Value #B", "Starts in", "dtdhms", COUNTDOWN_WORDS, COUNTDOWN_CELLS, "color-text", width=120),
        Column("Value #C", "Announced", "s", width=95),
        Column("Value #D", "VMs", "none", width=55),
        Column("event_source", "Source", width=85),
        Column("Value #E", "First seen", "dateTimeFromNow", width=125),
        Column("Value #A", "Started", "dateTimeFromNow", width=125),
        Column("Value #F", "Approved by us", "dateTimeFromNow", width=135),
        Column("instance", "Instance", width=150),
        Column("event_id", "Event"),
    ]
    # In the order of the rows: what is under way, then what starts soonest.
    return rows(
        texts.VM_EVENTS,
        columns,
        Query(vm_event(f"1000 * {metric('event_started_timestamp_seconds')}")),
        Query(f"sort({vm_event(f'{metric(NOT_BEFORE)} - time()')})"),
        Query(vm_event(metric("event_advertised_duration_seconds"))),
        Query(vm_event(metric("event_resources"))),
        Query(vm_event(f"1000 * {metric('event_first_seen_timestamp_seconds')}")),
        Query(vm_event(f"1000 * {metric('event_approved_timestamp_seconds')}")),
        Query(ask.VM_EVENTS),
        Query(ask.VM_SILENT_ROWS),
    )


def _decisions() -> Line:
    columns = [
        Column("event_type", "Type", width=100),
        Column("decision", "Decision", width=90),
        Column("reason", "Reason", width=150),
        Column("rule", "Rule", width=150),
        Column("instance", "Instance", width=150),
        Column("event_id", "Event"),
    ]
    sent = {
        "sent": "approval_requests_total",
        "failed": "approval_request_failures_total",
        "postponed": "approvals_postponed_total",
        "outdated": "approvals_outdated_total",
    }
    requests = f"increase({metric('approval_requests_total')}[$__range])"
    counts = {word: f"round(sum(increase({metric(name)}[$__range])))" for word, name in sent.items()}
    counts["failed"] = f"round(sum({growth('approval_request_failures_total')}))\nor\n0 * sum({requests})"
    return [
        (16, rows(texts.VM_DECISIONS_NOW, columns, Query(ask.VM_DECIDED))),
        (8, bars(texts.VM_APPROVALS, *(Query(expr, word) for word, expr in counts.items()))),
    ]


def _timeline() -> AnyPanel:
    return lanes(
        texts.VM_TIMELINE, Query(ask.VM_STATE, PER_VM), Query(ask.VM_EVENT_LANES, "{{event_type}} {{event_id}}")
    )


def _story() -> Line:
    given = f"sum by (event_type) ({growth('notice_seconds_sum')})"
    measured = f"(sum by (event_type) ({growth('notice_seconds_count')}) > 0)"
    columns = [
        Column("event_type", "Type", width=90),
        Column("decision", "Decision", width=85),
        Column("reason", "Reason", width=115),
        Column("rule", "Rule", width=115),
        Column("Value", "Times", "none", width=60),
    ]
    decided = f"round(sum by (event_type, decision, reason, rule) ({growth('approval_decisions_total', NEWS)}))"
    # Not increase(): it guesses at the edges of its window, and 7 s would be shown as 9.
    total = metric(FELT, DURING_AN_EVENT)
    first = f"{total} and {appeared(total, '$__rate_interval')}"
    moments = f"sum by (kind) ({total} - {total} offset $__rate_interval\nor {first}) > 0"
    return [
        (6, bars(texts.VM_NOTICE, Query(f"{given}\n/\n{measured}", "{{event_type}}"))),
        (8, rows(texts.VM_DECISIONS, columns, Query(f"{decided} > 0"))),
        (
            10,
            curves(
                texts.VM_FELT,
                Query(moments, "felt ({{kind}})"),
                Query(ask.VM_ANNOUNCED, "announced ({{event_type}})"),
                points=True,
            ),
        ),
    ]


def _health() -> Line:
    buckets = f"sum by (le) (rate({metric('poll_duration_seconds_bucket')}[$__rate_interval]))"
    seen = f"{metric('document_events')} and on (job, instance) {metric('up')} == 1"
    return [
        (
            7,
            coloured(
                curves(
                    texts.VM_POLLS,
                    Query(rate("polls_total", "job"), "all"),
                    Query(f"{rate('poll_failures_total', 'reason')} > 0", "failed: {{reason}}"),
                ),
                all=GOOD,
                failed=BAD,
            ),
        ),
        (
            7,
            curves(
                texts.VM_DURATION,
                Query(f"histogram_quantile(0.5, {buckets})", "median"),
                Query(f"histogram_quantile(0.99, {buckets})", "99 of 100 below"),
            ),
        ),
        (7, curves(texts.VM_WAITING, Query(f"sum by (destination) ({metric('outbox_records')})", "{{destination}}"))),
        (3, figure(texts.VM_DOCUMENT, Query(seen, PER_VM), solid=False)),
    ]


def _plumbing() -> Line:
    alarming = ((None, "text"), (1, BAD))
    late = ((None, "text"), (60, SOON), (600, BAD))
    columns = [
        Column("destination", "Destination", width=105),
        Column("Value #A", "Waiting", "none", width=75),
        Column("Value #B", "Oldest", "s", width=95, steps=late, cell="color-text"),
        Column("Value #C", "Sent", "none", width=70),
        Column("Value #D", "Failed sends", "none", width=110, steps=((None, "text"), (1, SOON)), cell="color-text"),
        Column("Value #E", "Lost", "none", width=65, steps=alarming, cell="color-text"),
        Column("Value #F", "Refused", "none", width=75, steps=alarming, cell="color-text"),
    ]
    oldest = f"time() - ({metric('outbox_oldest_record_timestamp_seconds')} > 0) and {metric('outbox_records')} > 0"
    table = rows(
        texts.VM_DESTINATIONS,
        columns,
        Query(f"sum by (destination) ({metric('outbox_records')})"),
        Query(f"max by (destination) ({oldest})"),
        Query(increase("destination_records_sent_total", "destination")),
        Query(increase("destination_send_failures_total", "destination")),
        Query(increase("destination_records_dropped_total", "destination")),
        Query(f"sum by (destination) ({metric('destination_records_parked')})"),
    )
    names = {"vm_name": "VM", "vmss_name": "Scale set", "vm_size": "Size", "location": "Region", "zone": "Zone"}
    facts = [
        Column(field, heading, width=68 if heading in ("Zone", "Priority", "Node") else 0)
        for field, heading in {**names, "priority": "Priority", "node": "Node"}.items()
    ]
    full = f"{metric('outbox_bytes')} / ({metric('outbox_capacity_bytes')} > 0)"
    return [
        (10, table),
        (3, figure(texts.VM_OUTBOX, Query(full, PER_VM), solid=False)),
        (3, figure(texts.VM_WRITABLE, Query(metric("outbox_writable"), PER_VM), solid=False)),
        (8, rows(texts.VM_MACHINE, facts, Query(metric("vm_info")))),
    ]


def build_vm() -> build.Dashboard:
    """The dashboard of one VM, or of a few side by side."""
    built = dashboard(
        "Azure Scheduled Events / VM",
        VM_UID,
        "What Azure is about to do to this VM, what it did, and whether the agent sees it.",
        every_instance=False,
        refresh="10s",
        since="now-6h",
    )
    built = built.link(link("Fleet", FLEET_UID, "${datasource:queryparam}&${job:queryparam}"))
    words = "on (job, instance, event_id) group_left (event_type)"
    starts = f"1000 * {metric('event_started_timestamp_seconds')} * {words} {metric('event_info')}"
    built = built.annotation(annotation("Starts", BAD, starts, "{{event_type}} started", value_is_time=True))
    ends = f"sum by (event_type, outcome) (increase({metric('events_closed_total')}[$__rate_interval])) > 0"
    built = built.annotation(annotation("Ends", GOOD, ends, "{{event_type}} {{outcome}}"))
    sections = [
        Section("Now", [(5, _state()), (7, [(24, _events())]), (6, _decisions())]),
        Section("In this range", [(6, [(24, _timeline())]), (8, _story())]),
        Section("Is it seen, is it told", [(7, _health()), (7, _plumbing())]),
    ]
    return place(built, sections)
