"""The recording: what the metadata service answered and what the agent did, for `replay`. Off unless configured.

JSON lines, each with the time of day in UTC:

    {"read_at": T, "body": TEXT}            a document that differs from the one before ("base64" if it is not UTF-8)
    {"read_at": T, "same": N}               the same document, read N times more without a gap, the last time at T
    {"at": T, "failure": REASON}            no answer, or none that counts, from then on
    {"at": T, "post": EVENTID, "sent": true} an approval was sent
    {"at": T, "post": EVENTID, "status": S} its answer: the HTTP status, or none and the "reason"
    {"at": T, "interruption": {...}}        an interruption of this VM was observed, and belongs to the next document;
                                            `handled_at`: was attributed without one then
    {"at": T, "vm": {...}}                  the identity of this VM, as known from then on
    {"at": T, "files": {PATH: PRESENCE}}    what was found of the policy's files for the document read at T, and then on
    {"at": T, "outbox": STATE}              whether the outbox could be written for what was read or observed at T, and
                                            then on: "unwritable", or "writable" again
    {"at": T, "lost": N}                    N lines before this place, at T or earlier, could not be written
    {"at": T, "began": {...}}               the agent started: its version, the boot, and the `policy` in force
    {"at": T, "policy": {...}}              the same policy, at the beginning of a further file
    {"at": T, "ended": {}}                  the agent stopped in good order

The file is for its owner alone. At `max_bytes` a new one is started (PATH becomes PATH.1, and so on, `files` of them),
and each can be read without the others: it begins with the policy, the VM, the files, the outbox and the document, as
far as they are known and the line after them does not say otherwise. While a program on Windows has the newest file
open, that file grows, up to `MOST_TIMES` its size.

Lines are written on a thread of their own: a slow, full or broken disk delays no poll. What does not fit into the
queue, or can't be written, is counted; the next line that can be written has the number before it.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from exporter.core.continuity import UNBROKEN_POLLS, UNBROKEN_SECONDS
from exporter.core.policy import Presence
from exporter.core.records import VmIdentity, timestamp, vm_data
from exporter.core.state import Interruption
from exporter.files import RotatingFile
from exporter.log.protocol import Logger

FAILURE_EVERY: Final = timedelta(seconds=5)
HEARTBEAT: Final = timedelta(seconds=60)
"""So often a document that stays the same is written down as still the same."""
QUEUE_ITEMS: Final = 256
QUEUE_BYTES: Final = 32 << 20
MAX_VALUES: Final = 16 << 10
"""Bytes of a policy, and of what was found of its files: the smallest file has 64 KiB."""
OMITTED: Final = "omitted"
_TOO_SLOW: Final = "the disk is too slow"
STOP_SECONDS: Final = 1.0
"""How long the end of the agent waits for the disk."""


class Recorder:
    """Records what changed. No method raises or waits for the disk, but `close`; all are for one thread.

    `identity` gives the identity as it is known now, and `poll_interval` (seconds) determines when two readings have a
    gap between them.
    """

    def __init__(
        self,
        path: str | Path,
        max_bytes: int,
        files: int,
        *,
        log: Logger,
        identity: Callable[[], VmIdentity] = VmIdentity,
        poll_interval: float = 1.0,
    ) -> None:
        self._current_identity = identity
        self._unbroken = timedelta(seconds=max(UNBROKEN_SECONDS, UNBROKEN_POLLS * poll_interval))
        self._writer = _Writer(RecordingFiles(Path(path), max_bytes, files), log)
        self._identity = VmIdentity()
        self._files: Mapping[str, Presence] = {}
        self._writable = True
        self._body: bytes | None = None
        self._last: datetime | None = None
        self._written: datetime | None = None
        self._same = 0
        self._failure = ""
        self._failed_at = datetime.min.replace(tzinfo=UTC)

    def began(self, at: datetime, version: str, boot: str, policy: Mapping[str, Any]) -> None:
        """Record the start of the agent: its version, the boot id of the machine, and the policy in force, as
        `config.load` writes it."""
        self._put({"at": timestamp(at), "began": {"version": version, "boot": boot, "policy": _bounded(policy)}})

    def keep(self, body: bytes, read_at: datetime) -> None:
        """Record the body of a 200, whatever it holds. It is written only when it differs from the one before."""
        self._note_identity(read_at)
        last, self._failure = self._last, ""
        if body == self._body and last is not None and timedelta() <= read_at - last <= self._unbroken:
            self._same, self._last = self._same + 1, read_at
            if self._written is None or read_at - self._written >= HEARTBEAT:
                self._write_same()
            return
        self._write_same()
        self._body, self._last, self._written = body, read_at, read_at
        if not self._writer.put({"read_at": timestamp(read_at)}, body):
            self._body = None  # left out: the next reading is written as if it were new

    def record_file_checks(self, at: datetime, files: Mapping[str, Presence]) -> None:
        """Record what was found of the files that decisions on the document read at `at` ask for, if it is new."""
        if files == self._files:
            return
        if self._put({"at": timestamp(at), "files": _bounded({path: found.value for path, found in files.items()})}):
            self._files = dict(files)

    def stored(self, at: datetime, writable: bool) -> None:
        """Record whether the outbox could be written for what was read or observed at `at`, if it is new."""
        if writable == self._writable:
            return
        if self._put({"at": timestamp(at), "outbox": "writable" if writable else "unwritable"}):
            self._writable = writable

    def failed(self, at: datetime, reason: str) -> None:
        """Record that a poll failed; of polls that fail in a row for the same reason one every few seconds, so that a
        recording shows until when its process lived."""
        if reason == self._failure and timedelta() <= at - self._failed_at < FAILURE_EVERY:
            return
        self._put({"at": timestamp(at), "failure": reason})
        self._failure, self._failed_at, self._last = reason, at, None

    def sent(self, at: datetime, event_id: str) -> None:
        """Record that an approval was sent."""
        self._put({"at": timestamp(at), "post": event_id, "sent": True})

    def posted(self, at: datetime, event_id: str, status: int | None, reason: str = "") -> None:
        """Record the answer to an approval: its HTTP status, or None and the reason why there is none."""
        self._put({"at": timestamp(at), "post": event_id, "status": status, **({"reason": reason} if reason else {})})

    def interrupted(self, interruption: Interruption, handled: datetime | None) -> None:
        """Record an interruption of this VM, and when it was attributed without a document; None for one that is
        attributed with the document recorded next, or at the end of the agent."""
        found: Line = {"kind": interruption.kind.value, "seconds": round(interruption.seconds, 3)}
        found |= {"handled_at": timestamp(handled)} if handled is not None else {}
        self._put({"at": timestamp(interruption.at.wall), "interruption": found})

    def ended(self, at: datetime) -> None:
        """Record that the agent stops in good order."""
        self._put({"at": timestamp(at), "ended": {}})

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Write what is left, for at most so many seconds."""
        self._write_same()
        self._writer.close(seconds)

    def _note_identity(self, at: datetime) -> None:
        identity = self._current_identity()
        if identity != self._identity:
            doubts = {"confirmed": False} if not identity.confirmed else {}
            doubts |= {"conflict": True} if identity.conflict else {}
            vm = {name: value for name, value in vm_data(identity.vm).items() if value}
            if self._put({"at": timestamp(at), "vm": vm, **doubts}):
                self._identity = identity

    def _write_same(self) -> None:
        if self._same and self._last is not None:
            self._writer.put({"read_at": timestamp(self._last), "same": self._same})
            self._written = self._last
        self._same = 0

    def _put(self, line: Line) -> bool:
        """Whether there was room for the line: it holds from now on, and not for the documents that were the same."""
        self._write_same()
        return self._writer.put(line)


