"""The rules tried on an event, and what else is asked once one matches: each with the reason that it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from exporter.approval_policy import Coordination, Mode, Policy, Presence, Reason, Rule, Situation, prepared_path
from exporter.events import Document, Event
from exporter.folding import folded
from exporter.lifecycle import Phase, State, Tracked, phase_of


class Outcome(StrEnum):
    """What came of trying a rule."""

    MATCHES = "matches"
    DIFFERS = "differs"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Trial:
    """One rule tried on one event. `field` is Azure's name of the field that stood against it."""

    rule: Rule
    outcome: Outcome
    field: str = ""


def trials(rules: Iterable[Rule], event: Event) -> Iterator[Trial]:
    """The rules as they are tried, up to the first that matches, or asks for a field that can't be read."""
    for rule in rules:
        if field := rule.unreadable(event):
            yield Trial(rule, Outcome.UNREADABLE, field)
            return
        field = rule.differs(event)
        yield Trial(rule, Outcome.DIFFERS if field else Outcome.MATCHES, field)
        if not field:
            return


def match(rules: Iterable[Rule], event: Event) -> tuple[Rule | None, Reason]:
    """The first rule that matches. A field that a rule asks for on the way and that can't be read ends the search."""
    for trial in trials(rules, event):
        if trial.outcome is Outcome.UNREADABLE:
            return None, Reason.MALFORMED
        if trial.outcome is Outcome.MATCHES:
            return trial.rule, Reason.NONE
    return None, Reason.NO_RULE


@dataclass(frozen=True, slots=True)
class Condition:
    """What else must hold once a rule matches. `reason` is the hold reason where it does not; `found` is for people."""

    reason: Reason
    met: bool
    found: str


def conditions(  # noqa: PLR0917  # the whole situation of one event, handed from one place
    policy: Policy, state: State, situation: Situation, document: Document, tracked: Tracked, rule: Rule
) -> Iterator[Condition]:
    """All that is asked once a rule matches, in the order of the reasons. What is not asked for is left out."""
    event, files = tracked.event, situation.files
    watched = state.watched - tracked.first_seen_at
    reason = coordination_of(policy, event, situation.vm_name, watched)
    if policy.coordination is not Coordination.ANY:
        single = policy.coordination is Coordination.SINGLE
        asked = Reason.SEVERAL_RESOURCES if single else Reason.NOT_LEADER
        yield Condition(asked, reason is Reason.NONE, _place(event, situation.vm_name, watched))
    if rule.settle is not None:
        unchanged = state.watched - tracked.unchanged_at
        yield Condition(
            Reason.SETTLING, unchanged >= rule.settle, f"unchanged for {unchanged:g} s of {rule.settle:g} s"
        )
    if rule.require_file:
        path = prepared_path(rule, event)
        found = files.get(path, Presence.UNKNOWN) if path else Presence.UNKNOWN
        say = f"{path} is {found.value}" if path else "the id can't be part of a path"
        yield Condition(Reason.NOT_PREPARED, found is Presence.PRESENT, say)
    if rule.when_quiet:
        quiet = quiet_besides(document, tracked.key)
        yield Condition(Reason.NOT_QUIET, quiet, f"{'no other' if quiet else 'another'} event is Started")
    if policy.hold_file:
        found = files.get(policy.hold_file, Presence.UNKNOWN)
        yield Condition(Reason.HELD, found is Presence.ABSENT, f"{policy.hold_file} is {found.value}")
    if not situation.writable:
        yield Condition(Reason.OUTBOX_UNWRITABLE, False, "the outbox can't be written")
    enforced = policy.mode is Mode.ENFORCE
    yield Condition(Reason.DRY_RUN, enforced, f"the mode is {policy.mode.value}")


def _place(event: Event, vm_name: str, watched: float) -> str:
    """Where we stand among the VMs of an event, and since when we see it."""
    return f"place {place_among(event, vm_name) + 1} of {len(event.resources or ())}, seen for {watched:g} s"


def place_among(event: Event, vm_name: str) -> int:
    """Our place among the VMs of an event that names us; the first is 0."""
    return [folded(name) for name in event.resources or ()].index(folded(vm_name))


def coordination_of(policy: Policy, event: Event, vm_name: str, watched: float) -> Reason:
    """What stands against it among the VMs of the event, `watched` seconds after our first sight; `NONE` if nothing."""
    if policy.coordination is Coordination.ANY:
        return Reason.NONE
    if policy.coordination is Coordination.SINGLE:
        return Reason.NONE if len(event.resources or ()) == 1 else Reason.SEVERAL_RESOURCES
    place = place_among(event, vm_name)
    if place == 0:
        return Reason.NONE
    after = policy.takeover_after if event.source == "User" else None
    if after is not None and watched >= place * after:
        return Reason.NONE
    return Reason.NOT_LEADER


def quiet_besides(document: Document, key: str) -> bool:
    """No other event is Started. An event whose status can't be told may be, so it is not quiet."""
    if any(item.status != "Scheduled" for item in document.rejected):
        return False
    return all(phase_of(event) is Phase.SCHEDULED for event in document.events if event.key != key)
