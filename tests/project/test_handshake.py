"""The handshake's examples: their program as a process with real directories, and its units with systemd's own tools.

The event files are those that the agent writes. tests/systemd/handshake.py runs it all under a real systemd.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self
from xml.etree import ElementTree

import pytest

from exporter.core.policy import Rule
from exporter.event_files.content import EVENT_TYPE, event_file, file_name, status_file
from exporter.event_files.folder import Folder
from exporter.event_files.writer import Reconciler
from exporter.log.protocol import NullLogger
from tests.support.peers import need, until
from tests.support.statuses import REBOOT, EventScenario, started

pytestmark = pytest.mark.linux("is about systemd and a script for sh")

ROOT: Final = Path(__file__).parents[2]
SYSTEMD: Final = ROOT / "deploy" / "systemd"
EXAMPLES: Final = SYSTEMD / "examples"
UNIT: Final = "azure-scheduled-events-handshake"
SCRIPTS: Final = ("handshake", "prepare", "resume")
NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
PREPARE: Final = """#!/bin/sh
echo prepare "$1" >>"$0.log"
if [ -e "$0.hang" ]; then exec sleep 60; fi
[ ! -e "$0.fail" ]
"""
RESUME: Final = '#!/bin/sh\necho resume >>"$0.log"\n[ ! -e "$0.fail" ]\n'


class Handshake:
    """The program with its own directories. A context manager that ends it."""

    def __init__(self, folder: Path) -> None:
        self.events, self.ready, self.state = (folder / name for name in ("events", "ready", "state"))
        for path in (self.events, self.ready, self.state):
            path.mkdir()
        self.prepare, self.resume = folder / "prepare", folder / "resume"
        for script, text in ((self.prepare, PREPARE), (self.resume, RESUME)):
            script.write_text(text)
            script.chmod(0o755)
        self._output = folder / "output"
        self._process: subprocess.Popen[bytes] | None = None
        self.heartbeat()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def start(self, *before: str, **environ: str) -> Self:
        """Start it, with a tenth of a second instead of one between two passes."""
        recorded = {
            "PATH": os.environ["PATH"],
            "EVENTS": str(self.events),
            "RUNTIME_DIRECTORY": str(self.state),
            "PREPARE": str(self.prepare),
            "RESUME": str(self.resume),
            "PASS_SECONDS": "0.1",
            "RETRY_SECONDS": "3",
            **environ,
        }
        with self._output.open("ab") as output:
            command = [*before, str(EXAMPLES / "handshake")]
            self._process = subprocess.Popen(
                command, env=recorded, stdout=output, stderr=output, start_new_session=True
            )
        return self

    def ended(self) -> int:
        """Wait until it has ended by itself; return its exit code."""
        assert self._process is not None
        return self._process.wait(30)

    def runs_on(self) -> bool:
        """Return whether it is still running after some more passes."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        return self._process.poll() is None

    def stop(self) -> None:
        """End it as systemd does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(30) == 0

    def kill(self, *, lose_state: bool = False) -> None:
        """Kill it with its child processes, as the end of a container does."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        if lose_state:
            shutil.rmtree(self.state)
            self.state.mkdir()

    @property
    def said(self) -> str:
        return self._output.read_text()

    def ran(self, script: Path) -> int:
        """Return how often one of the operator's commands ran."""
        log = Path(f"{script}.log")
        return len(log.read_text().splitlines()) if log.exists() else 0

    def announce(
        self, event_id: str, ready: str | None = "", status: str = "Scheduled", event_type: str = "Reboot"
    ) -> Path:
        """Write an event's file as the agent does, and return its path; `ready` "" is the ready file of the packaged
        rule."""
        usual = self.ready / event_id
        event = {"EventId": event_id, "EventType": "Nap", "Description": '"ready_file": "/x"\n  "status": "Y"'}
        recorded = str(usual) if ready == "" else ready
        fields = {
            "event_id": event_id,
            "event": event,
            "event_type": event_type,
            "status": status,
            "ready_file": recorded,
        }
        self._replace(file_name(event_id), event_file(fields, NOW))
        return usual

    def keeper(self) -> Reconciler:
        """Return the agent's own writer of the event files, with the packaged rule."""
        prepared = Rule("prepared", ("Reboot",), require_file=f"{self.ready}/{{event_id}}")
        return Reconciler(
            Folder(str(self.events)), (prepared,), version="1", log=NullLogger(), now=lambda: NOW, monotonic=lambda: 0.0
        )

    def over(self, *event_ids: str) -> None:
        """Remove events' files, as the agent does."""
        for event_id in event_ids:
            (self.events / file_name(event_id)).unlink()

    def heartbeat(self, *, up: bool = True, running: bool = True, name: str | None = "vm-1") -> None:
        """Write status.json again, as the agent does."""
        fields = {"up": up, "vm": {"id": None, "name": name}, "running": running}
        self._replace("status.json", status_file(fields, NOW))

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self.events / ".azse-0.tmp"
        temporary.write_bytes(content)
        temporary.replace(self.events / name)


