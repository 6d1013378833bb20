"""Decides, and acts on what was decided: the last steps of the line.

The state is read and replaced by the agent's thread alone. Only the request itself is made on another: a POST that
hangs keeps neither the polls nor, for more than a moment, the POST of another event waiting.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.agent.persistence import Keeper
from exporter.agent.ports import Metrics, Options, Senses, Source, Turn
from exporter.core.attempts import FRESH_SECONDS, accepted, attempt_due, attempting, not_accepted
from exporter.core.decision import decide, decide_one, files_to_look_at, reconsidered
from exporter.core.document import Document, Event
from exporter.core.memory import memory_full, with_tracked
from exporter.core.policy import NOT_PUBLISHED, Decision, Presence, Reason, Situation, Verdict
from exporter.core.state import Approval, Instant, StartedBy, Tracked
from exporter.errors import Failure
from exporter.log.protocol import Logger

ACCEPTED: Final = 200
PATIENCE_SECONDS: Final = 0.25
"""So long one POST has the metadata service for itself. One that is not answered by then is no reason to wait."""
LAND_SECONDS: Final = 0.5
"""At the end of the process, for the POSTs that were broken off to say so."""


@dataclass(frozen=True, slots=True)
class Due:
    """An approval that is on disk and may be sent. `tracked` is the event's history as it was before."""

    decision: Decision
    tracked: Tracked

    @property
    def before(self) -> Approval:
        return self.tracked.approval


@dataclass(frozen=True, slots=True)
class Flight:
    """A POST on its way."""

    decision: Decision
    tracked: Tracked
    sent: Instant


Answer = tuple[str, Exception | None]
"""The key of an event, and what its POST ended with: nothing where it was answered 200."""


