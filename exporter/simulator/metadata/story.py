"""A scenario as checked values: the VMs, and step by step what the platform does. `scenario` reads them from files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from exporter.core.folding import folded
from exporter.text.values import unknown_word

DEFAULT_START = datetime(2026, 3, 2, 9, 0, 0, tzinfo=UTC)
USUAL_DURATION = 600.0  # seconds; "Typical run: ... Started to gone 10 min" [High level overview]
Seconds = Annotated[float, Meta(ge=0, le=366 * 86400)]
Text = Annotated[str, Meta(min_length=1)]


class ScenarioError(ValueError):
    """A scenario that cannot be played; the text has errors with their places, one per line."""


class Action(StrEnum):
    """What the platform does in one step."""

    ANNOUNCE = "announce"
    CHANGE = "change"
    START = "start"
    CANCEL = "cancel"
    END = "end"
    SWITCH_OFF = "switch-off"


class Phase(StrEnum):
    """The moments of an event that a step can wait for."""

    ANNOUNCED = "announced"
    APPROVED = "approved"
    STARTED = "started"
    GONE = "gone"


class Vm(Struct, frozen=True):
    """A VM: its name as in `Resources`, fields of `compute` that differ from the default ones, and its tags."""

    name: Text
    fields: Mapping[str, str] = {}
    tags: Mapping[str, str] = {}


class Step(Struct, frozen=True, forbid_unknown_fields=True, rename={"action": "do", "delay": "at"}):
    """One action at one time; the file's keys are explained in `scenario`.

    `delay` counts from the start or from `after`. It, `notice`, `lasts` and the approval times are seconds of platform
    time. `event` is the label of the event.
    """

    action: Action
    delay: Seconds
    after: tuple[str, Phase] | None = None
    event: str = ""
    fields: Mapping[str, Any] = {}
    notice: Seconds | None = None
    lasts: Seconds = USUAL_DURATION
    start_after_approval: Seconds = 1.0
    waits_for_all: bool = False
    others_approve_after: Seconds | None = None
    malformed: bool = False


class Scenario(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole scenario, checked: every step refers to an event of an earlier step. `length` is in seconds."""

    name: str
    description: Text
    vms: Annotated[tuple[Vm, ...], Meta(min_length=1)]
    steps: tuple[Step, ...]
    incarnation: Annotated[int, Meta(ge=0)] = 1
    start: Annotated[datetime, Meta(tz=True)] = DEFAULT_START
    length: Seconds = 0.0

    def vm(self, name: str | None = None) -> Vm:
        """The VM of that name (letter case aside), the first one for None; ScenarioError for any other."""
        if name is None:
            return self.vms[0]
        for vm in self.vms:
            if folded(vm.name) == folded(name):
                return vm
        raise ScenarioError(unknown_word("VM", name, [vm.name for vm in self.vms]))
