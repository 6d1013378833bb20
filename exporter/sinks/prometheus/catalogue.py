"""Name, type, help, labels, and buckets of every metric family. `docs/metrics.md` is generated from here.

Names follow Prometheus' conventions: base units, `_total` on counters, `_info` on infos. A family has HELP and TYPE
even without series, so that users can find it before they need it.

Every series exists once per VM, ten thousand times in a large fleet. Counters that alerts use exist at 0 from the
start, because `increase()` ignores the first value of a series. A `rare` family has no series before its first
observation; the rules in `alerts/` have an expression for that.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from exporter.core.document import KNOWN_RESOURCE_TYPES, KNOWN_SOURCES, KNOWN_STATUSES, KNOWN_TYPES
from exporter.core.policy import Mode, Verdict
from exporter.core.snapshot import DESTINATIONS
from exporter.core.state import CLOSING, StartedBy, TransitionKind

PREFIX: Final = "azure_scheduled_events_"
OTHER: Final = "other"
"""Label value for a value outside its closed set."""

EVENT_TYPES: Final = (*KNOWN_TYPES, OTHER)
EVENT_STATUSES: Final = (*KNOWN_STATUSES, OTHER)
EVENT_SOURCES: Final = (*KNOWN_SOURCES, OTHER)
RESOURCE_TYPES: Final = (*KNOWN_RESOURCE_TYPES, OTHER)
FIELDS: Final = ("EventType", "EventStatus", "EventSource", "ResourceType")
STARTED_BY: Final = tuple(word.value for word in StartedBy)
OUTCOMES: Final = tuple(kind.value for kind in TransitionKind if kind in CLOSING)
INTERRUPTION_KINDS: Final = ("clock_step", "stall")
MODES: Final = tuple(mode.value for mode in Mode)
VM_FIELDS: Final = (
    "name",
    "id",
    "subscription_id",
    "resource_group",
    "vmss_name",
    "location",
    "zone",
    "size",
    "priority",
    "node",
)
"""Fields of `core.records.Vm`, in the order of the labels of `vm_info`."""

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
# Azure's documented minimum notices (5, 10, 15 minutes) and its notices of days each end a bucket.
NOTICE: Final = (30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, HOUR, 4 * HOUR, 12 * HOUR, DAY, 3 * DAY, 7 * DAY)
STARTED: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, HOUR, 4 * HOUR)
# From the observer's threshold on. 8 and 10 are around Azure's "paused for less than 10 seconds" for a freeze.
INTERRUPTION: Final = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Up to the deadline of the first polls.
POLL: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 125.0)
SEND: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0)

Type = Literal["gauge", "counter", "histogram", "info"]


class Family(Struct, frozen=True):
    """One metric family. `name` is the name in queries without the prefix; `buckets` are upper bounds in seconds."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    rare: bool = False
    """A counter or histogram without series before its first observation."""

    @property
    def full_name(self) -> str:
        """The name in `/metrics`."""
        return PREFIX + self.name


def _gauge(name: str, help: str, *labels: str) -> Family:
    return Family(name, "gauge", help, labels)


def _counter(name: str, help: str, *labels: str, rare: bool = False) -> Family:
    return Family(name, "counter", help, labels, rare=rare)


def _histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str, rare: bool = False) -> Family:
    return Family(name, "histogram", help, labels, buckets, rare)


