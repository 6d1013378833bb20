"""No command lets external text act on the terminal: control, format, and invisible characters are escaped."""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

import exporter
from exporter.commands.check.report import fail
from exporter.config.load import policy_values
from exporter.core.policy import Policy
from exporter.core.records import Record
from exporter.core.state import State
from exporter.log.log import Log
from exporter.outbox.store import Outbox
from exporter.secrets import Sieve
from exporter.text.terminal import (
    discard_unwritable,
    is_reader_gone,
    prepare,
    print_error,
    print_line,
    printable,
)
from exporter.text.timeline import record_lines
from tests.support import factories
from tests.support.log_reading import logged

HOSTILE: Final = "".join(
    chr(code)
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        0x61C,
        *range(0x200B, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2070),
        0xFEFF,
        0xE0001,
    )
)
ATTACK: Final = f"vm\x1b]0;owned\x07\x9b2J\x7f{HOSTILE}"
EVENT: Final[Mapping[str, Any]] = {
    "EventId": f"id{ATTACK[:40]}",
    "EventType": f"Freeze{ATTACK}",
    "ResourceType": "VirtualMachine",
    "Resources": [f"vm-1{ATTACK}"],
    "EventStatus": "Scheduled",
    "NotBefore": "",
    "Description": ATTACK,
    "EventSource": ATTACK,
    "DurationInSeconds": 5,
}


def safe(shown: str) -> bool:
    """Return whether the text has no character that a terminal acts on, except line ends."""
    acting = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return not [ch for ch in shown.replace("\r\n", "\n") if ch != "\n" and unicodedata.category(ch) in acting]


def command(*words: str, standard_input: bytes = b"") -> str:
    """Return what a command prints on both streams."""
    done = subprocess.run(
        [sys.executable, "-m", "exporter", *words],
        input=standard_input,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )
    return done.stdout.decode("utf-8")


