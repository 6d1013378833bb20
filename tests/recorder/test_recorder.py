"""The recorder: only changes, within a bound, private, and without delaying polls."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from exporter.agent.app import App
from exporter.commands.replay.command import _replay, add_arguments
from exporter.commands.tail.records import OutboxReader
from exporter.config.command_line import FlagParser
from exporter.config.load import load, policy_values
from exporter.config.schema import (
    ApprovalSettings,
    OutboxSettings,
    RecordingSettings,
    Settings,
    SourceSettings,
    WebSettings,
)
from exporter.core.policy import Mode, Policy, Presence, Rule
from exporter.core.records import Record, Vm, VmIdentity
from exporter.core.state import Instant, Interruption, InterruptionKind
from exporter.errors import Retryable
from exporter.files import MOST_TIMES
from exporter.log.log import Log
from exporter.log.protocol import NullLogger
from exporter.recorder.recorder import QUEUE_ITEMS, Recorder, RecordingFiles
from exporter.simulator.metadata.scenario import load as load_scenario
from exporter.simulator.metadata.service import MetadataService
from exporter.windows.access import is_private
from tests.support.agent_environment import TIMEOUT, AgentEnvironment
from tests.support.simulator_client import Unhurried

AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
WRITTEN_SECONDS = 60.0
"""For a disk, and a machine, that is busy with something else."""


def at(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


class _Log(NullLogger):
    """The logged messages, and a way to wait for one."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.spoken = threading.Event()

    def failing(self, key: str, event: str, **fields: Any) -> None:  # noqa: ARG002  # the real log's shape
        self.said.append((event, fields))
        self.spoken.set()

    def recovered(self, key: str, event: str, **fields: Any) -> None:  # noqa: ARG002  # as above
        if self.said and self.said[-1][0] != event:
            self.said.append((event, fields))


@contextlib.contextmanager
def recording(path: Path, *, max_bytes: int = 1 << 20, files: int = 3, log: _Log | None = None) -> Iterator[Recorder]:
    """Return a recorder; everything is on disk when the block ends."""
    recorder = Recorder(path, max_bytes, files, log=log or _Log(), identity=lambda: VmIdentity(Vm(name="vm-1")))
    yield recorder
    recorder.close(WRITTEN_SECONDS)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines() if line.strip()]


def kinds(path: Path) -> list[str]:
    """Return the kind of each line: its members except the time."""
    return [next(name for name in line if name not in ("at", "read_at")) for line in lines(path)]


def test_document_is_written_once_with_the_number_of_reads(tmp_path: Path) -> None:
    """The count and the last time come before the next document."""
    path = tmp_path / "rec"
    with recording(path) as recorder:
        recorder.began(at(0), "1.2.3", "boot", policy_values(Policy()))
        for second in range(4):
            recorder.keep(b"first", at(second))
        recorder.keep(b"second", at(4))
    assert kinds(path) == ["began", "vm", "body", "same", "body"]
    assert [line.get("body") or line.get("same") for line in lines(path)[2:]] == ["first", 3, "second"]
    assert lines(path)[3]["read_at"] == "2026-03-02T09:00:03.000000Z"
    assert lines(path)[1]["vm"] == {"name": "vm-1"}


def test_document_is_repeated_after_a_gap_and_counted_every_minute(tmp_path: Path) -> None:
    """A gap is more than 5 s without a read."""
    path = tmp_path / "rec"
    with recording(path) as recorder:
        for second in [*range(130), 200]:
            recorder.keep(b"same", at(second))
    assert [(line["read_at"][14:19], line.get("same")) for line in lines(path)[1:]] == [
        ("00:00", None),
        ("01:00", 60),
        ("02:00", 60),
        ("02:09", 9),
        ("03:20", None),
    ]


