"""Entries through the core: the same moves, decisions and records as the agent's, and how each decision came about.

What the agent did at the time (its approvals, what it felt, who it was) is taken from the recording as it happened;
what it would decide is decided anew, by the policy given now. Nothing is sent anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from exporter.agent.source_health import UNAVAILABLE_SECONDS
from exporter.commands.replay.clock import Clock
from exporter.commands.replay.entries import (
    ACCEPTED,
    MAX_BODY,
    Began,
    Entry,
    Failed,
    Felt,
    Known,
    Posted,
    Reading,
    Sent,
    Steady,
    Unreadable,
)
from exporter.commands.replay.plans import Play
from exporter.commands.replay.result import Findings
from exporter.core.attempts import accepted, attempting, not_accepted
from exporter.core.continuity import EVERYDAY, aged
from exporter.core.decision import Explanation, explain, files_to_look_at, match, reconsidered, turning_points
from exporter.core.document import Document, DocumentError, parse_document
from exporter.core.folding import alike, folded
from exporter.core.interruption import attribute, felt
from exporter.core.lifecycle import advance
from exporter.core.memory import with_tracked
from exporter.core.policy import NOT_PUBLISHED, Policy, Presence, Reason, Situation
from exporter.core.record_factory import Writer
from exporter.core.records import DOCUMENT_REJECTED, Record, Vm
from exporter.core.scope import tale_of
from exporter.core.state import Approval, Instant, Interruption, InterruptionKind, Outage, StartedBy, State, Tracked
from exporter.core.state_codec import dump_state, load_state

Look = Callable[[Iterable[str]], Mapping[str, Presence]]


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay. `vm_name` is who to be, whatever the recording says; `configured` what the settings say."""

    policy: Policy
    poll_interval: float
    look: Look
    vm_name: str = ""
    configured: str = ""
    all_events: bool = False


