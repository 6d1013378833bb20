"""Where files are that the agent and other processes have to see alike.

A hold file is made by a person, a ready file by other software, and event files are read by it, all from outside of the
service. Under systemd a service may have another folder than everybody else at the same path: PrivateTmp= gives it its
own /tmp, PrivateDevices= its own /dev, DynamicUser= its own /var/lib/private, and ProtectHome= keeps it out of /home. A
file that somebody made in the real folder holds nothing then, and an approval goes out that they believe to have
stopped. So these folders are refused in a service, whatever its unit says, and warned of elsewhere. Every other
difference is found by `check --probe`, which compares what the running agent sees.
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
"""systemd sets it for each service that it starts [systemd.exec(5), Environment Variables]."""
SERVICE_OWN: Final = ("/tmp", "/var/tmp", "/dev", "/home", "/root", "/run/user", "/var/lib/private")  # noqa: S108  # none is made there
"""Folders of which a service may have its own, or is kept out of."""
_RESOLVE_SECONDS: Final = 2.0
"""For all links to be followed: one on a network mount that hangs must not keep the agent from starting."""


def hold_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """A hold file where the installed service and everybody else see the same."""
    path = ntpath.join(program_data(environ), HOLD_FOLDER, HOLD_FILE)
    return path if platform == "win32" else "/etc/azure-scheduled-events-exporter/hold"


def ready_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """A `require_file` where the installed service and everybody else see the same."""
    path = ntpath.join(program_data(environ), READY_FOLDER, "{event_id}")
    return path if platform == "win32" else "/run/azure-scheduled-events-exporter/ready/{event_id}"


def events_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """A folder for event files where the installed service and everybody else see the same."""
    path = ntpath.join(program_data(environ), EVENTS_FOLDER)
    return path if platform == "win32" else "/run/azure-scheduled-events-exporter/events"


def hidden_by_service(paths: Iterable[str]) -> dict[str, str]:
    """The folder of `SERVICE_OWN` that a path is in, as written or once links and `..` are followed, by path."""
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
    """Whether two paths are of one folder, as they are written or once links are followed: /var/run is /run."""
    resolved = _resolved((one, other))
    first, second = ({_plain(path), _plain(resolved.get(path, path))} for path in (one, other))
    return not first.isdisjoint(second)


def _plain(path: str) -> str:
    """Without doubled separators, at its beginning too where the system makes no difference there."""
    if sys.platform != "win32":
        path = "/" + path.lstrip("/")
    return os.path.normcase(os.path.normpath(path))


def _resolved(paths: Iterable[str]) -> dict[str, str]:
    """The paths with their links followed, those of them that could be resolved in time."""
    resolved: dict[str, str] = {}

    def resolve() -> None:
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                resolved[path] = os.path.realpath(path)

    thread = threading.Thread(target=resolve, name="places", daemon=True)
    thread.start()
    thread.join(_RESOLVE_SECONDS)
    return dict(resolved)
