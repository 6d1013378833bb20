r"""The service manager of Windows: what it is asked for a service, and how a program reports to it what it is doing.

    Manager           what the commands ask, as a protocol; `open_manager` gives that of this machine
    ServiceDefinition what a service is made of
    StatusReporter    the states of a service, each reported once and never backwards
    Program           what a service runs; `serve` runs it and reports, `host` does both for the service manager

A program that fails ends without reporting SERVICE_STOPPED, as Microsoft's own hosts of services do
([Windows Service using BackgroundService]): the service manager then does its recovery actions. One that must not be
tried again, since its configuration is wrong, reports SERVICE_STOPPED with an exit code of its own. With
SERVICE_FAILURE_ACTIONS_FLAG the manager would restart both [SERVICE_FAILURE_ACTIONS_FLAG].
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
    """The states of a service that starts, runs and stops [SERVICE_STATUS]."""

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
"""Numbers of Windows [System Error Codes]."""

CONTROL_STOP: Final = 1
CONTROL_INTERROGATE: Final = 4
CONTROL_SHUTDOWN: Final = 5
CONTROL_PRESHUTDOWN: Final = 15
_STOPS: Final = frozenset({CONTROL_STOP, CONTROL_SHUTDOWN, CONTROL_PRESHUTDOWN})
ACCEPTED: Final = 0x1 | 0x4 | 0x100
"""SERVICE_ACCEPT_STOP, _SHUTDOWN and _PRESHUTDOWN: the last comes while the network is still there."""

START_HINT_MS: Final = 30_000
"""To check an outbox of 100 MB on a slow disk takes seconds, at a start of the machine."""
STOP_HINT_MS: Final = 10_000
BAD_CONFIGURATION: Final = 2
"""The exit code of a program that must not be started again before somebody has corrected its settings."""


_OWN_COMMAND: Final = re.compile(r" service run(?: |\Z)")


class ServiceManagerError(Exception):
    """The service manager refuses. `number` is the error of Windows; the text is a sentence that says what to do."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number


class ServiceStatus(Struct, frozen=True):
    """What a service is doing, and what it last ended with."""

    state: int
    win32_exit_code: int = NO_ERROR
    specific_exit_code: int = NO_ERROR

    @property
    def misconfigured(self) -> bool:
        """Whether it ended since its settings are wrong. Of Windows' own numbers, 2 is a file that is not found."""
        return self.win32_exit_code == SERVICE_SPECIFIC_ERROR and self.specific_exit_code == BAD_CONFIGURATION


class ServiceDefinition(Struct, frozen=True):
    """What a service is made of. It starts with the machine, at once and not delayed, in a process of its own.

    `command` are the program and its arguments. `restart_after` are the delays, in seconds, before it is started again
    after the first, second, … failure; the last holds for all further ones, and after `reset_after` seconds without a
    failure they are counted anew. `privileges` are those that its process keeps, and `preshutdown` is for how many
    seconds a shutdown of the machine waits for it.
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
        """What the service is doing; None where there is no such service."""

    def command(self, name: str) -> str:
        """The command line of a service that there is."""

    def define(self, definition: ServiceDefinition) -> tuple[str, ...]:
        """Make the service, or change it to this definition. Returns a sentence for each part that Windows lacks."""

    def start(self, name: str) -> None:
        """Start the service, and do not wait until it runs. One that runs is left alone."""

    def stop(self, name: str) -> None:
        """Tell the service to stop, and do not wait for it. One that does not run is left alone."""

    def delete(self, name: str) -> None:
        """Remove the service; it goes when it has stopped and nobody looks at it any more."""


def command_line(words: Sequence[str]) -> str:
    """The words as `ImagePath`, quoted as programs of Windows split it, the program always in quotation marks.

    Without them Windows would try `C:\\Program.exe` for `C:\\Program Files\\…` [CreateProcess]. Raises ValueError for a
    percent sign, since the service manager replaces `%NAME%` there, and for a quotation mark in the program's name.
    """
    if any("%" in word for word in words):
        raise ValueError("a percent sign can't be part of a service's command line")
    program, *arguments = words
    if '"' in program:
        raise ValueError("a quotation mark can't be part of a program's name")
    return " ".join([f'"{program}"', subprocess.list2cmdline(arguments)]).rstrip()


def refuse_another(manager: Manager, name: str) -> None:
    """Raise `ServiceManagerError` where the service is another program's: a wrong name must not change or remove it."""
    if manager.status(name) is not None and not _OWN_COMMAND.search(manager.command(name)):
        raise ServiceManagerError(NO_ERROR, f"{name} is the service of another program: give another --name")


