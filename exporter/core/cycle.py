"""The cycle: the new state, records, facts, and approvals that follow from one observation. Pure and total.

    run(state, observation, policy, context) -> CycleOutcome(state, records, facts, approvals)

The shell (`agent/loop.py`) reads, runs, commits, acts, and publishes, in this order; `replay` runs the same function
over a recording. Nothing here reads a clock or a file, logs, or sends: every input is in the state, the observation,
the policy, and the context. Decisions depend on the state, never on the transition that led to it, so after a crash at
any point the next run decides the same.

`_Cycle.document_read` has the steps for a document, from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from exporter.core import continuity, facts
from exporter.core.attempts import attempt_due, begin_attempt, cancel_attempt, mark_accepted, mark_failed
from exporter.core.decision import decide, reconsidered
from exporter.core.document import Document, unknown_value_fields
from exporter.core.facts import Fact
from exporter.core.interruption import WINDOW_POLLS, attribute, with_interruption
from exporter.core.lifecycle import advance
from exporter.core.memory import memory_full, with_tracked
from exporter.core.policy import NOT_PUBLISHED, Context, Decision, Policy, Reason, Verdict
from exporter.core.record_factory import RecordFactory
from exporter.core.records import Record, RecordKind
from exporter.core.scope import apply_scope
from exporter.core.state import (
    CLOSING,
    EMPTY,
    Instant,
    Interruption,
    Reset,
    SourceStatus,
    StartedBy,
    State,
    TrackedEvent,
    TransitionKind,
)
from exporter.errors import Failure

IDENTITY_SECONDS: Final = 10.0
"""Time after its start for which an agent that doesn't know its identity yet writes no record: ids depend on it."""
SLOW_FIRST_ANSWER_SECONDS: Final = 5.0
MALFORMED: Final = "malformed"
"""Failure reason of a poll that returned an invalid document."""
PENDING_INTERRUPTIONS: Final = 100
INTERRUPTION_RECORDS_AN_HOUR: Final = 20
"""Limit for interruptions with an event, and again for those without. A starved machine stalls several times a second
for days. The histogram counts all stalls, and the event summaries include them."""
_HOUR: Final = 3600.0
CLOSED_REMEMBERED: Final = 50


# -- observations


class AgentStarted(Struct, frozen=True):
    """The start of a process. `boot_id` identifies the boot of the machine; empty if the system provides none."""

    boot_id: str = ""


class AgentStopped(Struct, frozen=True):
    """The orderly end of the process."""

    interruptions: tuple[Interruption, ...] = ()


class DocumentRead(Struct, frozen=True):
    """A poll that returned a valid document after `duration` seconds. `context.now` is when its last byte was read."""

    document: Document
    duration: float = 0.0
    interruptions: tuple[Interruption, ...] = ()
    """Interruptions observed since the last observation that contained some."""
    unsent: tuple[DueApproval, ...] = ()
    """Approvals that were due and not sent: they are decided and marked again with this document."""


class PollFailed(Struct, frozen=True):
    """A poll that began at `began` and returned no valid document.

    `reason` is one of a fixed set of values, `detail` a human-readable sentence. `document_fault` is set if the HTTP
    status was 200: one of `document.DOCUMENT_REASONS`.
    """

    reason: str
    detail: str
    began: Instant
    document_fault: str = ""
    interruptions: tuple[Interruption, ...] = ()
    """Interruptions observed since the last observation that contained some."""


class TimePassed(Struct, frozen=True):
    """Time without a poll: an outage or an interruption may have become old enough to be recorded."""

    interruptions: tuple[Interruption, ...] = ()
    """As in `PollFailed`."""


class ApprovalSent(Struct, frozen=True):
    """A POST that `replay` read from the recording, not one from an outcome. `key` is the event's."""

    key: str
    rule: str


class ApprovalUnsent(Struct, frozen=True):
    """A due approval that was not sent, so it's no attempt.

    There was no connection, the connection broke before the first byte, or the rules would no longer send the approval.
    `failure` is the reason; None if sending was not even started.
    """

    due: DueApproval
    failure: Failure | None = None


class PostAnswered(Struct, frozen=True):
    """The result of a POST that was sent at `sent`. `failure` is None for HTTP 200."""

    tracked: TrackedEvent
    """The event when the POST was sent, in case the state has dropped it meanwhile."""
    sent: Instant
    failure: Failure | None = None


