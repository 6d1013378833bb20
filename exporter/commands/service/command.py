"""`service`: installs, removes, starts and stops the agent as a Windows service, and runs it for Windows."""

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
    "`service` is for Windows: on Linux the agent is a systemd unit, see deploy/systemd, or started with `run`"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_GIVEN_FOLDER: Final = re.compile(r' (?:"--folder=([^"]*)"|--folder=(\S+))')
"""In the command line of an installed service."""
_UNQUOTED: Final = re.compile(r"[^'%\x00-\x1f\x7f]{1,200}")
"""A folder's path as it can be written between single quotes and in the command line of a service. Windows' own bound
for a folder is 247 characters, and there are names to follow."""
_EXPECTED_FOLDER: Final = (
    "expected a folder on a drive, such as C:\\ProgramData\\azse-2, of at most 200 characters: no device such as NUL, "
    "no dot or space at the end of a name, no 8.3 name, none of : * ? \" < > | ' %"
)


_ACTIONS: Final[Mapping[str, str]] = {
    "install": "make the service and its folder, or update them; the flags are those of run, and are kept",
    "remove": "stop and remove the service; its settings, outbox and log stay",
    "start": "start the service and wait until it runs, or say why it does not",
    "stop": "stop the service and wait until it has stopped",
    "run": "what the service manager starts; in a terminal use the command run",
}


def _act(action: str, service: Service, args: argparse.Namespace, environment: ServiceEnvironment) -> int:
    """Run the action, with the imports that it needs: the service manager waits only so long for `run` to answer."""
    if action == "run":
        from exporter.commands.service.program import run_service  # noqa: PLC0415  # see above

        return run_service(service, args)
    if action == "install":
        from exporter.commands.service.install import install  # noqa: PLC0415  # see above

        return install(service, args, environment)
    return {"remove": remove, "start": start, "stop": stop}[action](service, environment)


def add_arguments(parser: FlagParser) -> None:
    """Add the actions of `service`, with their flags."""
    parser.takes("ACTION [OPTIONS]")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog=parser.prog)
    for name, summary in _ACTIONS.items():
        subparser = actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        subparser.set_defaults(action=name)
        group = subparser.add_argument_group("which service")
        group.add_argument(
            "--name", metavar="NAME", type=_name, help="Name of the service, for a second one beside the usual."
        )
        group.add_argument(
            "--folder",
            metavar="FOLDER",
            type=_folder,
            help="Folder of its settings, outbox and log; by default that of the installed service, or the one of its "
            "name below %%ProgramData%%.",
        )
        if name in ("install", "run"):
            add_flags(subparser, environment=False)


def service(args: argparse.Namespace, environment: ServiceEnvironment | None = None) -> int:
    """Run the command. Returns the exit code; raises `ConfigError` where settings are wrong."""
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
            print_error(f"{chosen.folder}: {_EXPECTED_FOLDER}; give another by --folder")
            return BAD_USAGE
        return _act(args.action, chosen, args, environment)
    except ServiceManagerError as error:
        print_error(str(error))
        return FAILED


def _installed_folder(name: str, environment: ServiceEnvironment) -> str:
    """The folder that the service was installed with; "" for none. Raises `ServiceManagerError`."""
    with environment.open_manager(False) as manager:
        found = _GIVEN_FOLDER.search(manager.command(name)) if manager.status(name) is not None else None
    return (found[1] or found[2]) if found else ""


def _open_streams() -> None:
    """A service, a program without a console and the Windows Installer have no standard streams: what is printed then
    goes nowhere instead of failing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # until the process ends


def _name(text: str) -> str:
    """A service's name that needs no quoting anywhere."""
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError("expected letters, digits, dots, dashes and underscores, at most 80 of them")
    return text


def _folder(text: str, platform: str = sys.platform) -> str:
    """A folder on a drive, since the outbox can't be on a share; elsewhere, where tests run, any absolute path."""
    if not (is_on_a_drive(text) if platform == "win32" else os.path.isabs(text)):
        raise argparse.ArgumentTypeError(_EXPECTED_FOLDER)
    return os.path.normpath(text)


START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
GONE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1
_LAST_LINES: Final = 5
_LAST_BYTES: Final = 1 << 16
_WRONG_SETTINGS: Final = "its settings are wrong: correct them, then start it again"


