"""What the commands see of Windows, as one value: the tests give another."""

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


_IN_ENVIRONMENT: Final = (
    "import site, sys; site.addsitedir({packages!r}); from exporter.cli import main; sys.exit(main())"
)


def own_command() -> tuple[str, ...]:
    """What starts this program from the folder System32: the frozen program, or this Python.

    With -I, since the folder of the installer, its `PYTHONPATH` and its own packages are not the service's.
    """
    if getattr(sys, "frozen", False):
        return (sys.executable,)
    if sys.prefix != sys.base_prefix:
        base = os.path.join(sys.base_prefix, os.path.basename(sys.executable))
        return environment_command(base, sysconfig.get_path("purelib"))
    return (sys.executable, "-I", "-m", "exporter")


def environment_command(python: str, packages: str) -> tuple[str, ...]:
    """The same for a virtual environment with these packages, by the Python that it was made of.

    On Windows the python.exe of an environment starts that one as another process [venv], and the service manager
    would look after the wrong one.
    """
    return (python, "-I", "-c", _IN_ENVIRONMENT.format(packages=packages))


class Lists(Struct, frozen=True):
    """Access lists, as `windows.access` has them; each function raises OSError."""

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
    """One service of this program: its name and its folder, with its settings, its outbox and its log."""

    name: str
    folder: str

    @property
    def account(self) -> str:
        """Its virtual account: without a password, made by Windows with the service [Virtual accounts]."""
        return f"NT SERVICE\\{self.name}"

    @property
    def sid(self) -> str:
        """The SID of its account."""
        return access.service_sid(self.name)

    @property
    def log_file(self) -> str:
        """The newest file of its log."""
        return os.path.join(self.folder, "log", "agent.log")

    @property
    def config_file(self) -> str:
        """Its settings, unless others are given."""
        return os.path.join(self.folder, "config.toml")


@contextlib.contextmanager
def working_in(folder: str) -> Iterator[None]:
    """Work in the service's folder, so that relative paths in the settings are of that one; not while it is missing."""
    before = os.getcwd()
    with contextlib.suppress(OSError):
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def usual_service(environ: Mapping[str, str]) -> Service:
    """The service that is meant where nothing else is said."""
    return Service(SERVICE_NAME, program_data(environ))


def named_service(name: str, environ: Mapping[str, str]) -> Service:
    """The service of this name, with a folder of its own: only its own account has access there."""
    usual = usual_service(environ)
    if name.upper() == usual.name.upper():  # the service manager knows no case
        return usual
    return Service(name, ntpath.join(ntpath.dirname(usual.folder), name))
