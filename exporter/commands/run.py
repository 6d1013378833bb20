"""The command `run`: runs the agent until the process is asked to stop.

The agent runs on a separate thread. The calling thread only waits for it to end or, after a stop, for at most
`STOP_SECONDS`, so that a call that never returns, for example to a hung disk, can't keep the process from ending.
The process ends without finalising the interpreter, which would wait for other threads or end them inside a library:
bcrypt aborts the process if that happens.
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
"""How long a stop waits for the agent. With up to one second for the log, the process ends within five seconds."""

_PACKAGE: Final = Path(exporter.__file__).parent


def run(args: argparse.Namespace) -> int:
    """Run the agent until a trigger of `stops.stop_by` ends it.

    Return the exit code. Threads of the agent may still be running, so end the process with `os._exit`.
    Raises `ConfigError`.
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
    """Run the agent with these settings.

    Return the exit code. `stop_by` gets, before the agent starts, the function that stops the agent; it can be called
    from any thread. `started` is called when the endpoint listens and the threads run. Raises `ConfigError` for an
    invalid web-config file.
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
                text = str(error)
                if isinstance(error, OSError) and error.strerror and error.filename is None:
                    text = error.strerror  # without "[Errno 98] " before the sentence
                log.error("agent.not_started", error=text)
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
    """Call `agent` on a separate thread. Return its result, or raise its exception.

    `stop_by` gets a function that calls `stop`, which makes `agent` return. If `agent` takes longer than `seconds`
    after that, the log shows the code that it is in, the thread is abandoned, and the result is 0.
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
    """Return the innermost frame of this package on the thread: `outbox/file.py:312 transaction`."""
    frame = sys._current_frames().get(thread.ident or 0)  # the only way to read another thread's stack
    for called in reversed(traceback.extract_stack(frame) if frame else []):
        file = Path(called.filename)
        if file.is_relative_to(_PACKAGE):
            return f"{file.relative_to(_PACKAGE).as_posix()}:{called.lineno} {called.name}"
    return "unknown"
