"""The writer's thread: after approvals, without delaying the agent, and with complete files after any kill."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.agent import document as own_document
from benchmarks.agent import event as own_event
from benchmarks.agent import metadata_service
from exporter.core.policy import DEFAULT_RULES
from exporter.core.snapshot import EventFilesStatus, Status
from exporter.event_files.folder import Folder, Identity
from exporter.event_files.writer import STUCK_SECONDS, EventFiles
from exporter.log.log import Log
from exporter.log.protocol import NullLogger
from exporter.simulator.metadata.service import MetadataService
from tests.support.agent_environment import AgentEnvironment, document, event
from tests.support.event_files import events, names, read
from tests.support.log_reading import logged
from tests.support.peers import until
from tests.support.running import Run
from tests.support.statuses import empty_scenario, scheduled_scenario, started_scenario

PATIENCE: Final = 60.0


def kept(folder: Folder, log: Log | NullLogger | None = None, seconds: list[float] | None = None) -> EventFiles:
    """Return the started thread, with `seconds` as its clock."""
    clock = time.monotonic if seconds is None else lambda: seconds[0]
    files = EventFiles(folder, DEFAULT_RULES, version="1.2.3", log=log or NullLogger(), monotonic=clock)
    files.start()
    return files


def test_only_the_last_status_counts(tmp_path: Path) -> None:
    """The directory ends with the last status, which shows that the agent isn't running."""
    files = kept(Folder(str(tmp_path)))
    for scenario in (scheduled_scenario(), started_scenario(), empty_scenario(), scheduled_scenario()):
        files.publish(scenario.status())
    files.stop(PATIENCE)
    assert set(events(tmp_path)) == {
        event.tracked.event.event_id for event in scheduled_scenario().status().named_events
    }
    assert not read(tmp_path / "status.json")["running"]
    assert files.state == EventFilesStatus(str(tmp_path))


def test_stop_before_the_first_status_writes_nothing(tmp_path: Path) -> None:
    files = kept(Folder(str(tmp_path)))
    files.stop(PATIENCE)
    assert names(tmp_path) == set()


def test_status_file_is_refreshed_without_a_new_status(tmp_path: Path) -> None:
    """For example, while the loop waits two minutes for the first response."""
    files = kept(Folder(str(tmp_path)))
    files.publish(empty_scenario().status())
    status = tmp_path / "status.json"
    until(status.exists)
    first = read(status)["written_at"]
    until(lambda: read(status)["written_at"] != first)
    files.stop(PATIENCE)


class Hanging(Folder, frozen=True):
    """A directory on a file system that doesn't respond until released."""

    answers = threading.Event()
    asked = threading.Event()

    def identity(self) -> Identity:
        self.asked.set()
        assert self.answers.wait(PATIENCE)
        return super().identity()


def test_hanging_directory_is_reported_and_blocks_nothing(tmp_path: Path) -> None:
    """Neither `publish` nor `stop` waits for it; the recovery is logged."""
    text, seconds = io.StringIO(), [0.0]
    log = Log(text)
    files = kept(Hanging(str(tmp_path)), log, seconds)
    status = scheduled_scenario().status()
    files.publish(status)
    assert Hanging.asked.wait(PATIENCE)
    seconds[0] += STUCK_SECONDS + 2
    for _ in range(3):
        files.publish(status)
    assert files.state.error == f"{tmp_path}: no response for 7 s"
    files.stop(0)
    assert names(tmp_path) == set()
    assert logged(log, text).count("event=event_files.stuck") == 1
    Hanging.answers.set()
    files.stop(PATIENCE)
    assert "event=event_files.recovered" in logged(log, text)
    assert files.state.error == ""
    assert not read(tmp_path / "status.json")["running"]
    log.close(PATIENCE)


