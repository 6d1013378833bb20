"""Files that a person makes for the agent to see, in folders of which a service may have its own.

systemd's PrivateTmp= gives a service its own /tmp and /var/tmp. `touch /tmp/hold` then holds nothing, and an approval
goes out that somebody believes to have stopped.
"""

from __future__ import annotations

import contextlib
import ntpath
import os
import posixpath
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from exporter.config.schema import ApprovalSettings
from exporter.core.policy import Rule
from exporter.text.values import describe
from exporter.windows.places import HOLD_FILE, HOLD_FOLDER, READY_FOLDER, program_data

MOUNTS: Final = Path("/proc/self/mountinfo")
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108  # named to be refused
_RESOLVE_SECONDS: Final = 2.0
"""For all links to be followed: one on a network mount that hangs must not keep the agent from starting."""


def hold_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """A hold file where the installed service and everybody else see the same."""
    if platform == "win32":
        return ntpath.join(program_data(environ), HOLD_FOLDER, HOLD_FILE)
    return "/etc/azure-scheduled-events-exporter/hold"


def ready_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """A `require_file` where the installed service and everybody else see the same."""
    if platform == "win32":
        return ntpath.join(program_data(environ), READY_FOLDER, "{event_id}")
    return "/run/azure-scheduled-events-exporter/ready/{event_id}"


def unseen(approval: ApprovalSettings, hold_origin: str, rules_origin: str, mounts: Path) -> tuple[list[str], bool]:
    """Sentences about files that the agent may never see, and whether that is sure, which makes them errors.

    Each begins with where the file was set: `hold_origin`, or `rules_origin` and the rule's name. `mounts` is what this
    process has mounted, as /proc/self/mountinfo tells it.
    """
    if not sys.platform.startswith("linux"):
        return [], False
    files = list(_files(approval.hold_file, approval.rules, hold_origin, rules_origin))
    hidden = _below_temporary([path for _, path, _ in files])
    if not hidden:
        return [], False
    if sure := has_private_tmp(mounts):
        reason = "of which this service has its own (PrivateTmp)"
    else:
        reason = (
            "of which a service may have its own (PrivateTmp, as in the shipped unit) and then never sees this file"
        )
    outside = f"expected a path outside of {' and '.join(TEMPORARY)}, {reason}"
    return [
        f'{origin}: {outside}, such as "{instead}", found {describe(path)}'
        for origin, path, instead in files
        if path in hidden
    ], sure


def _files(
    hold_file: str, rules: Iterable[Rule], hold_origin: str, rules_origin: str
) -> Iterator[tuple[str, str, str]]:
    """Where each file was set, its path, and the place that we ship for it."""
    if hold_file:
        yield hold_origin, hold_file, hold_place()
    for rule in rules:
        if rule.require_file:
            yield f'{rules_origin}: rule "{rule.name}": require_file', rule.require_file, ready_place()


def _below_temporary(paths: Iterable[str]) -> set[str]:
    """Those of the paths that are in a temporary folder, as written or once links and `..` are resolved."""
    absolute = {path: "/" + path.lstrip("/") for path in paths if path.startswith("/")}
    resolved = _resolved((*TEMPORARY, *absolute.values())) if absolute else {}
    folders = {*TEMPORARY, *(resolved[folder] for folder in TEMPORARY if folder in resolved)} - {"/"}
    return {
        path
        for path, written in absolute.items()
        for meant in (posixpath.normpath(written), resolved.get(written, written))
        if any(posixpath.commonpath((meant, folder)) == folder for folder in folders)
    }


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


def has_private_tmp(mounts: Path = MOUNTS) -> bool:
    """Whether this process has a /tmp or a /var/tmp of its own from systemd, by what is mounted there.

    PrivateTmp=yes mounts …/systemd-private-…/tmp, or /run/systemd/empty where that can't be made; `disconnected` mounts
    a file system of its own, unit-private-tmp. Where `mounts` can't be read, as where /proc is hidden, it has none.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    folders = {*TEMPORARY, *_resolved(TEMPORARY).values()}
    return any(_is_private(line.split(" ")[3:5], folders) for line in lines)


def _is_private(fields: list[str], folders: set[str]) -> bool:
    """Whether a mount is one of these, by its root within its file system and its mount point [proc(5), mountinfo]."""
    if len(fields) < len(("root", "point")):
        return False
    root, point = fields
    if posixpath.basename(point) == "unit-private-tmp":
        return True
    parts = root.split("/")
    return point in folders and (
        any(part.startswith("systemd-private-") for part in parts) or parts[-2:] == ["systemd", "empty"]
    )
