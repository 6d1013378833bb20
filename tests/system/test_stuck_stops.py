"""`run` ends within its deadline while a call that it waits for never returns: exit code 0, and a log line that names
what did not end. A password check of an unknown client does not abort the process either."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import bcrypt
import pytest

from tests.support.agent_environment import document
from tests.support.effort import examples
from tests.support.peers import need, until
from tests.support.running import Run
from tests.system.test_faults_process import watched
from tests.system.test_run import mine, quiet
from tests.system.test_stuck_stderr import full_pipe

pytestmark = pytest.mark.linux("stops processes by signals, and their calls by strace")

INCOMPLETE: Final = "agent.stop_incomplete"
STOPPED: Final = examples(6)
COSTS: Final = (8, 9, 10, 12)
"""A check takes from 15 to 250 ms: about as long as an orderly stop, so that many end while the process ends."""
STRANGERS: Final = 30


def processor_ticks(run: Run) -> int:
    """Return the agent's processor time so far, in clock ticks."""
    fields = Path(f"/proc/{run.process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def ask_with_a_wrong_password(run: Run) -> socket.socket:
    """Open a connection with a request that waits for its password check."""
    host, port = run.address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), timeout=30)
    credentials = base64.b64encode(b"alice:wrong" + os.urandom(4).hex().encode()).decode()
    sock.sendall(f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {credentials}\r\n\r\n".encode())
    return sock


def stop_during_checks(number: int, folder: Path, url: str) -> tuple[int, list[str]]:
    """Return exit code and log of an agent that is stopped while it checks passwords of unknown clients."""
    folder = folder / str(number)
    folder.mkdir()
    web = folder / "web.yml"
    web.write_text(
        f"basic_auth_users:\n  alice: {bcrypt.hashpw(b'right', bcrypt.gensalt(COSTS[number % len(COSTS)])).decode()}\n"
    )
    with Run(url, folder, f"--web.config.file={web}") as run, contextlib.ExitStack() as strangers:
        run.wait_for(lambda: bool(run.said("agent.started")))
        before = processor_ticks(run)
        for _ in range(STRANGERS):
            strangers.enter_context(ask_with_a_wrong_password(run))
        until(lambda: processor_ticks(run) > before + 10, every=0.01)
        return run.stop(), run.lines


def test_a_stop_during_a_password_check_ends_with_0(tmp_path: Path) -> None:
    """Several stops, each during password checks of unknown clients: no abort, no traceback."""
    with quiet() as service, ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda number: stop_during_checks(number, tmp_path, service.url), range(STOPPED)))
    assert [code for code, _ in ended] == [0] * STOPPED
    assert "Traceback" not in str(ended)


# -- system calls that never return


