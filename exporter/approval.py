"""The policy: which events this VM may approve, and for each that it holds, why.

An event is approved only if nothing stands against it. `decide` walks the reasons in the order of `Reason` and the
first that applies is the answer, so that every decision explains itself with one word and, where a rule was reached,
its name. Pure: the files that a rule or the operator asks for are looked at by the caller and handed in.

Sources: Azure's documentation of Scheduled Events, section "Start an event": an approval is for all `Resources` of an
event; one may elect a leader, simply the first name in `Resources`; once Started there is nothing left to approve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from exporter.approval_policy import (
    AFTER_A_RULE,
    BEFORE_A_RULE,
    DEFAULT_RULES,
    NOT_PUBLISHED,
    OF_CONTENT,
    Coordination,
    Decision,
    Mode,
    Policy,
    Presence,
    Reason,
    Rule,
    Situation,
    Verdict,
    prepared_path,
)
from exporter.approval_rules import Condition, Outcome, Trial, conditions, coordination_of, match, place_among, trials
from exporter.events import KNOWN_RESOURCE_TYPES, KNOWN_TYPES, Document
from exporter.lifecycle import RESET_SECONDS, Phase, State, Tracked, phase_of

__all__ = [
    "AFTER_A_RULE",
    "BEFORE_A_RULE",
    "DEFAULT_RULES",
    "NOT_PUBLISHED",
    "Coordination",
    "Decision",
    "Explanation",
    "Mode",
    "Policy",
    "Presence",
    "Reason",
    "Rule",
    "Situation",
    "Verdict",
    "decide",
    "decide_one",
    "explain",
    "files_to_look_at",
    "outdated",
    "reconsidered",
    "turning_points",
]


def files_to_look_at(policy: Policy, document: Document | None) -> frozenset[str]:
    """Every file that a decision on this document may ask for; the hold file always, for people want to see it."""
    found = {policy.hold_file} if policy.hold_file else set()
    if policy.mode is Mode.OFF or document is None:
        return frozenset(found)
    for rule in policy.rules:
        for event in document.events if rule.require_file else ():
            if rule.matches(event) and (path := prepared_path(rule, event)):
                found.add(path)
    return frozenset(found)


def decide(policy: Policy, state: State, situation: Situation) -> tuple[Decision, ...]:
    """A decision for each event of the state's document, from the state alone."""
    if state.document is None:
        return ()
    return tuple(decide_one(policy, state, situation, state.document, tracked) for tracked in state.tracked.values())


def decide_one(policy: Policy, state: State, situation: Situation, document: Document, tracked: Tracked) -> Decision:
    """The decision on one event of the state's document."""
    reason = _before_the_rules(policy, situation, tracked)
    if reason is not Reason.NONE:
        return _decision(tracked, situation, reason, None)
    rule, reason = _by_the_rules(policy, tracked, reset=state.reset is not None)
    if rule is not None:
        reason = _after_a_rule(policy, state, situation, document, tracked, rule)
    return _decision(tracked, situation, reason, rule)


def _decision(tracked: Tracked, situation: Situation, reason: Reason, rule: Rule | None) -> Decision:
    event = tracked.event
    return Decision(
        key=tracked.key,
        event=event,
        verdict=Verdict.APPROVE if reason is Reason.NONE else Verdict.HOLD,
        reason=reason,
        rule=rule.name if rule else "",
        fields={
            "EventType": event.event_type,
            "EventStatus": event.status,
            "EventSource": event.source,
            "DurationInSeconds": event.duration,
            "Resources": list(event.resources) if event.resources is not None else None,
            "NotBefore": event.raw.get("NotBefore"),
            "vm_name": situation.vm_name or None,
        },
    )


def _before_the_rules(policy: Policy, situation: Situation, tracked: Tracked) -> Reason:
    event = tracked.event
    if policy.mode is Mode.OFF:
        return Reason.OFF
    if phase_of(event) is not Phase.SCHEDULED or tracked.was_started:
        return Reason.NOT_SCHEDULED
    if not situation.vm_name or not situation.confirmed:
        return Reason.IDENTITY_UNKNOWN
    if situation.conflict:
        return Reason.IDENTITY_CONFLICT
    if event.names(situation.vm_name) is False:
        return Reason.NOT_THIS_VM
    if event.faulty or event.event_type is None or event.resources is None or event.not_before is None:
        return Reason.MALFORMED
    return Reason.NONE


