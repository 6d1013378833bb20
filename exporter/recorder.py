"""The recording: what the metadata service said and what the agent did about it, for `replay`. Off unless configured.

JSON lines, each with the time of day in UTC:

    {"read_at": T, "body": TEXT}            a document that is not the one before (or "base64", if it is not UTF-8)
    {"read_at": T, "same": N}               read N times more without a gap, the last time then, and still the same
    {"at": T, "failure": REASON}            no answer, or none that counts, from then on
    {"at": T, "post": EVENTID, "status": S} an approval was asked for; the answer's status, or none and the "reason"
    {"at": T, "interruption": {...}}        the VM stood still
    {"at": T, "vm": {...}}                  who this VM is, as known from then on
    {"at": T, "began": {...}}               the agent started

The file is for its owner alone, starts anew at `max_bytes` (PATH becomes PATH.1, and so on, `files` of them), and each
one can be read without the others. It is written on a thread of its own: a slow, full or broken disk delays no poll;
what does not fit into the queue is left out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from exporter.failures import Failure
from exporter.lifecycle import UNBROKEN_POLLS, UNBROKEN_SECONDS
from exporter.records import Vm, timestamp

BEAT: Final = timedelta(seconds=60)
QUEUE_ITEMS: Final = 256
QUEUE_BYTES: Final = 32 << 20
STOP_SECONDS: Final = 1.0
ACCEPTED: Final = 200
_OPEN: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_OPEN_WHERE_KNOWN: Final = ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY")

Line = dict[str, Any]


class Log(Protocol):
    def trouble(self, key: str, event: str, **fields: Any) -> None: ...
    def over(self, key: str, event: str, **fields: Any) -> None: ...


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
        log: Log,
        who: Callable[[], Vm] = Vm,
        poll_interval: float = 1.0,
    ) -> None:
        self._who = who
        self._unbroken = timedelta(seconds=max(UNBROKEN_SECONDS, UNBROKEN_POLLS * poll_interval))
        self._writer = _Writer(_Files(Path(path), max_bytes, files), log)
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

    def posted(self, at: datetime, event_id: str, status: int | None, reason: str = "") -> None:
        """An approval was asked for."""
        self._tell_same()
        self._put({"at": timestamp(at), "post": event_id, "status": status, **({"reason": reason} if reason else {})})

    def felt(self, at: datetime, kind: str, seconds: float) -> None:
        """An interruption was noticed."""
        self._tell_same()
        self._put({"at": timestamp(at), "interruption": {"kind": kind, "seconds": round(seconds, 3)}})

    def close(self) -> None:
        """Writes what is left, for at most a second."""
        self._tell_same()
        self._writer.close()

    def _know(self, at: datetime) -> None:
        vm = self._who()
        if vm != self._vm:
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
    def posted(self, at: datetime, event_id: str, status: int | None, reason: str = "") -> None: ...
    def felt(self, at: datetime, kind: str, seconds: float) -> None: ...
    def close(self) -> None: ...


class Recorded:
    """A source whose failures and answered approvals are recorded; its documents come by `Recorder.keep`."""

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
        try:
            self._source.approve(event_id)
        except Failure as failure:
            status = getattr(failure, "status_code", None)
            self._recorder.posted(self._now(), event_id, status, failure.reason)
            raise
        self._recorder.posted(self._now(), event_id, ACCEPTED)


class _Writer:
    """Takes lines to the files on a thread of its own."""

    def __init__(self, files: _Files, log: Log) -> None:
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
            self._log.trouble("recorder", "recorder.failed", path=str(self._files.path), detail="the disk is too slow")
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
                self._log.trouble("recorder", "recorder.failed", path=str(self._files.path), detail=detail)
            else:
                self._log.over("recorder", "recorder.recovered")
            with self._lock:
                self._waiting -= 1
                self._bytes -= len(body)
        self._files.close()


class _Files:
    """The numbered files. Everything raises OSError, and the next `write` begins afresh."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self.path = path
        self._max = max_bytes
        self._count = files
        self._descriptor: int | None = None
        self._size = 0
        self._vm: Line = {}
        self._body = b""
        self._seen = ""
        self._whole = False
        """The file that is open says who we are and what the document is."""

    def write(self, line: Line, body: bytes) -> None:
        self._remember(line, body)
        try:
            self._open()
            text = self._text(line, body)
            if self._size > 1 and self._size + len(text) >= self._max:
                self._rotate()
                self._open()
            self._append((b"" if self._whole else self._opening(line, body, len(text))) + text)
            self._whole = True
        except OSError:
            self._whole = False
            self.close()
            raise

    def _text(self, line: Line, body: bytes) -> bytes:
        if body or ("read_at" in line and "same" not in line):
            text = _encoded({**line, **_coded(body)})
            return text if len(text) < self._max else _encoded({**line, "omitted": len(body)})
        return _encoded(line)

    def _remember(self, line: Line, body: bytes) -> None:
        if "vm" in line:
            self._vm = line
        if "read_at" in line:
            self._seen = line["read_at"]
            self._body = self._body if "same" in line else body

    def _opening(self, line: Line, body: bytes, needed: int) -> bytes:
        """What the line rests on: who we are, and the document as last read, as far as they fit."""
        found = b""
        if self._vm and "vm" not in line:
            found += _encoded(self._vm)
        if self._body and not body:
            found += _encoded({"read_at": self._seen, **_coded(self._body)})
        return found if self._size + len(found) + needed < self._max else b""

    def _open(self) -> None:
        if self._descriptor is not None and _same_file(self._descriptor, self.path):
            return
        self.close()
        self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        flags = _OPEN
        for name in _OPEN_WHERE_KNOWN:
            flags |= getattr(os, name, 0)
        descriptor = os.open(self.path, flags, 0o600)
        self._descriptor, self._whole = descriptor, False
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{self.path} is not a regular file")
        if hasattr(os, "fchmod") and stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)  # somebody made it for us, and for more eyes than ours
        self._size = found.st_size
        if self._size:
            self._append(b"\n")  # the last line may be torn; an empty one is passed over

    def _append(self, text: bytes) -> None:
        assert self._descriptor is not None, "open comes first"  # noqa: S101  # a mistake of ours, not of the world
        view = memoryview(text)
        while view:
            written = os.write(self._descriptor, view)
            self._size += written
            view = view[written:]

    def _rotate(self) -> None:
        self.close()
        for number in range(self._count - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._numbered(number - 1), self._numbered(number))
        if self._count == 1:
            os.unlink(self.path)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _coded(body: bytes) -> Mapping[str, str]:
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
