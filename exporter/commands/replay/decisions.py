"""The decisions of a replay for each event with their checks, as a table and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.core.decision import Explanation, MatchResult, RuleEvaluation
from exporter.core.document import KNOWN_RESOURCE_TYPES, KNOWN_TYPES, Document, Event
from exporter.core.policy import NOT_PUBLISHED, Decision, Mode, Reason, Rule, Verdict, reason_text
from exporter.core.record_factory import decision_data
from exporter.core.records import timestamp
from exporter.text.format import clean, moment

POSTS_KEPT: Final = 20  # of one event; a rejected POST is repeated every minute


class Moment(Struct, frozen=True):
    """A decision, valid from `at` until the next one about the same event."""

    at: datetime
    explanation: Explanation
    mode: Mode
    """The mode of the policy that decided."""

    @property
    def approves(self) -> bool:
        """Whether at most the mode holds the event: dry-run only records the approval, enforce sends it."""
        decision = self.explanation.decision
        return decision.verdict is Verdict.APPROVE or decision.reason is Reason.DRY_RUN

    @property
    def words(self) -> tuple[str, str]:
        """The reason to hold ("" for an approval) and the rule: what distinguishes decisions, whatever the mode."""
        decision = self.explanation.decision
        return ("" if self.approves else decision.reason.value, decision.rule)


class SentApproval(Struct, frozen=True):
    """An approval that the agent really sent. `status` is the HTTP status, None without a response."""

    at: datetime
    answered_at: datetime | None = None
    status: int | None = None
    reason: str = ""


class ReplayResult(Struct):
    """Decisions by event key, and counts: `rejected` inputs and failed polls (`failures`) among them."""

    decisions: dict[str, list[Moment]] = field(default_factory=dict)
    approved: dict[str, Moment] = field(default_factory=dict)
    """The first decision that approves an event, whatever the mode, by event."""
    predicted: dict[str, Moment] = field(default_factory=dict)
    """The same for events that another policy approved first, assuming that they stay unchanged until `NotBefore`."""
    undecided: set[str] = field(default_factory=set)
    """Events that were decided by a policy that can't be read."""
    posts: dict[str, list[SentApproval]] = field(default_factory=dict)
    """The approvals that the agent really sent, by event, oldest first."""
    names: dict[str, None] = field(default_factory=dict)
    """The VMs in `Resources`, in the order in which they first occur."""
    documents: int = 0
    rejected: int = 0
    failures: int = 0

    def read(self, document: Document) -> None:
        """Count a document, and note the VMs that it names."""
        self.documents += 1
        for event in document.events:
            for name in event.resources or ():
                self.names.setdefault(name)

    def decided(self, moment: Moment) -> None:
        """Add a decision that differs from the last one about its event."""
        key = moment.explanation.decision.key
        if moment.approves:
            self.approved.setdefault(key, moment)
        self.decisions.setdefault(key, []).append(moment)

    def published(self, key: str) -> list[Moment]:
        """Return the decisions on an event, except those whose reason isn't published."""
        moments = self.decisions.get(key, ())
        return [moment for moment in moments if moment.explanation.decision.reason not in NOT_PUBLISHED]

    def sent(self, key: str, at: datetime) -> None:
        """Note an approval that was sent."""
        posts = self.posts.setdefault(key, [])
        posts.append(SentApproval(at))
        if len(posts) > POSTS_KEPT:
            del posts[1]  # keep the first and the latest ones

    def answered(self, key: str, at: datetime, status: int | None, reason: str) -> None:
        """Note the response to the last approval of an event."""
        if posts := self.posts.get(key):
            posts[-1] = replace(posts[-1], answered_at=at, status=status, reason=reason)


LONGEST: Final = 300
NAMES_SHOWN: Final = 10
NAME_WIDTH: Final = 22
RESULT_WIDTH: Final = 10
EVENT_HANG: Final = 4
DECISION_HANG: Final = 24
ROW_HANG: Final = 4 + NAME_WIDTH + 2 + RESULT_WIDTH + 2


def table(result: ReplayResult, *, whole: bool) -> Iterator[tuple[str, int]]:
    """Yield the lines of the table, each with its hanging indent: events, their decisions, and the checks.

    With `whole`, every line begins with the event id, and that of a check with the time of the decision as well.
    """
    for moments in result.decisions.values():
        event = moments[0].explanation.decision.event
        event_id = clean(event.event_id, LONGEST)
        yield "", 0
        yield f"{event_id}  {what(event)}", EVENT_HANG
        for moment_of_event in moments:
            at = f"{event_id if whole else ''}  {moment(moment_of_event.at)}"
            yield f"{at}  {verdict(moment_of_event.explanation.decision)}", DECISION_HANG
            rows = list(_rows(moment_of_event.explanation))
            if rows and not whole:
                rows.insert(0, ("check", "result", "details"))
            for name, result_of_check, finding in rows:
                check = f"{clean(name, LONGEST):<{NAME_WIDTH}}  {result_of_check:<{RESULT_WIDTH}}"
                yield f"{at if whole else '  '}  {check}  {clean(finding, LONGEST)}", ROW_HANG