Observation = (
    AgentStarted | AgentStopped | DocumentRead | PollFailed | TimePassed | ApprovalSent | ApprovalUnsent | PostAnswered
)


class DueApproval(Struct, frozen=True):
    """An approval to send once it's committed. `tracked` is the event before the attempt was marked."""

    decision: Decision
    tracked: TrackedEvent


class CycleOutcome(Struct, frozen=True):
    """The result of a run. `records` are published in this order; `facts` are counted and logged after the commit."""

    state: State
    records: tuple[Record, ...] = ()
    facts: tuple[Fact, ...] = ()
    approvals: tuple[DueApproval, ...] = ()
    changed: bool = False
    """Whether the state must be written: more than the time of the last valid document changed."""


def run(state: State, observation: Observation, policy: Policy, context: Context) -> CycleOutcome:
    """Return the outcome of one observation. Total: every observation is handled in every state.

    If the commit of the outcome fails, the caller runs again with `context.writable` False, which holds every approval.
    """
    document = observation.document if isinstance(observation, DocumentRead) else state.document
    cycle = _Cycle(state, policy, context, document.incarnation if document is not None else None)
    if not isinstance(observation, AgentStarted | ApprovalUnsent):
        cycle.learn_identity()
    match observation:
        case DocumentRead():
            cycle.document_read(observation)
        case PollFailed():
            cycle.poll_failed(observation)
        case TimePassed():
            cycle.time_passed(observation)
        case ApprovalSent():
            cycle.approval_sent(observation)
        case ApprovalUnsent():
            cycle.approval_unsent(observation)
        case PostAnswered():
            cycle.post_answered(observation)
        case AgentStarted():
            cycle.agent_started(observation)
        case AgentStopped():
            cycle.agent_stopped(observation)
        case _:
            assert_never(observation)
    return cycle.outcome()


def decision_context(context: Context, state: State) -> Context:
    """Return the context for decisions on this state: approvals need memory as well as a writable outbox."""
    is_full = memory_full(state, context.now.wall, context.event_memory_bytes)
    return replace(context, writable=context.writable and not is_full)


def interruption_patience(poll_interval: float) -> float:
    """Return for how many seconds an interruption waits for an event that may explain it: two polls and one second."""
    return WINDOW_POLLS * poll_interval + 1.0


def seconds_until_due(state: State, mono: float, poll_interval: float) -> float:
    """Return the seconds until `TimePassed` has an outage or an interruption to record; infinity for never."""
    pending = state.process.pending if state.process.announced else ()  # before that they wait for the identity
    patience = interruption_patience(poll_interval)
    expiring = (interruption.at.monotonic + patience - mono for interruption in pending)
    return min((continuity.seconds_until_outage_recorded(state, mono), *expiring))


def fresh_state(state: State, now: Instant, boot_id: str) -> State:
    """Return an empty state for this VM within the same process, after an outbox of another VM was quarantined.

    Observations of this process belong to this VM. `boot_id` is that of this boot; empty if the process has not read it
    yet: the one in the state may be that of the other VM.
    """
    process = replace(state.process, announced=False, evidence=EMPTY, decisions=EMPTY)
    return State(birth=now.wall, boot_id=boot_id, process=process)


def adopted_state(stored: State, observed: State) -> State:
    """Return the `stored` state for a process that has `observed` without it. The next document is compared with it.

    Only two parts of the observed state stay: the process memory, and what approvals are held for (ids that were seen
    Started, a `DocumentIncarnation` that went down).
    """
    seen, last = {**observed.closed, **observed.tracked}, observed.last_good
    begun = {key: last.wall for key, tracked in seen.items() if last is not None and tracked.was_started}

    def with_begun(events: Mapping[str, TrackedEvent]) -> Mapping[str, TrackedEvent]:
        return {key: replace(event, started_before=True) if key in begun else event for key, event in events.items()}

    return replace(
        stored,
        tracked=with_begun(stored.tracked),
        closed=with_begun(stored.closed),
        started_ids={**observed.started_ids, **begun, **stored.started_ids},
        reset=stored.reset or (observed.reset and Reset(stored.observed_seconds)),
        outage=stored.outage or (observed.outage and replace(observed.outage, recorded=False, warned=False)),
        process=replace(observed.process, decisions=EMPTY),
    )


