"""The result of a replay besides its records: for each event its decisions, with the checks behind them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from exporter.core.decision import Explanation
from exporter.core.document import Document
from exporter.core.policy import Verdict

MOMENTS_KEPT: Final = 100  # of one event: how often a decision may change before the rest is only counted
NAMES_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Moment:
    """A decision, valid from `at` until the next one about the same event."""

    at: datetime
    explanation: Explanation


@dataclass(slots=True)
class ReplayResult:
    """Decisions by event key, and counts: `rejected` inputs and failed polls (`failures`) among them."""

    decisions: dict[str, list[Moment]] = field(default_factory=dict)
    unlisted: int = 0
    """Decisions beyond `MOMENTS_KEPT` of an event."""
    names: dict[str, None] = field(default_factory=dict)
    """Every VM that `Resources` named, in the order of their appearance."""
    documents: int = 0
    rejected: int = 0
    failures: int = 0

    @property
    def approvals(self) -> tuple[tuple[datetime, str], ...]:
        """When each event was first approvable, with its key."""
        first: dict[str, datetime] = {}
        for key, moments in self.decisions.items():
            for moment in moments:
                if moment.explanation.decision.verdict is Verdict.APPROVE:
                    first.setdefault(key, moment.at)
        return tuple((at, key) for key, at in first.items())

    def read(self, document: Document) -> None:
        """Count a document, and note the VMs that it names."""
        self.documents += 1
        for event in document.events:
            for name in event.resources or ():
                if len(self.names) < NAMES_KEPT:
                    self.names.setdefault(name)

    def decided(self, at: datetime, explanation: Explanation) -> None:
        """Add a decision that differs from the last one about its event."""
        moments = self.decisions.setdefault(explanation.decision.key, [])
        if len(moments) < MOMENTS_KEPT:
            moments.append(Moment(at, explanation))
        else:
            self.unlisted += 1
