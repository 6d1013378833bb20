"""The command `tail`: records read from a real broker with Azure's SDK, and from the outbox of a running agent."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from exporter.choices import MessageFormat
from exporter.commands.tail.command import View, add_arguments, tail
from exporter.commands.tail.records import OutboxReader, record_of
from exporter.config.command_line import FlagParser
from exporter.config.load import ConfigError
from exporter.core.records import Record
from exporter.core.state import State
from exporter.outbox.store import Outbox
from exporter.simulator.event_hubs.broker import Broker
from exporter.sinks.event_hubs.messages import message
from tests.support.eventhubs_broker import collected, running_broker
from tests.support.eventhubs_target import body_of, hub_destination
from tests.support.lines import rejoined
from tests.support.systems import OWN_CONSOLE, interrupt, terminate

# The SDK doesn't close all of its connections.
pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning")]
_collect = pytest.fixture(autouse=True)(collected)
broker = pytest.fixture(running_broker)

AT = datetime(2026, 3, 2, 9, 0, 20, tzinfo=UTC)
SECRET = "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING"


def a_record(number: int, *, vm: str = "vm-1", kind: str = "scheduled", event_id: str = "", **more: Any) -> Record:
    """Return a record whose time grows with its number."""
    subject = event_id or f"6a8c1f0e-3b52-4c47-9d10-{number:012}"
    event = {
        "EventId": subject,
        "EventType": "Reboot",
        "EventStatus": "Scheduled",
        "ResourceType": "VirtualMachine",
        "Resources": [vm, "vm-9"],
        "NotBefore": "Mon, 02 Mar 2026 09:15:20 GMT",
    }
    about = {"event": event, "event_id": subject.lower()}
    data = {**about, "vm": {"name": vm}, "severity": "WARN", "message": f"Reboot number {number}", **more}
    return Record(
        id=f"00000000-0000-5000-8000-{number:012}",
        kind=kind,
        source=f"urn:azure-vm:{vm}",
        subject=subject,
        time=AT + timedelta(seconds=number),
        severity="WARN",
        data=data,
    )


def run(*words: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Return the exit code and the output of both streams."""
    parser = FlagParser()
    add_arguments(parser)
    out, err = io.StringIO(), io.StringIO()
    before = dict(os.environ)
    os.environ.update(environ or {})
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = tail(parser.parse_args(words))
    finally:
        os.environ.clear()
        os.environ.update(before)
    return code, out.getvalue(), err.getvalue()


def from_hub(broker: Broker, *words: str) -> tuple[int, list[str], str]:
    code, out, err = run(*words, environ={SECRET: broker.connection_string()})
    return code, out.splitlines(), err


def send(broker: Broker, *batches: Sequence[Record], message_format: MessageFormat = "cloudevents") -> None:
    """Send records as the agent's destination does, one batch after the other."""
    destination = hub_destination(broker.connection_string(), message_format=message_format, deadline=5.0)
    for records in batches:
        destination.send(records)
    destination.close()


def test_hub_is_read_from_its_start_in_order_and_without_duplicates(broker: Broker) -> None:
    """Records of all partitions are sorted by time, and a record that was sent twice is shown once."""
    records = [a_record(number) for number in range(12)]
    send(broker, records[::-1], records[3:5])
    code, lines, err = from_hub(broker, "--from", "start", "--until-idle", "500ms")
    assert code == 0
    assert [line.split("Reboot number ")[1] for line in lines] == [str(number) for number in range(12)]
    assert "12 records, 2 duplicates hidden" in err
    assert "4 partitions" in err


def test_json_lines_are_the_records_and_foreign_messages_are_counted(broker: Broker) -> None:
    """`--format json` prints records byte for byte; the sample's format is read; other messages are counted."""
    send(broker, [a_record(1)])
    send(broker, [a_record(2, kind="started")], message_format="azure-sample")
    foreign = [b"", b"\xff\xfe", b"[1]", b'{"specversion":"1.0"}', b'{"hello":"world"}', b"[" * 100_000]
    send_foreign(broker, foreign)
    code, lines, err = from_hub(broker, "--from", "start", "--until-idle", "500ms", "--format", "json")
    assert code == 0
    assert lines[0].encode() == a_record(1).to_json()
    sample = json.loads(lines[1])
    assert (sample["id"], sample["type"]) == (a_record(2).id, "azure_scheduled_event.started.v1")
    assert f"2 records, {len(foreign)} messages skipped: not in a format of this program" in err


