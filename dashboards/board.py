"""What a board is: panels on a grid, marks on their curves, and a link to the other board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dashboards.panel import Panel

VM_UID: Final = "azure-scheduled-events-vm"
FLEET_UID: Final = "azure-scheduled-events-fleet"


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side, each with its width; the widths of a row are 24 together."""

    height: int
    panels: Sequence[tuple[int, Panel]]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its rows."""

    title: str
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks on every curve; with `value_is_time` at the moment that the value says, in milliseconds."""

    name: str
    colour: str
    expr: str
    text: str
    value_is_time: bool = False
    enabled: bool = True
    """Whether it is drawn before somebody asks for it."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another board that keeps the time range and what is chosen."""

    title: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard. `refresh` and `since` are Grafana's words (`10s`, `now-6h`)."""

    title: str
    uid: str
    description: str
    refresh: str
    since: str
    of_instances: bool
    """Whether it is about chosen instances, or about all VMs of what is chosen."""
    link: Link
    annotations: Sequence[Annotation]
    sections: Sequence[Section]