class Hang:
    """Return a library that makes chosen calls of the agent hang (`tests/support/hang.c`)."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.environ = {"LD_PRELOAD": str(library), "HANG": str(folder)}

    def begin(self, call: str) -> None:
        """Make this call hang from now on: `fsync`, `lookup`, or `lstat`."""
        (self._folder / call).touch()

    def wait(self) -> None:
        """Wait until a call hangs."""
        until((self._folder / "hanging").exists)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hang") / "hang.so"
    source = Path(__file__).parent.parent / "support" / "hang.c"
    subprocess.run([need("cc"), "-shared", "-fPIC", "-nostdlib", "-o", str(path), str(source)], check=True)
    return path


@pytest.fixture
def hang(library: Path, tmp_path: Path) -> Hang:
    return Hang(library, tmp_path / "hang")


def ended_by(run: Run, stop: str) -> int:
    """Return the exit code after this signal."""
    run.process.send_signal(signal.Signals[stop])
    return run.ended()


@pytest.mark.parametrize(
    "stop", ["SIGTERM", *(pytest.param(stop, marks=pytest.mark.nightly) for stop in ("SIGINT", "SIGHUP"))]
)
def test_a_stop_while_a_commit_hangs_ends_with_0(tmp_path: Path, hang: Hang, stop: str) -> None:
    """The poll loop is in a commit with an fsync that never returns: the process ends with 0, and names the outbox."""
    with watched(tmp_path, environ=hang.environ) as (run, service):
        hang.begin("fsync")
        service.set_document(document(6, mine()))
        hang.wait()
        assert ended_by(run, stop) == 0
    (line,) = run.said(INCOMPLETE)
    assert "outbox" in line
    assert not service.posts


def test_systemd_is_notified_of_a_stop_while_a_commit_hangs(tmp_path: Path, hang: Hang) -> None:
    """systemd shows that the service stops, and not that it runs."""
    name = f"azse-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(30)
        with watched(tmp_path, environ={**hang.environ, "NOTIFY_SOCKET": f"@{name}"}) as (run, service):
            assert manager.recv(1000).startswith(b"READY=1")
            hang.begin("fsync")
            service.set_document(document(6, mine()))
            hang.wait()
            assert run.stop() == 0
            until(lambda: manager.recv(1000) == b"STOPPING=1")


def test_a_stop_while_its_own_commit_hangs_ends_with_0(tmp_path: Path, hang: Hang) -> None:
    """The disk hangs before the last record is committed."""
    with watched(tmp_path, environ=hang.environ) as (run, _):
        hang.begin("fsync")
        assert run.stop() == 0
    (line,) = run.said(INCOMPLETE)
    assert "outbox" in line


def test_a_stop_while_the_outbox_is_first_opened_ends_with_0(tmp_path: Path, hang: Hang) -> None:
    """The agent does not listen yet: its first fsync never returns."""
    hang.begin("fsync")
    with quiet() as service, Run(service.url, tmp_path, environ=hang.environ) as run:
        hang.wait()
        assert run.stop() == 0
    (line,) = run.said(INCOMPLETE)
    assert "outbox" in line
    assert not run.said("agent.listening")


def test_a_stop_while_disk_and_log_hang_ends_with_0(tmp_path: Path, hang: Hang) -> None:
    """No line can be written, and no commit ends."""
    hang.begin("fsync")
    with (
        full_pipe() as (_, write),
        quiet() as service,
        Run(service.url, tmp_path, stderr=write, environ=hang.environ) as run,
    ):
        hang.wait()
        assert run.stop() == 0


@pytest.mark.parametrize("slow_peer", ["source", "destination"])
def test_a_stop_during_a_hanging_name_lookup_ends_with_0(tmp_path: Path, hang: Hang, slow_peer: str) -> None:
    """A name lookup can't be aborted, neither that of the metadata service nor that of a destination."""
    hang.begin("lookup")
    with quiet() as service:
        url = "http://metadata.test" if slow_peer == "source" else service.url
        endpoint = "--otlp.endpoint=http://collector.test:4318"
        with Run(url, tmp_path, endpoint, environ=hang.environ) as run:
            run.wait_for(lambda: bool(run.said("agent.listening")))
            hang.wait()
            assert run.stop() == 0
    assert not run.said(INCOMPLETE)


def test_a_stop_during_a_hanging_hold_file_check_ends_with_0(tmp_path: Path, hang: Hang) -> None:
    """The file system of the hold file does not respond."""
    hold = tmp_path / "file"
    hang.begin("lstat")
    flags = ("--approval.mode=enforce", f"--approval.hold-file={hold}")
    with quiet() as service:
        service.set_document(document(5, mine()))
        with Run(service.url, tmp_path, *flags, environ={**hang.environ, "HANG_PATH": str(hold)}) as run:
            run.wait_for(lambda: bool(run.said("agent.started")))
            hang.wait()
            assert run.stop() == 0
        assert not service.posts
    assert not run.said(INCOMPLETE)


def test_an_orderly_stop_logs_no_abandoned_work(tmp_path: Path) -> None:
    """SIGHUP ends the agent in order, with its last record."""
    with watched(tmp_path) as (run, _):
        assert ended_by(run, "SIGHUP") == 0
    assert run.said("agent.stopped")
    assert not run.said(INCOMPLETE)


def test_nohup_keeps_the_agent_running(tmp_path: Path) -> None:
    """SIGHUP that was ignored when the process began, as by `nohup`, stays ignored."""
    with watched(tmp_path, prefix=("nohup",)) as (run, service):
        run.process.send_signal(signal.SIGHUP)
        before = len(service.requests)
        run.wait_for(lambda: len(service.requests) > before + 2)
        assert run.stop() == 0
