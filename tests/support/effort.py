"""How hard the properties are tried, and where their files are: PROPERTIES_TIMES and HYPOTHESIS_PROFILE.

`make test` tries the same examples every time, in seconds; `make test-fast` a quarter of them; HYPOTHESIS_PROFILE=long
ever new ones, ten times as many. `make -C tests properties` goes on with new ones for as long as it is told to.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.systems import WINDOWS

PROFILE: Final = os.environ.get("HYPOTHESIS_PROFILE", "quick")
LONG: Final = PROFILE == "long"
MEMORY: Final = "/dev/shm" if not WINDOWS and os.path.isdir("/dev/shm") else None
"""The folder for temporary folders: a disk that has to be waited for tries nothing more. Wine would show Linux' own."""
TIMES: Final = float(os.environ.get("PROPERTIES_TIMES", "10" if LONG else "1"))
"""How many times as many examples as `make test` has."""
LEAST: Final = 5


def examples(quick: int) -> int:
    """The number of examples of a property that has `quick` of them in `make test`."""
    return max(LEAST, round(quick * TIMES))


def folder_in_memory() -> Iterator[Path]:
    """A temporary folder where nothing waits for a disk: `tmp_path` in the rooms whose tests commit all the time."""
    with tempfile.TemporaryDirectory(prefix="azse-", dir=MEMORY) as folder:
        yield Path(folder)


class Tried:
    """What was tried in this process."""

    examples = 0
    steps = 0

    @classmethod
    def example(cls, steps: int = 0) -> None:
        """Count one more example, of so many steps."""
        cls.examples += 1
        cls.steps += steps