def _by_the_rules(policy: Policy, tracked: Tracked, *, reset: bool = False) -> tuple[Rule | None, Reason]:
    """The rule that matches, or what stands against it: a field that the rules can't read comes before all else."""
    event = tracked.event
    rule, reason = match(policy.rules, event)
    if reason is Reason.MALFORMED:
        return None, reason
    if event.event_type not in KNOWN_TYPES or event.resource_type not in KNOWN_RESOURCE_TYPES:
        return None, Reason.UNKNOWN_TYPE
    if tracked.approval.accepted_at is not None:
        return None, Reason.ALREADY_APPROVED
    if reset:
        return None, Reason.SOURCE_RESET
    return rule, reason


def _after_a_rule(  # noqa: PLR0917  # as above
    policy: Policy, state: State, situation: Situation, document: Document, tracked: Tracked, rule: Rule
) -> Reason:
    asked = conditions(policy, state, situation, document, tracked, rule)
    return next((condition.reason for condition in asked if not condition.met), Reason.NONE)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with all that led to it. `trials` is empty when something stood against the event before any rule."""

    decision: Decision
    trials: tuple[Trial, ...] = ()
    conditions: tuple[Condition, ...] = ()


def explain(policy: Policy, state: State, situation: Situation) -> tuple[Explanation, ...]:
    """`decide`, and for each event what was asked on the way, also past the first thing that stood against it."""
    return tuple(_explain(policy, state, situation, decision) for decision in decide(policy, state, situation))


def _explain(policy: Policy, state: State, situation: Situation, decision: Decision) -> Explanation:
    tracked, document = state.tracked[decision.key], state.document
    if document is None or _before_the_rules(policy, situation, tracked) is not Reason.NONE:
        return Explanation(decision)
    if decision.reason in (Reason.UNKNOWN_TYPE, Reason.ALREADY_APPROVED, Reason.SOURCE_RESET):
        return Explanation(decision)
    tried = tuple(trials(policy.rules, tracked.event))
    if not tried or tried[-1].outcome is not Outcome.MATCHES:
        return Explanation(decision, tried)
    asked = tuple(conditions(policy, state, situation, document, tracked, tried[-1].rule))
    return Explanation(decision, tried, asked)


def turning_points(policy: Policy, state: State, vm_name: str) -> tuple[float, ...]:
    """The values of `State.watched` still to come at which a decision may change by the mere passing of time."""
    found = {state.reset.watched + RESET_SECONDS} if state.reset is not None else set()
    for tracked in state.tracked.values():
        found |= {tracked.unchanged_at + rule.settle for rule in policy.rules if rule.settle is not None}
        if policy.takeover_after is not None and tracked.event.names(vm_name):
            found.add(tracked.first_seen_at + place_among(tracked.event, vm_name) * policy.takeover_after)
    return tuple(sorted(mark for mark in found if mark > state.watched))


def outdated(policy: Policy, tracked: Tracked, vm_name: str) -> Reason:
    """Why the rules would now hold an event that we approved; `NONE` when they would not.

    Only its content counts: what has passed (its status, and with it NotBefore, its settling, the files) is not asked
    again.
    """
    event = as_scheduled = tracked.event
    if phase_of(event) is not Phase.SCHEDULED:
        as_scheduled = replace(
            event,
            status="Scheduled",
            not_before=event.not_before or tracked.not_before or tracked.first_seen,  # it has passed, whenever it was
            faults=tuple(name for name in event.faults if name not in ("EventStatus", "NotBefore")),
        )
    unsent = replace(tracked.approval, accepted_at=None)
    anew = replace(tracked, event=as_scheduled, approval=unsent, started_at=None, started_before=False)
    strict = replace(policy, mode=Mode.ENFORCE, hold_file="")
    reason = _before_the_rules(strict, Situation(vm_name), anew)
    if reason is Reason.NONE:
        rule, reason = _by_the_rules(policy, anew)
        if rule is not None:
            reason = coordination_of(policy, as_scheduled, vm_name, float("inf"))
    return reason if reason in OF_CONTENT else Reason.NONE


def reconsidered(policy: Policy, tracked: Tracked, vm_name: str) -> tuple[Tracked, Reason] | None:
    """An event that we approved and that has become outdated, with why, or is so no longer (`NONE`); None: no news."""
    approval = tracked.approval
    if approval.accepted_at is None:
        return None
    reason = outdated(policy, tracked, vm_name)
    stale = reason is not Reason.NONE
    if stale == approval.outdated:
        return None
    return replace(tracked, approval=replace(approval, outdated=stale)), reason
