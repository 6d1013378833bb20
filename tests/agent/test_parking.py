"""Parking: a record is parked only if it was rejected alone while another one was accepted after it.

Outages, transient and permanent rejections, and restarts, in any mixture. The rule is checked against the requests that
the destination received.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.agent.suspects import CERTAIN, MOST_SUSPECTS, NextSend, RejectionResult, Suspects
from exporter.core.records import Record
from exporter.errors import Permanent, Retryable
from tests.support.delivery_environment import Line, in_order, scenarios
from tests.support.effort import MEMORY, examples
from tests.support.eventhubs_target import a_record

REFUSALS: Final[dict[str, Callable[[], Exception]]] = {
    "400": lambda: Permanent("rejected", "HTTP 400"),
    "413": lambda: Permanent("too-large", "HTTP 413"),
    "500": lambda: Retryable("other", "HTTP 500", needs_operator=True),
    "html": lambda: Retryable("protocol", "a success that is not OTLP", needs_operator=True),
    "unknown": lambda: Retryable("other", "a condition that is not known"),
    "mistake": lambda: ZeroDivisionError("a bug"),
}
"""Failures that one record can cause, some of them only if they repeat."""
AT_ONCE: Final = ("400", "413")
"""Those that count as a rejection the first time."""
OUTAGES: Final[dict[str, Callable[[], Exception]]] = {
    "network": lambda: Retryable("connect", smaller=True),
    "timeout": lambda: Retryable("timeout"),
    "429": lambda: Retryable("throttled", retry_after=7),
    "503": lambda: Retryable("unavailable"),
    "401": lambda: Retryable("unauthorized", needs_operator=True),
    "404": lambda: Retryable("not-found", needs_operator=True),
    "redirect": lambda: Retryable("redirect", needs_operator=True),
    "configuration": lambda: Retryable("configuration", needs_operator=True),
}
"""Failures that a single record never causes."""
ANSWERS: Final = REFUSALS | OUTAGES
OUTAGE_SECONDS: Final = 3600.0
MANY: Final = 2_000


@dataclass
class Peer:
    """A destination with scripted results that stores each request: the ids, and the result, "" for accepted."""

    answer: Callable[[Sequence[Record]], str] = lambda _records: ""
    batch_size: int = 100
    subjects: int | None = None
    name: str = "otlp"
    seen: list[tuple[list[str], str]] = field(default_factory=list)

    def send(self, records: Sequence[Record]) -> None:
        assert 0 < len(records) <= self.batch_size
        answer = self.answer(records)
        self.seen.append(([record.id for record in records], answer))
        if answer:
            raise ANSWERS[answer]()

    def idle(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    @property
    def accepted(self) -> list[str]:
        return [record_id for ids, answer in self.seen for record_id in ids if not answer]


def rejecting(bad: Iterable[Record], answer: str) -> Callable[[Sequence[Record]], str]:
    """Return this failure for requests that contain one of these records."""
    ids = {record.id for record in bad}
    return lambda records: answer if any(record.id in ids for record in records) else ""


def by_request(fails: Callable[[int], bool], answer: str) -> Callable[[Sequence[Record]], str]:
    """Return this failure for each request if `fails` is true of its number, from 0 on."""
    numbers = itertools.count()
    return lambda _records: answer if fails(next(numbers)) else ""


def turn(line: Line) -> None:
    """Run one pass like the loop of the thread."""
    try:
        line.turn()
    except ZeroDivisionError as error:
        line.clock.go(line.delivery.retry_after_internal_error(error))


def drain(line: Line, turns: int = 2_000) -> None:
    """Run passes until nothing waits, or up to a maximum."""
    for _ in range(turns):
        if not line.waiting():
            return
        turn(line)


def for_a_while(line: Line, seconds: float) -> None:
    until = line.clock.mono + seconds
    while line.clock.mono < until:
        turn(line)


@pytest.mark.parametrize("answer", ANSWERS)
def test_no_record_is_parked_while_none_is_accepted(tmp_path: Path, answer: str) -> None:
    """An hour of the same response to everything, as from a proxy; then every record arrives once."""
    wanted = scenarios(events=8, each=100)
    peer = Peer(lambda _records: answer if down else "")
    down = [True]
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        for_a_while(line, OUTAGE_SECONDS)
        queue = line.outbox.queues()["otlp"]
        assert (queue.parked, queue.records, queue.oldest) == (0, len(wanted), wanted[0].time)
        assert queue.error, "the page must show the failure"
        assert line.logged().count("event=destination.failed") == 1
        down.clear()
        for_a_while(line, 61)
        drain(line)
        assert line.parked() == 0
        assert sorted(peer.accepted) == sorted(record.id for record in wanted)
        assert in_order(peer.accepted, wanted)
        assert "event=destination.recovered" in line.logged()


@pytest.mark.parametrize("answer", ANSWERS)
def test_outage_causes_two_requests_per_round_at_most(tmp_path: Path, answer: str) -> None:
    """However many records wait: once the first batch is split, each back-off ends with one or two requests."""
    peer = Peer(lambda _records: answer)
    with Line(tmp_path, peer) as line:
        line.put(*(a_record(number, subject=f"event-{number % 50}") for number in range(MANY)))
        for_a_while(line, 60)
        before, waits = len(peer.seen), len(line.waits)
        for_a_while(line, 900)
        rounds = len(line.waits) - waits if answer != "mistake" else 900 // 60
        assert before <= 20
        assert len(peer.seen) - before <= 2 * rounds + 2
        assert all(len(ids) == 1 for ids, _ in peer.seen[before:])
        assert line.waiting() == MANY


@pytest.mark.parametrize("answer", REFUSALS)
@pytest.mark.parametrize("position", [0, 11, 23])
@pytest.mark.parametrize("events", [1, 4])
def test_rejected_record_is_parked_and_blocks_no_other(tmp_path: Path, answer: str, position: int, events: int) -> None:
    """The others arrive in order."""
    wanted = scenarios(events=events, each=24 // events)
    bad, good = wanted[position], [record for record in wanted if record is not wanted[position]]
    peer = Peer(rejecting([bad], answer))
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        for _ in range(200):
            if len(peer.accepted) == len(good):
                break
            turn(line)
        assert in_order(peer.accepted, good)
        line.put(a_record(99, subject="the next event"))
        drain(line, 50)
        assert (line.parked(), line.waiting(), line.sent()) == (1, 0, len(good) + 1)
        (parked,) = [text for text in line.logged().splitlines() if "event=record.parked" in text]
        assert bad.id in parked


@pytest.mark.parametrize("answer", REFUSALS)
def test_rejected_record_waits_until_another_is_accepted(tmp_path: Path, answer: str) -> None:
    """It is retried with a back-off and reported; the next record of its event isn't delayed."""
    bad = a_record(1, subject="one")
    peer = Peer(rejecting([bad], answer))
    with Line(tmp_path, peer) as line:
        line.put(bad)
        for_a_while(line, OUTAGE_SECONDS)
        assert (line.parked(), line.waiting()) == (0, 1)
        assert 50 <= len(peer.seen) <= OUTAGE_SECONDS / 15 + 20
        assert "event=destination.failed" in line.logged()
        assert "event=destination.recovered" not in line.logged()
        line.put(a_record(2, subject="one"))
        turn(line)
        turn(line)
        assert peer.accepted == [a_record(2, subject="one").id]
        drain(line, 20)
        assert (line.parked(), line.waiting()) == (1, 0)


