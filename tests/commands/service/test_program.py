"""The program of the service: the real agent, with a log file, and with failures in the Event Log."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from exporter.commands.service.environment import Service
from exporter.commands.service.install import parsed
from exporter.commands.service.program import CONFIGURATION_ID, CRASHED_ID, NOT_STARTED_ID, AgentProgram
from exporter.config.load import load
from exporter.config.schema import Settings
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.simulator.metadata.scenario import load as scenario
from exporter.simulator.metadata.service import MetadataService
from exporter.windows.service_manager import CONTROL_STOP, ServiceState, StatusReporter, control, serve
from tests.support.peers import until


class Tried:
    """A program in a separate folder, with its entries in the Event Log."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.reports: list[tuple[int, str]] = []
        self.flags = (f"--outbox.path={folder / 'outbox.db'}", "--web.listen-address=127.0.0.1:0", *words)
        self.program = AgentProgram(Service("azse", str(folder)), self.settings, self.report)

    def settings(self) -> Settings:
        return load(parsed(self.flags), {})

    def report(self, number: int, text: str) -> None:
        self.reports.append((number, text))

    @property
    def log(self) -> str:
        file = self.folder / "log" / "agent.log"
        return file.read_text(encoding="utf-8") if file.exists() else ""


def test_agent_runs_until_the_manager_stops_it_and_nothing_is_lost(tmp_path: Path) -> None:
    with MetadataService(scenario("live-migration")) as source:
        tried = Tried(tmp_path, f"--source.url={source.url}", "--source.poll-interval=50ms")
        reported: list[int] = []
        running = threading.Event()

        def set_status(status: tuple[int, ...]) -> None:
            reported.append(status[1])
            if status[1] == ServiceState.RUNNING:
                running.set()

        codes: list[int] = []
        reporter = StatusReporter(set_status)
        thread = threading.Thread(target=lambda: codes.append(serve(tried.program, reporter)))
        thread.start()
        assert running.wait(60)
        until(lambda: "event=agent.started" in tried.log)  # before its first poll, it has nothing to record
        control(CONTROL_STOP, tried.program, reporter)
        thread.join(60)
    assert codes == [DONE]
    assert reported == [
        ServiceState.START_PENDING,
        ServiceState.RUNNING,
        ServiceState.STOP_PENDING,
        ServiceState.STOPPED,
    ]
    assert "event=agent.listening" in tried.log
    assert "event=agent.stopped" in tried.log
    assert not tried.reports


def test_stop_before_the_agent_has_started_ends_it(tmp_path: Path) -> None:
    with MetadataService(scenario("live-migration")) as source:
        tried = Tried(tmp_path, f"--source.url={source.url}")
        tried.program.stop()
        assert tried.program.run(lambda: None) == DONE


def test_invalid_settings_end_it_with_2_and_are_in_both_logs(tmp_path: Path) -> None:
    tried = Tried(tmp_path, "--approval.mode=yes", "--log.level=loud")
    assert tried.program.run(lambda: None) == BAD_USAGE
    ((number, text),) = tried.reports
    assert number == CONFIGURATION_ID
    assert "--approval.mode" in text
    assert "--log.level" in text
    assert str(tmp_path / "log" / "agent.log") in text
    assert tried.log.count("event=agent.misconfigured") == 2


def test_port_in_use_ends_it_with_1_and_is_in_both_logs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tried = Tried(tmp_path, f"--web.listen-address=127.0.0.1:{port}")
        assert tried.program.run(lambda: None) == FAILED
    ((number, text),) = tried.reports
    assert number == NOT_STARTED_ID
    assert str(port) in text
    assert "event=agent.not_started" in tried.log


def test_crash_ends_it_with_1_and_its_traceback_is_in_the_event_log_without_a_secret(tmp_path: Path) -> None:
    class Broken(Tried):
        def settings(self) -> Settings:
            raise RuntimeError("SharedAccessKey=hush-hush of a bug")

    tried = Broken(tmp_path)
    assert tried.program.run(lambda: None) == FAILED
    ((number, text),) = tried.reports
    assert number == CRASHED_ID
    assert "Traceback" in text
    assert "hush-hush" not in text + tried.log
    assert "event=agent.crashed" in tried.log


def test_relative_paths_refer_to_the_services_folder_and_the_working_directory_is_restored(
    tmp_path: Path,
) -> None:
    seen: list[str] = []

    class Elsewhere(Tried):
        def settings(self) -> Settings:
            seen.append(os.getcwd())
            return super().settings()

    before = os.getcwd()
    assert Elsewhere(tmp_path, "--approval.mode=yes").program.run(lambda: None) == BAD_USAGE
    assert [os.path.realpath(folder) for folder in seen] == [os.path.realpath(tmp_path)]
    assert os.getcwd() == before


def test_exception_that_ends_a_thread_is_in_the_log(tmp_path: Path) -> None:
    with MetadataService(scenario("live-migration")) as source:
        tried = Tried(tmp_path, f"--source.url={source.url}")

        def started() -> None:
            broken = threading.Thread(target=lambda: 1 / 0)
            broken.start()
            broken.join()
            tried.program.stop()

        assert tried.program.run(started) == DONE
    assert "event=agent.thread_crashed" in tried.log
    assert "ZeroDivisionError" in tried.log


def test_missing_folder_is_reported_in_the_event_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tried = Tried(tmp_path / "missing", "--approval.mode=yes")
    assert tried.program.run(lambda: None) == BAD_USAGE
    assert tried.reports
    assert not capfd.readouterr().err
