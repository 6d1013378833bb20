"""Compares two replays of one plan event by event: decisions then, and decisions by the policy given now.

Modes aren't compared: dry-run only records the approval that enforce sends, so both decisions count as equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Final

from msgspec import Struct

from exporter.commands.replay.decisions import (
    Moment,
    ReplayResult,
    SentApproval,
    moment_value,
    rule_finding,
    verdict,
    what,
)
from exporter.core.decision import MatchResult
from exporter.core.document import Event
from exporter.core.policy import Reason
from exporter.core.records import optional_timestamp, timestamp
from exporter.core.scope import ownership_of
from exporter.core.state import Ownership
from exporter.text.format import DAY, NO_BREAK_SPACE, clean, counted, moment, span

LONGEST: Final = 300
INDENT: Final = 8
_LEAST: Final = 0.001  # seconds


class DifferenceKind(StrEnum):
    """The difference of two decisions on an event, from the policy then to the policy given now."""

    APPROVED = "approved"
    """Held then, approved now."""
    HELD = "held"
    """Approved then, held now."""
    EARLIER = "earlier"
    """Approved earlier now."""
    LATER = "later"
    """Approved later now."""
    RULE = "rule"
    """Approved at the same time, by another rule."""
    REASON = "reason"
    """Held too, for another reason or by another rule."""
    UNKNOWN = "unknown"
    """The decision then is unknown."""


class Difference(Struct, frozen=True):
    """An event with different decisions. `then` and `now` are None if there was no decision, or it is unknown.

    `seconds` is the delay of the approval now (negative: earlier); None unless both approve. If both approve at
    different times, `held` is the decision of the later policy at the time of the earlier approval. `assumed`: `now` is
    a prediction which assumes that no approval was sent and that the event stayed unchanged.
    """

    event: Event
    posts: tuple[SentApproval, ...]
    kind: DifferenceKind
    then: Moment | None
    now: Moment | None
    seconds: float | None = None
    held: Moment | None = None
    assumed: bool = False


class Comparison(Struct, frozen=True):
    """The comparison of all events that name this VM, or may name it.

    `both_approve` counts the events that both policies approve; `others` counts events of other VMs, not compared.
    """

    events: int
    others: int
    both_approve: int
    differences: tuple[Difference, ...]
    begin: datetime | None
    end: datetime | None

    @property
    def alike(self) -> int:
        """The number of events with the same decision."""
        return self.events - len(self.differences)

    def of_kind(self, kind: DifferenceKind) -> list[Difference]:
        """Return the differences of this kind."""
        return [difference for difference in self.differences if difference.kind is kind]


def compare(then: ReplayResult, now: ReplayResult, vm_name: str, times: Sequence[datetime]) -> Comparison:
    """Compare two replays of one plan. `times` are those of its entries."""
    differences: list[Difference] = []
    events = others = both = 0
    for key in dict.fromkeys((*now.decisions, *then.decisions)):
        moments = (*now.decisions.get(key, ()), *then.decisions.get(key, ()))
        if not {ownership_of(each.explanation.decision.now.tracked.resources, vm_name) for each in moments} - {
            Ownership.THEIRS
        }:
            others += 1
            continue
        events += 1
        both += key in then.approved and (key in now.approved or key in now.predicted)
        event, posts = moments[0].explanation.decision.event, tuple(now.posts.get(key, ()))
        if (differs := _difference(key, then, now)) is not None:
            differences.append(Difference(event, posts, *differs))
    differences.sort(
        key=lambda difference: tuple(DifferenceKind).index(difference.kind)
    )  # stable: within a kind by the first decision
    begin, end = (min(times), max(times)) if times else (None, None)
    return Comparison(events, others, both, tuple(differences), begin, end)


_Differs = (
    tuple[DifferenceKind, Moment | None, Moment | None]
    | tuple[DifferenceKind, Moment, Moment, float, Moment | None, bool]
)


def _difference(key: str, then: ReplayResult, now: ReplayResult) -> _Differs | None:
    """Return the fields of a `Difference` from its kind on; None if the decisions are the same."""
    before, after = then.approved.get(key), now.approved.get(key) or now.predicted.get(key)
    if before is None and key in then.undecided:
        return DifferenceKind.UNKNOWN, None, after or _last(now.published(key))
    if before is None:
        if after is None:
            return _held_otherwise(then.published(key), now.published(key))
        return DifferenceKind.APPROVED, _valid_at(then.published(key), after.at), after
    if after is None:
        return DifferenceKind.HELD, before, _valid_at(now.published(key), before.at)
    seconds = (after.at - before.at).total_seconds()
    if seconds >= _LEAST:
        held = _valid_at(now.published(key), before.at)
        return DifferenceKind.LATER, before, after, seconds, held, key not in now.approved
    if seconds <= -_LEAST:
        return DifferenceKind.EARLIER, before, after, seconds, _valid_at(then.published(key), after.at), False
    return (DifferenceKind.RULE, before, after) if before.words != after.words else None


def _held_otherwise(then: Sequence[Moment], now: Sequence[Moment]) -> _Differs | None:
    """Return the first different decisions on an event that both hold. With the mode off, reasons aren't compared."""
    for before, after in zip_longest(then, now):
        reasons = {each.explanation.decision.reason for each in (before, after) if each is not None}
        if Reason.OFF in reasons:
            return None
        if before is None or after is None or before.words != after.words:
            return DifferenceKind.REASON, before or _last(then), after or _last(now)
    return None


