"""Many records in one request: their order, one that is refused among them, and what is too much at once."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.records import Record
from exporter.errors import Permanent
from exporter.sinks.otlp.sink import BATCH_BYTES, BATCH_RECORDS, OtlpDestination
from tests.support.delivery_world import Line, in_order, stories
from tests.support.eventhubs_target import a_record
from tests.support.otlp_receiver import Action, Hang, Raw, Receiver, Reply, Taste, refusing, success, uid

RESET: Final = Raw(b"")
SIZES: Final = 7
"""So often a batch is halved until one record is alone."""


def backlog(count: int) -> list[Record]:
    """So many records of a few events each, one event after the other has begun."""
    return [a_record(number, subject=f"event-{number // 6}-{number % 2}") for number in range(count)]


def target(receiver: Receiver, timeout: float = 20.0, **options: object) -> OtlpDestination:
    return OtlpDestination(receiver.url, timeout=timeout, operator={}, **options)  # type: ignore[arg-type]  # a few words


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


REFUSALS: Final[dict[str, Action | None]] = {
    "partial": None,
    "400": Reply(400),
    "413": Reply(413),
    "422": Reply(422),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("position", [0, 41, BATCH_RECORDS - 1])
def test_exactly_the_refused_record_is_parked(tmp_path: Path, name: str, position: int) -> None:
    """One of a hundred that the collector refuses is found within a few requests; all others arrive, in order."""
    wanted = stories(events=10, each=10)
    bad = wanted[position]
    taste = refusing(bad.id, answer=REFUSALS[name])
    with Receiver(taste=taste) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        good = [record for record in wanted if record is not bad]
        assert set(arrived(receiver)) == set(ids(good))
        assert in_order(arrived(receiver), good)
        assert (line.parked(), line.sent(), sum(line.reasons().values())) == (1, 99, 1)
        assert bad.id in line.logged()
        assert len(receiver.batches) <= 1 + 2 * SIZES
        assert max(Counter(arrived(receiver)).values()) <= 1 + SIZES
        assert line.waits == []


@settings(max_examples=12, deadline=None)
@given(
    bad=st.sets(st.integers(0, 29)),
    answer=st.sampled_from(list(REFUSALS.values())),
    trouble=st.lists(st.sampled_from([Reply(503), Reply(429, {"Retry-After": "3"}), Reply(401)]), max_size=2),
)
def test_any_refused_ones_are_parked_and_no_other(bad: set[int], answer: Action | None, trouble: list[Action]) -> None:
    """Whichever records a collector refuses, in whatever way and between what troubles: these alone are parked."""
    wanted = stories(events=3, each=10)
    good = [record for number, record in enumerate(wanted) if number not in bad]
    taste = refusing(*(wanted[number].id for number in bad), answer=answer)
    with (
        tempfile.TemporaryDirectory() as folder,
        Receiver(*trouble, taste=taste) as receiver,
        Line(Path(folder), target(receiver)) as line,
    ):
        line.put(*wanted)
        line.go(turns=200)
        assert set(arrived(receiver)) == set(ids(good))
        assert in_order(arrived(receiver), good)
        assert (line.parked(), line.sent()) == (len(bad), len(good))


def test_a_warning_is_a_success(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A `partial_success` that rejects nothing delivers the batch, once, and its message is logged."""
    wanted = stories(events=2, each=5)
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


@pytest.mark.parametrize("rejected", [11, 2**62])
def test_more_rejected_than_were_sent(tmp_path: Path, rejected: int) -> None:
    """A count that is larger than the batch says that something was refused; what, is found out as ever."""
    wanted = stories(events=2, each=5)
    with Receiver(success(rejected=rejected)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert set(arrived(receiver)) == set(ids(wanted))
        assert (line.parked(), line.waiting()) == (0, 0)


@pytest.mark.parametrize("count", [1, 10])
def test_fewer_than_none_rejected(tmp_path: Path, count: int) -> None:
    """A negative count is neither a success nor a refusal: the records are kept, and tried again slowly."""
    wanted = stories(events=2, each=5)[:count]
    with Receiver(success(rejected=-1)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert set(arrived(receiver)) == set(ids(wanted))
        assert len(receiver.batches) > 1
        assert (line.parked(), line.reasons(), line.waits) == (0, {"protocol": 1}, [60])


@pytest.mark.parametrize("answer", [Reply(429), Reply(502), Reply(503), Reply(504)])
def test_a_batch_in_passing_trouble_stays_whole(tmp_path: Path, answer: Action) -> None:
    """What a collector answers in trouble of its own costs a batch nothing but the time."""
    wanted = stories(events=3, each=20)
    with Receiver(answer, answer) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert sizes(receiver) == [60, 60, 60]
        assert line.parked() == 0


@pytest.mark.parametrize("answer", [Reply(500), Reply(403), Reply(200, {"Content-Type": "text/html"}, b"<html>")])
def test_what_only_a_person_can_mend_holds_up_nothing_before_it(tmp_path: Path, answer: Action) -> None:
    """Where a record makes a collector or a proxy on the way stumble, those before it arrive; it is not parked."""
    wanted = stories(events=4, each=10)
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
    wanted = stories(events=6, each=5)
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
    wanted = stories(events=4, each=10)
    bad = wanted[13]
    wanted[13] = replace(bad, time=datetime(2900, 1, 1, tzinfo=UTC))  # more nanoseconds than the protocol counts
    with Receiver() as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert arrived(receiver) == [record.id for record in wanted if record.id != bad.id]
        assert (line.parked(), line.reasons()) == (1, {"rejected": 1})


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
