"""What the commands print for people, with the lines that were wrapped at 100 columns put together again."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_GOES_ON: Final = re.compile(r"\r?\n(?: {9,}| (?=\S))(?=\S)")
"""Behind the label of a line of `check`, below the VM's name in the timeline, within a note in brackets."""


def rejoined(text: str) -> str:
    """The text as it was before it was wrapped. A word with a line of its own, such as a long path, keeps it."""
    return _GOES_ON.sub(" ", text)


def too_wide(text: str, width: int = 100) -> list[str]:
    """The lines with more columns than that; a wide character has two, and a mark on another is counted as well."""
    return [
        line
        for line in text.splitlines()
        if sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in line) > width
    ]
