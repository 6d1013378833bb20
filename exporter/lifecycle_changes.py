"""What an event is now, and what of it is another than before."""

from __future__ import annotations

from typing import Any

from exporter.events import FIELDS, Event
from exporter.lifecycle_state import Phase


def phase_of(event: Event) -> Phase:
    """By its status alone; a word that we don't know is UNKNOWN."""
    try:
        return Phase(event.status or "")
    except ValueError:
        return Phase.UNKNOWN


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
