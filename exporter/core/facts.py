"""What happened, as frozen values: counted by the metrics and written to the log, after it is on disk.

A run of the cycle returns its facts; the agent publishes them once the state is committed and the approvals are sent.
"""

from __future__ import annotations

from msgspec import Struct

from exporter.core.policy import Decision
from exporter.core.state import Transition


class Polled(Struct, frozen=True):
    """A poll has ended after `duration` seconds. `failure` is the reason of one that gave no document, else None;
    `detail` is a sentence about it for a person."""

    duration: float
    failure: str | None = None
    detail: str = ""


class DocumentChanged(Struct, frozen=True):
    """A good document differs from the one before."""


class AnomalyObserved(Struct, frozen=True):
    """The source showed an anomaly, one of `continuity.ANOMALIES`."""

    anomaly: str


class UnknownValueObserved(Struct, frozen=True):
    """A field of an event has a value that this version does not know. `field` is Azure's name of it."""

    field: str


class EventTransitioned(Struct, frozen=True):
    """An event of this VM began, changed or ended."""

    transition: Transition


class DecisionMade(Struct, frozen=True):
    """The decision on an event differs from its last one."""

    decision: Decision


class ApprovalRequested(Struct, frozen=True):
    """A POST has left."""

    event_id: str


class ApprovalFailed(Struct, frozen=True):
    """A POST was not answered 200. `reason` is a closed word, `attempt` the number of the POST for this event, and
    `status_code` Azure's answer, None for none. `record_id` is of the record, which only the first for a reason has."""

    reason: str
    event_id: str
    attempt: int
    status_code: int | None = None
    detail: str = ""
    record_id: str = ""


class ApprovalOutdated(Struct, frozen=True):
    """An event that was approved has changed so that the rules would hold it now."""


class ApprovalPostponed(Struct, frozen=True):
    """An approval was due and was not sent. `reason` is a word: why the rules would not send it any more, or why there
    was no connection; `detail` says more, and may be empty."""

    event_id: str
    reason: str
    detail: str = ""


class InterruptionObserved(Struct, frozen=True):
    """The VM was interrupted for `seconds`. `event_id` is the event that it is attributed to, empty for none."""

    kind: str
    seconds: float
    event_id: str = ""


class RecordsDropped(Struct, frozen=True):
    """Records that were dropped before a destination received them. `reason` is a closed word."""

    destination: str
    reason: str
    records: int


Fact = (
    Polled
    | DocumentChanged
    | AnomalyObserved
    | UnknownValueObserved
    | EventTransitioned
    | DecisionMade
    | ApprovalRequested
    | ApprovalFailed
    | ApprovalOutdated
    | ApprovalPostponed
    | InterruptionObserved
    | RecordsDropped
)
"""Everything that can be counted."""
