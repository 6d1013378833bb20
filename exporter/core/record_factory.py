"""Makes records, with ids that are the same if the same fact is recorded again.

The id is a UUID (version 5) in the namespace `NAMESPACE`, of four lines joined by a newline:

- the VM key: vmId, else the VM's name, else a random one; fixed in the state at first use
- the EventId in ASCII lower case; empty for VM-wide kinds
- the kind
- the number of the record among those of this kind and event; for kinds that are not transitions, counting begins with
  the birth of the state in milliseconds

The number is kept in the state and committed with the record, so the same fact read again after a crash has the same
id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.core.continuity import ANOMALIES
from exporter.core.document import MINIMUM_NOTICE, Event
from exporter.core.memory import number, with_tracked
from exporter.core.policy import Decision, Mode, Verdict, reason_text
from exporter.core.records import DEPTH, Record, RecordKind, Vm, optional_timestamp, rounded, timestamp, vm_data
from exporter.core.scope import EventNow
from exporter.core.state import (
    CLOSING,
    NOT_THIS_VM,
    Interruption,
    Outage,
    Ownership,
    Phase,
    Rejection,
    State,
    TrackedEvent,
    Transition,
    TransitionKind,
)
from exporter.core.strict_json import encodable

NAMESPACE: Final = uuid.UUID("5b1ffd5e-3f0e-5d5e-9d3a-2f1c8d0a7e11")
Data = Mapping[str, Any]
_TRANSITIONS: Final = frozenset(kind.value for kind in TransitionKind)


class RecordFactory(Struct, frozen=True):
    """Makes the records of one moment. Each method returns `(State, Record)`: numbering a record changes the state."""

    vm: Vm
    now: datetime
    incarnation: int | None = None
    mode: Mode = Mode.DRY_RUN
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What is known about the time between two processes, for example a new boot."""
    watching: bool = True
    """Whether interruptions are observed; False if only documents are replayed."""

    def about_event(  # noqa: PLR0917  # the parts of one record
        self, state: State, tracked: TrackedEvent, kind: str, severity: str, message: str, specific: Data
    ) -> tuple[State, Record]:
        """Return a record about one event; the tracked event in the returned state contains its number."""
        first = 1 if kind in _TRANSITIONS else 1 + int(state.birth.timestamp() * 1000)
        count, numbered = number(state.tracked_or_closed(tracked.key) or tracked, kind, first)
        event, event_now = tracked.event, EventNow(tracked, self.vm.name)
        last_readable = event_now.last_readable
        data = {
            "event": event.raw,
            **({"last_readable": last_readable} if last_readable else {}),
            "transition": kind if kind in _TRANSITIONS else None,
            "affects_self": event_now.names_this_vm,
            "not_before": optional_timestamp(tracked.not_before),
            **specific,
        }
        return with_tracked(state, numbered), self._record(state, event, count, kind, severity, message, data)

    def about_vm(self, state: State, kind: str, severity: str, message: str, specific: Data) -> tuple[State, Record]:
        """Return a VM-wide record. Numbers begin with the birth of the state: after a lost state no id repeats."""
        count = state.numbers.get(kind, int(state.birth.timestamp() * 1000)) + 1
        data = {"event": None, "transition": None, "affects_self": None, **specific}
        record = self._record(state, None, count, kind, severity, message, data)
        return replace(state, numbers={**state.numbers, kind: count}), record

    def _record(  # noqa: PLR0917  # the parts of one record
        self, state: State, event: Event | None, count: int, kind: str, severity: str, message: str, specific: Data
    ) -> Record:
        key, subject = (event.key, event.event_id) if event else ("", self.vm.name or "vm")
        data = {
            "kind": kind,
            "event_id": key,
            "transition": specific["transition"],
            "document_incarnation": self.incarnation,
            "severity": severity,
            "message": message,
            **{key: value for key, value in specific.items() if key != "event"},
        }
        name = encodable("\n".join((state.vm_key, key, kind, str(count))))
        return Record(
            id=str(uuid.uuid5(NAMESPACE, name)),
            kind=kind,
            source=self.vm.source,
            subject=encodable(subject),
            time=self.now,
            severity=severity,
            # Azure's object was made encodable when it was parsed.
            data={"event": specific["event"], "vm": dict(vm_data(self.vm)), **_null_for("", encodable(data, DEPTH))},
        )

    def transition(self, state: State, transition: Transition) -> tuple[State, Record]:
        """Return the record of one transition of an event; that of a closing one contains the summary."""
        tracked = transition.tracked
        data: dict[str, Any] = {"gap_seconds": rounded(transition.gap)}
        if transition.newly_seen:
            data["seen_before"] = tracked.seen_before.value
        if transition.joined:
            data["joined"] = True
        if transition.changed:
            data["changed"] = {
                name: {"from": _null_for(-1, old), "to": _null_for(-1, new)}
                for name, (old, new) in transition.changed.items()
            }
        if transition.kind is TransitionKind.UPDATED:
            data["unexpected"] = transition.unexpected
        if transition.kind is TransitionKind.SCHEDULED and tracked.not_before is not None:
            data["notice_seconds"] = rounded((tracked.not_before - self.now).total_seconds())
        if transition.kind is TransitionKind.STARTED:
            data["started_by"] = tracked.started_by.value if tracked.started_by else None
        if transition.kind in CLOSING:
            data["unseen"] = list(transition.unseen)
            if transition.replaced_by:
                data["replaced_by"] = transition.replaced_by
            if "restart" in transition.unseen and self.evidence:
                data["evidence"] = dict(self.evidence)
            data["summary"] = event_summary(
                tracked, transition.unseen, last_published=transition.last_published, watching=self.watching
            )
        message = transition_message(transition, self.vm.name)
        return self.about_event(state, tracked, transition.kind.value, severity(transition), message, data)

    def decision(self, state: State, decision: Decision) -> tuple[State, Record]:
        """Return the `approval.decided` record of a decision on a tracked event."""
        tracked = state.tracked[decision.key]
        data = {"decision": decision_data(decision, self.mode)}
        held = decision.verdict is Verdict.HOLD
        message = f"{'Held' if held else 'Approving'} {event_label(tracked)}: {reason_text(decision)}"
        return self.about_event(state, tracked, RecordKind.APPROVAL_DECIDED, "INFO", message, data)

    def accepted(self, state: State, tracked: TrackedEvent) -> tuple[State, Record]:
        """Return the `approval.accepted` record of a POST that returned HTTP 200."""
        data = {"attempt": tracked.approval.attempts, "status_code": 200, "rule": tracked.approval.rule}
        message = f"Azure accepted this VM's approval of {event_label(tracked)} (rule {tracked.approval.rule})"
        return self.about_event(state, tracked, RecordKind.APPROVAL_ACCEPTED, "INFO", message, data)

    def failed(
        self, state: State, tracked: TrackedEvent, reason: str, status_code: int | None, error: str
    ) -> tuple[State, Record]:
        """Return the `approval.failed` record of a POST with another HTTP status, or without a response (None)."""
        attempts = tracked.approval.attempts
        count = tracked.approval.failures.get(reason, 0)
        data = {"attempt": attempts, "count": count, "status_code": status_code, "reason": reason, "error": error}
        message = f"Approval of {event_label(tracked)} failed (attempt {attempts}): {reason}"
        return self.about_event(state, tracked, RecordKind.APPROVAL_FAILED, "WARN", message, data)

    def outdated(self, state: State, tracked: TrackedEvent, reason: str) -> tuple[State, Record]:
        """Return the `approval.outdated` record: `reason` is why an approved event would now be held."""
        data = {"reason": reason, "rule": tracked.approval.rule}
        message = f"{event_label(tracked)} changed after this VM approved it and would now be held: {reason}"
        return self.about_event(state, tracked, RecordKind.APPROVAL_OUTDATED, "ERROR", message, data)

    def interruption(
        self, state: State, interruption: Interruption, tracked: TrackedEvent | None, *, failing: bool = False
    ) -> tuple[State, Record]:
        """Return the `interruption.observed` record, at the time of observation, with the attributed event, if any.

        `failing`: polls were failing at that time, so an event may have started unobserved.
        """
        kind, seconds = interruption.kind.value, interruption.seconds
        factory = replace(self, now=interruption.at.wall)
        data = {
            "kind": kind,
            "seconds": rounded(seconds),
            "noticed_at": timestamp(interruption.at.wall),
            "attributed": tracked is not None,
        }
        if tracked is None:
            known = "while the metadata service was unavailable" if failing else "while no event of this VM was Started"
            what = f"Interruption of {seconds:.1f} s observed ({kind})"
            if kind == "clock_step":
                what = f"The clock of this VM was set {'back' if seconds < 0 else 'forward'} by {abs(seconds):.1f} s"
            message = f"{what} {known}"
            return factory.about_vm(state, RecordKind.INTERRUPTION_OBSERVED, "WARN", message, {"interruption": data})
        totals = tracked.interruptions
        data["count"], data["total_seconds"] = totals.count, rounded(totals.total)
        data["longest_seconds"], data["announced_seconds"] = rounded(totals.longest), tracked.event.announced_seconds
        message = f"Interruption of {seconds:.1f} s observed ({kind}) during {event_label(tracked)}"
        return factory.about_event(
            state, tracked, RecordKind.INTERRUPTION_OBSERVED, "WARN", message, {"interruption": data}
        )

    def unavailable(self, state: State, outage: Outage, reason: str, lasted: float) -> tuple[State, Record]:
        """Return the `source.unavailable` record: polls have failed for `lasted` seconds, the last one for `reason`."""
        message = f"The metadata service has been failing for {lasted:.0f} s: {reason}"
        data = {"reason": reason, "since": timestamp(outage.since.wall)}
        return self.about_vm(state, RecordKind.SOURCE_UNAVAILABLE, "ERROR", message, data)

    def recovered(self, state: State, outage: Outage, absent: float | None) -> tuple[State, Record]:
        """Return the `source.recovered` record.

        Polls failed for `outage.silent` seconds, and no agent polled for `absent` seconds (None if unknown).
        """
        failed = f"{outage.silent:.0f} s" if outage.silent >= 1 else "less than a second"
        away = f"; the agent was not running for {absent:.0f} s in between" if absent else ""
        if absent is None:
            away = "; the agent was not running in between, for an unknown time because the clock was set back"
        message = f"The metadata service has recovered; polls failed for {failed}{away}"
        data = {
            "reason": outage.reason,
            "since": timestamp(outage.since.wall),
            "gap_seconds": rounded(outage.silent),
            "absent_seconds": rounded(absent),
        }
        return self.about_vm(state, RecordKind.SOURCE_RECOVERED, "INFO", message, data)

    def anomaly(self, state: State, word: str) -> tuple[State, Record]:
        """Return the `source.anomaly` record of one of `continuity.ANOMALIES`."""
        return self.about_vm(state, RecordKind.SOURCE_ANOMALY, "WARN", ANOMALIES[word], {"anomaly": word})

    def rejection(self, state: State, rejection: Rejection) -> tuple[State, Record]:
        """Return the `event.rejected` record of an element that can't be tracked or has invalid fields."""
        data = {"fault": rejection.fault}
        if rejection.key and rejection.key in state.tracked:
            tracked = state.tracked[rejection.key]
            # Other fields matter only to some rules; the decision's record shows that.
            held = ", so it cannot be approved" if tracked.event.faulty else ""
            named = f"Event {tracked.event.event_id} has missing, invalid, repeated, or unknown values{held}"
            message = f"{named}: {rejection.fault}"
            return self.about_event(state, tracked, RecordKind.EVENT_REJECTED, "WARN", message, data)
        message = f"An element of the document cannot be tracked: {rejection.fault}"
        data["event"] = encodable(rejection.raw)
        return self.about_vm(state, RecordKind.EVENT_REJECTED, "WARN", message, data)


