"""The reconciled directory: when files are written and removed, and obstacles to that."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.core.policy import DEFAULT_RULES, Mode
from exporter.core.records import Vm
from exporter.core.snapshot import Status
from exporter.core.state import Instant, SourceStatus
from exporter.event_files.content import EVENT_TYPE, MAX_BYTES, MAX_FILES, file_name
from exporter.event_files.folder import Folder
from exporter.event_files.writer import HEARTBEAT_SECONDS, RETRY_SECONDS, Reconciler
from exporter.log.protocol import NullLogger
from tests.support.event_files import events, names, read
from tests.support.statuses import (
    FREEZE,
    NOON,
    REBOOT,
    EventScenario,
    closed_scenario,
    crowded_scenario,
    empty_scenario,
    scheduled_scenario,
    started,
    started_scenario,
    with_source,
)

FREEZE_FILE: Final = file_name(FREEZE["EventId"])
REBOOT_FILE: Final = file_name(REBOOT["EventId"])
STATUS: Final = "status.json"
OLD: Final = "01234567-89AB-CDEF-0123-456789ABCDEF.json"
NOT_ROOT: Final = 65534


@dataclass
class LogStub(NullLogger):
    """The logged event names with their fields; a failure at each new reason."""

    lines: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    failing_as: str = ""

    def failing(self, key: str, event: str, **fields: Any) -> None:
        assert key == "event_files"
        if fields["reason"] != self.failing_as:
            self.failing_as = fields["reason"]
            self.lines.append((event, fields))

    def recovered(self, key: str, event: str, **fields: Any) -> None:
        assert key == "event_files"
        if self.failing_as:
            self.failing_as = ""
            self.lines.append((event, fields))


class FolderEnvironment:
    """A reconciler of one directory, with clocks that a test sets."""

    def __init__(self, path: Path, folder: Folder | None = None) -> None:
        self.path, self.folder = path, folder or Folder(str(path))
        self.seconds, self.off = 0.0, timedelta()
        self.log = LogStub()
        self.restart()

    def restart(self) -> None:
        """Start another process without memory."""
        self.reconciler = Reconciler(
            self.folder, DEFAULT_RULES, version="1.2.3", log=self.log, now=self.now, monotonic=lambda: self.seconds
        )

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds) + self.off

    def bring(self, status: Status, *, running: bool = True, after: float = 1.0) -> float:
        """Run the next pass, a second later. Return the seconds until the following one."""
        self.seconds += after
        return self.reconciler.reconcile(status, running=running)

    @property
    def status(self) -> Mapping[str, Any]:
        return read(self.path / STATUS)


@pytest.fixture
def environment(tmp_path: Path) -> FolderEnvironment:
    return FolderEnvironment(tmp_path)


def unread(status: Status) -> Status:
    """Return the environment before this process has read a document."""
    return with_source(status, SourceStatus())


def leave(folder: Path, name: str = OLD, **fields: Any) -> Path:
    """Write a file of an earlier process."""
    path = folder / name
    path.write_text(json.dumps({"type": EVENT_TYPE, "event_id": name.removesuffix(".json"), **fields}))
    return path


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the identity of each file's current version."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


# -- what is written, and when


def test_files_follow_their_events(environment: FolderEnvironment) -> None:
    """A file for each event of this VM, rewritten when it starts, removed when it ends."""
    environment.bring(empty_scenario().status())
    assert names(environment.path) == {STATUS}
    assert environment.status["events"] == []
    scenario = scheduled_scenario()
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, FREEZE_FILE, REBOOT_FILE}
    assert environment.status["events"] == [FREEZE_FILE, REBOOT_FILE]
    assert events(environment.path)[FREEZE["EventId"]]["status"] == "Scheduled"
    before = stamps(environment.path)
    environment.bring(started_scenario().status())
    assert events(environment.path)[FREEZE["EventId"]]["status"] == "Started"
    after = stamps(environment.path)
    assert before[FREEZE_FILE] != after[FREEZE_FILE]
    assert before[REBOOT_FILE] == after[REBOOT_FILE], "what says the same is not written again"
    environment.bring(closed_scenario().status())
    assert names(environment.path) == {STATUS}
    assert environment.status["events"] == []
    assert environment.reconciler.error == ""
    assert environment.log.lines == []


def test_new_decision_rewrites_the_file(environment: FolderEnvironment) -> None:
    """A poll without changes doesn't."""
    scenario = scheduled_scenario()
    environment.bring(scenario.status(mode=Mode.DRY_RUN))
    assert read(environment.path / FREEZE_FILE)["decision"]["reason"] == "dry-run"
    before = stamps(environment.path)
    for _ in range(3):
        scenario.wait(1)
        environment.bring(scenario.status(mode=Mode.DRY_RUN))
    assert stamps(environment.path) == before
    environment.bring(scenario.status(mode=Mode.ENFORCE))
    decision = read(environment.path / FREEZE_FILE)["decision"]
    assert (decision["decision"], decision["mode"], decision["rule"]) == ("approve", "enforce", "short-freeze")


