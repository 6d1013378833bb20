"""The command `requeue`: a second process sends parked records again, next to a running or a stopped agent."""

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
    """Return an outbox without agent in which both destinations have parked all records except the last one."""
    outbox = opened(path)
    outbox.commit(STATE, [a_small_record(number) for number in numbers])
    for name in BOTH:
        for queued in outbox.next(name, 10)[:-1]:
            outbox.park(name, queued.seq, "rejected: HTTP 400")
    outbox.close()


def counts(path: Path) -> dict[str, tuple[int, int]]:
    """Return the numbers of waiting and parked records by destination, as a starting agent counts them."""
    outbox = opened(path)
    found = {name: (queue.records, queue.parked) for name, queue in outbox.queues().items()}
    outbox.close()
    return found


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["requeue", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_parked_records_of_a_stopped_agent_wait_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, in their old order; a second call has nothing to do and succeeds."""
    path = tmp_path / "outbox.db"
    parked_outbox(path)
    assert run(capsys, "--outbox", str(path)) == (0, "requeued 4 records: event_hubs 2, otlp 2\n", "")
    assert counts(path) == {"event_hubs": (3, 0), "otlp": (3, 0)}
    assert run(capsys, "--outbox", str(path)) == (0, "no records are parked\n", "")
    outbox = opened(path)
    assert drained(outbox, "otlp") == [1, 2, 3]
    outbox.close()


def test_one_destination_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records that the other destination rejected stay parked. The default is the outbox of the settings."""
    path = tmp_path / "outbox.db"
    parked_outbox(path)
    code, out, _ = run(capsys, "--outbox.path", str(path), "--destination", "otlp")
    assert (code, out) == (0, "requeued 2 records: otlp 2\n")
    assert counts(path) == {"event_hubs": (1, 2), "otlp": (3, 0)}
    with pytest.raises(SystemExit) as caught:
        main(["requeue", "--destination", "kafka"])
    assert caught.value.code == 2


def no_file(_path: Path) -> None:
    """Create no file."""


def no_database(path: Path) -> None:
    path.write_bytes(b"x" * 5000)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE queue (destination, parked)")


def damaged(path: Path) -> None:
    """The first invalid byte is in SQLite's error message."""
    opened(path).close()
    path.write_bytes(path.read_bytes().replace(b"queue_seq", b"queue_se\xff", 1))


def empty(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize("make", [no_file, no_database, foreign, damaged, empty])
def test_files_that_are_not_an_outbox_are_reported_and_not_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    """Exit code 1 and an error; no file is created or changed."""
    path = tmp_path / "outbox.db"
    make(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    code, out, err = run(capsys, "--outbox", str(path))
    assert (code, out) == (1, "")
    assert err.startswith(f"{path}: ")
    assert "Traceback" not in err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_missing_file_and_directory_are_reported_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error contains the path once, and names the outbox in a directory."""
    missing = tmp_path / "none"
    reported = f"{missing}: No such file or directory; use --outbox to name the agent's outbox\n"
    assert run(capsys, "--outbox", str(missing)) == (1, "", reported)
    parked_outbox(tmp_path / "outbox.db")
    reported = f"{tmp_path}: a directory, not an outbox; use {tmp_path / 'outbox.db'}\n"
    assert run(capsys, "--outbox", str(tmp_path)) == (1, "", reported)


def test_locked_file_is_reported_and_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes after a wait of five seconds, and nothing has changed."""
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


def test_running_agent_sends_requeued_records_and_counts_correctly(tmp_path: Path) -> None:
    """The delivery checks every second while something is parked; the gauges are right before and after it."""
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


def test_record_that_is_rejected_again_is_parked_again(tmp_path: Path) -> None:
    """As soon as another record is accepted; it blocks nothing meanwhile."""
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


def test_sleeping_delivery_notices_requeued_records(tmp_path: Path) -> None:
    """It checks by itself, without a wake-up."""
    backend = Backend()
    with Line(tmp_path, Backend()) as line:
        line.put(a_record(1))
        line.outbox.park("event_hubs", 1, "rejected")
        thread = DeliveryThread(backend.name, lambda: backend, line.outbox, line.sink, Log(io.StringIO()))
        thread.start()
        requeue(line.outbox.path)
        assert backend.received.wait(30)
        thread.stop()


def test_counts_stay_correct_during_concurrent_writes(tmp_path: Path) -> None:
    """An agent commits, two deliveries park and deliver, and a second process requeues: memory and file agree."""
    outbox = opened(tmp_path / "o.db")
    over = threading.Event()

    def deliver(name: str) -> None:
        number = 0
        while not over.is_set():
            with contextlib.suppress(Exception):  # a busy file: tried again later
                for queued in outbox.next(name, 3):
                    number += 1
                    if number % 2:
                        outbox.park(name, queued.seq, "rejected")
                    else:
                        outbox.delivered(name, [queued.seq])

    def let_wait_again() -> None:
        while not over.is_set():
            with contextlib.suppress(Exception):  # see above
                requeue(outbox.path, "otlp")

    threads = [threading.Thread(target=deliver, args=(name,)) for name in BOTH]
    threads.append(threading.Thread(target=let_wait_again))
    for thread in threads:
        thread.start()
    for number in range(150):
        with contextlib.suppress(Exception):  # see above
            outbox.commit(STATE, [a_small_record(number)])
        outbox.queues()
    over.set()
    for thread in threads:
        thread.join(30)
    for name in BOTH:
        outbox.next(name, 1)  # writes what the busy file rejected
    found = {name: (queue.records, queue.parked) for name, queue in outbox.queues().items()}
    outbox.close()
    assert found == counts(tmp_path / "o.db")
