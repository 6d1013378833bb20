"""The files of a recording: numbered, for their owner alone, each readable without the others.

A file begins with what its lines rest on: the policy in force, the identity of the VM, what was found of the policy's
files, whether the outbox can be written, and the document as it was read last.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from exporter.files import RotatingFile

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
