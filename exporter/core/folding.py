"""How names and ids are compared: without regard to the case of ASCII letters, and of no others.

Unicode's own case folding makes equal what is only similar: `ſ` and `s`, the Kelvin sign and `k`, `ß` and `ss`. To the
metadata service these are different VMs and different events.
"""

from __future__ import annotations

import string
from typing import Final

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(text: str) -> str:
    """`text` with A to Z in lower case and everything else as it is."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def alike(one: str, other: str) -> bool:
    """Whether two names, or two ids, are the same."""
    return folded(one) == folded(other)