@pytest.mark.parametrize("answer", OUTAGES)
def test_outage_with_one_record_parks_nothing(tmp_path: Path, answer: str) -> None:
    """The network, overload, a missing role, or a wrong address is never a record's fault: order is kept."""
    wanted = scenarios(events=3, each=4)
    bad = wanted[5]
    peer = Peer(rejecting([bad], answer))
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        for_a_while(line, OUTAGE_SECONDS)
        assert line.parked() == 0
        assert bad.id not in peer.accepted
        assert peer.accepted == [record.id for record in wanted[:5]]
        peer.answer = lambda _records: ""
        for_a_while(line, 61)
        drain(line)
        assert peer.accepted == [record.id for record in wanted]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(("events", "each"), [(6, 1), (6, 5), (1, 12)])
def test_transient_failure_of_any_length_parks_nothing(tmp_path: Path, answer: str, events: int, each: int) -> None:
    """It ends after the first request, the thirtieth, or any in between; an outage after every fifth."""
    for number in range(0, 30, 5 if answer in OUTAGES else 1):
        peer = Peer(by_request(lambda request, number=number: request < number, answer), batch_size=8)  # type: ignore[misc]  # its own number
        wanted = scenarios(events=events, each=each)
        with Line(tmp_path / str(number), peer) as line:
            line.put(*wanted)
            drain(line)
            assert (line.parked(), line.waiting()) == (0, 0)
        assert sorted(peer.accepted) == sorted(record.id for record in wanted)
        if answer in OUTAGES or (number <= CERTAIN and answer not in AT_ONCE):
            assert in_order(peer.accepted, wanted)
        assert not overtaking_without_rejection(peer, wanted)


