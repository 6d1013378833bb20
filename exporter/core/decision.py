"""Decisions: which events this VM may approve, and why each other event is held.

An event is approved only if no reason to hold it applies. `decide` tries the reasons in the order of `Reason`; the
first that applies is the result. So every decision has one reason and, if a rule matched, the rule's name. Pure: the
caller passes in the presence of the files that rules and the operator name.

Source: Azure's documentation of Scheduled Events, section "Start an event": an approval is for all `Resources` of an
event; the VMs may elect a leader, simply the first name in `Resources`; a Started event can't be approved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.core.continuity import RESET_DOCUMENTS, RESET_SECONDS
from exporter.core.document import KNOWN_RESOURCE_TYPES, KNOWN_TYPES, VITAL, Document, Event, folded
from exporter.core.hours import Hours, shown
from exporter.core.lifecycle import phase_of
from exporter.core.policy import (
    OF_CONTENT,
    Context,
    Coordination,
    Decision,
    Mode,
    Policy,
    Presence,
    Reason,
    Rule,
    Verdict,
    prepared_path,
)
from exporter.core.records import Vm, VmIdentity
from exporter.core.scope import EventNow, ownership_of
from exporter.core.state import Ownership, Phase, Reset, State, TrackedEvent
from exporter.core.strict_json import encodable

WITHOUT_FINDING: Final = frozenset({Reason.OUTBOX_UNWRITABLE, Reason.DRY_RUN})
"""Reasons that need no finding."""
MAX_FINDING: Final = 500
"""Maximum number of characters of `Decision.finding`: the number of names in a rule and the length of a path have no
limit."""


def files_to_check(policy: Policy, document: Document | None) -> frozenset[str]:
    """Return every file that a decision on this document may need.

    The hold file is always included, since its presence is a gauge.
    """
    paths = {policy.hold_file} if policy.hold_file else set()
    if policy.mode is Mode.OFF or document is None:
        return frozenset(paths)
    for rule in policy.rules:
        for event in document.events if rule.require_file else ():
            if not rule.differs(event) and (path := prepared_path(rule, event)):
                paths.add(path)
    return frozenset(paths)


def decide(policy: Policy, state: State, context: Context) -> tuple[Decision, ...]:
    """Return a decision for each event of the state's document, from the state only.

    At most one approval by a rule with `when_quiet` is made, and none together with another approval.
    """
    if state.document is None:
        return ()
    decisions = {key: decide_one(policy, state, context, tracked) for key, tracked in state.tracked.items()}
    quiet = {rule.name for rule in policy.rules if rule.when_quiet}
    approved = [decision for decision in decisions.values() if decision.verdict is Verdict.APPROVE]
    if not quiet or len(approved) == 1:
        return tuple(decisions.values())
    going = frozenset(decision.key for decision in approved if decision.rule not in quiet)
    for decision in approved:
        if decision.rule in quiet:
            key = decision.key
            decisions[key] = decide_one(policy, state, context, state.tracked[key], going)
            going |= {key}
    return tuple(decisions.values())


def decide_one(
    policy: Policy, state: State, context: Context, tracked: TrackedEvent, approved_now: frozenset[str] = frozenset()
) -> Decision:
    """Return the decision on one event of the state's document. `approved_now` is as in `Decision`."""
    event, vm_name, rule = tracked.event, context.identity.vm.name, None
    reason, finding = _reason_before_rules(policy, context.identity, tracked)
    if reason is Reason.NONE:
        rule, reason, finding = _reason_by_rules(policy, tracked, state.reset)
    if rule is not None:
        asked = conditions(policy, state, context, tracked, rule, approved_now)
        if unmet := next((condition for condition in asked if not condition.met), None):
            reason, finding = unmet.reason, "" if unmet.reason in WITHOUT_FINDING else unmet.finding
    return Decision(
        key=tracked.key,
        event=event,
        now=EventNow(tracked, vm_name),
        verdict=Verdict.APPROVE if reason is Reason.NONE else Verdict.HOLD,
        reason=reason,
        rule=rule.name if rule else "",
        finding=encodable(finding)[:MAX_FINDING],
        approved_now=approved_now,
        fields={
            "EventType": event.event_type,
            "EventStatus": event.status,
            "EventSource": event.source,
            "DurationInSeconds": event.duration,
            "Resources": list(event.resources) if event.resources is not None else None,
            "NotBefore": event.raw.get("NotBefore"),
            "vm_name": vm_name or None,
            **({"hours": _hours(rule.hours, context.now.wall)} if rule is not None and rule.hours is not None else {}),
        },
    )


