"""Batches of several events: acknowledged in part, rejected, accepted without an acknowledgement, or cut by a crash.

No record is lost, each event is in order, and only rejected records are parked (`test_parking` tests that rule).
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.records import Record
from exporter.errors import Failure, Permanent, Retryable
from exporter.outbox import queue as outbox_queue
from tests.support.delivery_environment import Line, in_order
from tests.support.effort import MEMORY, examples
from tests.support.eventhubs_target import a_record
from tests.support.outbox_content import STATE, opened
from tests.support.outbox_content import a_record as a_small_record

SUBJECTS: Final = ("a", "b", "c", "d", "e", "f")


class Crash(BaseException):
    """The process ends during a send."""


@dataclass(frozen=True)
class Mood:
    """The result of one send, by subject as far as `words` has one; then `fine`.

    fine: accepted and acknowledged · silent: accepted, the acknowledgement is lost · away: not accepted. With `crash`
    the agent is killed after that. `smaller` is the member of the failure.
    """

    words: tuple[str, ...] = ()
    crash: bool = False
    smaller: bool = False


@dataclass
class Backend:
    """Handles each subject of a batch separately, as parallel connections do; with `subjects` None the whole batch."""

    bad: frozenset[str]
    subjects: int | None
    batch_size: int
    name: str = "event_hubs"
    mood: Mood = Mood()
    taken: list[str] = field(default_factory=list)

    def send(self, records: Sequence[Record]) -> None:
        mood, self.mood = self.mood, Mood()
        failures: list[Failure] = []
        acknowledged: set[str] = set()
        for word, group in zip(
            itertools.chain(mood.words, itertools.repeat("fine")), self._groups(records), strict=False
        ):
            ids = [record.id for record in group]
            if word == "away":
                failures.append(Retryable("connect", smaller=mood.smaller))
            elif self.bad & set(ids):
                failures.append(Permanent("rejected", "never"))
            else:
                self.taken += ids
                if word == "fine":
                    acknowledged |= set(ids)
                else:
                    failures.append(Retryable("timeout", smaller=mood.smaller))
        if mood.crash:
            raise Crash
        if failures:
            failure = min(failures, key=lambda failure: isinstance(failure, Permanent))
            failure.acknowledged = frozenset(acknowledged)
            raise failure

    def _groups(self, records: Sequence[Record]) -> Iterator[list[Record]]:
        assert 0 < len(records) <= self.batch_size
        of = {record.subject: [other for other in records if other.subject == record.subject] for record in records}
        assert self.subjects is None or len(of) <= self.subjects
        yield from ([list(records)] if self.subjects is None else of.values())

    def idle(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


MOODS = st.builds(
    Mood,
    words=st.lists(st.sampled_from(["fine", "silent", "away"]), max_size=4).map(tuple),
    crash=st.sampled_from([False, False, True]),
    smaller=st.booleans(),
)
STEPS = st.lists(st.lists(st.sampled_from(SUBJECTS), max_size=12) | MOODS, max_size=25)


@settings(max_examples=examples(80), deadline=None)
@given(
    steps=STEPS,
    bad=st.frozensets(st.integers(0, 60), max_size=4),
    subjects=st.sampled_from([1, 2, 4, None]),
    batch_size=st.integers(1, 12),
)
def test_batch_with_any_failures_is_delivered(
    steps: list[list[str] | Mood], bad: frozenset[int], subjects: int | None, batch_size: int
) -> None:
    """All valid records arrive, first copies in order per event; rejected ones are parked, and none is lost."""
    numbers = itertools.count()
    backend = Backend(frozenset(a_record(number).id for number in bad), subjects, batch_size)
    wanted: list[Record] = []
    disturbed = 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        line = Line(folder, backend)
        for step in steps:
            if isinstance(step, Mood):
                backend.mood = step
                disturbed += step != Mood()
                try:
                    line.turn()
                except Crash:
                    line.outbox.close()
                    line = Line(folder, backend, line.clock)
            else:
                some = [a_record(next(numbers), subject=subject) for subject in step]
                wanted += some
                line.put(*some)
        backend.mood = Mood()
        with line:
            for number in (
                1_000,
                1_001,
            ):  # of several rejected ones in a row, some are tried only after the first of these
                wanted.append(a_record(number, subject=f"last-{number}"))
                line.put(wanted[-1])
                for _ in range(300):
                    line.turn()
            good = [record for record in wanted if record.id not in backend.bad]
            assert line.waiting() == 0
            assert line.parked() == len(wanted) - len(good)
    assert set(backend.taken) == {record.id for record in good}
    assert in_order(backend.taken, good)
    if not backend.bad:
        copies = sum(Counter(backend.taken).values()) - len(good)
        assert copies <= disturbed * batch_size


@settings(max_examples=60, deadline=None)
@given(
    subjects=st.lists(st.sampled_from(SUBJECTS), max_size=40),
    settled=st.sets(st.integers(0, 39)),
    limit=st.integers(1, 15),
    wanted=st.sampled_from([1, 2, 4, None]),
)
def test_batch_contains_the_oldest_records_of_each_of_its_subjects(
    subjects: list[str], settled: set[int], limit: int, wanted: int | None
) -> None:
    """Without a gap, the oldest of all first; without a number of subjects it is the head of the queue."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        outbox = opened(Path(folder) / "o.db", names=("otlp",))
        outbox.commit(STATE, [a_small_record(number, subject) for number, subject in enumerate(subjects)])
        outbox.delivered("otlp", [number + 1 for number in settled if number < len(subjects)])
        batch = outbox.next("otlp", limit, wanted)
        outbox.close()
    waiting = [number for number in range(len(subjects)) if number not in settled]
    found = [queued.seq - 1 for queued in batch]
    assert len(found) == len(set(found)) <= limit
    assert found[:1] == waiting[:1]
    if wanted is None:
        assert found == waiting[:limit]
        return
    had = list(dict.fromkeys(subjects[number] for number in found))
    assert had == list(dict.fromkeys(subjects[number] for number in waiting))[: min(wanted, limit)]
    for subject in had:
        mine = [number for number in found if subjects[number] == subject]
        assert mine == [number for number in waiting if subjects[number] == subject][: len(mine)]


def test_batch_size_is_limited_in_bytes(tmp_path: Path) -> None:
    """Except for a single record that exceeds the limit."""
    each = outbox_queue.BATCH_BYTES // 3
    outbox = opened(tmp_path / "o.db", 50 << 20, names=("otlp",))
    large = [a_small_record(number, size=each) for number in range(5)]
    outbox.commit(STATE, [*large, a_small_record(5, size=4 * each), a_small_record(6)])
    batches = []
    while batch := outbox.next("otlp", 100, None):
        batches.append([queued.seq for queued in batch])
        outbox.delivered("otlp", batches[-1])
    outbox.close()
    assert batches == [[1, 2], [3, 4], [5], [6], [7]]