class Story:
    """One play. `tell` gives the records as they come about; `findings` and `vm` are complete after it.

    `vm` is who the VM is as far as all the entries tell; what is told at a moment knows what was known then.
    """

    def __init__(self, play: Play, options: Options) -> None:
        self._play = play
        self._options = options
        self._policy = options.policy
        self.findings = Findings()
        known = next((entry.vm for entry in play.entries if isinstance(entry, Known)), Vm())
        self.conflict = False
        self.vm = self._who(known)
        self._vm = self._who(Vm())
        self._learned: Known | None = None
        first = next((entry.at for entry in play.entries if not isinstance(entry, Unreadable) and entry.at), None)
        self._start = first or datetime.fromisoformat("1970-01-01T00:00:00+00:00")
        self._state = State(birth=self._start, vm_key=known.id or self.vm.name or "replay")
        self._clock = Clock(play.entries, self._start)
        self._boot = ""
        self._evidence: dict[str, bool] = {}
        self._records: list[Record] = []
        self._flying: set[str] = set()
        self._watching = any(isinstance(entry, Began | Felt) for entry in play.entries)

    def tell(self) -> Iterator[Record]:
        for place, entry in enumerate(self._play.entries):
            self._clock.reach(place)
            self._take(entry)
            yield from self._records
            self._records.clear()

    def _who(self, known: Vm) -> Vm:
        """Who this VM is: as asked for, else as recorded, else as configured, else as the scenario says."""
        options = self._options
        self.conflict = bool(
            not options.vm_name and options.configured and known.name and not alike(options.configured, known.name)
        )
        wanted = options.vm_name or options.configured
        if wanted and not alike(wanted, known.name):
            return Vm(name=wanted)
        return known if known.name else replace(known, name=self._play.vm_name)

    def _take(self, entry: Entry) -> None:
        if not isinstance(entry, Reading | Steady | Unreadable):
            self._settle_who()
        match entry:
            case Reading():
                self._read(entry)
            case Steady():
                self._stay(entry.at)
            case Failed():
                self.findings.failures += 1
                self._fail(entry)
            case Sent():
                self._sent(entry)
            case Posted():
                self._posted(entry)
            case Felt():
                self._feel(entry)
            case Known():
                self._learn(entry)
            case Began():
                self._restart(entry)
            case Unreadable():
                self._reject(self._last_time(), "not-a-document", entry.detail, entry.where)
            case _:
                assert_never(entry)

    # -- who this VM is

    def _learn(self, entry: Known) -> None:
        """It was known from a poll on: of the document that comes next, or, where none does, of the one that stood."""
        self.vm = self._who(entry.vm)
        if self._state.document is None:
            self._vm = self.vm
        elif self.vm != self._vm:
            self._learned = entry

    def _settle_who(self) -> None:
        """The poll at which it was learned had read the same document again."""
        learned, last, document = self._learned, self._state.last_good, self._state.document
        if learned is None or last is None or document is None or self._state.outage is not None:
            return
        self._pass_time(learned.at - timedelta(seconds=self._options.poll_interval))
        self._learned, self._vm = None, self._who(learned.vm)
        self._good(document, max(learned.at, last.wall))

    def _stay(self, until: datetime) -> None:
        if self._learned is not None and self._learned.at <= until:
            self._settle_who()
        self._pass_time(until)

    # -- the clocks

    def _last_time(self) -> datetime:
        return self._state.last_good.wall if self._state.last_good else self._start

    def _pass_time(self, until: datetime) -> None:
        """The document stood still and was read again and again: only time passes, and decisions that wait for it.

        What was no document stood still, too: then nothing good was read.
        """
        last = self._state.last_good
        if self._state.outage is not None or last is None or last.mono is None or until <= last.wall:
            return
        begin, end = self._state.watched, self._state.watched + (until - last.wall).total_seconds()
        for mark in (*(m for m in turning_points(self._policy, self._state, self._vm.name) if m < end), end):
            at = last.wall + timedelta(seconds=mark - begin)
            polls = int((mark - self._state.watched) / self._options.poll_interval)
            reset = aged(self._state.reset, mark, polls)
            self._state = replace(self._state, last_good=self._clock.seen(at), watched=mark, reset=reset)
            self._decide(at)

    def _restart(self, entry: Began) -> None:
        self._state = load_state(dump_state(self._state))  # what the next process knows of it
        if self._boot and entry.boot:
            self._evidence = {"rebooted": self._boot != entry.boot}
        self._boot = entry.boot or self._boot
        self._flying.clear()
        self._vm = self._who(Vm())  # it asks anew

    # -- documents

    def _writer(self, at: datetime) -> Writer:
        document = self._state.document
        number = document.incarnation if document else None
        return Writer(self._vm, at, number, self._policy.mode, self._evidence, self._watching)

    def _record(self, written: tuple[State, Record]) -> None:
        self._state = written[0]
        self._records.append(written[1])

    def _read(self, entry: Reading) -> None:
        at = entry.at or self._last_time()
        try:
            document = _parse(entry.body)
        except DocumentError as error:
            if self._learned is not None:
                self._vm, self._learned = self._who(self._learned.vm), None
            self._fail(Failed(at, "malformed"))
            self._reject(at, error.reason, error.detail, entry.where)
            return
        self.findings.read(document)
        if self._learned is not None:
            self._vm, self._learned = self._who(self._learned.vm), None
        self._good(document, at)

    def _good(self, document: Document, at: datetime) -> None:
        now = self._clock.seen(at)
        self._recover(now)
        step = advance(self._state, document, now, self._options.poll_interval)
        tale = tale_of(self._state, step, self._vm.name, self._options.all_events, self._options.poll_interval)
        self._state = tale.state
        for anomaly in step.anomalies:
            if anomaly not in EVERYDAY:
                self._record(self._writer(at).anomaly(self._state, anomaly))
        for transition in tale.told:
            self._record(self._writer(at).transition(self._state, transition))
        for rejection in tale.rejections:
            self._record(self._writer(at).rejection(self._state, rejection))
        self._evidence = {}
        self._watch_approved(at)
        self._decide(at)

    def _reject(self, at: datetime, reason: str, detail: str, where: str) -> None:
        self.findings.rejected += 1
        say = f"{where} is no document: {detail}"
        more = {"reason": reason, "error": detail, "input": where}
        self._record(self._writer(at).about_vm(self._state, DOCUMENT_REJECTED, "WARN", say, more))

    # -- the source's health

    def _fail(self, entry: Failed) -> None:
        outage, now = self._state.outage, self._clock.seen(entry.at)
        if outage is None:
            self._state = replace(self._state, outage=Outage(now, entry.reason))
        elif outage.felt.mono is None:
            self._state = replace(self._state, outage=replace(outage, here=now))

    def _recover(self, now: Instant) -> None:
        """An outage of 10 s and more is told as the agent tells it, at the moment when it became one."""
        outage = self._state.outage
        if outage is None:
            return
        self._state = replace(self._state, outage=None)
        lasted = outage.lasted(now)
        if (now.since(outage.felt) or 0.0 if lasted is None else lasted) < UNAVAILABLE_SECONDS:
            return
        told = self._writer(outage.since.wall + timedelta(seconds=UNAVAILABLE_SECONDS))
        self._record(told.unavailable(self._state, outage, outage.reason, UNAVAILABLE_SECONDS))
        self._record(self._writer(now.wall).recovered(self._state, outage, lasted))

    # -- what the agent did and felt

    def _sent(self, entry: Sent) -> None:
        """An approval as it was asked for at the time, whatever the policy given now would have done."""
        self._flying.add(folded(entry.event_id))
        tracked = self._state.history(folded(entry.event_id))
        if tracked is not None:
            self._state = with_tracked(self._state, replace(tracked, approval=self._attempting(tracked, entry.at)))

    def _attempting(self, tracked: Tracked, at: datetime) -> Approval:
        rule, _ = match(self._policy.rules, tracked.event)
        before = tracked.approval
        return attempting(before, self._clock.seen(at), rule.name if rule else before.rule)

    def _posted(self, entry: Posted) -> None:
        """What became of it. A recording of the version before has the answers alone."""
        tracked = self._state.history(folded(entry.event_id))
        if tracked is None:
            return
        before = tracked.approval
        sent = before if tracked.key in self._flying else self._attempting(tracked, entry.at)
        self._flying.discard(tracked.key)
        taken = entry.status == ACCEPTED
        after = accepted(sent, entry.at) if taken else not_accepted(sent, entry.reason, entry.status)
        by = StartedBy.US if taken and tracked.started_by is not None else tracked.started_by
        tracked = replace(tracked, approval=after, started_by=by)
        self._state = with_tracked(self._state, tracked)
        writer = self._writer(entry.at)
        if taken:
            self._record(writer.accepted(self._state, tracked))
            self._watch_approved(entry.at)
            self._decide(entry.at)
        elif before.last_failure != entry.reason:
            self._record(writer.failed(self._state, tracked, entry.reason, entry.status, "as recorded"))

    def _feel(self, entry: Felt) -> None:
        if entry.kind not in list(InterruptionKind):
            return
        found = Interruption(InterruptionKind(entry.kind), entry.seconds, self._clock.felt(entry.at))
        tracked = attribute(self._state, self._vm, found, self._options.poll_interval)
        if tracked is not None:
            tracked = felt(tracked, found)
            self._state = with_tracked(self._state, tracked)
        written = self._writer(entry.at).interruption(self._state, entry.kind, entry.seconds, entry.at, tracked)
        self._record(written)

    # -- decisions

    def _watch_approved(self, at: datetime) -> None:
        for tracked in list(self._state.tracked.values()) if self._vm.name else ():
            news = reconsidered(self._policy, tracked, self._vm.name)
            if news is None:
                continue
            after, reason = news
            self._state = with_tracked(self._state, after)
            if reason is not Reason.NONE:
                self._record(self._writer(at).outdated(self._state, after, reason.value))

    def _decide(self, at: datetime) -> None:
        document = self._state.document
        paths = files_to_look_at(self._policy, document) if document else frozenset()
        situation = Situation(self._vm.name, self.conflict, self._options.look(paths))
        for explanation in explain(self._policy, self._state, situation):
            self._decided(at, explanation)

    def _decided(self, at: datetime, explanation: Explanation) -> None:
        decision = explanation.decision
        tracked = self._state.tracked[decision.key]
        if tracked.decided == decision.words:
            return
        self._state = with_tracked(self._state, replace(tracked, decided=decision.words))
        self.findings.decided(at, explanation)
        if decision.reason not in NOT_PUBLISHED and tracked.told is not False:
            self._record(self._writer(at).decision(self._state, decision))


def _parse(body: bytes) -> Document:
    if len(body) > MAX_BODY:
        raise DocumentError("not-a-document", f"the body is larger than {MAX_BODY >> 20} MiB")
    return parse_document(body)
