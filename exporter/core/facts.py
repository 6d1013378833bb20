"""Facts: frozen values that metrics count and the log contains, once the state that they belong to is on disk.

A run of the cycle returns its facts; the agent publishes them after the state is committed and the approvals are sent.
"""

from __future__ import annotations

from msgspec import Struct

from exporter.core.policy import Decision
from exporter.core.state import Transition


class Polled(Struct, frozen=True):
    """A poll that ended after `duration` seconds.

    `failure` is the reason if it returned no valid document, else None; `detail` is a human-readable sentence about it.
    """

    duration: float
    failure: str | None = None
    detail: str = ""


class DocumentChanged(Struct, frozen=True):
    """A valid document that differs from the one before."""


class AnomalyObserved(Struct, frozen=True):
    """An anomaly of the metadata service, one of `continuity.ANOMALIES`."""

    anomaly: str


class UnknownValueObserved(Struct, frozen=True):
    """A value that this version doesn't know. `field` is Azure's name of the event's field."""

    field: str


class EventTransitioned(Struct, frozen=True):
    """A transition of an event of this VM."""

    transition: Transition


class DecisionMade(Struct, frozen=True):
    """A decision on an event that differs from its last one."""

    decision: Decision


class ApprovalRequested(Struct, frozen=True):
    """A POST that was sent."""

    event_id: str


class ApprovalFailed(Struct, frozen=True):
    """A POST that did not return HTTP 200.

    `reason` is one of a fixed set of values. `attempt` is the number of the POST for this event. `status_code` is the
    HTTP status, None without a response. `record_id` is the id of the record; only the first failure for a reason has
    one.
    """

    reason: str
    event_id: str
    attempt: int
    status_code: int | None = None
    detail: str = ""
    record_id: str = ""


class ApprovalOutdated(Struct, frozen=True):
    """An approved event that has changed so that the rules would now hold it."""


class ApprovalPostponed(Struct, frozen=True):
    """An approval that was due and was not sent.

    `reason` is why the rules would no longer send it, or why there was no connection. `detail` has more, or is empty.
    """

    event_id: str
    reason: str
    detail: str = ""


class InterruptionObserved(Struct, frozen=True):
    """An interruption of this VM for `seconds`. `event_id` is the event it's attributed to; empty for none."""

    kind: str
    seconds: float
    event_id: str = ""


class RecordsDropped(Struct, frozen=True):
    """Records that were dropped before a destination received them. `reason` is one of a fixed set of values."""

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
"""Every fact that can be counted."""