def _hours(hours: Hours, now: datetime) -> dict[str, Any]:
    """Return a rule's hours, the zone's local time, and when the window opens or closes next.

    Times are JSON texts, None if unknown.
    """
    local, change = hours.local(now), hours.next_change(now)
    until = hours.local(change) if change is not None else None
    return {
        **hours.table,
        "local_time": local.isoformat(timespec="minutes") if local is not None else None,
        "next_change": until.isoformat(timespec="minutes") if until is not None else None,
    }


def _reason_before_rules(policy: Policy, identity: VmIdentity, tracked: TrackedEvent) -> tuple[Reason, str]:
    """Return why the event is held before any rule is tried, and the finding; `NONE` if it isn't."""
    event, vm_name = tracked.event, identity.vm.name
    if policy.mode is Mode.OFF:
        return Reason.OFF, ""
    if phase_of(event) is not Phase.SCHEDULED or tracked.was_started:
        return Reason.NOT_SCHEDULED, ""
    if not vm_name or not identity.confirmed:
        return Reason.IDENTITY_UNKNOWN, f"{vm_name} is not confirmed" if vm_name else ""
    if identity.conflict:
        return Reason.IDENTITY_CONFLICT, ""
    if EventNow(tracked, vm_name).ownership is Ownership.THEIRS:
        return Reason.NOT_THIS_VM, ""
    if event.faulty or event.event_type is None or event.resources is None or event.not_before is None:
        return Reason.MALFORMED, f"{', '.join(sorted(VITAL.intersection(event.faults))) or 'NotBefore'} cannot be read"
    return Reason.NONE, ""


def _reason_by_rules(
    policy: Policy, tracked: TrackedEvent, reset: Reset | None = None
) -> tuple[Rule | None, Reason, str]:
    """Return the matching rule, or why the event is held and the finding.

    A field that a rule needs and that can't be read comes first.
    """
    event = tracked.event
    rule, reason, finding = match(policy.rules, event)
    if reason is Reason.MALFORMED:
        return None, reason, finding
    if event.event_type not in KNOWN_TYPES:
        return None, Reason.UNKNOWN_TYPE, f"EventType is {event.event_type}"
    if event.resource_type not in KNOWN_RESOURCE_TYPES:
        return None, Reason.UNKNOWN_TYPE, f"ResourceType is {event.resource_type or 'unknown'}"
    if tracked.approval.accepted_at is not None:
        return None, Reason.ALREADY_APPROVED, ""
    if reset is not None:
        return None, Reason.SOURCE_RESET, f"{reset.documents} of {RESET_DOCUMENTS} documents since then"
    return rule, reason, finding


class Explanation(Struct, frozen=True):
    """A decision and the checks behind it. `evaluations` is empty if the event was held before any rule was tried."""

    decision: Decision
    evaluations: tuple[RuleEvaluation, ...] = ()
    conditions: tuple[Condition, ...] = ()


def explain_decision(policy: Policy, state: State, context: Context, decision: Decision) -> Explanation:
    """Return a decision that was just made with all checks of its event, including those after the first failed one."""
    tracked = state.tracked[decision.key]
    if _reason_before_rules(policy, context.identity, tracked)[0] is not Reason.NONE:
        return Explanation(decision)
    if decision.reason in (Reason.UNKNOWN_TYPE, Reason.ALREADY_APPROVED, Reason.SOURCE_RESET):
        return Explanation(decision)
    tried = tuple(evaluations(policy.rules, tracked.event))
    if not tried or tried[-1].outcome is not MatchResult.MATCHES:
        return Explanation(decision, tried)
    asked = conditions(policy, state, context, tracked, tried[-1].rule, decision.approved_now)
    return Explanation(decision, tried, tuple(asked))


