"""Every metric family, once: its name, type, meaning, labels and buckets. `docs/metrics.md` is generated from here.

Naming follows Prometheus' conventions: base units in the name, `_total` on counters, `_info` on infos. A family
has HELP and TYPE also while it has no series, so that it can be found before it is first needed.

Each series costs ten thousand times, once for each VM. Counters that alerts take a rate of exist at 0 from the start,
since `increase()` ignores the value that a series begins with; a `rare` family has no series before its first
observation, and the rules in `alerts/` have an expression for that.
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
"""The label value for a word outside of its closed set."""

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
"""Of `core.records.Vm`, in the order of the labels of `vm_info`."""

MINUTE: Final = 60.0
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
# Azure's documented minima (5, 10, 15 minutes) and its days-ahead notices each end a bucket.
NOTICE: Final = (30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, HOUR, 4 * HOUR, 12 * HOUR, DAY, 3 * DAY, 7 * DAY)
STARTED: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, HOUR, 4 * HOUR)
# From the observer's threshold; 8 and 10 around the "paused for less than 10 seconds" that Azure promises for a freeze.
INTERRUPTION: Final = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Up to the deadline of the very first polls.
POLL: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 125.0)
SEND: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0)

Type = Literal["gauge", "counter", "histogram", "info"]


class Family(Struct, frozen=True):
    """One metric family. `name` is as a query writes it, without the prefix; `buckets` are upper bounds in seconds."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    rare: bool = False
    """A counter or histogram without series before its first observation."""

    @property
    def full_name(self) -> str:
        """The name as `/metrics` has it."""
        return PREFIX + self.name


