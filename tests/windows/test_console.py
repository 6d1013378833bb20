"""Console events stop the agent, within the time that Windows allows."""

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
def test_each_console_event_stops_and_waits_if_windows_would_end_the_process(
    event: ConsoleEvent, stops: bool, stays: bool
) -> None:
    """Each event is handled; a logoff, which only services receive, is ignored."""
    done: list[object] = []
    assert event_handler(lambda: done.append("stop"), done.append)(int(event)) is True
    assert done == ["stop"] * stops + [GRACE_SECONDS] * stays


def test_grace_period_is_shorter_than_windows_waits() -> None:
    """After 5 s, Windows ends the process [HandlerRoutine, Timeouts]; a stop takes up to 4.5 s."""
    assert 4.0 < GRACE_SECONDS < 5.0


@pytest.mark.linux("Windows has console events")
def test_other_systems_have_no_console_events() -> None:
    """Watching them on another system is an error."""
    with pytest.raises(NotImplementedError):
        watch(lambda: None)


@pytest.mark.windows
def test_watching_can_be_undone() -> None:
    """No handler remains after a command."""
    watch(lambda: None)()