@pytest.fixture
def handshake(tmp_path: Path) -> Iterator[Handshake]:
    with Handshake(tmp_path) as handshake:
        yield handshake


def test_ready_file_exists_from_preparation_to_the_end_of_the_event(handshake: Handshake) -> None:
    """The order is prepared, ready, ended, resumed; then the program ends, and leaves no file."""
    ready = handshake.announce("0A-1")
    handshake.start()
    until(ready.exists)
    assert handshake.ran(handshake.prepare) == 1
    assert handshake.ran(handshake.resume) == 0
    handshake.over("0A-1")
    assert handshake.ended() == 0
    assert (handshake.ran(handshake.prepare), handshake.ran(handshake.resume)) == (1, 1)
    assert [*handshake.ready.iterdir(), *(path for path in handshake.state.rglob("*") if path.is_file())] == []


def test_prepare_runs_once_for_several_events_and_their_changes(handshake: Handshake) -> None:
    """One preparation covers all events that appear, change, and start; each has its ready file until it ends."""
    first, second = handshake.announce("A"), handshake.announce("B")
    handshake.start()
    until(lambda: first.exists() and second.exists())
    handshake.announce("A", status="Started")
    handshake.announce("B", ready=None)  # no rule waits for it any more
    third = handshake.announce("C")
    until(third.exists)
    handshake.over("A")
    until(lambda: not first.exists())
    assert second.exists()
    assert third.exists()
    assert handshake.ran(handshake.resume) == 0
    handshake.over("B", "C")
    assert handshake.ended() == 0
    assert (handshake.ran(handshake.prepare), handshake.ran(handshake.resume)) == (1, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"EventType": None},
        {"Resources": "shop-web_3"},
        {"EventType": None, "Resources": None, "EventStatus": None, "NotBefore": None},
        {"EventId": REBOOT["EventId"].swapcase()},
    ],
    ids=str,
)
def test_unreadable_fields_and_another_case_of_the_id_do_not_resume(
    handshake: Handshake, fields: dict[str, Any]
) -> None:
    """The event's file stays until the event ends, and so does the preparation."""
    keeper, scenario = handshake.keeper(), EventScenario()
    scenario.read()
    scenario.read(REBOOT)
    keeper.reconcile(scenario.status(), running=True)
    handshake.start()
    until((handshake.ready / REBOOT["EventId"]).exists)
    for shown in ({**REBOOT, **fields}, {**started(REBOOT), **fields}, started(REBOOT), {**started(REBOOT), **fields}):
        scenario.read(shown)
        keeper.reconcile(scenario.status(), running=True)
        assert handshake.runs_on()
        assert (handshake.ran(handshake.prepare), handshake.ran(handshake.resume)) == (1, 0)
    scenario.read()
    keeper.reconcile(scenario.status(), running=True)
    assert handshake.ended() == 0
    assert (handshake.ran(handshake.prepare), handshake.ran(handshake.resume)) == (1, 1)


