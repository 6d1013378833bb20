"""Probes the folder for event files: whether the agent could write there, and who else may."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from exporter.commands.check.outbox import try_folder
from exporter.commands.check.report import ProbeEnvironment, Report, fail, ok, warn
from exporter.config.schema import Settings
from exporter.event_files.folder import Folder, Unfit

TOPIC: Final = "event_files"


def open_to_writers(settings: Settings) -> list[str]:
    """A warning when every user of the machine may write to the folder. On Windows `exposed_folders` does that."""
    path = settings.event_files.path
    if not path or sys.platform == "win32":
        return []
    try:
        everybody = os.stat(path).st_mode & stat.S_IWOTH
    except (OSError, ValueError):
        return []
    if not everybody:
        return []
    return [f"event_files.path: every user of this machine may write to {path}, also what is not true: chmod o-w it"]


def probe_event_files(settings: Settings, environment: ProbeEnvironment) -> Report:
    """Whether event files could be written: the folder is there, and takes files of this user."""
    del environment
    path = settings.event_files.path
    if not os.path.lexists(path):
        missing = f"{path} is missing, and the agent never makes it: make it, unless the unit of the agent does"
        return Report((warn(TOPIC, missing),))
    if not os.path.isdir(path):
        return Report((fail(TOPIC, f"{path} is no folder, or cannot be reached: correct event_files.path"),))
    if (refusal := try_folder(TOPIC, Path(path), "event_files.path")) is not None:
        return Report((refusal,))
    try:
        Folder(path).check_status()
    except Unfit as error:
        return Report((fail(TOPIC, str(error)),))
    return Report((ok(TOPIC, f"{path} can be written"),))
