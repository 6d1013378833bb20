"""The command `run`: the agent, until it is told to stop.

The agent runs on a thread of its own, and the calling thread only waits: for its end or, after a stop, for at most
`STOP_SECONDS`. So neither a disk that hangs nor anything else that never returns keeps the process from ending. It ends
without finalising the interpreter, which would wait for other threads, or end them inside a library: bcrypt aborts the
process when that happens to it.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from typing import Final

import exporter
from exporter.agent.app import App, make_log
from exporter.commands import stops
from exporter.config.load import ConfigError, load
from exporter.config.schema import Settings
from exporter.daemon import DaemonCall
from exporter.errors import DONE, FAILED, Failure
from exporter.log.log import Log, captured_libraries
from exporter.web.config import WebConfigError

STOP_SECONDS: Final = 3.5
"""How long a stop waits for the agent. With the log's last second the process ends within five."""

_PACKAGE: Final = Path(exporter.__file__).parent


def run(args: argparse.Namespace) -> int:
    """Run the agent until something of `stops` ends it. Returns the exit code; raises `ConfigError`.

    Threads of the agent may still be running: end the process by `os._exit`.
    """
    settings = load(args, os.environ)
    with closing(make_log(settings)) as log:
        return run_agent(settings, log, stops.stop_by)


def run_agent(
    settings: Settings,
    log: Log,
    stop_by: Callable[[Callable[[], None]], object],
    started: Callable[[], None] = lambda: None,
) -> int:
    """Run the agent with these settings. Returns the exit code; raises `ConfigError` for a bad web-config file.

    `stop_by` gets the function that stops the agent, callable from any thread, before the agent starts. `started` is
    called once the endpoint listens and the threads run.
    """
    with captured_libraries(log):
        for warning in settings.warnings:
            log.warn("config.warning", warning=warning)
        try:
            app = App(settings, log)
        except WebConfigError as error:
            raise ConfigError(tuple(error.errors)) from error

        def agent() -> int:
            try:
                app.start()
            except (OSError, Failure) as error:
                log.error("agent.not_started", error=str(error))
                return FAILED
            started()
            return app.run()

        return run_until_stopped(agent, app.stop, stop_by, log)


def run_until_stopped(
    agent: Callable[[], int],
    stop: Callable[[], None],
    stop_by: Callable[[Callable[[], None]], object],
    log: Log,
    seconds: float = STOP_SECONDS,
) -> int:
    """Call `agent` on a thread of its own; its result, or what it raises.

    `stop_by` gets a function that calls `stop`, which makes `agent` return. If that takes longer than so many seconds,
    it is left behind: the log shows where it is, and the result is 0.
    """
    turned = threading.Event()

    def stop_and_wait() -> None:
        turned.set()
        stop()

    stop_by(stop_and_wait)
    call = DaemonCall(agent, "agent")
    call.add_done_callback(lambda _: turned.set())
    turned.wait()
    wait([call], seconds)
    if not call.done():
        log.error("agent.stop_incomplete", waiting_in=_place(call.thread), seconds=seconds)
        return DONE
    return call.result()


def _place(thread: threading.Thread) -> str:
    """The innermost place in our own code where the thread is: `outbox/file.py:312 transaction`."""
    frame = sys._current_frames().get(thread.ident or 0)  # the one way to ask where a thread is
    for called in reversed(traceback.extract_stack(frame) if frame else []):
        file = Path(called.filename)
        if file.is_relative_to(_PACKAGE):
            return f"{file.relative_to(_PACKAGE).as_posix()}:{called.lineno} {called.name}"
    return "unknown"