def test_failures_approvals_and_interruptions_are_recorded(tmp_path: Path) -> None:
    """A continuing failure is one line."""
    path = tmp_path / "rec"
    with recording(path) as recorder:
        recorder.keep(b"a", at(0))
        recorder.failed(at(1), "timeout")
        recorder.failed(at(2), "timeout")
        recorder.failed(at(3), "gone")
        recorder.keep(b"a", at(4))
        recorder.posted(at(5), "ID", 200)
        recorder.posted(at(6), "ID", None, "timeout")
        recorder.interrupted(Interruption(InterruptionKind.CLOCK_STEP, 5.00049, Instant(at(7))), at(6))
    assert kinds(path) == ["vm", "body", "failure", "failure", "body", "post", "post", "interruption"]
    assert lines(path)[5:] == [
        {"at": "2026-03-02T09:00:05.000000Z", "post": "ID", "status": 200},
        {"at": "2026-03-02T09:00:06.000000Z", "post": "ID", "status": None, "reason": "timeout"},
        {
            "at": "2026-03-02T09:00:07.000000Z",
            "interruption": {"kind": "clock_step", "seconds": 5.0, "handled_at": "2026-03-02T09:00:06.000000Z"},
        },
    ]


def test_body_is_recorded_unchanged(tmp_path: Path) -> None:
    """Also one that isn't text, with every byte."""
    bodies = [b'{"a": "\xe2\x89\xa5\\n"}\r\n', b"\xff\x00\xfe", b"", "\u2028 \U0001f600".encode()]
    path = tmp_path / "rec"
    with recording(path) as recorder:
        for second, body in enumerate(bodies):
            recorder.keep(body, at(second))
    recorded = [
        line["body"].encode() if "body" in line else base64.b64decode(line["base64"]) for line in lines(path)[1:]
    ]
    assert recorded == bodies


def test_files_are_bounded_and_readable_separately(tmp_path: Path) -> None:
    """At most `files` of `max_bytes`; each begins with the VM and a document."""
    path = tmp_path / "rec"
    for run in range(3):
        with recording(path, max_bytes=4096, files=3) as recorder:
            for number in range(60):
                recorder.keep(str(number % 7).encode() * 300, at(run * 1000 + number))
                recorder.failed(at(run * 1000 + number + 0.5), "timeout")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["rec", "rec.1", "rec.2"]
    for file in files:
        assert file.stat().st_size <= 4096
        assert kinds(file)[:2] == ["vm", "body"]
    newest = [lines(file)[0]["at"] for file in files]
    assert newest == sorted(newest, reverse=True)


def test_each_further_file_begins_with_policy_vm_files_and_document(tmp_path: Path) -> None:
    """In this order, with the time of the document, and with the values from before its lines."""
    path, policy = tmp_path / "rec", policy_values(Policy(Mode.ENFORCE, hold_file="/run/hold"))
    with recording(path, max_bytes=4096, files=9) as recorder:
        recorder.began(at(0), "1.2.3", "boot", policy)
        recorder.keep(b"document", at(1))
        recorder.record_file_checks(at(1), {"/run/hold": Presence.ABSENT})
        for second in range(1, 200):
            recorder.failed(at(5 * second), "timeout")
    first, *others = sorted(tmp_path.iterdir(), reverse=True)
    assert kinds(first)[:4] == ["began", "vm", "body", "files"]
    assert lines(first)[0]["began"]["policy"] == policy
    assert len(others) > 2
    for file in others:
        assert kinds(file)[:5] == ["policy", "vm", "files", "body", "failure"]
        opening = lines(file)[:4]
        assert opening[0]["policy"] == policy
        assert opening[2]["files"] == {"/run/hold": "absent"}
        assert {line.get("at", line.get("read_at")) for line in opening} == {"2026-03-02T09:00:01.000000Z"}


def test_unchanged_document_continues_in_the_next_file_without_a_gap(tmp_path: Path) -> None:
    """The next file begins with the document at its first read, followed by the count since."""
    path = tmp_path / "rec"
    with recording(path, max_bytes=2048, files=9) as recorder:
        for second in range(3600):
            recorder.keep(b"x" * 200, at(second))
    for file in sorted(tmp_path.iterdir())[:-1]:
        vm, document, same = lines(file)[:3]
        assert vm["at"] == document["read_at"]
        read, until = (datetime.fromisoformat(line["read_at"]) for line in (document, same))
        assert (until - read).total_seconds() == same["same"]