def recording() -> bytes:
    """Return a recording with hostile text in every line."""
    body = json.dumps({"DocumentIncarnation": 1, "Events": [EVENT, {"EventId": ATTACK, ATTACK: ATTACK}]})
    own = {**EVENT, "Resources": ["other"], "EventType": "Freeze", "EventId": "second"}
    later = json.dumps({"DocumentIncarnation": 2, "Events": [own]})
    lines = [
        {"began": {"boot": ATTACK, "policy": policy_values(Policy())}, "at": "2026-03-02T09:00:00Z"},
        {"vm": {"name": ATTACK, "vm_id": ATTACK, "location": ATTACK}, "at": "2026-03-02T09:00:00Z"},
        {"read_at": "2026-03-02T09:00:01Z", "body": body},
        {"failure": ATTACK, "at": "2026-03-02T09:00:02Z"},
        {"post": ATTACK, "status": 500, "reason": ATTACK, "at": "2026-03-02T09:00:03Z"},
        {"interruption": {"seconds": 1.0, "kind": ATTACK}, "at": "2026-03-02T09:00:04Z"},
        {"read_at": "2026-03-02T09:00:05Z", "body": later},
        {"read_at": "2026-03-02T09:00:06Z", "body": ATTACK},
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_replay_escapes_a_recording_and_a_document(tmp_path: Path) -> None:
    """Timeline, table, hints, and JSON lines; the JSON keeps the document's text."""
    file = tmp_path / f"recording{chr(0x202E)}{chr(0x9B)}.jsonl"
    file.write_bytes(recording())
    for words in (("--format=json",), (), ("--vm", "vm-1")):
        shown = command("replay", str(file), *words)
        assert "Freeze" in shown
        assert safe(shown), words
    shown = command("replay", str(file), "--format=json")
    records = [json.loads(line) for line in shown.splitlines()]
    events = [record["data"]["event"] for record in records if record.get("data")]
    description = ATTACK.replace("\x00", "\ufffd")
    assert description in [event.get("Description") for event in events if event]


def a_record(subject: str) -> Record:
    summary = {"a": ATTACK}
    return factories.a_record(
        kind="completed", subject=subject, vm=ATTACK, event=dict(EVENT), message=ATTACK, summary=summary
    )


@pytest.mark.parametrize("words", [(), ("--format", "json"), ("--parked", "--format", "json"), ("--parked",)])
def test_tail_escapes_records_of_the_outbox(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As a timeline and as JSON lines, including the reason why a record was parked."""
    path = tmp_path / "outbox.db"
    outbox = Outbox(path, max_bytes=1 << 20, destinations=("otlp",))
    outbox.commit(State(birth=datetime(2026, 3, 2, tzinfo=UTC)), [a_record(f"s{ATTACK}")])
    (queued,) = outbox.next("otlp", 1)
    outbox.park("otlp", queued.seq, f"rejected: {ATTACK}")
    outbox.close()
    shown = command("tail", "--outbox", str(path), *words)
    assert "completed" in shown
    assert safe(shown)
    if words == ("--format", "json"):
        record = json.loads(shown.splitlines()[0])
        assert record["data"]["message"] == ATTACK.replace("\x00", "\ufffd")


def test_simulate_escapes_a_scenario(tmp_path: Path) -> None:
    """The names, descriptions, and ids of a scenario file."""
    known = json.loads(Path("exporter/simulator/metadata/scenarios/live-migration.json").read_text(encoding="utf-8"))
    known["description"] = ATTACK
    file = tmp_path / f"scenario{chr(0x202E)}.json"
    file.write_text(json.dumps(known), encoding="utf-8")
    shown = command("simulate", "--scenario", str(file), "--listen", "127.0.0.1:0", "--speed", "100000", "--end")
    assert safe(shown)
    assert shown


@pytest.mark.parametrize(
    "words",
    [
        ("run", f"--source.url={ATTACK[:1]}{chr(0x9B)}{chr(0x202E)}"),
        ("run", f"--wrong{chr(0x9B)}{chr(0x202E)}\x1b[2J"),
        (f"no{chr(0x9B)}\x1b[2J",),
        ("replay", f"missing{chr(0x9B)}{chr(0x2066)}\x1b[2J\nsecond"),
        ("tail", "--outbox", f"missing{chr(0x9B)}{chr(0x2066)}\x1b[2J\nsecond"),
        ("simulate", "--scenario", f"missing{chr(0x9B)}{chr(0x2066)}\x1b[2J\nsecond"),
        ("demo", "--scenario", f"missing{chr(0x9B)}{chr(0x2066)}\x1b[2J\nsecond"),
        ("check", "--config.file", f"missing{chr(0x9B)}{chr(0x2066)}\x1b[2J\nsecond"),
        ("check", "--web.config.file", f"missing{chr(0x9B)}{chr(0x2066)}\x1b[2J\nsecond"),
        ("check", f"--event-hubs.connection-string-file=missing{chr(0x9B)}{chr(0x2066)}"),
    ],
)
def test_errors_escape_quoted_values(words: tuple[str, ...]) -> None:
    """File names, flags, and values in the errors of every command."""
    shown = command(*words)
    assert shown
    assert safe(shown)


def test_check_escapes_its_summary_and_its_findings(tmp_path: Path) -> None:
    """Paths, and the responses of peers."""
    from exporter.commands.check.command import print_findings  # prints every finding

    out = io.StringIO()
    with redirect_stdout(out):
        print_findings((fail("metadata", ATTACK),), Sieve(()))
    assert safe(out.getvalue())
    folder = tmp_path / "a\u202e\x9b"
    folder.mkdir()
    settings = folder / "settings.toml"
    settings.write_text("")
    shown = command("check", f"--config.file={settings}")
    assert "valid" in shown
    assert safe(shown)


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_log_escapes_values_names_and_nested_values(style: Any) -> None:
    out = io.StringIO()
    log = Log(out, format=style)
    log.warn(f"event{ATTACK}", value=ATTACK, nested={"a": [ATTACK]}, **{f"key{ATTACK}": 1})
    assert safe(logged(log, out))
    assert out.getvalue().count("\n") == 1


def test_printed_text_stays_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`print_line` prints one line for any text; `print_error` redacts."""
    print_line(f"a{ATTACK}b")
    print_error(f"{ATTACK} SharedAccessKey=hunter2")
    printed = capsys.readouterr()
    assert safe(printed.out)
    assert printed.out.count("\n") == 1
    assert safe(printed.err)
    assert "hunter2" not in printed.err


@pytest.mark.parametrize("text", ["Grüße, 東京 – ok", "a\u00a0b", "👩\u200d🚀", HOSTILE])
def test_escapes_are_those_of_json(text: str) -> None:
    """Escaping keeps the meaning of a line of JSON, and ordinary letters of any script unchanged."""
    line = json.dumps(text, ensure_ascii=False)
    assert json.loads(printable(line)) == text
    assert printable("Grüße, 東京 – ok") == "Grüße, 東京 – ok"


def test_only_one_module_prints() -> None:
    """Every output of a command goes through `exporter.text.terminal` or the log."""
    folder = Path(exporter.__file__).parent
    for path in folder.rglob("*.py"):
        calls = [
            node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
        ]
        printing = [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]
        assert path.name == "terminal.py" or not printing, path


INVISIBLE: Final = (
    0x34F,
    0x115F,
    0x1160,
    0x17B4,
    0x17B5,
    *range(0x180B, 0x1810),
    0x2800,
    0x3164,
    *range(0xFE00, 0xFE10),
)


@pytest.mark.parametrize("code", [*INVISIBLE, 0xFFA0, 0xE0100, 0xE01EF])
def test_invisible_letters_are_escaped(code: int) -> None:
    """Fillers and variation selectors count as letters, but hide text or imitate other names; also in the log."""
    line = json.dumps(f"vm{chr(code)}1", ensure_ascii=False)
    assert chr(code) not in printable(line)
    assert json.loads(printable(line)) == f"vm{chr(code)}1"
    out = io.StringIO()
    log = Log(out)
    log.warn("event", value=f"a {chr(code)}")
    assert chr(code) not in logged(log, out)
    shown = "".join(record_lines(a_record(f"s{chr(code)}")))
    assert chr(code) not in shown


TEXT = "≥ 0.2 s, ä→日本😀"


def printed(stream: io.TextIOWrapper, environ: Mapping[str, str]) -> bytes:
    """Return the bytes that arrive in a prepared stream."""
    prepare(stream, environ)
    print_line(TEXT, stream)
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue()


class _Console(io.TextIOWrapper):
    """A terminal with a given encoding."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "latin-1", "ascii", "utf-8"])
def test_file_or_pipe_gets_utf_8_in_every_locale(encoding: str) -> None:
    """Redirected output is the same on every machine."""
    assert printed(io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline=""), {}).decode("utf-8") == f"{TEXT}\n"


def test_terminal_keeps_its_encoding_with_escapes() -> None:
    """Characters that the terminal's code page lacks are escaped instead of raising an encoding error."""
    shown = printed(_Console(io.BytesIO(), encoding="cp1252", newline=""), {}).decode("cp1252")
    assert shown == "\\u2265 0.2 s, ä\\u2192\\u65e5\\u672c\\U0001f600\n"
    assert printed(_Console(io.BytesIO(), encoding="utf-8", newline=""), {}).decode("utf-8") == f"{TEXT}\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("latin-1", "\\u2265 0.2 s, ä\\u2192\\u65e5\\u672c\\U0001f600\n"),
        ("latin-1:replace", "? 0.2 s, ä????\n"),
        (":replace", "≥ 0.2 s, ä→日本😀\n"),
    ],
)
def test_pythonioencoding_sets_encoding_and_error_handler(given: str, expected: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", newline="")
    assert printed(stream, {"PYTHONIOENCODING": given}).decode("utf-8" if given[0] == ":" else "latin-1") == expected


@pytest.mark.parametrize("errors", ["strict", "surrogateescape", "surrogatepass", "unknown"])
def test_error_handlers_that_raise_are_replaced(errors: str) -> None:
    """Also one that doesn't exist."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="")
    assert printed(stream, {"PYTHONIOENCODING": f"ascii:{errors}"}).isascii()


def test_missing_or_foreign_streams_are_ignored() -> None:
    """A process without a console has no standard streams, and a host program may replace them."""
    prepare(None, {})
    prepare(io.StringIO(), {})
    discard_unwritable(None)
    discard_unwritable(io.StringIO())
    closed = io.StringIO()
    closed.close()
    discard_unwritable(closed)


@pytest.mark.parametrize(
    ("error", "platform", "gone"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "linux", True),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "win32", True),
        (OSError(errno.EINVAL, "Invalid argument"), "win32", True),
        (OSError(errno.EINVAL, "Invalid argument"), "linux", False),
        (OSError(errno.EINVAL, "Invalid argument", "C:\\a?b"), "win32", False),
        (OSError(errno.ENOSPC, "No space left on device"), "win32", False),
        (OSError(errno.ENOSPC, "No space left on device"), "linux", False),
    ],
)
def test_closed_pipe_is_distinguished_from_other_errors(error: OSError, platform: str, gone: bool) -> None:
    """On Windows, writing to a pipe without a reader is EINVAL; on Linux, EINVAL is an ordinary error."""
    assert is_reader_gone(error, platform) is gone