def send_foreign(broker: Broker, bodies: Sequence[bytes]) -> None:
    """Send messages that aren't records, with Azure's SDK."""
    from azure.eventhub import EventData, EventHubProducerClient

    with EventHubProducerClient.from_connection_string(broker.connection_string()) as producer:
        producer.send_batch([EventData(body) for body in bodies])


def test_reading_from_now_misses_nothing_and_ctrl_c_exits_with_0(broker: Broker) -> None:
    """Older messages aren't shown, and no message after the start note is missed."""
    send(broker, [a_record(1)])
    with tailing("--event-hubs.consumer-group", "$Default", broker=broker) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert "from now" in process.stderr.readline()
        send(broker, [a_record(2), a_record(3)])
        assert [process.stdout.readline()[-2] for _ in range(2)] == ["2", "3"]
        interrupt(process)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "2 records\n")


def test_from_a_time_shows_messages_enqueued_since() -> None:
    """A time starts with the first message that the hub stored at that time or later."""
    times = iter(AT + timedelta(minutes=number) for number in range(100))
    with Broker(hubs={"scheduled-events": 1}, clock=lambda: next(times)) as broker:
        send(broker, *([a_record(number)] for number in range(4)))
        enqueued = [stored.enqueued_time for stored in broker.messages()]
        _, lines, _ = from_hub(broker, "--from", enqueued[2].isoformat(), "--max", "2")
    assert [line[-1] for line in lines] == ["2", "3"]