def test_file_states_are_recorded_when_they_change(tmp_path: Path) -> None:
    """After the document that needed them, and again by each process."""
    path = tmp_path / "rec"
    for process in (0, 100):
        with recording(path) as recorder:
            for second, found in enumerate([{}, {"/f": "absent"}, {"/f": "absent"}, {"/f": "present"}, {}]):
                recorder.keep(b"document", at(process + second))
                recorder.record_file_checks(
                    at(process + second), {name: Presence(word) for name, word in found.items()}
                )
    recorded = [line for line in lines(path) if "files" in line]
    assert [line["files"] for line in recorded] == [{"/f": "absent"}, {"/f": "present"}, {}] * 2
    assert kinds(path)[:8] == ["vm", "body", "same", "files", "same", "files", "same", "files"]


class _Stuck(_Log):
    """A disk that fails, slowly, and later accepts everything that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def failing(self, key: str, event: str, **fields: Any) -> None:
        super().failing(key, event, **fields)
        if threading.current_thread().name == "recorder":
            self.goes_on.wait(WRITTEN_SECONDS)


def test_dropped_line_is_repeated_when_the_queue_has_room(tmp_path: Path) -> None:
    """Otherwise later lines would have outdated file states and no VM."""
    path, log = tmp_path / "rec", _Stuck()
    path.mkdir()
    with recording(path, log=log) as recorder:
        recorder.sent(at(0), "first")
        assert log.spoken.wait(WRITTEN_SECONDS)
        for _ in range(QUEUE_ITEMS):
            recorder.sent(at(1), "further")
        recorder.keep(b"document", at(2))
        recorder.record_file_checks(at(2), {"/f": Presence.PRESENT})
        path.rmdir()
        log.goes_on.set()
        _until(lambda: path.is_file() and path.read_bytes().count(b'"further"') == QUEUE_ITEMS - 1)
        recorder.keep(b"document", at(3))
        recorder.record_file_checks(at(3), {"/f": Presence.PRESENT})
    assert [name for name in kinds(path) if name in ("vm", "files")] == ["vm", "files"]


def test_oversized_policy_is_replaced_by_its_size(tmp_path: Path) -> None:
    """Every file begins with the policy."""
    path = tmp_path / "rec"
    rules = tuple(Rule(f"rule-{number}", ("x" * 1000,)) for number in range(50))
    with recording(path) as recorder:
        recorder.began(at(0), "1.2.3", "boot", policy_values(Policy(rules=rules)))
        recorder.record_file_checks(at(0), {f"/run/{number:0100}": Presence.ABSENT for number in range(1000)})
    began, files = lines(path)
    assert began["began"]["policy"].keys() == {"omitted"}
    assert files["files"].keys() == {"omitted"}


def test_oversized_body_is_replaced_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "rec"
    with recording(path, max_bytes=1000, files=1) as recorder:
        recorder.keep(b"x" * 5000, at(0))
        recorder.keep(b"small", at(1))
    assert [line.get("omitted") or line.get("body") for line in lines(path)[1:]] == [5000, "small"]
    assert path.stat().st_size <= 1000


@pytest.mark.linux("looks at the modes of files")
def test_file_is_private(tmp_path: Path) -> None:
    """Mode 0600, also for an existing file with a wider mode."""
    path = tmp_path / "rec"
    for _ in range(2):
        with recording(path) as recorder:
            recorder.keep(b"a", at(0))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)


@pytest.mark.windows
def test_on_windows_the_file_is_private(tmp_path: Path) -> None:
    """Also an existing one, in a directory that others can read."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    (folder / "rec").touch()
    for path in (folder / "rec", folder / "new"):
        with recording(path) as recorder:
            recorder.keep(b"a", at(0))
        assert is_private(path)


class HeldOpen:
    """A `rename` that fails as on Windows while a reader has the newest file open."""

    def __init__(self) -> None:
        self.is_held = True

    def __call__(self, source: Path, target: Path) -> None:
        if self.is_held and source.name == "rec":
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        os.replace(source, target)


