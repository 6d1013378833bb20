"""The human-readable output of all commands fits the terminal, with long names too. Elsewhere, a record is one line."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.cli import main
from exporter.core.records import Record
from exporter.core.state import State
from exporter.outbox.store import Outbox
from exporter.simulator.metadata import scenario
from tests.support.factories import as_started, azure_event
from tests.support.lines import too_wide
from tests.support.systems import DRIVE
from tests.support.terminals import pseudo_terminal

LONG_VM: Final = "vmss-of-a-team-that-likes-names-" + "0123456789" * 3 + "_9"
WIDE_VM: Final = "虚拟机规模集实例" * 8
LONG_ID: Final = "event-" + "0123456789" * 9 + "-end"
WIDE_ID: Final = "事件" * 50
NAMES: Final = (LONG_VM, WIDE_VM)
AT: Final = datetime(2026, 3, 2, 9, 0, 20, tzinfo=UTC)


def printed(*words: str, code: int = 0, columns: int = 100, prose: bool = True) -> str:
    """Return the output of a command on both streams at a terminal of this width, after checking that each line fits.

    Prose has at most 100 columns.
    """
    with (
        pseudo_terminal(columns) as (stream, shown),
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        ended = main(words)
    assert ended == code, shown
    (out,) = shown
    assert out
    assert too_wide(out, min(columns, 100) if prose else columns) == []
    return out


def piped(*words: str) -> list[str]:
    """Return the lines of a command's output, read from a pipe."""
    command = [sys.executable, "-m", "exporter", *words]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    return done.stdout.splitlines()


def an_event(event_id: str, **fields: object) -> dict[str, object]:
    resources = [*NAMES, *(f"{LONG_VM[:-4]}{number:04}" for number in range(30))]
    usual = {"Description": "Host server is undergoing maintenance. " * 8, "DurationInSeconds": 5}
    return azure_event(event_id, "Freeze", resources, "Mon, 02 Mar 2026 09:15:20 GMT", **usual | fields)


