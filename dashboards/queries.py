"""The PromQL of the panels.

`VM_*` is about the selected instances and reads the series of the exporter. `FLEET_*` is about the VMs of the selected
subscriptions, scale sets, and so on, and reads recorded series if possible.

A panel may show "nothing scheduled" only while the exporter has current data. The gauges of an exporter without current
data keep their last values, and one that warms up has no values yet. Both are separate states, so that "nothing
scheduled" is never the default.
"""

from __future__ import annotations

from typing import Final

_JOB: Final = 'job=~"$job"'
SELECTOR: Final = f'{_JOB}, instance=~"$instance"'

TAGS: Final = ("tag_owner", "tag_environment")
"""The labels of the VM tags that select VMs: those in the recorded series, see alerts/rules.yml."""

CHOICES: Final = {
    "subscription": "subscription_id",
    "location": "location",
    "scale_set": "vmss_name",
    **{tag: tag for tag in TAGS},
}
"""The variables that select VMs in addition to `job`, with their labels. Each one narrows the next."""

CARRIED: Final = "&".join(f"${{{name}:queryparam}}" for name in ("datasource", "job", *CHOICES))
"""Parameters of a link to the other board, so that it selects the same VMs."""

FLEET_SELECTOR: Final = ", ".join([_JOB, *(f'{label}=~"${variable}"' for variable, label in CHOICES.items())])
"""A selector on series that have the labels of all variables."""

FLEET_GROUP: Final = f"instance:azure_scheduled_events_vm_info:group{{{FLEET_SELECTOR}}}"
"""The selected VMs, each with the value 1 and the labels that select it."""

NONE, SCHEDULED, STARTED, WARMING, STALE = 0, 1, 2, 10, 20
"""The states of a VM; STALE is added to the last known state if the data is stale."""

OWN_LABELS: Final = "attributed, decision, event_type, kind, reason, rule"
"""The labels of the counters that have no series before they count. All other labels are those of the target."""

FAR: Final = 10**12
"""Seconds that mean a text: +FAR nothing scheduled, +2 FAR the same while some VMs are unknown, -FAR unknown, -2 FAR
not known yet, -3 FAR started. A countdown is one number, and no number may have two meanings."""


def metric(name: str, *matchers: str) -> str:
    """Return a selector on a metric of the exporter, for the selected VMs."""
    return f"azure_scheduled_events_{name}{{{', '.join((SELECTOR, *matchers))}}}"


def increase(name: str, by: str = "") -> str:
    """Return the increase in the dashboard's range of a counter that starts at 0, in whole numbers."""
    return f"round(sum{f' by ({by}) ' if by else ''}(increase({metric(name)}[$__range])))"


def appeared(series: str, window: str) -> str:
    """Return the sample counts of a series that is missing in part of the window: a scrape has `up` but not the series.

    Everything that such a counter counts happened within the window. A failed scrape has neither series. They are
    matched on all labels of the target: a range may contain several pods of an instance, each with a separate `up`.
    """
    exists = f"ignoring ({OWN_LABELS}) group_left () count_over_time({metric('up')}[{window}])"
    return f"(count_over_time({series}[{window}]) < {exists})"


def growth(name: str, *matchers: str) -> str:
    """Return the increase in the range of each series of a counter that has no series before its first value.

    increase() ignores the value that a series starts with.
    """
    series = metric(name, *matchers)
    latest, grown = f"last_over_time({series}[$__range])", f"increase({series}[$__range])"
    return f"{latest}\nand {appeared(series, '$__range')}\nunless {grown} >= {latest}\nor {grown}"


def rate(name: str, by: str, *matchers: str) -> str:
    """Return the rate per second."""
    return f"sum by ({by}) (rate({metric(name, *matchers)}[$__rate_interval]))"


def worded(expression: str, **labels: str) -> str:
    """Return the same samples with texts as labels, for a table row that contains only a text."""
    for label, word in labels.items():
        expression = f'label_replace({expression}, "{label}", "{word}", "", "")'
    return expression


def first_of(*expressions: str) -> str:
    """Return for each VM the first expression that has a sample."""
    return "\nor on (job, instance)\n".join(expressions)


IS_STARTED: Final = 'event_status="Started"'
IS_NOT_STARTED: Final = 'event_status!="Started"'
IS_SCHEDULED: Final = 'event_status="Scheduled"'
_ON_EVENT: Final = "on (job, instance, event_id)"

