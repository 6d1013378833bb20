"""How commands end when they are stopped: by SIGINT, SIGTERM or SIGHUP, on Windows by Ctrl-C or Ctrl-Break."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from tests.support.console import UNDELIVERED
from tests.support.factories import service_of

STOPS: Final = ("ctrl-c", "ctrl-break") if sys.platform == "win32" else ("SIGINT", "SIGTERM", "SIGHUP")
SECONDS: Final = 120.0


class Stoppable:
    """One command as a process, with both streams in `lines`."""

    def __init__(self, stop: str, *words: str, python: tuple[str, ...] = ()) -> None:
        command = [sys.executable, *python, "-m", "exporter", *words]
        if sys.platform == "win32":
            command = [sys.executable, "-m", "tests.support.console", str(STOPS.index(stop)), *command]
        self._stop = stop
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def until(self, pattern: str) -> None:
        """Read up to a line that contains the pattern."""
        assert self._process.stdout is not None
        alarm = threading.Timer(SECONDS, self._process.kill)
        alarm.start()
        for line in self._process.stdout:
            self.lines.append(line.rstrip())
            if re.search(pattern, line):
                break
        else:
            raise AssertionError("\n".join(self.lines))
        alarm.cancel()

    def stopped(self) -> int:
        """Stop the process and return its exit code. Skip the test if the stop can't be sent."""
        assert self._process.stdin is not None
        if sys.platform == "win32":
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        else:
            self._process.send_signal(signal.Signals[self._stop])
        out, _ = self._process.communicate(timeout=SECONDS)
        self.lines += out.splitlines()
        if sys.platform == "win32" and self._process.returncode == UNDELIVERED:
            pytest.skip(f"this system can't send {self._stop}")
        return self._process.returncode


service = service_of("quiet")


@pytest.mark.parametrize("stop", STOPS)
def test_run_ends_with_its_last_record(stop: str, service: MetadataService, tmp_path: Path) -> None:
    """Exit code 0: the agent has recorded that it stopped, and `tail` shows the record."""
    outbox = tmp_path / "outbox.db"
    run = Stoppable(
        stop, "run", f"--source.url={service.url}", f"--outbox.path={outbox}", "--web.listen-address=127.0.0.1:0",
        "--source.poll-interval=1m",
    )  # fmt: skip
    run.until("event=agent.started")
    assert run.stopped() == 0, run.lines
    assert "Traceback" not in "\n".join(run.lines)
    shown = subprocess.run(
        [sys.executable, "-m", "exporter", "tail", "--outbox", str(outbox)],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert "agent.stopped" in shown.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process that is starting by itself")
@pytest.mark.parametrize("stop", STOPS)
def test_a_stop_during_the_imports_ends_with_0(stop: str) -> None:
    """A stop right after the start is no failure of the unit or the pod; there is nothing to end in order yet."""
    run = Stoppable(stop, "run", python=("-X", "importtime"))
    run.until(r"\bexporter\.agent\.approvals$")
    assert run.stopped() == 0, run.lines[-3:]


@pytest.mark.parametrize("stop", STOPS)
def test_simulate_ends_with_0(stop: str) -> None:
    """It prints that it was stopped."""
    simulate = Stoppable(stop, "simulate", "--scenario", "quiet", "--listen", "127.0.0.1:0")
    simulate.until("^scenario quiet")
    assert simulate.stopped() == 0, simulate.lines
    assert simulate.lines[-1] == "stopped"


@pytest.mark.parametrize("stop", STOPS)
def test_tail_ends_with_0_and_a_summary(stop: str, tmp_path: Path) -> None:
    """It ends the same way while it waits for a file."""
    tail = Stoppable(stop, "tail", "--follow", "--outbox", str(tmp_path / "missing.db"))
    tail.until(r"missing\.db does not exist")
    assert tail.stopped() == 0, tail.lines
    assert tail.lines[-1] == "0 records"


@pytest.mark.parametrize("stop", STOPS)
def test_demo_ends_with_its_summary(stop: str) -> None:
    """The records up to then are in every output."""
    demo = Stoppable(stop, "demo", "--keep-running", "--scenario", "quiet", "--listen", "127.0.0.1:0")
    demo.until("agent.started")
    assert demo.stopped() == 0, demo.lines
    assert "Every record arrived in every output" in demo.lines[-1]


@pytest.mark.parametrize("stop", STOPS)
def test_a_stopped_check_ends_at_once_with_the_signals_exit_code(stop: str) -> None:
    """A probe of a service that never responds is abandoned."""
    with MetadataService(load("quiet"), faults=["all/hang:60"]) as silent:
        check = Stoppable(stop, "check", "--probe", f"--source.url={silent.url}", "--web.listen-address=127.0.0.1:0")
        check.until("^testing")
        assert check.stopped() not in (0, 1, 2), check.lines
    assert "Traceback" not in "\n".join(check.lines)
    assert not [line for line in check.lines if line.startswith(("ok ", "fail "))]
