"""The command `run`: the agent, until it is told to stop."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import closing

from exporter.agent.app import App, make_log
from exporter.commands import stops
from exporter.config.load import ConfigError, load
from exporter.config.owner import OwnerError
from exporter.config.schema import Settings
from exporter.errors import Failure
from exporter.exit_codes import FAILED
from exporter.log.libraries import captured_libraries
from exporter.log.log import Log
from exporter.web.config import WebConfigError


def run(args: argparse.Namespace) -> int:
    """Run the agent until something of `stops` ends it. Returns the exit code; raises `ConfigError`."""
    settings = load(args, os.environ)
    return run_agent(settings, make_log(settings), stops.stop_by)


def run_agent(
    settings: Settings,
    log: Log,
    stop_by: Callable[[Callable[[], None]], object],
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
        except OwnerError as error:
            raise ConfigError((f"event_files.owner: expected {error}, found {settings.event_files.owner}",)) from error
        stop_by(app.stop)
        try:
            app.start()
        except (OSError, Failure) as error:
            log.error("agent.not_started", error=str(error))
            return FAILED
        started()
        return app.run()
