"""Files that a person makes for the agent to see, or the agent for others, in folders of which a service may have its
own.

systemd's PrivateTmp= gives a service its own /tmp and /var/tmp. `touch /tmp/hold` then holds nothing, and an approval
goes out that somebody believes to have stopped. So do PrivateDevices= with /dev, DynamicUser= with /var/lib/private,
TemporaryFileSystem= and BindPaths= with whatever they name. The shipped unit therefore notes what everybody else has
mounted, and names that file in `HOST_MOUNTS`: a folder that is not on the same file system, at the same place of it,
here and there is the service's own, whatever made it so. Without that file the marks of PrivateTmp= are looked for.
"""

from __future__ import annotations

import contextlib
import ntpath
import os
import posixpath
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporter.config.schema import ApprovalSettings, EventFilesSettings
from exporter.core.policy import Rule
from exporter.text.values import describe
from exporter.windows.places import EVENTS_FOLDER, HOLD_FILE, HOLD_FOLDER, READY_FOLDER, program_data

MOUNTS: Final = Path("/proc/self/mountinfo")
HOST_MOUNTS: Final = "HOST_MOUNTINFO"
"""The variable by which a unit names the file with /proc/self/mountinfo of a process outside of the service."""
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108  # named to be refused
SERVICE_OWN: Final = ("/dev", "/home", "/root", "/run/user", "/var/lib/private")
"""Further folders of which the shipped unit has its own, or is kept out of."""
_SHARED: Final = "/dev/shm"  # noqa: S108  # the one below them that systemd leaves as it is
_STATUS_FILE: Final = "status.json"
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


