"""Paths that the agent and other processes must see identically.

An operator creates the hold file, other software creates ready files and reads event files, all from outside the
service. Under systemd, a service can have private directories: PrivateTmp= gives it its own /tmp, PrivateDevices= its
own /dev, DynamicUser= its own /var/lib/private, and ProtectHome= hides /home. A hold file in the real directory then
has no effect, and the agent sends an approval that the operator meant to stop. These directories are therefore errors
in a service, whatever its unit contains, and warnings elsewhere. `check --probe` finds all other differences: it
compares with what the running agent sees.
"""

from __future__ import annotations

import contextlib
import ntpath
import os
import posixpath
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from exporter.windows.places import EVENTS_FOLDER, HOLD_FILE, HOLD_FOLDER, READY_FOLDER, program_data

SERVICE_VARIABLE: Final = "INVOCATION_ID"
"""Set by systemd for each service that it starts [systemd.exec(5), Environment Variables]."""
SERVICE_OWN: Final = ("/tmp", "/var/tmp", "/dev", "/home", "/root", "/run/user", "/var/lib/private")  # noqa: S108  # compared only
"""Directories that can be private to a service or hidden from it."""
_RESOLVE_SECONDS: Final = 2.0
"""Time limit for resolving all links: a hung network mount must not keep the agent from starting."""


def hold_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """Return a path for a hold file that the installed service and other processes see identically."""
    path = ntpath.join(program_data(environ), HOLD_FOLDER, HOLD_FILE)
    return path if platform == "win32" else "/etc/azure-scheduled-events-exporter/hold"


def ready_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """Return a path for `require_file` that the installed service and other processes see identically."""
    path = ntpath.join(program_data(environ), READY_FOLDER, "{event_id}")
    return path if platform == "win32" else "/run/azure-scheduled-events-exporter/ready/{event_id}"


def events_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """Return a directory for event files that the installed service and other processes see identically."""
    path = ntpath.join(program_data(environ), EVENTS_FOLDER)
    return path if platform == "win32" else "/run/azure-scheduled-events-exporter/events"


def hidden_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return, for each path in a directory of `SERVICE_OWN`, that directory; links and `..` are followed too."""
    absolute = {path: "/" + path.lstrip("/") for path in paths if path.startswith("/")}
    if not absolute or not sys.platform.startswith("linux"):
        return {}
    resolved = _resolved((*SERVICE_OWN, *absolute.values()))
    own = {folder: name for name in SERVICE_OWN for folder in (name, resolved.get(name, name)) if folder != "/"}
    return {
        path: name
        for path, written in absolute.items()
        for meant in (posixpath.normpath(written), resolved.get(written, written))
        for folder, name in own.items()
        if posixpath.commonpath((meant, folder)) == folder
    }


def same_folder(one: str, other: str) -> bool:
    """Return whether two paths are the same directory, as written or with links followed (/var/run is /run)."""
    resolved = _resolved((one, other))
    first, second = ({_plain(path), _plain(resolved.get(path, path))} for path in (one, other))
    return not first.isdisjoint(second)


def _plain(path: str) -> str:
    """Return the path without doubled separators; on Windows, separators at its start have a meaning and are kept."""
    if sys.platform != "win32":
        path = "/" + path.lstrip("/")
    return os.path.normcase(os.path.normpath(path))


def _resolved(paths: Iterable[str]) -> dict[str, str]:
    """Return the paths with links followed, by path; without those that couldn't be resolved in time."""
    resolved: dict[str, str] = {}

    def resolve() -> None:
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                resolved[path] = os.path.realpath(path)

    thread = threading.Thread(target=resolve, name="places", daemon=True)
    thread.start()
    thread.join(_RESOLVE_SECONDS)
    return dict(resolved)
