"""`service start`, `stop`, and `remove`: each waits, can be repeated, and reports why it failed."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from exporter.commands.service.command import STOP_SECONDS, service
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.windows.access import SERVICE_NAME
from exporter.windows.service_manager import SERVICE_SPECIFIC_ERROR, ServiceState, ServiceStatus
from tests.support.service_environment import FakeWindows


@pytest.fixture
def windows(tmp_path: Path) -> FakeWindows:
    made = FakeWindows(tmp_path)
    assert service(made.arguments("install", f"--outbox.path={made.data / 'outbox.db'}"), made.environment) == DONE
    made.manager.asked.clear()
    return made


def do(windows: FakeWindows, action: str) -> int:
    return service(windows.arguments(action), windows.environment)


def test_start_waits_until_it_runs(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    pending = ServiceStatus(ServiceState.START_PENDING)
    windows.manager.after_start = [pending] * 20 + [ServiceStatus(ServiceState.RUNNING)]
    assert do(windows, "start") == DONE
    assert str(windows.data / "log" / "agent.log") in capsys.readouterr().out
    assert 1 < windows.clock.now < 5


def test_running_service_is_not_started_again(windows: FakeWindows) -> None:
    assert do(windows, "start") == DONE
    assert do(windows, "start") == DONE
    assert windows.manager.asked == ["start"]


def test_start_with_invalid_settings_prints_the_new_lines_of_the_log(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    log = windows.data / "log" / "agent.log"
    log.write_text("an old line\n")

    def fails() -> None:
        with log.open("a") as file:
            file.write("event=agent.misconfigured error=SharedAccessKey=hush-hush\n")

    windows.manager.on_start = fails
    windows.manager.after_start = [ServiceStatus(ServiceState.STOPPED, SERVICE_SPECIFIC_ERROR, 2)]
    assert do(windows, "start") == BAD_USAGE
    err = capsys.readouterr().err
    assert "the settings are invalid" in err
    assert "agent.misconfigured" in err
    assert "an old line" not in err
    assert "hush-hush" not in err


def test_start_with_an_ending_process_reports_that_windows_may_retry(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    windows.manager.after_start = [ServiceStatus(ServiceState.START_PENDING), ServiceStatus(ServiceState.STOPPED, 1067)]
    assert do(windows, "start") == FAILED
    assert "Windows may retry" in capsys.readouterr().err


def test_missing_program_is_not_reported_as_invalid_settings(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows' own error 2 differs from the service's exit code 2."""
    windows.manager.after_start = [ServiceStatus(ServiceState.STOPPED, 2)]
    assert do(windows, "start") == FAILED
    assert "settings" not in capsys.readouterr().err


def test_start_gives_up_after_its_time_limit(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    windows.manager.after_start = [ServiceStatus(ServiceState.START_PENDING)]
    assert do(windows, "start") == FAILED
    assert "not running after 60 s" in capsys.readouterr().err


def test_stop_waits_until_the_service_has_stopped_and_can_be_repeated(windows: FakeWindows) -> None:
    do(windows, "start")
    assert do(windows, "stop") == DONE
    assert do(windows, "stop") == DONE
    assert windows.manager.asked == ["start", "stop"]


def test_starting_service_is_stopped_when_it_has_started(windows: FakeWindows) -> None:
    windows.manager.statuses[SERVICE_NAME] = ServiceStatus(ServiceState.START_PENDING)
    windows.manager.coming = [ServiceStatus(ServiceState.START_PENDING)] * 5 + [ServiceStatus(ServiceState.RUNNING)]
    assert do(windows, "stop") == DONE
    assert windows.clock.now > 0.3


STOPPING = [ServiceStatus(ServiceState.STOP_PENDING)] * 5 + [ServiceStatus(ServiceState.STOPPED)]


def test_stop_of_a_stopping_service_waits(windows: FakeWindows) -> None:
    """Windows rejects a control then, with an error that would be about a starting service."""
    windows.manager.statuses[SERVICE_NAME] = ServiceStatus(ServiceState.STOP_PENDING)
    windows.manager.coming = list(STOPPING)
    assert do(windows, "stop") == DONE
    assert windows.manager.asked == []


def test_stopping_service_is_started_when_it_has_stopped(windows: FakeWindows) -> None:
    windows.manager.statuses[SERVICE_NAME] = ServiceStatus(ServiceState.STOP_PENDING)
    windows.manager.coming = list(STOPPING)
    asked_at: list[int] = []
    windows.manager.on_start = lambda: asked_at.append(windows.manager.statuses[SERVICE_NAME].state)
    assert do(windows, "start") == DONE
    assert asked_at == [ServiceState.STOPPED]


def test_stop_that_exceeds_its_time_limit_is_reported(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    do(windows, "start")
    windows.manager.after_stop = [ServiceStatus(ServiceState.STOP_PENDING)]
    assert do(windows, "stop") == FAILED
    assert windows.clock.now >= STOP_SECONDS
    assert "not stopped after 10 s" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["start", "stop"])
def test_action_on_a_missing_service_is_reported(
    tmp_path: Path, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert do(FakeWindows(tmp_path), action) == FAILED
    assert "service install" in capsys.readouterr().err


def test_remove_stops_and_removes_and_keeps_settings_and_outbox(
    windows: FakeWindows, capsys: pytest.CaptureFixture[str]
) -> None:
    do(windows, "start")
    assert do(windows, "remove") == DONE
    assert windows.manager.asked == ["start", "stop", "delete"]
    assert not windows.sources
    assert (windows.data / "config.toml").exists()
    assert str(windows.data) in capsys.readouterr().out
    assert do(windows, "remove") == DONE, "an uninstaller may call it again"


def test_service_of_another_program_is_not_removed(windows: FakeWindows, capsys: pytest.CaptureFixture[str]) -> None:
    found = windows.manager.services[SERVICE_NAME]
    windows.manager.services[SERVICE_NAME] = replace(found, command=(r"C:\Windows\spoolsv.exe",))
    assert do(windows, "remove") == FAILED
    assert "belongs to another program" in capsys.readouterr().err
    assert windows.manager.asked == []


def test_service_that_does_not_stop_is_not_removed(windows: FakeWindows) -> None:
    do(windows, "start")
    windows.manager.after_stop = [ServiceStatus(ServiceState.STOP_PENDING)]
    assert do(windows, "remove") == FAILED
    assert SERVICE_NAME in windows.manager.services
