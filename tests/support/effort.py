"""How hard the properties are tried: in seconds by default, by HYPOTHESIS_PROFILE=long for a minute or so each.

PROPERTIES_TIMES says how many times as many examples a long run has as a short one. `make properties` goes on with new
ones for as long as it is told to.
"""

from __future__ import annotations

import os
from typing import Final

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "quick")
LONG: Final = PROFILE == "long"
MEMORY: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""The folder for temporary folders: a disk that has to be waited for tries nothing more."""
TIMES: Final = float(os.environ.get("PROPERTIES_TIMES", "10"))


def examples(quick: int) -> int:
    """So many examples of a property that has `quick` of them in a short run."""
    return max(1, round(quick * TIMES)) if LONG else quick


class Tried:
    """What was tried in this process."""

    examples = 0
    steps = 0

    @classmethod
    def example(cls, steps: int = 0) -> None:
        """One more, of so many steps."""
        cls.examples += 1
        cls.steps += steps
