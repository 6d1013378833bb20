"""Notifications to systemd, on a real socket opened like systemd's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.agent.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Yield a listening socket, and its name as in NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@azse-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        listener.settimeout(30)
        yield listener, name


@pytest.mark.linux("systemd listens on a UNIX socket")
def test_each_message_is_one_datagram(manager: tuple[socket.socket, str]) -> None:
    """Ready with a status of one line, alive, stopping: on a path or an abstract name."""
    listener, name = manager
    notifier = Notifier({"NOTIFY_SOCKET": name})
    notifier.ready("serving on 1")
    notifier.alive()
    notifier.stopping()
    assert [listener.recv(1000) for _ in range(3)] == [
        b"READY=1\nSTATUS=serving on 1",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


@pytest.mark.linux("systemd listens on a UNIX socket")
def test_keep_alive_messages_stop_with_the_loop(manager: tuple[socket.socket, str]) -> None:
    listener, name = manager
    ended = threading.Event()
    answers = [False, False, True, False]

    def turning() -> bool:
        answer = answers.pop(0)
        if not answers:
            ended.set()
        return answer

    Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1"}).watch(turning, ended)
    assert listener.recv(1000) == b"WATCHDOG=1"
    assert ended.wait(30)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(1000)


@pytest.mark.linux("systemd listens on a UNIX socket")
def test_no_thread_starts_without_a_watchdog(manager: tuple[socket.socket, str]) -> None:
    before = threading.active_count()
    Notifier({"NOTIFY_SOCKET": manager[1]}).watch(lambda: True, threading.Event())
    assert threading.active_count() == before


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_missing_or_dead_socket_is_ignored(environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    notifier.ready("ok")
    notifier.alive()
    notifier.stopping()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({"WATCHDOG_USEC": "-1"}, 0.0),
    ],
)
def test_watchdog_timeout_is_read_from_the_environment(environ: dict[str, str], seconds: float) -> None:
    """Zero if it is for another process, or invalid."""
    assert Notifier(environ).watchdog_seconds == seconds
