"""What an event is now, and what of it is another than before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from exporter.events import FIELDS, Document, Event, Rejected
from exporter.folding import folded
from exporter.lifecycle_state import Phase, Rejection, State, Whose


def phase_of(event: Event) -> Phase:
    """By its status alone; a word that we don't know is UNKNOWN."""
    try:
        return Phase(event.status or "")
    except ValueError:
        return Phase.UNKNOWN


def whose_of(event: Event, vm_name: str) -> Whose:
    """By its resources, for a VM of this name; empty: not known."""
    named = event.names(vm_name) if vm_name else None
    if named is None:
        return Whose.MAYBE
    return Whose.OURS if named else Whose.THEIRS


Likeness = tuple[str, frozenset[str]]


def likeness(event: Event) -> Likeness | None:
    """What two ids of one event have in common: its type and resources, in any order; None: that can't be told."""
    if event.event_type is None or event.resources is None:
        return None
    return event.event_type, frozenset(map(folded, event.resources))


def started_anew(known: Iterable[str], events: Iterable[Event]) -> dict[Likeness, str]:
    """The ids that are new and Started, by what they are like. Some stand-ins give each state of an event a new id."""
    found: dict[Likeness, str] = {}
    for event in events:
        like = likeness(event) if phase_of(event) is Phase.STARTED and event.key not in known else None
        if like is not None:
            found.setdefault(like, event.event_id)
    return found


def successor(gone: Event, anew: Mapping[Likeness, str]) -> str:
    """The id of `started_anew` under which this event seems to go on; empty: none."""
    like = likeness(gone) if anew else None
    return anew.get(like, "") if like else ""


def changes(old: Event, new: Event) -> dict[str, tuple[Any, Any]]:
    """Azure's fields that differ, old and new value.

    Not changes: a move between the known statuses, losing NotBefore at the start, the spelling of the id and of a time.
    """
    names = {*old.raw, *new.raw} - {"EventId", "EventStatus"}
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted(names):
        if name == "NotBefore" and _same_not_before(old, new):
            continue
        if old.raw.get(name) != new.raw.get(name) or (name in FIELDS and (name in old.faults) != (name in new.faults)):
            found[name] = (old.raw.get(name), new.raw.get(name))
    if old.status != new.status and Phase.UNKNOWN in (phase_of(old), phase_of(new)):
        found["EventStatus"] = (old.raw.get("EventStatus"), new.raw.get("EventStatus"))
    return found


def _same_not_before(old: Event, new: Event) -> bool:
    if old.not_before is not None and old.not_before == new.not_before:
        return True
    return phase_of(old) is not Phase.STARTED and phase_of(new) is Phase.STARTED and new.raw.get("NotBefore", "") == ""


REJECTIONS_TOLD: Final = 20
"""Of one document: a flood of nonsense must not drown the outbox."""


def rejected(state: State, document: Document) -> tuple[State, tuple[Rejection, ...]]:
    """What is newly not understood in this document, each told once while it stands there."""
    prints = {_fingerprint(item): item for item in document.rejected}
    fresh = [Rejection(item.fault, item.raw) for mark, item in prints.items() if mark not in state.rejected]
    tracked = dict(state.tracked)
    for key, entry in state.tracked.items():
        faults = entry.event.faults
        if entry.phase is Phase.UNKNOWN and "EventStatus" not in faults:
            faults = (*faults, "EventStatus")
        if faults == entry.faults_told:
            continue
        tracked[key] = replace(entry, faults_told=faults)
        if set(faults) - set(entry.faults_told):
            fresh.append(Rejection(", ".join(faults), entry.event.raw, key))
    return replace(state, tracked=tracked, rejected=frozenset(prints)), tuple(fresh[:REJECTIONS_TOLD])


def _fingerprint(item: Rejected) -> str:
    text = json.dumps([item.fault, item.raw], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
