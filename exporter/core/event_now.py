"""What an event is to this VM now: the one answer that the gate, the page, the gauges, the event files and the records
give.

A document may hold a field that can't be read, or show an event as Scheduled that has started. Neither undoes what is
known: a field keeps its last readable value, and an event that has started stays so, until the event is no longer in
the document. Nothing is approved on such a value: for that a decision reads the document's own fields
(`core/decision.py`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from exporter.core.document import FIELDS
from exporter.core.folding import folded
from exporter.core.lifecycle import phase_of
from exporter.core.state import Phase, Tracked, Whose


class EventNow(NamedTuple):
    """An event as last known to a VM of this name; `vm_name` is empty while it is not known."""

    history: Tracked
    vm_name: str

    @property
    def last_readable(self) -> dict[str, Any]:
        """The last readable value, or None, of each of Azure's fields that can't be read in the document, or that it
        holds twice. Not of NotBefore, for which there is `Tracked.not_before`."""
        event = self.history.event
        names = {*event.faults, *event.disputed} & {*FIELDS} - {"EventId", "NotBefore"}
        resources = list(self.history.resources) if self.history.resources is not None else None
        earlier = {"EventType": self.history.event_type, "Resources": resources, "EventStatus": self.history.status}
        return {name: earlier.get(name) for name in sorted(names)}

    @property
    def ownership(self) -> Whose:
        """Whether the last known Resources name this VM."""
        return ownership_of(self.history.resources, self.vm_name)

    @property
    def names_this_vm(self) -> bool | None:
        """`ownership` as JSON has it; None if it is not known."""
        ownership = self.ownership
        return None if ownership is Whose.MAYBE else ownership is Whose.OURS

    @property
    def phase(self) -> Phase:
        """STARTED from when it was first seen Started; before that the last status that could be read."""
        return phase_of(self.history) if self.history.started_at is None else Phase.STARTED

    @property
    def starts_at(self) -> datetime | None:
        """The last known NotBefore of an event that has not started."""
        return self.history.not_before if self.history.started_at is None else None


def ownership_of(resources: tuple[str, ...] | None, vm_name: str) -> Whose:
    """Whether `Resources` name this VM: whole names, case-insensitive in ASCII. MAYBE if either is not known."""
    if resources is None or not vm_name:
        return Whose.MAYBE
    wanted = folded(vm_name)
    return Whose.OURS if any(folded(name) == wanted for name in resources) else Whose.THEIRS