def test_failed_preparation_creates_no_ready_file_and_is_repeated(handshake: Handshake) -> None:
    """Each failure is logged; the attempt that succeeds creates the file."""
    fail = Path(f"{handshake.prepare}.fail")
    fail.touch()
    ready = handshake.announce("A")
    handshake.start()
    until(lambda: handshake.ran(handshake.prepare) == 2)
    assert not ready.exists()
    assert "prepare failed with exit code 1" in handshake.said
    fail.unlink()
    until(ready.exists)


def test_preparation_that_takes_too_long_fails(handshake: Handshake) -> None:
    """Its time is limited, and it is ended with all processes that it started."""
    hang = Path(f"{handshake.prepare}.hang")
    hang.touch()
    ready = handshake.announce("A")
    handshake.start(PREPARE_SECONDS="0.3")
    until(lambda: "not finished after 0.3 s" in handshake.said)
    assert not ready.exists()
    hang.unlink()
    until(ready.exists)


def test_preparation_is_undone_if_the_event_ends_first(handshake: Handshake) -> None:
    """The running preparation is ended and undone; no ready file was created."""
    Path(f"{handshake.prepare}.hang").touch()
    handshake.announce("A")
    handshake.start()
    until(lambda: handshake.ran(handshake.prepare) == 1)
    handshake.over("A")
    assert handshake.ended() == 0
    assert handshake.ran(handshake.resume) == 1
    assert "ready" not in handshake.said


def test_failed_resume_is_repeated(handshake: Handshake) -> None:
    """One failure doesn't keep the VM out of service."""
    fail = Path(f"{handshake.resume}.fail")
    fail.touch()
    ready = handshake.announce("A")
    handshake.start()
    until(ready.exists)
    handshake.over("A")
    until(lambda: handshake.ran(handshake.resume) == 2)
    assert not ready.exists()
    fail.unlink()
    assert handshake.ended() == 0


def test_restart_keeps_the_preparation(handshake: Handshake) -> None:
    """While the program is stopped there is no ready file; after the restart the preparation isn't repeated."""
    ready = handshake.announce("A")
    handshake.start()
    until(ready.exists)
    handshake.stop()
    assert not ready.exists()
    handshake.start()
    until(ready.exists)
    handshake.over("A")
    assert handshake.ended() == 0
    assert (handshake.ran(handshake.prepare), handshake.ran(handshake.resume)) == (1, 1)


def test_event_that_ended_while_stopped_is_undone(handshake: Handshake) -> None:
    """Started without an event file, it brings the VM back first."""
    ready = handshake.announce("A")
    handshake.start()
    until(ready.exists)
    handshake.stop()
    handshake.over("A")
    handshake.start()
    assert handshake.ended() == 0
    assert handshake.ran(handshake.resume) == 1


def test_dead_agent_does_not_keep_the_vm_out_of_service(handshake: Handshake) -> None:
    """Its events count as ended until it writes status.json again."""
    ready = handshake.announce("A")
    handshake.start(SILENT_SECONDS="20")
    until(ready.exists)
    until(lambda: handshake.ran(handshake.resume) == 1)
    assert not ready.exists()
    handshake.heartbeat()
    until(ready.exists)
    assert handshake.ran(handshake.prepare) == 2


@pytest.mark.parametrize(
    ("event_type", "status", "ready", "takes_part"),
    [
        ("Reboot", "Scheduled", None, False),
        ("Reboot", "Started", "", False),
        ("Reboot", "unknown", "", False),
        ("Preempt", "Scheduled", None, True),
        ("Terminate", "Scheduled", None, False),
        ("Reboot", "Scheduled", "relative", False),
        ("Reboot", "Scheduled", '/run/a"b', False),
    ],
)
def test_prepares_only_for_waiting_rules_and_listed_types(
    handshake: Handshake, event_type: str, status: str, ready: str | None, takes_part: bool
) -> None:
    """Neither for events without a waiting rule nor for started ones; the operator may write event types in any
    case."""
    handshake.announce("A", ready=ready, status=status, event_type=event_type)
    handshake.start(ALSO="Preempt")
    marker = handshake.announce("Z", event_type="Freeze")
    until(marker.exists)
    assert ("A: " in handshake.said) is takes_part
    handshake.over("Z")
    if takes_part:
        until(lambda: not marker.exists())
        assert handshake.ran(handshake.resume) == 0
    handshake.over("A")
    assert handshake.ended() == 0


