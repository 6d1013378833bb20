"""The files of a recording: numbered, for their owner alone, each readable without the others.

A file begins with what its lines rest on: the policy in force, the identity of the VM, what was found of the policy's
files, and the document as it was read last.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from exporter.private_file import MODE, make_folder, make_private

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_FLAGS_OF_SOME_SYSTEMS: Final = ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")

Line = dict[str, Any]


class RecordingFiles:
    """The numbered files, at most `files` of `max_bytes` each. Raises OSError, and the next `write` reopens them."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self.path = path
        self._max = max_bytes
        self._count = files
        self._descriptor: int | None = None
        self._size = 0
        self._policy: Line = {}
        self._vm: Line = {}
        self._found: Line = {}
        self._body = b""
        self._read_at = ""
        self._stands_alone = False
        """The open file holds the policy, the identity of the VM and the document, so that it can be read alone."""

    def write(self, line: Line, body: bytes) -> None:
        """Append a line, with the document that it brings, empty for none. Raises OSError."""
        standing = self._standing(line, body)
        self._remember(line, body)
        try:
            self._open()
            text = self._text(line, body)
            if self._size > 1 and self._size + len(text) >= self._max:
                self._rotate()
                self._open()
            self._append((b"" if self._stands_alone else self._opening(standing, len(text))) + text)
            self._stands_alone = True
        except OSError:
            self._stands_alone = False
            self.close()
            raise

    def _text(self, line: Line, body: bytes) -> bytes:
        if body or ("read_at" in line and "same" not in line):
            text = _encoded({**line, **_body_field(body)})
            return text if len(text) < self._max else _encoded({**line, "omitted": len(body)})
        return _encoded(line)

    def _remember(self, line: Line, body: bytes) -> None:
        if "began" in line:
            policy = line["began"].get("policy")
            self._policy = {} if policy is None else {"policy": policy}
            self._found = {}
        if "vm" in line:
            self._vm = line
        if "files" in line:
            self._found = line
        if "read_at" in line:
            self._read_at = line["read_at"]
            self._body = self._body if "same" in line else body

    def _standing(self, line: Line, body: bytes) -> tuple[Line, ...]:
        """What holds before this line, as lines: all that is not said by the line itself. Their time is that of the
        document or, without one, of the line, so that the files of a recording have an order."""
        document = bool(self._body and not body)
        at = self._read_at if document else line.get("read_at", line.get("at"))
        known = [] if "began" in line else [self._policy]
        known += [] if "vm" in line else [self._vm]
        known += [] if "began" in line else [self._found]
        return (
            *({**each, "at": at} for each in known if each),
            *([{"read_at": at, **_body_field(self._body)}] if document else []),
        )

    def _opening(self, standing: tuple[Line, ...], needed: int) -> bytes:
        """What a file begins with; nothing where it does not fit."""
        opening = b"".join(map(_encoded, standing))
        return opening if self._size + len(opening) + needed < self._max else b""

    def _open(self) -> None:
        if self._descriptor is not None and _same_file(self._descriptor, self.path):
            return
        self.close()
        make_folder(self.path.parent)
        flags = _FLAGS
        for name in _FLAGS_OF_SOME_SYSTEMS:
            flags |= getattr(os, name, 0)
        if self.path.is_symlink():  # for systems without O_NOFOLLOW, and elsewhere for the sentence
            raise OSError(f"{self.path} is a link, which is not followed")
        if sys.platform == "win32":
            make_private(self.path)  # where the file system keeps no access lists, `check` says so
        descriptor = os.open(self.path, flags, MODE)
        self._descriptor, self._stands_alone = descriptor, False
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{self.path} is not a regular file")
        if hasattr(os, "fchmod") and stat.S_IMODE(status.st_mode) != MODE:
            # The file existed before and others may read it, or the umask took rights from its owner.
            os.fchmod(descriptor, MODE)
        self._size = status.st_size
        if self._size:
            self._append(b"\n")  # the last line may be torn; `replay` passes over an empty one

    def _append(self, text: bytes) -> None:
        assert self._descriptor is not None, "open comes first"  # noqa: S101  # a programming error, no condition
        view = memoryview(text)
        while view:
            written = os.write(self._descriptor, view)
            self._size += written
            view = view[written:]

    def _rotate(self) -> None:
        """Raises OSError where the newest file can't be renamed, as on Windows while it is read: then none is.

        Where one of the others can't be, the next rotation does it.
        """
        self.close()
        if self._count == 1:
            os.unlink(self.path)
            return
        waiting = self.path.with_name(f"{self.path.name}.next")
        if waiting.exists():  # a process died in between
            self._shift(waiting)
        os.replace(self.path, waiting)
        with contextlib.suppress(OSError):
            self._shift(waiting)

    def _shift(self, newest: Path) -> None:
        for number in range(self._count - 1, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._numbered(number - 1), self._numbered(number))
        os.replace(newest, self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path

    def close(self) -> None:
        """Close the file; the next `write` opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _body_field(body: bytes) -> Mapping[str, str]:
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
