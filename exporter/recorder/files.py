"""The files of a recording: numbered, for their owner alone, each readable without the others."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from exporter.private_file import MODE

_OPEN: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_OPEN_WHERE_KNOWN: Final = ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")

Line = dict[str, Any]


class Files:
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
        if self.path.is_symlink():  # where O_NOFOLLOW is not known, and for its sentence where it is
            raise OSError(f"{self.path} is a link, which is not followed")
        descriptor = os.open(self.path, flags, 0o600)
        self._descriptor, self._whole = descriptor, False
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{self.path} is not a regular file")
        if hasattr(os, "fchmod") and stat.S_IMODE(found.st_mode) != MODE:
            # Somebody made it for us and for more eyes than ours, or the umask took from its owner too.
            os.fchmod(descriptor, MODE)
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
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _coded(body: bytes) -> Mapping[str, str]:
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