def _last(moments: Sequence[Moment]) -> Moment | None:
    return moments[-1] if moments else None


def _valid_at(moments: Sequence[Moment], at: datetime) -> Moment | None:
    """Return the decision in force at a moment; before the first decision, the first."""
    return _last([each for each in moments if each.at <= at]) or (moments[0] if moments else None)


# -- as text


def summary(comparison: Comparison) -> str:
    """Return the counts as a sentence."""
    begin, end = comparison.begin, comparison.end
    lasted = f" in {_days((end - begin).total_seconds())}" if begin and end else ""
    of_others = f" ({counted(comparison.others, 'event')} of other VMs not compared)" if comparison.others else ""
    parts = [f"{comparison.alike} with the same decision"]
    parts += [
        f"{len(found)} {_SUMMARIES[kind]}{_rules_or_reasons(kind, found)}"
        for kind in DifferenceKind
        if (found := comparison.of_kind(kind))
    ]
    return f"{counted(comparison.events, 'event')}{lasted}{of_others}: {', '.join(parts)}."


_SUMMARIES: Final = {
    DifferenceKind.APPROVED: "would also be approved",
    DifferenceKind.HELD: "would be held",
    DifferenceKind.EARLIER: "would be approved earlier",
    DifferenceKind.LATER: "would be approved later",
    DifferenceKind.RULE: "would be approved by another rule",
    DifferenceKind.REASON: "would be held for another reason",
    DifferenceKind.UNKNOWN: "with an unknown decision then",
}


def _days(seconds: float) -> str:
    return counted(round(seconds / DAY), "day") if seconds >= 2 * DAY else span(seconds).replace(NO_BREAK_SPACE, " ")


def _rules_or_reasons(kind: DifferenceKind, differences: Sequence[Difference]) -> str:
    """Return the rules that approve or the reasons that hold, for the end of a part of the summary."""
    if kind is DifferenceKind.UNKNOWN:
        return ""
    reasons = kind in (DifferenceKind.HELD, DifferenceKind.REASON)
    names = dict.fromkeys(each.now.words[0 if reasons else 1] for each in differences if each.now is not None)
    shown = [clean(name, LONGEST) for name in names if name]
    return f" ({'' if reasons else 'by '}{', '.join(shown)})" if shown else ""


def hang(line: str) -> int:
    """Return the hanging indent of a wrapped line."""
    return INDENT if line.startswith(" ") else 0


