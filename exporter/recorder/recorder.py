"""The recording: what the metadata service said and what the agent did about it, for `replay`. Off unless configured.

JSON lines, each with the time of day in UTC:

    {"read_at": T, "body": TEXT}            a document that is not the one before (or "base64", if it is not UTF-8)
    {"read_at": T, "same": N}               read N times more without a gap, the last time then, and still the same
    {"at": T, "failure": REASON}            no answer, or none that counts, from then on
    {"at": T, "post": EVENTID, "sent": true} an approval is on its way
    {"at": T, "post": EVENTID, "status": S} it was answered: the answer's status, or none and the "reason"
    {"at": T, "interruption": {...}}        the VM stood still
    {"at": T, "vm": {...}}                  who this VM is, as known from then on
    {"at": T, "began": {...}}               the agent started
    {"at": T, "ended": {}}                  it stopped in good order

The file is for its owner alone, starts anew at `max_bytes` (PATH becomes PATH.1, and so on, `files` of them), and each
one can be read without the others. It is written on a thread of its own: a slow, full or broken disk delays no poll;
what does not fit into the queue is left out.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from exporter.core.continuity import UNBROKEN_POLLS, UNBROKEN_SECONDS
from exporter.core.records import Vm, timestamp
from exporter.errors import Failure
from exporter.log.protocol import Logger
from exporter.recorder.files import Files, Line

BEAT: Final = timedelta(seconds=60)
QUEUE_ITEMS: Final = 256
QUEUE_BYTES: Final = 32 << 20
STOP_SECONDS: Final = 1.0


class Answer(Protocol):
    @property
    def body(self) -> bytes: ...
    @property
    def read_at_monotonic(self) -> float: ...


class Source(Protocol):
    def fetch(self) -> Answer: ...
    def approve(self, event_id: str) -> None: ...


class Recorder:
    """Keeps what changed. No method raises or waits for the disk; all but `close` belong to the agent's thread."""

    def __init__(
        self,
        path: str | Path,
        max_bytes: int,
        files: int,
        *,
        log: Logger,
        who: Callable[[], Vm] = Vm,
        poll_interval: float = 1.0,
    ) -> None:
        self._who = who
        self._unbroken = timedelta(seconds=max(UNBROKEN_SECONDS, UNBROKEN_POLLS * poll_interval))
        self._writer = _Writer(Files(Path(path), max_bytes, files), log)
        self._vm = Vm()
        self._body: bytes | None = None
        self._last: datetime | None = None
        self._written: datetime | None = None
        self._same = 0
        self._failure = ""

    def began(self, at: datetime, version: str, boot: str) -> None:
        """The agent starts."""
        self._put({"at": timestamp(at), "began": {"version": version, "boot": boot}})

    def keep(self, body: bytes, read_at: datetime) -> None:
        """A 200 was read, whatever it holds."""
        self._know(read_at)
        last, self._failure = self._last, ""
        if body == self._body and last is not None and timedelta() <= read_at - last <= self._unbroken:
            self._same, self._last = self._same + 1, read_at
            if self._written is None or read_at - self._written >= BEAT:
                self._tell_same()
            return
        self._tell_same()
        self._body, self._last, self._written = body, read_at, read_at
        if not self._writer.put({"read_at": timestamp(read_at)}, body):
            self._body = None  # left out: the next reading is kept as if it were new

    def failed(self, at: datetime, reason: str) -> None:
        """A poll failed. A failure that goes on is told once."""
        if reason == self._failure:
            return
        self._tell_same()
        self._failure, self._last = reason, None
        self._put({"at": timestamp(at), "failure": reason})

    def sent(self, at: datetime, event_id: str) -> None:
        """An approval is on its way."""
        self._tell_same()
        self._put({"at": timestamp(at), "post": event_id, "sent": True})

    def posted(self, at: datetime, event_id: str, status: int | None, reason: str = "") -> None:
        """An approval was answered, or not in time."""
        self._tell_same()
        self._put({"at": timestamp(at), "post": event_id, "status": status, **({"reason": reason} if reason else {})})

    def felt(self, at: datetime, kind: str, seconds: float) -> None:
        """An interruption was noticed."""
        self._tell_same()
        self._put({"at": timestamp(at), "interruption": {"kind": kind, "seconds": round(seconds, 3)}})

    def ended(self, at: datetime) -> None:
        """The agent stops in good order."""
        self._tell_same()
        self._put({"at": timestamp(at), "ended": {}})

    def close(self) -> None:
        """Writes what is left, for at most a second."""
        self._tell_same()
        self._writer.close()

    def _know(self, at: datetime) -> None:
        vm = self._who()
        if vm != self._vm:
            self._tell_same()  # from this poll on it is known, and not before
            self._vm = vm
            self._put({"at": timestamp(at), "vm": {name: text for name, text in asdict(vm).items() if text}})

    def _tell_same(self) -> None:
        if self._same and self._last is not None:
            self._put({"read_at": timestamp(self._last), "same": self._same})
            self._written = self._last
        self._same = 0

    def _put(self, line: Line) -> None:
        self._writer.put(line, b"")


class NoRecorder:
    """Records nothing."""

    def began(self, at: datetime, version: str, boot: str) -> None: ...
    def keep(self, body: bytes, read_at: datetime) -> None: ...
    def failed(self, at: datetime, reason: str) -> None: ...
    def sent(self, at: datetime, event_id: str) -> None: ...
    def posted(self, at: datetime, event_id: str, status: int | None, reason: str = "") -> None: ...
    def felt(self, at: datetime, kind: str, seconds: float) -> None: ...
    def ended(self, at: datetime) -> None: ...
    def close(self) -> None: ...


class Recorded:
    """A source whose failures are recorded; its documents come by `Recorder.keep`, approvals by `Recorder.posted`."""

    def __init__(
        self,
        source: Source,
        recorder: Recorder | NoRecorder,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source = source
        self._recorder = recorder
        self._now = now
        self._stopping = stopping

    def fetch(self) -> Answer:
        try:
            return self._source.fetch()
        except Failure as failure:
            if not self._stopping():  # a request that we broke off ourselves tells nothing of the source
                self._recorder.failed(self._now(), failure.reason)
            raise

    def approve(self, event_id: str) -> None:
        """On whichever thread; what came of it is recorded when the agent takes note of it."""
        self._source.approve(event_id)


class _Writer:
    """Takes lines to the files on a thread of its own."""

    def __init__(self, files: Files, log: Logger) -> None:
        self._files = files
        self._log = log
        self._queue: queue.SimpleQueue[tuple[Line, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._bytes = 0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def put(self, line: Line, body: bytes) -> bool:
        """Queues a line. False when there is no room: the disk does not keep up."""
        with self._lock:
            room = self._waiting < QUEUE_ITEMS and self._bytes + len(body) <= QUEUE_BYTES
            if room:
                self._waiting += 1
                self._bytes += len(body)
        if not room:
            self._log.failing("recorder", "recorder.failed", path=str(self._files.path), detail="the disk is too slow")
            return False
        self._queue.put((line, body))
        return True

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            line, body = item
            try:
                self._files.write(line, body)
            except (OSError, ValueError) as error:
                detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._log.failing("recorder", "recorder.failed", path=str(self._files.path), detail=detail)
            else:
                self._log.recovered("recorder", "recorder.recovered")
            with self._lock:
                self._waiting -= 1
                self._bytes -= len(body)
        self._files.close()
