"""The one outward shape: what a fact looks like to everybody outside, with a deterministic id.

One record = one CloudEvents 1.0 event = one OpenTelemetry log record = one Event Hubs message, one id in all three.

The id is a UUID (version 5) in the namespace `NAMESPACE` of four lines joined by a newline: the VM key (vmId, else the
VM's name, else a random one; fixed in the state at first use), the EventId case-folded, which for a GUID is in lower
case (empty for VM-wide kinds), the kind, and a number that counts the records of this kind and event (for kinds that
are not transitions it begins with the birth of the state in milliseconds). The number is kept in the state and
committed with the record, so the same fact read again after a crash has the same id.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from exporter.approval import Decision, Mode, Verdict
from exporter.events import MINIMUM_NOTICE, Event
from exporter.events_json import encodable
from exporter.lifecycle import CLOSING, Kind, Rejection, State, Tracked, Transition, number, with_tracked

NAMESPACE: Final = uuid.UUID("5b1ffd5e-3f0e-5d5e-9d3a-2f1c8d0a7e11")
SCHEMA_VERSION: Final = 1
DATA_SCHEMA: Final = "urn:azure-scheduled-events-exporter:schema:record:v1"
DEPTH: Final = 80  # of a record's data: what `events` lets through in one event, and what stands around it
CONTENT_TYPE: Final = "application/cloudevents+json"

APPROVAL_DECIDED: Final = "approval.decided"
APPROVAL_ACCEPTED: Final = "approval.accepted"
APPROVAL_FAILED: Final = "approval.failed"
APPROVAL_OUTDATED: Final = "approval.outdated"
INTERRUPTION_OBSERVED: Final = "interruption.observed"
SOURCE_UNAVAILABLE: Final = "source.unavailable"
SOURCE_RECOVERED: Final = "source.recovered"
SOURCE_ANOMALY: Final = "source.anomaly"
DOCUMENT_REJECTED: Final = "document.rejected"
EVENT_REJECTED: Final = "event.rejected"
AGENT_STARTED: Final = "agent.started"
AGENT_STOPPED: Final = "agent.stopped"
KINDS: Final = (
    *(kind.value for kind in Kind),
    APPROVAL_DECIDED,
    APPROVAL_ACCEPTED,
    APPROVAL_FAILED,
    APPROVAL_OUTDATED,
    INTERRUPTION_OBSERVED,
    SOURCE_UNAVAILABLE,
    SOURCE_RECOVERED,
    SOURCE_ANOMALY,
    DOCUMENT_REJECTED,
    EVENT_REJECTED,
    AGENT_STARTED,
    AGENT_STOPPED,
)


@dataclass(frozen=True, slots=True)
class Vm:
    """This VM as it names itself in records and on gauges. Empty strings for what is not known."""

    name: str = ""
    id: str = ""
    resource_id: str = ""
    subscription_id: str = ""
    resource_group: str = ""
    vmss_name: str = ""
    location: str = ""
    zone: str = ""
    size: str = ""
    priority: str = ""
    node: str = ""

    @property
    def source(self) -> str:
        """The CloudEvents `source`: a URI reference."""
        if self.resource_id:
            return quote(self.resource_id, safe="/-._~()", errors="replace")
        if self.id:
            return f"urn:uuid:{quote(self.id, safe='-', errors='replace')}"
        return f"urn:azure-vm:{quote(self.name, safe='-._~', errors='replace') or 'unknown'}"


@dataclass(frozen=True, slots=True)
class Record:
    """One published fact. `data` is JSON-shaped."""

    id: str
    kind: str
    source: str
    subject: str
    time: datetime
    severity: str
    data: Mapping[str, Any]

    @property
    def type(self) -> str:
        return f"azure_scheduled_event.{self.kind}.v{SCHEMA_VERSION}"

    def to_cloudevent(self) -> dict[str, Any]:
        return {
            "specversion": "1.0",
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "subject": self.subject,
            "time": timestamp(self.time),
            "datacontenttype": "application/json",
            "dataschema": DATA_SCHEMA,
            "partitionkey": self.subject,
            "data": self.data,
        }

    def to_json(self) -> bytes:
        """The structured CloudEvent, in UTF-8. Never raises: what JSON can't carry is replaced."""
        found = encodable(self.to_cloudevent(), DEPTH)
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_json(cls, body: bytes | str) -> Record:
        """The record that `to_json` wrote; raises ValueError or KeyError for anything else."""
        try:
            found = json.loads(body)
            prefix, _, rest = found["type"].partition(".")
            kind, _, _ = rest.rpartition(".v")
            texts = [found[name] for name in ("id", "source", "subject")] + [found["data"]["severity"]]
            time = datetime.fromisoformat(found["time"])
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a record: {error!r}") from error
        if prefix != "azure_scheduled_event" or not kind or time.tzinfo is None:
            raise ValueError(f"not a record: {found['type']!r} at {found['time']!r}")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not a record: id, source, subject and severity are strings")
        record_id, source, subject, severity = texts
        return cls(record_id, kind, source, subject, time, severity, found["data"])