def events_place(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """A folder for event files where the installed service and everybody else see the same."""
    if platform == "win32":
        return ntpath.join(program_data(environ), EVENTS_FOLDER)
    return "/run/azure-scheduled-events-exporter/events"


@dataclass(frozen=True, slots=True)
class Unseen:
    """Sentences about files that the agent may never see, or that another process does not see as it does."""

    errors: tuple[str, ...] = ()
    """Of those that are surely elsewhere: the agent would take the file for absent, or write for nobody."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origins:
    """Where the hold file, the rules and the folder for event files were set."""

    hold_file: str
    rules: str
    event_files: str = ""


def unseen(
    approval: ApprovalSettings, event_files: EventFilesSettings, origins: Origins, mounts: Path, host: str = ""
) -> Unseen:
    """What there is to say about the files that approvals wait for, and about the folder for event files.

    Each sentence begins with where it was set: for a rule the rules and its name. `mounts` is what this process has
    mounted, as /proc/self/mountinfo tells it; `host` the path of what others have, "" for none.
    """
    if not sys.platform.startswith("linux"):
        return Unseen()
    files = list(_files(approval.hold_file, approval.rules, origins))
    if event_files.path:
        files.append(_for_others(origins.event_files, event_files.path))
    if not files:
        return Unseen()
    if not host:
        return _temporary(files, mounts)
    inside, outside = _mounted(mounts), _mounted(Path(host))
    if not inside:
        return _temporary(files, mounts)
    if not outside:
        marked = _temporary(files, mounts)
        doubt = f"{HOST_MOUNTS}: expected what is mounted outside of this service, found nothing of it in {host}"
        return Unseen(marked.errors, (*marked.warnings, f"{doubt}: make files to hold with in {_folder(hold_place())}"))
    return _compared(files, inside, outside)


@dataclass(frozen=True, slots=True)
class _File:
    """A file, or a folder for files: where it was set, as which text, and the place that we ship for it."""

    origin: str
    path: str
    """Of a file, or of one that will be in the folder."""
    found: str
    place: str
    never: str
    """What a service that has a folder of its own there never does."""
    closed: str
    """What comes of a folder that the service is kept out of."""


def _awaited(origin: str, path: str, place: str) -> _File:
    closed = "a file that can't be looked for approves nothing"
    return _File(origin, path, path, place, "never sees this file", closed)


def _for_others(origin: str, folder: str) -> _File:
    path = posixpath.join(folder, _STATUS_FILE)
    return _File(
        origin, path, folder, events_place(), "never shows others its files", "no event file can be written there"
    )


def _temporary(files: Sequence[_File], mounts: Path) -> Unseen:
    """Sentences about those in a temporary folder: errors where this process is known to have its own."""
    hidden = _below_temporary([file.path for file in files])
    if not hidden:
        return Unseen()
    if sure := has_private_tmp(mounts):
        reason = "of which this service has its own (PrivateTmp)"
    else:
        reason = "of which a service may have its own (PrivateTmp, as in the shipped unit) and then"
    outside = f"expected a path outside of {' and '.join(TEMPORARY)}, {reason}"
    sentences = tuple(
        f'{file.origin}: {outside}{"" if sure else f" {file.never}"}, such as "{file.place}", '
        f"found {describe(file.found)}"
        for file in files
        if file.path in hidden
    )
    return Unseen(sentences) if sure else Unseen(warnings=sentences)


def _compared(files: Sequence[_File], inside: Sequence[_Mount], outside: Sequence[_Mount]) -> Unseen:
    """Sentences about those whose folder is another one for other processes.

    A folder that this process is kept out of (ProtectHome=) is a warning: its files are not known to be absent, so that
    approvals are held; the agent's other work goes on.
    """
    errors: list[str] = []
    warnings: list[str] = []
    resolved = _resolved(posixpath.dirname(file.path) for file in files if file.path.startswith("/"))
    for file in files:
        origin, path = file.origin, file.path
        written = _folder(path)
        # Links are followed before `..`, as the system does it.
        meant = {written, resolved.get(posixpath.dirname(path), written)} if path.startswith("/") else set()
        own = next((point for folder in sorted(meant) if (point := _own(folder, inside, outside))), "")
        if not own:
            continue
        instead = f'such as "{file.place}", found {describe(file.found)}'
        if _is_closed(path):
            kept_out = f"expected a path outside of {own}, which this service is kept out of"
            warnings.append(f"{origin}: {kept_out}, {instead}: {file.closed}")
        else:
            errors.append(f"{origin}: expected a path outside of {own}, of which this service has its own, {instead}")
    return Unseen(tuple(errors), tuple(warnings))


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


def hidden_from_service(path: str, platform: str = sys.platform) -> str:
    """That of `SERVICE_OWN` which the file is in, "" for none: who looks from outside sees another folder."""
    if not platform.startswith("linux") or not path.startswith("/"):
        return ""
    folder = _folder(path)
    if posixpath.commonpath((_SHARED, folder)) == _SHARED:
        return ""
    return next((own for own in SERVICE_OWN if posixpath.commonpath((own, folder)) == own), "")


def _folder(path: str) -> str:
    """The folder of a file as it is written, without doubled slashes and `..`."""
    return posixpath.dirname(posixpath.normpath("/" + path.lstrip("/")))


def _own(folder: str, inside: Sequence[_Mount], outside: Sequence[_Mount]) -> str:
    """Where that is mounted which makes the folder another one here; "" when it is the same one outside.

    Not judged is what is mounted when somebody first looks (autofs): it may have been there for one of both alone.
    """
    here, there = _mount_of(folder, inside), _mount_of(folder, outside)
    if here is None or there is None or "autofs" in (here.kind, there.kind):
        return ""
    return "" if here.place(folder) == there.place(folder) else here.point


def _is_closed(path: str) -> bool:
    try:
        os.lstat(path)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


@dataclass(frozen=True, slots=True)
class _Mount:
    """One line of /proc/PID/mountinfo [proc(5)]."""

    number: str
    parent: str
    device: str
    root: str
    """The folder of the file system that is mounted."""
    point: str
    kind: str

    def holds(self, folder: str) -> bool:
        """Whether the folder is at the mount point or below it."""
        return posixpath.commonpath((self.point, folder)) == self.point

    def place(self, folder: str) -> tuple[str, str]:
        """The file system's device, and the folder's path within it."""
        return self.device, posixpath.normpath(posixpath.join(self.root, posixpath.relpath(folder, self.point)))


_FIELDS_BEFORE: Final = 6
"""Of a line, up to the options; then tags, a hyphen, and the kind."""


def _mounted(path: Path) -> list[_Mount]:
    """What a file such as /proc/self/mountinfo tells; nothing where it can't be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    mounts: list[_Mount] = []
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) >= _FIELDS_BEFORE and fields[4].startswith("/"):
            number, parent, device, root, point = (_unescaped(field) for field in fields[:5])
            mounts.append(_Mount(number, parent, device, root, point, kind))
    return mounts


def _unescaped(field: str) -> str:
    """A field without the octal escapes of space, tab, line feed and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _mount_of(folder: str, mounts: Sequence[_Mount]) -> _Mount | None:
    """The mount that the kernel comes to on its way to the folder: a later one may hide others below its point."""
    numbers = {mount.number for mount in mounts}
    top = (mount for mount in mounts if mount.point == "/" and mount.parent not in numbers - {mount.number})
    found = next(top, None)
    seen: set[str] = set()
    while found is not None and found.number not in seen:
        seen.add(found.number)
        crossed = [mount for mount in mounts if mount.parent == found.number and mount.holds(folder)]
        crossed = [mount for mount in crossed if mount.number not in seen]
        if not crossed:
            return found
        found = min(crossed, key=lambda mount: len(mount.point))
    return found


def _files(hold_file: str, rules: Iterable[Rule], origins: Origins) -> Iterator[_File]:
    if hold_file:
        yield _awaited(origins.hold_file, hold_file, hold_place())
    for rule in rules:
        if rule.require_file:
            yield _awaited(f'{origins.rules}: rule "{rule.name}": require_file', rule.require_file, ready_place())


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
