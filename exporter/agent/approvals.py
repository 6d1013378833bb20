"""Sends approvals that were decided and committed: one POST for each.

This module reads the state on the agent's thread alone and never changes it: the result of a POST is an observation for
the cycle. Only the request itself is made on another thread: a POST that hangs delays neither the polls nor, for more
than `PATIENCE_SECONDS`, the POST of another event.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from exporter.agent.log_fields import fields_of
from exporter.agent.persistence import StatePersistence
from exporter.agent.ports import Environment, Source
from exporter.core.attempts import FRESH_SECONDS
from exporter.core.cycle import ApprovalUnsent, DueApproval, PostAnswered, PostFailure
from exporter.core.decision import decide_one, files_to_check, match
from exporter.core.document import Document
from exporter.core.facts import ApprovalRequested, Fact
from exporter.core.policy import Decision, DecisionContext, Policy, Presence
from exporter.core.state import Instant, Tracked
from exporter.errors import Failure
from exporter.log.protocol import Logger

ACCEPTED: Final = 200
PATIENCE_SECONDS: Final = 0.25
"""How long the next POST waits for the answer to the one before."""
HEAD_START_SECONDS: Final = 0.02
"""How long the loop waits for the thread of a POST, which has written the request to the socket by then."""
LAST_ANSWERS_SECONDS: Final = 0.5
"""At the end of the process: how long to wait for the results of aborted POSTs."""

Answer = PostAnswered | ApprovalUnsent


@dataclass(frozen=True, slots=True)
class InFlight:
    """A POST in flight. `tracked` is the event's history when it left."""

    decision: Decision
    tracked: Tracked
    sent: Instant


