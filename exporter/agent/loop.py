"""The line: read, advance, decide, commit, announce, act. One `tick` is one turn of it.

Decisions are taken from the state, never from the transition that led to it, and committed before anything is done
about them: whatever moment the process dies in, no record and no approval is lost, and none has two ids.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from exporter.agent.approvals import Approver
from exporter.agent.attribution import Attribution
from exporter.agent.persistence import Keeper
from exporter.agent.ports import Metrics, Options, Senses, Source, Store, Turn
from exporter.agent.source_health import SourceHealth, reason_of
from exporter.core import records as published
from exporter.core.continuity import EVERYDAY
from exporter.core.document import Document, DocumentError, Event, parse_document, unknown_words
from exporter.core.folding import alike
from exporter.core.lifecycle import advance
from exporter.core.scope import Tale, tale_of
from exporter.core.snapshot import Status
from exporter.core.state import Instant, State, Step
from exporter.errors import Failure
from exporter.log.protocol import Logger

SPEAK_SECONDS: Final = 10.0
SLOW_FIRST_ANSWER_SECONDS: Final = 5.0


class Agent:
    """One VM's agent. `tick` never raises for anything that the outside does."""

    def __init__(
        self, options: Options, source: Source, store: Store, metrics: Metrics, *, log: Logger, senses: Senses
    ) -> None:
        self._options = options
        self._source = source
        self._metrics = metrics
        self._log = log
        self._senses = senses
        self._started = senses.clock()
        self._due = self._started.mono or 0.0
        self._last: tuple[bytes, Document] | None = None
        self._spoke = False
        self._attribution = Attribution(options.poll_interval, metrics, senses)
        self._keeper = Keeper(store, metrics, log, senses, options.history_bytes)
        self._health = SourceHealth(metrics, log)
        self._approver = Approver(options, source, self._keeper, metrics, log=log, senses=senses)
        self._evidence = self._boot_evidence()
        self._approver.look()
        self._publish()

    def _boot_evidence(self) -> Mapping[str, Any]:
        """What a restart can tell about the time in which we did not look."""
        before, now = self._keeper.state.boot_id, self._options.boot_id
        self._keeper.state = replace(self._keeper.state, boot_id=now)
        return {"rebooted": before != now} if before and now else {}

    @property
    def status(self) -> Status:
        """The last published moment."""
        return self._status

    # -- one turn

    def tick(self) -> float:
        """Polls if it is time to. Answers in how many seconds to call again."""
        now = self._senses.clock()
        if (now.mono or 0.0) >= self._due:
            self._poll(now)
        else:
            self._idle(now)
        self._approver.send()
        self._keeper.hand_over()
        self._publish()
        mono = self._senses.clock().mono or 0.0
        outage = self._health.untold_for(self._keeper.state, mono)
        waits = (self._due - mono, self._due - mono if outage is None else outage, self._approver.wait())
        return max(0.0, min(waits))

    def _poll(self, began: Instant) -> None:
        start = began.mono or 0.0
        self._due = start + self._options.poll_interval
        try:
            answer = self._source.fetch()
            self._approver.collect()  # Azure may have begun in this very document what it took before
            read = replace(self._senses.clock(), mono=answer.read_at_monotonic)
            self._senses.keep(answer.body, read.wall)
            document = self._parse(answer.body)
        except (Failure, DocumentError) as failure:
            if not self._senses.stopping():
                self._failed(failure, began)
            return
        took = answer.read_at_monotonic - start
        self._metrics.polled(took, None)
        # Of a VM that stood still during the poll the document is old, and only the wall clock tells.
        self._succeeded(document, read, took, fresh=replace(read, wall=began.wall + timedelta(seconds=took)))

    def _parse(self, body: bytes) -> Document:
        if self._last is not None and self._last[0] == body:
            return self._last[1]
        document = parse_document(body)
        self._last = (body, document)
        return document

    def _succeeded(self, document: Document, read: Instant, took: float, fresh: Instant) -> None:
        self._approver.withdraw()
        turn = self._turn(read, document.incarnation)
        self._speak(turn, anyway=True)
        if turn.state.first_answer is None and took > SLOW_FIRST_ANSWER_SECONDS:
            self._odd(turn, "slow-first-answer")
        self._health.succeeded(turn)
        self._attribution.before(turn)
        options = self._options
        step = advance(turn.state, document, read, options.poll_interval, options.history_bytes)
        tale = tale_of(turn.state, step, turn.writer.vm.name, options.all_events, options.poll_interval)
        self._count_unknown(turn, step)
        turn.dirty = turn.dirty or tale.state is not step.state
        turn.state = tale.state
        self._tell(turn, step, tale)
        self._attribution.after(turn, step)
        if step.changed:
            self._approver.watch_approved(turn)
        self._approver.decide_and_commit(turn, self._concerns)
        self._approver.seen(fresh)
        self._evidence = {}
        self._keeper.beat(read)
        self._announce(turn)

    def _failed(self, failure: Failure | DocumentError, began: Instant) -> None:
        now = self._senses.clock()
        self._metrics.polled((now.mono or 0.0) - (began.mono or 0.0), reason_of(failure))
        self._due = (now.mono or 0.0) + self._health.delay(failure)
        turn = self._turn(now)
        self._health.failed(turn, failure, began, self._speak)
        self._keeper.save(turn)
        self._announce(turn)
        self._approver.look()  # people see on the gauges whether the hold file holds

    def _idle(self, now: Instant) -> None:
        """Between two polls there is only an outage to become old enough."""
        left = self._health.untold_for(self._keeper.state, now.mono or 0.0)
        if left is None or left > 0:
            return
        turn = self._turn(now)
        self._health.tell(turn, self._speak)
        if turn.records:
            self._keeper.save(turn)
            self._announce(turn)

    def _turn(self, now: Instant, incarnation: int | None = None) -> Turn:
        """A new turn, with who we are settled first: ids and the outbox's owner depend on it."""
        vm = self._senses.who().vm
        self._keeper.take_up()
        state = self._keeper.state
        if vm.id and state.vm_id and not alike(vm.id, state.vm_id):
            self._disown(state, vm.id, now)
        turn = Turn.after(self._keeper.state, self._senses, self._options.policy.mode, now, incarnation, self._evidence)
        if vm.id and not turn.state.vm_id:
            turn.become(replace(turn.state, vm_id=vm.id))
        return turn

    def _disown(self, state: State, vm_id: str, now: Instant) -> None:
        """The outbox came with the disk of another VM, as a golden image's does: nothing in it is about us."""
        self._log.warn("outbox.of_another_vm", vm_id=vm_id, was=state.vm_id)
        self._keeper.renew(State(birth=now.wall, boot_id=self._options.boot_id))
        self._approver.forget()
        self._last = None
        self._evidence = {}
        self._spoke = False

    def _speak(self, turn: Turn, *, anyway: bool = False) -> bool:
        """Whether records may be written yet: their ids depend on who we are, which deserves a moment to become known.

        `anyway`: there is something that has to be written now. The first thing said is that the agent has started.
        """
        vm = turn.writer.vm
        waited = (turn.now.mono or 0.0) - (self._started.mono or 0.0) >= SPEAK_SECONDS
        if not (turn.state.vm_key or vm.id or waited or anyway):
            return False
        if not turn.state.vm_key:
            turn.become(replace(turn.state, vm_key=vm.id or vm.name or str(uuid.uuid4())))
        if not self._spoke:
            self._spoke = True
            more = {"version": self._options.version, "mode": self._options.policy.mode.value, **self._evidence}
            say = f"The agent {self._options.version} has started in mode {more['mode']}"
            turn.record(turn.writer.about_vm(turn.state, published.AGENT_STARTED, "INFO", say, more))
        return True

    # -- telling

    def _tell(self, turn: Turn, step: Step, tale: Tale) -> None:
        if step.changed:
            turn.announce(self._metrics.document_changed)
        for anomaly in step.anomalies:
            self._odd(turn, anomaly)
        for transition in tale.counted:
            turn.announce(lambda found=transition: self._metrics.transition(found))  # type: ignore[misc]  # a lambda's default can't be annotated
        for transition in tale.told:
            turn.record(turn.writer.transition(turn.state, transition))
        for rejection in tale.rejections:
            turn.record(turn.writer.rejection(turn.state, rejection))

    def _odd(self, turn: Turn, anomaly: str) -> None:
        """Counted always; published unless it is everyday."""
        turn.announce(lambda: self._metrics.anomaly(anomaly))
        if anomaly not in EVERYDAY:
            turn.record(turn.writer.anomaly(turn.state, anomaly))

    def _count_unknown(self, turn: Turn, step: Step) -> None:
        """Each word that we don't know counts once when it comes, also where it makes no transition."""
        if not step.changed:
            return
        for key, tracked in step.state.tracked.items():
            before, event = turn.state.tracked.get(key), tracked.event
            for name in unknown_words(event):
                if before is None or before.event.raw.get(name) != event.raw.get(name):
                    turn.announce(lambda word=name: self._metrics.unknown_value(word))  # type: ignore[misc]  # a lambda's default can't be annotated

    @staticmethod
    def _concerns(turn: Turn, event: Event) -> bool:
        """Whether what is done about this event is published: where its beginning was."""
        return turn.state.tracked[event.key].told is not False

    # -- showing

    def _announce(self, turn: Turn) -> None:
        """Counts and logs, once the gauges show the same moment: a scrape never has a counter that runs ahead."""
        if turn.announcements or turn.records:
            self._publish()
        turn.announce_all(self._log)

    def _publish(self) -> None:
        self._keeper.look()
        who = self._senses.who()
        self._status = Status(
            started_at=self._started.wall,
            started_mono=self._started.mono,
            state=self._keeper.state,
            vm=who.vm,
            identity_conflict=who.conflict,
            source=self._health.status,
            decisions=self._approver.decisions,
            mode=self._options.policy.mode,
            coordination=self._options.policy.coordination,
            held=self._approver.held,
            poll_interval=self._options.poll_interval,
            outbox=self._keeper.outbox,
            destinations=self._keeper.destinations,
        )
        self._metrics.publish(self._status)

    def stop(self) -> None:
        """Says that the agent stops, and makes it durable."""
        self._approver.land()
        turn = self._turn(self._senses.clock())
        if self._speak(turn):
            self._attribution.last(turn)
            say = "The agent has stopped"
            turn.record(turn.writer.about_vm(turn.state, published.AGENT_STOPPED, "INFO", say, {}))
        self._keeper.save(turn)
        self._keeper.hand_over()
        self._announce(turn)
        self._publish()