def lines(comparison: Comparison, *, whole: bool) -> Iterator[str]:
    """Yield the differences by kind, each with both decisions, their reasons, and the approvals really sent.

    With `whole`, every line about an event begins with its id.
    """
    for kind in DifferenceKind:
        found = comparison.of_kind(kind)
        if not found:
            continue
        yield ""
        yield f"{len(found)} {_SUMMARIES[kind]}:"
        for difference in found:
            event_id = clean(difference.event.event_id, LONGEST)
            yield ""
            yield f"{event_id}  {what(difference.event)}"
            for line in _about(difference):
                yield f"{event_id if whole else ''}{line}"


def _about(difference: Difference) -> Iterator[str]:
    yield from _side("then", difference.then, "unknown" if difference.kind is DifferenceKind.UNKNOWN else "no decision")
    yield from _side("now", difference.now, "no decision")
    yield from _delay(difference)
    yield f"  sent  {_sent(difference.posts)}"


def _delay(difference: Difference) -> Iterator[str]:
    if difference.seconds is None:
        return
    later = difference.seconds > 0
    assumed = ", assuming that no approval was sent and the event stayed unchanged" if difference.assumed else ""
    by = span(abs(difference.seconds)).replace(NO_BREAK_SPACE, " ")
    yield f"        {by} {'later' if later else 'earlier'}{assumed}"
    if difference.held is not None:
        yield f"        {'until then' if later else 'then'} {verdict(difference.held.explanation.decision)}"
        for finding in _findings(difference.held):
            yield f"        {clean(finding, LONGEST)}"


def _side(name: str, decided: Moment | None, nothing: str) -> Iterator[str]:
    if decided is None:
        yield f"  {name:<4}  {nothing}"
        return
    yield f"  {name:<4}  {moment(decided.at)}  {verdict(decided.explanation.decision)}"
    for finding in _findings(decided):
        yield f"        {clean(finding, LONGEST)}"


def _findings(decided: Moment) -> Iterator[str]:
    """Yield the rule that matches, or the reasons why no rule does."""
    explanation = decided.explanation
    event = explanation.decision.event
    if explanation.conditions and not decided.approves:
        return  # the verdict contains the condition that isn't met
    for evaluation in explanation.evaluations:
        if evaluation.outcome is MatchResult.MATCHES or explanation.decision.rule == "":
            yield f"rule {evaluation.rule.name}: {rule_finding(evaluation, event)}"


def _sent(posts: Sequence[SentApproval]) -> str:
    if not posts:
        return "no approval"
    first, last = posts[0], posts[-1]
    times = "" if len(posts) == 1 else f", {len(posts)} times until {moment(last.at)}"
    if last.answered_at is None:
        return f"{moment(first.at)}{times}, no response recorded"
    answer = f"HTTP {last.status}" if last.status is not None else f"no response ({clean(last.reason, LONGEST)})"
    return f"{moment(first.at)}{times}, {answer} at {moment(last.answered_at)}"


# -- as JSON


def summary_value(comparison: Comparison) -> dict[str, Any]:
    """Return the counts as a JSON value."""
    return {
        "events": comparison.events,
        "events_of_others": comparison.others,
        "from": optional_timestamp(comparison.begin),
        "until": optional_timestamp(comparison.end),
        "alike": comparison.alike,
        **{kind.value: len(comparison.of_kind(kind)) for kind in DifferenceKind},
        "text": summary(comparison),
    }


def as_values(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the differences as JSON values."""
    return [
        {
            "event_id": difference.event.event_id,
            "event": difference.event.raw,
            "kind": difference.kind.value,
            "then": moment_value(difference.then) if difference.then else None,
            "now": moment_value(difference.now) if difference.now else None,
            "seconds": difference.seconds,
            "held": moment_value(difference.held) if difference.held else None,
            "assumed": difference.assumed,
            "sent": [
                {
                    "at": timestamp(post.at),
                    "answered_at": optional_timestamp(post.answered_at),
                    "status": post.status,
                    "reason": post.reason or None,
                }
                for post in difference.posts
            ],
        }
        for difference in comparison.differences
    ]
