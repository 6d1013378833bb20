"""The recording of metadata-service responses and agent actions, for `replay`. Off by default.

JSON lines, with times in UTC:

    {"read_at": T, "body": TEXT}            a document that differs from the previous one ("base64" if it isn't UTF-8)
    {"read_at": T, "same": N}               N more reads of the same document without a gap, the last one at T
    {"at": T, "failure": REASON}            no response, or no successful one, from T on
    {"at": T, "post": EVENTID, "sent": true} an approval was sent
    {"at": T, "post": EVENTID, "status": S} its response: the HTTP status, or null and the "reason"
    {"at": T, "interruption": {...}}        an observed interruption of this VM, attributed with the next document, or
                                            without one at `handled_at`
    {"at": T, "vm": {...}}                  the identity of this VM from T on
    {"at": T, "files": {PATH: PRESENCE}}    the state of the policy's files, from the document read at T on
    {"at": T, "outbox": STATE}              "unwritable" or "writable": the outbox's state, from the document or
                                            interruption at T on
    {"at": T, "lost": N}                    N earlier lines, at T or before, could not be written
    {"at": T, "began": {...}}               the agent started: its version, the boot, and the active `policy`
    {"at": T, "policy": {...}}              the same policy, at the beginning of a further file
    {"at": T, "ended": {}}                  the agent stopped cleanly

Only the owner can read the files. At `max_bytes` a new file begins (PATH becomes PATH.1, and so on, up to `files`).
Each can be read without the others: it begins with the policy, the VM, the files, the outbox, and the document, if they
are known and the next line doesn't replace them. On Windows, a file that another program has open can't be renamed: it
grows to at most `MOST_TIMES` its size.

A separate thread writes the lines, so that a slow, full, or broken disk delays no poll. Lines that don't fit into the
queue, or can't be written, are counted; the count is written before the next line.
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
from exporter.files import Rename, RotatingFile
from exporter.log.protocol import Logger

FAILURE_EVERY: Final = timedelta(seconds=5)
HEARTBEAT: Final = timedelta(seconds=60)
"""Interval of the lines for an unchanged document."""
QUEUE_ITEMS: Final = 256
QUEUE_BYTES: Final = 32 << 20
MAX_VALUES: Final = 16 << 10
"""Maximum bytes of a recorded policy, and of its files' states: the smallest file has 64 KiB."""
OMITTED: Final = "omitted"
_TOO_SLOW: Final = "the disk is too slow"
STOP_SECONDS: Final = 1.0
"""Time that the stopping agent waits for the disk."""