def test_status_file_is_written_periodically_and_at_each_change(environment: FolderEnvironment) -> None:
    """Readers treat an older file as a stopped agent."""
    scenario = empty_scenario()
    wait = environment.bring(scenario.status())
    assert wait == HEARTBEAT_SECONDS < 5
    first = environment.status
    assert first["up"]
    assert first["running"]
    assert environment.bring(scenario.status(), after=1.0) == HEARTBEAT_SECONDS - 1
    assert environment.status == first
    environment.bring(scenario.status(), after=HEARTBEAT_SECONDS - 1)
    assert environment.status["written_at"] != first["written_at"]
    down = with_source(scenario.status(), SourceStatus(False, NOON, Instant(scenario.now), "timeout"))
    environment.bring(down, after=0.1)
    assert (environment.status["up"], environment.status["failure"]) == (False, "timeout")
    environment.bring(down, running=False, after=0.1)
    assert not environment.status["running"]


def test_clock_set_back_does_not_delay_writes(environment: FolderEnvironment) -> None:
    """Intervals use the monotonic clock."""
    scenario = scheduled_scenario()
    environment.bring(scenario.status())
    environment.off = timedelta(days=-3)
    environment.bring(scenario.status(), after=HEARTBEAT_SECONDS)
    assert environment.status["written_at"].startswith("2025-11-18")


def test_event_files_stay_after_a_stop(environment: FolderEnvironment) -> None:
    """Only status.json shows that the agent isn't running."""
    environment.bring(scheduled_scenario().status())
    environment.bring(scheduled_scenario().status(), running=False)
    assert names(environment.path) == {STATUS, FREEZE_FILE, REBOOT_FILE}
    assert not environment.status["running"]


def test_at_most_fifty_events_have_files(environment: FolderEnvironment) -> None:
    """When the most urgent ones end, others get their files."""
    scenario = crowded_scenario(60)
    environment.bring(scenario.status())
    assert len(names(environment.path)) == MAX_FILES + 1
    assert len(environment.status["events"]) == MAX_FILES
    left = [tracked.event.raw for tracked in scenario.state.tracked.values()][:20]
    scenario.read(*left)
    environment.bring(scenario.status())
    assert set(events(environment.path)) == {f"event-{place:04}" for place in range(20)}


def test_event_that_no_longer_names_this_vm_loses_its_file(environment: FolderEnvironment) -> None:
    """It continues for its other VMs."""
    scenario = scheduled_scenario()
    environment.bring(scenario.status())
    scenario.read({**FREEZE, "Resources": ["shop-web_9"]}, REBOOT)
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, REBOOT_FILE}


# -- before anything is known


def test_existing_files_stay_until_the_first_valid_document(environment: FolderEnvironment) -> None:
    """Covers an agent that has just started while its source fails."""
    old = leave(environment.path)
    content = old.read_bytes()
    for status in (unread(scheduled_scenario().status()), unread(empty_scenario().status())):
        environment.bring(status)
        assert names(environment.path) == {STATUS, OLD}
        assert old.read_bytes() == content
        assert environment.status["events"] == [OLD]


def test_existing_files_stay_until_the_vm_name_is_known(environment: FolderEnvironment) -> None:
    """Without it no event is known to affect this VM, or to have ended."""
    leave(environment.path)
    environment.bring(empty_scenario().status(vm=Vm()))
    assert names(environment.path) == {STATUS, OLD}
    environment.bring(empty_scenario().status())
    assert names(environment.path) == {STATUS}