@contextlib.contextmanager
def tailing(*words: str, broker: Broker | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a separate process."""
    environ = {**os.environ, **({SECRET: broker.connection_string()} if broker else {})}
    command = [sys.executable, "-m", "exporter", "tail", *words]
    with subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        creationflags=OWN_CONSOLE,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_no_record_is_missed_or_repeated_after_a_lost_connection(broker: Broker) -> None:
    """When every connection breaks, `tail` continues where it was."""
    send(broker, [a_record(1), a_record(2)])
    with tailing("--from", "start", "--max", "4", broker=broker) as process:
        assert process.stdout is not None
        first = [process.stdout.readline()[-2] for _ in range(2)]
        broker.drop_connections()
        send(broker, [a_record(3), a_record(4)])
        out, err = process.communicate(timeout=30)
    assert first + [line[-1] for line in rejoined(out).splitlines()] == ["1", "2", "3", "4"]
    assert "4 records" in err


def test_unreachable_or_unknown_hub_exits_with_an_error_and_1(broker: Broker) -> None:
    """The reason is printed, and no part of the secret."""
    text = broker.connection_string().replace("EntityPath=scheduled-events", "EntityPath=nothing")
    code, out, err = run("--until-idle", "1s", environ={SECRET: text})
    assert (code, out) == (1, "")
    assert "the event hub does not exist" in err
    text = broker.connection_string().replace(f":{broker.port}", ":1")
    code, out, err = run("--until-idle", "1s", environ={SECRET: text})
    assert (code, out) == (1, "")
    assert "is unreachable" in err
    assert "SharedAccessKey" not in err


def test_bad_usage_exits_with_2() -> None:
    """Invalid combinations of flags, and invalid values, are rejected before anything is read."""
    with pytest.raises(ConfigError, match="event_hubs: not configured"):
        run()
    with pytest.raises(ConfigError, match=r"^--follow: only valid with --outbox; add --outbox$"):
        run("--follow", environ={SECRET: Broker(port=5672).connection_string()})
    with pytest.raises(ConfigError, match=r"^--follow and --parked: only valid with --outbox; add --outbox$"):
        run("--follow", "--parked")
    for words in (("--max", "0"), ("--max", "x"), ("--until-idle", "nan"), ("--from", "soon"), ("--kind", "gone")):
        with pytest.raises(SystemExit) as caught:
            run(*words)
        assert caught.value.code == 2


# -- messages


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": 5},
        {"source": None},
        {"subject": ["x"]},
        {"time": "yesterday"},
        {"time": "2026-03-02T09:00:00"},
        {"time": "0001-01-01T00:00:00+14:00"},
        {"type": "com.example.v1"},
        {"type": "azure_scheduled_event.v1"},
        {"data": None},
        {"data": []},
        {"data": {"severity": "LOUD"}},
    ],
)
def test_message_with_a_malformed_field_is_not_a_record(change: dict[str, Any]) -> None:
    """Every field that is used is checked."""
    good = a_record(1).to_cloudevent()
    assert record_of(json.dumps(good).encode(), {}, None, None) is not None
    assert record_of(json.dumps({**good, **change}).encode(), {}, None, None) is None


def test_record_with_unencodable_text_is_made_printable() -> None:
    """A lone surrogate or NaN in a message never breaks the output."""
    body = a_record(1).to_json().replace(b"Reboot number 1", b"\\ud800 text")
    record = record_of(body, {}, None, None)
    assert record is not None
    assert "? text" in json.loads(record.to_json())["data"]["message"]
    assert record_of(b'{"specversion":"1.0","x":NaN}', {}, None, None) is None


def test_fields_of_the_sample_get_azures_spelling() -> None:
    """Resources and NotBefore have Azure's format."""
    sent: Any = message(a_record(7), "azure-sample")
    record = record_of(body_of(sent), sent.properties, sent.message_id, AT)
    assert record is not None
    assert record.id == a_record(7).id
    assert record.time == AT
    assert record.data["event"]["Resources"] == ["vm-1", "vm-9"]
    assert record.data["event"]["NotBefore"] == "Mon, 02 Mar 2026 09:15:20 GMT"
    assert record.data["message"] == "Reboot number 7"


# -- the outbox


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    outbox = Outbox(tmp_path / "outbox.db", 1 << 20, ("event_hubs", "otlp"))
    yield outbox
    outbox.close()


def commit(outbox: Outbox, *numbers: int) -> None:
    outbox.commit(State(birth=AT), [a_record(number) for number in numbers])


def test_outbox_is_read_while_an_agent_uses_it(outbox: Outbox) -> None:
    """Delivered and waiting records are shown, with the destinations that they wait for."""
    commit(outbox, 1, 2)
    for name in ("event_hubs", "otlp"):
        outbox.delivered(name, [outbox.next(name, 1)[0].seq])
    outbox.delivered("otlp", [outbox.next("otlp", 1)[0].seq])
    code, out, err = run("--outbox", str(outbox.path))
    first, second = rejoined(out).splitlines()
    assert code == 0
    assert first.endswith("Reboot number 1")
    assert second.endswith("Reboot number 2  [waiting for event_hubs]")
    assert err == "2 records\n"


def test_parked_records_are_shown_with_the_reason_of_each_destination(outbox: Outbox) -> None:
    """`--parked` shows rejected records with destination and reason; with JSON, the whole record."""
    commit(outbox, 1, 2)
    outbox.park("otlp", outbox.next("otlp", 1)[0].seq, "rejected")
    _, out, _ = run("--outbox", str(outbox.path), "--parked")
    assert rejoined(out).rstrip().endswith("[waiting for event_hubs; parked by otlp: rejected]")
    _, out, _ = run("--outbox", str(outbox.path), "--parked", "--format", "json")
    (parked,) = map(json.loads, out.splitlines())
    assert parked == {**a_record(1).to_cloudevent(), "parked": "otlp: rejected"}


def test_json_line_is_one_record_whatever_its_delivery_state(outbox: Outbox) -> None:
    """Delivered, waiting, parked by one or both destinations: one object per line; a parked record adds one text."""
    commit(outbox, 1, 2, 3, 4)
    for name, wanted in (("otlp", "rejected: HTTP 400"), ("event_hubs", 'too-large: 2 "MB"')):
        first, second, third, _ = (queued.seq for number in range(1, 5) for queued in outbox.waiting(name, number))
        outbox.delivered(name, [first])
        outbox.park(name, second, wanted)
        if name == "otlp":
            outbox.park(name, third, wanted)
    _, out, _ = run("--outbox", str(outbox.path), "--format", "json")
    lines = out.splitlines()
    records = [record_of(line.encode(), {}, None, None) for line in lines]
    assert records == [a_record(number) for number in (1, 2, 3, 4)]
    assert [json.loads(line).get("parked") for line in lines] == [
        None,
        'event_hubs: too-large: 2 "MB"; otlp: rejected: HTTP 400',
        "otlp: rejected: HTTP 400",
        None,
    ]
    assert lines[0].encode() == a_record(1).to_json()


def test_same_id_of_another_vm_is_another_record() -> None:
    """A record is identified by its source and its id: ids of different agents can be equal."""
    view = View(io.StringIO(), argparse.Namespace(vm="", event_id="", kind=None, max=None, format="json"))
    view.show(a_record(1))
    view.show(a_record(1, vm="vm-2"))
    view.show(a_record(1))
    assert (view.shown, view.duplicates) == (2, 1)


@pytest.mark.linux("renames an open file; on Windows, the agent waits until it is closed")
def test_outbox_is_followed_even_if_its_file_is_replaced(outbox: Outbox) -> None:
    """Later commits are shown, and so are records after the file was renamed; nothing is repeated."""
    commit(outbox, 1)
    reader = OutboxReader(str(outbox.path))
    assert [entry.record.id for entry in reader.new()] == [a_record(1).id]
    assert list(reader.new()) == []
    commit(outbox, 1, 2)
    assert [entry.record.id for entry in reader.new()] == [a_record(2).id]
    outbox.start_new_file("other-vm")
    commit(outbox, 3)
    assert [entry.record.id for entry in reader.new()] == [a_record(3).id]


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_directory_in_place_of_an_outbox_is_reported_with_advice(outbox: Outbox, follow: tuple[str, ...]) -> None:
    """The error names the outbox in it, if it has the usual name. A missing file is named once."""
    folder = outbox.path.parent
    assert outbox.path.name == "outbox.db"
    code, out, err = run("--outbox", str(folder), *follow)
    assert (code, out, err) == (1, "", f"{folder}: a directory, not an outbox; use {outbox.path}\n")
    (folder / "other").mkdir()
    code, out, err = run("--outbox", str(folder / "other"), *follow)
    assert (code, out) == (1, "")
    assert err == f"{folder / 'other'}: a directory, not an outbox; use the path of the file in it\n"
    code, _, err = run("--outbox", str(folder / "none"))
    assert (code, err) == (1, f"{folder / 'none'}: No such file or directory\n")


def test_filters_by_vm_event_and_kind(outbox: Outbox) -> None:
    """Only matching records are shown: VM names match in any case, ids by prefix."""
    records = [a_record(1), a_record(2, vm="VM-2"), a_record(3, kind="completed"), a_record(4, event_id="ABC-1")]
    outbox.commit(State(birth=AT), records)
    for words, numbers in (
        (("--vm", "vm-2"), "2"),
        (("--event-id", "abc"), "4"),
        (("--kind", "completed", "--kind", "started"), "3"),
        (("--vm", "vm-1", "--event-id", "6A8C1F0E"), "13"),
        (("--vm", "vm"), ""),
        (("--max", "2"), "12"),
    ):
        _, out, _ = run("--outbox", str(outbox.path), *words)
        assert [line.split(" [")[0].rstrip()[-1] for line in rejoined(out).splitlines()] == list(numbers)


def test_sigterm_ends_tail_with_0_and_a_summary(outbox: Outbox) -> None:
    """SIGTERM ends it as Ctrl-C does, without a traceback."""
    commit(outbox, 1)
    with tailing("--outbox", str(outbox.path), "--follow") as process:
        assert process.stdout is not None
        assert "Reboot number 1" in process.stdout.readline()
        terminate(process)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "1 record\n")


