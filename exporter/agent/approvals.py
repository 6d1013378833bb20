"""Sends approvals that were decided and committed, with one POST each.

Each POST has its own thread. If it hangs, it doesn't delay the polls, and delays the POST of another event by at most
`PATIENCE_SECONDS`. When the POST has a connection, right before its first byte is written, the whole decision is made
again with current data. Until then, each new document replaces the decision. When the first byte is written, the POST
counts as sent and as an attempt.

This module never changes the state: the result of a POST is an observation for the cycle.
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
"""Maximum time for which a POST waits for the response to the previous one."""
HEAD_START_SECONDS: Final = 0.02
"""Time for which the loop waits for the thread of a POST. It is enough to write the request to the socket."""
LAST_ANSWERS_SECONDS: Final = 0.5
"""Maximum wait for the results of aborted POSTs when the process ends."""

Answer = PostAnswered | ApprovalUnsent


class NotWanted(Failure):
    """The approval must not be sent any more. `reason` is a hold reason, or states why the decision is outdated."""


class Approvals:
    """The queue of approvals, and the POSTs that wait for a connection, are being sent, or wait for a response."""

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
        """Protects `_connecting` and `_leaving`: an approval moves between them, or out of both, under this lock."""
        self._connecting: dict[str, DueApproval] = {}
        self._leaving: dict[str, tuple[DueApproval, PostAnswered]] = {}
        """Approvals that can't be withdrawn any more. The agent's thread has no report yet that a byte was written."""
        self._in_flight: dict[str, PostAnswered] = {}
        """POSTs that were sent and have no response yet, by key."""
        self._threads: dict[str, float] = {}
        """Start of each POST's thread, by key, in seconds of the monotonic clock."""
        self._reports: queue.SimpleQueue[tuple[str, PostAnswered | Exception | None]] = queue.SimpleQueue()
        """Key and report: first the POST that was sent, later the result of its thread, None for a response of 200."""
        self._hold: Presence | None = None
        self.files: Mapping[str, Presence] = {}
        """Results of the last file check, by path."""
        self._facts: list[Fact] = []

    # -- files that rules require

    def check_files(self, document: Document | None = None) -> Mapping[str, Presence]:
        """Return the presence of the hold file and of the files that decisions on the document require, by path."""
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
        """Whether a hold file is configured and exists, or its absence cannot be verified."""
        return self._hold not in (None, Presence.ABSENT)

    @property
    def pending(self) -> frozenset[str]:
        """Keys of the events with an approval in the queue or a POST in any stage before its response."""
        with self._lock:
            posts = (*self._in_flight, *self._leaving, *self._connecting)
        return frozenset((*posts, *(due.tracked.key for due in self._waiting)))

    # -- sending

    def take(self, due: Iterable[DueApproval], read: Instant) -> None:
        """Queue committed approvals, which were decided on a document read at `read`.

        A POST that already waits for a connection keeps waiting, with the new decision. Approvals with the fewest
        attempts come first, so that one with slow responses doesn't block the others.
        """
        self._read = read
        fresh = {one.tracked.key: one for one in due}
        with self._lock:
            self._connecting = {key: fresh.pop(key) for key in list(fresh) if key in self._threads}
        self._waiting = deque(sorted((*self._waiting, *fresh.values()), key=lambda one: one.tracked.approval.attempts))

    def withdraw(self) -> tuple[DueApproval, ...]:
        """Remove and return every unsent approval: a new document was read, which decides about them again."""
        with self._lock:
            unsent = (*self._connecting.values(), *self._waiting)
            self._connecting = {}
        self._waiting.clear()
        return unsent

    def send(self) -> Iterator[Answer]:
        """Send the queued approvals in turn, and yield the results of those that were answered or not sent.

        Stops after one that has no immediate response, because polls are more urgent. The next call continues.
        """
        yield from self.answers()
        while self._waiting and self.wait() <= 0:
            due = self._waiting.popleft()
            if not self._begin(due):
                yield ApprovalUnsent(due)
            yield from self.answers()
            if due.tracked.key in self._threads:
                return

    def wait(self) -> float:
        """Return the seconds until `send` is due; infinity if none is queued. Responses wake the loop."""
        if not self._waiting:
            return float("inf")
        if not self._threads or self._environment.stopping():
            return 0.0
        # If several have no response, the next one will probably have none either.
        patience = PATIENCE_SECONDS / len(self._threads)
        return max(0.0, max(self._threads.values()) + patience - self._environment.clock().monotonic)

    def _begin(self, due: DueApproval) -> bool:
        """Start the thread of a POST. Return False if it was not started."""
        if self._environment.stopping():
            return False
        key, event_id = due.tracked.key, due.decision.event.event_id
        self._threads[key] = self._environment.clock().monotonic
        with self._lock:
            self._connecting[key] = due
        try:
            self._environment.spawn(lambda: self._post(key, event_id), HEAD_START_SECONDS)
        except RuntimeError as error:  # the system can't start more threads
            self._log.error("approval.not_sent", event_id=event_id, **self._about(due.tracked), error=str(error)[:300])
            del self._threads[key], self._connecting[key]
            return False
        return True

    # -- on the thread of a POST

    def _post(self, key: str, event_id: str) -> None:
        """Make the request and report the result to the agent's thread."""
        failure: Exception | None = None
        try:
            self._source.approve(event_id, lambda: self._leave(key, event_id), lambda: self._left(key))
        except Exception as error:  # a bug in the client must also reach the loop, which logs it
            failure = error
        self._reports.put((key, failure))
        self._environment.wake()

    def _leave(self, key: str, event_id: str) -> None:
        """Confirm the decision with current data, so that no document can withdraw the POST any more.

        Raises `NotWanted` if the newest state and files don't justify it, or if the spelling of the event id changed.
        """
        due = self._connecting.get(key)
        if due is None or due.decision.event.event_id != event_id:
            raise NotWanted("decided-anew")
        self._confirm(due.decision)
        with self._lock:
            if self._connecting.get(key) is not due:  # a document was read meanwhile
                raise NotWanted("decided-anew")
            del self._connecting[key]
            self._leaving[key] = due, PostAnswered(self._persistence.state.tracked[key], self._environment.clock())

    def _left(self, key: str) -> None:
        """Count the POST as sent: its first byte was written."""
        with self._lock:
            leaving = self._leaving.get(key)
        if leaving is not None:  # else dropped by `forget`
            self._reports.put((key, leaving[1]))

    def _confirm(self, decision: Decision) -> None:
        """Raise `NotWanted` unless the same decision results from the current state, files, and clocks."""
        environment, state = self._environment, self._persistence.state
        tracked, document = state.tracked.get(decision.key), state.document
        if tracked is None or document is None:
            raise NotWanted("decided-anew")
        identity = environment.identity()
        # Only the files of this event are checked. That can take time, so the clock is read afterwards.
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
        """Return whether the document is at most `FRESH_SECONDS` old by both clocks.

        The monotonic clock stops while the VM is paused.
        """
        if self._read is None:
            return False
        by_mono = now.monotonic - self._read.monotonic
        by_wall = (now.wall - self._read.wall).total_seconds()
        return by_mono <= FRESH_SECONDS and abs(by_wall) <= FRESH_SECONDS

    # -- responses

    def answers(self, before: datetime | None = None) -> Iterator[Answer]:
        """Yield the results of POSTs since the last call.

        `before` is the time of the document that is handled after them. Their recorded times are at most that, because
        a replay sorts by time.
        """
        while not self._reports.empty():
            yield from self._reported(*self._reports.get(), before)

    def finish(self) -> Iterator[Answer]:
        """Yield the last results before the process ends: of approvals that were not sent, and of POSTs in flight."""
        yield from map(ApprovalUnsent, self.withdraw())
        until = self._environment.clock().monotonic + LAST_ANSWERS_SECONDS
        try:
            while self._leaving or self._in_flight:
                left = max(0.0, until - self._environment.clock().monotonic)
                yield from self._reported(*self._reports.get(timeout=left))
        except queue.Empty:
            return  # the state on disk keeps it as in flight

    def forget(self) -> None:
        """Drop all approvals: they belong to the outbox of another VM."""
        self.withdraw()
        with self._lock:
            self._leaving = {}
        self._in_flight.clear()

    def take_facts(self) -> list[Fact]:
        """Return the facts about POSTs since the last call."""
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
        # A bug in the client must not prevent the next attempt for this event.
        event_id, sentence = tracked.event.event_id, f"{type(error).__name__}: {error}"[:300]
        self._log.error("approval.unexpected_error", event_id=event_id, **self._about(tracked), error=sentence)
        return Failure("other", type(error).__name__)

    def _about(self, tracked: TrackedEvent) -> dict[str, str]:
        return fields_of(tracked.event_type, self._environment.identity().vm.name, tracked.not_before)
