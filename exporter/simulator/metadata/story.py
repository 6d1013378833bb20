"""A scenario as checked values: the VMs, and step by step what the platform does. `scenario` reads them from files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from exporter.core.folding import folded
from exporter.text.values import unknown_word

DEFAULT_START = datetime(2026, 3, 2, 9, 0, 0, tzinfo=UTC)
USUAL_DURATION = 600.0  # seconds; "Typical run: ... Started to gone 10 min" [High level overview]


class ScenarioError(ValueError):
    """A scenario that cannot be played; the text has every error of the file with its place, one per line."""


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

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


class Step(Struct, frozen=True):
    """One action at one time; the file's keys are explained in `scenario`.

    `delay` counts from the start or from `after`. It, `notice`, `lasts` and the approval times are seconds of platform
    time. `event` is the label of the event.
    """

    action: Action
    delay: float
    after: tuple[str, Phase] | None = None
    event: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    notice: float | None = None
    lasts: float = USUAL_DURATION
    start_after_approval: float = 1.0
    waits_for_all: bool = False
    others_approve_after: float | None = None
    malformed: bool = False


class Scenario(Struct, frozen=True):
    """A whole scenario, checked: every step refers to an event of an earlier step. `length` is in seconds."""

    name: str
    description: str
    vms: tuple[Vm, ...]
    steps: tuple[Step, ...]
    incarnation: int = 1
    start: datetime = DEFAULT_START
    length: float = 0.0

    def vm(self, name: str | None = None) -> Vm:
        """The VM of that name (letter case aside), the first one for None; ScenarioError for any other."""
        if name is None:
            return self.vms[0]
        for vm in self.vms:
            if folded(vm.name) == folded(name):
                return vm
        raise ScenarioError(unknown_word("VM", name, [vm.name for vm in self.vms]))
