"""Windows as the command `service` sees it, without Windows: a service manager and access lists in memory."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from exporter.commands.service.command import add_arguments
from exporter.commands.service.environment import Lists, ServiceEnvironment
from exporter.config.command_line import FlagParser
from exporter.windows.access import ADMINISTRATORS, AccessList, Ace, Entry
from exporter.windows.service_manager import (
    ACCESS_DENIED,
    ServiceDefinition,
    ServiceManagerError,
    ServiceState,
    ServiceStatus,
    command_line,
    sentence_of,
)

USER = "S-1-5-21-1-2-3-500"


@dataclass(slots=True)
class FakeManager:
    """A service manager for one service. `after_start` and `after_stop` are its states then, query by query."""

    services: dict[str, ServiceDefinition] = field(default_factory=dict)
    statuses: dict[str, ServiceStatus] = field(default_factory=dict)
    after_start: Sequence[ServiceStatus] = (
        ServiceStatus(ServiceState.START_PENDING),
        ServiceStatus(ServiceState.RUNNING),
    )
    after_stop: Sequence[ServiceStatus] = (
        ServiceStatus(ServiceState.STOP_PENDING),
        ServiceStatus(ServiceState.STOPPED),
    )
    lacks: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)
    on_start: Callable[[], None] = lambda: None
    coming: list[ServiceStatus] = field(default_factory=list)

    def status(self, name: str) -> ServiceStatus | None:
        if name in self.services and self.coming:
            self.statuses[name] = self.coming.pop(0)
        return self.statuses.get(name)

    def command(self, name: str) -> str:
        return command_line(self.services[name].command)

    def define(self, definition: ServiceDefinition) -> tuple[str, ...]:
        self.asked.append("define")
        self.services[definition.name] = definition
        self.statuses.setdefault(definition.name, ServiceStatus(ServiceState.STOPPED))
        return self.lacks

    def start(self, name: str) -> None:
        assert name in self.services
        self.asked.append("start")
        self.coming = list(self.after_start)
        self.on_start()

    def stop(self, name: str) -> None:
        assert name in self.services
        self.asked.append("stop")
        self.coming = list(self.after_stop)

    def delete(self, name: str) -> None:
        self.asked.append("delete")
        del self.services[name], self.statuses[name]


class FakeLists:
    """Access lists by path; new paths belong to the administrators, and existing ones to `owners`, else to them."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.entries: dict[str, tuple[Entry, ...]] = {}
        self.protected: list[str] = []

    def protect(self, path: str, entries: Sequence[Entry]) -> None:
        assert os.path.exists(path), path
        self.protected.append(path)
        self.entries[path] = tuple(entries)

    def read(self, path: str) -> AccessList:
        entries = tuple(Ace(sid, mask) for sid, mask in self.entries.get(path, ()))
        return AccessList(self.owners.get(path, ADMINISTRATORS), entries)

    @property
    def lists(self) -> Lists:
        return Lists(os.mkdir, self.protect, self.protect, self.read, lambda: USER)


class Clock:
    """A clock that advances in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


class FakeWindows:
    """A `ServiceEnvironment` that records its calls. `folder` is its ProgramData."""

    def __init__(self, folder: Path, *, administrator: bool = True) -> None:
        self.manager, self.access, self.clock = FakeManager(), FakeLists(), Clock()
        self.administrator = administrator
        self.sources: set[str] = set()
        self.reports: list[tuple[str, int, str]] = []
        self.variables: Mapping[str, str] = {}
        self.data = folder / "data"
        self.environment = ServiceEnvironment(
            platform="win32",
            environ={},
            service_environment=lambda _: self.variables,
            command=(r"C:\Program Files\azse\azse.exe",),
            open_manager=self._open,
            lists=self.access.lists,
            add_event_source=self.sources.add,
            remove_event_source=self.sources.discard,
            report=lambda source, number, text: self.reports.append((source, number, text)),
            monotonic=self.clock.monotonic,
            sleep=self.clock.sleep,
        )

    @contextlib.contextmanager
    def _open(self, create: bool) -> Iterator[FakeManager]:
        if create and not self.administrator:
            raise ServiceManagerError(ACCESS_DENIED, sentence_of(ACCESS_DENIED, "the service manager", ""))
        yield self.manager

    def session(self, **environ: str) -> ServiceEnvironment:
        """Return the same environment with these variables of the session."""
        return replace(self.environment, environ=environ)

    def arguments(self, *words: str) -> argparse.Namespace:
        """Return the arguments of `service` with `words`, in this environment's folder."""
        parser = FlagParser(prog="azse service")
        add_arguments(parser)
        return parser.parse_args([words[0], f"--folder={self.data}", *words[1:]])
