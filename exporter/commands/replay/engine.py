"""Runs the agent's cycle (`core/cycle.py`) over the entries of a recording.

The agent's actions (approvals, restarts) and its identity come from the recording. Decisions are computed again, by a
given policy or by the one in force then. Nothing is committed and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from datetime import datetime, timedelta
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from exporter.commands.replay import entries
from exporter.commands.replay.decisions import Moment, ReplayResult
from exporter.commands.replay.inputs import ReplayPlan
from exporter.config.load import PolicyRead
from exporter.core import cycle
from exporter.core.continuity import DEACTIVATION_NEAR_SECONDS, UNAVAILABLE_SECONDS
from exporter.core.cycle import Observation
from exporter.core.decision import Explanation, decision_change_points, explain_decision, files_to_check, match
from exporter.core.document import Document, DocumentError, alike, folded, parse_document
from exporter.core.facts import DecisionMade
from exporter.core.policy import Context, Policy, Presence, Reason, prepared_path
from exporter.core.record_factory import RecordFactory
from exporter.core.records import Record, RecordKind, Vm, VmIdentity
from exporter.core.state import Instant, Interruption, InterruptionKind, State, TrackedEvent
from exporter.core.state_codec import dump_state, load_state
from exporter.errors import Failure

FileCheck = Callable[[Policy, Iterable[str], Mapping[str, Presence]], Mapping[str, Presence]]
"""Returns the presence of a policy's files by path, given the policy, the paths, and the recorded presence."""

OF_A_POLICY: Final = (RecordKind.APPROVAL_DECIDED, RecordKind.APPROVAL_OUTDATED)
"""The kinds of records that depend on a policy."""
PREDICTION_SPAN: Final = timedelta(days=30)
"""Upper bound of a prediction: Azure announces events less far ahead, but a document may contain any time."""
MOST_MARKS: Final = 1000
"""Maximum number of decisions within one unchanged stretch: a line may contain any time, and the hours of a rule open
every day until then. An agent writes a line every minute."""


class ReplayOptions(Struct, frozen=True):
    """The options of a replay. `vm_name` overrides the recorded name; `configured` is the name in the settings.

    `use_recorded_policy`: decide by the recorded policy, and by `policy` if none is recorded.
    """

    policy: Policy
    poll_interval: float
    """Seconds."""
    look: FileCheck
    """Returns the presence of the policy's files."""
    vm_name: str = ""
    configured: str = ""
    all_events: bool = False
    use_recorded_policy: bool = False
    use_recorded_findings: bool = True
    """Whether `look` prefers the recorded presence of a file, if there is one."""