def test_reader_of_the_newest_file_loses_no_line(tmp_path: Path) -> None:
    """The file grows, without a second beginning, and is rotated after the reader has closed it."""
    rename = HeldOpen()
    files = RecordingFiles(tmp_path / "rec", 1000, 3, rename=rename)
    for number in range(30):
        files.write({"read_at": f"{number}"}, b"x" * 200)
    assert [line["read_at"] for line in lines(tmp_path / "rec")] == [f"{number}" for number in range(30)]
    rename.is_held = False
    for number in range(30, 34):
        files.write({"read_at": f"{number}"}, b"x" * 200)
    files.close()
    found = [line["read_at"] for name in ("rec.1", "rec") for line in lines(tmp_path / name)]
    assert found == [f"{number}" for number in range(34)]
    assert (tmp_path / "rec").stat().st_size <= 1000


def test_reader_that_never_closes_the_file_does_not_fill_the_disk(tmp_path: Path) -> None:
    """At ten times its size the file accepts no lines until it is closed."""
    rename = HeldOpen()
    files = RecordingFiles(tmp_path / "rec", 1000, 3, rename=rename)
    written = 0
    with contextlib.suppress(PermissionError):
        for written in range(100):
            files.write({"read_at": f"{written}"}, b"x" * 200)
    assert 9_000 < (tmp_path / "rec").stat().st_size <= MOST_TIMES * 1000
    with pytest.raises(PermissionError, match="used by another process"):
        files.write({"at": "1000", "failure": "x" * 1000}, b"")
    assert len(lines(tmp_path / "rec")) == written
    rename.is_held = False
    files.write({"at": "1001", "failure": "timeout"}, b"")
    files.close()
    assert kinds(tmp_path / "rec") == ["body", "failure"]
    assert len(lines(tmp_path / "rec.1")) == written


@pytest.mark.windows
def test_on_windows_a_reader_of_the_newest_file_loses_no_line(tmp_path: Path) -> None:
    """Three hundred documents, enough for five rotations."""
    path, log = tmp_path / "rec", _Log()
    with recording(path, max_bytes=1 << 16, files=3, log=log) as recorder:
        recorder.keep(b"first" + 1000 * b"x", at(0))
        _until(lambda: path.exists() and b"first" in path.read_bytes())
        with path.open("rb"):
            for number in range(150):
                recorder.keep(str(number).encode() + 1000 * b"x", at(number + 1))
            _until(lambda: b'"149x' in path.read_bytes())  # the queue has room for no more than 256
            for number in range(150, 300):
                recorder.keep(str(number).encode() + 1000 * b"x", at(number + 1))
            _until(lambda: b'"299x' in path.read_bytes())
        for number in range(300, 310):
            recorder.keep(str(number).encode() + 1000 * b"x", at(number + 1))
    found = [
        line["body"].rstrip("x")
        for name in ("rec.2", "rec.1", "rec")
        if (tmp_path / name).exists()
        for line in lines(tmp_path / name)
        if "body" in line
    ]
    assert list(dict.fromkeys(found)) == ["first", *map(str, range(310))]
    assert log.said == []
    assert (tmp_path / "rec.1").exists()


def test_rotation_interrupted_by_a_crash_is_completed_by_the_next(tmp_path: Path) -> None:
    """The free name is filled, and later files aren't moved."""
    (tmp_path / "rec").write_text("newest" + 100 * " ", encoding="ascii")
    (tmp_path / "rec.2").write_text("oldest", encoding="ascii")
    files = RecordingFiles(tmp_path / "rec", 300, 4)
    files.write({"read_at": "1"}, b"x" * 200)
    files.close()
    assert [(tmp_path / f"rec.{number}").read_text(encoding="ascii").strip() for number in (1, 2)] == [
        "newest",
        "oldest",
    ]


def test_older_file_that_cannot_be_renamed_loses_no_line(tmp_path: Path) -> None:
    """A reader on Windows has it open; elsewhere a directory has its name."""
    (tmp_path / "rec").write_text('{"read_at": "0"}' + 100 * " ", encoding="ascii")
    (tmp_path / "rec.1").mkdir()
    (tmp_path / "rec.1" / "file").touch()
    files = RecordingFiles(tmp_path / "rec", 300, 2)
    files.write({"read_at": "1"}, b"x" * 200)
    files.close()
    assert [line["read_at"] for line in lines(tmp_path / "rec")] == ["0", "1"]