@pytest.mark.parametrize("answer", REFUSALS)
@pytest.mark.parametrize("period", [2, 3, 5])
def test_destination_that_rejects_every_other_request_gets_all_records(
    tmp_path: Path, answer: str, period: int
) -> None:
    """As with two collectors behind one name, one of them broken."""
    for phase in range(period):
        peer = Peer(by_request(lambda request, phase=phase: request % period != phase, answer))  # type: ignore[misc]  # its own phase
        wanted = scenarios(events=3, each=10)
        with Line(tmp_path / str(phase), peer) as line:
            line.put(*wanted)
            drain(line)
            assert (line.parked(), line.waiting()) == (0, 0)
        assert set(peer.accepted) == {record.id for record in wanted}


@pytest.mark.parametrize("answer", REFUSALS)
def test_destination_that_rejects_at_random_gets_all_records(tmp_path: Path, answer: str) -> None:
    """Half of all requests are rejected, whatever they contain."""
    for seed in range(10):
        chance = random.Random(seed)  # noqa: S311  # the same in every run
        peer = Peer(by_request(lambda _request, chance=chance: chance.random() < 0.5, answer))  # type: ignore[misc]  # its own chance
        wanted = scenarios(events=3, each=20)
        with Line(tmp_path / str(seed), peer) as line:
            line.put(*wanted)
            drain(line)
            assert (line.parked(), line.waiting()) == (0, 0)


def test_single_acceptance_during_an_outage_parks_nothing(tmp_path: Path) -> None:
    """A proxy rejects everything for an hour, except for one request."""
    wanted = scenarios(events=9, each=9)
    lucky = wanted[50].id
    peer = Peer(lambda records: "" if [record.id for record in records] == [lucky] or not down else "400")
    down = [True]
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        for_a_while(line, OUTAGE_SECONDS)
        assert lucky in peer.accepted
        assert line.parked() == 0
        down.clear()
        for_a_while(line, 61)
        drain(line)
        assert (line.parked(), line.waiting()) == (0, 0)
        assert sorted(peer.accepted) == sorted(record.id for record in wanted)


def test_rejected_records_do_not_delay_new_ones(tmp_path: Path) -> None:
    """The outbox is full of invalid records of a previous version."""
    old = [a_record(number, subject=f"old-{number % 100}") for number in range(150)]
    new = [a_record(number, subject="new") for number in range(200, 210)]
    peer = Peer(rejecting(old, "400"))
    with Line(tmp_path, peer) as line:
        line.put(*old, *new)
        for _ in range(60):
            turn(line)
        assert peer.accepted == [record.id for record in new]
        for number in range(3):
            line.put(a_record(300 + number, subject=f"later-{number}"))
            for_a_while(line, OUTAGE_SECONDS)
        assert (line.parked(), line.waiting()) == (150, 0)