class Approvals:
    """The approvals that are queued and those whose POST is in flight."""

    def __init__(
        self, policy: Policy, source: Source, persistence: StatePersistence, log: Logger, environment: Environment
    ) -> None:
        self._policy = policy
        self._source = source
        self._persistence = persistence
        self._log = log
        self._environment = environment
        self._read: Instant | None = None
        self._waiting: deque[DueApproval] = deque()
        self._in_flight: dict[str, InFlight] = {}
        self._answers: queue.SimpleQueue[tuple[str, Exception | None]] = queue.SimpleQueue()
        self._hold: Presence | None = None
        self._facts: list[Fact] = []

    # -- files that decisions ask for

    def check_files(self, document: Document | None = None) -> Mapping[str, Presence]:
        """The presence of the hold file and of the files that decisions on this document ask for, by path."""
        paths = files_to_check(self._policy, document)
        files = self._environment.check_files(paths) if paths else {}
        hold = files.get(self._policy.hold_file, Presence.UNKNOWN) if self._policy.hold_file else None
        if hold is not self._hold:
            self._hold = hold
            self._log.info("approval.hold_file", path=self._policy.hold_file, found=hold.value if hold else "")
        return files

    @property
    def held(self) -> bool:
        """Whether a hold file is configured and is there, or is not known to be absent."""
        return self._hold not in (None, Presence.ABSENT)

    @property
    def pending(self) -> frozenset[str]:
        """Keys of the events whose POST is in flight or queued."""
        return frozenset((*self._in_flight, *(due.tracked.key for due in self._waiting)))

    # -- sending

    def take(self, due: Iterable[DueApproval], read: Instant) -> None:
        """Queue approvals that were committed, on a document that was read at `read`.

        Those with the fewest attempts come first: behind one that is answered slowly, the others would never be sent.
        """
        self._read = read
        self._waiting = deque(sorted((*self._waiting, *due), key=lambda due: due.before.attempts))

    def withdraw(self) -> tuple[DueApproval, ...]:
        """Empty the queue and return it: a new document was read, on which these are decided and marked again."""
        waiting = tuple(self._waiting)
        self._waiting.clear()
        return waiting

    def send(self) -> Iterator[Answer]:
        """Send what is queued, one after the other, up to the first that is not answered at once: the polls go first,
        and the next call sends the next one. Yields the results of those that were answered or not sent."""
        yield from self.answers()
        while self._waiting and self.wait() <= 0:
            due = self._waiting.popleft()
            if not self._begin(due):
                yield ApprovalUnsent(due)
            yield from self.answers()
            if due.tracked.key in self._in_flight:
                return

    def wait(self) -> float:
        """Seconds until `send` has something to do; infinity where it only waits for answers, which wake the loop."""
        if not self._waiting:
            return float("inf")
        if not self._in_flight or self._environment.stopping():
            return 0.0
        youngest = max(post.sent.monotonic for post in self._in_flight.values())
        # If several are not answered, the next one probably is not either.
        patience = PATIENCE_SECONDS / len(self._in_flight)
        return max(0.0, youngest + patience - self._environment.clock().monotonic)

    def _begin(self, due: DueApproval) -> bool:
        """Check clock, identity and files once more and start the POST; False if the approval does not hold now."""
        if not self._still_approved(due.decision) or not self._fresh() or self._environment.stopping():
            return False
        left = self._seconds_left(due.decision)
        if left <= 0:
            return False
        key, event_id, sent = due.tracked.key, due.decision.event.event_id, self._environment.clock()
        try:
            self._environment.spawn(lambda: self._post(key, event_id, left), HEAD_START_SECONDS)
        except RuntimeError as error:  # the system starts no more threads
            self._log.error("approval.not_sent", event_id=event_id, **self._about(due.tracked), error=str(error)[:300])
            return False
        self._facts.append(ApprovalRequested(event_id))
        self._environment.record_post_sent(sent.wall, event_id)
        self._in_flight[key] = InFlight(due.decision, self._persistence.state.tracked[key], sent)
        return True

    def _fresh(self) -> bool:
        """Whether the document is at most 5 s old by both clocks: the monotonic one stops while the VM is paused."""
        if self._read is None:
            return False
        now = self._environment.clock()
        by_mono = now.monotonic - self._read.monotonic
        by_wall = (now.wall - self._read.wall).total_seconds()
        return by_mono <= FRESH_SECONDS and abs(by_wall) <= FRESH_SECONDS

    def _still_approved(self, decision: Decision) -> bool:
        state = self._persistence.state
        tracked, document = state.tracked.get(decision.key), state.document
        if tracked is None or document is None:
            return False
        identity = self._environment.identity()
        # Only the files of this event are checked, which may take a moment: the clock is read after it.
        files = self.check_files(Document(document.incarnation, (tracked.event,)))
        context = DecisionContext(
            vm_name=identity.vm.name,
            conflict=identity.conflict,
            confirmed=identity.confirmed,
            files=files,
            writable=self._persistence.writable,
            now=self._environment.clock().wall,
        )
        return decide_one(self._policy, state, context, document, tracked).words == decision.words

    def _seconds_left(self, decision: Decision) -> float:
        """Seconds until the hours of the rule end: to connect may take longer than that."""
        rule, _ = match(self._policy.rules, decision.event)
        if rule is None or rule.hours is None:
            return float("inf")
        now = self._environment.clock().wall
        end = rule.hours.next_change(now)
        if not rule.hours.within(now):
            return 0.0
        return (end - now).total_seconds() if end is not None else float("inf")

    def _post(self, key: str, event_id: str, leave_within: float) -> None:
        """Make the request, on a thread of its own, and hand the result to the agent's thread."""
        failure: Exception | None = None
        try:
            self._source.approve(event_id, leave_within)
        except Exception as error:  # a bug in the client must also reach the loop, which logs it
            failure = error
        self._answers.put((key, failure))
        self._environment.wake()

    # -- answers

    def answers(self, before: datetime | None = None) -> Iterator[PostAnswered]:
        """The results of POSTs since the last call. The agent takes them before what it read then, and so shall a
        replay, which goes by the times: they are recorded as no later."""
        while not self._answers.empty():
            yield from self._answered(*self._answers.get(), before)

    def finish(self) -> Iterator[Answer]:
        """Before the process ends: the results of queued approvals, which are not sent, and of those in flight."""
        yield from map(ApprovalUnsent, self.withdraw())
        until = self._environment.clock().monotonic + LAST_ANSWERS_SECONDS
        try:
            while self._in_flight:
                left = max(0.0, until - self._environment.clock().monotonic)
                yield from self._answered(*self._answers.get(timeout=left))
        except queue.Empty:
            return  # the state on disk has it as in flight

    def forget(self) -> None:
        """Drop all approvals: they belong to another VM's outbox."""
        self._waiting.clear()
        self._in_flight.clear()

    def take_facts(self) -> list[Fact]:
        """The facts about POSTs since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def _answered(self, key: str, error: Exception | None, before: datetime | None = None) -> Iterator[PostAnswered]:
        post = self._in_flight.pop(key, None)
        if post is None:
            return  # dropped by `forget`
        failure = self._failure(error, post)
        status, reason = (failure.status_code, failure.reason) if failure else (ACCEPTED, "")
        now = self._environment.clock().wall
        at = now if before is None else min(now, before)
        self._environment.record_post_answer(at, post.decision.event.event_id, status, reason)
        yield PostAnswered(post.tracked, post.sent, failure)

    def _failure(self, error: Exception | None, post: InFlight) -> PostFailure | None:
        if error is None:
            return None
        if isinstance(error, Failure):
            return PostFailure(error.reason, error.detail, error.status_code, error.retry_after)
        # A bug in the client must not keep the event from being tried again.
        event_id, sentence = post.decision.event.event_id, f"{type(error).__name__}: {error}"[:300]
        self._log.error("approval.broke", event_id=event_id, **self._about(post.tracked), error=sentence)
        return PostFailure("other", type(error).__name__)

    def _about(self, tracked: Tracked) -> dict[str, str]:
        return fields_of(tracked.event.event_type, self._environment.identity().vm.name, tracked.not_before)
