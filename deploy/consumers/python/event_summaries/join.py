"""Summarize one event from all records of a fleet about it. Pure: no clock, no file, no network.

The same facts give the same summary, in any order and with any duplicates. Several VMs report an event: those in its
`Resources`, and with `records.scope = "all"` their neighbours. All facts of every reporting VM count:

- The event is closed if a VM observed its start and end (`completed`); if a VM observed its end before the start
  (`canceled`), and no VM on which it is still open observed the start; or if it is open on no VM.
- The outcome is that of the best observer: `completed` before `canceled` before `ended` (not observed), then the VM
  with the fewest polling gaps. `conflicts` lists the other values.
- Only the agent whose approval was accepted knows this (`this_vm`). Its neighbours report `other`, `not_before`, or
  `unknown`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from .record import CLOSING, AzureEvent, Fact, lower

OUTCOMES: Final = ("completed", "canceled", "ended")
APPROVERS: Final = ("this_vm", "other", "not_before", "unknown")
SEEN_BEFORE: Final = ("unbroken", "gap", "agent_start")
"""Each with the best first."""
WARNINGS: Final = frozenset({"approval.failed", "approval.outdated", "event.rejected"})
SHOWN: Final = 10
"""Maximum number of VMs listed per value of a conflict."""


def event_summary(facts: Iterable[Fact], now: str, give_up_seconds: float | None) -> dict[str, Any]:
    """Return the summary of the event of these facts, ready for JSON. Needs at least one fact.

    `now` is a time in the facts' format. An event that isn't closed `give_up_seconds` after its last record and its
    NotBefore is `no-end`; with None, never. Copies (by `source` and `id`) count once. Values that no VM reported are
    null.
    """
    unique = _without_copies(facts)
    by_source: dict[str, list[Fact]] = defaultdict(list)
    for fact in unique:
        by_source[fact.source].append(fact)
    views = [_View(own) for own in by_source.values()]
    latest = next((fact.event for fact in reversed(unique) if fact.event is not None), None)
    not_before = next((fact.not_before for fact in reversed(unique) if fact.not_before), None)
    best = _best_closing(views)
    closed = best is not None and _is_over(views, best)
    first = min((view.first for view in views if view.first), key=_first_seen_key, default=None)
    names = _names(fact.vm for fact in unique)
    named = _names(name for resources in {fact.event.resources for fact in unique if fact.event} for name in resources)
    last = unique[-1].time
    return {
        "event_id": unique[0].event_id,
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
        "started_at": min((fact.started_at for fact in unique if fact.started_at), default=None),
        **_interruptions(views),
        "warnings": sorted({fact.kind for fact in unique} & WARNINGS),
        "conflicts": _conflicts(views),
        "records": len(unique),
        "last_record_at": last,
    }


def due(found: dict[str, Any]) -> str:
    """Return the time from which `give_up_seconds` count for an open summary."""
    last: str = max(found["last_record_at"], found["not_before"] or "")
    return last


class _View:
    """The facts of one VM, in the order of its clock."""

    def __init__(self, own: list[Fact]) -> None:
        self.own = own
        self.last = own[-1]
        opened = [fact for fact in own if fact.kind in {"scheduled", "started"}]
        closings = [fact for fact in own if fact.kind in CLOSING]
        self.closing = closings[-1] if closings and (not opened or opened[-1].time <= closings[-1].time) else None
        self.is_open = bool(opened) and self.closing is None
        self.started = any(fact.started_at for fact in own)
        self.first = min((fact for fact in own if fact.first_seen), key=_first_seen_key, default=None)
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
    """Return a sort key: the smaller, the better the VM observed the end of the event."""
    return (
        OUTCOMES.index(closing.kind),
        _rank(SEEN_BEFORE, closing.seen_before),
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
    """Return Azure's last values."""
    return {
        "event_type": event.event_type if event else None,
        "event_source": event.event_source if event else None,
        "event_status": event.status if event else None,
        "description": event.description if event else None,
        "announced_duration_seconds": event.duration if event else None,
    }


def _place(views: list[_View]) -> dict[str, Any]:
    """Return all locations and tags of the affected VMs, or of the reporting VMs if none is affected."""
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
    """Return what started the event, and the last decisions of the agents."""
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


def _interruptions(views: list[_View]) -> dict[str, Any]:
    """Return the interruption of each VM during the event; None for a VM that measured none."""
    seconds_by_vm: dict[str, float | None] = {}
    longest: list[float] = []
    for view in views:
        seconds = [fact.interruption_seconds for fact in view.own if fact.interruption_seconds is not None]
        longest += [
            fact.interruption_longest_seconds for fact in view.own if fact.interruption_longest_seconds is not None
        ]
        if seconds:
            seconds_by_vm[view.last.vm] = max([*seconds, seconds_by_vm.get(view.last.vm) or 0.0])
        elif any(fact.watched and fact.affects_self for fact in view.own):
            seconds_by_vm.setdefault(view.last.vm, None)
    return {
        "interruption_seconds": dict(sorted(seconds_by_vm.items())),
        "interruption_longest_seconds": max(longest, default=None),
    }


def _conflicts(views: list[_View]) -> list[dict[str, Any]]:
    """Return the fields on which VMs disagree, and for each value the VMs that reported it."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    by_this_vm = any(view.approver == "this_vm" for view in views)
    for view in views:
        if view.closing is not None and view.closing.kind != "ended":
            found["outcome"][view.closing.kind].add(view.last.vm)
        if view.approver in {"other", "not_before"} and not by_this_vm:
            found["started_by"][view.approver].add(view.last.vm)
        if view.event is not None and view.event.event_type:
            found["event_type"][view.event.event_type].add(view.last.vm)
        if view.event is not None and view.event.event_source:
            found["event_source"][view.event.event_source].add(view.last.vm)
    return [
        {"field": field, "values": {value: sorted(vms)[:SHOWN] for value, vms in sorted(values.items())}}
        for field, values in sorted(found.items())
        if len(values) > 1
    ]


def _without_copies(facts: Iterable[Fact]) -> list[Fact]:
    """Return each fact once, in the order of the VMs' clocks."""
    found: dict[tuple[str, str], Fact] = {}
    for fact in sorted(facts, key=_order):
        found.setdefault((fact.source, fact.id), fact)
    return list(found.values())


def _names(words: Iterable[str]) -> dict[str, str]:
    """Return names by their lower case; of two spellings, the one that sorts first."""
    found: dict[str, str] = {}
    for word in sorted(set(words)):
        found.setdefault(lower(word), word)
    return found


def _rank(words: tuple[str, ...], word: str | None) -> int:
    return words.index(word) if word in words else len(words)


def _first_seen_key(fact: Fact) -> tuple[str, str, str, str]:
    return fact.first_seen or "", *_order(fact)


def _order(fact: Fact) -> tuple[str, str, str]:
    return fact.time, fact.source, fact.id