VM_KNOWN: Final = (
    "max by (job, instance) (\n"
    f"  {STARTED} * clamp_max({metric('events', IS_STARTED)}, 1)\n"
    "  or\n"
    f"  {SCHEDULED} * clamp_max({metric('events', IS_NOT_STARTED)}, 1)\n"
    ")"
)
"""NONE, SCHEDULED, or STARTED, as last known."""

_LAST_POLL: Final = metric("last_poll_timestamp_seconds")

VM_IS_STALE: Final = (
    f"({metric('up')} == 0 and on (job, instance) {_LAST_POLL}\n"
    f"or {_LAST_POLL} == {_LAST_POLL} offset 3m\n"
    f"and timestamp({_LAST_POLL}) - timestamp({_LAST_POLL} offset 3m) >= 120)"
)
"""The last poll failed, or two scrapes, minutes apart, show the same last poll. The VM's clock is compared only with
itself: it may be wrong. Before the first poll of a process ends,
`up` is 0 too: that is "not known yet"."""

_NAMED: Final = metric("vm_info", 'vm_name!=""')
_NAME_IS_UNKNOWN: Final = f"{metric('document_events')} > 0\nunless on (job, instance) {_NAMED}"
"""There are events without series, and any of them may name this VM."""

VM_IS_WARMING: Final = (
    f"({metric('source_warming')} == 1 or on (job, instance) {metric('up')} == 0\n"
    f"or on (job, instance) ({_NAME_IS_UNKNOWN}))"
)

VM_STATE: Final = first_of(
    f"(({STALE} + {VM_KNOWN}) and on (job, instance) {VM_IS_STALE})",
    f"({VM_KNOWN} > 0)",
    f"max by (job, instance) (0 * {VM_IS_WARMING} + {WARMING})",
    VM_KNOWN,
)

VM_COUNTDOWN: Final = first_of(
    f"(min by (job, instance) ({metric('event_not_before_timestamp_seconds')}) - time())",
    f"(-{3 * FAR} + 0 * ({VM_KNOWN} == {STARTED}))",
    f"(-{FAR} + 0 * ({VM_KNOWN} and on (job, instance) {VM_IS_STALE}))",
    f"max by (job, instance) (0 * {VM_IS_WARMING} - {2 * FAR})",
    f"({FAR} + 0 * {VM_KNOWN})",
)

_INFO: Final = f"topk by (job, instance, event_id) (1, {metric('event_info')})"
"""The labels of each event. Why topk: an old pod and its successor may both have it for a scrape or two."""

_EVENT_WORDS: Final = "job, instance, event_id, event_status, event_type, event_source"
_EVENT: Final = (
    f"0 * ({metric('event_status')} == 1)\n+ {_ON_EVENT} group_left (event_type, event_source) (0 * {_INFO})"
)


def vm_event(value: str) -> str:
    """Return a value of each event, with the same labels for every value, so that a table can merge them in one row."""
    return (
        f"max by ({_EVENT_WORDS}) (\n{_EVENT}\n+ {_ON_EVENT} group_left ()\nmax by (job, instance, event_id) ({value}))"
    )


VM_EVENTS: Final = f"max by ({_EVENT_WORDS}) (\n{_EVENT})"
"""Every event in its current status with its labels; value 0."""

VM_EVENT_LANES: Final = (
    "max by (job, instance, event_id, event_type) (\n"
    f"({STARTED} * ({metric('event_status', IS_STARTED)} == 1)\n"
    f"or {SCHEDULED} * ({metric('event_status', IS_NOT_STARTED)} == 1))\n"
    f"+ {_ON_EVENT} group_left (event_type) (0 * {_INFO}))"
)
"""One series for each event, whose value is its state."""

_BLANK: Final = {"event_status": "–", "event_source": "–", "event_id": "–"}

_NO_EVENT: Final = f"({VM_KNOWN} == {NONE})"

VM_SILENT_ROWS: Final = "\nor\n".join(
    worded(f"({when})", event_type=word, **_BLANK)
    for word, when in (
        ("nothing scheduled", f"{_NO_EVENT} unless on (job, instance) ({VM_IS_STALE} or {VM_IS_WARMING})"),
        (
            "not known yet",
            f"{_NO_EVENT} and on (job, instance) {VM_IS_WARMING} unless on (job, instance) {VM_IS_STALE}",
        ),
        ("unknown", f"{VM_KNOWN} and on (job, instance) {VM_IS_STALE}"),
    )
)
"""A row if there is no event, or if the events shown may be outdated."""

