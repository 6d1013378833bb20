"""The JavaScript consumer as a team runs it, behind Azure's SDK and the local broker, fed by real agents' outboxes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from exporter.simulator.event_hubs.broker import Broker
from tests.support.eventhubs_broker import FORGETFUL, collected, running_broker
from tests.support.eventhubs_client import event, producer, send
from tests.support.fleet_records import HUB, SendingFleet, every_kind, facts, former
from tests.support.javascript_consumer import FOLDER, installed, started
from tests.support.node import node_binary, node_environment, run_node
from tests.support.peers import until

pytestmark = [*FORGETFUL, pytest.mark.linux("starts processes and kills them"), pytest.mark.peer("node")]
broker = pytest.fixture(running_broker)
_collected = pytest.fixture(autouse=True)(collected)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return installed(tmp_path / "consumer")


@pytest.fixture
def fleet(tmp_path: Path, broker: Broker) -> Iterator[SendingFleet]:
    (tmp_path / "fleet").mkdir()
    made = SendingFleet(tmp_path / "fleet", broker, vms=4)
    yield made
    made.close()


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it counted, from the last line of its log."""
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    counts: dict[str, Any] = json.loads(log.splitlines()[-1])
    return counts


def deliver(broker: Broker, bodies: Sequence[bytes]) -> None:
    async def sending() -> None:
        async with producer(broker.connection_string(HUB)) as client:
            await send(client, [event(body.decode()) for body in bodies])

    asyncio.run(sending())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_nothing_is_lost_over_a_kill(tmp_path: Path, broker: Broker, fleet: SendingFleet, program: Path) -> None:
    """Killed while more arrives and started again: a line for each record, the second time from its position on."""
    state, path = tmp_path / "positions.json", tmp_path / "records.jsonl"
    with path.open("a", encoding="utf-8") as output:
        fleet.run(5)
        first = started(program, broker, state, output)
        until(lambda: state.exists() and lines(path))
        broker.fault("drop-after-store*3")  # some are sent again
        fleet.run(3)
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=60)
        fleet.run(6)
        counts = finished(started(program, broker, state, output, "--once"))
    told = {(line["source"], line["id"]): line for line in lines(path)}
    sent = {(record.source, record.id): record for record in fleet.records()}
    assert told.keys() == sent.keys()
    assert all(told[key]["kind"] == record.kind for key, record in sent.items())
    assert counts["received"] < len(broker.messages(HUB)), "it began where it was killed"
    assert counts["skipped"] == {}


def test_with_events_it_tells_how_each_ended(tmp_path: Path, broker: Broker, program: Path) -> None:
    """One line per event that is over, of the witness that saw most; hostile messages are counted."""
    deliver(broker, [b"nonsense", b"[]", b'{"specversion": "1.0", "type": "com.example"}', *former(), *former()])
    process = started(program, broker, tmp_path / "positions.json", subprocess.PIPE, "--events", "--once")
    output, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    counts = json.loads(log.splitlines()[-1])
    assert counts["skipped"] == {"not-json": 2, "other-producer": 1}
    assert counts["copies"] == len(former())
    last = {line["event_id"]: line["outcome"] for line in map(json.loads, output.splitlines())}
    closings = [fact for fact in facts(former()) if fact.kind in {"completed", "canceled", "ended"}]
    best = sorted(closings, key=lambda fact: ("completed", "canceled", "ended").index(fact.kind), reverse=True)
    assert last == {fact.event_id: fact.kind for fact in best}


def test_once_from_now_on_ends_without_what_was_there(tmp_path: Path, broker: Broker, program: Path) -> None:
    """Nobody waits for messages that are passed over."""
    deliver(broker, former())
    process = started(program, broker, tmp_path / "positions.json", subprocess.PIPE, "--once", "--from", "now")
    assert finished(process)["received"] == 0


@pytest.mark.parametrize(
    ("flags", "connection_string", "sentence"),
    [
        (
            ["--state", "p.json"],
            "Endpoint=sb://x/;SharedAccessKeyName=a;SharedAccessKey=hunter2;",
            "names no event hub",
        ),
        (["--state", "p.json"], "hunter2", "is no connection string"),
        (["--state", "p.json"], "", "set EVENT_HUBS_CONNECTION_STRING, or give --namespace and --hub"),
        (["--state", "p.json", "--from", "hunter2"], "", "--from takes start or now"),
        (["--conection-string=Endpoint=sb://x/;SharedAccessKey=hunter2"], "", "Unknown option '--conection-string'"),
        (["hunter2"], "", "an argument that is no flag"),
        ([], "", "give --state FILE"),
    ],
)
def test_bad_usage_is_a_sentence(program: Path, flags: list[str], connection_string: str, sentence: str) -> None:
    """Exit code 2, and nothing of a secret: the SDK's own error holds the whole connection string."""
    environment = node_environment({"EVENT_HUBS_CONNECTION_STRING": connection_string})
    command = [node_binary(), "consume.mjs", *flags]
    done = subprocess.run(
        command, cwd=program, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert sentence in done.stderr
    assert "hunter2" not in done.stderr


def test_both_consumers_agree_on_every_record(tmp_path: Path) -> None:
    """JavaScript's `read` finds the same kind, id, VM and event as Python's, and refuses the same."""
    good = [*every_kind().values(), *former()]
    sent = json.loads(good[0])
    odd: list[dict[str, Any]] = [{"id": 7}, {"data": []}, {"type": "azure_scheduled_event.x.v1"}, {"specversion": 1}]
    bad = [{**sent, **members} for members in odd]
    bodies = [*(body.decode() for body in good), *map(json.dumps, bad)]
    script = tmp_path / "reads.mjs"
    script.write_text(
        f"import {{ read }} from {json.dumps(str(FOLDER / 'record.mjs'))};\n"
        "import { readFileSync } from 'node:fs';\n"
        "for (const line of readFileSync(0, 'utf8').trimEnd().split('\\n'))\n"
        "  console.log(JSON.stringify(read(Buffer.from(line))));\n"
    )
    read = [json.loads(line) for line in run_node(script, given="\n".join(bodies)).splitlines()]
    assert [one["skipped"] for one in read[len(good) :]] == [
        "wrong-type",
        "wrong-type",
        "unknown-kind",
        "not-cloudevents",
    ]
    expected = [(fact.kind, fact.source, fact.id, fact.event_id, fact.vm) for fact in facts(good)]
    about_events = [one for one in read[: len(good)] if one["event_id"] is not None]
    assert [(one["kind"], one["source"], one["id"], one["event_id"], one["vm"]) for one in about_events] == expected
