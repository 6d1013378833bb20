"""Standard output and error of each command, redirected: UTF-8 in any locale, and quiet after the reader has ended.

The processes run in an environment where UTF-8 is not the default: with a code page on Windows, in an ASCII locale
elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from exporter.core.records import Record
from exporter.core.state import State
from exporter.outbox.store import Outbox
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from tests.support import factories
from tests.support.lines import rejoined
from tests.support.running import Run

NAME: Final = "web-ä→日本"
DESCRIPTION: Final = "Wartung ä→日本😀"
EVENT_ID: Final = "6f1d2c84-9b3e-4a57-8c60-e2d7f5a4b913"
LEGACY: Final = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "LANG": "C"}
AT: Final = datetime(2026, 3, 2, 12, tzinfo=UTC)
SCENARIO_EVENT: Final = {
    "EventId": EVENT_ID,
    "EventType": "Reboot",
    "Resources": [NAME],
    "Description": DESCRIPTION,
    "EventSource": "User",
    "DurationInSeconds": -1,
}
SCENARIO: Final = {
    "description": f"For {NAME}.",
    "length": 4,
    "vms": [{"name": NAME}],
    "steps": [
        {
            "at": 1,
            "do": "announce",
            "event": "reboot",
            "notice": 1,
            "lasts": 1,
            "fields": SCENARIO_EVENT,
        }
    ],
}


def environ() -> dict[str, str]:
    """This process's environment, changed so that UTF-8 is not the default."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LC_", "PYTHONIO"))}
    return {**mine, **LEGACY}


def command(*words: str) -> tuple[str, str]:
    """Return standard output and error of a command that must succeed, both read as UTF-8."""
    done = subprocess.run(
        [sys.executable, "-m", "exporter", *words], env=environ(), capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO), encoding="utf-8")
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.toml"
    path.write_text(f"[source]\nvm_name = '{NAME}'\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def outbox(tmp_path: Path) -> str:
    """An outbox with the record of a name and a description."""
    path = tmp_path / "outbox.db"
    box = Outbox(path, 1 << 20, ("otlp",))
    try:
        box.commit(State(birth=AT), [a_record()])
    finally:
        box.close()
    return str(path)


def a_record() -> Record:
    """Return a record as the outbox stores it."""
    return factories.a_record(subject=EVENT_ID, vm=NAME, time=AT, event=SCENARIO_EVENT, message=DESCRIPTION)


def test_demo_prints_names_in_utf8(scenario: str) -> None:
    """The timeline names the VM and its event."""
    out, err = command("demo", "--scenario", scenario, "--speed", "4", "--listen", "127.0.0.1:0")
    assert NAME in out
    assert "Every record arrived in every output" in out
    assert err == ""


def test_simulate_prints_names_in_utf8(scenario: str) -> None:
    """Each line names the VM."""
    out, err = command("simulate", "--scenario", scenario, "--listen", "127.0.0.1:0", "--speed", "10", "--end")
    assert f"Reboot Scheduled for {NAME} by User" in rejoined(out)
    assert err == ""


def test_replay_prints_names_in_utf8(scenario: str) -> None:
    """As text and as JSON."""
    out, _ = command("replay", scenario)
    assert f"As {NAME}: " in out
    out, _ = command("replay", "--format=json", scenario)
    events = [json.loads(line).get("data", {}).get("event") or {} for line in out.splitlines()]
    assert DESCRIPTION in {event.get("Description") for event in events}


def test_check_prints_names_in_utf8(config: str) -> None:
    """The summary names the VM, and an error names the value."""
    out, _ = command("check", "--config.file", config)
    assert NAME in out
    Path(config).write_text(f"[log]\nlevel = '{NAME}'\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "exporter", "check", "--config.file", config],
        env=environ(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert f'found "{NAME}"' in done.stderr.decode("utf-8")


def test_tail_prints_names_in_utf8(outbox: str) -> None:
    """As text and as JSON."""
    out, err = command("tail", "--outbox", outbox)
    assert NAME in out
    assert DESCRIPTION in out
    assert err.splitlines() == ["1 record"]
    out, _ = command("tail", "--outbox", outbox, "--format", "json")
    assert json.loads(out)["data"]["message"] == DESCRIPTION


def test_run_logs_names_in_utf8(scenario: str, tmp_path: Path) -> None:
    """The log on standard error names the VM."""
    path = tmp_path / "log"
    with (
        MetadataService(load(scenario)) as service,
        open(path, "wb") as log,
        Run(service.url, tmp_path, environ=environ(), stderr=log) as run,
    ):
        run.wait_for(lambda: NAME in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["check", "demo", "replay", "simulate", "tail"])
def test_a_closed_reader_ends_a_command_quietly(name: str, scenario: str, config: str, outbox: str) -> None:
    """`| more` and its q: exit code 1 and no message, on Windows too, where the error is another one."""
    words = {
        "check": ("check", "--config.file", config),
        "demo": ("demo", "--scenario", scenario, "--speed", "20", "--listen", "127.0.0.1:0"),
        "replay": ("replay", scenario),
        "simulate": ("simulate", "--list"),
        "tail": ("tail", "--outbox", outbox),
    }[name]
    process = subprocess.Popen(
        [sys.executable, "-m", "exporter", *words], env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode("utf-8")
        assert (process.wait(60), said) == (1, "")


def test_a_reader_that_closes_during_the_demo_ends_it_quietly(scenario: str) -> None:
    """Records are printed as they arrive, by another thread; its error ends the command as quietly."""
    process = subprocess.Popen(
        [sys.executable, "-m", "exporter", "demo", "--scenario", scenario, "--listen", "127.0.0.1:0"],
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert NAME in process.stdout.readline().decode("utf-8")
        process.stdout.close()
        said = process.stderr.read().decode("utf-8")
        assert (process.wait(60), said) == (1, "")