def timestamp(value: datetime) -> str:
    """RFC 3339 in UTC with microseconds."""
    return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def optional_timestamp(value: datetime | None) -> str | None:
    return timestamp(value) if value is not None else None


@dataclass(frozen=True, slots=True)
class Writer:
    """Turns facts into records. Values in, `(State, Record)` out: numbering a record changes the state."""

    vm: Vm
    now: datetime
    incarnation: int | None = None
    mode: Mode = Mode.DRY_RUN
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What a restart tells about the time in which we did not look, such as a new boot."""
    watching: bool = True
    """Whether interruptions would be noticed: not where documents alone are played back."""

    def about_event(  # noqa: PLR0917  # the parts of one record
        self, state: State, tracked: Tracked, kind: str, severity: str, message: str, more: Mapping[str, Any]
    ) -> tuple[State, Record]:
        """A record about one event; the event's history in the returned state knows its number."""
        first = 1 if kind in _LIFE else 1 + int(state.birth.timestamp() * 1000)
        count, numbered = number(state.history(tracked.key) or tracked, kind, first)
        event = tracked.event
        data = {
            "event": event.raw,
            "transition": kind if kind in _LIFE else None,
            "affects_self": event.names(self.vm.name) if self.vm.name else None,
            "not_before": optional_timestamp(tracked.not_before),
            **more,
        }
        record = self._record(state, event.key, count, kind, event.event_id, severity, message, data)
        return with_tracked(state, numbered), record

    def about_vm(
        self, state: State, kind: str, severity: str, message: str, more: Mapping[str, Any]
    ) -> tuple[State, Record]:
        """A VM-wide record. Its numbers begin with the birth of the state, so that a lost state repeats no id."""
        count = state.numbers.get(kind, int(state.birth.timestamp() * 1000)) + 1
        data = {"event": None, "transition": None, "affects_self": None, **more}
        record = self._record(state, "", count, kind, self.vm.name or "vm", severity, message, data)
        return replace(state, numbers={**state.numbers, kind: count}), record

    def _record(  # noqa: PLR0917  # the parts of one record
        self,
        state: State,
        event_key: str,
        count: int,
        kind: str,
        subject: str,
        severity: str,
        message: str,
        more: Mapping[str, Any],
    ) -> Record:
        data = {
            "event": more["event"],
            "vm": asdict(self.vm),
            "transition": more["transition"],
            "document_incarnation": self.incarnation,
            "severity": severity,
            "message": message,
            **more,
        }
        name = encodable("\n".join((state.vm_key, event_key, kind, str(count))))
        return Record(
            id=str(uuid.uuid5(NAMESPACE, name)),
            kind=kind,
            source=self.vm.source,
            subject=encodable(subject),
            time=self.now,
            severity=severity,
            data=encodable(data, DEPTH),
        )

    def transition(self, state: State, found: Transition) -> tuple[State, Record]:
        tracked = found.tracked
        more: dict[str, Any] = {"gap_seconds": _rounded(found.gap)}
        if found.first_sight:
            more["seen_before"] = tracked.seen_before.value
        if found.changed:
            more["changed"] = {name: {"from": old, "to": new} for name, (old, new) in found.changed.items()}
        if found.kind is Kind.UPDATED:
            more["unexpected"] = found.unexpected
        if found.kind is Kind.SCHEDULED and tracked.not_before is not None:
            more["notice_seconds"] = _rounded((tracked.not_before - self.now).total_seconds())
        if found.kind is Kind.STARTED:
            more["approved_by"] = tracked.started_by.value if tracked.started_by else None
        if found.kind in CLOSING:
            more["unseen"] = list(found.unseen)
            if "restart" in found.unseen and self.evidence:
                more["evidence"] = dict(self.evidence)
            more["account"] = account(tracked, found.unseen, watching=self.watching)
        return self.about_event(state, tracked, found.kind.value, severity(found), sentence(found, self.vm.name), more)

    def decision(self, state: State, decision: Decision) -> tuple[State, Record]:
        tracked = state.tracked[decision.key]
        more = {"decision": decision_data(decision, self.mode)}
        held = decision.verdict is Verdict.HOLD
        say = f"{'Held' if held else 'Approving'} {_what(decision.event)}: {why(decision)}"
        return self.about_event(state, tracked, APPROVAL_DECIDED, "INFO", say, more)

    def accepted(self, state: State, tracked: Tracked) -> tuple[State, Record]:
        more = {"attempt": tracked.approval.attempts, "status_code": 200, "rule": tracked.approval.rule}
        say = f"Azure accepted our approval of {_what(tracked.event)} (rule {tracked.approval.rule})"
        return self.about_event(state, tracked, APPROVAL_ACCEPTED, "INFO", say, more)

    def failed(
        self, state: State, tracked: Tracked, reason: str, status_code: int | None, error: str
    ) -> tuple[State, Record]:
        attempts = tracked.approval.attempts
        more = {"attempt": attempts, "status_code": status_code, "reason": reason, "error": error}
        say = f"Approval of {_what(tracked.event)} was not accepted (attempt {attempts}): {reason}"
        return self.about_event(state, tracked, APPROVAL_FAILED, "WARN", say, more)

    def outdated(self, state: State, tracked: Tracked, reason: str) -> tuple[State, Record]:
        more = {"reason": reason, "rule": tracked.approval.rule}
        say = f"{_what(tracked.event)} changed after we approved it and would now be held: {reason}"
        return self.about_event(state, tracked, APPROVAL_OUTDATED, "ERROR", say, more)

    def interruption(
        self, state: State, kind: str, seconds: float, noticed: datetime, tracked: Tracked | None
    ) -> tuple[State, Record]:
        """An interruption that this VM felt, and the event it belongs to, if any. Negative: the clock went back."""
        found = {
            "kind": kind,
            "seconds": _rounded(seconds),
            "noticed_at": timestamp(noticed),
            "attributed": tracked is not None,
        }
        if tracked is None:
            say = f"Interruption of {seconds:.1f} s observed ({kind}) while no event of this VM was Started"
            if kind == "clock_step":
                way = "back" if seconds < 0 else "forward"
                say = f"The clock of this VM was set {way} by {abs(seconds):.1f} s while no event of it was Started"
            return self.about_vm(state, INTERRUPTION_OBSERVED, "WARN", say, {"interruption": found})
        felt = tracked.felt
        found["count"], found["total_seconds"] = felt.count, _rounded(felt.total)
        found["longest_seconds"], found["announced_seconds"] = _rounded(felt.longest), tracked.event.duration
        say = f"Interruption of {seconds:.1f} s observed ({kind}) during {_what(tracked.event)}"
        return self.about_event(state, tracked, INTERRUPTION_OBSERVED, "WARN", say, {"interruption": found})

    def anomaly(self, state: State, word: str) -> tuple[State, Record]:
        """The source did something odd, one of `lifecycle.ANOMALIES`."""
        return self.about_vm(state, SOURCE_ANOMALY, "WARN", _ODD[word], {"anomaly": word})

    def rejection(self, state: State, found: Rejection) -> tuple[State, Record]:
        more = {"fault": found.fault}
        if found.key and found.key in state.tracked:
            say = f"Event {found.key} is not wholly understood and will not be approved: {found.fault}"
            return self.about_event(state, state.tracked[found.key], EVENT_REJECTED, "WARN", say, more)
        say = f"An element of the document can't be tracked: {found.fault}"
        return self.about_vm(state, EVENT_REJECTED, "WARN", say, {**more, "event": found.raw})


