"""What the panels ask Prometheus, in words. `VM_*` is about the chosen instances and reads the exporter's own series;
`FLEET_*` is about the VMs of the chosen subscriptions, scale sets and so on, and reads recorded ones where it can.

A panel may call a VM calm only while its exporter sees: a blind exporter keeps its last known truth in its gauges, and
one that warms up has none yet. Both are their own states, and "nothing scheduled" is never what is left over.
"""

from __future__ import annotations

from typing import Final

_JOB: Final = 'job=~"$job"'
SELECTOR: Final = f'{_JOB}, instance=~"$instance"'

TAGS: Final = ("tag_owner", "tag_environment")
"""The labels of the VM tags that a fleet is chosen by: those that the rules carry, see alerts/rules.yml."""

CHOICES: Final = {
    "subscription": "subscription_id",
    "location": "location",
    "scale_set": "vmss_name",
    **{tag: tag for tag in TAGS},
}
"""The variables that VMs are chosen by beside `job`, in the order in which each narrows the next, and their labels."""

CARRIED: Final = "&".join(f"${{{name}:queryparam}}" for name in ("datasource", "job", *CHOICES))
"""What a link to the other board carries, so that it is about the same VMs."""

FLEET_SELECTOR: Final = ", ".join([_JOB, *(f'{label}=~"${variable}"' for variable, label in CHOICES.items())])
"""What is written with the labels that VMs are chosen by."""

FLEET_GROUP: Final = f"instance:azure_scheduled_events_vm_info:group{{{FLEET_SELECTOR}}}"
"""The chosen VMs, each with the value 1 and everything that it is chosen by."""

CALM, SCHEDULED, STARTED, WARMING, BLIND = 0, 1, 2, 10, 20
"""The states of a VM; BLIND is added to what was known last."""

OWN_LABELS: Final = "attributed, decision, event_type, kind, reason, rule"
"""The labels of the counters that have no series before they count; the others of a series are its target's."""

FAR: Final = 10**12
"""Seconds that stand for a word: +FAR nothing scheduled, +2 FAR the same as far as anybody sees, -FAR not known,
-2 FAR not known yet, -3 FAR under way. A countdown is one number, and no number may mean two things."""


def metric(name: str, *matchers: str) -> str:
    """A selector on one of our families, for the chosen VMs."""
    return f"azure_scheduled_events_{name}{{{', '.join((SELECTOR, *matchers))}}}"


def increase(name: str, by: str = "") -> str:
    """How much a counter that stands at 0 from the start grew in the range of the dashboard, in whole numbers."""
    return f"round(sum{f' by ({by}) ' if by else ''}(increase({metric(name)}[$__range])))"


def appeared(series: str, window: str) -> str:
    """The samples of a window, of a series that did not exist in the whole of it: a scrape has `up` and not the series.
    All that such a counter counts happened within the window. A failed scrape lacks both, and proves nothing. They are
    matched on all labels of the target: a range may have several pods of an instance, each with its own `up`."""
    exists = f"ignoring ({OWN_LABELS}) group_left () count_over_time({metric('up')}[{window}])"
    return f"(count_over_time({series}[{window}]) < {exists})"


def growth(name: str, *matchers: str) -> str:
    """How much each series of a counter grew in the range, where the series appears with what it counts first.
    increase() does not see the value that a series appears with."""
    series = metric(name, *matchers)
    latest, grown = f"last_over_time({series}[$__range])", f"increase({series}[$__range])"
    return f"{latest}\nand {appeared(series, '$__range')}\nunless {grown} >= {latest}\nor {grown}"


def rate(name: str, by: str, *matchers: str) -> str:
    """Per second."""
    return f"sum by ({by}) (rate({metric(name, *matchers)}[$__rate_interval]))"


def worded(expression: str, **labels: str) -> str:
    """The same samples with words as labels, for a row of a table that says something by itself."""
    for label, word in labels.items():
        expression = f'label_replace({expression}, "{label}", "{word}", "", "")'
    return expression


def first_of(*expressions: str) -> str:
    """Per VM the first expression that has a sample."""
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
"""CALM, SCHEDULED or STARTED, as last known."""

_LAST_GOOD: Final = metric("last_successful_poll_timestamp_seconds")

VM_IS_BLIND: Final = (
    f"({metric('up')} == 0 and on (job, instance) {metric('last_poll_timestamp_seconds')}\n"
    f"or timestamp({_LAST_GOOD}) - {_LAST_GOOD} > 30 + 10 * {metric('poll_interval_seconds')})"
)
"""timestamp() is the time of the scrape: a long scrape interval is not blindness. Before the first poll of a process is
over, `up` is 0 as well: that is not known yet."""

