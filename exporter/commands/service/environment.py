"""The commands' access to Windows as one value, which tests replace."""

from __future__ import annotations

import contextlib
import ntpath
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from msgspec import Struct, field

from exporter.windows import access, event_log, service_manager
from exporter.windows.access import SERVICE_NAME, Entry
from exporter.windows.places import program_data
from exporter.windows.service_manager import Manager

DISPLAY_NAME: Final = "Azure Scheduled Events Exporter"

_IN_VENV: Final = "import site, sys; site.addsitedir({packages!r}); from exporter.cli import main; sys.exit(main())"


def own_command() -> tuple[str, ...]:
    """Return the command that starts this program from any directory: the frozen program, or this Python.

    Python gets -I, since the installer's working directory, `PYTHONPATH`, and user packages don't apply to the service.
    """
    if getattr(sys, "frozen", False):
        return (sys.executable,)
    if sys.prefix != sys.base_prefix:
        base = os.path.join(sys.base_prefix, os.path.basename(sys.executable))
        return environment_command(base, sysconfig.get_path("purelib"))
    return (sys.executable, "-I", "-m", "exporter")


def environment_command(python: str, packages: str) -> tuple[str, ...]:
    """Return the command for a virtual environment with these packages: its base Python.

    On Windows, an environment's python.exe starts the base Python as another process [venv], and the service manager
    would watch the wrong one.
    """
    return (python, "-I", "-c", _IN_VENV.format(packages=packages))


class Lists(Struct, frozen=True):
    """The functions of `windows.access` for access lists; each raises OSError."""

    make_folder: Callable[[str], None] = access.make_folder
    protect_folder: Callable[[str, Sequence[Entry]], None] = access.protect_folder
    protect_file: Callable[[str, Sequence[Entry]], None] = access.protect_file
    read: Callable[[str], access.AccessList] = access.access_list
    user: Callable[[], str] = access.current_user


class ServiceEnvironment(Struct, frozen=True):
    """The machine and this process."""

    platform: str = sys.platform
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    service_environment: Callable[[str], Mapping[str, str]] = service_manager.service_environment
    command: Sequence[str] = field(default_factory=own_command)
    open_manager: Callable[[bool], AbstractContextManager[Manager]] = service_manager.open_manager
    lists: Lists = Lists()
    add_event_source: Callable[[str], None] = event_log.add_source
    remove_event_source: Callable[[str], None] = event_log.remove_source
    report: Callable[[str, int, str], object] = event_log.report
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Service(Struct, frozen=True):
    """One service of this program: its name, and its folder with settings, outbox, and log."""

    name: str
    folder: str

    @property
    def account(self) -> str:
        """Its virtual account, without a password, which Windows creates with the service [Virtual accounts]."""
        return f"NT SERVICE\\{self.name}"

    @property
    def sid(self) -> str:
        """The SID of its account."""
        return access.service_sid(self.name)

    @property
    def log_file(self) -> str:
        """Path of the newest file of its log."""
        return os.path.join(self.folder, "log", "agent.log")

    @property
    def config_file(self) -> str:
        """Path of its default settings file."""
        return os.path.join(self.folder, "config.toml")


@contextlib.contextmanager
def working_in(folder: str) -> Iterator[None]:
    """Run a block in the service's folder, if it exists, so that relative paths in the settings refer to it."""
    before = os.getcwd()
    with contextlib.suppress(OSError):
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def usual_service(environ: Mapping[str, str]) -> Service:
    """Return the default service."""
    return Service(SERVICE_NAME, program_data(environ))


def named_service(name: str, environ: Mapping[str, str]) -> Service:
    """Return the service with this name and its own folder, to which only its account has access."""
    usual = usual_service(environ)
    if name.upper() == usual.name.upper():  # the service manager ignores case
        return usual
    return Service(name, ntpath.join(ntpath.dirname(usual.folder), name))