def test_id_that_is_not_a_file_name_is_prepared(handshake: Handshake, tmp_path: Path) -> None:
    """The event file then has another name; the ready file is the one that it names."""
    ready = tmp_path / "ready" / "an id"
    handshake.announce("../\u00e9 $(id)", ready=str(ready))
    handshake.start()
    until(ready.exists)
    handshake.over("../\u00e9 $(id)")
    assert handshake.ended() == 0
    assert not ready.exists()


def test_missing_file_ends_the_event_only_with_a_current_status(handshake: Handshake) -> None:
    """After a reboot, the files are missing until the agent has polled and knows its name; a failing metadata service
    ends nothing either."""
    handshake.announce("A")
    handshake.start()
    until(lambda: handshake.ran(handshake.prepare) == 1)
    (handshake.events / "status.json").unlink()
    handshake.over("A")
    assert handshake.runs_on()
    for unknown in ({"up": False}, {"running": False}, {"name": None}):
        handshake.heartbeat(**unknown)
        assert handshake.runs_on()
    assert handshake.ran(handshake.resume) == 0
    handshake.heartbeat()
    assert handshake.ended() == 0
    assert handshake.ran(handshake.resume) == 1


def test_failing_metadata_service_keeps_nothing_prepared_forever(handshake: Handshake) -> None:
    """After the time limit, a missing file counts as the end, although the agent still writes its status."""
    handshake.announce("A")
    handshake.start(SILENT_SECONDS="20")
    until(lambda: handshake.ran(handshake.prepare) == 1)
    handshake.over("A")

    def beat() -> bool:
        handshake.heartbeat(up=False)
        return handshake.ran(handshake.resume) == 1

    until(beat)
    assert handshake.ended() == 0


def test_preparation_is_not_repeated_after_the_start(handshake: Handshake) -> None:
    """A failed preparation runs again only while an event is Scheduled; a later event gets its own."""
    Path(f"{handshake.prepare}.fail").touch()
    handshake.announce("A")
    handshake.start(RETRY_SECONDS="1")
    until(lambda: handshake.ran(handshake.prepare) == 1)
    handshake.announce("A", status="Started")
    until(lambda: "next attempt" in handshake.said)
    assert handshake.runs_on()
    assert handshake.runs_on()
    assert handshake.ran(handshake.prepare) <= 2  # the second one had begun before the start was read
    Path(f"{handshake.prepare}.fail").unlink()
    ready = handshake.announce("B")
    until(ready.exists)
    assert str(handshake.events / "B.json") in Path(f"{handshake.prepare}.log").read_text().splitlines()[-1]


def test_container_resumes_what_an_earlier_one_left(handshake: Handshake) -> None:
    """With KEEP_RUNNING, the program runs `resume` at its start and goes on without event files."""
    handshake.start(KEEP_RUNNING="1")
    until(lambda: handshake.ran(handshake.resume) == 1)
    assert handshake.runs_on()
    ready = handshake.announce("A")
    until(ready.exists)
    handshake.over("A")
    until(lambda: handshake.ran(handshake.resume) == 2)
    assert handshake.runs_on()
    handshake.stop()


@pytest.mark.parametrize("kept", [True, False], ids=["same state", "lost state"])
def test_killed_container_keeps_the_vm_prepared_until_the_event_ends(handshake: Handshake, *, kept: bool) -> None:
    """`prepare` runs again while the event is Scheduled; once it has started, only its end leads to `resume`."""
    ready = handshake.announce("A")
    handshake.start(KEEP_RUNNING="1")
    until(ready.exists)
    handshake.kill(lose_state=not kept)
    handshake.start(KEEP_RUNNING="1")
    until(lambda: handshake.ran(handshake.prepare) == 2)
    assert handshake.ran(handshake.resume) == 0
    handshake.kill(lose_state=not kept)
    handshake.announce("A", status="Started")
    handshake.start(KEEP_RUNNING="1")
    assert handshake.runs_on()
    assert (handshake.ran(handshake.prepare), handshake.ran(handshake.resume)) == (2, 0)
    handshake.over("A")
    until(lambda: handshake.ran(handshake.resume) == 1)
    assert not ready.exists()


