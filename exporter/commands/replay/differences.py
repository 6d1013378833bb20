"""Two replays of one plan, event by event: what was decided then, and what by the policy given now.

Modes are not compared: what dry-run only records, enforce sends, and the event is decided alike.
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
    """How the decisions on an event differ, by what the policy given now does."""

    APPROVED = "approved"
    """It approves what was held."""
    HELD = "held"
    """It holds what was approved."""
    EARLIER = "earlier"
    """It approves earlier."""
    LATER = "later"
    """It approves later."""
    RULE = "rule"
    """It approves at the same time, by another rule."""
    REASON = "reason"
    """It holds too, for another reason or by another rule."""
    UNKNOWN = "unknown"
    """What was decided then is not known."""


class Difference(Struct, frozen=True):
    """One event that is not decided alike. `then` and `now` are None where nothing was decided, or it is not known.

    `seconds` is by how much later it is approved now, negative for earlier; None unless both approve. `held` is, where
    they approve at different times, the decision of the later one that stood when the other approved. With `assumed`,
    `now` did not happen: it would have, had nothing been sent and had the event stayed as it was.
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
    """All events that name this VM, or may: how many are decided alike, and the others one by one.

    `both_approve` counts the events that both approve, `others` those of other VMs, which are not compared.
    """

    events: int
    others: int
    both_approve: int
    differences: tuple[Difference, ...]
    begin: datetime | None
    end: datetime | None

    @property
    def alike(self) -> int:
        """How many events are decided alike."""
        return self.events - len(self.differences)

    def of_kind(self, kind: DifferenceKind) -> list[Difference]:
        """The differences of this kind."""
        return [difference for difference in self.differences if difference.kind is kind]


def compare(then: ReplayResult, now: ReplayResult, vm_name: str, times: Sequence[datetime]) -> Comparison:
    """The comparison of two replays of one plan. `times` are those of its entries."""
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
    )  # stable: within a kind by first sight
    begin, end = (min(times), max(times)) if times else (None, None)
    return Comparison(events, others, both, tuple(differences), begin, end)


_Differs = (
    tuple[DifferenceKind, Moment | None, Moment | None]
    | tuple[DifferenceKind, Moment, Moment, float, Moment | None, bool]
)


def _difference(key: str, then: ReplayResult, now: ReplayResult) -> _Differs | None:
    """The fields of a `Difference` from its kind on; None for an event that is decided alike."""
    before, after = then.approved.get(key), now.approved.get(key) or now.predicted.get(key)
    if before is None and key in then.undecided:
        return DifferenceKind.UNKNOWN, None, after or _last(now.published(key))
    if before is None:
        if after is None:
            return _held_otherwise(then.published(key), now.published(key))
        return DifferenceKind.APPROVED, _standing(then.published(key), after.at), after
    if after is None:
        return DifferenceKind.HELD, before, _standing(now.published(key), before.at)
    seconds = (after.at - before.at).total_seconds()
    if seconds >= _LEAST:
        held = _standing(now.published(key), before.at)
        return DifferenceKind.LATER, before, after, seconds, held, key not in now.approved
    if seconds <= -_LEAST:
        return DifferenceKind.EARLIER, before, after, seconds, _standing(then.published(key), after.at), False
    return (DifferenceKind.RULE, before, after) if before.words != after.words else None


def _held_otherwise(then: Sequence[Moment], now: Sequence[Moment]) -> _Differs | None:
    """The first decisions that differ on an event that both hold. With the mode off no reason was looked for."""
    for before, after in zip_longest(then, now):
        reasons = {each.explanation.decision.reason for each in (before, after) if each is not None}
        if Reason.OFF in reasons:
            return None
        if before is None or after is None or before.words != after.words:
            return DifferenceKind.REASON, before or _last(then), after or _last(now)
    return None


def _last(moments: Sequence[Moment]) -> Moment | None:
    return moments[-1] if moments else None


