r"""The Windows service manager: requests to it, and a program's status reports to it.

    Manager           the requests of the commands, as a protocol; `open_manager` returns this machine's manager
    ServiceDefinition the definition of a service
    StatusReporter    reports the states of a service, each once and in order
    Program           what a service runs; `serve` runs it and reports, `host` does both for the service manager

A program that fails ends without reporting SERVICE_STOPPED, like Microsoft's service hosts ([Windows Service using
BackgroundService]), so that the service manager runs the recovery actions. A program with invalid settings must not be
restarted: it reports SERVICE_STOPPED with a service-specific exit code. With SERVICE_FAILURE_ACTIONS_FLAG, the manager
would restart both [SERVICE_FAILURE_ACTIONS_FLAG].
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from msgspec import Struct

from exporter.windows.access import SERVICE_NAME

if TYPE_CHECKING:
    from _win32typing import PySC_HANDLE


class ServiceState(IntEnum):
    """States of a service [SERVICE_STATUS]."""

    STOPPED = 1
    START_PENDING = 2
    STOP_PENDING = 3
    RUNNING = 4


OWN_PROCESS: Final = 0x10
NO_ERROR: Final = 0
ACCESS_DENIED: Final = 5
INVALID_PARAMETER: Final = 87
INVALID_LEVEL: Final = 124
SERVICE_ALREADY_RUNNING: Final = 1056
SERVICE_DOES_NOT_EXIST: Final = 1060
SERVICE_CANNOT_ACCEPT_CTRL: Final = 1061
SERVICE_NOT_ACTIVE: Final = 1062
NOT_STARTED_BY_THE_MANAGER: Final = 1063
SERVICE_SPECIFIC_ERROR: Final = 1066
PROCESS_ABORTED: Final = 1067
CALL_NOT_IMPLEMENTED: Final = 120
"""Windows error numbers [System Error Codes]."""

CONTROL_STOP: Final = 1
CONTROL_INTERROGATE: Final = 4
CONTROL_SHUTDOWN: Final = 5
CONTROL_PRESHUTDOWN: Final = 15
_STOPS: Final = frozenset({CONTROL_STOP, CONTROL_SHUTDOWN, CONTROL_PRESHUTDOWN})
ACCEPTED: Final = 0x1 | 0x4 | 0x100
"""SERVICE_ACCEPT_STOP, _SHUTDOWN, and _PRESHUTDOWN: the last one arrives while the network is still available."""

START_HINT_MS: Final = 30_000
"""Checking an outbox of 100 MB on a slow disk takes seconds while the machine starts."""
STOP_HINT_MS: Final = 10_000
BAD_CONFIGURATION: Final = 2
"""The exit code of a program that must not be restarted until its settings are corrected."""


_OWN_COMMAND: Final = re.compile(r" service run(?: |\Z)")


class ServiceManagerError(Exception):
    """An error of the service manager. `number` is the Windows error number; the text has the problem and the fix."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number


class ServiceStatus(Struct, frozen=True):
    """The state of a service, and its last exit codes."""

    state: int
    win32_exit_code: int = NO_ERROR
    specific_exit_code: int = NO_ERROR

    @property
    def misconfigured(self) -> bool:
        """Whether it ended because of invalid settings. In `win32_exit_code`, 2 would mean "file not found"."""
        return self.win32_exit_code == SERVICE_SPECIFIC_ERROR and self.specific_exit_code == BAD_CONFIGURATION


class ServiceDefinition(Struct, frozen=True):
    """The definition of a service that starts with the machine, without delay, in a separate process.

    `command` is the program and its arguments. `restart_after` are the delays in seconds before restarts after the
    first, second, … failure; the last one applies to all later failures. After `reset_after` seconds without a failure,
    counting starts over. `privileges` are those that its process keeps. `preshutdown` is how many seconds a shutdown of
    the machine waits for the service.
    """

    name: str
    display_name: str
    description: str
    account: str
    command: tuple[str, ...]
    restart_after: tuple[float, ...]
    reset_after: int
    preshutdown: float
    privileges: tuple[str, ...]