def test_new_process_takes_over_existing_files(environment: FolderEnvironment) -> None:
    """It replaces files of current events, and removes those of ended events and temporary files."""
    environment.bring(scheduled_scenario().status())
    leave(environment.path)
    (environment.path / ".azse-0123456789abcdef.tmp").write_text('{"type": "azure_sch')
    scenario = scheduled_scenario()
    scenario.restart(60)
    environment.restart()
    environment.bring(unread(scenario.status()))
    assert FREEZE_FILE in names(environment.path)
    scenario.read(FREEZE)
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, FREEZE_FILE}
    assert events(environment.path).keys() == {FREEZE["EventId"]}


def test_files_of_another_vm_are_removed(environment: FolderEnvironment) -> None:
    """A copied disk has files of its original VM."""
    leave(environment.path, vm={"name": "golden"})
    environment.bring(scheduled_scenario().status())
    assert OLD not in names(environment.path)


FOREIGN: Final[Mapping[str, bytes]] = {
    "notes.txt": b"ours",
    "settings.json": b'{"type": "app"}',
    "empty.json": b"",
    "01234567-89AB-CDEF-0123-456789ABCDE0.json": b'{"event": "mine"}',
    ".azse-notes.txt": b"",
    "a_copy.json": b'{"type": "azure_scheduled_events.event_file.v1"}',
    "large.json": b'{"type": "azure_scheduled_events.event_file.v1", "x": "' + b"x" * MAX_BYTES + b'"}',
}


def test_foreign_files_stay_unchanged(environment: FolderEnvironment) -> None:
    """At the start, and when events appear or end."""
    for name, content in FOREIGN.items():
        (environment.path / name).write_bytes(content)
    (environment.path / "folder.json").mkdir()
    before = stamps(environment.path)
    for status in (scheduled_scenario().status(), empty_scenario().status()):
        environment.bring(status)
    after = stamps(environment.path)
    assert {name: after.get(name) for name in before} == before


def test_leftover_replaced_by_another_program_stays(environment: FolderEnvironment) -> None:
    """Hours can pass between the start and the first valid document."""
    path = leave(environment.path)
    status = empty_scenario().status()
    environment.bring(unread(status))
    assert environment.status["events"] == [OLD]
    path.write_text('{"type": "other"}')
    environment.bring(status)
    assert path.read_text() == '{"type": "other"}'
    assert environment.status["events"] == []


def test_files_blanked_by_a_power_failure_are_removed(environment: FolderEnvironment) -> None:
    """Only their name, a GUID, identifies them."""
    (environment.path / OLD).write_bytes(b"")
    (environment.path / OLD.replace("0", "1")).write_bytes(bytes(4096))
    (environment.path / STATUS).write_bytes(bytes(512))
    environment.bring(scheduled_scenario().status())
    assert names(environment.path) == {STATUS, FREEZE_FILE, REBOOT_FILE}


def test_file_with_an_oversized_event_type_is_removed_after_a_kill(environment: FolderEnvironment) -> None:
    """The next process recognizes it, because all files are small enough to read."""
    scenario = EventScenario()
    scenario.read({**FREEZE, "EventType": "x" * 400_000})
    environment.bring(scenario.status())
    assert (environment.path / FREEZE_FILE).stat().st_size <= MAX_BYTES
    environment.restart()
    scenario.read()
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS}


@pytest.mark.parametrize("restarts", [False, True])
def test_event_keeps_its_file_when_its_id_changes_case(environment: FolderEnvironment, restarts: bool) -> None:
    """A reader that knows the file's name must not consider the event ended."""
    scenario = EventScenario()
    scenario.read({**FREEZE, "EventId": "abc-DEF"})
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, "abc-DEF.json"}
    for event_id in ("ABC-def", "Abc-Def", "abc-DEF"):
        if restarts:
            environment.restart()
        scenario.read({**FREEZE, "EventId": event_id})
        environment.bring(scenario.status())
        assert names(environment.path) == {STATUS, "abc-DEF.json"}
        assert environment.status["events"] == ["abc-DEF.json"]
        assert set(events(environment.path)) == {event_id}
    scenario.read()
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS}
    scenario.read({**FREEZE, "EventId": "ABC-DEF"})
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, "ABC-DEF.json"}


