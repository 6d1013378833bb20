"""Decides, and acts on what was decided: the last steps of the line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from exporter.approval import (
    NOT_PUBLISHED,
    Decision,
    Reason,
    Situation,
    Verdict,
    decide,
    files_to_look_at,
    reconsidered,
)
from exporter.approval_attempts import FRESH_SECONDS, accepted, attempt_due, attempting, not_accepted
from exporter.events import Event
from exporter.failures import Failure
from exporter.keeper import Keeper
from exporter.lifecycle import Approval, Instant, Tracked, with_tracked
from exporter.turn import Log, Metrics, Options, Senses, Source, Turn


@dataclass(frozen=True, slots=True)
class Due:
    """An approval to send now. `before` is what we had done about the event until then."""

    decision: Decision
    before: Approval


class Approver:
    """The policy applied: one decision per event and turn, and a POST for those that are approved, committed, due."""

    def __init__(
        self, options: Options, source: Source, keeper: Keeper, metrics: Metrics, *, log: Log, senses: Senses
    ) -> None:
        self._policy = options.policy
        self._source = source
        self._keeper = keeper
        self._metrics = metrics
        self._log = log
        self._senses = senses
        self._started = senses.clock()
        self.decisions: Mapping[str, Decision] = {}
        """The last ones, by event key."""

    def decide_and_commit(self, turn: Turn, published: Callable[[Turn, Event], bool]) -> list[Due]:
        """Decides, and commits what was decided. Answers the approvals to send now: those that are on disk."""
        mark = turn.mark()
        due = self._mark_attempts(turn, self._decide(turn, published))
        if self._keeper.save(turn):
            return due
        # What can't be recorded is not done: decided anew, knowing that.
        saved = len(turn.records)
        turn.back_to(mark)
        self._decide(turn, published)
        self._keeper.save_instead(turn, saved)
        return []

    def _decide(self, turn: Turn, published: Callable[[Turn, Event], bool]) -> tuple[Decision, ...]:
        document = turn.state.document
        paths = files_to_look_at(self._policy, document) if document else frozenset()
        situation = Situation(
            vm_name=turn.writer.vm.name,
            conflict=self._senses.who().conflict,
            files=self._senses.look(paths) if paths else {},
            writable=self._keeper.writable,
        )
        decisions = decide(self._policy, turn.state, situation)
        self.decisions = {decision.key: decision for decision in decisions}
        for decision in decisions:
            tracked = turn.state.tracked[decision.key]
            if tracked.decided == decision.words:
                continue
            turn.history(replace(tracked, decided=decision.words))
            turn.announce(lambda made=decision: self._metrics.decided(made))  # type: ignore[misc]  # a lambda's default can't be annotated
            if decision.reason not in NOT_PUBLISHED and published(turn, decision.event):
                turn.record(turn.writer.decision(turn.state, decision))
        return decisions

    def _mark_attempts(self, turn: Turn, decisions: Iterable[Decision]) -> list[Due]:
        """Notes in the state, before it is committed, that these are about to be sent.

        What was tried least comes first: behind one that takes all the time there is, the others would never be sent.
        """
        due: list[Due] = []
        for decision in decisions:
            tracked = turn.state.tracked[decision.key]
            if decision.verdict is not Verdict.APPROVE or not attempt_due(tracked, turn.now, self._started):
                continue
            approval = attempting(tracked.approval, turn.now, decision.rule)
            turn.history(replace(tracked, approval=approval))
            due.append(Due(decision, tracked.approval))
        return sorted(due, key=lambda each: each.before.attempts)

    def act(self, due: Iterable[Due], read: Instant) -> None:
        """Sends the approvals, each only while the document that it was decided on is fresh."""
        for each in due:
            if self._senses.stopping() or not self._fresh(read):
                self._postponed(each)
                continue
            decision = each.decision
            self._metrics.approval_requested()
            sent = self._senses.clock()
            try:
                self._source.approve(decision.event.event_id)
            except Failure as failure:
                self._failed(decision, failure, sent)
            else:
                self._accepted(decision)

    def _fresh(self, read: Instant) -> bool:
        """By both clocks: the monotonic one stands still while the VM does."""
        now = self._senses.clock()
        by_mono = (now.mono or 0.0) - (read.mono or 0.0)
        by_wall = (now.wall - read.wall).total_seconds()
        return by_mono <= FRESH_SECONDS and abs(by_wall) <= FRESH_SECONDS

    def _postponed(self, due: Due) -> None:
        """Nothing was sent, so nothing was tried: the next good document may do it at once."""
        self._log.info("approval.postponed", event_id=due.decision.event.event_id)
        state, before = self._keeper.state, due.before
        tracked = state.tracked[due.decision.key]
        approval = replace(before, in_flight=False, unanswered=tracked.approval.unanswered)
        self._keeper.state = with_tracked(state, replace(tracked, approval=approval))

    def _accepted(self, decision: Decision) -> None:
        turn = self._turn()
        tracked = turn.state.tracked[decision.key]
        after = replace(tracked, approval=accepted(tracked.approval, turn.now.wall))
        turn.history(after)
        turn.record(turn.writer.accepted(turn.state, after))
        self._end(turn)

    def _failed(self, decision: Decision, failure: Failure, sent: Instant) -> None:
        """The next wait begins with the answer, or, where there was none, with the POST: it was waited for already."""
        turn = self._turn()
        tracked = turn.state.tracked[decision.key]
        status = getattr(failure, "status_code", None)
        wait = getattr(failure, "retry_after", None) or 0.0
        news = tracked.approval.last_failure != failure.reason
        approval = not_accepted(tracked.approval, failure.reason, status, wait)
        after = replace(tracked, approval=replace(approval, last_attempt=sent if status is None else turn.now))
        turn.history(after)
        if news:
            turn.record(turn.writer.failed(turn.state, after, failure.reason, status, failure.detail))
        turn.announce(lambda: self._metrics.approval_failed(failure.reason))
        self._end(turn)

    def watch_approved(self, turn: Turn) -> None:
        """An event that changed after we approved it, so that the rules would hold it now, is said aloud."""
        vm_name = turn.writer.vm.name
        if not vm_name:
            return
        for tracked in list(turn.state.tracked.values()):
            if news := reconsidered(self._policy, tracked, vm_name):
                self._outdated(turn, *news)

    def _outdated(self, turn: Turn, after: Tracked, reason: Reason) -> None:
        turn.history(after)
        if reason is Reason.NONE:
            return
        turn.record(turn.writer.outdated(turn.state, after, reason.value))
        turn.announce(self._metrics.approval_outdated)

    def _turn(self) -> Turn:
        return Turn.after(self._keeper.state, self._senses, self._policy.mode)

    def _end(self, turn: Turn) -> None:
        self._keeper.save(turn)
        turn.announce_all(self._log)