class Manager(Protocol):
    """The service manager. Every method raises `ServiceManagerError`."""

    def status(self, name: str) -> ServiceStatus | None:
        """Return the status of the service; None if it doesn't exist."""

    def command(self, name: str) -> str:
        """Return the command line of an existing service."""

    def define(self, definition: ServiceDefinition) -> tuple[str, ...]:
        """Create or update the service. Return a sentence for each option that this Windows doesn't support."""

    def start(self, name: str) -> None:
        """Start the service without waiting; does nothing if it's running."""

    def stop(self, name: str) -> None:
        """Request the service to stop, without waiting; does nothing if it isn't running."""

    def delete(self, name: str) -> None:
        """Remove the service; Windows completes this once it has stopped and no program has it open."""


def command_line(words: Sequence[str]) -> str:
    """Return the words as `ImagePath`, quoted by Windows' rules, with the program always in quotation marks.

    Without them, Windows would try `C:\\Program.exe` for `C:\\Program Files\\…` [CreateProcess]. Raises ValueError for
    a percent sign, since the service manager replaces `%NAME%` there, and for a quotation mark in the program's name.
    """
    if any("%" in word for word in words):
        raise ValueError("a service's command line cannot contain a percent sign")
    program, *arguments = words
    if '"' in program:
        raise ValueError("a program's name cannot contain a quotation mark")
    return " ".join([f'"{program}"', subprocess.list2cmdline(arguments)]).rstrip()


def refuse_another(manager: Manager, name: str) -> None:
    """Raise `ServiceManagerError` if the service belongs to another program, to protect it from a wrong --name."""
    if manager.status(name) is not None and not _OWN_COMMAND.search(manager.command(name)):
        raise ServiceManagerError(NO_ERROR, f"{name}: this service belongs to another program; use another --name")


def install_command(name: str) -> str:
    """Return the command that installs or updates the service with this name."""
    return "service install" if name.upper() == SERVICE_NAME.upper() else f"service install --name={name}"


def sentence_of(number: int, name: str, reason: str) -> str:
    """Return the text for an error of the service manager; `reason` is the system's text."""
    sentences: Mapping[int, str] = {
        ACCESS_DENIED: f"{name}: access denied; use a terminal that was opened as an administrator",
        1053: f"{name}: did not respond to the service manager in time; see the System log in the Event Viewer",
        1058: f"{name}: disabled; run `{install_command(name)}` again, which enables it",
        SERVICE_DOES_NOT_EXIST: f"{name}: not installed; run `{install_command(name)}` first",
        SERVICE_CANNOT_ACCEPT_CTRL: f"{name}: cannot be stopped while it starts; try again when it runs",
        1069: f"{name}: not allowed to log on; in the local security policy, grant `NT SERVICE\\ALL SERVICES` the "
        "right to log on as a service",
        1072: f"{name}: being removed; close the Services window and other programs that show services, then try again",
    }
    return sentences.get(number, f"{name}: {reason.strip().rstrip('.')} (Windows error {number})")


# -- a program that runs as a service

SetStatus = Callable[[tuple[int, int, int, int, int, int, int]], None]
"""Receives a SERVICE_STATUS: type, state, accepted controls, exit code, specific exit code, checkpoint, hint in ms."""

_ORDER: Final = (ServiceState.START_PENDING, ServiceState.RUNNING, ServiceState.STOP_PENDING, ServiceState.STOPPED)