def decision_change_points(policy: Policy, state: State, vm_name: str) -> tuple[float, ...]:
    """Return the future values of `State.observed_seconds` at which a decision may change only because time passes.

    For the hours of a rule, only the next edge by the current clock is included: after that, the caller asks again.
    """
    marks = {state.reset.observed_seconds + RESET_SECONDS} if state.reset is not None else set()
    for tracked in state.tracked.values():
        rule = match(policy.rules, tracked.event)[0]
        if rule is not None and rule.hours is not None and state.last_good is not None:
            wall = state.last_good.wall
            edge = rule.hours.next_change(wall)
            marks |= {state.observed_seconds + (edge - wall).total_seconds()} if edge is not None else set()
        marks |= {tracked.unchanged_at + rule.settle for rule in policy.rules if rule.settle is not None}
        if policy.takeover_after is not None and ownership_of(tracked.event.resources, vm_name) is Ownership.OURS:
            marks.add(tracked.first_seen_at + place_among(tracked.event, vm_name) * policy.takeover_after)
    return tuple(sorted(mark for mark in marks if mark > state.observed_seconds))


def outdated_reason(policy: Policy, tracked: TrackedEvent, vm_name: str) -> Reason:
    """Return why the rules would now hold an approved event; `NONE` if they wouldn't.

    Only the event's content counts. Conditions that were met when it was approved (status and NotBefore, settling,
    files, hours) are not checked again.
    """
    event = tracked.event
    as_scheduled = replace(event, faults=tuple(name for name in event.faults if name != "EventId"))
    if phase_of(event) is not Phase.SCHEDULED:
        as_scheduled = replace(
            event,
            status="Scheduled",
            not_before=event.not_before or tracked.not_before or tracked.first_seen.wall,  # any past time will do
            faults=tuple(name for name in as_scheduled.faults if name not in ("EventStatus", "NotBefore")),
        )
    unsent = replace(tracked.approval, accepted_at=None)
    as_unapproved = replace(tracked, event=as_scheduled, approval=unsent, started=None, started_before=False)
    strict = replace(policy, mode=Mode.ENFORCE, hold_file="")
    reason, _ = _reason_before_rules(strict, VmIdentity(Vm(name=vm_name)), as_unapproved)
    if reason is Reason.NONE:
        rule, reason, _ = _reason_by_rules(policy, as_unapproved)
        if rule is not None:
            reason = coordination_of(policy, as_scheduled, vm_name, float("inf"))
            if reason is Reason.NONE and too_many(rule, as_scheduled):
                reason = Reason.TOO_MANY_RESOURCES
    return reason if reason in OF_CONTENT else Reason.NONE


def reconsidered(policy: Policy, tracked: TrackedEvent, vm_name: str) -> tuple[TrackedEvent, Reason] | None:
    """Return an approved event whose approval has become outdated, and why, or is no longer outdated (`NONE`).

    Return None if neither has changed, or if the document doesn't show what the event is now.
    """
    approval = tracked.approval
    if approval.accepted_at is None or tracked.event.is_ambiguous:
        return None
    reason = outdated_reason(policy, tracked, vm_name)
    stale = reason is not Reason.NONE
    if stale == approval.outdated:
        return None
    return replace(tracked, approval=replace(approval, outdated=stale)), reason


class MatchResult(StrEnum):
    """The result of trying a rule on an event."""

    MATCHES = "matches"
    DIFFERS = "differs"
    UNREADABLE = "unreadable"


