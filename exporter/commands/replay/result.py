"""The result of a replay besides its records: for each event its decisions, with the checks behind them."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.core.decision import Explanation
from exporter.core.document import Document
from exporter.core.policy import NOT_PUBLISHED, Mode, Reason, Verdict

POSTS_KEPT: Final = 20  # of one event; a POST that is not taken is sent again every minute


class Moment(Struct, frozen=True):
    """A decision, valid from `at` until the next one about the same event."""

    at: datetime
    explanation: Explanation
    mode: Mode
    """Of the policy that decided."""

    @property
    def approves(self) -> bool:
        """Whether nothing but the mode may hold the event: what dry-run only records, and enforce sends."""
        decision = self.explanation.decision
        return decision.verdict is Verdict.APPROVE or decision.reason is Reason.DRY_RUN

    @property
    def words(self) -> tuple[str, str]:
        """What distinguishes it from another, whatever the mode: the reason to hold, empty for none, and the rule."""
        decision = self.explanation.decision
        return ("" if self.approves else decision.reason.value, decision.rule)


class Post(Struct, frozen=True):
    """An approval that the agent really sent. `status` is the answer's, None while there is none, or none came."""

    at: datetime
    answered_at: datetime | None = None
    status: int | None = None
    reason: str = ""


class ReplayResult(Struct):
    """Decisions by event key, and counts: `rejected` inputs and failed polls (`failures`) among them."""

    decisions: dict[str, list[Moment]] = field(default_factory=dict)
    approved: dict[str, Moment] = field(default_factory=dict)
    """Of each event the first decision that approves it, whatever the mode."""
    foreseen: dict[str, Moment] = field(default_factory=dict)
    """The same for events that another policy approved before: had they stayed as they were until their `NotBefore`."""
    undecided: set[str] = field(default_factory=set)
    """Events about which something was decided by a policy that can't be read."""
    posts: dict[str, list[Post]] = field(default_factory=dict)
    """What the agent really sent, by event, oldest first."""
    names: dict[str, None] = field(default_factory=dict)
    """Every VM that `Resources` named, in the order of their appearance."""
    documents: int = 0
    rejected: int = 0
    failures: int = 0

    def read(self, document: Document) -> None:
        """Count a document, and note the VMs that it names."""
        self.documents += 1
        for event in document.events:
            for name in event.resources or ():
                self.names.setdefault(name)

    def decided(self, moment: Moment) -> None:
        """Add a decision that differs from the last one about its event."""
        key = moment.explanation.decision.key
        if moment.approves:
            self.approved.setdefault(key, moment)
        self.decisions.setdefault(key, []).append(moment)

    def published(self, key: str) -> list[Moment]:
        """The decisions on an event that its own records do not show already."""
        moments = self.decisions.get(key, ())
        return [moment for moment in moments if moment.explanation.decision.reason not in NOT_PUBLISHED]

    def sent(self, key: str, at: datetime) -> None:
        """Note an approval as it left."""
        posts = self.posts.setdefault(key, [])
        posts.append(Post(at))
        if len(posts) > POSTS_KEPT:
            del posts[1]  # the first says since when, the last ones what came of it

    def answered(self, key: str, at: datetime, status: int | None, reason: str) -> None:
        """Note the answer to the last approval of an event."""
        if posts := self.posts.get(key):
            posts[-1] = replace(posts[-1], answered_at=at, status=status, reason=reason)
