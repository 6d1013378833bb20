"""Keeps the folder as the last published status has it, on a thread of its own.

The agent hands over each status and never waits: a disk that is full, a folder that is missing and one that does not
answer are told, tried again, and delay nothing. Only the last status counts.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from exporter.core.document import folded
from exporter.core.policy import Rule
from exporter.core.scope import EventNow
from exporter.core.snapshot import EventFilesStatus, Status
from exporter.event_files.content import (
    STATUS_NAME,
    SUFFIX,
    event_fields,
    event_file,
    named_files,
    status_fields,
    status_file,
)
from exporter.event_files.folder import Fingerprint, Folder, Identity, InUse, PassDeadline, PathOccupied, digest
from exporter.log.protocol import Logger

STUCK_SECONDS: Final = 5.0
"""To bring the folder to a status takes milliseconds. What takes this long is told."""
STOP_SECONDS: Final = 1.0
"""How long the end of the agent waits for the folder."""


class EventFiles:
    """The files of one folder. `publish`, `state` and `stop` never wait for the disk, `stop` for a second at most."""

    def __init__(
        self,
        folder: Folder,
        rules: Sequence[Rule],
        *,
        version: str,
        log: Logger,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._log = log
        self._monotonic = monotonic
        self._keeper = Reconciler(folder, rules, version=version, log=log, now=now, monotonic=monotonic)
        self._latest: Status | None = None
        self._seen: object = None
        self._began: float | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="event_files", daemon=True)

    def start(self) -> None:
        """Start the thread, which waits for the first status."""
        self._thread.start()

    @property
    def state(self) -> EventFilesStatus:
        """The folder, and why its files are not as they should be."""
        stuck = self._stuck_for()
        if stuck is not None:
            return EventFilesStatus(self._folder.path, f"{self._folder.path} has not answered for {stuck:.0f} s")
        return EventFilesStatus(self._folder.path, self._keeper.error)

    def publish(self, status: Status) -> None:
        """Take the last status. From one thread."""
        self._latest = status
        state, source = status.state, status.state.process.source
        seen = (source.up, source.failure, source.success is None, status.vm, status.mode)
        everything = (seen, state.tracked, state.process.decisions)
        if everything != self._seen:
            self._seen = everything
            self._wake.set()
        if (stuck := self._stuck_for()) is not None:
            path, seconds = self._folder.path, round(stuck)
            self._log.failing("event_files.stuck", "event_files.stuck", path=path, seconds=seconds)

    def _stuck_for(self) -> float | None:
        began = self._began
        lasted = self._monotonic() - began if began is not None else 0.0
        return lasted if lasted > STUCK_SECONDS else None

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Write what is left, and that the agent does not run any more, for at most so many seconds."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        wait: float | None = None
        while True:
            self._wake.wait(wait)
            self._wake.clear()
            stopping, status = self._stopping, self._latest
            if status is not None:
                self._began = self._monotonic()
                wait = self._keeper.reconcile(status, running=not stopping)
                self._began = None
                self._log.recovered("event_files.stuck", "event_files.recovered", path=self._folder.path)
            if stopping:
                return


HEARTBEAT_SECONDS: Final = 4.0
"""So often `status.json` is written when nothing changes; readers are promised 5 s."""
RETRY_SECONDS: Final = 1.0
IN_USE_SECONDS: Final = 0.5
"""Of one pass, to wait for files that readers have open on Windows."""

_REASONS: Final = {
    errno.ENOENT: "missing",
    errno.EACCES: "not-permitted",
    errno.EPERM: "not-permitted",
    errno.EROFS: "not-permitted",
    errno.ENOSPC: "full",
    getattr(errno, "EDQUOT", errno.ENOSPC): "full",
    errno.EFBIG: "full",
}
_READ_AT: Final[Mapping[str, Any]] = {"last_read_at": None}
"""What alone is no reason to write `status.json`: it changes with each poll."""


class _Written(Struct, frozen=True):
    """What this process wrote under a name: the members, without the time, and what the file is known by."""

    fields: Mapping[str, Any]
    digest: bytes
    fingerprint: Fingerprint


class Reconciler:
    """Brings one folder to a status, as far as it lets itself be brought; it waits for the disk. Each file is tried for
    itself, so that one that can't be written hinders no other. `reconcile` is for one thread, `error` for any."""

    def __init__(
        self,
        folder: Folder,
        rules: Sequence[Rule],
        *,
        version: str,
        log: Logger,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self.error = ""
        """Why the folder is not as it should be, a sentence."""
        self._folder = folder
        self._rules = rules
        self._version = version
        self._log = log
        self._now = now
        self._monotonic = monotonic
        self._identity: Identity | None = None
        self._written: dict[str, _Written] = {}
        self._leftovers: dict[str, None] = {}
        """Names of events' files that an earlier process wrote."""
        self._temporary: list[str] = []
        self._status: _Written | None = None
        self._status_at = 0.0
        self._patience = PassDeadline(0)
        self._failures: list[OSError] = []

    def reconcile(self, status: Status, *, running: bool) -> float:
        """Write and remove what is needed. Returns the seconds until the next pass, if nothing changes before."""
        self._patience, self._failures = PassDeadline(IN_USE_SECONDS), []
        if self._tried(self._enter):
            changed = status.knows_its_events and self._settle(status)
            self._tried(self._write_status, status, running, changed)
        self._report()
        if self._failures:
            return RETRY_SECONDS
        return max(0.0, self._status_at + HEARTBEAT_SECONDS - self._monotonic())

    def _tried(self, act: Callable[..., bool], *args: Any) -> bool:
        """What `act` returns; False when it failed, which hinders no other file."""
        try:
            return act(*args)
        except OSError as error:
            self._failures.append(error)
            return False

    def _enter(self) -> bool:
        """See which folder it is. Of another one than before nothing is known: all is read, and written, again."""
        identity = self._folder.identity()
        if identity != self._identity:
            self._identity, self._written, self._status = None, {}, None
            leftovers, self._temporary = self._folder.leftovers()
            self._leftovers = dict.fromkeys(leftovers)
            self._identity = identity
        return True

    def _settle(self, status: Status) -> bool:
        """Remove the files of events that are over, then write those that are to be written. Whether any was."""
        wanted = self._wanted(status)
        over = [name for name in {**self._leftovers, **self._written} if name not in wanted]
        # First, so that a full disk has room.
        done = [self._tried(self._remove_over, name) for name in over]
        self._temporary = [name for name in self._temporary if not self._tried(self._remove, name)]
        for name, event in wanted.items():
            decision = status.state.process.decisions.get(event.tracked.key)
            fields = event_fields(event, decision, vm=status.vm, mode=status.mode, rules=self._rules)
            done.append(self._tried(self._write_event, name, fields))
        return any(done)

    def _wanted(self, status: Status) -> dict[str, EventNow]:
        """The events that have a file, by its name. The name stays when the id changes its case, so that no reader
        takes the event for over."""
        there = {folded(name.removesuffix(SUFFIX)): name for name in self._leftovers}
        there |= {folded(written.fields["event_id"]): name for name, written in self._written.items()}
        return {there.get(event.tracked.key, name): event for name, event in named_files(status).items()}

    def _remove_over(self, name: str) -> bool:
        """Remove an event's file; what an earlier process wrote may be somebody else's by now, and is left then."""
        if name not in self._written and self._folder.is_foreign(name):
            self._leftovers.pop(name, None)
            return True
        return self._remove(name)

    def _remove(self, name: str) -> bool:
        self._folder.remove(name, self._patience)
        self._leftovers.pop(name, None)
        self._written.pop(name, None)
        return True

    def _write_event(self, name: str, fields: Mapping[str, Any]) -> bool:
        """Write an event's file, unless it is there and says the same. Whether it was written."""
        written = self._written.get(name)
        if written is not None and written.fields == fields and self._is_there(name, written):
            return False
        content = event_file(fields, self._now())
        stamp = self._folder.replace(name, content, self._patience, durable=True)
        self._written[name] = _Written(fields, digest(content), stamp)
        self._leftovers.pop(name, None)
        return True

    def _is_there(self, name: str, written: _Written) -> bool:
        """Whether the file is still the one that was written; a file system may forget when, and by which number."""
        stamp = self._folder.fingerprint(name)
        return stamp is not None and (stamp == written.fingerprint or self._folder.digest(name) == written.digest)

    def _write_status(self, status: Status, running: bool, changed: bool) -> bool:  # called by `_tried`
        """Write `status.json` where something changed, and from time to time. Whether it was written."""
        if self._status is None:
            self._folder.check_status()
        names = sorted({**self._leftovers, **self._written})
        fields = status_fields(status, names, version=self._version, running=running)
        now, last = self._monotonic(), self._status
        due = last is None or now - self._status_at >= HEARTBEAT_SECONDS or not self._is_there(STATUS_NAME, last)
        if last is not None and not due and not changed and {**last.fields, **_READ_AT} == {**fields, **_READ_AT}:
            return False
        content = status_file(fields, self._now())
        stamp = self._folder.replace(STATUS_NAME, content, self._patience, durable=False)
        self._status, self._status_at = _Written(fields, digest(content), stamp), now
        return True

    def _report(self) -> None:
        path = self._folder.path
        if not self._failures:
            self.error = ""
            self._log.recovered("event_files", "event_files.recovered", path=path)
            return
        reason, self.error = _described(path, self._failures[0])
        self._log.failing("event_files", "event_files.failed", path=path, reason=reason, detail=self.error)


def _described(path: str, error: OSError) -> tuple[str, str]:
    """The reason of a failure, one word, and a sentence."""
    if isinstance(error, PathOccupied | InUse):
        return "foreign" if isinstance(error, PathOccupied) else "in-use", str(error)
    reason = _REASONS.get(error.errno or 0, "failed")
    where = error.filename2 or error.filename or path
    if reason == "missing":
        return reason, f"{path} is missing: files are made in it, and the folder itself never"
    return reason, f"{where}: {error.strerror or error}"
