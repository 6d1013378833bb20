"""The command `requeue`: parked records are sent again, by a second process, beside an agent that runs or does not."""

from __future__ import annotations

import contextlib
import io
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from exporter.agent.delivery import LOOK_AGAIN_SECONDS, DeliveryThread
from exporter.cli import main
from exporter.core.records import Record
from exporter.errors import Permanent
from exporter.log.log import Log
from exporter.outbox.queue import requeue
from tests.agent.test_delivery import Backend
from tests.support.delivery_environment import Line
from tests.support.eventhubs_target import a_record
from tests.support.outbox_content import BOTH, STATE, drained, opened
from tests.support.outbox_content import a_record as a_small_record


def parked_outbox(path: Path, numbers: Sequence[int] = (1, 2, 3)) -> None:
    """An outbox at rest whose records both destinations have parked, but the last one, which waits."""
    outbox = opened(path)
    outbox.commit(STATE, [a_small_record(number) for number in numbers])
    for name in BOTH:
        for queued in outbox.next(name, 10)[:-1]:
            outbox.park(name, queued.seq, "rejected: HTTP 400")
    outbox.close()


def counts(path: Path) -> dict[str, tuple[int, int]]:
    """By destination how many records wait and how many are parked, as an agent that starts now counts them."""
    outbox = opened(path)
    found = {name: (queue.records, queue.parked) for name, queue in outbox.queues().items()}
    outbox.close()
    return found


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["requeue", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_parked_records_of_an_agent_at_rest_wait_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, in their old order; a second time there is nothing to do, which is no error."""
    path = tmp_path / "outbox.db"
    parked_outbox(path)
    assert run(capsys, "--outbox", str(path)) == (0, "requeued 4 records: event_hubs 2, otlp 2\n", "")
    assert counts(path) == {"event_hubs": (3, 0), "otlp": (3, 0)}
    assert run(capsys, "--outbox", str(path)) == (0, "no records are parked\n", "")
    outbox = opened(path)
    assert drained(outbox, "otlp") == [1, 2, 3]
    outbox.close()


def test_one_destination_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the other one refused stays parked. The outbox of the settings is the default."""
    path = tmp_path / "outbox.db"
    parked_outbox(path)
    code, out, _ = run(capsys, "--outbox.path", str(path), "--destination", "otlp")
    assert (code, out) == (0, "requeued 2 records: otlp 2\n")
    assert counts(path) == {"event_hubs": (1, 2), "otlp": (3, 0)}
    with pytest.raises(SystemExit) as caught:
        main(["requeue", "--destination", "kafka"])
    assert caught.value.code == 2


def no_file(_path: Path) -> None:
    """Nothing is there."""


def no_database(path: Path) -> None:
    path.write_bytes(b"x" * 5000)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE queue (destination, parked)")


def damaged(path: Path) -> None:
    """The first byte that SQLite can't make sense of is in the message of its error."""
    opened(path).close()
    path.write_bytes(path.read_bytes().replace(b"queue_seq", b"queue_se\xff", 1))


def empty(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize("make", [no_file, no_database, foreign, damaged, empty])
def test_what_is_no_outbox_is_named_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    """Exit code 1 and a sentence; no file is made, and none is changed."""
    path = tmp_path / "outbox.db"
    make(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    code, out, err = run(capsys, "--outbox", str(path))
    assert (code, out) == (1, "")
    assert err.startswith(f"{path}: ")
    assert "Traceback" not in err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_file_that_somebody_holds_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After five seconds of waiting it says so, and has changed nothing."""
    path = tmp_path / "outbox.db"
    parked_outbox(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        code, out, err = run(capsys, "--outbox", str(path))
        other.execute("ROLLBACK")
    assert (code, out) == (1, "")
    assert err.endswith("; try again\n")
    assert counts(path) == {"event_hubs": (1, 2), "otlp": (1, 2)}


def as_a_second_process(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "exporter", "requeue", "--outbox", str(path)],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    return done.stdout


def test_a_running_agent_sends_them_again_and_counts_right(tmp_path: Path) -> None:
    """The delivery looks each second while something is parked; the gauges follow, before and after it is sent."""
    refuses = [True]
    bad = [a_record(number, subject=f"event-{number}") for number in (1, 2)]
    ids = {record.id for record in bad}

    def refuse(records: Sequence[Record]) -> Exception | None:
        return Permanent("rejected") if refuses and ids & {record.id for record in records} else None

    backend = Backend(refuse)
    with Line(tmp_path, backend) as line:
        line.put(*bad)
        line.put(a_record(3))
        line.go()
        assert (line.waiting(), line.parked()) == (0, 2)
        assert line.turn() == LOOK_AGAIN_SECONDS
        refuses.clear()
        assert as_a_second_process(line.outbox.path) == "requeued 2 records: event_hubs 2\n"
        assert (line.waiting(), line.parked()) == (2, 0)
        assert line.outbox.queues()["event_hubs"].oldest == bad[0].time
        line.go()
        assert (line.waiting(), line.parked()) == (0, 0)
        assert backend.taken == [a_record(3).id, *(record.id for record in bad)]
        assert line.turn() > LOOK_AGAIN_SECONDS


def test_what_is_still_refused_is_parked_again(tmp_path: Path) -> None:
    """Once another record is accepted; it blocks nothing meanwhile."""
    bad = a_record(1, subject="event-1")
    backend = Backend(lambda records: Permanent("rejected") if bad.id in {record.id for record in records} else None)
    with Line(tmp_path, backend) as line:
        line.put(bad, a_record(2))
        line.go()
        requeue(line.outbox.path)
        assert (line.waiting(), line.parked()) == (1, 0)
        line.put(a_record(3))
        line.go()
        assert (line.waiting(), line.parked()) == (0, 1)


def test_a_sleeping_thread_notices_it(tmp_path: Path) -> None:
    """Nobody wakes it: it looks by itself."""
    backend = Backend()
    with Line(tmp_path, Backend()) as line:
        line.put(a_record(1))
        line.outbox.park("event_hubs", 1, "rejected")
        thread = DeliveryThread(backend.name, lambda: backend, line.outbox, line.sink, Log(io.StringIO()))
        thread.start()
        requeue(line.outbox.path)
        assert backend.received.wait(30)
        thread.stop()


def test_counts_stay_right_while_all_write_at_once(tmp_path: Path) -> None:
    """An agent that commits, two deliveries that park and deliver, and a second process that lets records wait again:
    afterwards the counts in memory are those of the file."""
    outbox = opened(tmp_path / "o.db")
    over = threading.Event()

    def deliver(name: str) -> None:
        number = 0
        while not over.is_set():
            with contextlib.suppress(Exception):  # a busy file: it is remembered, and tried again
                for queued in outbox.next(name, 3):
                    number += 1
                    if number % 2:
                        outbox.park(name, queued.seq, "rejected")
                    else:
                        outbox.delivered(name, [queued.seq])

    def let_wait_again() -> None:
        while not over.is_set():
            with contextlib.suppress(Exception):  # likewise
                requeue(outbox.path, "otlp")

    threads = [threading.Thread(target=deliver, args=(name,)) for name in BOTH]
    threads.append(threading.Thread(target=let_wait_again))
    for thread in threads:
        thread.start()
    for number in range(150):
        with contextlib.suppress(Exception):  # likewise
            outbox.commit(STATE, [a_small_record(number)])
        outbox.queues()
    over.set()
    for thread in threads:
        thread.join(30)
    for name in BOTH:
        outbox.next(name, 1)  # writes what the busy file did not take
    found = {name: (queue.records, queue.parked) for name, queue in outbox.queues().items()}
    outbox.close()
    assert found == counts(tmp_path / "o.db")