class Recorder:
    """Records changes. No method raises, and only `close` waits for the disk; all are for one thread.

    `identity` returns the current identity. `poll_interval` (seconds) determines which time between two reads is a gap.
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
        """Record the start of the agent: its version, the machine's boot id, and the policy as of `config.load`."""
        self._put({"at": timestamp(at), "began": {"version": version, "boot": boot, "policy": _bounded(policy)}})

    def keep(self, body: bytes, read_at: datetime) -> None:
        """Record the body of a response with status 200. Identical bodies in a row are counted, not repeated."""
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
            self._body = None  # dropped: write the next body in full

    def record_file_checks(self, at: datetime, files: Mapping[str, Presence]) -> None:
        """Record the states of the files that decisions on the document read at `at` need, if they changed."""
        if files == self._files:
            return
        if self._put({"at": timestamp(at), "files": _bounded({path: found.value for path, found in files.items()})}):
            self._files = dict(files)

    def stored(self, at: datetime, writable: bool) -> None:
        """Record whether the outbox is writable for the document or interruption at `at`, if that changed."""
        if writable == self._writable:
            return
        if self._put({"at": timestamp(at), "outbox": "writable" if writable else "unwritable"}):
            self._writable = writable

    def failed(self, at: datetime, reason: str) -> None:
        """Record a failed poll; for the same reason in a row only one per `FAILURE_EVERY`.

        The repetition shows how long the process lived.
        """
        if reason == self._failure and timedelta() <= at - self._failed_at < FAILURE_EVERY:
            return
        self._put({"at": timestamp(at), "failure": reason})
        self._failure, self._failed_at, self._last = reason, at, None

    def sent(self, at: datetime, event_id: str) -> None:
        """Record that an approval was sent."""
        self._put({"at": timestamp(at), "post": event_id, "sent": True})

    def posted(self, at: datetime, event_id: str, status: int | None, reason: str = "") -> None:
        """Record the response to an approval: its HTTP status, or None and the reason for the missing response."""
        self._put({"at": timestamp(at), "post": event_id, "status": status, **({"reason": reason} if reason else {})})

    def interrupted(self, interruption: Interruption, handled: datetime | None) -> None:
        """Record an interruption of this VM.

        `handled` is the time when it was attributed without a document; None if it is attributed with the next recorded
        document, or when the agent stops.
        """
        found: Line = {"kind": interruption.kind.value, "seconds": round(interruption.seconds, 3)}
        found |= {"handled_at": timestamp(handled)} if handled is not None else {}
        self._put({"at": timestamp(interruption.at.wall), "interruption": found})

    def ended(self, at: datetime) -> None:
        """Record that the agent stops cleanly."""
        self._put({"at": timestamp(at), "ended": {}})

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Write the remaining lines. Wait at most this many seconds."""
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
        """Queue a line after the count of identical documents, to which it doesn't apply. Return False if full."""
        self._write_same()
        return self._writer.put(line)


def _bounded(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values; if they exceed `MAX_VALUES`, only their size in bytes, because every file may repeat them."""
    size = len(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace"))
    return values if size <= MAX_VALUES else {OMITTED: size}


class _Writer:
    """A thread that writes queued lines to the files."""

    def __init__(self, files: RecordingFiles, log: Logger) -> None:
        self._files = files
        self._log = log
        self._queue: queue.SimpleQueue[tuple[int, Line, bytes] | None] = queue.SimpleQueue()
        """Lines with their documents, and the number of lines dropped before each; None ends the thread."""
        self._lock = threading.Lock()
        self._waiting = 0
        self._bytes = 0
        self._left_out = 0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def put(self, line: Line, body: bytes = b"") -> bool:
        """Queue a line. Return False if the queue is full, because the disk is too slow."""
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
                self._failed(_TOO_SLOW)  # again: a write since then may have reported recovery
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
"""Kinds of lines that apply until the next of their kind, in their order at the beginning of a file."""


class RecordingFiles:
    """The numbered files, at most `files` of `max_bytes` each (`RotatingFile`). `write` reopens them after an error."""

    def __init__(self, path: Path, max_bytes: int, files: int, *, rename: Rename = os.replace) -> None:
        self.path = path
        self._max = max_bytes
        self._file = RotatingFile(path, max_bytes, files, rename=rename)
        self._known: dict[str, Line] = {}
        """Last line of each of the `_STANDING` kinds."""
        self._body = b""
        self._read_at = ""

    def write(self, line: Line, body: bytes, lost: int = 0) -> None:
        """Append a line with its document, empty for none, after a count of the lines `lost` before. Raises OSError."""
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

    def _standing(self, line: Line, body: bytes) -> list[Line]:
        """Return the lines that a new file needs before this line, except kinds that the line itself contains.

        Their time is that of the document or, without one, of the line, so that the files of a recording have an order.
        """
        document = bool(self._body and not body)
        at = self._read_at if document else line.get("read_at", line.get("at"))
        contained = {*line, *(("policy", "files", "outbox") if "began" in line else ())}
        known = [self._known.get(kind) for kind in _STANDING if kind not in contained]
        lines = [{**each, "at": at} for each in known if each]
        return [*lines, {"read_at": at, **_body_field(self._body)}] if document else lines


def _body_field(body: bytes) -> Mapping[str, str]:
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
