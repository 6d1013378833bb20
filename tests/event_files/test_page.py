"""The example of docs/event-files.md, compared with a real agent, and the page's readers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from exporter.core.policy import Mode
from exporter.core.records import Vm
from exporter.core.state import SourceStatus
from exporter.simulator.metadata.service import MetadataService
from tests.event_files.test_reconciler import FolderEnvironment
from tests.support.documentation import ROOT, blocks
from tests.support.event_files import events
from tests.support.factories import service_of
from tests.support.peers import need
from tests.support.running import Run
from tests.support.statuses import FREEZE, REBOOT, scheduled_scenario, with_source

PAGE: Final = ROOT / "docs" / "event-files.md"
SHOWN: Final = "/run/azure-scheduled-events-exporter/events"
TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z|[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"
)


def block(language: str) -> str:
    """Return the only block of the page in this language."""
    (found,) = (found.text for found in blocks(PAGE) if found.language == language)
    return found


service = service_of("user-reboot", speed=100)


@pytest.mark.linux("the ready file of the page is one of Linux")
def test_example_matches_an_agents_file(service: MetadataService, tmp_path: Path) -> None:
    """The page omits members. The others have the agent's values and layout, except for times."""
    folder = tmp_path / "events"
    folder.mkdir()
    shown = block("json")
    config = tmp_path / "config.toml"
    ready = tmp_path / "ready"
    ready.mkdir()
    shown = shown.replace(json.loads(shown)["ready_file"].rpartition("/")[0], str(ready))
    config.write_text(
        '[approval]\nmode = "enforce"\n'
        f'rules = [{{ name = "prepared", event_type = ["Reboot"], require_file = "{ready}/{{event_id}}" }}]\n'
    )
    with Run(service.url, tmp_path, f"--config.file={config}", f"--event-files.path={folder}") as run:
        run.wait_for(lambda: bool(events(folder)))
        (path,) = folder.glob("*-*.json")
        written = path.read_text(encoding="utf-8")
        assert run.stop() == 0
    assert is_part(json.loads(TIME.sub("T", shown)), json.loads(TIME.sub("T", written)))
    layout = [line.rstrip(",") for line in TIME.sub("T", written).splitlines()]
    assert [line for line in TIME.sub("T", shown).splitlines() if line.rstrip(",") not in layout] == []
    assert TIME.search(shown)


def is_part(shown: Any, written: Any) -> bool:
    """Return whether the shown members are in the written ones, in order, with equal values."""
    if not isinstance(shown, dict):
        return bool(shown == written)
    order = [name for name in written if name in shown]
    return order == list(shown) and all(is_part(value, written[name]) for name, value in shown.items())


@pytest.fixture
def environment(tmp_path: Path) -> FolderEnvironment:
    made = FolderEnvironment(tmp_path)
    made.bring(scheduled_scenario().status(mode=Mode.ENFORCE))
    return made


def reader() -> Callable[[Path], list[Mapping[str, Any]] | None]:
    """Return the page's function."""
    names: dict[str, Any] = {}
    exec(block("python"), names)  # noqa: S102  # the page's own text
    found = names["events"]
    assert callable(found)
    return found  # type: ignore[no-any-return]  # the text of a page has no types


def test_python_reader_returns_planned_events(environment: FolderEnvironment) -> None:
    """None if the agent isn't running, or never ran."""
    read = reader()
    found = read(environment.path)
    assert found is not None
    assert {event["event_id"] for event in found} == {FREEZE["EventId"], REBOOT["EventId"]}
    (environment.path / f"{FREEZE['EventId']}.json").unlink()
    found = read(environment.path)
    assert found is not None
    assert [event["event_id"] for event in found] == [REBOOT["EventId"]]
    old = time.time() - 16
    os.utime(environment.path / "status.json", (old, old))
    assert read(environment.path) is None
    environment.bring(scheduled_scenario().status(), running=False)
    assert read(environment.path) is None
    assert read(environment.path / "none") is None


def test_python_reader_returns_none_without_a_document_or_vm_name(environment: FolderEnvironment) -> None:
    """Then an empty directory doesn't mean that nothing is planned."""
    read = reader()
    for path in environment.path.iterdir():
        path.unlink()
    environment.restart()
    environment.bring(replace(scheduled_scenario().status(), vm=Vm()))
    assert environment.status["up"]
    assert not environment.status["events"]
    assert read(environment.path) is None
    known = scheduled_scenario().status()
    environment.bring(with_source(replace(known, state=replace(known.state, last_good=None)), SourceStatus()))
    assert environment.status["last_read_at"] is None
    assert read(environment.path) is None


@pytest.mark.linux("a shell")
@pytest.mark.peer("jq")
def test_jq_prints_planned_events(environment: FolderEnvironment) -> None:
    """One line for each event."""
    need("jq")
    command = block("sh")
    assert SHOWN in command
    done = subprocess.run(
        ["sh", "-c", command.replace(SHOWN, str(environment.path))], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "Scheduled Freeze 2025-11-21T12:15:00.000000Z",
        "Scheduled Reboot 2025-11-21T12:22:00.000000Z",
    ]