class StatusReporter:
    """Reports the states of this process's service in order, from any thread.

    A late state, for example RUNNING after a stop request, is not reported.
    """

    def __init__(self, set_status: SetStatus) -> None:
        self._set = set_status
        self._lock = threading.Lock()
        self._at = -1
        self.stop_requested = False

    def start_pending(self) -> None:
        """Report that the service is starting; it accepts no controls."""
        self._report(ServiceState.START_PENDING, hint=START_HINT_MS, checkpoint=1)

    def running(self) -> None:
        """Report that the service runs, and accepts the controls that stop it."""
        self._report(ServiceState.RUNNING, accepted=ACCEPTED)

    def stop_pending(self) -> None:
        """Report that the service is stopping."""
        self.stop_requested = True
        self._report(ServiceState.STOP_PENDING, hint=STOP_HINT_MS, checkpoint=1)

    def stopped(self, exit_code: int) -> None:
        """Report that the service has stopped; a nonzero code is reported as service-specific."""
        win32 = SERVICE_SPECIFIC_ERROR if exit_code else NO_ERROR
        self._report(ServiceState.STOPPED, win32=win32, specific=exit_code)

    def _report(
        self,
        state: ServiceState,
        *,
        accepted: int = 0,
        win32: int = 0,
        specific: int = 0,
        checkpoint: int = 0,
        hint: int = 0,
    ) -> None:
        with self._lock:
            position = _ORDER.index(state)
            if position <= self._at:
                return
            self._at = position
            self._set((OWN_PROCESS, int(state), accepted, win32, specific, checkpoint, hint))


class Program(Protocol):
    """The program of a service."""

    def run(self, started: Callable[[], None]) -> int:
        """Run until `stop`, and call `started` when ready. Return the exit code; never raises."""

    def stop(self) -> None:
        """End `run`, from any thread and at any time, even before `run` was called."""


def serve(program: Program, reporter: StatusReporter) -> int:
    """Run the program and report its states. Return the exit code; the process must end with it at once.

    After a failure without a stop request, STOPPED is not reported, so that Windows runs the recovery actions.
    """
    reporter.start_pending()
    code = program.run(reporter.running)
    if code in (NO_ERROR, BAD_CONFIGURATION) or reporter.stop_requested:
        reporter.stopped(code)
    return code


def control(code: int, program: Program, reporter: StatusReporter) -> int:
    """Handle a control of the service manager without blocking. Return a Windows error number, 0 for success."""
    if code in _STOPS:
        reporter.stop_pending()
        threading.Thread(target=program.stop, name="stop", daemon=True).start()
        return NO_ERROR
    return NO_ERROR if code == CONTROL_INTERROGATE else CALL_NOT_IMPLEMENTED


# Calls of the system. The functions import pywin32, so that this module can be imported on every system.


def host(make_program: Callable[[str], Program]) -> None:
    """Run as the service for which the service manager has started this process, and end the process with it.

    `make_program` gets the service's name. Raises `ServiceManagerError` (`NOT_STARTED_BY_THE_MANAGER`) if the service
    manager hasn't started the process.
    """
    import servicemanager  # noqa: PLC0415  # only on Windows
    import win32service  # noqa: PLC0415  # only on Windows

    class Hosted:
        """The class that `servicemanager` creates and runs on its own thread, with the arguments of ServiceMain."""

        def __init__(self, arguments: Sequence[str]) -> None:
            self._program = make_program(arguments[0])
            self._reporter = StatusReporter(lambda status: win32service.SetServiceStatus(self._handle, status))
            self._handle = servicemanager.RegisterServiceCtrlHandler(arguments[0], self._control, True)

        def _control(self, code: int, *_: object) -> int:
            return control(code, self._program, self._reporter)

        def SvcRun(self) -> NoReturn:  # noqa: N802  # the name that `servicemanager` calls
            try:
                code = serve(self._program, self._reporter)
            except BaseException:  # a bug: end the process, since `servicemanager` would report a stop
                code = 1
            # Don't return: `servicemanager` would always report SERVICE_STOPPED without an exit code.
            os._exit(code)

    with _errors("the service"):
        servicemanager.Initialize()
        servicemanager.PrepareToHostSingle(Hosted)
        servicemanager.StartServiceCtrlDispatcher()  # type: ignore[no-untyped-call]  # its stub names no result


