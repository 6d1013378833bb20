"""How `run` waits for the agent: until it ends or, after a stop, for a limited time."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

import pytest

from exporter.commands.run import run_until_stopped
from exporter.log.log import Log
from tests.support.log_reading import logged

Stop = Callable[[], None]


class Stops:
    """A source of stops: `stop` is set once it's known."""

    def __init__(self) -> None:
        self._known = threading.Event()
        self._stop: Stop = lambda: None

    def by(self, stop: Stop) -> None:
        self._stop = stop
        self._known.set()

    def stop(self) -> None:
        assert self._known.wait(60)
        self._stop()


class StuckStream:
    """A log whose lines are never read."""

    def write_line(self, line: bytes) -> None:
        del line
        threading.Event().wait()


@pytest.mark.parametrize("code", [0, 1])
def test_agent_that_ends_by_itself_gives_its_exit_code(code: int) -> None:
    text = io.StringIO()
    log = Log(text)
    assert run_until_stopped(lambda: code, lambda: None, lambda _: None, log) == code
    assert logged(log, text) == ""


def test_agent_that_ends_after_a_stop_gives_its_exit_code() -> None:
    text, stops, recorded = io.StringIO(), Stops(), threading.Event()
    log = Log(text)

    def agent() -> int:
        stops.stop()
        assert recorded.wait(60)
        return 0

    assert run_until_stopped(agent, recorded.set, stops.by, log, 60) == 0
    assert logged(log, text) == ""


def test_agent_that_never_ends_is_abandoned_and_its_place_is_logged() -> None:
    """Here it waits for a blocked log. The exit code is still 0."""
    text, stops, stuck = io.StringIO(), Stops(), Log(StuckStream())
    log = Log(text)

    def agent() -> int:
        stops.stop()
        stuck.info("nobody.reads")
        stuck.flush(3600)
        return 1

    assert run_until_stopped(agent, lambda: None, stops.by, log, 0.2) == 0
    line = logged(log, text)
    assert "level=error event=agent.stop_incomplete" in line
    assert 'waiting_in="log/writer.py:' in line
    assert " flush" in line


def test_stop_that_never_returns_does_not_extend_the_deadline() -> None:
    """The deadline starts before the agent is asked to stop, on any thread."""
    text, stops = io.StringIO(), Stops()
    log = Log(text)

    def never() -> None:
        threading.Event().wait()

    def agent() -> int:
        threading.Thread(target=stops.stop, daemon=True).start()
        never()
        return 1

    assert run_until_stopped(agent, never, stops.by, log, 0.2) == 0
    assert "event=agent.stop_incomplete" in logged(log, text)


def test_exception_of_the_agent_is_raised() -> None:
    """A setting whose error appears only now, or a bug: the caller reports it."""

    def agent() -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        run_until_stopped(agent, lambda: None, lambda _: None, Log(None))
