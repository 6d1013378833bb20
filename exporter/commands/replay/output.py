"""The output of `replay`: timeline, table, and comparison as text, or all as JSON lines.

Also the policies of a replay: those in force then, from the recording, and the one given now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

from msgspec import Struct, field

from exporter.commands.replay import differences
from exporter.commands.replay.decisions import as_values, table
from exporter.commands.replay.differences import Comparison, DifferenceKind
from exporter.commands.replay.engine import OF_A_POLICY, ReplayEngine
from exporter.commands.replay.entries import Began, PolicyKnown
from exporter.commands.replay.inputs import ReplayPlan
from exporter.config.load import PolicyRead, policy_values, value_text
from exporter.config.schema import Settings
from exporter.core.document import folded
from exporter.core.policy import Mode, Policy
from exporter.core.records import Record, RecordKind, optional_timestamp
from exporter.text.format import clean, counted, moment
from exporter.text.terminal import print_line, print_wrapped, terminal_width
from exporter.text.timeline import print_record

NAMES_SHOWN: Final = 20
LONGEST: Final = 500
NOTE_HANG: Final = 1


class ReplayReport(Struct):
    """A replay with its policies.

    `then` are the policies in force then. `given` are the settings with the policy given now; None: decisions use the
    policies of then. `compared` is whether both are compared.
    """

    plan: ReplayPlan
    engine: ReplayEngine
    then: tuple[ActivePolicy, ...]
    given: Settings | None
    compared: bool
    notes: list[str] = field(default_factory=list)

    @property
    def policies(self) -> list[Policy]:
        """All policies that make decisions in this replay."""
        of_then = [each.policy for each in self.then] if self.compared or self.given is None else []
        return [*of_then, *([self.given.approval.policy] if self.given is not None else [])]

    @property
    def policy(self) -> Policy:
        """The policy of the printed decisions; if there were several, the last one."""
        return self.then[-1].policy if self.given is None else self.given.approval.policy

    @property
    def assumed(self) -> tuple[str, ...]:
        """The kinds of records that differ from the recording: decisions of another policy, and its mode."""
        return (*OF_A_POLICY, RecordKind.AGENT_STARTED) if self.compared and self.given is not None else ()

    @property
    def vm_name(self) -> str:
        """The name of the VM, safe to print."""
        return clean(self.engine.vm.name, LONGEST) or "an unknown VM"

    def hints(self) -> list[str]:
        """Return hints at flags that give a more useful result."""
        names, vm_name = list(self.engine.result.names), self.engine.vm.name
        if not names or (vm_name and folded(vm_name) in {folded(name) for name in names}):
            return []
        shown = clean(", ".join(names[:NAMES_SHOWN]), LONGEST)
        if not vm_name:
            return [f"this VM's name is unknown: set --vm; the documents name {shown}"]
        return [f"no event names {clean(vm_name, LONGEST)}: set --vm to one of {shown}"]


class AsText(Struct, frozen=True):
    """Text output: timeline, table, and comparison; with `comparison_only` just the comparison."""

    out: TextIO
    comparison_only: bool

    def _print(self, text: str = "", hang: int = 0, *, prose: bool = True) -> None:
        print_wrapped(text, self.out, hang=hang, prose=prose)

    def begin(self, report: ReplayReport) -> None:
        """Print the VM, the policies, and the assumptions."""
        if self.comparison_only:
            self._print(f"As {report.vm_name}: decisions then, and with the policy given now. Nothing is sent.")
        else:
            self._print(f"As {report.vm_name}{_by(report)}. Nothing is sent.")
        if report.given is None and len(report.then) > 1:
            for text in policy_lines(report.then):
                self._print(f"({clean(text, LONGEST)})", NOTE_HANG)
        for note in [report.plan.title, *report.notes] if report.plan.title else report.notes:
            self._print(f"({clean(note, LONGEST)})", NOTE_HANG)
        self._print()

    def record(self, report: ReplayReport, record: Record) -> None:
        """Print a record as in the timeline, with a mark if it isn't as recorded."""
        if not self.comparison_only:
            print_record(record, self.out, "(assumed)" if record.kind in report.assumed else "")

    def end(self, report: ReplayReport, comparison: Comparison | None) -> None:
        """Print the table and the comparison, as requested."""
        whole = terminal_width(self.out) is None
        if not self.comparison_only:
            result = report.engine.result
            counts = f"{counted(result.documents, 'document')}, {counted(len(result.decisions), 'event')}"
            self._print()
            self._print(f"{counts}{_by(report, '; ')}:")
            for text, hang in table(result, whole=whole):
                self._print(text, hang, prose=False)
            self._print()
        if comparison is not None:
            for line in (*_comparison_lines(report, comparison), *differences.lines(comparison, whole=whole)):
                self._print(line, differences.hang(line), prose=False)
            self._print()
        for hint in report.hints():
            self._print(f"({hint})", NOTE_HANG)
            self._print()


