"""What ends a console stops the agent, and leaves it the time that Windows gives."""

from __future__ import annotations

import pytest

from exporter.windows.system import GRACE_SECONDS, ConsoleEvent, event_handler, watch


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
    """A command that is over leaves no handler behind."""
    watch(lambda: None)()
