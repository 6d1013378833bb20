"""`service`: installs, removes, starts, and stops the agent as a Windows service, and runs it for Windows."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from exporter.commands.service.environment import Service, ServiceEnvironment, named_service, usual_service
from exporter.config.command_line import FlagParser
from exporter.config.sources import add_flags
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.secrets import redact
from exporter.text.terminal import print_error, print_wrapped
from exporter.windows.places import is_on_a_drive, is_own_name
from exporter.windows.service_manager import (
    Manager,
    ServiceManagerError,
    ServiceState,
    ServiceStatus,
    install_command,
    refuse_another,
)

NOT_WINDOWS: Final = (
    "service: only available on Windows; on Linux, use the systemd unit (see deploy/systemd) or start the agent with "
    "`run`"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_GIVEN_FOLDER: Final = re.compile(r' (?:"--folder=([^"]*)"|--folder=(\S+))')
"""The folder in the command line of an installed service."""
_UNQUOTED: Final = re.compile(r"[^'%\x00-\x1f\x7f]{1,200}")
"""A folder's path that is valid between single quotes and in the command line of a service. Windows allows 247
characters for a folder, and file names are appended to it."""
_EXPECTED_FOLDER: Final = (
    "expected a folder on a drive, for example C:\\ProgramData\\azse-2, of at most 200 characters, without device "
    "names (NUL), names that end in a dot or space, 8.3 names, and the characters : * ? \" < > | ' %"
)


_ACTIONS: Final[Mapping[str, str]] = {
    "install": "create or update the service and its folder; flags of run are stored with the service",
    "remove": "stop and remove the service; keep its settings, outbox, and log",
    "start": "start the service and wait until it runs, or print why it does not",
    "stop": "stop the service and wait until it has stopped",
    "run": "run as a service; only for the service manager (in a terminal, use the command run)",
}


def _act(action: str, service: Service, args: argparse.Namespace, environment: ServiceEnvironment) -> int:
    """Run the action with only the imports that it needs: the service manager limits the start time of `run`."""
    if action == "run":
        from exporter.commands.service.program import run_service  # noqa: PLC0415  # see above

        return run_service(service, args)
    if action == "install":
        from exporter.commands.service.install import install  # noqa: PLC0415  # see above

        return install(service, args, environment)
    return {"remove": remove, "start": start, "stop": stop}[action](service, environment)


def add_arguments(parser: FlagParser) -> None:
    """Add the actions of `service`, with their flags."""
    parser.show_arguments("ACTION [OPTIONS]")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog=parser.prog)
    for name, summary in _ACTIONS.items():
        subparser = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        subparser.set_defaults(action=name)
        group = subparser.add_argument_group("service")
        group.add_argument(
            "--name", metavar="NAME", type=_name, help="Name of the service, if you install more than one."
        )
        group.add_argument(
            "--folder",
            metavar="FOLDER",
            type=_folder,
            help="Folder for its settings, outbox, and log. Default: the folder of the installed service, or else the "
            "folder with its name in %%ProgramData%%.",
        )
        if name in ("install", "run"):
            add_flags(subparser, environment=False)


def service(args: argparse.Namespace, environment: ServiceEnvironment | None = None) -> int:
    """Run the command.

    Return the exit code. Raises `ConfigError` for invalid settings.
    """
    environment = environment or ServiceEnvironment()
    if environment.platform != "win32":
        print_error(NOT_WINDOWS)
        return BAD_USAGE
    _open_streams()
    chosen = named_service(args.name, environment.environ) if args.name else usual_service(environment.environ)
    try:
        folder = args.folder or (_installed_folder(chosen.name, environment) if args.action != "run" else "")
        chosen = replace(chosen, folder=folder or chosen.folder)
        if not is_own_name(chosen.folder) or not _UNQUOTED.fullmatch(chosen.folder):
            print_error(f"{chosen.folder}: {_EXPECTED_FOLDER}; use another --folder")
            return BAD_USAGE
        return _act(args.action, chosen, args, environment)
    except ServiceManagerError as error:
        print_error(str(error))
        return FAILED


def _installed_folder(name: str, environment: ServiceEnvironment) -> str:
    """Return the folder with which the service was installed; "" if there is none. Raises `ServiceManagerError`."""
    with environment.open_manager(False) as manager:
        found = _GIVEN_FOLDER.search(manager.command(name)) if manager.status(name) is not None else None
    return (found[1] or found[2]) if found else ""


def _open_streams() -> None:
    """Replace missing standard streams by the null device, so that printing doesn't fail.

    They are missing in a service, in a program without a console, and under the Windows Installer.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends


def _name(text: str) -> str:
    """Return a service name that never needs quoting. Raises `argparse.ArgumentTypeError`."""
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("expected at most 80 letters, digits, dots, dashes, and underscores")
    return text


def _folder(text: str, platform: str = sys.platform) -> str:
    """Return a folder on a drive, since the outbox can't be on a share; on other systems (tests) any absolute path."""
    if not (is_on_a_drive(text) if platform == "win32" else os.path.isabs(text)):
        raise argparse.ArgumentTypeError(_EXPECTED_FOLDER)
    return os.path.normpath(text)


