"""The service under the service manager of a real Windows, or of Wine: installed, started, stopped, killed, removed.

The service runs the package that this Python finds without the help of a working folder, so that has to be installed.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from exporter.commands.service.environment import Service
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from exporter.windows.service_manager import SERVICE_SPECIFIC_ERROR, ServiceState, open_manager
from tests.support.peers import until
from tests.support.systems import run_away

pytestmark = pytest.mark.windows

PROGRAM = (sys.executable, "-I", "-m", "exporter")


def action(service: Service, word: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `service WORD` as an administrator does, from an unrelated directory."""
    flags = (f"--name={service.name}", f"--folder={service.folder}", *flags)
    return run_away(os.path.dirname(service.folder), *PROGRAM, "service", word, *flags)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with a separate name, which is always removed at the end."""
    found = run_away(tmp_path, sys.executable, "-I", "-c", "import exporter")
    if found.returncode:
        pytest.skip("the package is not installed in this Python: a service does not find it in a working folder")
    made = Service(f"azse-test-{os.getpid()}", str(tmp_path / "data"))
    try:
        yield made
    finally:
        removed = action(made, "remove")
        assert removed.returncode == DONE, removed


def install(service: Service, url: str, listen: str = "127.0.0.1:0") -> None:
    done = action(
        service,
        "install",
        f"--source.url={url}",
        "--source.poll-interval=250ms",
        f"--web.listen-address={listen}",
        f"--outbox.path={os.path.join(service.folder, 'outbox.db')}",
    )
    assert done.returncode == DONE, done


def log_of(service: Service) -> str:
    try:
        return Path(service.log_file).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def address(service: Service) -> str:
    """Return its address, from the newest line of its log that has it."""
    lines = [line for line in log_of(service).splitlines() if "event=agent.listening " in line]
    return lines[-1].partition("address=")[2].split()[0] if lines else ""


def up(service: Service) -> bool:
    page = httpx.get(f"http://{address(service)}/metrics", timeout=30, trust_env=False).text
    return "\nazure_scheduled_events_up 1" in page


def kinds(service: Service) -> list[str]:
    """Return the kinds of all records in the outbox, in order."""
    with sqlite3.connect(os.path.join(service.folder, "outbox.db")) as db:
        rows: list[tuple[bytes]] = db.execute("SELECT body FROM records ORDER BY seq").fetchall()
    db.close()
    return [json.loads(body)["type"].removeprefix("azure_scheduled_event.").removesuffix(".v1") for (body,) in rows]


def status_of(service: Service) -> Any:
    with open_manager(False) as manager:
        return manager.status(service.name)


def kill(service: Service) -> None:
    """End the service's process at once, like a crash.

    Its account is not ours: an administrator opens it by a privilege that is there and not enabled [SeDebugPrivilege].
    """
    import win32api
    import win32con
    import win32security
    import win32service

    token = win32security.OpenProcessToken(
        win32api.GetCurrentProcess(), win32con.TOKEN_ADJUST_PRIVILEGES | win32con.TOKEN_QUERY
    )
    debug = win32security.LookupPrivilegeValue("", win32con.SE_DEBUG_NAME)
    enabled: Any = [(debug, win32con.SE_PRIVILEGE_ENABLED)]
    win32security.AdjustTokenPrivileges(token, False, enabled)
    manager = win32service.OpenSCManager(None, None, win32service.SC_MANAGER_CONNECT)
    handle = win32service.OpenService(manager, service.name, win32service.SERVICE_QUERY_STATUS)
    status: Any = win32service.QueryServiceStatusEx(handle)
    process = win32api.OpenProcess(win32con.PROCESS_TERMINATE, False, status["ProcessId"])
    win32api.TerminateProcess(process, 1)


def test_service_is_installed_serves_records_is_killed_is_stopped_and_removed(service: Service) -> None:
    with MetadataService(load("live-migration")) as source:
        install(service, source.url)
        assert status_of(service).state == ServiceState.STOPPED

        started = action(service, "start")
        assert started.returncode == DONE, (started, log_of(service))
        assert status_of(service).state == ServiceState.RUNNING
        until(lambda: up(service), seconds=120)
        until(lambda: "scheduled" in kinds(service), seconds=120)

        listened = log_of(service).count("event=agent.listening")
        kill(service)

        def runs_again() -> bool:
            action(service, "start")  # if the service manager has no recovery actions
            return log_of(service).count("event=agent.listening") > listened

        until(runs_again, seconds=120)
        until(lambda: up(service), seconds=120)

        stopped = action(service, "stop")
        assert stopped.returncode == DONE, (stopped, log_of(service))
        assert status_of(service).state == ServiceState.STOPPED
        assert status_of(service).win32_exit_code == 0
    assert kinds(service)[-1] == "agent.stopped"
    assert "event=agent.stopped" in log_of(service).splitlines()[-1]

    removed = action(service, "remove")
    assert removed.returncode == DONE
    assert status_of(service) is None
    assert (Path(service.folder) / "config.toml").exists()


def test_invalid_settings_stop_the_service_with_their_code_and_are_reported_by_start(service: Service) -> None:
    install(service, "http://127.0.0.1:1")
    (Path(service.folder) / "config.toml").write_text('[approval]\nmode = "yes"\n')
    started = action(service, "start")
    assert started.returncode == BAD_USAGE
    assert "the settings are invalid" in started.stderr
    assert "[approval] mode" in started.stderr
    status = status_of(service)
    assert (status.win32_exit_code, status.specific_exit_code) == (SERVICE_SPECIFIC_ERROR, 2)


def test_port_in_use_is_reported_by_start(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        install(service, "http://127.0.0.1:1", f"127.0.0.1:{taken.getsockname()[1]}")
        started = action(service, "start")
    assert started.returncode == FAILED
    assert "event=agent.not_started" in started.stderr