@pytest.mark.parametrize("kept", [True, False], ids=["same state", "lost state"])
def test_killed_container_leaves_no_approval_behind(handshake: Handshake, *, kept: bool) -> None:
    """Its ready file goes before `prepare` has succeeded again, because others can have undone what was prepared."""
    ready = handshake.announce("A")
    handshake.start(KEEP_RUNNING="1")
    until(ready.exists)
    handshake.kill(lose_state=not kept)
    if not kept:
        ready.unlink()  # it is in the memory of the pod, whose end loses both
    Path(f"{handshake.prepare}.hang").touch()
    handshake.start(KEEP_RUNNING="1")
    until(lambda: handshake.ran(handshake.prepare) == 2)
    assert not ready.exists()


def test_container_prepares_again_for_a_later_event(handshake: Handshake) -> None:
    """Others can have undone the preparation for the first one."""
    first = handshake.announce("A")
    handshake.start(KEEP_RUNNING="1", RETRY_SECONDS="1")
    until(first.exists)
    (hang := Path(f"{handshake.prepare}.hang")).touch()
    second = handshake.announce("B")
    until(lambda: handshake.ran(handshake.prepare) == 2)
    assert not second.exists()
    handshake.kill()
    hang.unlink()
    handshake.start(KEEP_RUNNING="1")
    until(lambda: first.exists() and second.exists())


def test_container_checks_what_it_prepared(handshake: Handshake) -> None:
    """While an event is Scheduled, `prepare` runs again after some time, and its failure withdraws the ready file."""
    ready = handshake.announce("A")
    handshake.start(KEEP_RUNNING="1")
    until(ready.exists)
    until(lambda: handshake.ran(handshake.prepare) == 2)
    assert ready.exists()
    Path(f"{handshake.prepare}.fail").touch()
    until(lambda: not ready.exists())


def test_preparation_is_stopped_at_the_start(handshake: Handshake) -> None:
    """Nothing is prepared while the event is in progress; its end leads to `resume`."""
    Path(f"{handshake.prepare}.hang").touch()
    handshake.announce("A")
    handshake.start()
    until(lambda: handshake.ran(handshake.prepare) == 1)
    handshake.announce("A", status="Started")
    until(lambda: "stopped prepare" in handshake.said)
    assert handshake.runs_on()
    assert (handshake.ran(handshake.prepare), handshake.ran(handshake.resume)) == (1, 0)
    handshake.over("A")
    assert handshake.ended() == 0
    assert handshake.ran(handshake.resume) == 1


def test_container_waits_before_it_undoes_a_stopped_preparation(handshake: Handshake) -> None:
    """A request that was sent before can take effect later; meanwhile, the next event isn't overlooked."""
    hang = Path(f"{handshake.prepare}.hang")
    hang.touch()
    handshake.start(KEEP_RUNNING="1", RETRY_SECONDS="600")
    until(lambda: handshake.ran(handshake.resume) == 1)
    handshake.announce("A")
    until(lambda: handshake.ran(handshake.prepare) == 1)
    handshake.over("A")
    until(lambda: "stopped prepare" in handshake.said)
    assert handshake.runs_on()
    assert handshake.ran(handshake.resume) == 1
    hang.unlink()
    ready = handshake.announce("B")
    until(ready.exists)


def test_container_waits_for_the_agent_after_a_reboot(handshake: Handshake) -> None:
    """All files are missing then, and the event may still be in progress."""
    (handshake.events / "status.json").unlink()
    handshake.start(KEEP_RUNNING="1")
    assert handshake.runs_on()
    handshake.announce("A", status="Started")
    handshake.heartbeat()
    assert handshake.runs_on()
    assert handshake.ran(handshake.resume) == 0
    handshake.over("A")
    until(lambda: handshake.ran(handshake.resume) == 1)