def test_from_a_duration_starts_that_long_ago(outbox: Outbox) -> None:
    """`1h` means one hour ago; older records aren't shown."""
    commit(outbox, 1)
    young = replace(a_record(2), time=datetime.now(UTC) - timedelta(minutes=30))
    outbox.commit(State(birth=AT), [young])
    for begin, numbers in (("1h", "2"), ("10m", ""), ("50y", "12"), ("start", "12")):
        _, out, _ = run("--outbox", str(outbox.path), "--from", begin)
        assert re.findall(r"Reboot number (\d)", out) == list(numbers), begin


@pytest.mark.parametrize("begin", ["start", "now"])
def test_follow_waits_for_a_missing_file(tmp_path: Path, begin: str) -> None:
    """It prints one note, continues, and shows new records; also if the directory is missing, or the file empty."""
    path = tmp_path / "later" / "outbox.db"
    with tailing("--outbox", str(path), "--follow", "--max", "1", "--from", begin) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"{path} does not exist yet; waiting for it\n"
        path.parent.mkdir()
        path.touch()
        outbox = Outbox(path, 1 << 20, ("otlp",))
        commit(outbox, 1)
        out, err = process.communicate(timeout=60)
        outbox.close()
    assert (process.returncode, err) == (0, "1 record\n")
    assert "Reboot number 1" in out


