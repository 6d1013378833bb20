"""The Python consumer as a team runs it, with Azure's SDK and the local broker, fed by real agents' outboxes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage

from deploy.consumers.python.event_summaries.consumer import Consumer, Options
from deploy.consumers.python.event_summaries.join import event_summary
from deploy.consumers.python.event_summaries.record import Unreadable, read
from deploy.consumers.python.event_summaries.store import Store
from exporter.simulator.event_hubs.broker import Broker
from tests.support.eventhubs_broker import FORGETFUL, collected, running_broker
from tests.support.eventhubs_client import event, producer, send
from tests.support.fleet_records import HUB, NOW, ROOT, SendingFleet, last_lines, recorded, summaries
from tests.support.hostile_messages import hostile, mutants
from tests.support.peers import until

pytestmark = [*FORGETFUL, pytest.mark.linux("starts processes and kills them")]
FOLDER: Final = ROOT / "deploy" / "consumers" / "python"
broker = pytest.fixture(running_broker)
_collected = pytest.fixture(autouse=True)(collected)


@pytest.fixture
def fleet(tmp_path: Path, broker: Broker) -> Iterator[SendingFleet]:
    (tmp_path / "fleet").mkdir()
    made = SendingFleet(tmp_path / "fleet", broker, vms=6, events=2)
    yield made
    made.close()


def started(broker: Broker, state: Path, output: IO[str], *flags: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "EVENT_HUBS_CONNECTION_STRING": broker.connection_string(HUB)}
    command = [sys.executable, "-m", "event_summaries", "--state", str(state), *flags]
    return subprocess.Popen(command, cwd=FOLDER, env=environment, stdout=output, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return its counts, from the last line of its log."""
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    counts: dict[str, Any] = json.loads(log.splitlines()[-1].partition(" INFO ")[2])
    return counts


def deliver(broker: Broker, bodies: Sequence[bytes | str]) -> None:
    async def sending() -> None:
        async with producer(broker.connection_string(HUB)) as client:
            await send(client, [event(body if isinstance(body, str) else body.decode()) for body in bodies])

    asyncio.run(sending())


def test_a_kill_still_gives_one_summary_per_event(tmp_path: Path, broker: Broker, fleet: SendingFleet) -> None:
    """It is killed while the second half arrives, and started again: each record is joined once, every summary is
    correct."""
    state, path = tmp_path / "summaries.db", tmp_path / "summaries.jsonl"
    with path.open("a", encoding="utf-8") as output:
        fleet.run(5)
        first = started(broker, state, output)
        until(lambda: last_lines(path.read_text()))
        broker.faults.add("drop-after-store*3")  # some are sent again
        fleet.run(3)
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=60)
        fleet.run(6)
        counts = finished(started(broker, state, output, "--once"))
    expected = summaries([record.to_json() for record in fleet.records()])
    found = last_lines(path.read_text())
    assert found == expected
    assert [one["outcome"] for one in found.values()] == ["completed", "completed"]
    assert counts["received"] < len(broker.messages(HUB)), "it began where it was killed"
    assert counts["skipped"] == {}


def test_hostile_messages_are_counted_and_skipped(tmp_path: Path, broker: Broker) -> None:
    """Not JSON, wrong types, a mebibyte, an unknown kind, a future version, between records of every kind."""
    good = recorded()
    sent = json.loads(good[0])
    bad: list[bytes | str] = [
        "not json",
        "[" * 50_000,
        json.dumps({**sent, "data": "text"}),
        json.dumps({**sent, "type": "azure_scheduled_event.melted.v1"}),
        json.dumps({**sent, "type": "azure_scheduled_event.scheduled.v2"}),
        json.dumps({"specversion": "1.0", "type": "com.example"}),
        json.dumps({**sent, "padding": "x" * 900_000}),  # a huge one that is a record
    ]
    for bodies in (bad[:-1], good, bad[-1:]):
        deliver(broker, bodies)
    path = tmp_path / "summaries.jsonl"
    with path.open("a", encoding="utf-8") as output:
        counts = finished(started(broker, tmp_path / "summaries.db", output, "--once"))
    assert counts["skipped"] == {
        "not-json": 2, "wrong-type": 1, "unknown-kind": 1, "other-version": 1, "other-producer": 1,
    }  # fmt: skip
    assert counts["received"] == len(good) + len(bad)
    assert last_lines(path.read_text()) == summaries(good)


def test_no_hostile_message_is_read_twice(tmp_path: Path, broker: Broker) -> None:
    """Very deep, with another's members, without bytes: counted and skipped, also by the next process."""
    bad = list(hostile().values())
    no_bytes = [AmqpAnnotatedMessage(value_body={"a": 1}), AmqpAnnotatedMessage(sequence_body=[["a"], [1, None]])]

    async def sending() -> None:
        async with producer(broker.connection_string(HUB)) as client:
            for body in bad:
                await send(client, [EventData(body)])
            await send(client, no_bytes)
            await send(client, [EventData(body) for body in recorded()])

    asyncio.run(sending())
    state, path = tmp_path / "summaries.db", tmp_path / "summaries.jsonl"
    with path.open("a", encoding="utf-8") as output:
        counts = finished(started(broker, state, output, "--once"))
        assert finished(started(broker, state, output, "--once"))["received"] == 0
    assert counts["received"] == len(bad) + len(recorded()) + 2
    assert set(counts["skipped"]) == {"not-json", "wrong-type"}
    found = last_lines(path.read_text())
    assert found.items() >= summaries(recorded()).items()
    assert "stolen" not in json.dumps(list(found))