_LIFE: Final = frozenset(kind.value for kind in Kind)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def decision_data(decision: Decision, mode: Mode) -> dict[str, Any]:
    return {
        "verdict": decision.verdict.value,
        "reason": decision.reason.value or None,
        "rule": decision.rule or None,
        "mode": mode.value,
        "fields": dict(decision.fields),
    }


def severity(found: Transition) -> str:
    """By type and transition: what ends or moves the VM warns, what was not seen to end warns, the rest informs."""
    if found.kind is Kind.UPDATED and found.unexpected:
        return "WARN"
    if found.kind in (Kind.COMPLETED, Kind.CANCELED):
        return "INFO"
    if found.kind is Kind.ENDED:
        return "WARN"
    harmless = found.tracked.event.event_type == "Freeze"
    return "INFO" if harmless and found.kind is not Kind.STARTED else "WARN"


def _what(event: Event) -> str:
    return f"{event.event_type or 'event of unknown type'} {event.event_id}"


_ODD: Final[Mapping[str, str]] = {
    "number-restarted": "The document's number went down: the service was switched off in between, or moved",
    "number-skipped": "The document's number went up by more than one: a change was not seen",
    "content-without-number": "The document changed without a new number",
    "number-without-content": "The document has a new number and the same content",
    "slow-first-answer": "The first answer took long: Azure was switching the service on for this VM",
    "switch-off-near": "No good answer for 20 hours: after 24 without a request Azure switches the service off",
}


