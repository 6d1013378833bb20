"""The folder as it is kept: what is written when, what is removed, and what is in the way."""

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
class Said(NullLogger):
    """What was logged: event names with their fields, a failure at each new reason."""

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
    """A keeper of one folder, and clocks that a test turns."""

    def __init__(self, path: Path, folder: Folder | None = None) -> None:
        self.path, self.folder = path, folder or Folder(str(path))
        self.seconds, self.off = 0.0, timedelta()
        self.log = Said()
        self.restart()

    def restart(self) -> None:
        """Another process, which knows nothing."""
        self.reconciler = Reconciler(
            self.folder, DEFAULT_RULES, version="1.2.3", log=self.log, now=self.now, monotonic=lambda: self.seconds
        )

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds) + self.off

    def bring(self, status: Status, *, running: bool = True, after: float = 1.0) -> float:
        """The next pass, a second later. Returns the seconds until the one after it."""
        self.seconds += after
        return self.reconciler.reconcile(status, running=running)

    @property
    def status(self) -> Mapping[str, Any]:
        return read(self.path / STATUS)


@pytest.fixture
def environment(tmp_path: Path) -> FolderEnvironment:
    return FolderEnvironment(tmp_path)


def unread(status: Status) -> Status:
    """The same before this process has read a document."""
    return with_source(status, SourceStatus())


def leave(folder: Path, name: str = OLD, **fields: Any) -> Path:
    """A file of an earlier process."""
    path = folder / name
    path.write_text(json.dumps({"type": EVENT_TYPE, "event_id": name.removesuffix(".json"), **fields}))
    return path


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """By which each file is known to be the same."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


# -- what is written, and when


def test_files_come_change_and_go_with_their_events(environment: FolderEnvironment) -> None:
    """A file for each event of this VM, rewritten when it starts, gone when it is over."""
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


def test_another_decision_is_told(environment: FolderEnvironment) -> None:
    """A change of what was decided alone rewrites the file, and no poll without a change does."""
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


def test_status_is_told_from_time_to_time_and_at_each_change(environment: FolderEnvironment) -> None:
    """A reader that finds it older than promised knows that the agent is dead."""
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


def test_a_clock_that_was_set_back_stops_nothing(environment: FolderEnvironment) -> None:
    """How long ago a file was written is measured by the clock that can't be set."""
    scenario = scheduled_scenario()
    environment.bring(scenario.status())
    environment.off = timedelta(days=-3)
    environment.bring(scenario.status(), after=HEARTBEAT_SECONDS)
    assert environment.status["written_at"].startswith("2025-11-18")


def test_after_a_stop_the_files_stay(environment: FolderEnvironment) -> None:
    """What was planned is still planned: only status.json says that nobody looks any more."""
    environment.bring(scheduled_scenario().status())
    environment.bring(scheduled_scenario().status(), running=False)
    assert names(environment.path) == {STATUS, FREEZE_FILE, REBOOT_FILE}
    assert not environment.status["running"]


def test_no_more_than_fifty_files(environment: FolderEnvironment) -> None:
    """Of sixty events the most urgent have a file; when they are over, the others get theirs."""
    scenario = crowded_scenario(60)
    environment.bring(scenario.status())
    assert len(names(environment.path)) == MAX_FILES + 1
    assert len(environment.status["events"]) == MAX_FILES
    left = [tracked.event.raw for tracked in scenario.state.tracked.values()][:20]
    scenario.read(*left)
    environment.bring(scenario.status())
    assert set(events(environment.path)) == {f"event-{place:04}" for place in range(20)}


def test_an_event_that_stops_naming_this_vm_is_over(environment: FolderEnvironment) -> None:
    """It goes on for its other VMs, and not for this one."""
    scenario = scheduled_scenario()
    environment.bring(scenario.status())
    scenario.read({**FREEZE, "Resources": ["shop-web_9"]}, REBOOT)
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, REBOOT_FILE}


# -- before anything is known


def test_before_a_good_document_nothing_is_removed_or_written_anew(environment: FolderEnvironment) -> None:
    """An agent that has just started, and whose source does not answer, leaves what its predecessor told."""
    old = leave(environment.path)
    content = old.read_bytes()
    for status in (unread(scheduled_scenario().status()), unread(empty_scenario().status())):
        environment.bring(status)
        assert names(environment.path) == {STATUS, OLD}
        assert old.read_bytes() == content
        assert environment.status["events"] == [OLD]