def install_command(name: str) -> str:
    """The command that installs the service of this name, or updates it."""
    return "service install" if name.upper() == SERVICE_NAME.upper() else f"service install --name={name}"


def sentence_of(number: int, name: str, reason: str) -> str:
    """What an error of the service manager means for the service `name`; `reason` is the system's own text."""
    sentences: Mapping[int, str] = {
        ACCESS_DENIED: "access is denied: run this in a terminal that was opened as an administrator",
        1053: f"{name} did not answer the service manager in time: see the System log in the Event Viewer",
        1058: f"{name} is disabled: run `{install_command(name)}` again, which enables it",
        SERVICE_DOES_NOT_EXIST: f"{name} is not installed: run `{install_command(name)}` first",
        SERVICE_CANNOT_ACCEPT_CTRL: f"{name} can't be told to stop while it starts: try again when it runs",
        1069: f"{name} may not log on: give `NT SERVICE\\ALL SERVICES` the right to log on as a service in the local "
        "security policy",
        1072: f"{name} is being removed: close the Services window and all else that shows services, then try again",
    }
    return sentences.get(number, f"{name}: {reason.strip().rstrip('.')} (Windows error {number})")


# -- a program that runs as a service

SetStatus = Callable[[tuple[int, int, int, int, int, int, int]], None]
"""Takes a SERVICE_STATUS: type, state, controls accepted, exit code, own exit code, checkpoint, wait hint in ms."""

_ORDER: Final = (ServiceState.START_PENDING, ServiceState.RUNNING, ServiceState.STOP_PENDING, ServiceState.STOPPED)


class StatusReporter:
    """Reports the states of this process's service, in their order and from any thread.

    A state that comes too late, such as RUNNING after a stop was asked for, is not reported.
    """

    def __init__(self, set_status: SetStatus) -> None:
        self._set = set_status
        self._lock = threading.Lock()
        self._at = -1
        self.stop_requested = False

    def start_pending(self) -> None:
        """The service is starting; it takes no controls."""
        self._report(ServiceState.START_PENDING, hint=START_HINT_MS, checkpoint=1)

    def running(self) -> None:
        """The service runs, and takes the controls that stop it."""
        self._report(ServiceState.RUNNING, accepted=ACCEPTED)

    def stop_pending(self) -> None:
        """The service is stopping."""
        self.stop_requested = True
        self._report(ServiceState.STOP_PENDING, hint=STOP_HINT_MS, checkpoint=1)

    def stopped(self, exit_code: int) -> None:
        """The service has stopped, with an exit code of its own unless that is 0. The process may now be ended."""
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
    """What a service runs."""

    def run(self, started: Callable[[], None]) -> int:
        """Run until `stop`, and call `started` once it does what it is for. Returns the exit code and never raises."""

    def stop(self) -> None:
        """End `run`, from any thread and at any time, also before `run` was called."""


def serve(program: Program, reporter: StatusReporter) -> int:
    """Run the program and report its states. Returns the exit code that the process must end with at once.

    After a failure that nobody asked for nothing is reported: to end so is what the recovery actions wait for.
    """
    reporter.start_pending()
    code = program.run(reporter.running)
    if code in (NO_ERROR, BAD_CONFIGURATION) or reporter.stop_requested:
        reporter.stopped(code)
    return code


def control(code: int, program: Program, reporter: StatusReporter) -> int:
    """React to a control of the service manager, which waits for that. Returns an error of Windows, 0 for none."""
    if code in _STOPS:
        reporter.stop_pending()
        threading.Thread(target=program.stop, name="stop", daemon=True).start()
        return NO_ERROR
    return NO_ERROR if code == CONTROL_INTERROGATE else CALL_NOT_IMPLEMENTED


# What only the system can do. pywin32 is imported where it is called: this module is imported on every system.


def host(make_program: Callable[[str], Program]) -> None:
    """Run as the service that the service manager has started this process for, and end the process with it.

    `make_program` gets the service's name. Raises `ServiceManagerError` where no service manager has started the
    process (`NOT_STARTED_BY_THE_MANAGER`).
    """
    import servicemanager  # noqa: PLC0415  # of Windows alone
    import win32service  # noqa: PLC0415  # of Windows alone

    class Hosted:
        """What `servicemanager` makes on a thread of its own, with the arguments of ServiceMain, and then runs."""

        def __init__(self, arguments: Sequence[str]) -> None:
            self._program = make_program(arguments[0])
            self._reporter = StatusReporter(lambda status: win32service.SetServiceStatus(self._handle, status))
            self._handle = servicemanager.RegisterServiceCtrlHandler(arguments[0], self._control, True)

        def _control(self, code: int, *_: object) -> int:
            return control(code, self._program, self._reporter)

        def SvcRun(self) -> NoReturn:  # noqa: N802  # the name that `servicemanager` calls
            try:
                code = serve(self._program, self._reporter)
            except BaseException:  # a bug: to end is all that can be done, and `servicemanager` would report a stop
                code = 1
            # Not by returning: `servicemanager` would report SERVICE_STOPPED without an exit code, in every case.
            os._exit(code)

    with _errors("the service"):
        servicemanager.Initialize()
        servicemanager.PrepareToHostSingle(Hosted)
        servicemanager.StartServiceCtrlDispatcher()  # type: ignore[no-untyped-call]  # its stub names no result