def test_incomplete_line_does_not_damage_the_next(tmp_path: Path) -> None:
    """After a crash within a line, the next process begins a new line."""
    path = tmp_path / "rec"
    path.write_bytes(b'{"read_at": "2026-03-02T08')
    with recording(path) as recorder:
        recorder.keep(b"a", at(0))
    assert [json.loads(line).get("body") for line in path.read_bytes().splitlines()[1:]] == [None, "a"]


@pytest.mark.linux("removes a file that is open")
def test_removed_file_is_recreated(tmp_path: Path) -> None:
    """It is readable separately, too."""
    path = tmp_path / "rec"
    recorder = Recorder(path, 1 << 20, 1, log=_Log(), identity=lambda: VmIdentity(Vm(name="vm-1")))
    recorder.keep(b"a", at(0))
    _until(lambda: path.exists() and b'"a"' in path.read_bytes())
    path.unlink()
    recorder.failed(at(1), "timeout")
    recorder.close()
    assert kinds(path) == ["vm", "body", "failure"]


def _until(holds: Callable[[], bool]) -> None:
    """Wait for a change of a file by another thread."""
    pause = threading.Event()
    for _ in range(1000):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come about")


def test_lines_that_fail_to_write_are_counted_in_place(tmp_path: Path) -> None:
    """The log has path and cause; the next line follows their number and the document."""
    log, path = _Log(), tmp_path / "folder"
    path.mkdir()  # a folder where the file should be: root can't write it either
    with recording(path, log=log) as recorder:
        recorder.keep(b"a", at(0))
        assert log.spoken.wait(10)
        event, fields = log.said[0]
        assert (event, fields["path"]) == ("recording.failed", str(path))
        recorder.keep(b"b", at(1))
        while len(log.said) < 3:
            log.spoken.wait(0.01)
        path.rmdir()
        recorder.failed(at(2), "timeout")
        recorder.failed(at(3), "gone")
    assert kinds(path) == ["vm", "body", "lost", "failure", "failure"]
    assert lines(path)[1]["body"] == "b"
    assert lines(path)[2] == {"at": "2026-03-02T09:00:02.000000Z", "lost": 3}
    assert log.said[-1] == ("recording.recovered", {"lost": 3})


@pytest.mark.linux("moves a file that is open")
def test_lost_document_is_written_before_lines_about_it(tmp_path: Path) -> None:
    """Otherwise those lines would apply to the previous document."""
    path = tmp_path / "rec"
    files = RecordingFiles(path, 1000, 3)
    files.write({"read_at": "1"}, b"a" * 300)
    path.rename(tmp_path / "away")
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        files.write({"read_at": "2"}, b"b" * 700)
    path.rmdir()
    (tmp_path / "away").rename(path)
    files.write({"read_at": "3", "same": 1}, b"")
    files.close()
    assert [line.get("body", "")[:1] for line in lines(path)] == ["b", ""]
    assert [line["body"][:1] for line in lines(tmp_path / "rec.1")] == ["a"]


def test_lines_dropped_from_the_queue_are_counted_in_place(tmp_path: Path) -> None:
    """Earlier lines, which wait for a slow disk, are written first."""
    path, log = tmp_path / "rec", _Stuck()
    path.mkdir()
    with recording(path, log=log) as recorder:
        recorder.sent(at(0), "first")
        assert log.spoken.wait(WRITTEN_SECONDS)
        for number in range(QUEUE_ITEMS - 1):
            recorder.sent(at(1), f"waits-{number}")
        for _ in range(7):
            recorder.sent(at(2), "finds no room")
        path.rmdir()
        log.goes_on.set()
        _until(lambda: path.is_file() and f'"waits-{QUEUE_ITEMS - 2}"'.encode() in path.read_bytes())
        recorder.sent(at(3), "last")
        recorder.sent(at(4), "very last")
    assert lines(path)[0] == {"at": "2026-03-02T09:00:01.000000Z", "lost": 1}
    assert [line.get("lost") or line["post"] for line in lines(path)[1:]] == [
        *(f"waits-{number}" for number in range(QUEUE_ITEMS - 1)),
        7,
        "last",
        "very last",
    ]
    assert [fields["lost"] for event, fields in log.said if event == "recording.recovered"] == [1, 7]