class ReplayEngine:
    """Replays one plan. `run` yields the records; `result` and `vm` are complete after it.

    `vm` is the identity from all entries; an observation uses only what was known at its time.
    """

    def __init__(self, plan: ReplayPlan, options: ReplayOptions) -> None:
        self._plan = plan
        self._options = options
        self._policy = options.policy
        self._policy_known = True
        self._policy_recorded = False
        self._found: Mapping[str, Presence] = {}
        self._writable = True
        self._following: entries.OutboxKnown | None = None
        """The state of the outbox recorded right after the current entry, to which it already applies."""
        self._body = b""
        self._version = ""
        self.result = ReplayResult()
        first_known = next((entry for entry in plan.entries if isinstance(entry, entries.IdentityKnown)), None)
        self.vm = self._identify(first_known).vm
        self._identity = self._identify(None)
        self._learned: entries.IdentityKnown | None = None
        first = next(
            (entry.at for entry in plan.entries if not isinstance(entry, entries.Unreadable) and entry.at), None
        )
        self._start = first or datetime.fromisoformat("1970-01-01T00:00:00+00:00")
        self._state = State(
            birth=self._start, vm_key=(first_known.vm.id if first_known else "") or self.vm.name or "replay"
        )
        self._committed = self._state
        """The agent's state on disk: while the outbox is writable, every change and the time of the last document."""
        self._clock = entries.Clock(plan.entries, self._start)
        self._process_start = Instant(self._start, 0.0)
        self._interruptions: list[Interruption] = []
        self._spacing = options.poll_interval
        """Seconds between two polls of an unchanged stretch."""
        self._handled_ahead: set[int] = set()
        self._in_flight: set[str] = set()
        self._records: list[Record] = []
        self._watching = any(isinstance(entry, entries.Began | entries.RecordedInterruption) for entry in plan.entries)
        self._of_an_agent = any(isinstance(entry, entries.Began | entries.Noted) for entry in plan.entries)

    def run(self) -> Iterator[Record]:
        """Replay the entries in order and yield the records."""
        for place, entry in enumerate(self._plan.entries):
            self._clock.reach(place)
            if place in self._handled_ahead:
                continue
            if isinstance(entry, entries.DocumentReading | entries.Steady):
                if self._repeats(entry):
                    continue
                self._spacing = self._options.poll_interval
                if isinstance(entry, entries.Steady) and entry.times:
                    self._spacing = (entry.at - self._last_time()).total_seconds() / entry.times
                known = self._known_with(place, entry)
                self._handle(entry)
                if known:
                    self._decide_again()
            else:
                self._following = self._outbox_after(place)
                self._handle(entry)
            if self._writable:
                yield from self._records
                self._records.clear()
        yield from self._records

    def _handle(self, entry: entries.Entry) -> None:  # noqa: PLR0912  # one branch for each kind of entry
        if isinstance(entry, entries.PolicyKnown):
            self._adopt(entry.policy)
            return
        if isinstance(entry, entries.FilesFound | entries.OutboxKnown):
            self._know(entry)
            if isinstance(entry, entries.OutboxKnown):
                self._record_what_is_due(entry.at)
            return
        again = isinstance(entry, entries.IdentityKnown) and self._learned is not None and entry.at == self._learned.at
        if isinstance(entry, entries.Lost) or again:  # a recording's next file repeats the identity
            return
        if self._following is not None and not isinstance(
            entry, entries.DocumentReading | entries.Steady | entries.Began
        ):
            self._know(self._following)
        if not isinstance(entry, entries.DocumentReading | entries.Steady | entries.Unreadable):
            self._settle_identity()
        # The duration between the last entry and a restart is unknown.
        if not isinstance(entry, entries.Unreadable | entries.Began | entries.Steady) and entry.at is not None:
            self._record_what_is_due(entry.at)
        if isinstance(entry, entries.DocumentReading | entries.Ended) and entry.at is not None:
            self._fail_until(entry.at - timedelta(seconds=self._options.poll_interval))
        match entry:
            case entries.DocumentReading():
                self._read(entry)
            case entries.Steady():
                self._unchanged_until(entry.at)
            case entries.Failed():
                self.result.failures += self._state.outage is None
                self._run(cycle.PollFailed(entry.reason, "as recorded", self._clock.advance_to(entry.at)), entry.at)
            case entries.Sent():
                self._sent(entry.event_id, entry.at)
            case entries.Posted():
                self._posted(entry)
            case entries.RecordedInterruption():
                self._interrupted(entry)
            case entries.IdentityKnown():
                self._note_identity(entry)
            case entries.Began():
                self._restart(entry)
            case entries.Ended():
                self._run(cycle.AgentStopped(self._take_interruptions()), entry.at)
            case entries.Unreadable():
                self.result.rejected += 1
                self._reject(self._last_time(), "not-a-document", entry.detail, entry.where)
            case _:
                assert_never(entry)

    def _run(self, observation: Observation, at: datetime) -> None:
        """Run the cycle as the agent's loop does, without committing and sending."""
        now = self._clock.advance_to(at)
        vm_id = self._identity.vm.id
        if vm_id and self._state.vm_id and not alike(vm_id, self._state.vm_id):
            self._state = self._committed = cycle.fresh_state(self._state, now, self._state.boot_id)
        context = self._context(now, observation)
        outcome = cycle.run(self._state, observation, self._policy, context)
        self._state = outcome.state
        self._committed = self._state if outcome.changed and self._writable else self._committed
        made = cycle.decision_context(context, self._state)
        decisions = [fact.decision for fact in outcome.facts if isinstance(fact, DecisionMade)]
        if not self._policy_known:  # its decisions are unknown
            self.result.undecided.update(decision.key for decision in decisions)
            self._records += (record for record in outcome.records if record.kind not in OF_A_POLICY)
            return
        self._records += outcome.records
        for decision in decisions:
            explanation = self._marked(explain_decision(self._policy, self._state, made, decision))
            self.result.decided(Moment(at, explanation, self._policy.mode))

    def _marked(self, explanation: Explanation) -> Explanation:
        """Mark the details of checks that depend on more than documents as recorded or assumed.

        Without a recording, all are assumed and not marked.
        """
        if not self._of_an_agent:
            return explanation
        files: dict[Reason, str | None] = {Reason.HELD: self._policy.hold_file}
        if explanation.evaluations:
            rule, event = explanation.evaluations[-1].rule, explanation.decision.event
            files[Reason.NOT_PREPARED] = prepared_path(rule, event)
        recorded = {
            reason: self._options.use_recorded_findings and path in self._found
            for reason, path in files.items()
            if path
        }
        recorded |= {Reason.OUTBOX_UNWRITABLE: True, Reason.DRY_RUN: self._policy_recorded}
        marks = {reason: f" ({'recorded' if known else 'assumed'})" for reason, known in recorded.items()}
        conditions = (
            replace(each, finding=each.finding + marks.get(each.reason, "")) for each in explanation.conditions
        )
        return replace(explanation, conditions=tuple(conditions))

    def _context(self, now: Instant, observation: Observation) -> Context:
        document = observation.document if isinstance(observation, cycle.DocumentRead) else None
        return Context(
            now=now,
            process_start=self._process_start,
            identity=self._identity,
            files=self._look(document) if document is not None else {},
            writable=self._writable,
            sends=False,
            watching=self._watching,
            poll_interval=self._options.poll_interval,
            all_events=self._options.all_events,
            version=self._version,
            random_key="replay",
        )

    # -- the policy and its files

    def _adopt(self, policy: PolicyRead) -> None:
        """Decide by this recorded policy from now on, if the options ask for it."""
        if self._options.use_recorded_policy:
            self._policy, self._policy_known, self._policy_recorded = policy.policy, not policy.faults, True

    def _look(self, document: Document) -> Mapping[str, Presence]:
        return self._options.look(self._policy, files_to_check(self._policy, document), self._found)

    def _known_with(self, place: int, entry: entries.DocumentReading | entries.Steady) -> bool:
        """Apply what the lines after an entry record for the decisions on its last document; return whether any do.

        The beginning of a recording's next file may be between them.
        """
        known: list[entries.FilesFound | entries.OutboxKnown] = []
        for later in range(place + 1, len(self._plan.entries)):
            following = self._plan.entries[later]
            if isinstance(following, entries.FilesFound | entries.OutboxKnown) and following.at == entry.at:
                known.append(following)
                self._handled_ahead.add(later)
            elif not (isinstance(following, entries.Noted) or _reopens(following, entry)):
                break
        if known and isinstance(entry, entries.Steady):
            self._unchanged_until(entry.at - timedelta(seconds=self._options.poll_interval))
        for each in known:
            self._know(each)
        return bool(known)

    def _outbox_after(self, place: int) -> entries.OutboxKnown | None:
        for following in self._plan.entries[place + 1 : place + 8]:
            if isinstance(following, entries.OutboxKnown):
                return following
            if not isinstance(following, entries.Noted) and not (
                isinstance(following, entries.DocumentReading) and following.opening
            ):
                return None
        return None

    def _know(self, entry: entries.FilesFound | entries.OutboxKnown) -> None:
        if isinstance(entry, entries.FilesFound):
            self._found = entry.files
            return
        if entry.writable and not self._writable:
            self._committed = self._state  # with the document before this one
        elif self._writable and not entry.writable:
            self._committed = replace(self._committed, last_good=self._state.last_good)
        self._writable = entry.writable

    def _decide_again(self) -> None:
        document = self._state.document
        if document is not None and self._state.outage is None:
            self._good(document, self._last_time())

    # -- the identity

    def _identify(self, entry: entries.IdentityKnown | None) -> VmIdentity:
        """Return the recorded identity, or that of a name in flag or settings, or else the scenario's name."""
        options, known = self._options, entry.vm if entry else Vm()
        if options.vm_name:
            return VmIdentity(known if alike(options.vm_name, known.name) else Vm(name=options.vm_name))
        conflict = bool(options.configured and known.name and not alike(options.configured, known.name))
        if options.configured and not alike(options.configured, known.name):
            return VmIdentity(Vm(name=options.configured), conflict)
        vm = known if known.name else replace(known, name=self._plan.vm_name)
        return VmIdentity(vm, entry.conflict, entry.confirmed) if entry else VmIdentity(vm)

    def _note_identity(self, entry: entries.IdentityKnown) -> None:
        """Note an identity for the next document or, if none follows, for the current one."""
        identity = self._identify(entry)
        self.vm = identity.vm
        if self._state.document is None:
            self._identity = identity
        elif identity != self._identity:
            self._learned = entry

    def _settle_identity(self) -> None:
        """Apply a noted identity if its poll returned the same document again."""
        learned, last, document = self._learned, self._state.last_good, self._state.document
        if learned is None or last is None or document is None or self._state.outage is not None:
            return
        self._pass_time(learned.at - timedelta(seconds=self._options.poll_interval))
        self._take_learned()
        self._good(document, max(learned.at, last.wall))

    def _take_learned(self) -> None:
        if self._learned is not None:
            self._identity, self._learned = self._identify(self._learned), None

    # -- time

    def _last_time(self) -> datetime:
        return self._state.last_good.wall if self._state.last_good else self._start

    def _unchanged_until(self, until: datetime) -> None:
        if self._learned is not None and self._learned.at <= until:
            self._settle_identity()
        self._pass_time(until)
        document = self._state.document
        if self._interruptions and document is not None and self._state.outage is None:
            self._good(document, max(until, self._last_time()), self._take_interruptions())

    def _pass_time(self, until: datetime) -> None:
        """Advance the time while the document is unchanged, and run the cycle at moments that may change decisions.

        Does nothing during an outage, because no poll succeeded.
        """
        last, document = self._state.last_good, self._state.document
        if self._state.outage is not None or document is None or last is None or last.mono is None:
            return
        left = MOST_MARKS
        while last is not None and until > last.wall:
            left -= 1
            begin = self._state.observed_seconds
            end = begin + max(0.0, self._clock.instant_of(until).monotonic - last.monotonic)
            # Computed after each mark: the hours of a rule open and close many times while nothing else changes.
            marks = decision_change_points(self._policy, self._state, self._identity.vm.name)
            if self._state.reset is not None:  # which ends after some documents
                marks = (*marks, begin + self._spacing)
            mark = min((mark for mark in marks if begin < mark < end), default=end) if left else end
            at = until if mark == end else min(until, last.wall + timedelta(seconds=mark - begin))
            self._record_what_is_due(at)
            # The same state as after running every poll until then; only the last one is run.
            self._state = replace(self._state, last_good=self._clock.advance_to(at), observed_seconds=mark)
            self._good(document, at)
            last = self._state.last_good

    def _record_what_is_due(self, until: datetime) -> None:
        """Record an outage, and interruptions without an event, at the time when they are old enough."""
        patience = cycle.interruption_patience(self._options.poll_interval)
        for interruption in self._state.process.pending:
            at = interruption.at.wall + timedelta(seconds=patience, milliseconds=1)
            if at <= until:
                self._run(cycle.TimePassed(), at)
        for mark in (UNAVAILABLE_SECONDS, DEACTIVATION_NEAR_SECONDS):
            outage = self._state.outage
            if outage is None or (outage.warned if mark > UNAVAILABLE_SECONDS else outage.recorded):
                continue
            # One millisecond more, because of rounding.
            at = outage.known_since.wall + timedelta(seconds=mark, milliseconds=1)
            if at <= until:
                self._run(cycle.TimePassed(), at)

    def _fail_until(self, last: datetime) -> None:
        """Run a failed poll at `last` during an outage: not every failed poll has an entry."""
        outage = self._state.outage
        if outage is not None and outage.last_failure.mono is not None and last > outage.last_failure.wall:
            self._run(cycle.PollFailed(outage.reason, "as recorded", self._clock.advance_to(last)), last)

    def _restart(self, entry: entries.Began) -> None:
        # The state that the next process loads.
        last_good = self._state.last_good if self._writable else self._committed.last_good
        self._state = load_state(dump_state(replace(self._committed, last_good=last_good)))
        self._in_flight.clear()
        self._interruptions.clear()
        self._identity = self._identify(None)  # the next process reads it again
        self._found, self._body = {}, b""
        if not self._writable:
            self._records.clear()  # they existed only in memory
        self._writable = self._following is None or self._following.writable
        self._adopt(entry.policy)
        self._version = entry.version
        self._process_start = self._clock.advance_to(entry.at)
        self._run(cycle.AgentStarted(entry.boot), entry.at)

    # -- documents

    def _repeats(self, entry: entries.DocumentReading | entries.Steady) -> bool:
        """Return whether the entry repeats, at the beginning of a file, the last document of the file before it."""
        if not isinstance(entry, entries.DocumentReading) or not entry.opening or entry.at is None:
            return False
        return entry.body == self._body and entry.at <= self._last_time()

    def _read(self, entry: entries.DocumentReading) -> None:
        at, self._body = entry.at or self._last_time(), entry.body
        try:
            if len(entry.body) > entries.MAX_BODY:
                raise DocumentError("not-a-document", f"the body is larger than {entries.MAX_BODY >> 20} MiB")
            document = parse_document(entry.body)
        except DocumentError as error:
            self._take_learned()
            self.result.rejected += 1
            fault = error.reason if entry.recorded else ""
            self._run(cycle.PollFailed(cycle.MALFORMED, error.detail, self._clock.advance_to(at), fault), at)
            if not entry.recorded:
                self._reject(at, error.reason, error.detail, entry.where)
            return
        self.result.read(document)
        self._take_learned()
        self._good(document, at, self._take_interruptions())

    def _good(self, document: Document, at: datetime, interruptions: tuple[Interruption, ...] = ()) -> None:
        self._run(cycle.DocumentRead(document, interruptions=interruptions), at)

    def _reject(self, at: datetime, reason: str, detail: str, where: str) -> None:
        """Record an input that is neither a document nor a line of a recording, with its place."""
        document = self._state.document
        factory = RecordFactory(self._identity.vm, at, document.incarnation if document else None, self._policy.mode)
        message = f"{where}: not a valid document: {detail}"
        data = {"reason": reason, "error": detail, "input": where}
        self._state, record = factory.about_vm(self._state, RecordKind.DOCUMENT_REJECTED, "WARN", message, data)
        self._committed = self._state
        self._records.append(record)

    # -- what the agent did and observed

    def _sent(self, event_id: str, at: datetime) -> TrackedEvent | None:
        """Apply a recorded approval request, whatever the given policy decides; return the tracked event, if any."""
        tracked = self._state.tracked_or_closed(folded(event_id))
        if tracked is None:
            return None
        self.result.sent(tracked.key, at)
        self._predict(tracked)
        self._in_flight.add(tracked.key)
        rule = match(self._policy.rules, tracked.event)[0]
        self._run(cycle.ApprovalSent(tracked.key, rule.name if rule else ""), at)
        return self._state.tracked_or_closed(tracked.key)

    def _predict(self, tracked: TrackedEvent) -> None:
        """Predict whether and when the policy approves an event for which another policy sent an approval.

        The prediction assumes that nothing was sent and that the event stays unchanged until its `NotBefore`.
        """
        last, until = self._state.last_good, tracked.event.not_before
        if last is None or until is None or {tracked.key} & {*self.result.approved, *self.result.predicted}:
            return
        branch = copy(self)
        branch._clock, branch.result, branch._records = copy(self._clock), ReplayResult(), []
        branch._pass_time(min(until, last.wall + PREDICTION_SPAN) - timedelta(seconds=self._options.poll_interval))
        if moment := branch.result.approved.get(tracked.key):
            self.result.predicted[tracked.key] = moment

    def _posted(self, entry: entries.Posted) -> None:
        """Apply the response to an approval, also in a scenario, and if the line of the request was lost."""
        tracked = self._state.tracked_or_closed(folded(entry.event_id))
        if tracked is not None and tracked.key not in self._in_flight:
            tracked = self._sent(entry.event_id, entry.at)
        if tracked is None:
            return
        self._in_flight.discard(tracked.key)
        self.result.answered(tracked.key, entry.at, entry.status, entry.reason)
        failure = None
        if entry.status != entries.ACCEPTED:
            failure = Failure(entry.reason, "as recorded", status_code=entry.status)
        sent = tracked.approval.last_attempt or self._clock.advance_to(entry.at)
        self._run(cycle.PostAnswered(tracked, sent, failure), entry.at)
        document = self._state.document
        if failure is None and document is not None and self._state.outage is None:
            self._good(document, max(entry.at, self._last_time()))  # for the decision after it, at that time

    def _interrupted(self, entry: entries.RecordedInterruption) -> None:
        if entry.kind in list(InterruptionKind):
            kind, at = InterruptionKind(entry.kind), self._clock.instant_of(entry.at)
            self._interruptions.append(Interruption(kind, entry.seconds, at))
        if entry.handled_at is not None:
            self._run(cycle.TimePassed(self._take_interruptions()), entry.handled_at)

    def _take_interruptions(self) -> tuple[Interruption, ...]:
        interruptions = tuple(self._interruptions)
        self._interruptions.clear()
        return interruptions


def _reopens(entry: entries.Entry, last: entries.DocumentReading | entries.Steady) -> bool:
    """Return whether the entry begins a recording's next file with the last document."""
    return isinstance(entry, entries.DocumentReading) and entry.opening and entry.at == last.at
