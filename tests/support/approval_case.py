"""One event, one policy, and their environment, for the tests of the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.core.decision import decide
from exporter.core.hours import DAYS, Hours
from exporter.core.memory import with_tracked
from exporter.core.policy import Context, Coordination, Decision, Mode, Policy, Reason, Rule, Verdict
from exporter.core.state import Approval, Reset, State
from tests.support.core_documents import KEY, NOON, Watcher, context_of, event, started

ANY_REBOOT = Rule("all", ("Reboot",))
OURS = context_of()
UNTRIED = Approval()
ENFORCE = Policy(Mode.ENFORCE, Coordination.LEADER, rules=(ANY_REBOOT,))


def hours(between: str = "00:00-24:00", *days: str, timezone: str = "UTC") -> Hours:
    """Return the hours of a rule in the settings file's form; every day if none is named."""
    start, end = (int(clock[:2]) * 60 + int(clock[3:]) for clock in between.split("-"))
    numbers = tuple(number for number, day in enumerate(DAYS) if not days or day in days)
    return Hours(start, end, numbers, timezone, ZoneInfo(timezone))


class Case(Struct, frozen=True):
    """An approvable event with its environment and its past, which a test makes unapprovable in one or two ways."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[Any, ...] = ()
    policy: Policy = ENFORCE
    context: Context = OURS
    approval: Approval = UNTRIED
    known_for: float = 0.0
    number_restarted: bool = False

    def state(self) -> State:
        watcher = Watcher.fresh()
        watcher.sees(event(**self.fields), *self.others)
        for _ in range(int(self.known_for)):
            watcher.sees(event(**self.fields), *self.others, up=0)
        tracked = watcher.state.tracked[KEY]
        state = with_tracked(watcher.state, replace(tracked, approval=self.approval))
        return replace(state, reset=Reset(state.observed_seconds)) if self.number_restarted else state

    def decision(self) -> Decision:
        decisions = decide(self.policy, self.state(), self.context)
        return next(found for found in decisions if found.key == KEY)

    def rules(self, **more: Any) -> Case:
        return replace(
            self, policy=replace(self.policy, rules=tuple(replace(rule, **more) for rule in self.policy.rules))
        )


def recorded(case: Case) -> str:
    """Return the reason of the decision; empty for an approval."""
    found = case.decision()
    assert (found.verdict is Verdict.APPROVE) == (found.reason is Reason.NONE)
    return found.reason.value


# -- the order of the reasons

SPOILERS: Mapping[Reason, Callable[[Case], Case]] = {
    Reason.OFF: lambda case: replace(case, policy=replace(case.policy, mode=Mode.OFF)),
    Reason.NOT_SCHEDULED: lambda case: replace(case, fields={**case.fields, "EventStatus": "Started"}),
    Reason.IDENTITY_UNKNOWN: lambda case: replace(case, context=context_of("")),
    Reason.IDENTITY_CONFLICT: lambda case: replace(case, context=context_of(conflict=True)),
    Reason.NOT_THIS_VM: lambda case: replace(case, fields={**case.fields, "Resources": ["vm-1", "vm-2"]}),
    Reason.MALFORMED: lambda case: replace(case, fields={**case.fields, "NotBefore": "soon"}),
    Reason.UNKNOWN_TYPE: lambda case: replace(case, fields={**case.fields, "ResourceType": "Disk"}),
    Reason.ALREADY_APPROVED: lambda case: replace(case, approval=Approval(1, accepted_at=NOON)),
    Reason.SOURCE_RESET: lambda case: replace(case, number_restarted=True),
    Reason.NO_RULE: lambda case: case.rules(event_type=("Freeze",)),
    Reason.SEVERAL_RESOURCES: lambda case: replace(
        case,
        fields={"Resources": ["vm-1", "vm-0"]} | dict(case.fields),
        policy=replace(case.policy, coordination=Coordination.SINGLE),
    ),
    Reason.NOT_LEADER: lambda case: replace(case, fields={"Resources": ["vm-1", "vm-0"]} | dict(case.fields)),
    Reason.SETTLING: lambda case: case.rules(settle=30.0),
    Reason.NOT_PREPARED: lambda case: case.rules(require_file="/run/ready/{event_id}"),
    Reason.NOT_QUIET: lambda case: replace(case.rules(when_quiet=True), others=(started("other"),)),
    Reason.TOO_MANY_RESOURCES: lambda case: case.rules(max_resources=0),
    Reason.OUT_OF_HOURS: lambda case: case.rules(hours=hours("22:00-05:00")),
    Reason.HELD: lambda case: replace(case, policy=replace(case.policy, hold_file="/etc/hold")),
    Reason.OUTBOX_UNWRITABLE: lambda case: replace(case, context=replace(case.context, writable=False)),
    Reason.DRY_RUN: lambda case: replace(case, policy=replace(case.policy, mode=Mode.DRY_RUN)),
}


# -- coordination


def at_place(place: int, **policy: Any) -> Case:
    """Return a case in which this VM is at that position of `Resources`, counted from 1, with one VM after it."""
    names = [f"other-{number}" for number in range(place - 1)] + ["vm-0", "last"]
    return Case({"Resources": names}, policy=replace(ENFORCE, **policy))