@contextlib.contextmanager
def open_manager(create: bool) -> Iterator[Manager]:
    """The service manager of this machine, with `create` to make services. Raises `ServiceManagerError`.

    Only administrators may create; who may start and stop a service is said by the service itself.
    """
    import win32service  # noqa: PLC0415  # of Windows alone

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
    """`Manager` by pywin32."""

    def __init__(self, handle: PySC_HANDLE) -> None:
        import win32service  # noqa: PLC0415  # of Windows alone

        self._api = win32service
        self._handle = handle

    def status(self, name: str) -> ServiceStatus | None:
        """See `Manager`."""
        try:
            with self._service(name, self._api.SERVICE_QUERY_STATUS) as service:
                found: Any = self._api.QueryServiceStatusEx(service)
                process = found["ProcessId"]
                gone = found["CurrentState"] != ServiceState.STOPPED and _has_ended(process)
                if gone:  # perhaps it has reported how it stopped since, or is started again
                    found = self._api.QueryServiceStatusEx(service)
        except ServiceManagerError as error:
            if error.number == SERVICE_DOES_NOT_EXIST:
                return None
            raise
        if gone and found["CurrentState"] != ServiceState.STOPPED and found["ProcessId"] == process:
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
            ("recovery from crashes alone", api.SERVICE_CONFIG_FAILURE_ACTIONS_FLAG, False),
            ("an identity of its own", api.SERVICE_CONFIG_SERVICE_SID_INFO, api.SERVICE_SID_TYPE_UNRESTRICTED),
            ("fewer privileges", api.SERVICE_CONFIG_REQUIRED_PRIVILEGES_INFO, definition.privileges),
            ("waiting at a shutdown", api.SERVICE_CONFIG_PRESHUTDOWN_INFO, round(1000 * definition.preshutdown)),
        )
        for what, level, value in options:
            try:
                with _errors(definition.name):
                    api.ChangeServiceConfig2(service, level, value)
            except ServiceManagerError as error:
                if error.number not in (INVALID_LEVEL, CALL_NOT_IMPLEMENTED):
                    raise
                yield f"this system's service manager does not know {what}; the service works without"

    def start(self, name: str) -> None:
        """See `Manager`."""
        with (
            self._service(name, self._api.SERVICE_START) as service,
            _errors(name, SERVICE_ALREADY_RUNNING),
        ):
            self._api.StartService(service, None)

    def stop(self, name: str) -> None:
        """See `Manager`."""
        with self._service(name, self._api.SERVICE_STOP) as service, _errors(name, SERVICE_NOT_ACTIVE):
            self._api.ControlService(service, self._api.SERVICE_CONTROL_STOP)

    def delete(self, name: str) -> None:
        """See `Manager`."""
        import win32con  # noqa: PLC0415  # of Windows alone

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
    """Whether there is no such process any more: Wine's service manager does not look after those that it started.

    Not for 0, which a service has that was not yet given a process.
    """
    if not process:
        return False
    import pywintypes  # noqa: PLC0415  # of Windows alone
    import win32api  # noqa: PLC0415  # of Windows alone
    import win32con  # noqa: PLC0415  # of Windows alone
    import win32event  # noqa: PLC0415  # of Windows alone

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
    """Turns an error of pywin32 into a `ServiceManagerError`; the error of this number is no error."""
    import pywintypes  # noqa: PLC0415  # of Windows alone

    try:
        yield
    except pywintypes.error as error:
        if error.winerror != ignored:
            raise ServiceManagerError(error.winerror, sentence_of(error.winerror, name, error.strerror)) from error


_MACHINE: Final = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment"
_SERVICES: Final = r"SYSTEM\CurrentControlSet\Services"


def service_environment(name: str) -> dict[str, str]:
    """The variables that a service gets by its machine and by its own `Environment`, unlike those of this session.

    Their names are in upper case, as in `os.environ` there. Empty on other systems.
    """
    found: dict[str, str] = {}
    if sys.platform == "win32":
        import winreg  # noqa: PLC0415  # of Windows alone

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