def test_outbox_state_is_recorded_when_it_changes(tmp_path: Path) -> None:
    """After the document whose decisions it affected; each process begins with "writable"."""
    path = tmp_path / "rec"
    for process in (0, 100):
        with recording(path) as recorder:
            recorder.began(at(process), "1.2.3", "boot", policy_values(Policy()))
            for second, writable in enumerate([True, True, False, False, True]):
                recorder.keep(b"document", at(process + second))
                recorder.stored(at(process + second), writable)
    assert kinds(path) == ["began", "vm", "body", "same", "outbox", "same", "outbox"] * 2
    outbox = [(line["at"][17:19], line["outbox"]) for line in lines(path) if "outbox" in line]
    assert outbox == [("02", "unwritable"), ("04", "writable"), ("42", "unwritable"), ("44", "writable")]


def test_each_further_file_begins_with_an_unwritable_outbox(tmp_path: Path) -> None:
    path = tmp_path / "rec"
    with recording(path, max_bytes=2048, files=9) as recorder:
        recorder.keep(b"document", at(0))
        recorder.stored(at(0), False)
        for second in range(1, 80):
            recorder.failed(at(5 * second), "timeout")
        recorder.keep(b"document", at(500))
        recorder.stored(at(500), True)
        for second in range(1, 80):
            recorder.failed(at(500 + 5 * second), "timeout")
    oldest_first = sorted(tmp_path.iterdir(), reverse=True)
    opened = [line["outbox"] for file in oldest_first[1:] for line in lines(file)[:2] if "outbox" in line]
    assert opened == ["unwritable", "unwritable", "writable", "writable"]
    assert all(kinds(file)[:3] == ["vm", "outbox", "body"] for file in oldest_first[1:])


@pytest.mark.linux("needs a device that is always full, and a named pipe in a folder")
def test_full_disk_and_special_files_fail_without_blocking(tmp_path: Path) -> None:
    """Such as a device, or a pipe without a reader."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path("/dev/full"), pipe):
        log = _Log()
        with recording(path, log=log) as recorder:
            recorder.keep(b"a", at(0))
            assert log.spoken.wait(10)
        assert log.said[0][0] == "recording.failed"


@pytest.mark.linux("makes symbolic links, which takes a privilege on Windows")
@pytest.mark.parametrize("target", ["file", "nothing", "itself"])
def test_link_is_rejected_and_reported(tmp_path: Path, target: str) -> None:
    """Its target stays unchanged."""
    path, victim = tmp_path / "rec", tmp_path / "victim"
    if target == "file":
        victim.write_text("mine")
        victim.chmod(0o644)
    path.symlink_to(path if target == "itself" else victim)
    log = _Log()
    with recording(path, log=log) as recorder:
        recorder.keep(b"a", at(0))
        assert log.spoken.wait(10)
    assert log.said[0][0] == "recording.failed"
    if target == "file":
        assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("mine", 0o644)
    else:
        assert not victim.exists()


@pytest.mark.linux("makes symbolic links, which takes a privilege on Windows")
def test_link_created_while_recording_is_not_followed(tmp_path: Path) -> None:
    """The recording was moved and replaced by a link to it."""
    log, path = _Log(), tmp_path / "rec"
    with recording(path, log=log) as recorder:
        recorder.keep(b"a", at(0))
        _until(lambda: path.exists() and b'"a"' in path.read_bytes())
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
        recorder.keep(b"b", at(1))
        assert log.spoken.wait(10)
    assert log.said[0][0] == "recording.failed"
    assert b'"b"' not in (tmp_path / "moved").read_bytes()


@pytest.mark.linux("looks at the modes of files")
@pytest.mark.parametrize("mask", [0o000, 0o277], ids=oct)
def test_file_mode_is_0600_with_any_umask(tmp_path: Path, mask: int) -> None:
    """Also with one that removes the owner's rights."""
    before = os.umask(mask)
    try:
        with recording(tmp_path / "rec") as recorder:
            recorder.keep(b"a", at(0))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "rec").stat().st_mode) == 0o600


