"""The JavaScript consumer as a team runs it, with Azure's SDK and the local broker, fed by real agents' outboxes."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage

from deploy.consumers.python.event_summaries.record import Fact, Unreadable, read
from exporter.simulator.event_hubs.broker import Broker
from tests.support.eventhubs_broker import FORGETFUL, collected, running_broker
from tests.support.eventhubs_client import producer, send
from tests.support.fleet_records import HUB, ROOT, SendingFleet, facts, recorded
from tests.support.hostile_messages import hostile, mutants
from tests.support.javascript_consumer import FOLDER, installed, started
from tests.support.node import node_binary, node_environment, run_node
from tests.support.peers import until

pytestmark = [*FORGETFUL, pytest.mark.linux("starts processes and kills them"), pytest.mark.peer("node")]
OUTCOMES: Final = {"completed", "canceled", "ended"}
LINE: Final = {"id", "source", "kind", "time", "event_id", "event_type", "vm", "severity", "message"}
SUMMARY: Final = {
    *("first_seen", "seen_before", "notice_seconds", "documented_minimum_notice_seconds", "started_by", "approved_at"),
    *(
        "rule",
        "approval_attempts",
        "scheduled_duration_seconds",
        "started_at",
        "started_duration_seconds",
        "gone_at",
        "last_status",
    ),
    *("last_not_before", "unseen", "updates", "updates_while_started", "gaps", "gap_seconds"),
    *("announced_duration_seconds", "interruptions_observed", "interruption_seconds", "interruption_longest_seconds"),
}
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
    """Return its counts, from the last line of its log."""
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    counts: dict[str, Any] = json.loads(log.splitlines()[-1])
    return counts


def deliver(broker: Broker, *batches: Sequence[bytes | AmqpAnnotatedMessage]) -> None:
    """Send each batch at once, one after the other."""

    async def sending() -> None:
        async with producer(broker.connection_string(HUB)) as client:
            for batch in batches:
                await send(client, [EventData(body) if isinstance(body, bytes) else body for body in batch])

    asyncio.run(sending())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_kill_loses_nothing(tmp_path: Path, broker: Broker, fleet: SendingFleet, program: Path) -> None:
    """It is killed while more records arrive, and started again: a line for each record, from its position on."""
    state, path = tmp_path / "positions.json", tmp_path / "records.jsonl"
    with path.open("a", encoding="utf-8") as output:
        fleet.run(5)
        first = started(program, broker, state, output)
        until(lambda: state.exists() and lines(path))
        broker.faults.add("drop-after-store*3")  # some are sent again
        fleet.run(3)
        first.send_signal(signal.SIGKILL)
        first.communicate(timeout=60)
        fleet.run(6)
        counts = finished(started(program, broker, state, output, "--once"))
    printed = {(line["source"], line["id"]): line for line in lines(path)}
    sent = {(record.source, record.id): record for record in fleet.records()}
    assert printed.keys() == sent.keys()
    assert all(printed[key]["kind"] == record.kind for key, record in sent.items())
    assert counts["received"] < len(broker.messages(HUB)), "it began where it was killed"
    assert counts["skipped"] == {}


def test_events_flag_writes_one_line_per_closed_event(tmp_path: Path, broker: Broker, program: Path) -> None:
    """One line per ended event, from the VM with the most complete observation; hostile messages are counted."""
    deliver(broker, [b"nonsense", b"[]", b'{"specversion": "1.0", "type": "com.example"}', *recorded(), *recorded()])
    process = started(program, broker, tmp_path / "positions.json", subprocess.PIPE, "--events", "--once")
    output, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    counts = json.loads(log.splitlines()[-1])
    assert counts["skipped"] == {"not-json": 2, "other-producer": 1}
    assert counts["copies"] == len(recorded())
    last = {line["event_id"]: line["outcome"] for line in map(json.loads, output.splitlines())}
    closings = [fact for fact in facts(recorded()) if fact.kind in {"completed", "canceled", "ended"}]
    best = sorted(closings, key=lambda fact: ("completed", "canceled", "ended").index(fact.kind), reverse=True)
    assert last == {fact.event_id: fact.kind for fact in best}


@pytest.mark.parametrize("flags", [[], ["--events"]], ids=["records", "events"])
def test_a_hostile_message_is_counted_and_skipped(
    tmp_path: Path, broker: Broker, program: Path, flags: list[str]
) -> None:
    """Between valid records, it neither stops the program nor is read again by the next one."""
    state, path, bad = tmp_path / "positions.json", tmp_path / "lines.jsonl", list(hostile().values())
    no_bytes = [AmqpAnnotatedMessage(value_body={"a": 1}), AmqpAnnotatedMessage(sequence_body=[["a"], [1, None]])]
    deliver(broker, recorded()[:5], *([body] for body in bad), no_bytes, recorded()[5:])
    with path.open("a", encoding="utf-8") as output:
        counts = finished(started(program, broker, state, output, "--once", *flags))
        assert finished(started(program, broker, state, output, "--once", *flags))["received"] == 0
    assert counts["received"] == len(bad) + len(recorded()) + 2
    assert sum(counts["skipped"].values()) >= 20
    assert "unexpected" not in counts["skipped"]
    ids = {line["event_id"] if flags else line["id"] for line in lines(path)}
    closed = {fact.event_id for fact in facts(recorded()) if fact.kind in OUTCOMES}
    assert ids >= (closed if flags else {json.loads(body)["id"] for body in recorded()})
    assert "stolen" not in {str(ids), *ids}


def test_skipped_messages_are_reported_during_the_run(tmp_path: Path, broker: Broker, program: Path) -> None:
    """Counts appear after the first skipped message, then once a minute if they change, and at the end."""
    deliver(broker, [b"nonsense"])
    process = started(program, broker, tmp_path / "positions.json", subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert json.loads(said)["skipped"] == {"not-json": 1}


def test_once_from_now_on_ends_without_old_messages(tmp_path: Path, broker: Broker, program: Path) -> None:
    """The program doesn't wait for skipped messages."""
    deliver(broker, recorded())
    process = started(program, broker, tmp_path / "positions.json", subprocess.PIPE, "--once", "--from", "now")
    assert finished(process)["received"] == 0