def _standing(moments: Sequence[Moment], at: datetime) -> Moment | None:
    """The decision that stood at a moment; before the first one, that."""
    return _last([each for each in moments if each.at <= at]) or (moments[0] if moments else None)


# -- for a person


def summary(comparison: Comparison) -> str:
    """The counts, in a sentence."""
    begin, end = comparison.begin, comparison.end
    lasted = f" in {_days((end - begin).total_seconds())}" if begin and end else ""
    of_others = f" ({counted(comparison.others, 'event')} of other VMs left out)" if comparison.others else ""
    parts = [f"{comparison.alike} decided alike"]
    parts += [
        f"{len(found)} {_SUMMARIES[kind]}{_words(kind, found)}"
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
    DifferenceKind.UNKNOWN: "of which it is not known what was decided then",
}


def _days(seconds: float) -> str:
    return counted(round(seconds / DAY), "day") if seconds >= 2 * DAY else span(seconds).replace(NO_BREAK_SPACE, " ")


def _words(kind: DifferenceKind, differences: Sequence[Difference]) -> str:
    """The rules that approve or the reasons that hold, for the end of a part of the summary."""
    if kind is DifferenceKind.UNKNOWN:
        return ""
    reasons = kind in (DifferenceKind.HELD, DifferenceKind.REASON)
    words = dict.fromkeys(each.now.words[0 if reasons else 1] for each in differences if each.now is not None)
    shown = [clean(word, LONGEST) for word in words if word]
    return f" ({'' if reasons else 'by '}{', '.join(shown)})" if shown else ""


def hang(line: str) -> int:
    """Where a line goes on that is too long: those of an indented one below each other."""
    return INDENT if line.startswith(" ") else 0


def lines(comparison: Comparison) -> Iterator[str]:
    """The differences, kind by kind, each with what was decided then and now, why, and what was really sent."""
    for kind in DifferenceKind:
        found = comparison.of_kind(kind)
        if not found:
            continue
        yield ""
        yield f"{len(found)} {_SUMMARIES[kind]}:"
        for difference in found:
            yield ""
            yield f"{clean(difference.event.event_id, LONGEST)}  {what(difference.event)}"
            yield from _side(
                "then", difference.then, "nothing was decided" if kind is not DifferenceKind.UNKNOWN else "not known"
            )
            yield from _side("now", difference.now, "nothing is decided")
            yield from _delay(difference)
            yield f"  sent  {_sent(difference.posts)}"


def _delay(difference: Difference) -> Iterator[str]:
    if difference.seconds is None:
        return
    later = difference.seconds > 0
    assumed = ", had nothing been sent, and had it stayed as it was" if difference.assumed else ""
    by = span(abs(difference.seconds)).replace(NO_BREAK_SPACE, " ")
    yield f"        {by} {'later' if later else 'earlier'}{assumed}"
    if difference.held is not None:
        yield f"        {'until then' if later else 'then still'} {verdict(difference.held.explanation.decision)}"
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
    """The rule that matches, or why no rule does."""
    explanation = decided.explanation
    event = explanation.decision.event
    if explanation.conditions and not decided.approves:
        return  # the condition that is not met is in the verdict
    for evaluation in explanation.evaluations:
        if evaluation.outcome is MatchResult.MATCHES or explanation.decision.rule == "":
            yield f"rule {evaluation.rule.name}: {rule_finding(evaluation, event)}"


def _sent(posts: Sequence[SentApproval]) -> str:
    if not posts:
        return "no approval"
    first, last = posts[0], posts[-1]
    times = "" if len(posts) == 1 else f", {len(posts)} times until {moment(last.at)}"
    if last.answered_at is None:
        return f"{moment(first.at)}{times}, no answer recorded"
    answer = f"answered {last.status}" if last.status is not None else f"not answered ({clean(last.reason, LONGEST)})"
    return f"{moment(first.at)}{times}, {answer} at {moment(last.answered_at)}"


# -- for a program


def summary_value(comparison: Comparison) -> dict[str, Any]:
    """The counts as a JSON value."""
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
    """The differences as JSON values."""
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