def test_status_is_published_after_the_approvals_of_its_pass(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    posts: list[Any] = []

    def published(status: Status) -> None:
        seen.append((len(status.named_events), len(posts)))

    with AgentEnvironment(tmp_path, published=published) as environment:
        posts = environment.source.posts
        environment.see(document(1), 3)
        assert set(seen) == {(0, 0)}
        environment.see(document(2, event()), 1)
        assert [found for found in seen if found[0]] != []
        assert all(sent == 1 for named, sent in seen if named)


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as running:
        running.set_document(own_document(1))
        yield running


def test_agent_after_a_kill_takes_over_the_files(service: MetadataService, tmp_path: Path) -> None:
    """It keeps files of planned events and removes those of ended ones."""
    folder = tmp_path / "events"
    folder.mkdir()
    stays, goes = own_event(1, EventType="Freeze", DurationInSeconds=60), own_event(2)
    service.set_document(own_document(2, stays, goes))
    with Run(service.url, tmp_path, f"--event-files.path={folder}") as run:
        run.wait_for(lambda: len(events(folder)) == 2)
        run.process.kill()
        run.process.wait(30)
    assert read(folder / "status.json")["running"], "no process was left to update it"
    service.set_document(own_document(3, stays))
    with Run(service.url, tmp_path, f"--event-files.path={folder}") as run:
        run.wait_for(lambda: set(events(folder)) == {stays["EventId"]})
        run.wait_for(lambda: read(folder / "status.json")["up"])
        assert run.stop() == 0
    assert not read(folder / "status.json")["running"]
    assert set(events(folder)) == {stays["EventId"]}


_WRITES_ON_AND_ON: Final = """
import sys, time
from datetime import UTC, datetime
from exporter.core.policy import DEFAULT_RULES
from exporter.event_files.folder import Folder
from exporter.event_files.writer import Reconciler
from exporter.log.protocol import NullLogger
from tests.support.statuses import FREEZE, EventScenario, document
files = Reconciler(Folder(sys.argv[1]), DEFAULT_RULES, version="1", log=NullLogger(), now=lambda: datetime.now(UTC),
                monotonic=time.monotonic)
for number in range(10**9):
    scenario = EventScenario()
    scenario.read(*({**FREEZE, "EventId": f"event-{place}", "Description": str(number) * 2000} for place in range(4)))
    files.reconcile(scenario.status(), running=True)
    if not number:
        print("writing", flush=True)
"""


def test_files_are_complete_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    """The writer is killed repeatedly while it writes."""
    folder = tmp_path / "events"
    folder.mkdir()
    for delay in (0.0, 0.011, 0.023, 0.037, 0.053, 0.071):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITES_ON_AND_ON, str(folder)], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "writing\n"
                end = time.monotonic() + delay
                while time.monotonic() < end:
                    _all_whole(folder)
            finally:
                process.kill()  # else a failure would wait for its end
        _all_whole(folder)
    files = kept(Folder(str(folder)))
    files.publish(empty_scenario().status())
    files.stop(PATIENCE)
    assert names(folder) == {"status.json"}, "torn temporary files are gone as well"


def _all_whole(folder: Path) -> None:
    for path in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            json.loads(path.read_bytes())


@pytest.fixture
def silent_mount(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system without a server: every access hangs."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    if sys.platform == "win32" or os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting a file system that does not answer needs root and /dev/fuse")
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", os.fsencode(folder), b"fuse", ctypes.c_ulong(0), options):
        os.close(device)
        pytest.skip(f"a file system can't be mounted here: {os.strerror(ctypes.get_errno())}")
    yield folder
    os.close(device)  # who still waits gets an error
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.linux("mounts a file system")
def test_agent_runs_with_a_hanging_mount(service: MetadataService, silent_mount: Path, tmp_path: Path) -> None:
    """It approves, is scraped, reports the hanging directory, and stops within five seconds."""
    flags = (f"--event-files.path={silent_mount}", "--approval.mode=enforce")
    with Run(service.url, tmp_path, *flags) as run:
        run.wait_for(lambda: run.metric("up") == 1)
        service.set_document(own_document(2, own_event(2)))
        assert service.wait_until(lambda: len(service.posts) == 1, PATIENCE)
        run.wait_for(lambda: bool(run.said("event_files.stuck")))
        assert run.get("/-/healthy").status_code == 200
        assert run.stop(5.0) == 0