def test_before_the_own_name_is_known_nothing_is_removed(environment: FolderEnvironment) -> None:
    """Without a name no event is known to be of this VM: it is not known either that one is over."""
    leave(environment.path)
    environment.bring(empty_scenario().status(vm=Vm()))
    assert names(environment.path) == {STATUS, OLD}
    environment.bring(empty_scenario().status())
    assert names(environment.path) == {STATUS}


def test_a_new_process_takes_up_what_is_there(environment: FolderEnvironment) -> None:
    """Files of events that go on are replaced, those of events that are over go, and so do torn temporary files."""
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


def test_files_of_another_vm_go(environment: FolderEnvironment) -> None:
    """On a copied disk lie the files of the VM that it was copied from."""
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


def test_foreign_files_are_left_alone(environment: FolderEnvironment) -> None:
    """Whatever else lies in the folder stays as it is, when the agent starts, when events come, and when they go."""
    for name, content in FOREIGN.items():
        (environment.path / name).write_bytes(content)
    (environment.path / "folder.json").mkdir()
    before = stamps(environment.path)
    for status in (scheduled_scenario().status(), empty_scenario().status()):
        environment.bring(status)
    after = stamps(environment.path)
    assert {name: after.get(name) for name in before} == before


def test_a_leftover_that_became_somebody_elses_stays(environment: FolderEnvironment) -> None:
    """Between the start and the first good document may be hours."""
    path = leave(environment.path)
    status = empty_scenario().status()
    environment.bring(unread(status))
    assert environment.status["events"] == [OLD]
    path.write_text('{"type": "other"}')
    environment.bring(status)
    assert path.read_text() == '{"type": "other"}'
    assert environment.status["events"] == []


def test_files_that_a_power_failure_blanked_go(environment: FolderEnvironment) -> None:
    """Without content nobody can say whose they were but by their name, a GUID."""
    (environment.path / OLD).write_bytes(b"")
    (environment.path / OLD.replace("0", "1")).write_bytes(bytes(4096))
    (environment.path / STATUS).write_bytes(bytes(512))
    environment.bring(scheduled_scenario().status())
    assert names(environment.path) == {STATUS, FREEZE_FILE, REBOOT_FILE}


def test_file_of_an_endless_type_goes_with_its_event_after_a_kill(environment: FolderEnvironment) -> None:
    """The next process knows it as one of ours, since no file of ours is too large to be read."""
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
    """It is the same event. A reader that knows the file's name doesn't take it for over."""
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


def test_id_with_a_digest_for_a_name_keeps_its_file_too(environment: FolderEnvironment) -> None:
    """The digest is of the spelling, and so another one after the change."""
    scenario = EventScenario()
    scenario.read({**FREEZE, "EventId": "a b"})
    environment.bring(scenario.status())
    scenario.read({**FREEZE, "EventId": "A B"})
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, file_name("a b")}
    assert set(events(environment.path)) == {"A B"}


@pytest.mark.parametrize("event_id", ["status", "CON", "..", "a/b", "🔥" * 100, "x" * 100])
def test_any_id_has_its_file(environment: FolderEnvironment, event_id: str) -> None:
    """Ids that are no names, and long ones, have a file of their own in the folder, beside status.json."""
    scenario = EventScenario()
    scenario.read({**FREEZE, "EventId": event_id})
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, file_name(event_id)}
    assert set(events(environment.path)) == {event_id}
    scenario.read()
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS}


# -- a folder that changes under it


def test_a_missing_folder_is_said_and_never_made(tmp_path: Path) -> None:
    """Once in the log, in a sentence, until it is there; then everything is written."""
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


def test_a_folder_that_is_made_anew_is_filled_again(environment: FolderEnvironment, tmp_path: Path) -> None:
    """As after another mount, or a service that makes its folder at each start."""
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


def test_what_is_no_folder_is_said(tmp_path: Path) -> None:
    """A file, where the folder should be, stays as it is."""
    path = tmp_path / "events"
    path.write_text("a file")
    environment = FolderEnvironment(path)
    environment.bring(scheduled_scenario().status())
    assert environment.reconciler.error == f"{path}: not a directory; remove it, or set another event_files.path"
    assert path.read_text() == "a file"


