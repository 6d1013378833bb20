"""Sends approvals that were decided and committed: one POST for each.

A POST is made on its own thread: one that hangs delays neither the polls nor, for more than `PATIENCE_SECONDS`, the
POST of another event. Once it has a connection, and right before its first byte is written, the whole decision is asked
once more: would the rules send this now? Until then each new document decides anew about it. It has left, and is an
attempt, once that byte is written.

This module never changes the state: what becomes of a POST is an observation for the cycle.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from exporter.agent.log_fields import fields_of
from exporter.agent.persistence import StatePersistence
from exporter.agent.ports import Environment, MetadataSource
from exporter.core.attempts import FRESH_SECONDS
from exporter.core.cycle import ApprovalUnsent, DueApproval, PostAnswered
from exporter.core.decision import decide_one, files_to_check
from exporter.core.document import Document
from exporter.core.facts import ApprovalRequested, Fact
from exporter.core.policy import Context, Decision, Policy, Presence
from exporter.core.state import Instant, TrackedEvent
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


class NotWanted(Failure):
    """The rules would not send an approval any more. `reason` is a hold reason, or why the decision is out of date."""


class Approvals:
    """The approvals that are queued, those that wait for a connection or are leaving, and those whose POST has left."""

    def __init__(
        self,
        policy: Policy,
        source: MetadataSource,
        persistence: StatePersistence,
        log: Logger,
        environment: Environment,
    ) -> None:
        self._policy = policy
        self._source = source
        self._persistence = persistence
        self._log = log
        self._environment = environment
        self._read: Instant | None = None
        self._waiting: deque[DueApproval] = deque()
        self._lock = threading.Lock()
        """Held to move an approval from `_connecting` to `_leaving`, or out of both."""
        self._connecting: dict[str, DueApproval] = {}
        self._leaving: dict[str, tuple[DueApproval, PostAnswered]] = {}
        """Let go. Whether a first byte was written is not known to the agent's thread yet."""
        self._in_flight: dict[str, PostAnswered] = {}
        """Without their answers."""
        self._threads: dict[str, float] = {}
        """When the thread of each event's POST began, on the monotonic clock."""
        self._reports: queue.SimpleQueue[tuple[str, PostAnswered | Exception | None]] = queue.SimpleQueue()
        """By key: a POST that has left, and later how its thread has ended, None for an answer of 200."""
        self._hold: Presence | None = None
        self.files: Mapping[str, Presence] = {}
        """What the last look found, by path."""
        self._facts: list[Fact] = []

    # -- files that decisions ask for

    def check_files(self, document: Document | None = None) -> Mapping[str, Presence]:
        """The presence of the hold file and of the files that decisions on this document ask for, by path."""
        self.files = files = self._presence(document)
        hold = files.get(self._policy.hold_file, Presence.UNKNOWN) if self._policy.hold_file else None
        if hold is not self._hold:
            self._hold = hold
            self._log.info("approval.hold_file", path=self._policy.hold_file, found=hold.value if hold else "")
        return files

    def _presence(self, document: Document | None) -> Mapping[str, Presence]:
        paths = files_to_check(self._policy, document)
        return self._environment.check_files(paths) if paths else {}

    @property
    def held(self) -> bool:
        """Whether a hold file is configured and is there, or is not known to be absent."""
        return self._hold not in (None, Presence.ABSENT)

    @property
    def pending(self) -> frozenset[str]:
        """Keys of the events that are queued, wait for a connection, or whose POST is leaving or has left."""
        with self._lock:
            posts = (*self._in_flight, *self._leaving, *self._connecting)
        return frozenset((*posts, *(due.tracked.key for due in self._waiting)))

    # -- sending

    def take(self, due: Iterable[DueApproval], read: Instant) -> None:
        """Queue approvals that were committed, on a document that was read at `read`. One whose POST already waits for
        a connection goes on waiting.

        Those with the fewest attempts come first: behind one that is answered slowly, the others would never be sent.
        """
        self._read = read
        fresh = {one.tracked.key: one for one in due}
        with self._lock:
            self._connecting = {key: fresh.pop(key) for key in list(fresh) if key in self._threads}
        self._waiting = deque(sorted((*self._waiting, *fresh.values()), key=lambda one: one.tracked.approval.attempts))

    def withdraw(self) -> tuple[DueApproval, ...]:
        """Take back every approval that has not left: a new document was read, which decides anew about them."""
        with self._lock:
            unsent = (*self._connecting.values(), *self._waiting)
            self._connecting = {}
        self._waiting.clear()
        return unsent

    def send(self) -> Iterator[Answer]:
        """Send what is queued, one after the other, up to the first that is not answered at once: the polls go first,
        and the next call sends the next one. Yields the results of those that were answered or not sent."""
        yield from self.answers()
        while self._waiting and self.wait() <= 0:
            due = self._waiting.popleft()
            if not self._begin(due):
                yield ApprovalUnsent(due)
            yield from self.answers()
            if due.tracked.key in self._threads:
                return

    def wait(self) -> float:
        """Seconds until `send` has something to do; infinity where it only waits for answers, which wake the loop."""
        if not self._waiting:
            return float("inf")
        if not self._threads or self._environment.stopping():
            return 0.0
        # If several are not answered, the next one probably is not either.
        patience = PATIENCE_SECONDS / len(self._threads)
        return max(0.0, max(self._threads.values()) + patience - self._environment.clock().monotonic)

    def _begin(self, due: DueApproval) -> bool:
        """Start the thread of a POST; False if there is none."""
        if self._environment.stopping():
            return False
        key, event_id = due.tracked.key, due.decision.event.event_id
        self._threads[key] = self._environment.clock().monotonic
        with self._lock:
            self._connecting[key] = due
        try:
            self._environment.spawn(lambda: self._post(key, event_id), HEAD_START_SECONDS)
        except RuntimeError as error:  # the system starts no more threads
            self._log.error("approval.not_sent", event_id=event_id, **self._about(due.tracked), error=str(error)[:300])
            del self._threads[key], self._connecting[key]
            return False
        return True

    # -- on the thread of a POST

    def _post(self, key: str, event_id: str) -> None:
        """Make the request, and report what became of it to the agent's thread."""
        failure: Exception | None = None
        try:
            self._source.approve(event_id, lambda: self._leave(key, event_id), lambda: self._left(key))
        except Exception as error:  # a bug in the client must also reach the loop, which logs it
            failure = error
        self._reports.put((key, failure))
        self._environment.wake()

    def _leave(self, key: str, event_id: str) -> None:
        """Let the POST go, so that no document takes it back, if the rules would send it now, by the newest state and
        files, and under this spelling of its id. Otherwise raises `NotWanted`."""
        due = self._connecting.get(key)
        if due is None or due.decision.event.event_id != event_id:
            raise NotWanted("decided-anew")
        self._ask_again(due.decision)
        with self._lock:
            if self._connecting.get(key) is not due:  # a document came in between
                raise NotWanted("decided-anew")
            del self._connecting[key]
            post = PostAnswered(self._persistence.state.tracked[key], self._environment.clock())
            self._leaving[key] = due, post

    def _left(self, key: str) -> None:
        """Count the POST as sent: its first byte was written."""
        with self._lock:
            leaving = self._leaving.get(key)
        if leaving is not None:  # else dropped by `forget`
            self._reports.put((key, leaving[1]))

    def _ask_again(self, decision: Decision) -> None:
        """Raise `NotWanted` unless the rules would send this now."""
        environment, state = self._environment, self._persistence.state
        tracked, document = state.tracked.get(decision.key), state.document
        if tracked is None or document is None:
            raise NotWanted("decided-anew")
        identity = environment.identity()
        # Only the files of this event are checked, which may take a moment: the clock is read after it.
        files = self._presence(Document(document.incarnation, (tracked.event,)))
        now = environment.clock()
        context = Context(now, now, identity, files, self._persistence.can_record())
        again = decide_one(self._policy, state, context, tracked)
        if again.published_values != decision.published_values:
            raise NotWanted(again.reason.value or "decided-anew", again.finding)
        if environment.stopping():
            raise NotWanted("stopping")
        if not self._fresh(now):
            raise NotWanted("old-document")

    def _fresh(self, now: Instant) -> bool:
        """Whether the document is at most 5 s old by both clocks: the monotonic one stops while the VM is paused."""
        if self._read is None:
            return False
        by_mono = now.monotonic - self._read.monotonic
        by_wall = (now.wall - self._read.wall).total_seconds()
        return by_mono <= FRESH_SECONDS and abs(by_wall) <= FRESH_SECONDS

    # -- answers

    def answers(self, before: datetime | None = None) -> Iterator[Answer]:
        """What became of POSTs since the last call. The agent takes them before what it read then, and so must a
        replay, which goes by the times: they are recorded as no later."""
        while not self._reports.empty():
            yield from self._reported(*self._reports.get(), before)

    def finish(self) -> Iterator[Answer]:
        """Before the process ends: the results of approvals that have not left, and of those in flight."""
        yield from map(ApprovalUnsent, self.withdraw())
        until = self._environment.clock().monotonic + LAST_ANSWERS_SECONDS
        try:
            while self._leaving or self._in_flight:
                left = max(0.0, until - self._environment.clock().monotonic)
                yield from self._reported(*self._reports.get(timeout=left))
        except queue.Empty:
            return  # the state on disk has it as in flight

    def forget(self) -> None:
        """Drop all approvals: they belong to another VM's outbox."""
        self.withdraw()
        with self._lock:
            self._leaving = {}
        self._in_flight.clear()

    def take_facts(self) -> list[Fact]:
        """The facts about POSTs since the last call."""
        facts, self._facts = self._facts, []
        return facts

    def _reported(
        self, key: str, report: PostAnswered | Exception | None, before: datetime | None = None
    ) -> Iterator[Answer]:
        if isinstance(report, PostAnswered):
            with self._lock:
                if self._leaving.pop(key, None) is not None:  # else dropped by `forget`
                    self._in_flight[key] = report
            at, event_id = report.sent.wall, report.tracked.event.event_id
            self._environment.record_post_sent(at if before is None else min(at, before), event_id)
            self._facts.append(ApprovalRequested(event_id))
            return
        self._threads.pop(key, None)
        with self._lock:
            unsent, leaving = self._connecting.pop(key, None), self._leaving.pop(key, None)
        unsent, post = leaving[0] if leaving else unsent, self._in_flight.pop(key, None)
        if unsent is not None:
            yield ApprovalUnsent(unsent, self._failure(report, unsent.tracked))
        elif post is not None:  # else it was withdrawn, or dropped by `forget`
            failure = self._failure(report, post.tracked)
            status, reason = (failure.status_code, failure.reason) if failure else (ACCEPTED, "")
            now = self._environment.clock().wall
            at = now if before is None else min(now, before)
            self._environment.record_post_answer(at, post.tracked.event.event_id, status, reason)
            yield replace(post, failure=failure)

    def _failure(self, error: Exception | None, tracked: TrackedEvent) -> Failure | None:
        if error is None or isinstance(error, Failure):
            return error
        # A bug in the client must not keep the event from being tried again.
        event_id, sentence = tracked.event.event_id, f"{type(error).__name__}: {error}"[:300]
        self._log.error("approval.unexpected_error", event_id=event_id, **self._about(tracked), error=sentence)
        return Failure("other", type(error).__name__)

    def _about(self, tracked: TrackedEvent) -> dict[str, str]:
        return fields_of(tracked.event_type, self._environment.identity().vm.name, tracked.not_before)
