"""`service run`: the agent as the program of a service, with a log file, and its failures in the Event Log."""

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
"""The ids of our entries in the Event Log."""

IN_A_TERMINAL: Final = (
    "`service run` is for the service manager: in a terminal use `run`, or start the service by `service start`"
)
LAST_LINES_SECONDS: Final = 1.0
"""The process ends at once afterwards, and what is not written by then is lost. Only a stuck disk takes so long."""

Report = Callable[[int, str], object]
"""Writes an entry of the Event Log: its id and its text."""


def run_service(service: Service, args: argparse.Namespace) -> int:
    """Run as the service that the service manager has started; the process ends with it. Returns for a terminal alone.

    Raises `ServiceManagerError`.
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
    """The agent, for `service_manager.serve`. It works in the service's folder: relative paths are of that one."""

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
        """Run the agent. Returns the exit code: 2 for wrong settings, which no further start would correct."""
        with working_in(self._service.folder):
            return self._run(started)

    def _run(self, started: Callable[[], None]) -> int:
        path = Path(self._service.log_file)
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
        settings = Settings()  # the log's own defaults, until they are known
        file = RotatingFile(path)
        log = self._log(file, settings)
        try:
            settings = self._load()
            log = self._log(file, settings)
            # After the service manager has heard of us.
            from exporter.commands.run import run_agent  # noqa: PLC0415  # takes seconds on a cold disk

            with _logged_threads(log):
                return run_agent(settings, log, self._stop_by, started)
        except ConfigError as error:
            for line in error.errors:
                log.error("agent.misconfigured", error=line)
            self._report_error(CONFIGURATION_ID, "The settings are wrong:\n" + "\n".join(error.errors), settings)
            return BAD_USAGE
        except Exception as error:  # the last one that can tell: where the process ends, nobody reads a traceback
            log.error("agent.crashed", error=f"{type(error).__name__}: {error}", where=_innermost(error))
            self._report_error(CRASHED_ID, "The agent has ended:\n" + traceback.format_exc(), settings)
            return FAILED
        finally:
            log.close(LAST_LINES_SECONDS)
            if log.flush(0):  # else somebody is still writing to it
                file.close()

    def _log(self, file: RotatingFile, settings: Settings) -> Log:
        def not_started(error: object) -> None:
            self._report_error(NOT_STARTED_ID, f"The agent did not start: {error}", settings)

        return _ServiceLog(file, settings, not_started)

    def _report_error(self, number: int, text: str, settings: Settings) -> None:
        """Say it in the Event Log, without any secret."""
        hidden = Sieve(settings.secrets)(text)
        self._report(number, f"{hidden}\n\nThe log is {self._service.log_file}")


class _ServiceLog(Log):
    """The log of the service, which also calls `not_started` with the reason when the agent did not start."""

    def __init__(self, file: RotatingFile, settings: Settings, not_started: Callable[[object], None]) -> None:
        super().__init__(file, level=settings.log.level, format=settings.log.format, hide=settings.secrets)
        self._not_started = not_started

    def error(self, event: str, **fields: object) -> None:
        """Log it, and tell why the agent did not start."""
        super().error(event, **fields)
        if event == "agent.not_started":
            self._not_started(fields.get("error", ""))


@contextlib.contextmanager
def _logged_threads(log: Log) -> Iterator[None]:
    """An exception that ends a thread goes to the log instead of standard error, which a service does not have."""

    def hook(failed: Any) -> None:
        where = _innermost(failed.exc_value)
        log.error("agent.thread_crashed", error=f"{failed.exc_type.__name__}: {failed.exc_value}", where=where)

    before, threading.excepthook = threading.excepthook, hook
    try:
        yield
    finally:
        threading.excepthook = before


def _innermost(error: BaseException | None) -> str:
    """File and line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