def what(event: Event) -> str:
    """Return the fields of an event that decisions depend on, on one line."""
    resources = event.resources or ()
    shown = ", ".join(resources[:NAMES_SHOWN]) or "unknown"
    others = f" and {len(resources) - NAMES_SHOWN} more" if len(resources) > NAMES_SHOWN else ""
    duration = "unreadable" if event.duration is None else f"{event.duration} s"
    source = event.source or "unreadable"
    fields = f"{event.event_type or 'unknown type'}, source {source}, duration {duration}, resources {shown}{others}"
    return clean(fields, LONGEST)


def verdict(decision: Decision) -> str:
    """Return a decision as text: verdict, reason, and the sentence about the reason."""
    reason = f" {decision.reason.value}" if decision.reason else ""
    return f"{decision.verdict.value}{reason}: {reason_text(decision)}{against(decision)}"


def against(decision: Decision) -> str:
    """Return the event's values that led to the reason, if the reason doesn't contain them."""
    event = decision.event
    names = clean(", ".join((decision.now.tracked.resources or ())[:NAMES_SHOWN]), LONGEST)
    match decision.reason:
        case Reason.NOT_THIS_VM:
            return f" ({clean(decision.fields['vm_name'], LONGEST)} is not one of {names})"
        case Reason.MALFORMED if event.faults:
            return f" ({', '.join(clean(fault, LONGEST) for fault in event.faults)})"
        case Reason.MALFORMED if event.not_before is None:
            return " (NotBefore)"
        case Reason.UNKNOWN_TYPE:
            words = (event.event_type, KNOWN_TYPES), (event.resource_type, KNOWN_RESOURCE_TYPES)
            return f" ({', '.join(clean(word or 'none', LONGEST) for word, known in words if word not in known)})"
        case _:
            return ""


def _rows(explanation: Explanation) -> Iterator[tuple[str, str, str]]:
    for evaluation in explanation.evaluations:
        yield (
            f"rule {evaluation.rule.name}",
            evaluation.outcome.value,
            rule_finding(evaluation, explanation.decision.event),
        )
    for condition in explanation.conditions:
        name = _CONDITIONS.get(condition.reason, condition.reason.value)
        yield name, "yes" if condition.met else "no", condition.finding


_CONDITIONS: Final[Mapping[Reason, str]] = {
    Reason.NOT_LEADER: "this VM may approve",
    Reason.SEVERAL_RESOURCES: "names only this VM",
    Reason.SETTLING: "settle time elapsed",
    Reason.NOT_PREPARED: "ready file exists",
    Reason.NOT_QUIET: "no other event started",
    Reason.TOO_MANY_RESOURCES: "within max_resources",
    Reason.OUT_OF_HOURS: "within allowed hours",
    Reason.HELD: "hold file absent",
    Reason.OUTBOX_UNWRITABLE: "outbox writable",
    Reason.DRY_RUN: "mode allows sending",
}


def rule_finding(evaluation: RuleEvaluation, event: Event) -> str:
    """Return the fields of an event that a rule compared, or the one that did not match."""
    values: dict[str, object] = {
        "EventType": event.event_type,
        "EventSource": event.source,
        "DurationInSeconds": event.duration,
    }
    if evaluation.outcome is MatchResult.MATCHES:
        return ", ".join(f"{name} {values[name]}" for name in _asked(evaluation.rule))
    if evaluation.outcome is MatchResult.UNREADABLE:
        return f"{evaluation.field} is missing or unreadable, but the rule requires it"
    return f"{evaluation.field} is {values[evaluation.field]}, expected {_wanted(evaluation.rule, evaluation.field)}"


def _asked(rule: Rule) -> list[str]:
    source = ["EventSource"] if rule.event_source is not None else []
    return ["EventType", *source, *(["DurationInSeconds"] if rule.asks_duration else [])]


def _wanted(rule: Rule, field: str) -> str:
    if field == "EventType":
        return " or ".join(sorted(rule.event_type))
    if field == "EventSource":
        return " or ".join(sorted(rule.event_source or ()))
    low = rule.min_duration or 0
    return f"at least {low}" if rule.max_duration is None else f"{low} to {rule.max_duration}"


def as_values(result: ReplayResult) -> list[dict[str, Any]]:
    """Return the decisions as JSON values: one object for each event, with one for each decision."""
    return [
        {
            "event_id": moments[0].explanation.decision.event.event_id,
            "event": moments[0].explanation.decision.event.raw,
            "moments": [moment_value(moment_of_event) for moment_of_event in moments],
        }
        for moments in result.decisions.values()
    ]


def moment_value(moment_of_event: Moment) -> dict[str, Any]:
    """Return a decision and its checks as a JSON value."""
    explanation = moment_of_event.explanation
    decision = explanation.decision
    return {
        "at": timestamp(moment_of_event.at),
        **decision_data(decision, moment_of_event.mode),
        "why": reason_text(decision) + against(decision),
        "rules": [
            {
                "rule": evaluation.rule.name,
                "outcome": evaluation.outcome.value,
                "field": evaluation.field or None,
                "found": rule_finding(evaluation, decision.event),
            }
            for evaluation in explanation.evaluations
        ],
        "conditions": [
            {"reason": condition.reason.value, "met": condition.met, "found": condition.finding}
            for condition in explanation.conditions
        ],
    }
