"""Many records in one request: their order, one that is refused among them, and what is too much at once."""

from __future__ import annotations

import logging
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.agent.suspects import CERTAIN
from exporter.core.records import Record
from exporter.errors import Permanent
from exporter.sinks.otlp.sink import BATCH_BYTES, BATCH_RECORDS, OtlpDestination
from tests.support.agent_environment import Clock
from tests.support.delivery_environment import Line, in_order, scenarios
from tests.support.effort import MEMORY
from tests.support.eventhubs_target import a_record
from tests.support.metrics_reading import value
from tests.support.otlp_receiver import Action, Hang, Raw, Receiver, Reply, Taste, otlp_to, refusing, success, uid

RESET: Final = Raw(b"")
SIZES: Final = 7
"""Number of halvings of a batch until one record is left."""


def backlog(count: int) -> list[Record]:
    """So many records of a few events each, one event after the other has begun."""
    return [a_record(number, subject=f"event-{number // 6}-{number % 2}") for number in range(count)]


def target(receiver: Receiver, timeout: float = 20.0, **options: object) -> OtlpDestination:
    return otlp_to(receiver.url, timeout=timeout, **options)  # type: ignore[arg-type]  # a few words


def arrived(receiver: Receiver) -> list[str]:
    return [uid(log) for log in receiver.logs]


def sizes(receiver: Receiver) -> list[int]:
    return [len(batch) for batch in receiver.batches]


def ids(records: list[Record]) -> list[str]:
    return [record.id for record in records]


