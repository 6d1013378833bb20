"""`service start`, `stop` and `remove`: each may be called again, and waits until it is done."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Final

from exporter.commands.service.world import Service, World
from exporter.errors import BAD_USAGE, DONE, FAILED
from exporter.secrets import redact
from exporter.text.terminal import complain, tell
from exporter.windows.service_manager import (
    Manager,
    ServiceManagerError,
    ServiceStatus,
    State,
    install_command,
    refuse_another,
)

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
GONE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1
_LAST_LINES: Final = 5
_LAST_BYTES: Final = 1 << 16
_WRONG_SETTINGS: Final = "its settings are wrong: correct them, then start it again"


def start(service: Service, _: argparse.Namespace, world: World) -> int:
    """Start the service and wait until it runs. Returns the exit code; raises `ServiceManagerError`."""
    with world.open_manager(False) as manager:
        # It counts as running until it has stopped.
        _await(manager, service, lambda state: state != State.STOP_PENDING, STOP_SECONDS, world)
        if _state(manager, service) == State.RUNNING:
            tell(f"{service.name} runs already")
            return DONE
        logged = _size(service.log_file)
        manager.start(service.name)
        status = _await(manager, service, lambda state: state in (State.RUNNING, State.STOPPED), START_SECONDS, world)
    if status is not None and status.state == State.RUNNING:
        tell(f"{service.name} runs; its log is {service.log_file}")
        return DONE
    _explain(service, status, logged)
    return BAD_USAGE if status is not None and status.misconfigured else FAILED


def _explain(service: Service, status: ServiceStatus | None, logged: int) -> None:
    """Say why the service does not run, with the last lines of its log that are new since it had `logged` bytes."""
    if status is not None and status.misconfigured:
        complain(f"{service.name} did not start, since {_WRONG_SETTINGS}")
    elif status is not None and status.state == State.STOPPED:
        complain(f"{service.name} did not start, and may be tried again: see {service.log_file} and the Event Viewer")
    else:
        complain(f"{service.name} does not run after {START_SECONDS:g} s: see its log, {service.log_file}")
    lines = _new_lines(service.log_file, logged)
    if lines:
        complain(f"{service.log_file} ends with:")
    for line in lines:
        complain(f"  {line}")


def stop(service: Service, _: argparse.Namespace, world: World) -> int:
    """Stop the service and wait until it has stopped. Returns the exit code; raises `ServiceManagerError`."""
    with world.open_manager(False) as manager:
        return _stop(manager, service, world)


def _stop(manager: Manager, service: Service, world: World) -> int:
    # It takes no control while it starts.
    _await(manager, service, lambda state: state != State.START_PENDING, START_SECONDS, world)
    state = _state(manager, service)
    if state == State.STOPPED:
        tell(f"{service.name} does not run")
        return DONE
    if state != State.STOP_PENDING:  # somebody has told it already, and it takes no control while it stops
        manager.stop(service.name)
    status = _await(manager, service, lambda state: state == State.STOPPED, STOP_SECONDS, world)
    if status is None or status.state == State.STOPPED:
        tell(f"{service.name} has stopped")
        return DONE
    complain(f"{service.name} has not stopped within {STOP_SECONDS:g} s: see its log, {service.log_file}")
    return FAILED


def remove(service: Service, _: argparse.Namespace, world: World) -> int:
    """Stop and remove the service. Returns the exit code; raises `ServiceManagerError`."""
    with world.open_manager(False) as manager:
        if manager.status(service.name) is None:
            _forget_event_source(service, world)
            tell(f"{service.name} is not installed")
            return DONE
        refuse_another(manager, service.name)
        if code := _stop(manager, service, world):
            return code
        manager.delete(service.name)
        left = _await(manager, service, lambda _: False, GONE_SECONDS, world)
    _forget_event_source(service, world)
    tell(f"{service.name} is removed; its settings, its outbox and its log stay in {service.folder}")
    if left is not None:
        tell("it is gone when nobody looks at it any more: close the Services window")
    return DONE


def _forget_event_source(service: Service, world: World) -> None:
    try:
        world.remove_event_source(service.name)
    except OSError as error:
        complain(f"the source {service.name} of the Event Log can't be removed: {error.strerror or error}")


def _state(manager: Manager, service: Service) -> int:
    """The service's state. Raises `ServiceManagerError` where there is no such service."""
    status = manager.status(service.name)
    if status is None:
        raise ServiceManagerError(0, f"{service.name} is not installed: run `{install_command(service.name)}` first")
    return status.state


def _await(
    manager: Manager, service: Service, enough: Callable[[int], bool], seconds: float, world: World
) -> ServiceStatus | None:
    """What the service is doing once its state is enough, or after so many seconds; None once there is none."""
    deadline = world.monotonic() + seconds
    while (status := manager.status(service.name)) is not None and not enough(status.state):
        if world.monotonic() >= deadline:
            break
        world.sleep(POLL_SECONDS)
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
