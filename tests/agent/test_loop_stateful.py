"""Property test of the loop: random documents, outages, full disks, refusals, and crashes."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exporter.metadata.errors import MetadataError
from tests.support.agent_environment import NAME, AgentEnvironment, document, event, policy, queued_in, started
from tests.support.effort import LONG, MEMORY, Tried, examples

IDS = ("aaaa", "bbbb", "cccc", "dddd")
LIFE = {"scheduled", "started"}
CLOSING = {"completed", "canceled", "ended"}


class LoopMachine(RuleBasedStateMachine):
    """One VM, and the test's own model of what polls could see and how POSTs were answered."""

    @initialize()
    def begin(self) -> None:
        Tried.example()
        self.folder = Path(tempfile.mkdtemp(prefix="azse-loop-", dir=MEMORY))
        self.hold = self.folder / "hold"
        self.disk, self.away = self.folder / "disk", self.folder / "away"
        self.environment = AgentEnvironment(
            self.folder, policy(hold_file=str(self.hold), coordination="any"), path=self.disk / "outbox.db"
        )
        self.number = 1
        self.present: dict[str, dict[str, Any]] = {}
        self.good = True
        self.accepted: dict[str, float] = {}
        self.violations: list[str] = []
        self.newly_seen: Counter[str] = Counter()
        self.seen: set[str] = set()
        self.post_times: dict[str, list[float]] = {}
        self.asked_from = 0
        self.environment.source.asked = self._asked
        self._show()

    def _asked(self) -> None:
        """Check on a POST that a naive reading of the rules allows it."""
        at, event_id = self.environment.source.posts[-1]
        given = self.present.get(event_id)
        if event_id in self.accepted:
            self.violations.append(f"{event_id} after a 200")
        if given is None or given["EventStatus"] != "Scheduled" or given["EventSource"] != "User":
            self.violations.append(f"{event_id} should be held")
        if self.hold.exists():
            self.violations.append(f"{event_id} while the hold file existed")
        if self.blocked:
            self.violations.append(f"{event_id} without a disk")
        if not self.good:
            self.violations.append(f"{event_id} on an old document")
        times = self.post_times.setdefault(event_id, [])
        if times and at - times[-1] < 4.99:
            self.violations.append(f"{event_id} after {at - times[-1]} s")
        times.append(at)
        if self.environment.source.refusal is None:
            self.accepted[event_id] = at

    @property
    def blocked(self) -> bool:
        return self.disk.is_file()

    def _show(self) -> None:
        self.environment.source.answer = document(self.number, *self.present.values())

    def _live(self, seconds: float) -> None:
        self.environment.live(seconds)
        if self.good and seconds >= 12:
            self.seen |= set(self.present)

    @rule(event_id=st.sampled_from(IDS), source=st.sampled_from(["User", "Platform"]))
    def announce(self, event_id: str, source: str) -> None:
        if event_id in self.present or event_id in self.accepted:
            return
        self.present[event_id] = event(event_id, "Reboot", NAME, EventSource=source)
        self._change()

    @precondition(lambda self: self.present)
    @rule(chance=st.randoms(use_true_random=False), what=st.sampled_from(["start", "end", "edit"]))
    def move(self, chance: Any, what: str) -> None:
        event_id = chance.choice(sorted(self.present))
        if what == "end":
            del self.present[event_id]
        elif what == "start":
            self.present[event_id] = started(self.present[event_id])
        else:
            self.present[event_id] = {**self.present[event_id], "Description": f"edit {self.number}"}
        self._change()

    def _change(self) -> None:
        self.number += 1
        if self.good:
            self._show()
        self._live(2)

    @rule(seconds=st.sampled_from([1, 12, 40]))
    def wait(self, seconds: int) -> None:
        self._live(seconds)

    @rule(kind=st.sampled_from(["timeout", "html", "fine"]))
    def source(self, kind: str) -> None:
        self.good = kind == "fine"
        if self.good:
            self._show()
        else:
            self.environment.source.answer = b"<html>" if kind == "html" else MetadataError("timeout")
        self._live(3)

    @rule(refusal=st.sampled_from([None, 400, 500]))
    def approvals(self, refusal: int | None) -> None:
        failure = MetadataError("server-error", status_code=refusal) if refusal else None
        self.environment.source.refusal = failure

    @rule()
    def toggle_hold(self) -> None:
        if self.hold.exists():
            self.hold.unlink()
        else:
            self.hold.touch()

    @rule()
    def toggle_disk(self) -> None:
        """Remove the folder with its file, or bring it back with that file, as with a volume."""
        if self.blocked:
            self.disk.unlink()
            shutil.move(self.away, self.disk)
        else:
            shutil.move(self.disk, self.away)
            self.disk.write_text("no folder")

    @precondition(lambda self: not self.blocked)
    @rule(seconds=st.sampled_from([1.0, 90.0]))
    def crash(self, seconds: float) -> None:
        """Lose what the process had not written; POSTs are judged only by what was on disk."""
        self._live(2)  # a crash between two polls: the observations are written
        self.environment.restart(seconds)
        self.environment.source.asked = self._asked

    @invariant()
    def nothing_wrong_was_sent(self) -> None:
        Tried.steps += 1
        if hasattr(self, "violations"):
            assert self.violations == []

    def teardown(self) -> None:
        if not hasattr(self, "environment"):
            return
        try:
            if self.blocked:
                self.toggle_disk()
            self.source("fine")
            self._live(14)
            records = queued_in(self.environment.path, "otlp")
            ids = [record.id for record in records]
            assert len(ids) == len(set(ids)), "one id twice"
            kinds = {(record.subject, record.kind) for record in records}
            for event_id in self.seen:
                assert {(event_id, kind) for kind in LIFE} & kinds, f"{event_id} was seen and never recorded"
                if event_id not in self.present:
                    assert {(event_id, kind) for kind in CLOSING} & kinds, (
                        f"{event_id} was removed, and that was never recorded"
                    )
            for event_id in self.accepted:
                assert (event_id, "approval.accepted") in kinds
            assert self.environment.value("document_events") == len(self.present)
            assert self.violations == []
        finally:
            self.environment.__exit__()
            shutil.rmtree(self.folder)


TestLoop = LoopMachine.TestCase
TestLoop.settings = settings(
    max_examples=examples(25),
    stateful_step_count=60 if LONG else 30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