def test_empty_file_is_an_error_unless_followed(tmp_path: Path) -> None:
    """Without --follow, an empty file isn't an outbox, and a missing file is an error."""
    path = tmp_path / "outbox.db"
    path.touch()
    reader = OutboxReader(str(path), wait_for_file=True)
    assert (list(reader.new()), reader.file_missing) == ([], True)
    outbox = Outbox(path, 1 << 20, ("otlp",))
    commit(outbox, 1)
    assert (len(list(reader.new())), reader.file_missing) == (1, False)
    outbox.close()
    (tmp_path / "empty.db").touch()
    for name in ("empty.db", "missing.db"):
        code, _, err = run("--outbox", str(tmp_path / name))
        assert (code, err.startswith(str(tmp_path / name))) == (1, True)
    code, _, err = run("--outbox", str(tmp_path / "missing.db"), "--follow", "--until-idle", "100ms")
    assert (code, "waiting for it" in err) == (0, True)


def test_follow_from_now_skips_existing_records(outbox: Outbox) -> None:
    """`--from now --follow` shows only records that are committed while it follows."""
    commit(outbox, 1)
    done = threading.Event()

    def commit_on() -> None:
        number = 1
        while not done.wait(0.1):
            number += 1
            commit(outbox, number)

    committing = threading.Thread(target=commit_on)
    committing.start()
    try:
        _, out, _ = run("--outbox", str(outbox.path), "--follow", "--from", "now", "--max", "1")
    finally:
        done.set()
        committing.join()
    (line,) = rejoined(out).splitlines()
    assert "Reboot number " in line
    assert "Reboot number 1 " not in line


def test_follow_ends_when_idle(outbox: Outbox) -> None:
    """`--until-idle` ends it when no record arrives for this long; a start time skips older records."""
    commit(outbox, 1, 2)
    _, out, _ = run("--outbox", str(outbox.path), "--follow", "--until-idle", "100ms", "--from", "2026-03-02T09:00:22Z")
    assert [line.split(" [")[0].rstrip()[-1] for line in rejoined(out).splitlines()] == ["2"]


def _not_there(path: Path) -> None:
    path.unlink(missing_ok=True)


def _no_database(path: Path) -> None:
    path.write_bytes(b"x" * 5000)


def _foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE records (x)")


def _damaged(path: Path) -> None:
    """SQLite's error message contains a byte that isn't UTF-8."""
    Outbox(path, 1 << 20, ()).close()
    path.write_bytes(path.read_bytes().replace(b"queue_seq", b"queue_se\xff", 1))


def _empty(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize("make", [_not_there, _no_database, _foreign, _damaged, _empty])
def test_files_that_are_not_an_outbox_exit_with_an_error_and_1(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """The error has the file, nothing is created or changed, and the exit code is 1."""
    path = tmp_path / "outbox.db"
    make(path)
    before = sorted(tmp_path.iterdir())
    code, out, err = run("--outbox", str(path))
    assert (code, out) == (1, "")
    assert str(path) in err
    assert "Traceback" not in err
    assert sorted(file for file in tmp_path.iterdir() if not file.name.endswith(("-shm", "-wal"))) == before


def test_reading_an_unused_outbox_changes_nothing(tmp_path: Path) -> None:
    """A file without an agent is the same, byte for byte, after it was read."""
    outbox = Outbox(tmp_path / "outbox.db", 1 << 20, ())
    commit(outbox, 1)
    outbox.close()
    before = outbox.path.read_bytes()
    code, out, _ = run("--outbox", str(outbox.path))
    assert code == 0
    assert out.rstrip().endswith("Reboot number 1")
    assert outbox.path.read_bytes() == before


def test_parser_accepts_the_flags_of_the_settings() -> None:
    """The flags of the two sections are listed after the command's own."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--outbox", "--event-hubs.event-hub", "hub", "--vm", "vm-1"])
    assert (args.outbox, args.vm) == ("", "vm-1")