def test_hashed_id_keeps_its_file_when_its_case_changes(environment: FolderEnvironment) -> None:
    """A new digest would differ."""
    scenario = EventScenario()
    scenario.read({**FREEZE, "EventId": "a b"})
    environment.bring(scenario.status())
    scenario.read({**FREEZE, "EventId": "A B"})
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, file_name("a b")}
    assert set(events(environment.path)) == {"A B"}


@pytest.mark.parametrize("event_id", ["status", "CON", "..", "a/b", "🔥" * 100, "x" * 100])
def test_every_id_has_a_file(environment: FolderEnvironment, event_id: str) -> None:
    """Ids that are long or unsafe as names have separate files."""
    scenario = EventScenario()
    scenario.read({**FREEZE, "EventId": event_id})
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, file_name(event_id)}
    assert set(events(environment.path)) == {event_id}
    scenario.read()
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS}


# -- a folder that changes under it


def test_missing_directory_is_reported_and_not_created(tmp_path: Path) -> None:
    """It is logged once; when the directory exists, everything is written."""
    environment = FolderEnvironment(tmp_path / "later")
    for _ in range(3):
        assert environment.bring(scheduled_scenario().status()) == RETRY_SECONDS
    assert not environment.path.exists()
    assert (
        environment.reconciler.error
        == f"{environment.path}: the directory does not exist; create it, because the agent does not"
    )
    ((event, fields),) = environment.log.lines
    assert (event, fields["reason"], fields["detail"]) == (
        "event_files.failed",
        "missing",
        environment.reconciler.error,
    )
    environment.path.mkdir()
    environment.bring(scheduled_scenario().status())
    assert names(environment.path) == {STATUS, FREEZE_FILE, REBOOT_FILE}
    assert environment.reconciler.error == ""
    assert [event for event, _ in environment.log.lines] == ["event_files.failed", "event_files.recovered"]


def test_recreated_directory_is_filled_again(environment: FolderEnvironment, tmp_path: Path) -> None:
    """As after a mount, or if a service recreates its directory at each start."""
    environment.path = tmp_path / "events"
    environment.path.mkdir()
    environment.folder = Folder(str(environment.path))
    environment.restart()
    environment.bring(scheduled_scenario().status())
    os.rename(environment.path, tmp_path / "gone")
    environment.bring(scheduled_scenario().status())
    assert environment.reconciler.error.endswith("because the agent does not")
    environment.path.mkdir()
    leave(environment.path)
    environment.bring(scheduled_scenario().status())
    assert names(environment.path) == {STATUS, FREEZE_FILE, REBOOT_FILE}


def test_file_at_the_directorys_path_is_reported(tmp_path: Path) -> None:
    """It stays unchanged."""
    path = tmp_path / "events"
    path.write_text("a file")
    environment = FolderEnvironment(path)
    environment.bring(scheduled_scenario().status())
    assert environment.reconciler.error == f"{path}: not a directory; remove it, or set another event_files.path"
    assert path.read_text() == "a file"


def test_removed_or_overwritten_files_are_restored(environment: FolderEnvironment) -> None:
    status = scheduled_scenario().status()
    environment.bring(status)
    (environment.path / FREEZE_FILE).unlink()
    (environment.path / REBOOT_FILE).write_text("{}")
    (environment.path / STATUS).unlink()
    environment.bring(status)
    assert set(events(environment.path)) == {FREEZE["EventId"], REBOOT["EventId"]}
    assert environment.status["up"]


def test_removed_status_file_is_restored(environment: FolderEnvironment) -> None:
    status = empty_scenario().status()
    environment.bring(status)
    (environment.path / STATUS).unlink()
    environment.bring(status)
    assert environment.status["up"]


def test_status_file_of_another_program_is_reported_and_kept(environment: FolderEnvironment) -> None:
    """The directory may belong to an application."""
    path = environment.path / STATUS
    path.write_text('{"healthy": true}')
    assert environment.bring(scheduled_scenario().status()) == RETRY_SECONDS
    assert path.read_text() == '{"healthy": true}'
    assert environment.reconciler.error == f"{path}: written by another program; use a separate directory"
    assert names(environment.path) == {STATUS, FREEZE_FILE, REBOOT_FILE}
    path.unlink()
    environment.bring(scheduled_scenario().status())
    assert environment.reconciler.error == ""
    assert environment.status["up"]