START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
GONE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1
_LAST_LINES: Final = 5
_LAST_BYTES: Final = 1 << 16


def start(service: Service, environment: ServiceEnvironment) -> int:
    """Start the service and wait until it runs.

    Return the exit code. Raises `ServiceManagerError`.
    """
    with environment.open_manager(False) as manager:
        # While it stops, the service manager counts it as running.
        _await(manager, service, lambda state: state != ServiceState.STOP_PENDING, STOP_SECONDS, environment)
        if _state(manager, service) == ServiceState.RUNNING:
            print_wrapped(f"{service.name}: already running")
            return DONE
        logged = _size(service.log_file)
        manager.start(service.name)
        status = _await(
            manager,
            service,
            lambda state: state in (ServiceState.RUNNING, ServiceState.STOPPED),
            START_SECONDS,
            environment,
        )
    if status is not None and status.state == ServiceState.RUNNING:
        print_wrapped(f"{service.name}: running; log: {service.log_file}")
        return DONE
    _explain(service, status, logged)
    return BAD_USAGE if status is not None and status.misconfigured else FAILED


def _explain(service: Service, status: ServiceStatus | None, logged: int) -> None:
    """Print why the service does not run, with the last lines that its log has beyond `logged` bytes."""
    if status is not None and status.misconfigured:
        print_error(f"{service.name}: not started: the settings are invalid; correct them, then start it again")
    elif status is not None and status.state == ServiceState.STOPPED:
        print_error(f"{service.name}: not started, Windows may retry; see {service.log_file} and the Event Viewer")
    else:
        print_error(f"{service.name}: not running after {START_SECONDS:g} s; see its log, {service.log_file}")
    lines = _new_lines(service.log_file, logged)
    if lines:
        print_error(f"last lines of {service.log_file}:")
    for line in lines:
        print_error(f"  {line}")


def stop(service: Service, environment: ServiceEnvironment) -> int:
    """Stop the service and wait until it has stopped.

    Return the exit code. Raises `ServiceManagerError`.
    """
    with environment.open_manager(False) as manager:
        return _stop(manager, service, environment)


def _stop(manager: Manager, service: Service, environment: ServiceEnvironment) -> int:
    # A starting service accepts no controls.
    _await(manager, service, lambda state: state != ServiceState.START_PENDING, START_SECONDS, environment)
    state = _state(manager, service)
    if state == ServiceState.STOPPED:
        print_wrapped(f"{service.name}: not running")
        return DONE
    if state != ServiceState.STOP_PENDING:  # a stopping service accepts no controls
        manager.stop(service.name)
    status = _await(manager, service, lambda state: state == ServiceState.STOPPED, STOP_SECONDS, environment)
    if status is None or status.state == ServiceState.STOPPED:
        print_wrapped(f"{service.name}: stopped")
        return DONE
    print_error(f"{service.name}: not stopped after {STOP_SECONDS:g} s; see its log, {service.log_file}")
    return FAILED


def remove(service: Service, environment: ServiceEnvironment) -> int:
    """Stop and remove the service.

    Return the exit code. Raises `ServiceManagerError`.
    """
    with environment.open_manager(False) as manager:
        if manager.status(service.name) is None:
            _forget_event_source(service, environment)
            print_wrapped(f"{service.name}: not installed")
            return DONE
        refuse_another(manager, service.name)
        if code := _stop(manager, service, environment):
            return code
        manager.delete(service.name)
        left = _await(manager, service, lambda _: False, GONE_SECONDS, environment)
    _forget_event_source(service, environment)
    print_wrapped(f"{service.name}: removed; its settings, outbox, and log are still in {service.folder}")
    if left is not None:
        print_wrapped("To complete the removal, close the Services window and other programs that show services")
    return DONE


def _forget_event_source(service: Service, environment: ServiceEnvironment) -> None:
    try:
        environment.remove_event_source(service.name)
    except OSError as error:
        print_error(f"Event Log source {service.name}: cannot be removed: {error.strerror or error}")


def _state(manager: Manager, service: Service) -> int:
    """Return the service's state. Raises `ServiceManagerError` if the service doesn't exist."""
    status = manager.status(service.name)
    if status is None:
        raise ServiceManagerError(0, f"{service.name}: not installed; run `{install_command(service.name)}` first")
    return status.state


def _await(
    manager: Manager, service: Service, enough: Callable[[int], bool], seconds: float, environment: ServiceEnvironment
) -> ServiceStatus | None:
    """Wait until the service's state is `enough`, for at most `seconds`.

    Return its status; None if the service doesn't exist any more.
    """
    deadline = environment.monotonic() + seconds
    while (status := manager.status(service.name)) is not None and not enough(status.state):
        if environment.monotonic() >= deadline:
            break
        environment.sleep(POLL_SECONDS)
    return status


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _new_lines(path: str, logged: int) -> list[str]:
    """Return the last lines of the log beyond `logged` bytes, or of the whole log if it is shorter now.

    Empty if the log is unreadable.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(logged if size >= logged else 0, size - _LAST_BYTES))
            text = file.read(_LAST_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [redact(line) for line in text.splitlines()[-_LAST_LINES:]]
