"""Which policy decides in a replay: the one in force then, as the recording holds it, or the one given now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from exporter.commands.replay.entries import Began, PolicyKnown
from exporter.commands.replay.plans import ReplayPlan
from exporter.config.load import PolicyRead, policy_values
from exporter.core.policy import Mode, Policy
from exporter.core.records import optional_timestamp
from exporter.text.format import moment


class InForce(Struct, frozen=True):
    """A policy and since when the agent decided by it. `since` is None for one that no recording holds: the settings'.

    With `faults` the recorded policy can't be read, and nothing is known of what it decided.
    """

    policy: Policy
    since: datetime | None = None
    faults: tuple[str, ...] = ()


def policies_then(plan: ReplayPlan, settings: Policy) -> tuple[InForce, ...]:
    """The policies in force while this was recorded, oldest first; that of the settings where none is recorded."""
    found: list[tuple[datetime, PolicyRead]] = []
    for entry in plan.entries:
        if isinstance(entry, Began | PolicyKnown) and (not found or found[-1][1] != entry.policy):
            found.append((entry.at, entry.policy))
    return tuple(InForce(read.policy, since, read.faults) for since, read in found) or (InForce(settings),)


def is_recorded(then: Sequence[InForce]) -> bool:
    """Whether the recording holds a policy, be it one that can't be read."""
    return then[0].since is not None


def notes_on(then: Sequence[InForce], compared: bool) -> Iterator[str]:
    """What a person has to know of the policies in force then, where they are `compared` or tell the story."""
    for each in then:
        if each.faults:
            yield (
                f"the policy in force from {_moment(each)} can't be read by this version, so that what it decided is "
                f"not known: {'; '.join(each.faults)}"
            )
    if compared and not is_recorded(then):
        yield "no policy is recorded: what was decided then is told by the policy of the settings"


def history(then: Sequence[InForce]) -> Iterator[str]:
    """One line for each policy in force then."""
    for each in then:
        since = f"from {_moment(each)}: " if len(then) > 1 else ""
        yield since + ("a policy that can't be read" if each.faults else policy_line(each.policy))


def _moment(each: InForce) -> str:
    return moment(each.since) if each.since else "the beginning"


def policy_line(policy: Policy) -> str:
    """Mode, coordination and the names of the rules."""
    names = ", ".join(rule.name for rule in policy.rules) or "none"
    return f"mode {policy.mode.value}, coordination {policy.coordination.value}, rules {names}"


def modes_of(then: Sequence[InForce]) -> list[Mode]:
    """The modes in force, each once, oldest first."""
    return list(dict.fromkeys(each.policy.mode for each in then if not each.faults))


def changes(then: Policy, now: Policy) -> Iterator[str]:
    """What is not the same in two policies, key by key; the order of the rules included."""
    before, after = policy_values(then), policy_values(now)
    rules_before = {rule["name"]: rule for rule in before.pop("rules")}
    rules_after = {rule["name"]: rule for rule in after.pop("rules")}
    yield from _changed("", before, after)
    for name in rules_before:
        if name not in rules_after:
            yield f"rule {name}: gone"
    for name, rule in rules_after.items():
        if name not in rules_before:
            asked = ", ".join(f"{key} {_shown(value)}" for key, value in rule.items() if key != "name")
            yield f"rule {name}: new, {asked}"
        else:
            yield from _changed(f"rule {name}: ", rules_before[name], rule)
    kept = [name for name in rules_before if name in rules_after]
    if kept != [name for name in rules_after if name in rules_before]:
        yield "the rules are tried in another order"


def _changed(prefix: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            yield f"{prefix}{key} was {_shown(before.get(key))}, is {_shown(after.get(key))}"


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def as_value(each: InForce) -> dict[str, Any]:
    """A policy in force as a JSON value."""
    return {
        "from": optional_timestamp(each.since),
        "recorded": each.since is not None,
        "policy": None if each.faults else policy_values(each.policy),
        "faults": list(each.faults),
    }
