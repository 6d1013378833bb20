"""What a replay finds on the way, besides the records: for each event its decisions, and how each came about."""

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
    """A decision, from then on until the next one of the same event."""

    at: datetime
    explanation: Explanation


@dataclass(slots=True)
class ReplayResult:
    """What was found on the way, besides the records."""

    decisions: dict[str, list[Moment]] = field(default_factory=dict)
    unlisted: int = 0
    """Decisions beyond `MOMENTS_KEPT` of an event."""
    names: dict[str, None] = field(default_factory=dict)
    """Every VM that was named, in the order of their appearance."""
    documents: int = 0
    rejected: int = 0
    failures: int = 0

    @property
    def approvals(self) -> tuple[tuple[datetime, str], ...]:
        """When each event was first found to be approvable, with its key."""
        first: dict[str, datetime] = {}
        for key, moments in self.decisions.items():
            for moment in moments:
                if moment.explanation.decision.verdict is Verdict.APPROVE:
                    first.setdefault(key, moment.at)
        return tuple((at, key) for key, at in first.items())

    def read(self, document: Document) -> None:
        """A document, and the VMs that it names."""
        self.documents += 1
        for event in document.events:
            for name in event.resources or ():
                if len(self.names) < NAMES_KEPT:
                    self.names.setdefault(name)

    def decided(self, at: datetime, explanation: Explanation) -> None:
        """A decision that is not the event's last one."""
        moments = self.decisions.setdefault(explanation.decision.key, [])
        if len(moments) < MOMENTS_KEPT:
            moments.append(Moment(at, explanation))
        else:
            self.unlisted += 1
