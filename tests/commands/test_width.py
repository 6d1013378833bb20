"""The human-readable output of all commands fits 100 columns, also in a pipe and with long names."""

from __future__ import annotations

import json
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

LONG_VM: Final = "vmss-of-a-team-that-likes-names-" + "0123456789" * 3 + "_9"
WIDE_VM: Final = "虚拟机规模集实例" * 8
LONG_ID: Final = "event-" + "0123456789" * 9 + "-end"
WIDE_ID: Final = "事件" * 50
NAMES: Final = (LONG_VM, WIDE_VM)
AT: Final = datetime(2026, 3, 2, 9, 0, 20, tzinfo=UTC)


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Return the output of a command on both streams, after checking that each line fits."""
    assert main(words) == code, capsys.readouterr().err
    out, err = capsys.readouterr()
    assert out
    assert too_wide(out) == []
    assert too_wide(err) == []
    return str(out)


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
def test_replay_of_long_names_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path, vm: str) -> None:
    """Timeline, table, and comparison; the table contains complete names and ids."""
    recording, policy = a_recording(tmp_path), a_policy(tmp_path)
    recorded = printed(capsys, "replay", recording, "--vm", vm)
    assert LONG_ID in recorded
    assert WIDE_ID in recorded.replace("\n", "")
    printed(capsys, "replay", recording, "--vm", vm, "--policy", policy)
    printed(capsys, "replay", recording, "--vm", vm, f"--config.file={policy}")
    printed(capsys, "replay", recording)


@pytest.mark.parametrize("name", scenario.names())
def test_every_scenario_fits(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Replayed with the defaults, and with all optional output."""
    printed(capsys, "replay", name)
    printed(capsys, "replay", name, "--approval.mode", "enforce", "--records.scope", "all")


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


def test_simulate_and_demo_of_long_names_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The output of each VM, the list of scenarios and faults, and the summary of the demo."""
    written = a_scenario(tmp_path)
    listen = ("--listen", "127.0.0.1:0")
    printed(capsys, "simulate", "--scenario", written, "--vm", LONG_VM, "--vm", WIDE_VM, "--speed=50", *listen, "--end")
    printed(capsys, "simulate", "--list")
    recorded = printed(capsys, "demo", "--scenario", written, "--vm", WIDE_VM, "--speed", "4", *listen)
    assert "Every record arrived in every output" in recorded


def test_tail_of_long_names_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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
    recorded = printed(capsys, "tail", "--outbox", str(tmp_path / "outbox.db"))
    assert "parked by otlp" in " ".join(recorded.split())
    assert main(["tail", "--outbox", str(tmp_path / "outbox.db"), "--format", "json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(records)  # JSON is not wrapped


def test_check_of_long_paths_and_rules_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
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
    recorded = printed(capsys, "check", *flags)
    assert "warning: " in recorded
    printed(capsys, "check", "--probe", "--source.url=http://127.0.0.1:1", *flags, code=1)