def test_other_files_are_not_changed(handshake: Handshake) -> None:
    """An invalid event file and other files among the ready files stay unchanged, and are no events."""
    (handshake.events / "notes.json").write_text('{\n  "status": "Scheduled",\n  "ready_file": "/x"\n}\n')
    (handshake.ready / "other").touch()
    ready = handshake.announce("A")
    handshake.start()
    until(ready.exists)
    handshake.over("A")
    until(lambda: handshake.ran(handshake.resume) == 1)
    assert handshake.said.count("is Scheduled") == 1
    assert (handshake.ready / "other").exists()
    (handshake.events / "notes.json").unlink()
    assert handshake.ended() == 0


def test_ready_file_that_cannot_be_created_is_logged_once(handshake: Handshake, tmp_path: Path) -> None:
    """The journal has the reason, and the VM still comes back."""
    handshake.announce("A", ready=str(tmp_path / "missing" / "A"))
    handshake.start()
    until(lambda: "can't be created" in handshake.said)
    ready = handshake.announce("B")
    until(ready.exists)
    assert handshake.said.count("can't be created") == 1
    handshake.over("A", "B")
    assert handshake.ended() == 0


def test_runs_while_the_path_unit_sees_a_file(handshake: Handshake) -> None:
    """If it ended while a dangling link exists, the path unit would restart it in a loop."""
    link = handshake.events / "link.json"
    link.symlink_to("/missing")
    ready = handshake.announce("A")
    handshake.start()
    until(ready.exists)
    handshake.over("A")
    until(lambda: handshake.ran(handshake.resume) == 1)
    assert handshake.runs_on()
    link.unlink()
    assert handshake.ended() == 0


@pytest.mark.parametrize("what", ["file", "folder"])
def test_unreadable_path_is_logged_once(handshake: Handshake, what: str) -> None:
    """Nothing is prepared. The program keeps running, so that systemd doesn't restart it in a loop."""
    handshake.announce("A")
    handshake.announce("B")
    closed = [handshake.events] if what == "folder" else [handshake.events / f"{name}.json" for name in "AB"]
    for path in closed:
        path.chmod(0)
    try:
        handshake.start(*_without_roots_rights())
        until(lambda: "can't be read" in handshake.said)
        assert handshake.runs_on()
        assert handshake.said.count("can't be read") == 1
    finally:
        for path in closed:
            path.chmod(0o755)


def _without_roots_rights() -> tuple[str, ...]:
    """Prefix of a command, so that root, too, may read only what file permissions allow."""
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root reads everything, and there is no setpriv")
    return (setpriv, "--bounding-set=-dac_override,-dac_read_search", "--")


# -- the files around it


@pytest.mark.peer("shellcheck")
@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_accepts_each_example(name: str) -> None:
    """Each is for any POSIX sh, and executable."""
    done = subprocess.run([need("shellcheck"), str(EXAMPLES / name)], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert os.access(EXAMPLES / name, os.X_OK)


@pytest.mark.peer("systemd")
@pytest.mark.parametrize("drop_in", ["", "as-root.conf"])
def test_systemd_accepts_the_units_of_the_handshake(drop_in: str, tmp_path: Path) -> None:
    """`systemd-analyze verify` accepts the path unit and its service, with and without the drop-in."""
    for suffix in ("path", "service"):
        text = (EXAMPLES / f"{UNIT}.{suffix}").read_text(encoding="utf-8")
        (tmp_path / f"{UNIT}.{suffix}").write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text))
    if drop_in:
        (folder := tmp_path / f"{UNIT}.service.d").mkdir()
        shutil.copy(EXAMPLES / drop_in, folder)
    units = [str(tmp_path / f"{UNIT}.{suffix}") for suffix in ("path", "service")]
    command = [need("systemd-analyze"), "verify", "--man=no", *units]
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