class Approver:
    """The policy applied: one decision per event and turn, and a POST for those that are approved, committed, due."""

    def __init__(
        self, options: Options, source: Source, keeper: Keeper, metrics: Metrics, *, log: Logger, senses: Senses
    ) -> None:
        self._policy = options.policy
        self._history_bytes = options.history_bytes
        self._source = source
        self._keeper = keeper
        self._metrics = metrics
        self._log = log
        self._senses = senses
        self._started = senses.clock()
        self._read: Instant | None = None
        self._waiting: deque[Due] = deque()
        self._flying: dict[str, Flight] = {}
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._hold: Presence | None = None
        self._full = False
        self.decisions: Mapping[str, Decision] = {}
        """The last ones, by event key."""

    # -- deciding

    def decide_and_commit(self, turn: Turn, published: Callable[[Turn, Event], bool]) -> None:
        """Decides, and commits what was decided. What may be sent now, and is on disk, is sent by `send`."""
        mark = turn.mark()
        due = self._mark_attempts(turn, self._decide(turn, published))
        if self._keeper.save(turn):
            # What was tried least comes first: behind one that takes its time, the others would never be sent.
            self._waiting = deque(sorted((*self._waiting, *due), key=lambda each: each.before.attempts))
            return
        # What can't be recorded is not done: decided anew, knowing that.
        saved = len(turn.records)
        turn.back_to(mark)
        self._decide(turn, published)
        self._keeper.save_instead(turn, saved)

    def _decide(self, turn: Turn, published: Callable[[Turn, Event], bool]) -> tuple[Decision, ...]:
        self._full = memory_full(turn.state, self._history_bytes)
        situation = self._situation(turn.writer.vm.name, turn.state.document)
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

    def _situation(self, vm_name: str, document: Document | None) -> Situation:
        """The world as it is now. The files are looked at anew each time; a look never takes long."""
        who = self._senses.who()
        return Situation(
            vm_name=vm_name,
            conflict=who.conflict,
            confirmed=who.confirmed,
            files=self.look(document),
            writable=self._keeper.writable and not self._full,
        )

    def look(self, document: Document | None = None) -> Mapping[str, Presence]:
        """What stands now at the paths of the hold file and of the files that decisions on this document ask for."""
        paths = files_to_look_at(self._policy, document)
        files = self._senses.look(paths) if paths else {}
        hold = files.get(self._policy.hold_file, Presence.UNKNOWN) if self._policy.hold_file else None
        if hold is not self._hold:
            self._hold = hold
            self._log.info("approval.hold_file", path=self._policy.hold_file, found=hold.value if hold else "")
        return files

    @property
    def held(self) -> bool:
        """Whether the hold file holds: it is there, or not known to be absent."""
        return self._hold not in (None, Presence.ABSENT)

    def _mark_attempts(self, turn: Turn, decisions: Iterable[Decision]) -> list[Due]:
        """Notes in the state, before it is committed, that these are about to be sent."""
        due: list[Due] = []
        pending = {*self._flying, *(each.decision.key for each in self._waiting)}
        for decision in decisions:
            if decision.verdict is not Verdict.APPROVE or decision.key in pending:
                continue
            tracked = turn.state.tracked[decision.key]
            if not attempt_due(tracked, turn.now, self._started):
                continue
            approval = attempting(tracked.approval, turn.now, decision.rule)
            turn.history(replace(tracked, approval=approval))
            due.append(Due(decision, tracked))
        return due

    # -- sending

    def seen(self, read: Instant) -> None:
        """The document of the state was read then."""
        self._read = read

    def send(self) -> None:
        """Sends what is due, one after the other, up to the first that is not answered in a moment: the polls go first,
        and the next call sends the next."""
        self.collect()
        while self._waiting and self.wait() <= 0:
            due = self._waiting.popleft()
            self._begin(due)
            self.collect()
            if due.decision.key in self._flying:
                return

    def wait(self) -> float:
        """Seconds until `send` has something to do; infinity where only an answer can make it."""
        if not self._waiting:
            return float("inf")
        if not self._flying or self._senses.stopping():
            return 0.0
        youngest = max(flight.sent.mono or 0.0 for flight in self._flying.values())
        return max(0.0, youngest + self._patience(len(self._flying)) - (self._senses.clock().mono or 0.0))

    @staticmethod
    def _patience(flying: int) -> float:
        """Seconds for the last of so many POSTs that are on their way. Where several hang, one more is likely to."""
        return PATIENCE_SECONDS / flying

    def _begin(self, due: Due) -> None:
        """The last look: at the clock, at who we are, and at the files. What does not hold any more is not sent."""
        # The look at the files may take a moment, so it comes before the clock.
        if not self._still_approved(due.decision) or not self._fresh() or self._senses.stopping():
            self._postponed(due)
            return
        key, event_id, sent = due.decision.key, due.decision.event.event_id, self._senses.clock()
        try:
            self._senses.spawn(lambda: self._post(key, event_id), self._patience(len(self._flying) + 1))
        except RuntimeError as error:  # the system gives no thread
            self._log.error("approval.not_sent", event_id=event_id, error=str(error)[:300])
            self._postponed(due)
            return
        self._metrics.approval_requested()
        self._senses.sent(sent.wall, event_id)
        self._flying[key] = Flight(due.decision, self._keeper.state.tracked[key], sent)

    def _fresh(self) -> bool:
        """By both clocks: the monotonic one stands still while the VM does."""
        if self._read is None:
            return False
        now = self._senses.clock()
        by_mono = (now.mono or 0.0) - (self._read.mono or 0.0)
        by_wall = (now.wall - self._read.wall).total_seconds()
        return by_mono <= FRESH_SECONDS and abs(by_wall) <= FRESH_SECONDS

    def _still_approved(self, decision: Decision) -> bool:
        state = self._keeper.state
        tracked, document = state.tracked.get(decision.key), state.document
        if tracked is None or document is None:
            return False
        # Only the files of this event are looked at.
        alone = Document(document.incarnation, (tracked.event,))
        situation = self._situation(self._senses.who().vm.name, alone)
        now = decide_one(self._policy, state, situation, document, tracked)
        return now.words == decision.words

    def _post(self, key: str, event_id: str) -> None:
        """On a thread of its own. Whatever comes of it is told to the agent's thread."""
        failure: Exception | None = None
        try:
            self._source.approve(event_id)
        except Exception as error:  # a mistake of ours, too, must reach the loop, which says it
            failure = error
        self._answers.put((key, failure))
        self._senses.wake()

    def _postponed(self, due: Due) -> None:
        """Nothing was sent, so nothing was tried: the next good document may do it at once."""
        self._log.info("approval.postponed", event_id=due.decision.event.event_id)
        self._metrics.approval_postponed()
        self._take_back(due)

    def withdraw(self) -> None:
        """Before a new document is looked at: what waits was not sent, and is decided and marked anew on it."""
        while self._waiting:
            self._take_back(self._waiting.popleft())

    def _take_back(self, due: Due) -> None:
        state, key = self._keeper.state, due.decision.key
        tracked = state.history(key)
        if tracked is not None:
            approval = replace(due.before, in_flight=False, unanswered=tracked.approval.unanswered)
            self._keeper.state = with_tracked(state, replace(tracked, approval=approval))
        elif key in state.sent:  # it was forgotten as if it had been sent
            others = {name: approval for name, approval in state.sent.items() if name != key}
            kept = {key: due.before} if due.before.attempts else {}
            self._keeper.state = replace(state, sent={**others, **kept})

    # -- answers

    def collect(self) -> None:
        """Notes the answers that have come."""
        while not self._answers.empty():
            self._take(self._answers.get())

    def land(self) -> None:
        """Before the process ends: nothing more is sent, and what was on its way is noted."""
        while self._waiting:
            self._postponed(self._waiting.popleft())
        until = (self._senses.clock().mono or 0.0) + LAND_SECONDS
        try:
            while self._flying:
                self._take(self._answers.get(timeout=max(0.0, until - (self._senses.clock().mono or 0.0))))
        except queue.Empty:
            return  # the state on disk says that it was in flight

    def _take(self, answer: Answer) -> None:
        key, failure = answer
        flight = self._flying.pop(key, None)
        if flight is None:
            return  # of another VM's life
        if failure is None:
            self._accepted(flight)
        elif isinstance(failure, Failure):
            self._failed(flight, failure)
        else:  # a mistake of ours must not keep the event from ever being tried again
            self._log.error("approval.broke", error=f"{type(failure).__name__}: {failure}"[:300])
            self._failed(flight, Failure("other", type(failure).__name__))

    def forget(self) -> None:
        """What was to be sent, or is on its way, is not of this VM."""
        self._waiting.clear()
        self._flying.clear()

    def _accepted(self, flight: Flight) -> None:
        turn = self._turn()
        self._senses.posted(turn.now.wall, flight.decision.event.event_id, ACCEPTED, "")
        tracked = turn.state.history(flight.decision.key) or flight.tracked
        # Of one that started before we were answered it was not known who let it.
        by = StartedBy.US if tracked.started_by is not None else None
        after = replace(tracked, approval=accepted(tracked.approval, turn.now.wall), started_by=by)
        turn.history(after)
        turn.record(turn.writer.accepted(turn.state, after))
        self.watch_approved(turn)  # it may have changed while its POST was on its way
        self._end(turn)

    def _failed(self, flight: Flight, failure: Failure) -> None:
        """The next wait begins with the answer, or, where there was none, with the POST: it was waited for already."""
        turn = self._turn()
        tracked = turn.state.history(flight.decision.key) or flight.tracked
        status, wait = failure.status_code, failure.retry_after or 0.0
        self._senses.posted(turn.now.wall, flight.decision.event.event_id, status, failure.reason)
        news = tracked.approval.last_failure != failure.reason
        approval = not_accepted(tracked.approval, failure.reason, status, wait)
        after = replace(tracked, approval=replace(approval, last_attempt=flight.sent if status is None else turn.now))
        turn.history(after)
        if news:
            turn.record(turn.writer.failed(turn.state, after, failure.reason, status, failure.detail))
        turn.announce(lambda: self._metrics.approval_failed(failure.reason))
        self._end(turn)

    # -- what was approved

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