def test_oversized_status_file_is_foreign(environment: FolderEnvironment) -> None:
    """It is neither read nor replaced."""
    path = environment.path / STATUS
    path.write_text(json.dumps({"mine": "x" * MAX_BYTES}))
    assert environment.bring(scheduled_scenario().status()) == RETRY_SECONDS
    assert path.stat().st_size > MAX_BYTES
    assert "written by another program" in environment.reconciler.error


def test_directory_at_a_files_name_does_not_block_other_files(environment: FolderEnvironment) -> None:
    """It is reported, and stays after the event has ended."""
    blocking = environment.path / FREEZE_FILE
    (blocking / "inside").mkdir(parents=True)
    environment.bring(scheduled_scenario().status())
    assert FREEZE_FILE in environment.reconciler.error
    assert (blocking / "inside").is_dir()
    assert read(environment.path / REBOOT_FILE)["event_id"] == REBOOT["EventId"]
    assert environment.status["events"] == [REBOOT_FILE]
    environment.bring(empty_scenario().status())
    assert names(environment.path) == {STATUS, FREEZE_FILE}
    assert environment.reconciler.error == ""


def test_directory_that_replaced_a_file_stays_after_the_event(environment: FolderEnvironment) -> None:
    environment.bring(scheduled_scenario().status())
    (environment.path / FREEZE_FILE).unlink()
    (environment.path / FREEZE_FILE).mkdir()
    environment.bring(empty_scenario().status())
    assert names(environment.path) == {STATUS, FREEZE_FILE}
    assert environment.status["events"] == []
    assert environment.reconciler.error == ""


@pytest.mark.linux("makes links and pipes")
@pytest.mark.parametrize("kind", ["link", "dangling link", "link to a folder", "pipe", "socket", "hard link"])
@pytest.mark.parametrize("name", [FREEZE_FILE, STATUS, OLD])
def test_links_and_pipes_are_not_followed_or_opened(
    environment: FolderEnvironment, tmp_path: Path, kind: str, name: str
) -> None:
    """A program with write access to the directory can't redirect or block the agent."""
    victim = tmp_path / "victim"
    victim.write_text(json.dumps({"type": EVENT_TYPE}))
    outside = tmp_path / "outside"
    outside.mkdir()
    environment.path = tmp_path / "events"
    environment.path.mkdir()
    environment.folder = Folder(str(environment.path))
    environment.restart()
    if kind == "hard link" and name == STATUS:
        victim.write_text("")  # another file type would stay, and be reported
    content = victim.read_bytes()
    with Planted(kind, environment.path / name, victim, outside):
        for status in (scheduled_scenario().status(), started_scenario().status(), empty_scenario().status()):
            environment.bring(status)
            for path in environment.path.glob("*.json"):
                if path.name != OLD:
                    read(path)
                    assert stat.S_ISREG(path.lstat().st_mode)
        assert environment.reconciler.error == ""
    assert victim.read_bytes() == content
    assert list(outside.iterdir()) == []
    assert names(environment.path) - {OLD} == {STATUS}
    assert (OLD in names(environment.path)) is (name == OLD and kind != "hard link")


class Planted:
    """A link, pipe, or directory at a path, while the block runs."""

    def __init__(self, kind: str, path: Path, victim: Path, outside: Path) -> None:
        self._socket: socket.socket | None = None
        match kind:
            case "link":
                path.symlink_to(victim)
            case "dangling link":
                path.symlink_to(outside / "made")
            case "link to a folder":
                path.symlink_to(outside)
            case "hard link":
                path.hardlink_to(victim)
            case "pipe" if sys.platform != "win32":
                os.mkfifo(path)
            case "socket" if sys.platform != "win32":
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.bind(os.path.relpath(path))

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()


@pytest.mark.linux("follows a link of the operator's")
def test_configured_path_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    environment = FolderEnvironment(tmp_path / "link")
    environment.bring(scheduled_scenario().status())
    assert names(tmp_path / "real") == {STATUS, FREEZE_FILE, REBOOT_FILE}


# -- modes and groups


@pytest.mark.linux("modes mean nothing on Windows")
def test_files_are_readable_by_every_user_of_the_directory(tmp_path: Path) -> None:
    """With any umask, and after each replacement."""
    environment = FolderEnvironment(tmp_path)
    before = os.umask(0o077)
    try:
        for status in (scheduled_scenario().status(), started_scenario().status()):
            environment.bring(status)
            assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}
    finally:
        os.umask(before)