def _null_for(nothing: object, value: Any) -> Any:
    """Return `value` with null for everything in it that is equal to `nothing`, the value for "not known".

    That is an empty text, or -1 in Azure's fields.
    """
    if isinstance(value, dict):
        return {name: _null_for(nothing, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_null_for(nothing, item) for item in value]
    return None if value == nothing else value


def decision_data(decision: Decision, mode: Mode) -> dict[str, Any]:
    """Return a decision as records contain it."""
    return {
        "verdict": decision.verdict.value,
        "reason": decision.reason.value or None,
        "rule": decision.rule or None,
        "finding": decision.finding or None,
        "mode": mode.value,
        "fields": {name: _null_for(-1, value) for name, value in decision.fields.items()},
    }


def event_summary(
    tracked: TrackedEvent,
    unseen: tuple[str, ...] = (),
    *,
    last_published: TrackedEvent | None = None,
    watching: bool = True,
) -> dict[str, Any]:
    """Return the summary of an ended event. Times are RFC 3339, durations are seconds, null is "not known".

    `last_published` is the tracked event as last published, if that differs (`Transition.last_published`).
    """
    event, last = tracked.event, last_published or tracked
    notice = None
    if tracked.first_not_before is not None and tracked.scheduled_seen:
        notice = (tracked.first_not_before - tracked.first_seen.wall).total_seconds()
    least, totals = MINIMUM_NOTICE.get(tracked.event_type or ""), tracked.interruptions
    return {
        "first_seen": timestamp(tracked.first_seen.wall),
        "seen_before": tracked.seen_before.value,
        "notice_seconds": rounded(notice),
        "documented_minimum_notice_seconds": float(least) if least is not None else None,
        "started_by": tracked.started_by.value if tracked.started_by else None,
        "approved_at": optional_timestamp(tracked.approval.accepted_at),
        "rule": tracked.approval.rule or None,
        "approval_attempts": tracked.approval.attempts,
        "approval_failures": [{"reason": each, "count": n} for each, n in tracked.approval.failures.items()],
        "scheduled_duration_seconds": rounded(tracked.scheduled_duration_seconds),
        "started_at": optional_timestamp(tracked.started_at),
        "started_duration_seconds": rounded(tracked.started_duration_seconds),
        "gone_at": timestamp(tracked.closed.wall) if tracked.closed else None,
        "outcome": tracked.outcome.value if tracked.outcome else None,
        "last_status": last.phase.value if last.phase is not Phase.UNKNOWN else None,
        "last_not_before": optional_timestamp(last.not_before),
        "unseen": list(unseen),
        "updates": tracked.updates,
        "updates_while_started": tracked.updates_while_started,
        "gaps": tracked.gaps,
        "gap_seconds": rounded(tracked.gap_seconds),
        "announced_duration_seconds": event.announced_seconds,
        "interruptions_observed": totals.count if watching else None,
        "interruption_seconds": rounded(totals.total) if totals.count else None,
        "interruption_longest_seconds": rounded(totals.longest) if totals.count else None,
    }


# -- severity and message


def severity(transition: Transition) -> str:
    """Return WARN for what interrupts the VM, is unexpected, or whose end was not observed, otherwise INFO."""
    if transition.kind is TransitionKind.ENDED:
        return "INFO" if NOT_THIS_VM in transition.unseen else "WARN"
    if transition.kind in (TransitionKind.COMPLETED, TransitionKind.CANCELED):
        return "INFO"
    harmless = transition.tracked.event_type == "Freeze" and transition.kind is not TransitionKind.STARTED
    return "INFO" if harmless and not transition.unexpected else "WARN"


def event_label(tracked: TrackedEvent) -> str:
    """Return an event's type and id, for the middle of a sentence."""
    return f"{tracked.event_type or 'event of unknown type'} {tracked.event.event_id}"


def transition_message(transition: Transition, vm_name: str) -> str:
    """Return a transition as a human-readable sentence."""
    tracked = transition.tracked
    resources = "this VM" if EventNow(tracked, vm_name).ownership is Ownership.OURS else _resources(tracked.resources)
    what = f"{tracked.event_type or 'Event of unknown type'} of {resources}"
    came = " (it existed before, without this VM)" if transition.joined else ""
    match transition.kind:
        case TransitionKind.SCHEDULED:
            when = f", not before {timestamp(tracked.not_before)}" if tracked.not_before else ""
            return f"{what} is scheduled{when}{came}"
        case TransitionKind.UPDATED:
            names = ", ".join(transition.changed) or "EventStatus"
            return f"{what} changed: {names}"
        case TransitionKind.STARTED:
            how = " (never seen Scheduled)" if not tracked.scheduled_seen else ""
            return f"{what} has started{came or how}"
        case TransitionKind.COMPLETED:
            return f"{what} has completed"
        case TransitionKind.CANCELED:
            return f"{what} was canceled by Azure"
        case TransitionKind.ENDED:
            return f"{what} {_ended(transition)}"


def _ended(transition: Transition) -> str:
    if NOT_THIS_VM in transition.unseen:
        return "no longer names this VM" if "Resources" in transition.changed else "does not name this VM"
    if transition.replaced_by:
        return f"is no longer in the document; it seems to continue as {transition.replaced_by}"
    return f"is no longer in the document; its outcome was not observed ({', '.join(transition.unseen)})"


def _resources(names: tuple[str, ...] | None) -> str:
    if not names:
        return "unknown resources"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