_NAMED: Final = metric("vm_info", 'vm_name!=""')
_NAME_IS_UNKNOWN: Final = f"{metric('document_events')} > 0\nunless on (job, instance) {_NAMED}"
"""There are events, and any of them may be this VM's: none has series, and nothing can be called calm."""

VM_IS_WARMING: Final = (
    f"({metric('source_warming')} == 1 or on (job, instance) {metric('up')} == 0\n"
    f"or on (job, instance) ({_NAME_IS_UNKNOWN}))"
)

VM_STATE: Final = first_of(
    f"(({BLIND} + {VM_KNOWN}) and on (job, instance) {VM_IS_BLIND})",
    f"({VM_KNOWN} > 0)",
    f"max by (job, instance) (0 * {VM_IS_WARMING} + {WARMING})",
    VM_KNOWN,
)

VM_COUNTDOWN: Final = first_of(
    f"(min by (job, instance) ({metric('event_not_before_timestamp_seconds')}) - time())",
    f"(-{3 * FAR} + 0 * ({VM_KNOWN} == {STARTED}))",
    f"(-{FAR} + 0 * ({VM_KNOWN} and on (job, instance) {VM_IS_BLIND}))",
    f"max by (job, instance) (0 * {VM_IS_WARMING} - {2 * FAR})",
    f"({FAR} + 0 * {VM_KNOWN})",
)

_INFO: Final = f"topk by (job, instance, event_id) (1, {metric('event_info')})"
"""The words of each event. topk: an old pod and its successor may both have it for a scrape or two."""

_EVENT_WORDS: Final = "job, instance, event_id, event_status, event_type, event_source"
_EVENT: Final = (
    f"0 * ({metric('event_status')} == 1)\n+ {_ON_EVENT} group_left (event_type, event_source) (0 * {_INFO})"
)


def vm_event(value: str) -> str:
    """A value of each event under the same labels for every value, so that a table can merge several into one row."""
    return (
        f"max by ({_EVENT_WORDS}) (\n{_EVENT}\n+ {_ON_EVENT} group_left ()\nmax by (job, instance, event_id) ({value}))"
    )


VM_EVENTS: Final = f"max by ({_EVENT_WORDS}) (\n{_EVENT})"
"""Every event in its current status with its words; value 0."""

VM_EVENT_LANES: Final = (
    "max by (job, instance, event_id, event_type) (\n"
    f"({STARTED} * ({metric('event_status', IS_STARTED)} == 1)\n"
    f"or {SCHEDULED} * ({metric('event_status', IS_NOT_STARTED)} == 1))\n"
    f"+ {_ON_EVENT} group_left (event_type) (0 * {_INFO}))"
)
"""One series for each event, whose value is its state."""

_BLANK: Final = {"event_status": "–", "event_source": "–", "event_id": "–"}

_NO_EVENT: Final = f"({VM_KNOWN} == {CALM})"

VM_SILENT_ROWS: Final = "\nor\n".join(
    worded(f"({when})", event_type=word, **_BLANK)
    for word, when in (
        ("nothing scheduled", f"{_NO_EVENT} unless on (job, instance) ({VM_IS_BLIND} or {VM_IS_WARMING})"),
        (
            "not known yet",
            f"{_NO_EVENT} and on (job, instance) {VM_IS_WARMING} unless on (job, instance) {VM_IS_BLIND}",
        ),
        ("not known", f"{VM_KNOWN} and on (job, instance) {VM_IS_BLIND}"),
    )
)
"""A row where there is no event to show, or where what is shown may be old."""

VM_DECIDED: Final = (
    "max by (job, instance, event_id, event_type, decision, reason, rule) (\n"
    f"{metric('event_decision')}\n* {_ON_EVENT} group_left (event_type) {_INFO})"
)
"""What stands of every event; value 1."""

VM_ANNOUNCED: Final = (
    f"max by (event_type) ({metric('event_advertised_duration_seconds')}\n"
    f"* {_ON_EVENT} group_left (event_type) {_INFO}\n"
    f"and {_ON_EVENT} {metric('event_status', IS_STARTED)} == 1)"
)


def chosen(expression: str) -> str:
    """The samples of the chosen VMs."""
    return f"({expression} and on (job, instance) {FLEET_GROUP})"