@contextlib.contextmanager
def open_manager(create: bool) -> Iterator[Manager]:
    """Open the service manager of this machine; with `create`, to create services. Raises `ServiceManagerError`.

    Only administrators may create services; a service's access list decides who may start and stop it.
    """
    import win32service  # noqa: PLC0415  # only on Windows

    with _errors("the service manager"):
        access = win32service.SC_MANAGER_CONNECT
        if create:
            access |= win32service.SC_MANAGER_CREATE_SERVICE
        handle = win32service.OpenSCManager(None, None, access)
    try:
        yield _WindowsManager(handle)
    finally:
        win32service.CloseServiceHandle(handle)


class _WindowsManager:
    """A `Manager` that uses pywin32."""

    def __init__(self, handle: PySC_HANDLE) -> None:
        import win32service  # noqa: PLC0415  # only on Windows

        self._api = win32service
        self._handle = handle

    def status(self, name: str) -> ServiceStatus | None:
        """See `Manager`."""
        try:
            with self._service(name, self._api.SERVICE_QUERY_STATUS) as service:
                found: Any = self._api.QueryServiceStatusEx(service)
                process = found["ProcessId"]
                ended = found["CurrentState"] != ServiceState.STOPPED and _has_ended(process)
                if ended:  # it may have reported its end meanwhile, or may run again
                    found = self._api.QueryServiceStatusEx(service)
        except ServiceManagerError as error:
            if error.number == SERVICE_DOES_NOT_EXIST:
                return None
            raise
        if ended and found["CurrentState"] != ServiceState.STOPPED and found["ProcessId"] == process:
            return ServiceStatus(ServiceState.STOPPED, PROCESS_ABORTED)
        return ServiceStatus(found["CurrentState"], found["Win32ExitCode"], found["ServiceSpecificExitCode"])

    def command(self, name: str) -> str:
        """See `Manager`."""
        with self._service(name, self._api.SERVICE_QUERY_CONFIG) as service:
            return str(self._api.QueryServiceConfig(service)[3])

    def define(self, definition: ServiceDefinition) -> tuple[str, ...]:
        """See `Manager`."""
        name, api = definition.name, self._api
        kind = (api.SERVICE_WIN32_OWN_PROCESS, api.SERVICE_AUTO_START, api.SERVICE_ERROR_NORMAL)
        line = command_line(definition.command)
        if self.status(name) is None:
            with _errors(name):
                made = api.CreateService(
                    self._handle, name, definition.display_name, api.SERVICE_ALL_ACCESS, *kind, line, None, False, None,
                    definition.account, None,
                )  # fmt: skip
                api.CloseServiceHandle(made)
        with self._service(name, api.SERVICE_ALL_ACCESS) as service:
            api.ChangeServiceConfig(
                service, *kind, line, None, False, None, definition.account, None, definition.display_name
            )
            return tuple(self._options(service, definition))

    def _options(self, service: PySC_HANDLE, definition: ServiceDefinition) -> Iterator[str]:
        api = self._api
        restarts = [(api.SC_ACTION_RESTART, round(1000 * seconds)) for seconds in definition.restart_after]
        actions = {"ResetPeriod": definition.reset_after, "RebootMsg": "", "Command": "", "Actions": restarts}
        options: tuple[tuple[str, int, Any], ...] = (
            ("a description", api.SERVICE_CONFIG_DESCRIPTION, definition.description),
            ("starting at once with the machine", api.SERVICE_CONFIG_DELAYED_AUTO_START_INFO, False),
            ("recovery actions", api.SERVICE_CONFIG_FAILURE_ACTIONS, actions),
            ("recovery only after crashes", api.SERVICE_CONFIG_FAILURE_ACTIONS_FLAG, False),
            ("a separate identity", api.SERVICE_CONFIG_SERVICE_SID_INFO, api.SERVICE_SID_TYPE_UNRESTRICTED),
            ("fewer privileges", api.SERVICE_CONFIG_REQUIRED_PRIVILEGES_INFO, definition.privileges),
            ("waiting at shutdown", api.SERVICE_CONFIG_PRESHUTDOWN_INFO, round(1000 * definition.preshutdown)),
        )
        for what, level, value in options:
            try:
                with _errors(definition.name):
                    api.ChangeServiceConfig2(service, level, value)
            except ServiceManagerError as error:
                if error.number not in (INVALID_LEVEL, CALL_NOT_IMPLEMENTED):
                    raise
                yield f"this version of Windows does not support {what}; the service works without it"

    def start(self, name: str) -> None:
        """See `Manager`."""
        with self._service(name, self._api.SERVICE_START) as service, _errors(name, SERVICE_ALREADY_RUNNING):
            self._api.StartService(service, None)

    def stop(self, name: str) -> None:
        """See `Manager`."""
        with self._service(name, self._api.SERVICE_STOP) as service, _errors(name, SERVICE_NOT_ACTIVE):
            self._api.ControlService(service, self._api.SERVICE_CONTROL_STOP)

    def delete(self, name: str) -> None:
        """See `Manager`."""
        import win32con  # noqa: PLC0415  # only on Windows

        with self._service(name, win32con.DELETE) as service:
            self._api.DeleteService(service)

    @contextlib.contextmanager
    def _service(self, name: str, access: int) -> Iterator[PySC_HANDLE]:
        with _errors(name):
            service = self._api.OpenService(self._handle, name, access)
            try:
                yield service
            finally:
                self._api.CloseServiceHandle(service)


