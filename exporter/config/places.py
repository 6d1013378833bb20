"""Folders of which a service has its own: a file that a person puts there from outside is never seen by the agent.

systemd's PrivateTmp= gives a service its own /tmp and /var/tmp. `touch /tmp/hold` then holds nothing, and an approval
goes out that somebody believes to have stopped.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from exporter.config.schema import ApprovalSettings
from exporter.core.policy import Rule
from exporter.text.values import describe

HOLD_FILE: Final = "/etc/azure-scheduled-events-exporter/hold"
READY_FILE: Final = "/run/azure-scheduled-events-exporter/ready/{event_id}"
"""Where what we ship has a place for them that is seen from inside as from outside."""
MOUNTS: Final = Path("/proc/self/mountinfo")
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108  # named to be refused
_PATIENCE_SECONDS: Final = 2.0
"""For links to be followed: one on a network mount that hangs must not keep the agent from starting."""


def unseen(approval: ApprovalSettings, hold_origin: str, rules_origin: str, mounts: Path) -> tuple[list[str], bool]:
    """Sentences about files that may never be seen, each with where it was set, and whether they are sure: errors."""
    if not sys.platform.startswith("linux"):
        return [], False
    named = list(_files(approval.hold_file, approval.rules, hold_origin, rules_origin))
    below = _below_temporary([path for _, path, _ in named])
    found = [(origin, path, instead) for origin, path, instead in named if path in below]
    if not found:
        return [], False
    if sure := has_private_tmp(mounts):
        why = "of which this service has its own (PrivateTmp)"
    else:
        why = "of which a service may have its own (PrivateTmp, as in the shipped unit) and then never sees this file"
    outside = f"expected a path outside of {' and '.join(TEMPORARY)}, {why}"
    return [
        f'{origin}: {outside}, such as "{instead}", found {describe(path)}' for origin, path, instead in found
    ], sure


def _files(
    hold_file: str, rules: Iterable[Rule], hold_origin: str, rules_origin: str
) -> Iterator[tuple[str, str, str]]:
    """Where each file was set, its path, and the place that we ship for it."""
    if hold_file:
        yield hold_origin, hold_file, HOLD_FILE
    for rule in rules:
        if rule.require_file:
            yield f'{rules_origin}: rule "{rule.name}": require_file', rule.require_file, READY_FILE


def _below_temporary(paths: Iterable[str]) -> set[str]:
    """Those of the paths that are in a temporary folder, as written or once links and `..` are resolved."""
    absolute = {path: "/" + path.lstrip("/") for path in paths if path.startswith("/")}
    real = _resolved((*TEMPORARY, *absolute.values())) if absolute else {}
    folders = {*TEMPORARY, *(real[folder] for folder in TEMPORARY if folder in real)} - {"/"}
    return {
        path
        for path, written in absolute.items()
        for means in (posixpath.normpath(written), real.get(written, written))
        if any(posixpath.commonpath((means, folder)) == folder for folder in folders)
    }


def _resolved(paths: Iterable[str]) -> dict[str, str]:
    """What the paths really mean, as far as that can be told in time."""
    found: dict[str, str] = {}

    def resolve() -> None:
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                found[path] = os.path.realpath(path)

    thread = threading.Thread(target=resolve, name="places", daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return dict(found)


def has_private_tmp(mounts: Path = MOUNTS) -> bool:
    """Whether this process has a /tmp or a /var/tmp of its own from systemd, by what is mounted there.

    PrivateTmp=yes mounts …/systemd-private-…/tmp, or /run/systemd/empty where that can't be made; `disconnected` mounts
    a file system of its own, unit-private-tmp. No answer, as where /proc is hidden, is a no.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    folders = {*TEMPORARY, *_resolved(TEMPORARY).values()}
    return any(_is_private(line.split(" ")[3:5], folders) for line in lines)


def _is_private(fields: list[str], folders: set[str]) -> bool:
    """Of a mount: its root in the file system that it is of, and where it is mounted [proc(5), mountinfo]."""
    if len(fields) < len(("root", "point")):
        return False
    root, point = fields
    if posixpath.basename(point) == "unit-private-tmp":
        return True
    parts = root.split("/")
    return point in folders and (
        any(part.startswith("systemd-private-") for part in parts) or parts[-2:] == ["systemd", "empty"]
    )
