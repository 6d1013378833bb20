"""What ends a console or a session stops the agent, and leaves it the time that Windows gives."""

from __future__ import annotations

import sys
import threading

import pytest

from exporter.windows.console import (
    GRACE_SECONDS,
    ConsoleEvent,
    SessionWindow,
    event_handler,
    session_end_handler,
    watch,
)


@pytest.mark.parametrize(
    ("event", "stops", "stays"),
    [
        (ConsoleEvent.CTRL_C, True, False),
        (ConsoleEvent.CTRL_BREAK, True, False),
        (ConsoleEvent.CLOSE, True, True),
        (ConsoleEvent.SHUTDOWN, True, True),
        (ConsoleEvent.LOGOFF, False, False),
    ],
)
def test_each_console_event_stops_and_stays_where_windows_would_end_the_process(
    event: ConsoleEvent, stops: bool, stays: bool
) -> None:
    """Each is handled; a logoff of whomever, which only services are told, is none of ours."""
    done: list[object] = []
    assert event_handler(lambda: done.append("stop"), done.append)(int(event)) is True
    assert done == ["stop"] * stops + [GRACE_SECONDS] * stays


def test_a_session_that_ends_stops_and_one_that_does_not_goes_on() -> None:
    """WM_ENDSESSION says by its first parameter whether somebody refused the end."""
    done: list[object] = []
    handle = session_end_handler(lambda: done.append("stop"), done.append)
    assert handle(1, 22, 0, 0) == 0
    assert done == []
    assert handle(1, 22, 1, 0) == 0
    assert done == ["stop", GRACE_SECONDS]


def test_the_grace_is_less_than_windows_waits() -> None:
    """After 5 s the process is ended in the middle [HandlerRoutine, Timeouts]; a stop takes up to 4.5 s."""
    assert 4.0 < GRACE_SECONDS < 5.0


@pytest.mark.linux("Windows has console events")
def test_elsewhere_there_are_no_console_events() -> None:
    """Who asks for them on another system has made a mistake, and hears of it."""
    with pytest.raises(NotImplementedError):
        watch(lambda: None)


@pytest.mark.windows
def test_watching_can_be_undone() -> None:
    """A command that is over leaves no handler and no thread behind."""
    if sys.platform == "win32":
        watch(lambda: None)()
        for thread in threading.enumerate():
            if thread.name == "session":
                thread.join(10)
        assert "session" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.windows
def test_the_hidden_window_is_told_of_the_end_of_the_session() -> None:
    """As the system tells it, from another thread."""
    if sys.platform == "win32":
        import win32con
        import win32console
        import win32gui

        if not win32console.GetConsoleWindow():  # type: ignore[no-untyped-call]  # the stubs' own gap
            pytest.skip("no console window, as under Wine: making one starts a program that keeps our streams open")
        told = threading.Event()
        window = SessionWindow(session_end_handler(told.set, lambda _: None))
        handle = window.handle()
        assert win32gui.SendMessage(handle, win32con.WM_QUERYENDSESSION, 0, 0) == 1
        assert not told.is_set()
        win32gui.SendMessage(handle, win32con.WM_ENDSESSION, 1, 0)
        assert told.is_set()
        window.close()