def test_failed_request_is_recorded_unless_the_agent_stops(tmp_path: Path) -> None:
    """A request that the agent aborted has no information about the source."""
    with AgentEnvironment(tmp_path, recording=tmp_path / "rec") as environment:
        environment.see(TIMEOUT)
        environment.stopping = True
        environment.see(Retryable("aborted"))
    assert [line["failure"] for line in lines(tmp_path / "rec") if "failure" in line] == ["timeout"]


CLOCKS_APART = 0.05
"""Seconds: two ticks of a Windows clock and more. Both are read with every document, one after the other."""

LIFE = ("scheduled", "updated", "started", "completed", "canceled", "ended")


@pytest.mark.parametrize(
    ("scenario_name", "speed", "kinds"),
    [
        # So quick that two changes may come between two polls: which ends are seen is chance.
        ("demo", 10, {"scheduled"}),
        ("user-reboot", 40, {"scheduled", "started", "completed"}),
        ("canceled-maintenance", 100, {"scheduled", "canceled"}),
    ],
)
def test_replay_of_a_recording_returns_the_agents_records(
    tmp_path: Path, scenario_name: str, speed: float, kinds: set[str]
) -> None:
    """They have the same ids, messages, and summaries as those of the running agent."""
    path, outbox = tmp_path / "rec", tmp_path / "outbox.db"
    with MetadataService(load_scenario(scenario_name), speed=speed, clock=Unhurried(0.03)) as service:
        settings = Settings(
            source=SourceSettings(url=service.url, poll_interval=0.03),
            approval=ApprovalSettings(mode=Mode.ENFORCE),
            outbox=OutboxSettings(path=str(outbox)),
            web=WebSettings(listen_address="127.0.0.1:0"),
            recording=RecordingSettings(path=str(path)),
        )
        app = App(settings, Log(io.StringIO()), environ={})
        app.start()
        running = threading.Thread(target=app.run)
        running.start()
        assert service.wait_until(lambda: service.finished() and _quiet(app), 90)
        app.stop()
        running.join()
    reader = OutboxReader(str(outbox))
    live = [_recorded(kept.record) for kept in reader.new() if kept.record.kind in LIFE]
    out = io.StringIO()
    parser = FlagParser()
    add_arguments(parser)
    args = parser.parse_args([str(path), "--format=json"])
    assert _replay(args, load(args, {}), io.BytesIO(), out, AT) == 0
    replayed = [Record.from_json(line) for line in out.getvalue().splitlines()[:-1]]
    recorded = [_recorded(record) for record in replayed if record.kind in LIFE]
    assert [words for *words, _ in recorded] == [words for *words, _ in live]
    for (*_, by_recording), (*_, by_agent) in zip(recorded, live, strict=True):
        # The agent measured by the clock that can't be set, of which a recording has nothing.
        assert by_recording == pytest.approx(by_agent, abs=CLOCKS_APART)
    assert kinds <= {kind for kind, *_ in live}
    started_by = {summary.get("started_by") for *_, summary, _ in live}
    assert "this_vm" in started_by or scenario_name != "user-reboot"


def _quiet(app: App) -> bool:
    """Return whether the agent has read the end of the scenario."""
    document = app.status.state.document
    return document is not None and not document.events


def _recorded(record: Record) -> tuple[str, str, str, str, dict[str, Any], dict[str, float | None]]:
    """Return the record fields that must be equal. Times of Azure's responses differ by microseconds."""
    summary = {**record.data.get("summary", {}), "approved_at": None}
    seconds = {name: summary.pop(name) for name in [*summary] if name.endswith("_seconds")}
    return record.kind, record.id, record.time.isoformat(), record.data["message"], summary, seconds