def start(service: Service, environment: ServiceEnvironment) -> int:
    """Start the service and wait until it runs. Returns the exit code; raises `ServiceManagerError`."""
    with environment.open_manager(False) as manager:
        # It counts as running until it has stopped.
        _await(manager, service, lambda state: state != ServiceState.STOP_PENDING, STOP_SECONDS, environment)
        if _state(manager, service) == ServiceState.RUNNING:
            print_wrapped(f"{service.name} runs already")
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
        print_wrapped(f"{service.name} runs; its log is {service.log_file}")
        return DONE
    _explain(service, status, logged)
    return BAD_USAGE if status is not None and status.misconfigured else FAILED


def _explain(service: Service, status: ServiceStatus | None, logged: int) -> None:
    """Say why the service does not run, with the last lines of its log that are new since it had `logged` bytes."""
    if status is not None and status.misconfigured:
        print_error(f"{service.name} did not start, since {_WRONG_SETTINGS}")
    elif status is not None and status.state == ServiceState.STOPPED:
        print_error(
            f"{service.name} did not start, and may be tried again: see {service.log_file} and the Event Viewer"
        )
    else:
        print_error(f"{service.name} does not run after {START_SECONDS:g} s: see its log, {service.log_file}")
    lines = _new_lines(service.log_file, logged)
    if lines:
        print_error(f"{service.log_file} ends with:")
    for line in lines:
        print_error(f"  {line}")


def stop(service: Service, environment: ServiceEnvironment) -> int:
    """Stop the service and wait until it has stopped. Returns the exit code; raises `ServiceManagerError`."""
    with environment.open_manager(False) as manager:
        return _stop(manager, service, environment)


def _stop(manager: Manager, service: Service, environment: ServiceEnvironment) -> int:
    # It takes no control while it starts.
    _await(manager, service, lambda state: state != ServiceState.START_PENDING, START_SECONDS, environment)
    state = _state(manager, service)
    if state == ServiceState.STOPPED:
        print_wrapped(f"{service.name} does not run")
        return DONE
    if state != ServiceState.STOP_PENDING:  # somebody has told it already, and it takes no control while it stops
        manager.stop(service.name)
    status = _await(manager, service, lambda state: state == ServiceState.STOPPED, STOP_SECONDS, environment)
    if status is None or status.state == ServiceState.STOPPED:
        print_wrapped(f"{service.name} has stopped")
        return DONE
    print_error(f"{service.name} has not stopped within {STOP_SECONDS:g} s: see its log, {service.log_file}")
    return FAILED


def remove(service: Service, environment: ServiceEnvironment) -> int:
    """Stop and remove the service. Returns the exit code; raises `ServiceManagerError`."""
    with environment.open_manager(False) as manager:
        if manager.status(service.name) is None:
            _forget_event_source(service, environment)
            print_wrapped(f"{service.name} is not installed")
            return DONE
        refuse_another(manager, service.name)
        if code := _stop(manager, service, environment):
            return code
        manager.delete(service.name)
        left = _await(manager, service, lambda _: False, GONE_SECONDS, environment)
    _forget_event_source(service, environment)
    print_wrapped(f"{service.name} is removed; its settings, its outbox and its log stay in {service.folder}")
    if left is not None:
        print_wrapped("it is gone when nobody looks at it any more: close the Services window")
    return DONE


def _forget_event_source(service: Service, environment: ServiceEnvironment) -> None:
    try:
        environment.remove_event_source(service.name)
    except OSError as error:
        print_error(f"the source {service.name} of the Event Log can't be removed: {error.strerror or error}")


def _state(manager: Manager, service: Service) -> int:
    """The service's state. Raises `ServiceManagerError` where there is no such service."""
    status = manager.status(service.name)
    if status is None:
        raise ServiceManagerError(0, f"{service.name} is not installed: run `{install_command(service.name)}` first")
    return status.state


def _await(
    manager: Manager, service: Service, enough: Callable[[int], bool], seconds: float, environment: ServiceEnvironment
) -> ServiceStatus | None:
    """What the service is doing once its state is enough, or after so many seconds; None once there is none."""
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
    """The last lines of the log from that size on, from its beginning where it is shorter now; none if unreadable."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(logged if size >= logged else 0, size - _LAST_BYTES))
            text = file.read(_LAST_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [redact(line) for line in text.splitlines()[-_LAST_LINES:]]