def _by(report: ReplayReport, separator: str = ": ") -> str:
    """Return the policy of the decisions as the end of a line."""
    if report.given is not None:
        return f"{separator}{policy_line(report.policy)}"
    if len(report.then) > 1:
        return f", with the {len(report.then)} recorded policies"
    return f", with the recorded policy: {next(policy_lines(report.then))}"


def _comparison_lines(report: ReplayReport, comparison: Comparison) -> Iterator[str]:
    for number, text in enumerate(policy_lines(report.then)):
        yield f"{'' if number else 'then':<4}  {clean(text, LONGEST)}"
    yield f"now   {clean(policy_line(report.policy), LONGEST)}"
    for text in changes(report.then[-1].policy, report.policy) if not report.then[-1].faults else ():
        yield f"      {clean(text, LONGEST)}"
    yield ""
    yield differences.summary(comparison)
    yield from _caveats(report, comparison)


def _caveats(report: ReplayReport, comparison: Comparison) -> Iterator[str]:
    """Yield the limits of the comparison."""
    before, now = modes_of(report.then), report.policy.mode
    if before and before != [now]:
        both = comparison.both_approve
        yield f"Modes are not compared: {' and '.join(before)} then, {now} now." + (
            f" An approval would be sent for each of the {counted(both, 'event')} that both policies approve."
            if now is Mode.ENFORCE and both
            else ""
        )
    if Mode.OFF in (*before, now):
        yield "In mode off, rules are not checked: an event that both policies hold counts as the same decision."
    kinds = {difference.kind for difference in comparison.differences}
    if any(difference.posts for difference in comparison.differences):
        yield "If an approval was sent, the course of the event without it is unknown."
    if kinds & {DifferenceKind.APPROVED, DifferenceKind.EARLIER}:
        yield "The effect of an approval that was not sent, or sent later, is unknown."


class AsJson(Struct, frozen=True):
    """JSON output: one object on each line."""

    out: TextIO

    def begin(self, report: ReplayReport) -> None:
        """Print nothing: the last object contains it."""

    def record(self, report: ReplayReport, record: Record) -> None:  # noqa: ARG002  # the last object has the rest
        """Print a record as it is published."""
        print_line(record.to_json().decode(), self.out)

    def end(self, report: ReplayReport, comparison: Comparison | None) -> None:
        """Print the last object."""
        result, policy = report.engine.result, report.policy
        caveats = list(_caveats(report, comparison)) if comparison is not None else []
        last: dict[str, Any] = {
            "decisions": as_values(result),
            "vm_name": report.engine.vm.name or None,
            "assumed": list(report.assumed),
            "documents": result.documents,
            "rejected": result.rejected,
            "failures": result.failures,
            "then": [as_value(each) for each in report.then] if report.compared or report.given is None else None,
            "now": None
            if report.given is None
            else {"file": report.given.config_file or None, "policy": policy_values(policy)},
            "summary": None if comparison is None else differences.summary_value(comparison),
            "differences": None if comparison is None else differences.as_values(comparison),
            "notes": [*report.notes, *caveats, *report.hints()],
        }
        print_line(json.dumps(last, ensure_ascii=False, separators=(",", ":")), self.out)


