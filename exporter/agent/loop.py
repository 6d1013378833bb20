"""The loop: read, run, commit, act, publish. One `tick` is one pass through these steps.

`core/cycle.py` computes the outcome of an observation from the state, without side effects. This module makes it
durable before it acts on it. If the process is killed at any point, no record and no approval is lost, and none has two
ids. Counters and log lines come last, so that they delay neither a commit nor a POST.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from exporter.agent.approvals import Approvals
from exporter.agent.log_fields import about, fields_of, story
from exporter.agent.persistence import StatePersistence
from exporter.agent.ports import AgentMetrics, AgentOptions, Environment, MetadataSource, Store
from exporter.core import cycle
from exporter.core.continuity import UNAVAILABLE_SECONDS
from exporter.core.cycle import CycleOutcome, Observation
from exporter.core.document import Document, DocumentError, folded, parse_document
from exporter.core.facts import ApprovalFailed, ApprovalPostponed, Fact, Polled
from exporter.core.policy import Context
from exporter.core.records import Record, RecordKind, VmIdentity
from exporter.core.snapshot import STALE_SECONDS, Status
from exporter.core.state import EMPTY, Instant, Interruption, State
from exporter.errors import SOURCE_BACKOFF, Failure, SourceFailure
from exporter.log.protocol import Logger

SLOW_POLL_SECONDS: Final = 1.0
"""If a poll takes longer than this, observations are handled before it ends."""


class Agent:
    """The agent of one VM. `tick` doesn't raise errors of services, the disk, or the clock."""

    def __init__(
        self,
        options: AgentOptions,
        source: MetadataSource,
        store: Store,
        metrics: AgentMetrics,
        *,
        log: Logger,
        environment: Environment,
    ) -> None:
        self._options = options
        self._source = source
        self._metrics = metrics
        self._log = log
        self._environment = environment
        self._started = environment.clock()
        self._due = self._polling = self._started.monotonic
        self._last: tuple[bytes, Document] | None = None
        self._random_key = str(uuid.uuid4())
        self._facts: list[Fact] = []
        self._records: list[tuple[Record, bool]] = []
        """Records to log, and whether their ids are final: only after the stored state is loaded."""
        self._persistence = StatePersistence(store, log, environment, options.event_memory_bytes)
        self._approvals = Approvals(options.policy, source, self._persistence, log, environment)
        self._run(cycle.AgentStarted(options.boot_id), self._started)
        self._approvals.check_files()
        self._publish()

    @property
    def status(self) -> Status:
        """The last published status."""
        return self._status

    # -- the steps

    def tick(self) -> float:
        """Poll if one is due, send approvals, and publish the status. Return the seconds until the next call is due."""
        now = self._environment.clock()
        if now.monotonic >= self._due:
            self._poll(now)
        else:
            self._idle(now)
        for answer in self._approvals.send():
            self._run(answer)
        self._persistence.notify_deliveries()
        self._publish()
        mono = self._environment.clock().monotonic
        return max(0.0, min(self._due - mono, self._seconds_until_due(mono), self._approvals.wait()))

    def _poll(self, began: Instant) -> None:
        """Read the document, and run the cycle on it or on the failure."""
        self._polling = start = began.monotonic
        self._due = start + self._options.poll_interval
        try:
            answer = self._source.fetch()
            read = self._environment.clock().at(answer.read_at_monotonic)
            for post in self._approvals.answers(read.wall):  # they can be older than this document
                self._run(post)
            document = self._parse(answer.body)
        except (Failure, DocumentError) as failure:
            if isinstance(failure, DocumentError):
                self._environment.record_document(answer.body, read.wall)
            if not self._environment.stopping():
                self._poll_failed(failure, began)
            return
        took = answer.read_at_monotonic - start
        # After the document was read: an interruption by an event that the document ends is observed by now.
        interruptions, unsent = self._interruptions(None), self._approvals.withdraw()
        self._environment.record_document(answer.body, read.wall)
        outcome = self._run(cycle.DocumentRead(document, took, interruptions, unsent), read, document)
        # If the VM was paused during the poll, the document is old, and only the wall clock shows it.
        self._approvals.take(outcome.approvals, Instant(began.wall + timedelta(seconds=took), read.mono))
        if not outcome.approvals:
            self._persistence.save_heartbeat(read)

    def _interruptions(self, without_document: datetime | None) -> tuple[Interruption, ...]:
        """Return the interruptions up to now, and pass them to the recording.

        `without_document` is the time at which they are attributed without a document; None if they are attributed with
        the document that is recorded next, or at the end of the process.
        """
        interruptions = tuple(self._environment.interruptions())
        for interruption in interruptions:
            self._environment.record_interruption(interruption, without_document)
        return interruptions

    def _parse(self, body: bytes) -> Document:
        if self._last is not None and self._last[0] == body:
            return self._last[1]
        document = parse_document(body)
        self._last = (body, document)
        return document

    def _poll_failed(self, failure: Failure | DocumentError, began: Instant) -> None:
        now = self._environment.clock()
        if isinstance(failure, DocumentError):
            observation = cycle.PollFailed(cycle.MALFORMED, failure.detail, began, failure.reason)
        else:
            self._environment.record_failure(now.wall, failure.reason)
            observation = cycle.PollFailed(failure.reason, failure.detail, began)
        self._run(replace(observation, interruptions=self._interruptions(now.wall)), now)
        # After a failure, the wait doesn't depend on the poll interval.
        malformed = self._persistence.state.process.malformed
        delay = failure.delay() if isinstance(failure, SourceFailure) else SOURCE_BACKOFF.after(malformed)
        self._due = now.monotonic + delay
        self._approvals.check_files()  # keeps the gauge of the hold file current

    def _idle(self, now: Instant) -> None:
        """Between two polls, handle what needs no document. During an outage that includes interruptions."""
        interruptions = self._interruptions(now.wall) if self._persistence.state.outage is not None else ()
        if interruptions or self._seconds_until_due(now.monotonic) <= 0:
            self._run(cycle.TimePassed(interruptions), now)

    def while_polling(self) -> None:
        """Record an outage or an interruption in time while `tick` waits for the metadata service.

        The client calls it repeatedly during a request, on the same thread.
        """
        now = self._environment.clock()
        if now.monotonic - self._polling < SLOW_POLL_SECONDS:
            return
        interruptions = self._interruptions(now.wall)
        if interruptions or self._seconds_until_due(now.monotonic) <= 0:
            self._run(cycle.TimePassed(interruptions), now)
            self._persistence.notify_deliveries()
            self._publish()

    def _seconds_until_due(self, mono: float) -> float:
        return cycle.seconds_until_due(self._persistence.state, mono, self._options.poll_interval)

    def _run(
        self, observation: Observation, at: Instant | None = None, document: Document | None = None
    ) -> CycleOutcome:
        """Run the cycle on one observation, and commit the outcome or keep it in memory."""
        now, persistence, policy = at or self._environment.clock(), self._persistence, self._options.policy
        identity = self._environment.identity()  # once: another thread may update it meanwhile
        boot_id = "" if isinstance(observation, cycle.AgentStarted) else self._options.boot_id
        self._check_ownership(identity, now, observation, boot_id)
        context = self._context(identity, now, document)
        state = persistence.state
        outcome = cycle.run(state, observation, policy, context)
        committed = persistence.commit(outcome, now)
        if not committed:
            if context.writable:  # nothing is approved that can't be recorded: decide again
                outcome = cycle.run(state, observation, policy, replace(context, writable=False))
            persistence.keep(outcome)
        self._environment.record_outbox(now.wall, context.writable and committed)
        self._facts += outcome.facts
        self._records += ((record, persistence.loaded) for record in outcome.records)
        return outcome

    def _check_ownership(self, identity: VmIdentity, now: Instant, observation: Observation, boot_id: str) -> None:
        """Load the stored state once its VM is known; quarantine that of another VM. Record ids depend on the VM."""
        is_adopted = self._persistence.load_once(identity, now.minus(self._started), self._options.boot_id)
        if is_adopted and not isinstance(observation, cycle.AgentStarted):
            self._run(cycle.AgentStarted(self._options.boot_id), now)
        if self._persistence.quarantine_if_other_vm(identity.vm.id, now, boot_id):
            self._approvals.forget()
            self._last = None

    def _context(self, identity: VmIdentity, now: Instant, document: Document | None) -> Context:
        options, files = self._options, EMPTY
        if document is not None:
            files = self._approvals.check_files(document)
            self._environment.record_files(now.wall, files)
        return Context(
            now=now,
            process_start=self._started,
            identity=identity,
            files=files,
            writable=self._persistence.writable,
            pending=self._approvals.pending,
            poll_interval=options.poll_interval,
            all_events=options.all_events,
            event_memory_bytes=options.event_memory_bytes,
            version=options.version,
            random_key=self._random_key,
        )

    # -- publishing

    def _publish(self) -> None:
        """Publish the status, then count and log, so that in no scrape a counter is ahead of the gauges."""
        self._persistence.refresh()
        identity, options, state = self._environment.identity(), self._options, self._shown()
        self._status = Status(
            started=self._started,
            state=state,
            vm=identity.vm,
            identity_conflict=identity.conflict,
            mode=options.policy.mode,
            coordination=options.policy.coordination,
            held=self._approvals.held,
            files=self._approvals.files,
            poll_interval=options.poll_interval,
            outbox=self._persistence.outbox,
            destinations=self._persistence.destinations,
            event_files=self._environment.event_files(),
        )
        self._metrics.publish(self._status)
        facts = (*self._facts, *self._approvals.take_facts(), *self._persistence.take_facts())
        records, self._facts, self._records = self._records, [], []
        for fact in facts:
            self._metrics.observe(fact)
            self._log_fact(fact)
        for record, id_is_final in records:
            self._log_record(record, {"id": record.id} if id_is_final else {})
        self._environment.publish_status(self._status)

    def _shown(self) -> State:
        """Return the state to publish: after a quick restart, the stored one until this process has read a document.

        The stored state may be of another VM, but a copied disk can't start within `STALE_SECONDS`.
        """
        state, stored = self._persistence.state, self._persistence.withheld
        if state.last_good is not None or stored is None or stored.last_good is None:
            return state
        age = self._environment.clock().since(stored.last_good)
        return replace(stored, process=state.process) if age is not None and age <= STALE_SECONDS else state

    def _log_fact(self, fact: Fact) -> None:
        match fact:
            case Polled(failure=None):
                self._log.recovered("source", "poll.recovered", quiet=UNAVAILABLE_SECONDS)
            case Polled():
                self._log.failing("source", "poll.failed", reason=fact.failure, detail=fact.detail)
            case ApprovalPostponed():
                detail = {"detail": fact.detail} if fact.detail else {}
                self._log.info("approval.postponed", **self._about(fact.event_id), reason=fact.reason, **detail)
            case ApprovalFailed():
                answer = {"status_code": fact.status_code, "detail": fact.detail, "id": fact.record_id}
                known = {name: value for name, value in answer.items() if value not in (None, "")}
                about, attempt = self._about(fact.event_id), fact.attempt
                self._log.warn("approval.failed", **about, attempt=attempt, reason=fact.reason, **known)

    def _about(self, event_id: str) -> dict[str, object]:
        """Return the log fields of an event."""
        tracked = self._persistence.state.tracked_or_closed(folded(event_id))
        event_type, due = (tracked.event_type, tracked.not_before) if tracked else (None, None)
        return {"event_id": event_id, **fields_of(event_type, self._environment.identity().vm.name, due)}

    def _log_record(self, record: Record, known_id: Mapping[str, str]) -> None:
        if record.kind == RecordKind.APPROVAL_FAILED:
            return  # each attempt has its own line, written for the fact
        write = {"INFO": self._log.info, "WARN": self._log.warn}.get(record.severity, self._log.error)
        tracked = self._persistence.state.tracked_or_closed(folded(record.subject))
        fields = {**about(record), "message": record.data["message"], **known_id, **story(record, tracked)}
        write(record.kind, subject=record.subject, **fields)

    def stop(self) -> None:
        """Handle the last results of approvals, and record that the agent stops."""
        for answer in self._approvals.finish():
            self._run(answer)
        self._run(cycle.AgentStopped(self._interruptions(None)))
        self._persistence.notify_deliveries()
        self._publish()