def test_suspect_is_sent_when_it_is_accepted_again(tmp_path: Path) -> None:
    """A limit is raised meanwhile: the record arrives late, and isn't parked."""
    wanted = scenarios(events=2, each=5)
    peer = Peer(rejecting(wanted[:1], "413"))
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        while len(peer.accepted) < 5:
            turn(line)
        peer.answer = lambda _records: ""
        drain(line)
        assert line.parked() == 0
        assert sorted(peer.accepted) == sorted(record.id for record in wanted)


def test_suspect_is_sent_before_a_new_record_of_its_event(tmp_path: Path) -> None:
    """An outage ends while the suspect waits for its next attempt."""
    peer = Peer(lambda _records: "400" if down else "")
    down = [True]
    with Line(tmp_path, peer) as line:
        line.put(a_record(1))
        for_a_while(line, 600)
        while line.delivery.tick() == 0:
            """Until it waits."""
        down.clear()
        line.put(a_record(2))
        for _ in range(3):
            line.delivery.tick()
        assert peer.accepted == [a_record(1).id, a_record(2).id]


def test_rejected_record_among_many_suspects_blocks_no_other(tmp_path: Path) -> None:
    """After an outage in which all records became suspects."""
    wanted = scenarios(events=3, each=2)
    peer = Peer(lambda _records: "400")
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        for_a_while(line, OUTAGE_SECONDS)
        peer.answer = rejecting(wanted[:1], "400")
        drain(line, 100)
        assert sorted(peer.accepted) == sorted(record.id for record in wanted[1:])


def test_outage_resets_the_rejections_of_a_record(tmp_path: Path) -> None:
    """Rejections before and after it aren't in a row: the destination may be another one now."""
    wanted = [a_record(1, subject="one"), a_record(2, subject="two")]
    peer = Peer(rejecting(wanted[:1], "400"))
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        while len(peer.seen) < 2 + CERTAIN - 1:
            turn(line)
        assert peer.accepted == [wanted[1].id]
        peer.answer = lambda _records: "network"
        turn(line)
        turn(line)
        peer.answer = rejecting(wanted[:1], "400")
        for_a_while(line, OUTAGE_SECONDS)
        assert (line.parked(), line.waiting()) == (0, 1)
        line.put(a_record(3))
        drain(line, 20)
        assert (line.parked(), line.waiting()) == (1, 0)


def test_restart_clears_all_suspects(tmp_path: Path) -> None:
    """Records are sent in order, at once."""
    wanted = scenarios(events=2, each=5)
    peer = Peer(lambda _records: "400" if down else "")
    down = [True]
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        for_a_while(line, 600)
        down.clear()
        line.begin()
        drain(line, 5)
        assert peer.accepted == [record.id for record in wanted]


def test_rejections_are_counted_and_other_records_are_sent_without_a_pause(tmp_path: Path) -> None:
    wanted = scenarios(events=4, each=25)
    peer = Peer(rejecting(wanted[40:41], "400"))
    with Line(tmp_path, peer) as line:
        line.put(*wanted)
        while len(peer.accepted) < 99:
            turn(line)
        assert line.waits == []
        drain(line)
        assert line.reasons() == {"rejected": 1 + CERTAIN}
        assert line.waits == [1] * (CERTAIN - 1)


def test_back_off_starts_again_after_a_success(tmp_path: Path) -> None:
    """The first wait after a recovery is one second."""
    down = [True]
    peer = Peer(lambda _records: "network" if down else "")
    with Line(tmp_path, peer) as line:
        line.put(a_record(1))
        for _ in range(8):
            line.turn()
        down.clear()
        line.go()
        down.append(True)
        line.put(a_record(2))
        line.turn()
        assert line.waits == [1, 2, 4, 8, 15, 15, 15, 15, 1]


def test_number_of_suspects_is_limited() -> None:
    """At the limit, no record is sent that could become one more; if none is accepted, they are tried in order."""
    suspects = Suspects()
    for number in range(1, MOST_SUSPECTS):
        suspects.reject(number)
        suspects.fail()
    too_many = [suspects.are_too_many]
    assert (suspects.step, suspects.due(0.0)) == (NextSend.OLDEST, 1)
    assert suspects.reject(MOST_SUSPECTS) is RejectionResult.TRY_ANOTHER
    suspects.accept([5000], 0.0)
    too_many.append(suspects.are_too_many)
    assert (too_many, len(suspects.numbers)) == ([False, True], MOST_SUSPECTS)
    suspects.fail()
    assert (len(suspects.numbers), suspects.step) == (0, NextSend.ALL)