class ActivePolicy(Struct, frozen=True):
    """A policy and the time since which it was in force. `since` is None for the settings' policy, if none is recorded.

    With `faults` the recorded policy can't be read, and its decisions are unknown.
    """

    policy: Policy
    since: datetime | None = None
    faults: tuple[str, ...] = ()


def policies_then(plan: ReplayPlan, settings: Policy) -> tuple[ActivePolicy, ...]:
    """Return the recorded policies, oldest first; if there is none, the policy of the settings."""
    found: list[tuple[datetime, PolicyRead]] = []
    for entry in plan.entries:
        if isinstance(entry, Began | PolicyKnown) and (not found or found[-1][1] != entry.policy):
            found.append((entry.at, entry.policy))
    return tuple(ActivePolicy(read.policy, since, read.faults) for since, read in found) or (ActivePolicy(settings),)


def is_recorded(then: Sequence[ActivePolicy]) -> bool:
    """Return whether the recording contains a policy, even an unreadable one."""
    return then[0].since is not None


def notes_on(then: Sequence[ActivePolicy], compared: bool) -> Iterator[str]:
    """Yield notes on the policies in force then, for a comparison or for decisions by them."""
    for each in then:
        if each.faults:
            yield (
                f"this version can't read the policy in force from {_moment(each)}, so its decisions are unknown: "
                f"{'; '.join(each.faults)}"
            )
    if compared and not is_recorded(then):
        yield "no policy is recorded: decisions then are those of the policy in the settings"


def policy_lines(then: Sequence[ActivePolicy]) -> Iterator[str]:
    """Yield one line for each policy in force then."""
    for each in then:
        since = f"from {_moment(each)}: " if len(then) > 1 else ""
        yield since + ("an unreadable policy" if each.faults else policy_line(each.policy))


def _moment(each: ActivePolicy) -> str:
    return moment(each.since) if each.since else "the beginning"


def policy_line(policy: Policy) -> str:
    """Return mode, coordination, and the names of the rules."""
    names = ", ".join(rule.name for rule in policy.rules) or "none"
    return f"mode {policy.mode.value}, coordination {policy.coordination.value}, rules {names}"


def modes_of(then: Sequence[ActivePolicy]) -> list[Mode]:
    """Return the different modes in force, oldest first."""
    return list(dict.fromkeys(each.policy.mode for each in then if not each.faults))


def changes(then: Policy, now: Policy) -> Iterator[str]:
    """Yield the differences of two policies key by key, including the order of the rules."""
    before, after = policy_values(then), policy_values(now)
    rules_before = {rule["name"]: rule for rule in before.pop("rules")}
    rules_after = {rule["name"]: rule for rule in after.pop("rules")}
    yield from _changed("", before, after)
    for name in rules_before:
        if name not in rules_after:
            yield f"rule {name}: removed"
    for name, rule in rules_after.items():
        if name not in rules_before:
            asked = ", ".join(f"{key} {value_text(value)}" for key, value in rule.items() if key != "name")
            yield f"rule {name}: added, {asked}"
        else:
            yield from _changed(f"rule {name}: ", rules_before[name], rule)
    kept = [name for name in rules_before if name in rules_after]
    if kept != [name for name in rules_after if name in rules_before]:
        yield "the order of the rules differs"


def _changed(prefix: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        if before.get(key) != after.get(key):
            yield f"{prefix}{key}: {value_text(before.get(key))} -> {value_text(after.get(key))}"


def as_value(each: ActivePolicy) -> dict[str, Any]:
    """Return a policy in force as a JSON value."""
    return {
        "from": optional_timestamp(each.since),
        "recorded": each.since is not None,
        "policy": None if each.faults else policy_values(each.policy),
        "faults": list(each.faults),
    }
