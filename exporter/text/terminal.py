"""Printing for the commands: no external control character and no credential reaches a terminal.

    print_line(text, out)     a line of any length: JSON
    print_wrapped(text, out)  human-readable text: wrapped at a terminal, on one line in a pipe or a file
    print_error(text)         an error message on standard error, without credentials
    prepare(stream, environ)  called once for both streams, by `cli`

Characters that aren't printable are written as JSON escapes, which keep the meaning of a line of JSON.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TextIO

from exporter.choices import LogLevel
from exporter.secrets import redact

_FILLERS: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""Invisible letters: fillers and variation selectors."""
_HARMLESS: Final = ("ignore", "replace", "backslashreplace", "namereplace", "xmlcharrefreplace")
"""The error handlers that encode any text; "strict" and others raise."""


PREFIXES: Final[Mapping[LogLevel, str]] = {"debug": "<7>", "info": "<6>", "warn": "<4>", "error": "<3>"}
"""Prefixes of a line that the journal removes and stores as its PRIORITY [systemd.exec(5): SyslogLevelPrefix=]."""


def printable(text: str) -> str:
    """Return `text` on one line, with escapes such as `\\u001b` for characters that a terminal could act on.

    These are control characters (C0, DEL, C1), bidirectional and other format characters, line separators, surrogates,
    and invisible letters.
    """
    return text if visible(text) else "".join(char if visible(char) else _escape(char) for char in text)


def visible(text: str) -> bool:
    """Return whether every character is visible: printable, and not a filler or variation selector."""
    return text.isprintable() and not _FILLERS.search(text)


def _escape(char: str) -> str:
    """Return the character as a JSON escape."""
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]


def print_line(text: str, out: TextIO | None = None) -> None:
    """Print one line at once, by default to standard output."""
    print(printable(text), file=sys.stdout if out is None else out, flush=True)


def print_wrapped(text: str, out: TextIO | None = None, *, hang: int = 0, prose: bool = True) -> None:
    """Print text on one line, or wrap it at a terminal: the second and further lines begin with `hang` spaces.

    `prose` has at most 100 columns there; other text, such as a table, has those of the terminal.
    """
    stream = sys.stdout if out is None else out
    encoding, shown, width = getattr(stream, "encoding", None), printable(text), terminal_width(stream)
    if encoding:  # escapes of characters that the encoding lacks count as columns
        shown = shown.encode(encoding, "backslashreplace").decode(encoding)
    lines = [shown] if width is None else wrapped(shown, hang, min(width, WIDTH) if prose else width)
    print("\n".join(lines), file=stream, flush=True)


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of the stream's terminal, 100 if it doesn't report them; None if it isn't a terminal."""
    if not stream.isatty():
        return None
    columns = 0
    with contextlib.suppress(OSError, ValueError):  # without a descriptor
        columns = os.get_terminal_size(stream.fileno()).columns
    return max(columns, _LEAST) if columns else WIDTH


def print_error(text: str) -> None:
    """Print an error message to standard error, without credentials; in the journal it has the priority of errors."""
    prefix = PREFIXES["error"] if is_journal(sys.stderr) else ""
    for line in redact(text).split("\n"):
        print_line(prefix + line, sys.stderr)


def is_journal(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream goes to the journal.

    JOURNAL_STREAM contains the device and inode of the stream that systemd opened [systemd.exec(5)]. A stream that was
    redirected since, to a file or a pipe, has others.
    """
    named = environ.get("JOURNAL_STREAM", "")
    if not named or stream is None:
        return False
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or without a descriptor
        return False
    return named == f"{status.st_dev}:{status.st_ino}"


def prepare(stream: TextIO | None, environ: Mapping[str, str]) -> None:
    """Set up a standard stream so that it can print any text; None: the stream is closed.

    PYTHONIOENCODING wins, except for error handlers that raise. Otherwise a terminal keeps the encoding of its locale
    (a Windows console accepts all characters), and a file or a pipe gets UTF-8, as JSON requires [RFC 8259, 8.1].
    Characters that the encoding lacks are escaped.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return
    encoding, _, errors = environ.get("PYTHONIOENCODING", "").partition(":")
    keeps_encoding = encoding or stream.isatty()
    stream.reconfigure(
        encoding=None if keeps_encoding else "utf-8", errors=errors if errors in _HARMLESS else "backslashreplace"
    )


def is_reader_gone(error: OSError, platform: str = sys.platform) -> bool:
    """Return whether printing failed because the reader of the pipe has exited, as `head` and `more` do.

    On Windows the C library reports EINVAL if it doesn't know Windows' own error [_write, _dosmaperr]. An EINVAL with a
    file name is about that name.
    """
    if isinstance(error, BrokenPipeError):
        return True
    return platform == "win32" and error.errno == errno.EINVAL and error.filename is None


def discard_unwritable(stream: TextIO | None) -> None:
    """Redirect a stream whose buffer can't be written to the null device: the interpreter would try once more."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has no reader
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except ValueError:
        return  # closed


WIDTH: Final = 100
"""Maximum columns of a line of prose."""
_LEAST: Final = 20
"""Minimum number of columns after a hanging indent."""
_WORDS: Final = re.compile(r" *[^ ]+")
_WIDE: Final = ("W", "F")


def columns(text: str) -> int:
    """Return the columns that the text takes on a terminal: two for a wide character [UAX 11]."""
    return len(text) if text.isascii() else sum(map(_column, text))


def _column(char: str) -> int:
    """Return the columns of a character. A combining mark counts as one, because terminals differ."""
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


def wrapped(text: str, hang: int = 0, width: int = WIDTH) -> list[str]:
    """Split a line at spaces into lines of at most `width` columns; all but the first begin with `hang` spaces.

    Spaces within a line are kept. A word that doesn't fit behind the indent gets its own line without it, so that, for
    example, a path can be copied. A word longer than a line is split anywhere.
    """
    if columns(text) <= width:
        return [text]
    hang = min(hang, width - _LEAST)
    lines: list[str] = []
    line, used = "", 0
    for word in _WORDS.findall(text):
        size = columns(word)
        if used + size <= width:
            line, used = line + word, used + size
            continue
        bare = word.lstrip(" ")
        size = columns(bare)
        if line.strip():
            lines.append(line)
        if hang + size <= width:
            line, used = " " * hang + bare, hang + size
            continue
        *whole, line = _pieces(bare, width)
        lines += whole
        used = width  # no word follows on this line
    return [*lines, line] if line.strip() else lines


def _pieces(word: str, width: int) -> Iterator[str]:
    """Yield the parts of a word that is longer than a line."""
    part, used = "", 0
    for char in word:
        if used + _column(char) > width:
            yield part
            part, used = "", 0
        part, used = part + char, used + _column(char)
    yield part


def listed(words: Iterable[str], indent: int = 2, width: int = WIDTH) -> str:
    """Return the words, separated by commas, on indented lines."""
    return "\n".join(wrapped(" " * indent + ", ".join(words), hang=indent, width=width))
