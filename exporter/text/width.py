"""Lines of at most 100 columns: what people read is wrapped to that, whether it goes to a terminal or into a pipe.

    for line in wrapped("name  a long sentence ...", hang=6): ...

A line of JSON is never wrapped, and neither is an error on standard error: who searches a log finds it in one piece.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

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