class RuleEvaluation(Struct, frozen=True):
    """One rule tried on one event. `field` is Azure's name of the field that did not match, if any."""

    rule: Rule
    outcome: MatchResult
    field: str = ""


def evaluations(rules: Iterable[Rule], event: Event) -> Iterator[RuleEvaluation]:
    """Yield the rules as they're tried, up to the first that matches or needs a field that can't be read."""
    for rule in rules:
        if field := rule.unreadable(event):
            yield RuleEvaluation(rule, MatchResult.UNREADABLE, field)
            return
        field = rule.differs(event)
        yield RuleEvaluation(rule, MatchResult.DIFFERS if field else MatchResult.MATCHES, field)
        if not field:
            return


def match(rules: Iterable[Rule], event: Event) -> tuple[Rule | None, Reason, str]:
    """Return the first rule that matches, or why none does and the fields that caused it.

    A field that an earlier rule needs and that can't be read ends the search.
    """
    differs: list[str] = []
    for trial in evaluations(rules, event):
        if trial.outcome is MatchResult.UNREADABLE:
            return None, Reason.MALFORMED, f"rule {trial.rule.name} needs {trial.field}, which cannot be read"
        if trial.outcome is MatchResult.MATCHES:
            return trial.rule, Reason.NONE, ""
        differs.append(f"{trial.field}{'' if differs else ' differs'} in {trial.rule.name}")
    return None, Reason.NO_RULE, ", ".join(differs) or "no rules are configured"


class Condition(Struct, frozen=True):
    """A check after a rule matched.

    `reason` is the hold reason if it's not `met`; `finding` is a clause with the value that was found.
    """

    reason: Reason
    met: bool
    finding: str


def conditions(  # noqa: PLR0917  # the whole context of one event, handed from one place
    policy: Policy, state: State, context: Context, tracked: TrackedEvent, rule: Rule, approved_now: Collection[str]
) -> Iterator[Condition]:
    """Yield the checks after a rule matched, in the order of the reasons, without those that the policy doesn't set."""
    event, files, vm_name = tracked.event, context.files, context.identity.vm.name
    observed_seconds = state.observed_seconds - tracked.first_seen_at
    reason = coordination_of(policy, event, vm_name, observed_seconds)
    if policy.coordination is not Coordination.ANY:
        asked = Reason.SEVERAL_RESOURCES if policy.coordination is Coordination.SINGLE else Reason.NOT_LEADER
        yield Condition(asked, reason is Reason.NONE, _place_text(policy, event, vm_name, observed_seconds))
    if rule.settle is not None:
        unchanged = state.observed_seconds - tracked.unchanged_at
        yield Condition(Reason.SETTLING, unchanged >= rule.settle, f"unchanged for {_progress(unchanged, rule.settle)}")
    if rule.require_file:
        path = prepared_path(rule, event)
        presence = files.get(path, Presence.UNKNOWN) if path else Presence.UNKNOWN
        finding = _presence_text(presence, path) if path else "the event id cannot be part of a path"
        yield Condition(Reason.NOT_PREPARED, presence is Presence.PRESENT, finding)
    if rule.when_quiet:
        disturbing = not_quiet(state, approved_now, tracked.key)
        yield Condition(Reason.NOT_QUIET, not disturbing, disturbing or "no other event is Started or approved")
    if rule.max_resources is not None:
        finding = f"{len(event.resources or ())} VMs, at most {rule.max_resources} allowed"
        yield Condition(Reason.TOO_MANY_RESOURCES, not too_many(rule, event), finding)
    if rule.hours is not None:
        now, hours = context.now.wall, rule.hours
        yield Condition(Reason.OUT_OF_HOURS, hours.within(now), _hours_text(hours, now))
    if policy.hold_file:
        presence = files.get(policy.hold_file, Presence.UNKNOWN)
        yield Condition(Reason.HELD, presence is Presence.ABSENT, _presence_text(presence, policy.hold_file))
    if not context.writable:
        yield Condition(Reason.OUTBOX_UNWRITABLE, False, "the outbox is not writable")
    yield Condition(Reason.DRY_RUN, policy.mode is Mode.ENFORCE, f"the mode is {policy.mode.value}")


