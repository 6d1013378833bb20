"""The thread that reconciles the event-file directory with the last published status.

The agent passes each status and never waits. A full disk, a missing directory, or one that doesn't respond is logged
and retried, and delays nothing else. Only the last status counts.
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
"""A pass takes milliseconds. A pass that takes longer than this is reported as stuck."""
STOP_SECONDS: Final = 1.0
"""Time that the stopping agent waits for the directory."""


class EventFiles:
    """The event files of one directory. Only `stop` waits for the disk, by default at most `STOP_SECONDS`."""

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
        self._reconciler = Reconciler(folder, rules, version=version, log=log, now=now, monotonic=monotonic)
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
        """The directory, and the error that keeps its files from being current, "" if none."""
        stuck = self._stuck_for()
        if stuck is not None:
            return EventFilesStatus(self._folder.path, f"{self._folder.path}: no response for {stuck:.0f} s")
        return EventFilesStatus(self._folder.path, self._reconciler.error)

    def publish(self, status: Status) -> None:
        """Set the status to write. Call it from one thread only."""
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
        """Write the last status with `running` false, and end the thread. Wait at most this many seconds."""
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
                wait = self._reconciler.reconcile(status, running=not stopping)
                self._began = None
                self._log.recovered("event_files.stuck", "event_files.recovered", path=self._folder.path)
            if stopping:
                return


HEARTBEAT_SECONDS: Final = 4.0
"""Interval of writes of `status.json` without changes; the documented maximum is 5 s."""
RETRY_SECONDS: Final = 1.0
IN_USE_SECONDS: Final = 0.5
"""Wait in one pass for files that readers have open on Windows."""

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
"""Members that change with each poll; a change of only these doesn't cause a write of `status.json`."""


class _Written(Struct, frozen=True):
    """A file that this process wrote: its members without the time, its digest, and its fingerprint."""

    fields: Mapping[str, Any]
    digest: bytes
    fingerprint: Fingerprint


class Reconciler:
    """Reconciles one directory with a status: removes files of ended events, writes changed ones.

    Files are handled separately, so one failure doesn't block the others. `reconcile` blocks on the disk and is for one
    thread; `error` is for any thread.
    """

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
        """Why the directory isn't current, as a sentence; empty if it is."""
        self._folder = folder
        self._rules = rules
        self._version = version
        self._log = log
        self._now = now
        self._monotonic = monotonic
        self._identity: Identity | None = None
        self._written: dict[str, _Written] = {}
        self._leftovers: dict[str, None] = {}
        """Names of event files that an earlier process wrote."""
        self._temporary: list[str] = []
        self._status: _Written | None = None
        self._status_at = 0.0
        self._patience = PassDeadline(0)
        self._failures: list[OSError] = []

    def reconcile(self, status: Status, *, running: bool) -> float:
        """Write and remove files as needed. Return the seconds until the next pass, if no change comes before."""
        self._patience, self._failures = PassDeadline(IN_USE_SECONDS), []
        if self._tried(self._enter):
            changed = status.knows_its_events and self._settle(status)
            self._tried(self._write_status, status, running, changed)
        self._report()
        if self._failures:
            return RETRY_SECONDS
        return max(0.0, self._status_at + HEARTBEAT_SECONDS - self._monotonic())

    def _tried(self, act: Callable[..., bool], *args: Any) -> bool:
        """Return the result of `act`; if it fails, keep the error and return False."""
        try:
            return act(*args)
        except OSError as error:
            self._failures.append(error)
            return False

    def _enter(self) -> bool:
        """Check the directory's identity. If it changed, read all its files and write all again. Return True."""
        identity = self._folder.identity()
        if identity != self._identity:
            self._identity, self._written, self._status = None, {}, None
            leftovers, self._temporary = self._folder.leftovers()
            self._leftovers = dict.fromkeys(leftovers)
            self._identity = identity
        return True

    def _settle(self, status: Status) -> bool:
        """Remove the files of ended events, then write changed ones. Return whether any file changed."""
        # A name stays if the id changes its case, so that readers don't consider the event ended.
        names = {folded(name.removesuffix(SUFFIX)): name for name in self._leftovers}
        names |= {folded(written.fields["event_id"]): name for name, written in self._written.items()}
        wanted = {names.get(event.tracked.key, name): event for name, event in named_files(status).items()}
        over = [name for name in {**self._leftovers, **self._written} if name not in wanted]
        # Remove first, to free space on a full disk.
        done = [self._tried(self._remove_over, name) for name in over]
        self._temporary = [name for name in self._temporary if not self._tried(self._remove, name)]
        for name, event in wanted.items():
            decision = status.state.process.decisions.get(event.tracked.key)
            fields = event_fields(event, decision, vm=status.vm, mode=status.mode, rules=self._rules)
            done.append(self._tried(self._write_event, name, fields))
        return any(done)

    def _remove_over(self, name: str) -> bool:
        """Remove an event file, unless an earlier process wrote it and another program has replaced it since."""
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
        """Write an event file, unless it exists with the same content. Return whether it was written."""
        written = self._written.get(name)
        if written is not None and written.fields == fields and self._is_there(name, written):
            return False
        content = event_file(fields, self._now())
        stamp = self._folder.replace(name, content, self._patience, durable=True)
        self._written[name] = _Written(fields, digest(content), stamp)
        self._leftovers.pop(name, None)
        return True

    def _is_there(self, name: str, written: _Written) -> bool:
        """Return whether the written file is still there: by fingerprint, or by digest if that changed."""
        stamp = self._folder.fingerprint(name)
        return stamp is not None and (stamp == written.fingerprint or self._folder.digest(name) == written.digest)

    def _write_status(self, status: Status, running: bool, changed: bool) -> bool:  # called by `_tried`
        """Write `status.json` after a change, and every `HEARTBEAT_SECONDS`. Return whether it was written."""
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
    """Return the keyword and the sentence for a failure."""
    if isinstance(error, PathOccupied | InUse):
        return "foreign" if isinstance(error, PathOccupied) else "in-use", str(error)
    reason = _REASONS.get(error.errno or 0, "failed")
    where = error.filename2 or error.filename or path
    if reason == "missing":
        return reason, f"{path}: the directory does not exist; create it, because the agent does not"
    return reason, f"{where}: {error.strerror or error}"
