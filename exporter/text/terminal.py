"""Printing for the commands: no control character from outside and no credential reaches a terminal.

    say(text, out)            a line of output, as long as it is: JSON
    tell(text, out)           the same for people, on as many lines of at most 100 columns as it needs
    complain(text)            lines of error, also without credentials
    prepare(stream, environ)  what `cli` does with both streams, once

What is not printable is written as its JSON escape, so that a line of JSON keeps its meaning.
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
"""Letters that are drawn as nothing: fillers and variation selectors."""
_HARMLESS: Final = ("ignore", "replace", "backslashreplace", "namereplace", "xmlcharrefreplace")
"""The error handlers that encode whatever there is; "strict" and the like raise."""


PREFIXES: Final[Mapping[LogLevel, str]] = {"debug": "<7>", "info": "<6>", "warn": "<4>", "error": "<3>"}
"""Priorities that the journal takes from the beginning of a line (SyslogLevelPrefix=) and keeps as its PRIORITY."""


def printable(text: str) -> str:
    """`text` on one line, with an escape such as `\\u001b` for all that moves a cursor, colours, hides or turns text:
    control characters (C0, DEL, C1), bidirectional and other format characters, separators of lines, surrogates.
    """
    return text if visible(text) else "".join(char if visible(char) else _escape(char) for char in text)


def visible(text: str) -> bool:
    """Whether every character is visible: printable, and no filler or variation selector (drawn as nothing)."""
    return text.isprintable() and not _FILLERS.search(text)


def _escape(char: str) -> str:
    """The character as JSON escapes it."""
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]


def print_line(text: str, out: TextIO | None = None) -> None:
    """Print one line at once, by default to standard output."""
    print(printable(text), file=sys.stdout if out is None else out, flush=True)


def print_wrapped(text: str, out: TextIO | None = None, *, hang: int = 0) -> None:
    """As `say`, for people: on lines of at most 100 columns, those behind the first begin with `hang` spaces."""
    stream = sys.stdout if out is None else out
    encoding, shown = getattr(stream, "encoding", None), printable(text)
    if encoding:  # what it lacks is escaped, and then longer
        shown = shown.encode(encoding, "backslashreplace").decode(encoding)
    print("\n".join(wrapped(shown, hang)), file=stream, flush=True)


def print_error(text: str) -> None:
    """Print an error message to standard error, line by line, without credentials; to the journal as errors."""
    prefix = PREFIXES["error"] if is_journal(sys.stderr) else ""
    for line in redact(text).split("\n"):
        print_line(prefix + line, sys.stderr)


def is_journal(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the stream is the journal's.

    JOURNAL_STREAM has the device and inode of the stream that a service was started with [systemd.exec(5)]. What was
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
    """Make a standard stream able to print any text; None, a stream that is closed, is left alone.

    PYTHONIOENCODING is obeyed, but for an error handler that lets a name in a document end the command. Else a
    terminal keeps its encoding, since the locale says what it can show (a console of Windows takes all), and a file or
    a pipe gets UTF-8: other programs and machines read it, and JSON is nothing else [RFC 8259, 8.1]. What an encoding
    lacks is escaped.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return
    encoding, _, errors = environ.get("PYTHONIOENCODING", "").partition(":")
    keeps_encoding = encoding or stream.isatty()
    stream.reconfigure(
        encoding=None if keeps_encoding else "utf-8", errors=errors if errors in _HARMLESS else "backslashreplace"
    )


def is_reader_gone(error: OSError, platform: str = sys.platform) -> bool:
    """Whether this error of printing says that a pipe has no reader any more, as `head` and `more` end.

    On Windows the C library answers it with EINVAL, when it does not know Windows' own error [_write, _dosmaperr];
    with a file's name it is that name which is invalid.
    """
    if isinstance(error, BrokenPipeError):
        return True
    return platform == "win32" and error.errno == errno.EINVAL and error.filename is None


def discard_unwritable(stream: TextIO | None) -> None:
    """Where what is left in the buffer can't be written, let it go nowhere: the interpreter would try once more."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has nobody behind it
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except ValueError:
        return  # closed


WIDTH: Final = 100
"""Columns of a line."""
_LEAST: Final = 20
"""Columns that are left behind a hanging indent, however deep it is."""
_WORDS: Final = re.compile(r" *[^ ]+")
_WIDE: Final = ("W", "F")


def columns(text: str) -> int:
    """How many columns a terminal takes for the text: two for a wide character [UAX 11]."""
    return len(text) if text.isascii() else sum(map(_column, text))


def _column(char: str) -> int:
    """A mark that combines with the character before it counts as one: terminals differ."""
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


def wrapped(text: str, hang: int = 0, width: int = WIDTH) -> list[str]:
    """The line in parts of at most `width` columns; those behind the first begin with `hang` spaces.

    It is parted at spaces, and spaces between words of one part stay as they are. A word that is too long for a part
    with its indent has one of its own without it, such as a path that is copied from there; one that is longer than
    that is parted anywhere.
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
        used = width  # nothing stands behind it
    return [*lines, line] if line.strip() else lines


def _pieces(word: str, width: int) -> Iterator[str]:
    """The parts of a word that is parted anywhere."""
    part, used = "", 0
    for char in word:
        if used + _column(char) > width:
            yield part
            part, used = "", 0
        part, used = part + char, used + _column(char)
    yield part


def listed(words: Iterable[str], indent: int = 2, width: int = WIDTH) -> str:
    """Words with commas in between, on as many indented lines as they need."""
    return "\n".join(wrapped(" " * indent + ", ".join(words), hang=indent, width=width))