def named(expression: str, *labels: str) -> str:
    """The samples of the chosen VMs, with the VM's name, scale set or whatever else its group has."""
    return f"({expression} * on (job, instance) group_left ({', '.join(labels)}) {FLEET_GROUP})"


def fleet_metric(name: str, *matchers: str) -> str:
    """A selector on one of our families, for the jobs that are chosen: for `chosen` or `named` to narrow."""
    return f"azure_scheduled_events_{name}{{{', '.join((_JOB, *matchers))}}}"


def fleet_recorded(name: str, *matchers: str) -> str:
    """A selector on what is recorded with the labels that VMs are chosen by, for the chosen VMs."""
    return f"{name}{{{', '.join((FLEET_SELECTOR, *matchers))}}}"


FLEET_SIGHT: Final = f"instance:azure_scheduled_events_up:blindness{{{_JOB}}}"
"""Per VM: 0 it sees, 1 not known yet, 2 blind, 3 down."""


def fleet_sights(sights: str = "[0-3]", by: str = "") -> str:
    """How many of the chosen VMs are in one of these states of sight; absent when none is."""
    counted = fleet_recorded("fleet:azure_scheduled_events_up:vms", f'sight=~"{sights}"')
    return f"sum{f' by ({by}) ' if by else ''}({counted})"


FLEET_STARTS: Final = "instance:azure_scheduled_events_events_started:increase5m"
FLEET_ENDS: Final = "instance:azure_scheduled_events_events_closed:increase5m"
FLEET_DROPPED: Final = fleet_recorded("instance:azure_scheduled_events_destination_records_dropped:increase5m")
FLEET_FELT: Final = fleet_recorded("instance:azure_scheduled_events_observed_interruption_seconds_sum:increase5m")
FLEET_ANNOUNCED: Final = fleet_recorded("fleet:azure_scheduled_events_event_advertised_duration_seconds:max")
FLEET_EVENTS_COUNTED: Final = fleet_recorded("fleet:azure_scheduled_events_event_status:vms")


def fleet_events(*matchers: str) -> str:
    """Every event of every chosen VM in its current status, value 1."""
    return fleet_recorded("instance_event_id:azure_scheduled_events_event_status:located", *matchers)


FLEET_NOT_BEFORE: Final = (
    f"({fleet_events(IS_SCHEDULED)}\n* {_ON_EVENT} group_left ()\n{fleet_metric('event_not_before_timestamp_seconds')})"
)

FLEET_ALL: Final = fleet_sights()
FLEET_NONE_SEEN: Final = fleet_sights("0")
"""How many see; absent when none does, so that nothing can be called calm."""
FLEET_SOME_UNSEEN: Final = fleet_sights("[1-3]")


def vms(expression: str) -> str:
    """How many VMs the samples are about; 0 only if somebody sees."""
    return f"count(count by (job, instance) ({expression}))\nor\n0 * {FLEET_NONE_SEEN}"


def in_sight(sights: str) -> str:
    """How many exporters are in one of these states of sight; 0 only if there is any exporter."""
    return f"{fleet_sights(sights)}\nor\n0 * {FLEET_ALL}"


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


def alerts(state: str, *matchers: str) -> str:
    """The alerts of this project in a state: those of the chosen VMs, and those of a whole fleet, subscription or scale
    set that the chosen VMs may be of: there a label that is missing says "all of them"."""
    ours = f'alertname=~"AzureScheduledEvents.+", alertstate=~"{state}"'
    wide = ", ".join(
        [ours, *matchers, 'instance=""', 'job=~"$job|"', *(f'{label}=~"${name}|"' for name, label in CHOICES.items())]
    )
    each = ", ".join([ours, *matchers, 'instance!=""', _JOB])
    return f"({chosen(f'ALERTS{{{each}}}')}\nor ALERTS{{{wide}}})"


def fleet_silent_row(events: str, **blank: str) -> str:
    """One row in place of an empty table: nothing, nothing as far as anybody sees, or not known."""
    quiet = f"({FLEET_NONE_SEEN} unless count({events}))"
    said = {
        "nothing scheduled": f"(0 * ({quiet} unless {FLEET_SOME_UNSEEN}))",
        "nothing seen, some VMs not known": f"(0 * ({quiet} and {FLEET_SOME_UNSEEN}))",
        "not known": f"(0 * ({FLEET_ALL} unless {FLEET_NONE_SEEN}))",
    }
    return "\nor\n".join(worded(when, event_type=word, **blank) for word, when in said.items())