_ENDED: Final[Mapping[str, str]] = {  # by `ProcessMemory.previous_run`, as published
    "stopped": "; the previous run was stopped",
    "killed": "; the previous run was killed",
    "with-machine": "; the previous run ended when the machine restarted",
}


class _Cycle:
    """One run, step by step: collects the new state, the records, the facts, and the due approvals."""

    def __init__(self, state: State, policy: Policy, context: Context, incarnation: int | None) -> None:
        self._state = state
        self._process = state.process
        self._policy = policy
        self._context = context
        self._vm = context.identity.vm
        self._now = context.now
        self._factory = RecordFactory(
            self._vm, self._now.wall, incarnation, policy.mode, state.process.evidence, context.watching
        )
        self._records: list[Record] = []
        self._facts: list[Fact] = []
        self._approvals: list[DueApproval] = []
        self._changed = False

    def outcome(self) -> CycleOutcome:
        """Return the outcome of the steps so far."""
        state = replace(self._state, process=self._process)
        return CycleOutcome(
            state, tuple(self._records), tuple(self._facts), tuple(self._approvals), changed=self._changed
        )

    # -- a document, step by step

    def document_read(self, observed: DocumentRead) -> None:
        """Apply everything that follows from one valid document."""
        self._facts.append(facts.Polled(observed.duration))
        for due in observed.unsent:
            self._state = cancel_attempt(self._state, due.tracked)
        self._ensure_started_record(now=True)
        if self._state.first_answer is None and observed.duration > SLOW_FIRST_ANSWER_SECONDS:
            self._record_anomaly("slow-first-answer")
        self.record_outage()  # it may have become old enough during this poll
        self._source_recovered()
        # If an event ends with this document, its summary must include its interruptions.
        self._attribute((*self._process.pending, *observed.interruptions))
        context = self._context
        step = advance(self._state, observed.document, self._now, context.poll_interval, context.event_memory_bytes)
        scoped = apply_scope(self._state, step, self._vm.name, context.all_events)
        self._count_unknown_values(step)
        self._changed = self._changed or scoped.state is not step.state
        self._state = scoped.state
        if scoped.changed:
            self._facts.append(facts.DocumentChanged())
        if scoped.anomaly:
            self._record_anomaly(scoped.anomaly)
        self._facts.extend(facts.EventTransitioned(transition) for transition in scoped.counted)
        self._remember_closed(*[move.tracked for move in scoped.counted if move.kind in CLOSING])
        for transition in scoped.transitions:
            self._record(self._factory.transition(self._state, transition))
        for rejection in scoped.rejections:
            self._record(self._factory.rejection(self._state, rejection))
        # An event may have started with this document, or in the gap before it.
        gaps = [transition.gap or 0.0 for transition in step.transitions if transition.kind is TransitionKind.STARTED]
        unobserved = max(gaps, default=0.0)
        self._attribute(self._process.pending, unobserved, interruption_patience(context.poll_interval))
        self._explain(unobserved)
        if step.changed:
            self._reconsider_approved()
        self._mark_due(self._decide())
        self._update_process_memory(evidence=EMPTY)

    def _record_anomaly(self, anomaly: str) -> None:
        """Count an anomaly, and record it unless it is one of `UNRECORDED_ANOMALIES`."""
        self._facts.append(facts.AnomalyObserved(anomaly))
        if anomaly not in continuity.UNRECORDED_ANOMALIES:
            self._record(self._factory.anomaly(self._state, anomaly))

    def _count_unknown_values(self, step: continuity.DocumentStep) -> None:
        """Count each unknown value once when it appears, even if it causes no transition."""
        if not step.changed:
            return
        for key, tracked in step.state.tracked.items():
            before, event = self._state.tracked.get(key), tracked.event
            for name in unknown_value_fields(event):
                if before is None or before.event.raw.get(name) != event.raw.get(name):
                    self._facts.append(facts.UnknownValueObserved(name))

    # -- deciding

    def _decide(self) -> tuple[Decision, ...]:
        """Decide on each event of the document; record each decision that differs from the last one."""
        decisions = decide(self._policy, self._state, decision_context(self._context, self._state))
        for decision in decisions:
            tracked = self._state.tracked[decision.key]
            if tracked.decided == decision.published_values:
                continue
            self._set_tracked(replace(tracked, decided=decision.published_values))
            self._facts.append(facts.DecisionMade(decision))
            if decision.reason not in NOT_PUBLISHED and tracked.in_scope is not False:
                self._record(self._factory.decision(self._state, decision))
        self._update_process_memory(decisions={decision.key: decision for decision in decisions})
        return decisions

    def _mark_due(self, decisions: Iterable[Decision]) -> None:
        """Mark in the state, before it is committed, which approvals are about to be sent."""
        if not self._context.sends:
            return
        for decision in decisions:
            if decision.verdict is not Verdict.APPROVE or decision.key in self._context.pending:
                continue
            tracked = self._state.tracked[decision.key]
            if attempt_due(tracked, self._now, self._context.process_start):
                self._set_tracked(replace(tracked, approval=begin_attempt(tracked.approval, self._now, decision.rule)))
                self._approvals.append(DueApproval(decision, tracked))

    def _reconsider_approved(self) -> None:
        """Record each approved event that has changed so that the rules would now hold it."""
        for tracked in list(self._state.tracked.values()) if self._vm.name else ():
            result = reconsidered(self._policy, tracked, self._vm.name)
            if result is None:
                continue
            after, reason = result
            self._set_tracked(after)
            if reason is not Reason.NONE:
                self._record(self._factory.outdated(self._state, after, reason.value))
                self._facts.append(facts.ApprovalOutdated())

    # -- results of approvals

    def approval_sent(self, observed: ApprovalSent) -> None:
        """Mark a POST that the recording contains."""
        if (tracked := self._state.tracked_or_closed(observed.key)) is not None:
            rule = observed.rule or tracked.approval.rule
            self._set_tracked(replace(tracked, approval=begin_attempt(tracked.approval, self._now, rule)))

    def approval_unsent(self, observed: ApprovalUnsent) -> None:
        """Remove the mark of an attempt that was not sent: the next valid document may send it at once."""
        due, failure = observed.due, observed.failure or Failure("not-begun")
        self._state = cancel_attempt(self._state, due.tracked)
        self._facts.append(facts.ApprovalPostponed(due.decision.event.event_id, failure.reason, failure.detail))

    def post_answered(self, observed: PostAnswered) -> None:
        """Record whether Azure accepted the approval."""
        tracked = self._state.tracked_or_closed(observed.tracked.key) or observed.tracked
        failure = observed.failure
        if failure is None:
            # If the event started before this response, what started it was unknown until now.
            by = StartedBy.THIS_VM if tracked.started_by is not None else None
            after = replace(tracked, approval=mark_accepted(tracked.approval, self._now.wall), started_by=by)
            self._set_tracked(after)
            self._record(self._factory.accepted(self._state, after))
            self._reconsider_approved()  # it may have changed while its POST was in flight
            return
        approval = mark_failed(tracked.approval, failure.reason, failure.status_code, failure.retry_after or 0.0)
        # The backoff begins with the response or, without one, with the POST: the timeout is part of the wait.
        last_attempt = observed.sent if failure.status_code is None else self._now
        after = replace(tracked, approval=replace(approval, last_attempt=last_attempt))
        self._set_tracked(after)
        record_id, status = "", failure.status_code
        if approval.failures[failure.reason] == 1:
            state, record = self._factory.failed(self._state, after, failure.reason, status, failure.detail)
            self._record((state, record))
            record_id = record.id
        event_id, attempt = after.event.event_id, approval.attempts
        self._facts.append(facts.ApprovalFailed(failure.reason, event_id, attempt, status, failure.detail, record_id))

    # -- the metadata service

    def poll_failed(self, observed: PollFailed) -> None:
        """Record an outage after 10 s, and an invalid document at once."""
        self._facts.append(facts.Polled(self._now.minus(observed.began), observed.reason, observed.detail))
        source, now, malformed = self._process.source, self._now, self._process.malformed
        failed = replace(source, up=False, last_poll=now.wall, failure=observed.reason, failing=source.failing or now)
        self._update_process_memory(source=failed, malformed=malformed + bool(observed.document_fault))
        before = self._state.outage
        outage = continuity.outage_after(before, observed.began, self._now, observed.reason)
        self._state = replace(self._state, outage=outage)
        self._changed = self._changed or not continuity.is_outage_noted(before, outage)
        fault = observed.document_fault
        if fault and self._state.document_rejected != fault and self._ensure_started_record():
            message = f"The metadata service returned an invalid document: {observed.detail}"
            data = {"reason": fault, "error": observed.detail}
            self._record(self._factory.about_vm(self._state, RecordKind.DOCUMENT_REJECTED, "WARN", message, data))
            self._replace_state(replace(self._state, document_rejected=fault))
        self.time_passed(TimePassed(observed.interruptions))

    def time_passed(self, observed: TimePassed) -> None:
        """Record what doesn't wait for a document: an outage, and interruptions that have waited long enough."""
        self.record_outage()
        interruptions = (*self._process.pending, *observed.interruptions)
        if interruptions and self._ensure_started_record():
            self._attribute(interruptions, patience=interruption_patience(self._context.poll_interval))
        elif observed.interruptions:
            self._update_process_memory(pending=interruptions[-PENDING_INTERRUPTIONS:])

    def record_outage(self) -> None:
        """Record an outage once, after polls have failed for 10 s in this process."""
        outage = self._state.outage
        if outage is None or outage.known_since.mono is None:
            return
        lasted = self._now.minus(outage.known_since)
        if not outage.recorded and lasted >= continuity.UNAVAILABLE_SECONDS and self._ensure_started_record():
            reason = self._process.source.failure or outage.reason
            self._record(self._factory.unavailable(self._state, outage, reason, lasted))
            outage = replace(outage, recorded=True)
            self._replace_state(replace(self._state, outage=outage))
        if not outage.warned and lasted >= continuity.DEACTIVATION_NEAR_SECONDS and self._ensure_started_record():
            self._record_anomaly("idle-deactivation-near")
            self._replace_state(replace(self._state, outage=replace(outage, warned=True)))

    def _source_recovered(self) -> None:
        self._update_process_memory(
            malformed=0, source=SourceStatus(up=True, last_poll=self._now.wall, success=self._now)
        )
        outage = self._state.outage
        if outage is None:
            return
        self._replace_state(replace(self._state, outage=None))
        if outage.recorded:
            self._record(self._factory.recovered(self._state, outage, continuity.absent_until(outage, self._now)))

    # -- interruptions

    def _attribute(
        self, interruptions: Iterable[Interruption], unobserved: float = 0.0, patience: float = float("inf")
    ) -> None:
        """Attribute each interruption to its event or, once it is `patience` seconds old, to none.

        One that fits no event stays pending for two polls: the document may show its event only then. `unobserved` is
        how many seconds before the current document were not observed.
        """
        pending: list[Interruption] = []
        for interruption in interruptions:
            tracked = attribute(self._state, self._vm, interruption, self._context.poll_interval, unobserved)
            waited = self._now.monotonic - interruption.at.monotonic
            if tracked is None and interruption.seconds > 0 and waited < patience:
                pending.append(interruption)
                continue
            if tracked is not None:
                tracked = with_interruption(tracked, interruption)
                self._set_tracked(tracked)
            self._record_interruption(interruption, tracked)
        if tuple(pending) != self._process.pending:
            self._update_process_memory(pending=tuple(pending[-PENDING_INTERRUPTIONS:]))

    def _record_interruption(self, interruption: Interruption, tracked: TrackedEvent | None) -> None:
        kind, seconds, failing = interruption.kind.value, interruption.seconds, self._state.outage is not None
        if tracked is None and failing and seconds > 0:
            self._update_process_memory(unexplained=(*self._process.unexplained, interruption)[-PENDING_INTERRUPTIONS:])
        closed = tracked is not None and tracked.closed is not None  # its summary is already published
        if closed or self._may_record_interruption(attributed=tracked is not None):
            self._record(self._factory.interruption(self._state, interruption, tracked, failing=failing))
        self._facts.append(facts.InterruptionObserved(kind, seconds, tracked.event.event_id if tracked else ""))

    def _explain(self, unobserved: float) -> None:
        """Count interruptions that were recorded while polls failed for the event that was Started then.

        Only the document after the outage may show that event. `unobserved` is as in `_attribute`.
        """
        for interruption in self._process.unexplained:
            tracked = attribute(self._state, self._vm, interruption, self._context.poll_interval, unobserved)
            if tracked is not None:
                self._set_tracked(with_interruption(tracked, interruption))
        if self._process.unexplained:
            self._update_process_memory(unexplained=())

    def _may_record_interruption(self, *, attributed: bool) -> bool:
        mono, recorded = self._now.monotonic, self._process.recorded_at.get(attributed, ())
        if len(recorded) == INTERRUPTION_RECORDS_AN_HOUR and mono - recorded[0] < _HOUR:
            return False
        recorded = (*recorded, mono)[-INTERRUPTION_RECORDS_AN_HOUR:]
        self._update_process_memory(recorded_at={**self._process.recorded_at, attributed: recorded})
        return True

    # -- the process

    def agent_started(self, observed: AgentStarted) -> None:
        """Note what is known about the time between two processes: whether the VM has booted in between."""
        state, before, boot_id = self._state, self._state.boot_id, observed.boot_id
        evidence = {"rebooted": before != boot_id} if before and boot_id else EMPTY
        previous = ("with-machine" if evidence["rebooted"] else "killed") if evidence else ""
        self._update_process_memory(
            announced=False, evidence=evidence, previous_run="stopped" if state.stopped else previous
        )
        self._state = replace(state, boot_id=boot_id, stopped=False)
        self._changed = state.stopped  # else a kill of this process would look like an orderly end

    def agent_stopped(self, observed: AgentStopped) -> None:
        """Write the last records; pending interruptions are attributed to no event."""
        self._replace_state(replace(self._state, stopped=True))
        if not self._ensure_started_record():
            return
        self._attribute((*self._process.pending, *observed.interruptions), patience=-1.0)
        self._record(self._factory.about_vm(self._state, RecordKind.AGENT_STOPPED, "INFO", "The agent stopped", {}))

    def learn_identity(self) -> None:
        """Bind the state to this VM: the first known id stays."""
        if self._vm.id and not self._state.vm_id:
            self._replace_state(replace(self._state, vm_id=self._vm.id))

    def _ensure_started_record(self, *, now: bool = False) -> bool:
        """Return whether records may be written yet. Writes `agent.started` before the first record of a process.

        Record ids depend on the identity of the VM. So records wait up to `IDENTITY_SECONDS` for it, unless one must be
        written `now`.
        """
        state, vm = self._state, self._vm
        waited = self._now.minus(self._context.process_start) >= IDENTITY_SECONDS
        if not (state.vm_key or vm.id or waited or now):
            return False
        if not state.vm_key:
            self._replace_state(replace(state, vm_key=vm.id or vm.name or self._context.random_key))
        if not self._process.announced:
            self._update_process_memory(announced=True)
            version, mode = self._context.version, self._policy.mode.value
            previous = self._process.previous_run
            data = {"version": version, "mode": mode, "previous_run": previous or None, **self._factory.evidence}
            message = f"Agent {version} started in mode {mode}{_ENDED.get(previous, '')}"
            self._record(self._factory.about_vm(self._state, RecordKind.AGENT_STARTED, "INFO", message, data))
        return True

    # -- changing the state

    def _replace_state(self, state: State) -> None:
        self._state = state
        self._changed = True

    def _set_tracked(self, tracked: TrackedEvent) -> None:
        self._replace_state(with_tracked(self._state, tracked))
        if tracked.closed is not None and tracked.key in self._process.closed:
            self._remember_closed(tracked)

    def _remember_closed(self, *events: TrackedEvent) -> None:
        new = {tracked.key: tracked for tracked in events}
        if new:
            known = {key: tracked for key, tracked in self._process.closed.items() if key not in new}
            self._update_process_memory(closed=dict([*known.items(), *new.items()][-CLOSED_REMEMBERED:]))

    def _record(self, numbered: tuple[State, Record]) -> None:
        self._replace_state(numbered[0])
        self._records.append(numbered[1])

    def _update_process_memory(self, **fields: Any) -> None:
        """Change fields of `State.process`, which isn't kept on disk."""
        self._process = replace(self._process, **fields)
