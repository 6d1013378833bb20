"""The message and the severity of a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.core.event_now import EventNow
from exporter.core.policy import Decision, Mode
from exporter.core.records import timestamp
from exporter.core.state import NOT_THIS_VM, Kind, Tracked, Transition, Whose


def severity(transition: Transition) -> str:
    """WARN for what restarts, moves or deletes the VM and for an end that was not observed; INFO for the rest."""
    if transition.kind is Kind.ENDED:
        return "INFO" if NOT_THIS_VM in transition.unseen else "WARN"
    if transition.kind in (Kind.COMPLETED, Kind.CANCELED):
        return "INFO"
    harmless = transition.tracked.event_type == "Freeze" and transition.kind is not Kind.STARTED
    return "INFO" if harmless and not transition.unexpected else "WARN"


def title(tracked: Tracked) -> str:
    """An event's type and id, for the middle of a sentence."""
    return f"{tracked.event_type or 'event of unknown type'} {tracked.event.event_id}"


ANOMALY_MESSAGES: Final[Mapping[str, str]] = {
    "number-restarted": "The document's number went down: the service was switched off in between, or moved",
    "number-skipped": "The document's number went up by more than one: a change was not seen",
    "content-without-number": "The document changed without a new number",
    "number-without-content": "The document has a new number and the same content",
    "slow-first-answer": "The first answer took long: Azure was switching the service on for this VM",
    "switch-off-near": "No good answer for 20 hours: after 24 without a request Azure switches the service off",
}
"""The message of each anomaly in `continuity.ANOMALIES`."""

_WHY: Final[Mapping[str, str]] = {
    "off": "approvals are switched off",
    "not-scheduled": "it is not Scheduled any more",
    "identity-unknown": "this VM's own name is not known, or not confirmed yet by the metadata service",
    "identity-conflict": "the configured name is not the one that the metadata service gives",
    "not-this-vm": "this VM is not among its resources",
    "malformed": "a field that the decision needs can't be read",
    "unknown-type": "its type is not known to this version",
    "already-approved": "Azure already accepted our approval",
    "source-reset": "the document's number went down a moment ago",
    "no-rule": "no rule matches",
    "several-resources": "it touches more than this VM",
    "not-leader": "another VM of its resources comes first",
    "settling": "it has not been unchanged for long enough",
    "not-prepared": "the file that says prepared is not there",
    "not-quiet": "another event is Started, or approved and not over",
    "too-many-resources": "it touches more VMs than the rule allows",
    "out-of-hours": "it is outside of the rule's hours",
    "held": "the hold file is not known to be absent",
    "outbox-unwritable": "the decision could not be recorded",
    "dry-run": "it would be approved, but the mode is dry-run",
    "": "a rule matches",
}


def why(decision: Decision) -> str:
    """The reason of a decision as a clause, with what was found."""
    rule = f" (rule {decision.rule})" if decision.rule else ""
    return f"{_WHY[decision.reason.value]}{rule}{f': {decision.finding}' if decision.finding else ''}"


def in_short(decision: Decision, mode: Mode) -> dict[str, str | None]:
    """The current decision as JSON values, for page, status, and event files."""
    return {
        "decision": decision.verdict.value,
        "reason": decision.reason.value or None,
        "rule": decision.rule or None,
        "finding": decision.finding or None,
        "mode": mode.value,
        "why": why(decision),
    }


def sentence(transition: Transition, vm_name: str) -> str:
    """A transition as a sentence, for a person."""
    tracked = transition.tracked
    event = EventNow(tracked, vm_name)
    resources = "this VM" if event.ownership is Whose.OURS else _resources(tracked.resources)
    what = f"{tracked.event_type or 'Event of unknown type'} of {resources}"
    came = " (it was there before, without this VM)" if transition.joined else ""
    match transition.kind:
        case Kind.SCHEDULED:
            when = f", not before {timestamp(tracked.not_before)}" if tracked.not_before else ""
            return f"{what} is scheduled{when}{came}"
        case Kind.UPDATED:
            names = ", ".join(transition.changed) or "EventStatus"
            return f"{what} changed: {names}"
        case Kind.STARTED:
            how = " (never seen Scheduled)" if not tracked.scheduled_seen else ""
            return f"{what} has started{came or how}"
        case Kind.COMPLETED:
            return f"{what} is over"
        case Kind.CANCELED:
            return f"{what} was canceled by Azure"
        case Kind.ENDED:
            return f"{what} {_ended(transition)}"


def _ended(transition: Transition) -> str:
    if NOT_THIS_VM in transition.unseen:
        return "is no event of this VM any more" if "Resources" in transition.changed else "is no event of this VM"
    if transition.replaced_by:
        return f"is gone; it seems to go on as {transition.replaced_by}"
    return f"is gone; what became of it was not seen ({', '.join(transition.unseen)})"


def _resources(names: tuple[str, ...] | None) -> str:
    if not names:
        return "unknown resources"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