# -- random sequences


def overtaking_without_rejection(peer: Peer, wanted: Sequence[Record]) -> list[tuple[str, str]]:
    """Return records that arrived before an older one of their event that had not been rejected alone until then."""
    place = {record.id: (record.subject, number) for number, record in enumerate(wanted)}
    arrived: set[str] = set()
    refused: set[str] = set()
    found = []
    for ids, answer in peer.seen:
        if answer in REFUSALS and len(ids) == 1:
            refused |= set(ids)
        if not answer:
            for record_id in ids:
                arrived.add(record_id)
                subject, number = place[record_id]
                found += [
                    (record_id, older.id)
                    for older in wanted[:number]
                    if older.subject == subject and older.id not in arrived | refused
                ]
    return found


def proven(peer: Peer) -> set[str]:
    """Return records that were rejected alone before the destination accepted another one."""
    last_accepted = max((number for number, (_, answer) in enumerate(peer.seen) if not answer), default=-1)
    return {ids[0] for ids, answer in peer.seen[: last_accepted + 1] if answer in REFUSALS and len(ids) == 1}


ALWAYS = st.sampled_from([*REFUSALS])
STEPS = st.lists(
    st.tuples(st.just("put"), st.integers(1, 8))
    | st.tuples(st.sampled_from(["400", "500", "503", "network", ""]), st.integers(1, 12))
    | st.tuples(st.sampled_from(["turns"]), st.integers(1, 20))
    | st.tuples(st.just("restart"), st.just(0)),
    max_size=14,
)


@settings(max_examples=examples(40), deadline=None)
@given(
    steps=STEPS,
    bad=st.dictionaries(st.integers(0, 40), ALWAYS, max_size=5),
    batch_size=st.integers(1, 9),
    subjects=st.sampled_from([1, 2, None]),
    events=st.integers(1, 5),
)
def test_record_is_parked_only_if_rejected_alone_while_another_is_accepted(
    steps: list[tuple[str, int]], bad: dict[int, str], batch_size: int, subjects: int | None, events: int
) -> None:
    """Whatever the destination returns: every valid record arrives; only a record rejected alone is overtaken."""
    numbers = itertools.count()
    weather: list[str] = []
    ids = {a_record(number).id: answer for number, answer in bad.items()}

    def answer(records: Sequence[Record]) -> str:
        if weather and (now := weather.pop(0)):
            return now
        return next((ids[record.id] for record in records if record.id in ids), "")

    peer = Peer(answer, batch_size=batch_size, subjects=subjects)
    wanted: list[Record] = []

    def put(count: int, subject: str = "") -> None:
        some = [
            a_record(number, subject=subject or f"e{number % events}") for number in itertools.islice(numbers, count)
        ]
        wanted.extend(some)
        line.put(*some)

    with tempfile.TemporaryDirectory(dir=MEMORY) as name, Line(Path(name), peer) as line:
        for step, count in steps:
            if step == "put":
                put(count)
            elif step == "restart":
                line.begin()
            elif step == "turns":
                for _ in range(count):
                    turn(line)
            else:
                weather.extend([step] * count)
        weather.clear()
        assert line.parked() <= len(proven(peer))
        while len(wanted) <= max(bad, default=0):
            put(1)
        for number in range(2):
            for_a_while(line, OUTAGE_SECONDS)
            put(1, f"the last {number}")
        for_a_while(line, OUTAGE_SECONDS)
        assert (line.waiting(), line.parked()) == (0, len(bad))
    good = [record.id for record in wanted if record.id not in ids]
    assert sorted(set(peer.accepted)) == sorted(good)
    assert len(peer.accepted) == len(good)
    assert not overtaking_without_rejection(peer, wanted)