def test_every_readable_message_is_kept_and_written(tmp_path: Path) -> None:
    """Of hostile messages and 3,000 mutants of records, each is rejected with a reason, or has a summary."""
    store = Store(tmp_path / "summaries.db")
    kept = Counter[str]()
    for body in (*hostile().values(), *mutants(3_000)):
        try:
            fact = read(body)
        except Unreadable as error:
            kept[error.reason] += 1
            continue
        kept["read"] += 1
        if fact.event_id is not None:
            store.add([fact])
            found = event_summary(store.facts(fact.event_id), NOW, 86_400.0)
            assert found["event_id"] == fact.event_id
            json.loads(json.dumps(found, allow_nan=False))
    store.close()
    assert kept["read"] > 1_000
    assert kept["wrong-type"] > 500


def test_closed_output_loses_no_summary(tmp_path: Path, broker: Broker) -> None:
    """The program fails, and the next one writes the summaries."""
    deliver(broker, recorded())
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        process = started(broker, tmp_path / "summaries.db", closed, "--once")
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "BrokenPipeError" in log
    path = tmp_path / "summaries.jsonl"
    with path.open("a", encoding="utf-8") as output:
        finished(started(broker, tmp_path / "summaries.db", output, "--once"))
    assert last_lines(path.read_text()) == summaries(recorded())


def test_event_without_an_end_is_written_once(tmp_path: Path) -> None:
    """Once the last messages are recent and the event has had no record for that time; a later end is written again."""
    lives = {kind: body for body in recorded() if b"26BA4D5C" in body for kind in [json.loads(body)["type"]]}
    begun, over = lives["azure_scheduled_event.started.v1"], lives["azure_scheduled_event.completed.v1"]
    path = tmp_path / "out.jsonl"
    with path.open("w", encoding="utf-8") as output:
        store = Store(tmp_path / "a.db")
        consumer = Consumer(store, output, Options(give_up=60.0))

        def printed(*bodies: bytes, caught_up: bool) -> list[str]:
            consumer.keep(bodies)
            asyncio.run(consumer.write_changed(datetime.now(UTC), caught_up=caught_up))
            return [json.loads(line)["state"] for line in path.read_text().splitlines()]

        assert printed(begun, caught_up=False) == ["started"], "its end may be what is read next"
        assert printed(caught_up=True) == printed(caught_up=True) == ["started", "no-end"]
        assert printed(over, caught_up=True) == ["started", "no-end", "closed"]
        store.close()


def test_later_run_writes_an_event_without_an_end(tmp_path: Path, broker: Broker) -> None:
    """As a job does that runs with --once every hour, on a hub without new messages."""
    deliver(broker, [body for body in recorded() if b"26BA4D5C" in body and b"scheduled_event.scheduled.v1" in body])
    state, path = tmp_path / "summaries.db", tmp_path / "summaries.jsonl"
    with path.open("a", encoding="utf-8") as output:
        finished(started(broker, state, output, "--once", "--give-up", "36500d"))
        finished(started(broker, state, output, "--once"))
    assert [json.loads(line)["state"] for line in path.read_text().splitlines()] == ["scheduled", "no-end"]


def test_once_from_now_on_ends_without_old_messages(tmp_path: Path, broker: Broker) -> None:
    """The program doesn't wait for skipped messages."""
    deliver(broker, recorded())
    with (tmp_path / "summaries.jsonl").open("a", encoding="utf-8") as output:
        counts = finished(started(broker, tmp_path / "summaries.db", output, "--once", "--from", "now"))
    assert counts["received"] == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--state", "a.db"], {}, "no credentials; set EVENT_HUBS_CONNECTION_STRING, or --namespace and --hub"),
        (["--state", "no/folder/a.db"], {}, "unable to open"),
        (["--state", "a.db", "--keep", "1w"], {}, "'1w' is not a number with a unit (s, m, h, d)"),
        (["--state", "a.db", "--give-up", "36501d"], {}, "'36501d' is more than a hundred years"),
        (["--state", "a.db"], {"EVENT_HUBS_CONNECTION_STRING": "Endpoint=hunter2"}, "is not a connection string"),
    ],
)
def test_bad_usage_is_reported_in_one_line(
    arguments: list[str], environment: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    """Exit code 2, and no secret."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "event_summaries",
            *(word.replace("a.db", str(tmp_path / "a.db")) for word in arguments),
        ],
        cwd=FOLDER,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert "hunter2" not in done.stderr