_WHY: Final[Mapping[str, str]] = {
    "off": "approvals are switched off",
    "not-scheduled": "it is not Scheduled any more",
    "identity-unknown": "this VM's own name is not known",
    "identity-conflict": "the configured name is not the one that the metadata service gives",
    "not-this-vm": "this VM is not among its resources",
    "malformed": "a field that the decision needs can't be read",
    "unknown-type": "its type is not known to this version",
    "already-approved": "Azure already accepted our approval",
    "no-rule": "no rule matches",
    "several-resources": "it touches more than this VM",
    "not-leader": "another VM of its resources comes first",
    "settling": "it has not been unchanged for long enough",
    "not-prepared": "the file that says prepared is not there",
    "not-quiet": "another event is Started",
    "held": "the hold file is not known to be absent",
    "outbox-unwritable": "the decision could not be recorded",
    "dry-run": "it would be approved, but the mode is dry-run",
    "": "a rule matches",
}


def why(decision: Decision) -> str:
    """The reason of a decision, for a person."""
    rule = f" (rule {decision.rule})" if decision.rule else ""
    return f"{_WHY[decision.reason.value]}{rule}"


def sentence(found: Transition, vm_name: str) -> str:
    """What happened, for a person."""
    tracked, event = found.tracked, found.tracked.event
    who = "this VM" if vm_name and event.names(vm_name) else _resources(event)
    what = f"{event.event_type or 'Event of unknown type'} of {who}"
    match found.kind:
        case Kind.SCHEDULED:
            when = f", not before {timestamp(tracked.not_before)}" if tracked.not_before else ""
            return f"{what} is scheduled{when}"
        case Kind.UPDATED:
            names = ", ".join(found.changed) or "EventStatus"
            return f"{what} changed: {names}"
        case Kind.STARTED:
            how = " (never seen Scheduled)" if not tracked.scheduled_seen else ""
            return f"{what} has started{how}"
        case Kind.COMPLETED:
            return f"{what} is over"
        case Kind.CANCELED:
            return f"{what} was canceled by Azure"
        case Kind.ENDED:
            return f"{what} is gone; what became of it was not seen ({', '.join(found.unseen)})"


def _resources(event: Event) -> str:
    names = event.resources
    if not names:
        return "unknown resources"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def account(tracked: Tracked, unseen: tuple[str, ...] = (), *, watching: bool = True) -> dict[str, Any]:
    """The whole story of an event that is over. Times are RFC 3339, spans are seconds, null is "not known"."""
    event = tracked.event
    notice = None
    if tracked.first_not_before is not None and tracked.scheduled_seen:
        notice = (tracked.first_not_before - tracked.first_seen).total_seconds()
    waited = (tracked.started_at - tracked.first_seen).total_seconds() if tracked.started_at else None
    lasted = None
    if tracked.started_at and tracked.closed_at:
        lasted = (tracked.closed_at - tracked.started_at).total_seconds()
    felt = tracked.felt
    return {
        "first_seen": timestamp(tracked.first_seen),
        "seen_before": tracked.seen_before.value,
        "notice_seconds": _rounded(notice),
        "documented_minimum_notice_seconds": MINIMUM_NOTICE.get(event.event_type or ""),
        "approved_by": tracked.started_by.value if tracked.started_by else None,
        "approved_at": optional_timestamp(tracked.approval.accepted_at),
        "rule": tracked.approval.rule or None,
        "approval_attempts": tracked.approval.attempts,
        "waited_seconds": _rounded(waited),
        "started_at": optional_timestamp(tracked.started_at),
        "started_seconds": _rounded(lasted),
        "gone_at": optional_timestamp(tracked.closed_at),
        "outcome": tracked.outcome.value if tracked.outcome else None,
        "unseen": list(unseen),
        "updates": tracked.updates,
        "updates_while_started": tracked.updates_while_started,
        "gaps": tracked.gaps,
        "gap_seconds": _rounded(tracked.gap_seconds),
        "announced_duration_seconds": event.duration,
        "interruptions_observed": felt.count if watching else None,
        "interruption_seconds": _rounded(felt.total) if felt.count else None,
        "interruption_longest_seconds": _rounded(felt.longest) if felt.count else None,
    }
