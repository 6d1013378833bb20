"""Keeps the folder as the last published status has it, on a thread of its own.

The agent hands over each status and never waits: a disk that is full, a folder that is missing and one that does not
answer are told, tried again, and delay nothing. Only the last status counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from exporter.core.policy import Rule
from exporter.core.snapshot import EventFilesStatus, Status
from exporter.event_files.folder import Folder
from exporter.event_files.keeper import Keeper
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
        self._keeper = Keeper(folder, rules, version=version, log=log, now=now, monotonic=monotonic)
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
                wait = self._keeper.bring(status, running=not stopping)
                self._began = None
                self._log.recovered("event_files.stuck", "event_files.recovered", path=self._folder.path)
            if stopping:
                return