FAMILIES: Final = (
    # the source
    Family(
        "up", "gauge", "1 if the last poll of the metadata service succeeded, 0 if it failed or there was none yet."
    ),
    Family("last_poll_timestamp_seconds", "gauge", "When the metadata service was last polled, with whatever result."),
    Family(
        "last_successful_poll_timestamp_seconds",
        "gauge",
        "When a whole, well-formed document was last read. Everything about events is as of then.",
    ),
    Family("poll_interval_seconds", "gauge", "The configured time between two polls."),
    Family(
        "source_warming",
        "gauge",
        "1 while Azure may still be enabling the service, for 5 minutes or until an event was seen: an empty document "
        "does not yet mean that nothing is planned.",
    ),
    Family("poll_duration_seconds", "histogram", "How long a poll took, failed ones included.", (), POLL),
    Family("polls_total", "counter", "Polls of the metadata service, failed ones included."),
    Family("poll_failures_total", "counter", "Polls that gave no usable document.", ("reason",)),
    Family("document_incarnation", "gauge", "DocumentIncarnation of the last good document."),
    Family(
        "document_events", "gauge", "Events in the last good document, those of other VMs and malformed ones included."
    ),
    Family("document_changes_total", "counter", "Good documents that differed from the one before."),
    Family(
        "document_anomalies_total",
        "counter",
        "Oddities of the source: its numbers, its first answer.",
        ("anomaly",),
        rare=True,
    ),
    Family("unknown_values_total", "counter", "Words in a document that this version does not know.", ("field",)),
    # the identity of exporter and VM
    Family("build_info", "info", "The version of this exporter.", ("version", "python_version")),
    Family(
        "vm_info",
        "info",
        "This VM as the metadata service describes it, with a label tag_NAME for each of `source.tags`; absent while "
        "nothing of it is known.",
        tuple(f"vm_{field}" if field in ("name", "id", "size") else field for field in VM_FIELDS),
    ),
    # the current events of this VM
    Family("events", "gauge", "Events in the document that are known to name this VM.", ("event_type", "event_status")),
    Family(
        "event_info",
        "gauge",
        "1 for each event that is known to name this VM; vanishes with the event.",
        ("event_id", "event_type", "event_source", "resource_type"),
    ),
    Family(
        "event_status", "gauge", "1 for the status that the event has, 0 for the others.", ("event_id", "event_status")
    ),
    Family(
        "event_not_before_timestamp_seconds",
        "gauge",
        "The earliest time at which the event starts by itself; absent once it has started.",
        ("event_id",),
    ),
    Family(
        "event_advertised_duration_seconds",
        "gauge",
        "How long Azure expects the interruption to last; absent if Azure does not say.",
        ("event_id",),
    ),
    Family("event_first_seen_timestamp_seconds", "gauge", "When this exporter first saw the event.", ("event_id",)),
    Family("event_started_timestamp_seconds", "gauge", "When the event was first seen Started.", ("event_id",)),
    Family(
        "event_started_by",
        "gauge",
        "1 while the event is Started: this_vm (its approval), other (another approver), not_before, or unknown.",
        ("event_id", "started_by"),
    ),
    Family("event_approved_timestamp_seconds", "gauge", "When Azure accepted our approval.", ("event_id",)),
    Family("event_resources", "gauge", "How many resources the event names, this VM included.", ("event_id",)),
    Family(
        "event_decision",
        "gauge",
        "1 for what stands of the event now: whether it is approved or held, why, and by which rule.",
        ("event_id", "decision", "reason", "rule"),
    ),
    Family("event_series_dropped", "gauge", "Events of this VM without series of their own, being over the cap of 50."),
    # what became of events
    Family(
        "events_observed_total", "counter", "Events of this VM that came into sight.", ("event_type", "event_source")
    ),
    Family(
        "events_started_total",
        "counter",
        "Observed starts of events of this VM, by what started them: this_vm, other, not_before, or unknown.",
        ("event_type", "started_by"),
    ),
    Family(
        "events_closed_total",
        "counter",
        "Events of this VM that are gone; ended means that what became of them was not seen.",
        ("event_type", "outcome"),
    ),
    Family(
        "notice_seconds",
        "histogram",
        "NotBefore minus first sight, only of events that came into sight during unbroken polling.",
        ("event_type",),
        NOTICE,
        rare=True,
    ),
    Family(
        "started_duration_seconds",
        "histogram",
        "How long completed events were seen Started, to the poll; only where no gap or restart was in between.",
        ("event_type",),
        STARTED,
        rare=True,
    ),
    Family(
        "observed_interruption_seconds",
        "histogram",
        "Interruptions of this VM seen from inside; attributed to an event only while one of this VM was Started.",
        ("kind", "attributed"),
        INTERRUPTION,
        rare=True,
    ),
    # approvals
    Family(
        "approval_decisions_total",
        "counter",
        "Decisions about events, counted when verdict, reason or rule changes.",
        ("event_type", "decision", "reason", "rule"),
        rare=True,
    ),
    Family("approval_requests_total", "counter", "Approvals sent to the metadata service, refused ones included."),
    Family(
        "approval_request_failures_total", "counter", "Approvals that were not answered 200.", ("reason",), rare=True
    ),
    Family("approvals_outdated_total", "counter", "Approved events that then changed into what the rules would hold."),
    Family(
        "approvals_postponed_total",
        "counter",
        "Approvals that were due and, after a last look, not sent: a document too old, a new hold, a stop.",
    ),
    Family(
        "approval_held",
        "gauge",
        "1 while the hold file holds every approval: it is there, or not clearly absent. 0 also without a hold file.",
    ),
    Family("approval_mode", "gauge", "1 for the configured mode, 0 for the others.", ("mode",)),
    # delivery
    Family("outbox_records", "gauge", "Records that wait for this destination.", ("destination",)),
    Family(
        "outbox_oldest_record_timestamp_seconds",
        "gauge",
        "The time of the oldest record that waits for this destination; absent if none does.",
        ("destination",),
    ),
    Family(
        "destination_records_parked",
        "gauge",
        "Records that this destination refused while it accepted others; kept until requeue sends them again.",
        ("destination",),
    ),
    Family("outbox_bytes", "gauge", "Size of the outbox on disk."),
    Family("outbox_capacity_bytes", "gauge", "The size at which the outbox drops its oldest undelivered records."),
    Family(
        "outbox_writable",
        "gauge",
        "1 if the last record was written, 0 if the disk refused it: nothing is approved, and records wait in memory.",
    ),
    Family(
        "destination_sends_total",
        "counter",
        "Attempts to send to this destination, failed ones included.",
        ("destination",),
    ),
    Family("destination_send_failures_total", "counter", "Attempts to send that failed.", ("destination", "reason")),
    Family("destination_records_sent_total", "counter", "Records that the destination acknowledged.", ("destination",)),
    Family(
        "destination_records_dropped_total",
        "counter",
        "Records that were given up undelivered, or that the destination rejected out of a request that it accepted.",
        ("destination", "reason"),
    ),
    Family(
        "destination_send_duration_seconds", "histogram", "How long an acknowledged send took.", ("destination",), SEND
    ),
    Family(
        "destination_last_success_timestamp_seconds",
        "gauge",
        "When this destination last acknowledged a record.",
        ("destination",),
    ),
    # the scrape endpoint
    Family(
        "web_certificate_not_after_timestamp_seconds",
        "gauge",
        "When the certificate being served expires; absent without TLS.",
    ),
    Family("web_config_reload_failures_total", "counter", "Changed web configurations that were not taken over."),
)
BY_NAME: Final = {family.name: family for family in FAMILIES}

WORDS: Final[dict[str, tuple[str, ...]]] = {
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
"""The closed sets of words, by label. Other labels are open (ids, names of this VM) or depend on the configuration."""


def metrics_table() -> str:
    """The table of metrics in Markdown, with the rare families and the words of the labels below it."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for family in FAMILIES:
        labels = " ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.full_name}` | {family.type} | {labels} | {family.help} |")
    rare = ", ".join(f"`{family.name}`" for family in FAMILIES if family.rare)
    lines += ["", f"These have no series before their first observation, which `increase()` therefore misses: {rare}."]
    lines += ["The head of `alerts/rules.yml` says how to count it all the same."]
    lines += ["", "| label | values |", "| --- | --- |"]
    lines += [f"| `{label}` | {' '.join(f'`{word}`' for word in words)} |" for label, words in WORDS.items()]
    return "\n".join(lines) + "\n"
