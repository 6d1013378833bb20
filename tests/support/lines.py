"""The commands' human-readable output, with the lines that were wrapped at 100 columns joined again."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_GOES_ON: Final = re.compile(r"\r?\n(?: {9,}| (?=\S))(?=\S)")
"""The indentation after the label of a line of `check`, below the VM's name in the timeline, and in a bracketed
note."""


def rejoined(text: str) -> str:
    """Return the text before it was wrapped. A word on a separate line, such as a long path, stays there."""
    return _GOES_ON.sub(" ", text)


def too_wide(text: str, width: int = 100) -> list[str]:
    """Return the lines with more columns than that; a wide character has two, and a combining mark counts as well."""
    return [
        line
        for line in text.splitlines()
        if sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in line) > width
    ]
