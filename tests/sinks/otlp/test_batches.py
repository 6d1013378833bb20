"""Requests with many records: order, rejected records, and size limits."""

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
    """Return this many records of a few interleaved events."""
    return [a_record(number, subject=f"event-{number // 6}-{number % 2}") for number in range(count)]


def target(receiver: Receiver, timeout: float = 20.0, **options: object) -> OtlpDestination:
    return otlp_to(receiver.url, timeout=timeout, **options)  # type: ignore[arg-type]  # a few words


def arrived(receiver: Receiver) -> list[str]:
    return [uid(log) for log in receiver.logs]


def sizes(receiver: Receiver) -> list[int]:
    return [len(batch) for batch in receiver.batches]


def ids(records: list[Record]) -> list[str]:
    return [record.id for record in records]


def test_backlog_is_sent_in_requests_of_a_hundred_records(tmp_path: Path) -> None:
    """In the order of the outbox, for any events, each record once."""
    wanted = backlog(1000)
    with Receiver(Reply(503)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert sizes(receiver) == [BATCH_RECORDS] * 11
        assert receiver.pieces == [1] * 11, "one VM is one resource"
        assert arrived(receiver) == ids(wanted)
        assert (line.sent(), line.waits) == (1000, [1])


def test_order_is_kept_when_vm_attributes_change() -> None:
    """Within a request, records with more and then fewer VM attributes stay in order."""
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
    """Reject a request with one of these records: with this response, or as a success that rejects all."""

    def taste(sent: list[str]) -> tuple[Action, set[str]]:
        if not bad & set(sent):
            return success(), set()
        return answer or success(rejected=len(sent), message="no"), set(sent)

    return taste


@pytest.mark.parametrize("answer", [*REFUSALS, None], ids=["400", "413", "422", "all-rejected"])
@pytest.mark.parametrize("position", [0, 41, BATCH_RECORDS - 1])
def test_only_the_rejected_record_is_parked(tmp_path: Path, answer: Action | None, position: int) -> None:
    """It is found within a few requests; all others arrive once, in order."""
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
def test_only_rejected_records_are_parked(bad: set[int], answer: Action | None, trouble: list[Action]) -> None:
    """For any rejected records, any kind of rejection, and other failures in between."""
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


def test_warning_is_a_success(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A `partial_success` without rejections delivers the batch once, and its message is logged."""
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
def test_completely_rejected_batch_is_split(tmp_path: Path, rejected: int) -> None:
    """A count of all records, or of more, means that none was accepted."""
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
def test_partly_rejected_batch_is_not_sent_again(tmp_path: Path, rejected: int) -> None:
    """The protocol forbids it. Rejected records count as dropped; the log has the collector's message and the ids."""
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


def test_partial_rejection_is_followed_by_single_record_requests(tmp_path: Path) -> None:
    """For ten minutes, so that the next rejection identifies its record, which is parked."""
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
def test_negative_rejection_count_is_a_protocol_failure(tmp_path: Path, count: int) -> None:
    """The records are kept and retried slowly."""
    wanted = scenarios(events=2, each=5)[:count]
    with Receiver(success(rejected=-1)) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert set(arrived(receiver)) == set(ids(wanted))
        assert len(receiver.batches) > 1
        assert (line.parked(), line.reasons(), line.waits) == (0, {"protocol": 1}, [60])


@pytest.mark.parametrize("answer", [Reply(429), Reply(502), Reply(503), Reply(504)])
def test_transient_failure_does_not_split_the_batch(tmp_path: Path, answer: Action) -> None:
    wanted = scenarios(events=3, each=20)
    with Receiver(answer, answer) as receiver, Line(tmp_path, target(receiver)) as line:
        line.put(*wanted)
        line.go()
        assert sizes(receiver) == [60, 60, 60]
        assert line.parked() == 0


@pytest.mark.parametrize("answer", [Reply(401), Reply(403), Reply(404), Reply(302)])
def test_failure_for_an_operator_does_not_block_earlier_records(tmp_path: Path, answer: Action) -> None:
    """If only one record fails with it, earlier ones arrive, and it isn't parked."""
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
    """Accept requests with at most this many records."""
    return lambda sent: (answer, set(sent)) if len(sent) > most else (success(), set())


@pytest.mark.parametrize(
    "answer",
    [Hang(), RESET, Reply(413), Reply(429), Reply(502), Reply(503), Reply(504)],
    ids=["hang", "reset", "413", "429", "502", "503", "504"],
)
def test_backlog_is_delivered_through_a_size_limit(tmp_path: Path, answer: Action) -> None:
    """A proxy that accepts ten records at once: everything arrives, and nothing is parked."""
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


def test_requests_grow_from_one_record_after_a_timeout(tmp_path: Path) -> None:
    """The unanswered batch may have been too large: one record, then two, up to the maximum."""
    wanted = backlog(300)
    with Receiver(Hang()) as receiver, Line(tmp_path, target(receiver, 1.5)) as line:
        line.put(*wanted)
        line.go()
        assert sizes(receiver) == [100, 1, 2, 4, 8, 16, 32, 64, 100, 73]
        assert arrived(receiver) == ids(wanted)


def test_record_that_cannot_be_encoded_is_parked_alone(tmp_path: Path) -> None:
    """Without a request; the others arrive once."""
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
def test_requests_are_bounded_by_bytes(tmp_path: Path, compression: str) -> None:
    """Before compression; all records arrive once."""
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