FAMILIES: Final = (
    # the source
    _gauge("up", "1 if the last poll of the metadata service succeeded, else 0; 0 before the first poll."),
    _gauge("last_poll_timestamp_seconds", "Time of the last poll, failed ones included."),
    _gauge(
        "last_successful_poll_timestamp_seconds",
        "Time when a valid document was last read. All event gauges are as of then.",
    ),
    _gauge("poll_interval_seconds", "Configured poll interval."),
    _gauge(
        "source_warming",
        "1 while Azure may still be enabling Scheduled Events: for 5 minutes or until the first event.",
    ),
    _histogram("poll_duration_seconds", "Duration of polls, failed ones included.", POLL),
    _counter("polls_total", "Polls of the metadata service, failed ones included."),
    _counter("poll_failures_total", "Polls that returned no valid document.", "reason"),
    _gauge("document_incarnation", "DocumentIncarnation of the last valid document."),
    _gauge("document_events", "Events in the last valid document, including those of other VMs."),
    _counter("document_changes_total", "Valid documents that differed from the previous one."),
    _counter("document_anomalies_total", "Anomalies of the metadata service.", "anomaly", rare=True),
    _counter("unknown_values_total", "Values in documents that this version does not know.", "field"),
    # the identity of exporter and VM
    Family("build_info", "info", "Version of the exporter and of Python.", ("version", "python_version")),
    Family(
        "vm_info",
        "info",
        "Identity of this VM, with a label tag_NAME for each of `source.tags`; absent until known.",
        tuple(f"vm_{field}" if field in ("name", "id", "size") else field for field in VM_FIELDS),
    ),
    # the current events of this VM
    _gauge("events", "Events in the document known to name this VM.", "event_type", "event_status"),
    _gauge(
        "event_info",
        "1 for each event that affects this VM.",
        *("event_id", "event_type", "event_source", "resource_type"),
    ),
    _gauge("event_status", "1 for the event's current status, 0 for the others.", "event_id", "event_status"),
    _gauge(
        "event_not_before_timestamp_seconds",
        "Earliest time at which Azure starts the event; absent once started.",
        "event_id",
    ),
    _gauge("event_advertised_duration_seconds", "Interruption that Azure announced; absent if unknown.", "event_id"),
    _gauge("event_first_seen_timestamp_seconds", "Time when the agent first saw the event.", "event_id"),
    _gauge("event_started_timestamp_seconds", "Time when the event was first seen Started.", "event_id"),
    _gauge(
        "event_started_by",
        "1 for what started the event: this_vm (its approval), other (before NotBefore), not_before, or unknown.",
        "event_id",
        "started_by",
    ),
    _gauge("event_approved_timestamp_seconds", "Time at which Azure accepted this VM's approval.", "event_id"),
    _gauge("event_resources", "Number of resources that the event affects, including this VM.", "event_id"),
    _gauge(
        "event_decision",
        "1 for the current decision: approve or hold, the reason, and the rule.",
        *("event_id", "decision", "reason", "rule"),
    ),
    _gauge(
        "event_began_timestamp_seconds",
        "Time of the start, or when first seen. Like the next two, until 15 minutes after the end; then with outcome.",
        *("event_id", "event_type", "event_source", "started_by", "rule", "outcome"),
    ),
    _gauge("event_notice_seconds", "First NotBefore minus the time when first seen.", "event_id"),
    _gauge("event_interruption_seconds", "Observed interruption, if any.", "event_id"),
    _gauge("event_series_dropped", "Events of this VM without their own series: more than 50 are open."),
    # outcomes of events
    _counter("events_observed_total", "Events of this VM that the agent has seen.", "event_type", "event_source"),
    _counter(
        "events_started_total",
        "Events of this VM whose start was observed, by what started them.",
        "event_type",
        "started_by",
    ),
    _counter(
        "events_closed_total",
        "Closed events of this VM; outcome ended: it was not observed how.",
        "event_type",
        "outcome",
    ),
    _histogram(
        "notice_seconds",
        "NotBefore minus the time when first seen; only events that appeared during unbroken polling.",
        NOTICE,
        "event_type",
        rare=True,
    ),
    _histogram(
        "started_duration_seconds",
        "Time that completed events were Started; only without a polling gap or restart in between.",
        STARTED,
        "event_type",
        rare=True,
    ),
    _histogram(
        "observed_interruption_seconds",
        "Interruptions measured inside this VM; attributed: an event of this VM was Started.",
        INTERRUPTION,
        "kind",
        "attributed",
        rare=True,
    ),
    # approvals
    _counter(
        "approval_decisions_total",
        "Decisions on events, counted when verdict, reason, or rule changes.",
        *("event_type", "decision", "reason", "rule"),
        rare=True,
    ),
    _counter("approval_requests_total", "Approval requests, failed ones included."),
    _counter(
        "approval_request_failures_total",
        "Approval requests that Azure did not answer with HTTP 200.",
        "reason",
        rare=True,
    ),
    _counter("approvals_outdated_total", "Approved events that changed and would now be held."),
    _counter("approvals_postponed_total", "Due approvals that were not sent."),
    _gauge("approval_held", "1 if the hold file exists or its absence cannot be verified, else 0."),
    _gauge("approval_mode", "1 for the configured mode, 0 for the others.", "mode"),
    # delivery
    _gauge("outbox_records", "Records waiting for this destination.", "destination"),
    _gauge(
        "outbox_oldest_record_timestamp_seconds", "Time of the oldest record waiting; absent if none is.", "destination"
    ),
    _gauge(
        "destination_records_parked",
        "Records that this destination rejected while it accepted others; kept for requeue.",
        "destination",
    ),
    _gauge("outbox_bytes", "Size of the outbox on disk."),
    _gauge("outbox_capacity_bytes", "Size at which the outbox drops old records."),
    _gauge("outbox_writable", "1 if the last write succeeded, else 0: nothing is approved."),
    _counter("destination_sends_total", "Send attempts to this destination, failed ones included.", "destination"),
    _counter("destination_send_failures_total", "Failed send attempts.", "destination", "reason"),
    _counter("destination_records_sent_total", "Records that the destination acknowledged.", "destination"),
    _counter(
        "destination_records_dropped_total",
        "Records dropped undelivered, or rejected within an accepted request.",
        "destination",
        "reason",
    ),
    _histogram("destination_send_duration_seconds", "Duration of acknowledged sends.", SEND, "destination"),
    _gauge("destination_last_success_timestamp_seconds", "Time of the last acknowledged send.", "destination"),
    # the scrape endpoint
    _gauge("web_certificate_not_after_timestamp_seconds", "Expiry time of the served certificate; absent without TLS."),
    _counter("web_config_reload_failures_total", "Changed web configurations that were invalid."),
)
BY_NAME: Final = {family.name: family for family in FAMILIES}

LABEL_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "event_type": EVENT_TYPES,
    "event_status": EVENT_STATUSES,
    "event_source": EVENT_SOURCES,
    "resource_type": RESOURCE_TYPES,
    "started_by": STARTED_BY,
    "outcome": OUTCOMES,
    "field": FIELDS,
    "kind": INTERRUPTION_KINDS,
    "attributed": ("true", "false"),
    "mode": MODES,
    "destination": DESTINATIONS,
    "decision": tuple(verdict.value for verdict in Verdict),
}
"""Closed sets of values, by label. Other labels are open (ids, names of this VM) or depend on the configuration."""


def metrics_table() -> str:
    """Return the Markdown table of metrics, followed by the rare families and the values of the labels."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for family in FAMILIES:
        labels = " ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.full_name}` | {family.type} | {labels} | {family.help} |")
    rare = ", ".join(f"`{family.name}`" for family in FAMILIES if family.rare)
    lines += ["", f"These have no series before their first observation, so `increase()` misses it: {rare}."]
    lines += ["For an expression that counts it, see the head of `alerts/rules.yml`."]
    lines += ["", "| label | values |", "| --- | --- |"]
    lines += [f"| `{label}` | {' '.join(f'`{value}`' for value in values)} |" for label, values in LABEL_VALUES.items()]
    return "\n".join(lines) + "\n"
