"""Terminals for the output of commands: a stream that claims to be one, and a pseudo-terminal of any width."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import TextIO


class Screen(io.StringIO):
    """A stream that is a terminal of unknown width, for which the commands assume 100 columns."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def pseudo_terminal(columns: int) -> Iterator[tuple[TextIO, list[str]]]:
    """Yield a stream to a pseudo-terminal of this width, and a list that contains its text when the block has ended."""
    if sys.platform == "win32":
        raise NotImplementedError("pseudo-terminals are POSIX's")
    import termios  # Windows has none

    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    attributes = termios.tcgetattr(follower)
    attributes[1] &= ~termios.OPOST  # a line feed stays one character
    termios.tcsetattr(follower, termios.TCSANOW, attributes)
    content, shown = bytearray(), list[str]()

    def read() -> None:
        try:
            while part := os.read(leader, 65536):
                content.extend(part)
        except OSError as error:  # Linux, after the last writer has closed it
            if error.errno != errno.EIO:
                raise

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(follower, "w", encoding="utf-8", newline="") as stream:
            yield stream, shown
    finally:
        reader.join(30)
        os.close(leader)
        shown.append(content.decode())