@pytest.mark.parametrize(
    "name",
    [
        "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
        "s",
        "status-1",
        "statu",
        "statusx",
        "sTATUS",
        "a",
        "0" * 64,
        "-",
        "State",
    ],
)
def test_the_path_unit_sees_every_event_file(name: str, tmp_path: Path) -> None:
    """Its pattern matches every possible name of an event file, and neither status.json nor unfinished files."""
    (line,) = re.findall(r"^PathExistsGlob=(.+)$", (EXAMPLES / f"{UNIT}.path").read_text(), re.MULTILINE)
    folder, _, pattern = line.rpartition("/")
    assert f"ReadWritePaths=-{folder}\n" in (SYSTEMD / "azure-scheduled-events-exporter.service").read_text()
    for other in ("status.json", ".azse-0.tmp", ".azse-0.json"):
        (tmp_path / other).touch()
    script = f"shopt -s nullglob; cd {tmp_path}; echo {pattern}"  # as glob(3) with GLOB_BRACE
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == "\n"
    (tmp_path / f"{name}.json").touch()
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == f"{name}.json\n"


# -- Windows

WINDOWS: Final = ROOT / "deploy" / "windows" / "examples"
TASK: Final = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}


def test_the_scheduled_task_runs_what_the_page_installs() -> None:
    """It has the form of [MS-TSCH] 2.5, no encoding declaration (`Register-ScheduledTask -Xml` takes text), Local
    Service's rights, no time limit, and a trigger that starts it again."""
    text = (WINDOWS / "handshake.xml").read_text(encoding="ascii")
    assert "<?xml" not in text
    task = ElementTree.fromstring(text)  # noqa: S314  # our own file
    assert [child.tag.partition("}")[2] for child in task] == [
        "RegistrationInfo",
        "Triggers",
        "Principals",
        "Settings",
        "Actions",
    ]
    assert task.findtext(".//t:UserId", namespaces=TASK) == "S-1-5-19"
    assert task.findtext(".//t:RunLevel", namespaces=TASK) == "LeastPrivilege"
    assert task.findtext("t:Settings/t:ExecutionTimeLimit", namespaces=TASK) == "PT0S"
    assert task.findtext("t:Settings/t:MultipleInstancesPolicy", namespaces=TASK) == "IgnoreNew"
    triggers = [child.tag.partition("}")[2] for child in task.findall("t:Triggers/*", TASK)]
    assert triggers == ["BootTrigger", "TimeTrigger"]
    again = [child.tag.partition("}")[2] for child in task.findall("t:Triggers/t:TimeTrigger/*", TASK)]
    assert again == ["Enabled", "StartBoundary", "Repetition"]  # a sequence, in this order
    (principal,) = task.findall("t:Principals/t:Principal", TASK)
    (actions,) = task.findall("t:Actions", TASK)
    assert actions.get("Context") == principal.get("id")
    arguments = task.findtext(".//t:Arguments", namespaces=TASK) or ""
    program = r"%ProgramFiles%\azure-scheduled-events-handshake\handshake.ps1"
    assert arguments.endswith(f'-File "{program}"')
    page = (ROOT / "docs" / "handshake.md").read_text(encoding="utf-8")
    assert r'$program = "$env:ProgramFiles\azure-scheduled-events-handshake"' in page
    assert all(path.name in page for path in WINDOWS.iterdir())


def test_both_systems_programs_have_the_same_defaults() -> None:
    """Both programs have the same times, event types, and event-file type."""
    sh = (EXAMPLES / "handshake").read_text(encoding="utf-8")
    powershell = (WINDOWS / "handshake.ps1").read_text(encoding="ascii")
    for name, variable in (("PrepareSeconds", "PREPARE"), ("RetrySeconds", "RETRY"), ("SilentSeconds", "SILENT")):
        (recorded,) = re.findall(rf"\[int\] \${name} = (\d+)", powershell)
        assert f"${{{variable}_SECONDS:-{recorded}}}" in sh
    (also,) = re.findall(r"\$Also = @\((.*)\)", powershell)
    unit = (EXAMPLES / f"{UNIT}.service").read_text(encoding="utf-8")
    assert f'Environment="ALSO={" ".join(re.findall(r"[A-Z][a-z]+", also))}"\n' in unit
    assert EVENT_TYPE in powershell
    assert EVENT_TYPE.replace(".", r"\.") in sh