_BY_RULE, _NOT_CLOSED = 'rule!=""', 'outcome=""'
_APPROVED: Final = f"(0 * {metric('event_began_timestamp_seconds', _BY_RULE, _NOT_CLOSED)} + 1)"

VM_DECIDED: Final = (
    "max by (job, instance, event_id, event_type, decision, reason, rule) (\n"
    f"({worded(_APPROVED, decision='approved')}\n"
    f"or {_ON_EVENT} {metric('event_decision')})\n"
    f"* {_ON_EVENT} group_left (event_type) {_INFO})"
)
"""The current decision on every event; value 1. An event that this agent approved needs no other decision: the agent
holds it then, because it's approved or has started."""

VM_ANNOUNCED: Final = (
    f"max by (event_type) ({metric('event_advertised_duration_seconds')}\n"
    f"* {_ON_EVENT} group_left (event_type) {_INFO}\n"
    f"and {_ON_EVENT} {metric('event_status', IS_STARTED)} == 1)"
)


def chosen(expression: str) -> str:
    """Return the samples of the selected VMs."""
    return f"({expression} and on (job, instance) {FLEET_GROUP})"


def named(expression: str, *labels: str) -> str:
    """Return the samples of the selected VMs, with these labels of `FLEET_GROUP`, such as the VM's name."""
    return f"({expression} * on (job, instance) group_left ({', '.join(labels)}) {FLEET_GROUP})"


def fleet_metric(name: str, *matchers: str) -> str:
    """Return a selector on a metric of the exporter, for the selected jobs. `chosen` and `named` narrow it."""
    return f"azure_scheduled_events_{name}{{{', '.join((_JOB, *matchers))}}}"


def fleet_recorded(name: str, *matchers: str) -> str:
    """Return a selector on a recorded series with the labels of all variables, for the selected VMs."""
    return f"{name}{{{', '.join((FLEET_SELECTOR, *matchers))}}}"


FLEET_DATA_STATE: Final = f"instance:azure_scheduled_events_up:data_state{{{_JOB}}}"
"""For each VM: 0 current data, 1 not known yet, 2 stale, 3 down."""


def fleet_sights(states: str = "[0-3]", by: str = "") -> str:
    """Return the number of selected VMs in one of these data states; no sample if there are none."""
    counted = fleet_recorded("fleet:azure_scheduled_events_up:vms", f'data_state=~"{states}"')
    return f"sum{f' by ({by}) ' if by else ''}({counted})"


FLEET_STARTS: Final = "instance:azure_scheduled_events_events_started:increase5m"
FLEET_ENDS: Final = "instance:azure_scheduled_events_events_closed:increase5m"
FLEET_DROPPED: Final = fleet_recorded("instance:azure_scheduled_events_destination_records_dropped:increase5m")
FLEET_OBSERVED: Final = fleet_recorded("instance:azure_scheduled_events_observed_interruption_seconds_sum:increase5m")
FLEET_ANNOUNCED: Final = fleet_recorded("fleet:azure_scheduled_events_event_advertised_duration_seconds:max")
FLEET_EVENTS_COUNTED: Final = fleet_recorded("fleet:azure_scheduled_events_event_status:vms")


def fleet_events(*matchers: str) -> str:
    """Return every event of every selected VM in its current status, value 1."""
    return fleet_recorded("instance_event_id:azure_scheduled_events_event_status:located", *matchers)


FLEET_NOT_BEFORE: Final = (
    f"({fleet_events(IS_SCHEDULED)}\n* {_ON_EVENT} group_left ()\n{fleet_metric('event_not_before_timestamp_seconds')})"
)

_DOWN: Final = 'event_type!~"Freeze|Terminate"'
_NOT_DOWN: Final = 'event_type=~"Freeze|Terminate"'
_START: Final = " or ".join(
    f"max by (job, instance, event_id) ({fleet_metric(f'event_{name}_timestamp_seconds')})"
    for name in ("not_before", "started", "first_seen")
)
FLEET_BY_URGENCY: Final = (
    f"({fleet_events(_DOWN)} * {_ON_EVENT} group_left () ({_START})\n"
    f"or {FAR} * {fleet_events(_NOT_DOWN)} + {_ON_EVENT} group_left () ({_START}))"
)
"""Every event with a number that sorts it: events that take a VM down before the others, then by time of start."""

