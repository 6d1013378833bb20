"""The command `run`: the agent, until it is told to stop."""

from __future__ import annotations

import _thread
import argparse
import os
import signal
from collections.abc import Callable
from contextlib import closing

from exporter.agent.app import App, make_log
from exporter.config.load import ConfigError, load
from exporter.config.schema import Settings
from exporter.errors import Failure
from exporter.exit_codes import FAILED
from exporter.log.libraries import captured_libraries
from exporter.log.log import Log
from exporter.web.config import WebConfigError


def run(args: argparse.Namespace) -> int:
    """Run the agent until a signal stops it. Returns the exit code; raises `ConfigError`."""
    settings = load(args, os.environ)
    return run_agent(settings, make_log(settings), _stop_on_signals)


def run_agent(
    settings: Settings,
    log: Log,
    stop_by: Callable[[Callable[[], None]], None],
    started: Callable[[], None] = lambda: None,
) -> int:
    """Run the agent with these settings. Returns the exit code; raises `ConfigError` for a bad web-config file.

    `stop_by` gets the function that stops the agent, callable from any thread, before the agent starts. `started` is
    called once the endpoint listens and the threads run. The log is closed at the end, however it ends.
    """
    with closing(log), captured_libraries(log):
        for warning in settings.warnings:
            log.warn("config.warning", warning=warning)
        try:
            app = App(settings, log)
        except WebConfigError as error:
            raise ConfigError(tuple(error.errors)) from error
        stop_by(app.stop)
        try:
            app.start()
        except (OSError, Failure) as error:
            log.error("agent.not_started", error=str(error))
            return FAILED
        started()
        return app.run()


def _stop_on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # On a thread of its own: a handler runs in the middle of whatever the main thread does, locks and all.
        signal.signal(number, lambda *_: _thread.start_new_thread(stop, ()))