def _bounded(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a line that each file may have to begin with; instead of very many their size, in bytes."""
    size = len(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace"))
    return values if size <= MAX_VALUES else {OMITTED: size}


class _Writer:
    """Writes lines to the files on a thread of its own."""

    def __init__(self, files: RecordingFiles, log: Logger) -> None:
        self._files = files
        self._log = log
        self._queue: queue.SimpleQueue[tuple[int, Line, bytes] | None] = queue.SimpleQueue()
        """Lines with their documents, and how many lines found no room before each of them."""
        self._lock = threading.Lock()
        self._waiting = 0
        self._bytes = 0
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def put(self, line: Line, body: bytes = b"") -> bool:
        """Queue a line. False when there is no room, because the disk does not keep up."""
        with self._lock:
            has_space = self._waiting < QUEUE_ITEMS and self._bytes + len(body) <= QUEUE_BYTES
            if has_space:
                self._waiting += 1
                self._bytes += len(body)
        if not has_space:
            self._left_out += 1
            self._failed(_TOO_SLOW)
            return False
        self._queue.put((self._left_out, line, body))
        self._left_out = 0
        return True

    def close(self, seconds: float) -> None:
        self._queue.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        lost = 0
        while (item := self._queue.get()) is not None:
            left_out, line, body = item
            if left_out:
                self._failed(_TOO_SLOW)  # again: what was written meanwhile may count as its end
            lost += left_out
            try:
                self._files.write(line, body, lost)
            except (OSError, ValueError) as error:
                lost += 1
                self._failed(error.strerror if isinstance(error, OSError) and error.strerror else str(error))
            else:
                if lost:
                    self._log.recovered("recorder", "recording.recovered", lost=lost)
                lost = 0
            with self._lock:
                self._waiting -= 1
                self._bytes -= len(body)
        self._files.close()

    def _failed(self, detail: str) -> None:
        self._log.failing("recorder", "recording.failed", path=str(self._files.path), detail=detail)


Line = dict[str, Any]

_STANDING: Final = ("policy", "vm", "files", "outbox")
"""The kinds of lines that hold until the next of their kind, in the order in which a file begins with them."""


class RecordingFiles:
    """The numbered files, at most `files` of `max_bytes` each (`RotatingFile`). Raises OSError, and the next `write`
    reopens them."""

    def __init__(
        self, path: Path, max_bytes: int, files: int, *, rename: Callable[[Path, Path], None] = os.replace
    ) -> None:
        self.path = path
        self._max = max_bytes
        self._file = RotatingFile(path, max_bytes, files, rename=rename)
        self._known: dict[str, Line] = {}
        """The last line of each of `_STANDING`, which holds until the next one."""
        self._body = b""
        self._read_at = ""

    def write(self, line: Line, body: bytes, lost: int = 0) -> None:
        """Append a line, with the document that it brings, empty for none, after the number of lines that were `lost`
        before it. Raises OSError."""
        standing, at = self._standing(line, body), line.get("at", line.get("read_at"))
        self._remember(line, body)
        text = (_encoded({"at": at, "lost": lost}) if lost else b"") + self._text(line, body)
        self._file.write_line(text, lambda: b"".join(map(_encoded, standing)))

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        self._file.close()

    def _text(self, line: Line, body: bytes) -> bytes:
        if body or ("read_at" in line and "same" not in line):
            text = _encoded({**line, **_body_field(body)})
            return text if len(text) < self._max else _encoded({**line, "omitted": len(body)})
        return _encoded(line)

    def _remember(self, line: Line, body: bytes) -> None:
        if "began" in line:
            policy = line["began"].get("policy")
            self._known = {"vm": self._known.get("vm", {}), "policy": {} if policy is None else {"policy": policy}}
            self._body = b""
        self._known |= {kind: line for kind in _STANDING if kind in line}
        if "read_at" in line:
            self._read_at = line["read_at"]
            self._body = self._body if "same" in line else body

    def _standing(self, line: Line, body: bytes) -> tuple[Line, ...]:
        """What holds before this line, as lines: all that is not said by the line itself. Their time is that of the
        document or, without one, of the line, so that the files of a recording have an order."""
        document = bool(self._body and not body)
        at = self._read_at if document else line.get("read_at", line.get("at"))
        said = {*line, *(("policy", "files", "outbox") if "began" in line else ())}
        known = [self._known.get(kind) for kind in _STANDING if kind not in said]
        return (
            *({**each, "at": at} for each in known if each),
            *([{"read_at": at, **_body_field(self._body)}] if document else []),
        )


def _body_field(body: bytes) -> Mapping[str, str]:
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