@pytest.mark.parametrize(
    ("flags", "connection_string", "sentence"),
    [
        (
            ["--state", "p.json"],
            "Endpoint=sb://x/;SharedAccessKeyName=a;SharedAccessKey=hunter2;",
            "has no EntityPath",
        ),
        (["--state", "p.json"], "hunter2", "is not a connection string"),
        (["--state", "p.json"], "", "no credentials; set EVENT_HUBS_CONNECTION_STRING, or --namespace and --hub"),
        (["--state", "p.json", "--from", "hunter2"], "", "--from: unknown value; use start or now"),
        (["--conection-string=Endpoint=sb://x/;SharedAccessKey=hunter2"], "", "Unknown option '--conection-string'"),
        (["hunter2"], "", "unexpected argument; only flags are allowed"),
        ([], "", "no --state FILE; set it to the file for the positions"),
    ],
)
def test_bad_usage_is_reported_in_one_line(
    program: Path, flags: list[str], connection_string: str, sentence: str
) -> None:
    """Exit code 2, and no secret: the SDK's own error contains the whole connection string."""
    environment = node_environment({"EVENT_HUBS_CONNECTION_STRING": connection_string})
    command = [node_binary(), "consume.mjs", *flags]
    done = subprocess.run(
        command, cwd=program, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert sentence in done.stderr
    assert "hunter2" not in done.stderr


def javascript(bodies: Sequence[bytes], tmp_path: Path, *, events: bool = False) -> list[dict[str, Any]]:
    """Return the JavaScript consumer's result for each message in order: `line`, `skipped`."""
    script = tmp_path / "reads.mjs"
    script.write_text(
        f"import {{ Reader }} from {json.dumps(str(FOLDER / 'reader.mjs'))};\n"
        "import { readFileSync } from 'node:fs';\n"
        f"const reader = new Reader({json.dumps(events)});\n"
        "for (const text of readFileSync(0, 'utf8').trimEnd().split('\\n')) {\n"
        "  reader.counts.skipped = {};\n"
        "  const line = reader.line(Buffer.from(text, 'base64'));\n"
        "  console.log(JSON.stringify({ line, skipped: Object.keys(reader.counts.skipped)[0] ?? null }));\n"
        "}\n"
        "if (Object.keys(Object.prototype).length > 0 || {}.event_id) throw new Error('the prototype has a member');\n"
    )
    given = "\n".join(base64.b64encode(body).decode() for body in bodies)
    return [json.loads(line) for line in run_node(script, given=given).splitlines()]


def read_by_python(body: bytes) -> Fact | str:
    """What the Python consumer makes of it, or why it is none."""
    try:
        return read(body)
    except Unreadable as error:
        return error.reason


def test_both_consumers_agree_on_every_record(tmp_path: Path) -> None:
    """JavaScript finds the same kind, id, VM and event as Python, and refuses the same."""
    good = recorded()
    sent = json.loads(good[0])
    odd: list[dict[str, Any]] = [{"id": 7}, {"data": []}, {"type": "azure_scheduled_event.x.v1"}, {"specversion": 1}]
    bad = [json.dumps({**sent, **members}).encode() for members in odd]
    found = javascript([*good, *bad], tmp_path)
    assert [one["skipped"] for one in found[len(good) :]] == [
        "wrong-type",
        "wrong-type",
        "unknown-kind",
        "not-cloudevents",
    ]
    agree(good, found[: len(good)])


def test_event_type_is_the_last_readable_one_and_none_for_a_record_about_the_vm(tmp_path: Path) -> None:
    """As in the agent's other outputs."""
    sent = json.loads(recorded()[1])
    event = {**(sent["data"]["event"] or {}), "EventType": "Freeze"}
    given: list[dict[str, Any]] = [
        {"event_id": "e-1", "last_readable": {"EventType": "Reboot"}},
        {"event_id": "e-1", "last_readable": {"EventType": None}},
        {"event_id": "e-1", "last_readable": "x"},
        {"event_id": None},
    ]
    bodies = [json.dumps({**sent, "data": {**sent["data"], "event": event, **more}}).encode() for more in given]
    bodies = [body.replace(sent["id"].encode(), b"id-%d" % number) for number, body in enumerate(bodies)]
    found = javascript(bodies, tmp_path)
    assert [json.loads(one["line"])["event_type"] for one in found] == ["Reboot", None, "Freeze", None]


def agree(bodies: Sequence[bytes], found: Sequence[Mapping[str, Any]]) -> None:
    """Each line that JavaScript wrote has what Python took out of the same message."""
    for body, one in zip(bodies, found, strict=True):
        fact = read_by_python(body)
        if one["line"] is None or isinstance(fact, str):
            continue
        line = json.loads(one["line"])
        assert line.keys() == LINE
        named = (fact.kind, fact.source, fact.id, fact.event_id, fact.vm)
        assert tuple(whole(line[key]) for key in ("kind", "source", "id", "event_id", "vm")) == named


def whole(text: str | None) -> str | None:
    """As the Python consumer keeps a text: without half characters."""
    return text if text is None else text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("events", [False, True])
def test_every_message_is_checked(tmp_path: Path, events: bool) -> None:
    """Of hostile messages and 3,000 mutants of records: a line of the known members and their types, or none."""
    bodies = [*hostile().values(), *mutants(3_000)]
    found = javascript(bodies, tmp_path, events=events)
    assert sum(one["line"] is not None for one in found) > (100 if events else 1_000)
    assert "unexpected" not in {one["skipped"] for one in found}
    if not events:
        agree(bodies, found)
    for body, one in zip(bodies, found, strict=True):
        if one["line"] is not None and events:
            line, fact = json.loads(one["line"]), read_by_python(body)
            assert line.keys() == {"event_id", "event_type", "reported_by", "outcome", *SUMMARY}, body[:300]
            if not isinstance(fact, str):
                assert (line["event_id"], whole(line["reported_by"]), line["outcome"]) == (
                    fact.event_id,
                    fact.vm,
                    fact.kind,
                )
            for value in line.values():
                assert isinstance(value, str | int | float | None) or all(isinstance(word, str) for word in value)


REFUSED_BY_JAVASCRIPT: Final[dict[str, str | None]] = {
    "deep summary": None,
    "deep list in the summary": "wrong-type",
    "deep known member": "wrong-type",
    "deep event": None,
    "deep VM": None,
    "deep text": "wrong-type",
    "deep attribute": None,
    "number of many digits": None,
}
"""What Python can't read as JSON, or only some versions of it, and JavaScript can."""


def test_both_consumers_reject_the_same_messages(tmp_path: Path) -> None:
    """With the same reason, but for what only one of them can read."""
    found = javascript(list(hostile().values()), tmp_path)
    printed = {name: one["skipped"] for name, one in zip(hostile(), found, strict=True)}
    ours = {name: read_by_python(body) for name, body in hostile().items() if name not in REFUSED_BY_JAVASCRIPT}
    expected = {name: one if isinstance(one, str) else None for name, one in ours.items()}
    assert printed == expected | REFUSED_BY_JAVASCRIPT


def test_an_event_line_has_the_members_of_the_summary() -> None:
    """Those of the schema that are one value each or words, and `outcome` from the kind."""
    schema = json.loads((ROOT / "exporter" / "schema" / "record.v1.json").read_text("utf-8"))
    assert {*schema["$defs"]["summary"]["properties"]} - {"outcome", "approval_failures"} == SUMMARY