def test_a_thousand_records_of_an_outage_are_ten_requests(tmp_path: Path) -> None:
    """A backlog goes a hundred records a request, of whatever events, in the order of the outbox, each once."""
    wanted = backlog(1000)
    with Receiver(Reply(503)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert sizes(receiver) == [BATCH_RECORDS] * 11
        assert receiver.pieces == [1] * 11, "one VM is one resource"
        assert arrived(receiver) == ids(wanted)
        assert (line.sent(), line.waits) == (1000, [1])


def test_the_order_outlives_what_is_learnt_of_the_vm() -> None:
    """Records that know more of their VM, and then less again, stay in their order within a request."""
    named = {"name": "web-1", "location": "westeurope"}
    some = [a_record(number) for number in range(1, 6)]
    wanted = [
        replace(record, data={**record.data, "vm": named if number in {1, 2, 4} else {}})
        for number, record in enumerate(some)
    ]
    with Receiver() as receiver, closing(target(receiver)) as destination:
        destination.send(wanted)
    assert arrived(receiver) == ids(wanted)
    assert ["host.name" in resource for resource, _, _ in receiver.logs] == [False, True, True, False, True]


REFUSALS: Final = (Reply(400), Reply(413), Reply(422))


def refusing_each(bad: set[str], answer: Action | None) -> Taste:
    """Refuses a request with one of these: with this answer, or as a success that rejects all of its records."""

    def taste(sent: list[str]) -> tuple[Action, set[str]]:
        if not bad & set(sent):
            return success(), set()
        return answer or success(rejected=len(sent), message="no"), set(sent)

    return taste


@pytest.mark.parametrize("answer", [*REFUSALS, None], ids=["400", "413", "422", "all-rejected"])
@pytest.mark.parametrize("position", [0, 41, BATCH_RECORDS - 1])
def test_exactly_the_refused_record_is_parked(tmp_path: Path, answer: Action | None, position: int) -> None:
    """One of a hundred that the collector refuses is found within a few requests; all others arrive once, in order."""
    wanted = [*scenarios(events=9, each=11), a_record(999, subject="the last")]
    bad = wanted[position]
    with Receiver(taste=refusing_each({bad.id}, answer)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go(until=lambda: len(arrived(receiver)) == len(wanted) - 1)
        assert len(receiver.batches) <= 3 + 2 * SIZES
        line.put(a_record(1000, subject="the next"))
        line.go()
        good = [record for record in wanted if record is not bad]
        assert sorted(arrived(receiver)) == sorted([*ids(good), a_record(1000).id])
        assert in_order(arrived(receiver), good)
        assert (line.parked(), line.sent()) == (1, 100)
        assert bad.id in line.logged()


@settings(max_examples=12, deadline=None)
@given(
    bad=st.sets(st.integers(0, 29)),
    answer=st.sampled_from([*REFUSALS, None]),
    trouble=st.lists(st.sampled_from([Reply(503), Reply(429, {"Retry-After": "3"}), Reply(401)]), max_size=2),
)
def test_any_refused_ones_are_parked_and_no_other(bad: set[int], answer: Action | None, trouble: list[Action]) -> None:
    """Whichever records a collector refuses, in whatever way and between what troubles: only these are parked."""
    wanted = scenarios(events=3, each=10)
    good = [record for number, record in enumerate(wanted) if number not in bad]
    taste = refusing_each({wanted[number].id for number in bad}, answer)
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        Receiver(*trouble, taste=taste) as receiver,
        Line(Path(folder), target(receiver)) as line,
    ):
        line.put(*wanted)
        for number in (998, 999):
            for _ in range(150):
                line.turn()
            good.append(a_record(number, subject=f"later-{number}"))
            line.put(good[-1])
        line.go(turns=300)
        assert set(arrived(receiver)) == set(ids(good))
        assert in_order(arrived(receiver), good)
        assert (line.parked(), line.sent()) == (len(bad), len(good))


def test_a_warning_is_a_success(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A `partial_success` that rejects nothing delivers the batch, once, and its message is logged."""
    wanted = scenarios(events=2, each=5)
    with (
        Receiver(success(rejected=0, message="nearly full")) as receiver,
        Line(tmp_path, target(receiver)) as line,
        caplog.at_level(logging.WARNING, "exporter"),
    ):
        line.put(*wanted)
        line.go()
        assert arrived(receiver) == ids(wanted)
        assert (line.parked(), line.reasons()) == (0, {})
    assert "nearly full" in caplog.text


@pytest.mark.parametrize("rejected", [10, 11, 2**62])
def test_a_batch_that_is_rejected_whole_is_split(tmp_path: Path, rejected: int) -> None:
    """A count of all records, or of more, says that nothing was accepted: the batch is sent again in halves."""
    wanted = scenarios(events=2, each=5)
    with Receiver(success(rejected=rejected)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert sizes(receiver) == [10, 5, 5]
        assert set(arrived(receiver)) == set(ids(wanted))
        assert (line.parked(), line.waiting(), dropped(line)) == (0, 0, 0)


def dropped(line: Line) -> float:
    return value(line.sink, "destination_records_dropped_total", destination="otlp", reason="rejected") or 0.0


@pytest.mark.parametrize("rejected", [1, 3, 99])
def test_a_batch_that_is_rejected_in_part_is_not_sent_again(tmp_path: Path, rejected: int) -> None:
    """The protocol forbids it. What was rejected is counted as dropped, and logged with the collector's words and the
    ids of the batch."""
    wanted = backlog(100)
    with Receiver(success(rejected=rejected, message="no such tenant")) as receiver:
        line = Line(tmp_path, target(receiver))
        with line:
            line.put(*wanted)
            line.go()
            assert sizes(receiver) == [100]
            assert (line.parked(), line.waiting(), dropped(line)) == (0, 0, rejected)
            assert line.sent() == 100 - rejected
            assert line.reasons() == {}
            lines = [text for text in line.logged().splitlines() if "event=destination.rejected_records" in text]
            assert all(
                f"level=error event=destination.rejected_records destination=otlp records={rejected} " in text
                for text in lines
            )
            assert all("no such tenant" in text for text in lines)
            assert all(any(record.id in text for text in lines) for record in wanted)


def test_after_a_rejection_in_part_each_record_has_its_own_request(tmp_path: Path) -> None:
    """For ten minutes, so that the next rejection names its record, which is then parked like any refused one."""
    clock = Clock()
    bad = a_record(500, subject="event-0-0")
    with (
        Receiver(success(rejected=1), taste=refusing(bad.id)) as receiver,
        Line(tmp_path, target(receiver, monotonic=clock.monotonic), clock) as line,
    ):
        line.put(*backlog(40))
        line.go()
        assert sizes(receiver) == [40]
        alone_until = clock.mono + 600
        line.put(bad, *(a_record(number, subject="event-1") for number in range(501, 505)))
        line.go()
        assert set(sizes(receiver)[1:]) == {1}
        assert (line.parked(), dropped(line)) == (1, 1)
        assert bad.id in line.logged()
        clock.go(alone_until - clock.mono - 1)
        assert line.destination.batch_size == 1
        clock.go(1)
        line.put(*(a_record(number, subject="event-2") for number in range(600, 640)))
        line.go()
        assert sizes(receiver)[-1] == 40


@pytest.mark.parametrize("count", [1, 10])
def test_fewer_than_none_rejected(tmp_path: Path, count: int) -> None:
    """A negative count is neither a success nor a refusal: the records are kept, and tried again slowly."""
    wanted = scenarios(events=2, each=5)[:count]
    with Receiver(success(rejected=-1)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert set(arrived(receiver)) == set(ids(wanted))
        assert len(receiver.batches) > 1
        assert (line.parked(), line.reasons(), line.waits) == (0, {"protocol": 1}, [60])


@pytest.mark.parametrize("answer", [Reply(429), Reply(502), Reply(503), Reply(504)])
def test_a_batch_in_passing_trouble_stays_whole(tmp_path: Path, answer: Action) -> None:
    """What a collector answers in trouble of its own costs a batch nothing but the time."""
    wanted = scenarios(events=3, each=20)
    with Receiver(answer, answer) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert sizes(receiver) == [60, 60, 60]
        assert line.parked() == 0


@pytest.mark.parametrize("answer", [Reply(401), Reply(403), Reply(404), Reply(302)])
def test_what_only_a_person_can_mend_holds_up_nothing_before_it(tmp_path: Path, answer: Action) -> None:
    """If the credentials or the address seem wrong for one record, those before it arrive; it is not parked."""
    wanted = scenarios(events=4, each=10)
    before = ids(wanted[:29])

    def stumbles(sent: list[str]) -> tuple[Action, set[str]]:
        return (answer, set(sent)) if wanted[29].id in sent else (success(), set())

    with Receiver(taste=stumbles) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go(until=lambda: arrived(receiver) == before)
        for _ in range(3):
            line.turn()
        assert receiver.batches[-1] == [wanted[29].id]
        assert set(line.waits) == {60}
        assert (line.waiting(), line.parked()) == (11, 0)


def limited(most: int, answer: Action) -> Taste:
    """Takes requests of so many records."""
    return lambda sent: (answer, set(sent)) if len(sent) > most else (success(), set())


@pytest.mark.parametrize(
    "answer",
    [Hang(), RESET, Reply(413), Reply(429), Reply(502), Reply(503), Reply(504)],
    ids=["hang", "reset", "413", "429", "502", "503", "504"],
)
def test_what_is_too_much_at_once_goes_in_smaller_requests(tmp_path: Path, answer: Action) -> None:
    """A way that carries ten records at once and no more delivers a backlog all the same, and parks none of it."""
    wanted = scenarios(events=6, each=5)
    with (
        Receiver(taste=limited(10, answer)) as receiver,
        Line(tmp_path, target(receiver, 1.0 if isinstance(answer, Hang) else 20.0)) as line,
    ):
        line.put(*wanted)
        line.go(turns=100)
        assert set(arrived(receiver)) == set(ids(wanted))
        assert in_order(arrived(receiver), wanted)
        assert line.parked() == 0


def test_after_a_silence_requests_begin_small_and_double(tmp_path: Path) -> None:
    """A batch that got no answer in time may have been too much: one record, then two, until they are whole again."""
    wanted = backlog(300)
    with Receiver(Hang()) as receiver, Line(tmp_path, target(receiver, 1.5)) as line:
        line.put(*wanted)
        line.go()
        assert sizes(receiver) == [100, 1, 2, 4, 8, 16, 32, 64, 100, 73]
        assert arrived(receiver) == ids(wanted)


def test_one_that_cannot_be_encoded_takes_no_other_with_it(tmp_path: Path) -> None:
    """A record that protobuf cannot carry is parked without a request; the others arrive, once each."""
    wanted = scenarios(events=4, each=10)
    bad = wanted[13]
    wanted[13] = replace(bad, time=datetime(2900, 1, 1, tzinfo=UTC))  # more nanoseconds than the protocol counts
    with Receiver() as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert in_order(arrived(receiver), [record for record in wanted if record.id != bad.id])
        assert len(arrived(receiver)) == len(wanted) - 1
        assert (line.parked(), line.reasons()) == (1, {"rejected": 1 + CERTAIN})


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_request_is_bounded_by_bytes(tmp_path: Path, compression: str) -> None:
    """Large records go fewer a request, so that none is over the bound before it is compressed; all arrive, once."""
    wanted = [
        replace(record, data={**record.data, "error": "e" * 8_000, "fault": "f" * 8_000})
        for record in (a_record(number, subject=f"e-{number % 7}", message="m" * 8_000) for number in range(100))
    ]
    with Receiver() as receiver, Line(tmp_path, target(receiver, compression=compression)) as line:
        with pytest.raises(Permanent) as caught:
            line.destination.send(wanted)
        assert (caught.value.reason, receiver.requests) == ("too-large", [])
        line.put(*wanted)
        line.go()
        assert arrived(receiver) == ids(wanted)
        assert 1 < len(receiver.requests) < 8
        assert all(seen.size <= BATCH_BYTES for seen in receiver.requests)
        assert line.parked() == 0