def _place_text(policy: Policy, event: Event, vm_name: str, observed_seconds: float) -> str:
    """Return this VM's place among the VMs of an event and, if it may take over, how much of its wait has passed."""
    place = place_among(event, vm_name)
    after = takeover_seconds(policy, event, place)
    waited = f", seen for {_progress(observed_seconds, after)}" if place and after is not None else ""
    return f"place {place + 1} of {len(event.resources or ())}{waited}"


def _progress(seconds: float, needed: float) -> str:
    """Return as text how many seconds of the needed ones have passed."""
    return f"{int(max(0.0, min(seconds, needed)))} s of {needed:g} s"


def _presence_text(presence: Presence, path: str) -> str:
    """Return as a clause whether a file exists."""
    if presence is Presence.UNKNOWN:
        return f"it is unknown whether {path} exists"
    if presence is Presence.UNTRUSTED:
        return f"{path} is not trusted: users other than administrators can change its directory"
    return f"{path} {'exists' if presence is Presence.PRESENT else 'does not exist'}"


def _hours_text(hours: Hours, now: datetime) -> str:
    """Return as a clause whether it is within a rule's hours, and until when.

    The text is the same at each poll, so that outputs that show it don't change every minute.
    """
    if hours.local(now) is None:
        return "the current time is unknown"
    change = hours.next_change(now)
    until = hours.local(change) if change is not None else None
    where = f"{'within' if hours.within(now) else 'outside'} {hours.between} in {hours.timezone}"
    return where + (f" until {shown(until)}" if until is not None else "")


def too_many(rule: Rule, event: Event) -> bool:
    """Return whether an event affects more VMs than the rule allows; True if its resources can't be read."""
    if rule.max_resources is None:
        return False
    return event.resources is None or len(event.resources) > rule.max_resources


def place_among(event: Event, vm_name: str) -> int:
    """Return this VM's place among the VMs of an event that names it; the first is 0."""
    return [folded(name) for name in event.resources or ()].index(folded(vm_name))


def coordination_of(policy: Policy, event: Event, vm_name: str, observed_seconds: float) -> Reason:
    """Return why this VM must leave the event to another; `NONE` if it may act.

    `observed_seconds` is the time since the event was first seen.
    """
    if policy.coordination is Coordination.ANY:
        return Reason.NONE
    if policy.coordination is Coordination.SINGLE:
        return Reason.NONE if len(event.resources or ()) == 1 else Reason.SEVERAL_RESOURCES
    after = takeover_seconds(policy, event, place_among(event, vm_name))
    return Reason.NONE if after is not None and observed_seconds >= after else Reason.NOT_LEADER


def takeover_seconds(policy: Policy, event: Event, place: int) -> float | None:
    """Return the seconds after which the VM at this place (the first is 0) may approve the event; None for never."""
    if place == 0:
        return 0.0
    return place * policy.takeover_after if policy.takeover_after is not None and event.source == "User" else None


def not_quiet(state: State, approved_now: Collection[str], key: str) -> str:
    """Return which other event of the document is Started, or is approved by this VM and has not ended; empty for none.

    An event with an unknown status may be Started. An approval without a response may have been accepted.
    """
    if state.document is not None and any(item.status != "Scheduled" for item in state.document.rejected):
        return "an element of the document that cannot be tracked may be Started"
    for other, tracked in state.tracked.items():
        if other == key:
            continue
        event, approval = tracked.event, tracked.approval
        name = f"{tracked.event_type or 'event'} {event.event_id}"
        if tracked.was_started:
            return f"{name} is or was Started"
        if phase_of(event) is not Phase.SCHEDULED:
            return f"{name} may be Started: its status is {event.status or 'unknown'}"
        if other in approved_now or approval.accepted_at is not None or approval.doubtful:
            return f"{name} was approved and has not ended"
    return ""