def _has_ended(process: int) -> bool:
    """Return whether the process has ended: Wine's service manager doesn't watch the processes that it started.

    False for 0, the process id of a service without a process.
    """
    if not process:
        return False
    import pywintypes  # noqa: PLC0415  # only on Windows
    import win32api  # noqa: PLC0415  # only on Windows
    import win32con  # noqa: PLC0415  # only on Windows
    import win32event  # noqa: PLC0415  # only on Windows

    try:
        handle = win32api.OpenProcess(win32con.SYNCHRONIZE, False, process)
    except pywintypes.error as error:
        return bool(error.winerror == INVALID_PARAMETER)
    try:
        return win32event.WaitForSingleObject(handle, 0) == win32event.WAIT_OBJECT_0
    finally:
        win32api.CloseHandle(handle)


@contextlib.contextmanager
def _errors(name: str, ignored: int = NO_ERROR) -> Iterator[None]:
    """Turn an error of pywin32 into a `ServiceManagerError`; the error with the number `ignored` is suppressed."""
    import pywintypes  # noqa: PLC0415  # only on Windows

    try:
        yield
    except pywintypes.error as error:
        if error.winerror != ignored:
            raise ServiceManagerError(error.winerror, sentence_of(error.winerror, name, error.strerror)) from error


_MACHINE: Final = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment"
_SERVICES: Final = r"SYSTEM\CurrentControlSet\Services"


def service_environment(name: str) -> dict[str, str]:
    """Return the variables of a service: those of the machine and of its `Environment`, not those of this session.

    Names are in upper case, as in `os.environ` on Windows. Empty on other systems.
    """
    found: dict[str, str] = {}
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415  # only on Windows

        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _MACHINE) as key:
            for number in range(winreg.QueryInfoKey(key)[1]):
                variable, value, kind = winreg.EnumValue(key, number)
                if kind in (winreg.REG_SZ, winreg.REG_EXPAND_SZ):
                    found[variable.upper()] = winreg.ExpandEnvironmentStrings(value)
        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, rf"{_SERVICES}\{name}") as key:
            lines, kind = winreg.QueryValueEx(key, "Environment")
            if kind == winreg.REG_MULTI_SZ:
                found |= {line.partition("=")[0].upper(): line.partition("=")[2] for line in lines}
    return found