FLEET_ALL: Final = fleet_sights()
FLEET_NONE_SEEN: Final = fleet_sights("0")
"""The number of VMs with current data; no sample if there are none, so that no panel shows "nothing scheduled"."""
FLEET_SOME_UNSEEN: Final = fleet_sights("[1-3]")


def vms(expression: str) -> str:
    """Return the number of VMs that have these samples; 0 only if a VM has current data."""
    return f"count(count by (job, instance) ({expression}))\nor\n0 * {FLEET_NONE_SEEN}"


def with_data_state(states: str) -> str:
    """Return the number of exporters in one of these data states; 0 only if there is an exporter."""
    return f"{fleet_sights(states)}\nor\n0 * {FLEET_ALL}"


FLEET_NEXT: Final = (
    f"(min({FLEET_NOT_BEFORE}) - time())\n"
    f"or\n({2 * FAR} + 0 * ({FLEET_SOME_UNSEEN} and {FLEET_NONE_SEEN}))\n"
    f"or\n({FAR} + 0 * {FLEET_NONE_SEEN})"
)

FLEET_BEHIND: Final = (
    f"(time() - ({fleet_metric('outbox_oldest_record_timestamp_seconds')} > 0) > 600 "
    f"and {fleet_metric('outbox_records')} > 0)"
)
FLEET_PARKED: Final = f"({fleet_metric('destination_records_parked')} > 0)"
FLEET_LOST: Final = f"sum by (job, instance, vm_name, destination) (sum_over_time({FLEET_DROPPED}[$__range]))"


def _began(*matchers: str) -> str:
    recorded = "instance_event_id:azure_scheduled_events_event_began_timestamp_seconds:located"
    return f"last_over_time({fleet_recorded(recorded, *matchers)}[$__range])"


FLEET_BEGAN: Final = (
    "topk by (job, instance, event_id) (1,\n"
    + f"\nor {_ON_EVENT} ".join(
        (
            _began('outcome!="open"', _BY_RULE),
            _began('outcome!="open"', 'rule=""'),
            _began('outcome="open"', 'started_by!=""'),
            _began('outcome="open"', 'started_by=""', _BY_RULE),
            _began('outcome="open"', 'started_by=""', 'rule=""'),
        )
    )
    + ")"
)
"""When each event of the range began. Of the series of one event, the one that knows most: its labels change."""
FLEET_NOTICE: Final = (
    "max by (job, instance, event_id) (last_over_time("
    f"instance_event_id:azure_scheduled_events_event_notice_seconds:max{{{_JOB}}}[$__range]))"
)
FLEET_INTERRUPTION: Final = (
    f"max by (job, instance, event_id) (last_over_time({fleet_metric('event_interruption_seconds')}[$__range]))"
)


def of_event(rows: str, value: str) -> str:
    """Return a value of each event in `rows`, with the labels of those rows, so that a table can merge them."""
    return f"0 * {rows}\n+ {_ON_EVENT} group_left ()\n({value})"


def alerts(state: str, *matchers: str) -> str:
    """Return the alerts of this project in a state.

    They are those of the selected VMs, and those of a job, subscription, or scale set that may contain selected VMs:
    such alerts lack the labels that differ between their VMs.
    """
    own = f'alertname=~"AzureScheduledEvents.+", alertstate=~"{state}"'
    wide = ", ".join(
        [own, *matchers, 'instance=""', 'job=~"$job|"', *(f'{label}=~"${name}|"' for name, label in CHOICES.items())]
    )
    each = ", ".join([own, *matchers, 'instance!=""', _JOB])
    return f"({chosen(f'ALERTS{{{each}}}')}\nor ALERTS{{{wide}}})"


def fleet_silent_row(events: str, **blank: str) -> str:
    """Return one row for an empty table: nothing scheduled, none seen while some VMs are unknown, or unknown."""
    quiet = f"({FLEET_NONE_SEEN} unless count({events}))"
    texts = {
        "nothing scheduled": f"(0 * ({quiet} unless {FLEET_SOME_UNSEEN}))",
        "none seen, some VMs unknown": f"(0 * ({quiet} and {FLEET_SOME_UNSEEN}))",
        "unknown": f"(0 * ({FLEET_ALL} unless {FLEET_NONE_SEEN}))",
    }
    return "\nor\n".join(worded(when, event_type=word, **blank) for word, when in texts.items())
