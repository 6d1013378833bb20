"""The summary of one event out of all that a fleet told about it. Pure: no clock, no file, no network.

The same facts give the same summary, in whatever order and however often they come. Several VMs tell of one event:
those that it names, and with `records.scope = "all"` their neighbours. Each is a witness, and all of its facts count:

- The event is over when a witness saw it begin and vanish (`completed`), or saw it vanish before it could begin
  (`canceled`) while nobody who still has it saw it begin, or when nobody still has it.
- The outcome is that of the best witness: `completed` before `canceled` before `ended` (which is: not seen), then the
  one that watched with the fewest gaps. Who says something else is in `conflicts`.
- Only the agent that approved an event knows it (`this_vm`): its neighbours record `other`, `not_before`, or `unknown`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from .record import CLOSING, AzureEvent, Fact, lower

OUTCOMES: Final = ("completed", "canceled", "ended")
APPROVERS: Final = ("this_vm", "other", "not_before", "unknown")
SIGHTS: Final = ("unbroken", "gap", "agent_start")
"""Each with the best first."""
WARNINGS: Final = frozenset({"approval.failed", "approval.outdated", "event.rejected"})
SHOWN: Final = 10
"""How many VMs a conflict names for each side."""


def event_summary(facts: Iterable[Fact], now: str, give_up_seconds: float | None) -> dict[str, Any]:
    """The summary of the event that these facts are about, ready for JSON; at least one fact.

    `now` is a time as facts have it: an event that nobody closed within `give_up_seconds` after the last word about it
    and after its NotBefore is `no-end`; never with None. Copies (by `source` and `id`) count once. What nobody told
    is null.
    """
    told = _without_copies(facts)
    witnesses: dict[str, list[Fact]] = defaultdict(list)
    for fact in told:
        witnesses[fact.source].append(fact)
    views = [_View(own) for own in witnesses.values()]
    latest = next((fact.event for fact in reversed(told) if fact.event is not None), None)
    not_before = next((fact.not_before for fact in reversed(told) if fact.not_before), None)
    best = _best_closing(views)
    closed = best is not None and _is_over(views, best)
    first = min((view.first for view in views if view.first), key=_first_sight, default=None)
    names = _names(fact.vm for fact in told)
    named = _names(name for resources in {fact.event.resources for fact in told if fact.event} for name in resources)
    last = told[-1].time
    return {
        "event_id": told[0].event_id,
        "state": "closed" if closed else _open_state(views, max(last, not_before or ""), now, give_up_seconds),
        **_ending(best if closed else None),
        **_azure(latest),
        "not_before": not_before,
        "resources": sorted(named.values()),
        "reported_by": sorted(names.values()),
        "not_reported_by": sorted(named[key] for key in named.keys() - names.keys()),
        **_place(views),
        "first_seen": first.first_seen if first else None,
        "first_seen_by": first.vm if first else None,
        "seen_before": first.seen_before if first else None,
        "notice_seconds": first.notice_seconds if first else None,
        **_approval(views),
        "started_at": min((fact.started_at for fact in told if fact.started_at), default=None),
        **_felt(views),
        "warnings": sorted({fact.kind for fact in told} & WARNINGS),
        "conflicts": _conflicts(views),
        "records": len(told),
        "last_record_at": last,
    }


def due(found: dict[str, Any]) -> str:
    """The time from which on the end of an open summary is waited for."""
    last: str = max(found["last_record_at"], found["not_before"] or "")
    return last


class _View:
    """What one witness told, in the order of its own clock."""

    def __init__(self, own: list[Fact]) -> None:
        self.own = own
        self.last = own[-1]
        opened = [fact for fact in own if fact.kind in {"scheduled", "started"}]
        closings = [fact for fact in own if fact.kind in CLOSING]
        self.closing = closings[-1] if closings and (not opened or opened[-1].time <= closings[-1].time) else None
        self.is_open = bool(opened) and self.closing is None
        self.started = any(fact.started_at for fact in own)
        self.first = min((fact for fact in own if fact.first_seen), key=_first_sight, default=None)
        decisions = [fact for fact in own if fact.kind == "approval.decided"]
        self.decision = decisions[-1] if decisions else None
        self.event = next((fact.event for fact in reversed(own) if fact.event is not None), None)
        approvers = {fact.started_by for fact in own if fact.started_by}
        if any(fact.approved_at for fact in own) and self.started:
            approvers.add("this_vm")
        self.approver = min(approvers, key=lambda word: _rank(APPROVERS, word), default=None)


def _is_over(views: list[_View], best: Fact) -> bool:
    still = [view for view in views if view.is_open]
    match best.kind:
        case "completed":
            return True
        case "canceled":
            return not any(view.started for view in still)
    return not still


def _open_state(views: list[_View], last: str, now: str, give_up_seconds: float | None) -> str:
    waited = (datetime.fromisoformat(now) - datetime.fromisoformat(last)).total_seconds()
    if give_up_seconds is not None and waited > give_up_seconds:
        return "no-end"
    return "started" if any(view.started for view in views) else "scheduled"


def _best_closing(views: list[_View]) -> Fact | None:
    closings = [view.closing for view in views if view.closing is not None]
    return min(closings, key=_trust, default=None)


def _trust(closing: Fact) -> tuple[object, ...]:
    """The smaller, the better a witness saw how the event ended."""
    return (
        OUTCOMES.index(closing.kind),
        _rank(SIGHTS, closing.seen_before),
        len(closing.unseen),
        closing.gaps,
        closing.gap_seconds,
        closing.affects_self is not True,
        *_order(closing),
    )


def _ending(best: Fact | None) -> dict[str, Any]:
    return {
        "outcome": best.kind if best else None,
        "gone_at": best.gone_at if best else None,
        "outcome_by": best.vm if best else None,
        "unseen": list(best.unseen) if best else [],
        "gap_seconds": best.gap_seconds if best else None,
        "replaced_by": best.replaced_by if best else None,
    }


def _azure(event: AzureEvent | None) -> dict[str, Any]:
    """What Azure said last."""
    return {
        "event_type": event.event_type if event else None,
        "event_source": event.event_source if event else None,
        "event_status": event.status if event else None,
        "description": event.description if event else None,
        "announced_duration_seconds": event.duration if event else None,
    }


def _place(views: list[_View]) -> dict[str, Any]:
    """Where the VMs are that it names, else where the witnesses are: all values that they have."""
    own = [view.last.place for view in views if view.last.affects_self]
    places = own or [view.last.place for view in views]
    tags: dict[str, set[str]] = defaultdict(set)
    for name, value in {pair for place in places for pair in place.tags}:
        tags[name].add(value)
    found = {
        name: sorted({value for place in places if (value := getattr(place, name))})
        for name in ("subscription_id", "resource_group", "vmss_name", "location")
    }
    return {**found, "tags": {name: sorted(values) for name, values in sorted(tags.items())}}


def _approval(views: list[_View]) -> dict[str, Any]:
    """Who let it start, and what the agents had decided last."""
    by = min((view.approver for view in views if view.approver), key=lambda word: _rank(APPROVERS, word), default=None)
    accepted = sorted(
        (fact.approved_at, fact.vm, fact.rule or "") for view in views for fact in view.own if fact.approved_at
    )
    decisions = Counter(
        "approve" if view.decision.verdict == "approve" else f"hold: {view.decision.reason}"
        for view in views
        if view.decision is not None
    )
    return {
        "started_by": by,
        "approved_at": accepted[0][0] if accepted else None,
        "approved_by_vm": accepted[0][1] if accepted else None,
        "rule": (accepted[0][2] or None) if accepted else None,
        "approval_attempts": max((fact.attempts or 0 for view in views for fact in view.own), default=0),
        "decisions": dict(sorted(decisions.items())),
    }


def _felt(views: list[_View]) -> dict[str, Any]:
    """How long each VM stood still during the event; null for one that watched and felt nothing."""
    felt: dict[str, float | None] = {}
    longest: list[float] = []
    for view in views:
        seconds = [fact.interruption_seconds for fact in view.own if fact.interruption_seconds is not None]
        longest += [
            fact.interruption_longest_seconds for fact in view.own if fact.interruption_longest_seconds is not None
        ]
        if seconds:
            felt[view.last.vm] = max([*seconds, felt.get(view.last.vm) or 0.0])
        elif any(fact.watched and fact.affects_self for fact in view.own):
            felt.setdefault(view.last.vm, None)
    return {
        "interruption_seconds": dict(sorted(felt.items())),
        "interruption_longest_seconds": max(longest, default=None),
    }


def _conflicts(views: list[_View]) -> list[dict[str, Any]]:
    """Where witnesses contradict each other: each value with the VMs that say so."""
    said: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    us = any(view.approver == "this_vm" for view in views)
    for view in views:
        if view.closing is not None and view.closing.kind != "ended":
            said["outcome"][view.closing.kind].add(view.last.vm)
        if view.approver in {"other", "not_before"} and not us:
            said["started_by"][view.approver].add(view.last.vm)
        if view.event is not None and view.event.event_type:
            said["event_type"][view.event.event_type].add(view.last.vm)
        if view.event is not None and view.event.event_source:
            said["event_source"][view.event.event_source].add(view.last.vm)
    return [
        {"field": field, "said": {value: sorted(vms)[:SHOWN] for value, vms in sorted(values.items())}}
        for field, values in sorted(said.items())
        if len(values) > 1
    ]


def _without_copies(facts: Iterable[Fact]) -> list[Fact]:
    """Each fact once, in the order of the VMs' clocks."""
    found: dict[tuple[str, str], Fact] = {}
    for fact in sorted(facts, key=_order):
        found.setdefault((fact.source, fact.id), fact)
    return list(found.values())


def _names(words: Iterable[str]) -> dict[str, str]:
    """Names by their lower case; of two spellings the one that sorts first."""
    found: dict[str, str] = {}
    for word in sorted(set(words)):
        found.setdefault(lower(word), word)
    return found


def _rank(words: tuple[str, ...], word: str | None) -> int:
    return words.index(word) if word in words else len(words)


def _first_sight(fact: Fact) -> tuple[str, str, str, str]:
    return fact.first_seen or "", *_order(fact)


def _order(fact: Fact) -> tuple[str, str, str]:
    return fact.time, fact.source, fact.id