def a_recording(folder: Path) -> str:
    """Return documents of two events with ids of 100 characters that are scheduled, change, start, and end."""
    one, two = an_event(LONG_ID), an_event(WIDE_ID, EventType="Reboot", DurationInSeconds=-1)
    documents: tuple[list[dict[str, object]], ...] = (
        [one, two],
        [{**one, "DurationInSeconds": 9, "Description": "y" * 300}, two],
        [as_started(one), as_started(two)],
        [],
    )
    lines = [
        {
            "time": (AT + timedelta(seconds=number)).isoformat(),
            "document": {"DocumentIncarnation": number + 1, "Events": events},
        }
        for number, events in enumerate(documents)
    ]
    path = folder / "recording.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def a_policy(folder: Path) -> str:
    rules = [
        {
            "name": "r" * 64,
            "event_type": ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"],
            "require_file": f"{DRIVE}/run/{'p' * 80}/{{event_id}}",
        }
    ]
    shown = ", ".join(
        "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in rule.items()) + " }" for rule in rules
    )
    path = folder / "policy.toml"
    path.write_text(f"[approval]\nrules = [{shown}]\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("vm", NAMES, ids=["long", "wide"])
def test_replay_of_long_names_fits(tmp_path: Path, vm: str) -> None:
    """Timeline, table, and comparison; the table contains complete names and ids."""
    recording, policy = a_recording(tmp_path), a_policy(tmp_path)
    recorded = printed("replay", recording, "--vm", vm)
    assert LONG_ID in recorded
    assert WIDE_ID in recorded.replace("\n", "")
    printed("replay", recording, "--vm", vm, "--policy", policy)
    printed("replay", recording, "--vm", vm, f"--config.file={policy}")
    printed("replay", recording)


@pytest.mark.parametrize("name", scenario.names())
def test_every_scenario_fits(name: str) -> None:
    """Replayed with the defaults, and with all optional output."""
    printed("replay", name)
    printed("replay", name, "--approval.mode", "enforce", "--records.scope", "all")


HOSTILE: Final = "Host\n2026-03-02 09:00:20Z     vm-1  completed\r\x1b[31m\u2028 end"


def a_hostile_recording(folder: Path) -> str:
    """Return documents of an event with line breaks in its texts that is scheduled, changes, starts, and ends."""
    event = {**an_event("line\nbreak", Description=HOSTILE), "Resources": ["vm-1", HOSTILE]}
    changed = {**event, "DurationInSeconds": 9, HOSTILE: HOSTILE}
    lines = [
        {"time": f"2026-03-02T09:00:{second}Z", "document": {"DocumentIncarnation": second, "Events": events}}
        for second, events in ((20, [event]), (21, [changed]), (22, [as_started(changed)]), (23, []))
    ]
    path = folder / "hostile.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("hostile", [False, True])
def test_replay_in_a_pipe_prints_one_line_for_each_record(tmp_path: Path, hostile: bool) -> None:
    """A line of a record, a decision, or a check contains the whole event id, so that `grep` finds all of them."""
    recording = a_hostile_recording(tmp_path) if hostile else a_recording(tmp_path)
    words = ("replay", recording, "--vm", "vm-1" if hostile else LONG_VM)
    ids = ("line break",) if hostile else (LONG_ID, WIDE_ID)
    lines = piped(*words)
    kinds = [json.loads(line)["data"]["kind"] for line in piped(*words, "--format=json")[:-1]]
    assert {"scheduled", "updated", "started", "completed", "approval.decided"} == set(kinds)
    end = lines.index("", 4)
    records = lines[lines.index("") + 1 : end]
    assert [line[25:].split()[1] for line in records] == kinds
    assert all(any(event_id in line for event_id in ids) for line in records)
    assert sum("; interrupted: not monitored" in line for line in records) == len(ids)
    table = [line for line in lines[end + 2 :] if line]
    assert len(table) >= 10
    assert all(line.startswith(ids) for line in table)
    assert all(line.isprintable() for line in lines)


def test_comparison_in_a_pipe_has_the_event_id_on_each_line(tmp_path: Path) -> None:
    lines = piped("replay", a_recording(tmp_path), "--vm", LONG_VM, "--policy", a_policy(tmp_path))
    for label in ("then", "now", "sent"):
        (shown,) = (line for line in lines if line.startswith(f"{LONG_ID}  {label} "))
        assert len(shown) > len(LONG_ID) + 10
    assert not [line for line in lines if line.startswith(" " * 8)]


@pytest.mark.linux("needs a pseudo-terminal")
@pytest.mark.parametrize("columns", [40, 80, 160])
def test_records_are_as_wide_as_the_terminal(tmp_path: Path, columns: int) -> None:
    """Also if that is more than 100 columns, which prose doesn't use."""
    out = printed("replay", a_recording(tmp_path), "--vm", LONG_VM, columns=columns, prose=False)
    widest = max(len(line) for line in out.splitlines() if line.isascii())
    assert columns - 12 < widest <= columns
    (head,) = out.partition("\n\n")[:1]
    assert too_wide(head, min(columns, 100)) == []
    printed("check", f"--recording.path={tmp_path / ('folder-' * 12)}", columns=columns)
    printed("simulate", "--list", columns=columns)


def a_scenario(folder: Path) -> str:
    written: Mapping[str, Any] = {
        "description": "A scenario with names that are longer than any line of output. " * 3,
        "vms": list(NAMES),
        "steps": [
            {
                "at": 2, "do": "announce", "event": "one", "notice": 4, "lasts": 2, "start_after_approval": 1,
                "fields": {
                    "EventId": "6a8c1f0e-3b52-4c47-9d10-2f7e5b94c8d3", "EventType": "Reboot",
                    "Resources": list(NAMES), "Description": "The owner restarts it. " * 8, "EventSource": "User",
                    "DurationInSeconds": -1,
                },
            }
        ],
    }  # fmt: skip
    path = folder / f"{'a-story-' * 12}.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    return str(path)


def test_simulate_and_demo_of_long_names_fit(tmp_path: Path) -> None:
    """The output of each VM, the list of scenarios and faults, and the summary of the demo."""
    written = a_scenario(tmp_path)
    listen = ("--listen", "127.0.0.1:0")
    printed("simulate", "--scenario", written, "--vm", LONG_VM, "--vm", WIDE_VM, "--speed=50", *listen, "--end")
    printed("simulate", "--list")
    recorded = printed("demo", "--scenario", written, "--vm", WIDE_VM, "--speed", "4", *listen)
    assert "Every record arrived in every output" in recorded


def test_tail_of_long_names_fits(tmp_path: Path) -> None:
    """With the destinations that a record waits for, and with the reason of a parked record."""
    event = an_event(LONG_ID)
    about = {"event": event, "event_id": LONG_ID.lower()}
    data = {**about, "vm": {"name": WIDE_VM}, "severity": "WARN", "message": f"Freeze of {LONG_VM} is " * 5}
    outbox = Outbox(str(tmp_path / "outbox.db"), 1 << 26, ("event_hubs", "otlp"), lambda: AT)
    kinds = ("scheduled", "interruption.observed", "started")
    records = [Record(f"id-{n}", kind, "urn:x", LONG_ID, AT, "WARN", data) for n, kind in enumerate(kinds)]
    outbox.commit(State(birth=AT), records)
    outbox.park("otlp", outbox.next("otlp", 1)[0].seq, "rejected: " + "because " * 60)
    outbox.close()
    recorded = printed("tail", "--outbox", str(tmp_path / "outbox.db"))
    assert "parked by otlp" in " ".join(recorded.split())
    lines = piped("tail", "--outbox", str(tmp_path / "outbox.db"))
    assert [f" {kind} " in line and f" {LONG_ID} " in line for kind, line in zip(kinds, lines, strict=True)] == [
        True
    ] * 3
    assert "parked by otlp: rejected: because because " in lines[0]
    as_json = piped("tail", "--outbox", str(tmp_path / "outbox.db"), "--format", "json")
    assert len(as_json) == len(records)


def test_check_of_long_paths_and_rules_fits(tmp_path: Path) -> None:
    """The summary, the warnings, and the result of each probe."""
    policy = a_policy(tmp_path)
    deep = tmp_path / ("folder-" * 12)
    deep.mkdir()
    flags = (
        f"--config.file={policy}",
        f"--outbox.path={deep / 'outbox.db'}",
        f"--recording.path={deep / 'recording'}",
        f"--source.vm-name={LONG_VM}",
        "--gate.event-types=Freeze,Reboot,Redeploy,Preempt,Terminate,Rebooot,SomethingNew",
        "--source.api-version=2031-01-01",
        "--approval.takeover-after=10s",
        "--approval.mode=enforce",
        "--web.listen-address=127.0.0.1:0",
    )
    recorded = printed("check", *flags)
    assert "warning: " in recorded
    printed("check", "--probe", "--source.url=http://127.0.0.1:1", *flags, code=1)
