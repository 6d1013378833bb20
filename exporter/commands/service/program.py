"""`service run`: the agent as the program of a service, with a log file, and with failures in the Event Log."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from exporter.commands.service.environment import Service, working_in
from exporter.config.load import ConfigError, load
from exporter.config.schema import Settings
from exporter.errors import BAD_USAGE, FAILED
from exporter.files import RotatingFile
from exporter.log.log import Log
from exporter.secrets import Sieve
from exporter.text.terminal import print_error
from exporter.windows import event_log
from exporter.windows.service_manager import NOT_STARTED_BY_THE_MANAGER, ServiceManagerError, host

CONFIGURATION_ID: Final = 1
NOT_STARTED_ID: Final = 2
CRASHED_ID: Final = 3
"""Event ids of the entries in the Event Log."""

IN_A_TERMINAL: Final = (
    "service run: only for the service manager; in a terminal, use `run`, or start the service with `service start`"
)
LAST_LINES_SECONDS: Final = 1.0
"""The process ends right afterwards, and unwritten lines are lost. Only a hung disk takes this long."""

Report = Callable[[int, str], object]
"""Writes an entry of the Event Log: its id and its text."""


def run_service(service: Service, args: argparse.Namespace) -> int:
    """Run as the service that the service manager has started, and end the process with it.

    Return an exit code only if called from a terminal. Raises `ServiceManagerError`.
    """

    def make(name: str) -> AgentProgram:
        return AgentProgram(service, lambda: load(args, os.environ), partial(event_log.report, name))

    try:
        host(make)
    except ServiceManagerError as error:
        if error.number != NOT_STARTED_BY_THE_MANAGER:
            raise
        print_error(IN_A_TERMINAL)
        return BAD_USAGE
    return FAILED  # not reached: the process ends with the service


class AgentProgram:
    """The agent, for `service_manager.serve`. Its working directory is the service's folder."""

    def __init__(self, service: Service, load_settings: Callable[[], Settings], report: Report) -> None:
        self._service = service
        self._load = load_settings
        self._report = report
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._stopping = False

    def stop(self) -> None:
        """End `run`, from any thread."""
        with self._lock:
            self._stopping, stop = True, self._stop
        if stop is not None:
            stop()

    def _stop_by(self, stop: Callable[[], None]) -> None:
        with self._lock:
            self._stop, stopping = stop, self._stopping
        if stopping:
            stop()

    def run(self, started: Callable[[], None]) -> int:
        """Run the agent.

        Return the exit code: 2 for invalid settings, so that Windows doesn't restart the service. Never raises.
        """
        with working_in(self._service.folder):
            return self._run(started)

    def _run(self, started: Callable[[], None]) -> int:
        path = Path(self._service.log_file)
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
        settings = Settings()  # defaults for the log, until the settings are read
        file = RotatingFile(path)
        log = self._log(file, settings)
        try:
            settings = self._load()
            log = self._log(file, settings)
            # Only after START_PENDING was reported to the service manager.
            from exporter.commands.run import run_agent  # noqa: PLC0415  # takes seconds on a cold disk

            with _logged_threads(log):
                return run_agent(settings, log, self._stop_by, started)
        except ConfigError as error:
            for line in error.errors:
                log.error("agent.misconfigured", error=line)
            self._report_error(CONFIGURATION_ID, "The settings are invalid:\n" + "\n".join(error.errors), settings)
            return BAD_USAGE
        except Exception as error:  # the last chance to report it: a service has no standard error for a traceback
            log.error("agent.crashed", error=f"{type(error).__name__}: {error}", where=_innermost(error))
            self._report_error(
                CRASHED_ID, "The agent ended with an unexpected error:\n" + traceback.format_exc(), settings
            )
            return FAILED
        finally:
            log.close(LAST_LINES_SECONDS)
            if log.flush(0):  # else the log's thread is still writing to it
                file.close()

    def _log(self, file: RotatingFile, settings: Settings) -> Log:
        def not_started(error: object) -> None:
            self._report_error(NOT_STARTED_ID, f"The agent did not start: {error}", settings)

        return _ServiceLog(file, settings, not_started)

    def _report_error(self, number: int, text: str, settings: Settings) -> None:
        """Write the text to the Event Log, without secrets."""
        hidden = Sieve(settings.secrets)(text)
        self._report(number, f"{hidden}\n\nLog: {self._service.log_file}")


class _ServiceLog(Log):
    """The log of the service. It also calls `not_started` with the reason if the agent does not start."""

    def __init__(self, file: RotatingFile, settings: Settings, not_started: Callable[[object], None]) -> None:
        super().__init__(file, level=settings.log.level, format=settings.log.format, hide=settings.secrets)
        self._not_started = not_started

    def error(self, event: str, **fields: object) -> None:
        """Log an error, and pass the reason of `agent.not_started` on."""
        super().error(event, **fields)
        if event == "agent.not_started":
            self._not_started(fields.get("error", ""))


@contextlib.contextmanager
def _logged_threads(log: Log) -> Iterator[None]:
    """Log exceptions that end a thread; the default is standard error, which a service does not have."""

    def hook(failed: Any) -> None:
        where = _innermost(failed.exc_value)
        log.error("agent.thread_crashed", error=f"{failed.exc_type.__name__}: {failed.exc_value}", where=where)

    before, threading.excepthook = threading.excepthook, hook
    try:
        yield
    finally:
        threading.excepthook = before


def _innermost(error: BaseException | None) -> str:
    """Return file and line where it was raised; "" if unknown."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