def test_files_that_somebody_removes_or_writes_over_come_back(environment: FolderEnvironment) -> None:
    """An event's file says the truth as long as the event is there."""
    status = scheduled_scenario().status()
    environment.bring(status)
    (environment.path / FREEZE_FILE).unlink()
    (environment.path / REBOOT_FILE).write_text("{}")
    (environment.path / STATUS).unlink()
    environment.bring(status)
    assert set(events(environment.path)) == {FREEZE["EventId"], REBOOT["EventId"]}
    assert environment.status["up"]


def test_a_status_file_that_somebody_removes_comes_back(environment: FolderEnvironment) -> None:
    """It is what says that the agent lives."""
    status = empty_scenario().status()
    environment.bring(status)
    (environment.path / STATUS).unlink()
    environment.bring(status)
    assert environment.status["up"]


def test_somebody_elses_status_is_not_replaced(environment: FolderEnvironment) -> None:
    """In an application's own folder that file may be the application's: it stays, and it is said."""
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


def test_a_status_that_is_larger_than_ours_is_somebody_elses(environment: FolderEnvironment) -> None:
    """It is not read, and not replaced either."""
    path = environment.path / STATUS
    path.write_text(json.dumps({"mine": "x" * MAX_BYTES}))
    assert environment.bring(scheduled_scenario().status()) == RETRY_SECONDS
    assert path.stat().st_size > MAX_BYTES
    assert "written by another program" in environment.reconciler.error


def test_a_folder_in_the_place_of_a_file_hinders_no_other(environment: FolderEnvironment) -> None:
    """It is said, what can be written is, and the folder stays, also after the event is over."""
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


def test_a_file_that_became_a_folder_is_left_when_its_event_is_over(environment: FolderEnvironment) -> None:
    """What stands there then is nobody's event."""
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
def test_nothing_is_followed_or_waited_for(
    environment: FolderEnvironment, tmp_path: Path, kind: str, name: str
) -> None:
    """Whoever may write to the folder can't lead the agent's files elsewhere, nor make it wait."""
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
    """Something at a path that is no file of ours, while the block runs."""

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
def test_a_folder_that_is_a_link_is_the_operators_choice(tmp_path: Path) -> None:
    """The path is configured: where it leads to is where the files are."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    environment = FolderEnvironment(tmp_path / "link")
    environment.bring(scheduled_scenario().status())
    assert names(tmp_path / "real") == {STATUS, FREEZE_FILE, REBOOT_FILE}


# -- modes and groups


@pytest.mark.linux("modes mean nothing on Windows")
def test_everybody_whom_the_folder_lets_in_may_read(tmp_path: Path) -> None:
    """Whatever the umask is, and also when they are replaced."""
    environment = FolderEnvironment(tmp_path)
    before = os.umask(0o077)
    try:
        for status in (scheduled_scenario().status(), started_scenario().status()):
            environment.bring(status)
            assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}
    finally:
        os.umask(before)


@pytest.mark.linux("groups are of Linux")
def test_a_folder_may_pass_its_group_on(tmp_path: Path) -> None:
    """By the set-group-ID bit, as the page says."""
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
    """A file system of 64 KiB."""
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
    """A file that takes all the space that is left."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass


@pytest.mark.linux("mounts a small file system")
def test_a_full_disk_is_said_and_what_is_over_still_goes(small_disk: Path) -> None:
    """No half file and no temporary one is left; what was removed makes room again."""
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
def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    """Nothing else happens, and when it may be written, everything is."""
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
def test_a_file_that_is_being_read_is_replaced_when_the_reader_is_done(environment: FolderEnvironment) -> None:
    """Windows lets nobody replace or remove a file that is open: it is said, tried again, and hinders no other."""
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


def test_started_is_still_the_same_file(environment: FolderEnvironment) -> None:
    """The name is the event's, whatever becomes of the event."""
    scenario = EventScenario()
    scenario.read(FREEZE)
    environment.bring(scenario.status())
    scenario.read(started(FREEZE))
    environment.bring(scenario.status())
    assert names(environment.path) == {STATUS, FREEZE_FILE}