@pytest.mark.linux("groups are of Linux")
def test_files_inherit_the_directorys_group(tmp_path: Path) -> None:
    """Through the set-group-ID bit, as documented."""
    if sys.platform == "win32" or os.geteuid() != 0:
        pytest.skip("making another user's folder needs root")
    path = tmp_path / "events"
    path.mkdir()
    tmp_path.chmod(0o755)
    os.chown(path, NOT_ROOT, 23456)
    path.chmod(0o2750)
    os.seteuid(NOT_ROOT)
    try:
        environment = FolderEnvironment(path)
        environment.bring(scheduled_scenario().status())
    finally:
        os.seteuid(0)
    assert environment.reconciler.error == ""
    found = {(file.stat().st_uid, file.stat().st_gid, stat.S_IMODE(file.stat().st_mode)) for file in path.iterdir()}
    assert found == {(NOT_ROOT, 23456, 0o644)}


# -- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if sys.platform == "win32" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system can't be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write a file that takes all the remaining space."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass


@pytest.mark.linux("mounts a small file system")
def test_full_disk_is_reported_and_ended_events_are_removed(small_disk: Path) -> None:
    """No partial or temporary file is left, and removed files free space."""
    environment = FolderEnvironment(small_disk)
    environment.bring(scheduled_scenario().status())
    filler = small_disk / "filler"
    fill(filler)
    environment.bring(started_scenario().status())
    assert [(event, fields["reason"]) for event, fields in environment.log.lines] == [("event_files.failed", "full")]
    assert "No space left" in environment.reconciler.error
    assert names(small_disk) == {STATUS, FREEZE_FILE, REBOOT_FILE, "filler"}
    assert events(small_disk)[FREEZE["EventId"]]["status"] == "Scheduled", "whole, and as old as status.json says"
    scenario = closed_scenario()
    scenario.read(REBOOT)
    environment.bring(scenario.status())
    assert FREEZE_FILE not in names(small_disk)
    filler.unlink()
    environment.bring(scenario.status())
    assert (environment.reconciler.error, environment.status["events"]) == ("", [REBOOT_FILE])


@pytest.mark.linux("looks through another user's eyes")
def test_unwritable_directory_is_reported(tmp_path: Path) -> None:
    """When it is writable again, everything is written."""
    if sys.platform == "win32":
        return
    path = tmp_path / "events"
    path.mkdir(mode=0o555)
    root = os.geteuid() == 0
    if root:
        tmp_path.chmod(0o755)
        os.seteuid(NOT_ROOT)
    try:
        environment = FolderEnvironment(path)
        environment.bring(scheduled_scenario().status())
        (line,) = environment.log.lines
        assert (line[0], line[1]["reason"]) == ("event_files.failed", "not-permitted")
        assert os.strerror(errno.EACCES) in environment.reconciler.error
    finally:
        if root:
            os.seteuid(0)
    path.chmod(0o777)
    environment.bring(scheduled_scenario().status())
    assert names(path) == {STATUS, FREEZE_FILE, REBOOT_FILE}
    shutil.rmtree(path)


@pytest.mark.windows
def test_file_with_a_reader_is_replaced_after_the_reader_closes_it(environment: FolderEnvironment) -> None:
    """Windows doesn't replace an open file: it is reported and retried, and blocks no other file."""
    environment.bring(scheduled_scenario().status())
    with open(environment.path / FREEZE_FILE, "rb"):
        environment.bring(started_scenario().status())
        assert f"{FREEZE_FILE}: in use by another program" in environment.reconciler.error
        assert [fields["reason"] for _, fields in environment.log.lines] == ["in-use"]
        assert not any(name.endswith(".tmp") for name in names(environment.path))
        scenario = started_scenario()
        scenario.read(REBOOT, after=6)
        environment.bring(scenario.status())
        assert FREEZE_FILE in environment.status["events"]
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, REBOOT_FILE}
    assert environment.reconciler.error == ""


def test_started_event_keeps_its_file_name(environment: FolderEnvironment) -> None:
    scenario = EventScenario()
    scenario.read(FREEZE)
    environment.bring(scenario.status())
    scenario.read(started(FREEZE))
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, FREEZE_FILE}
