"""The effort of the property tests, and where their files are: PROPERTIES_TIMES and HYPOTHESIS_PROFILE.

`make test` tries the same examples every time, in seconds; `make test-fast` a quarter of them; HYPOTHESIS_PROFILE=long
ten times as many, which are new each time. `make -C tests properties` tries new ones for a given time.
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
"""The folder for temporary folders. A disk with real waits would test nothing more. Wine would show Linux's own
folder."""
TIMES: Final = float(os.environ.get("PROPERTIES_TIMES", "10" if LONG else "1"))
"""Factor for the number of examples, compared with `make test`."""
LEAST: Final = 5


def examples(quick: int) -> int:
    """Return the number of examples of a property that has `quick` of them in `make test`."""
    return max(LEAST, round(quick * TIMES))


def folder_in_memory() -> Iterator[Path]:
    """A temporary folder without disk waits: `tmp_path` for the packages with tests that commit all the time."""
    with tempfile.TemporaryDirectory(prefix="azse-", dir=MEMORY) as folder:
        yield Path(folder)


class Tried:
    """The number of examples and steps in this process."""

    examples = 0
    steps = 0

    @classmethod
    def example(cls, steps: int = 0) -> None:
        """Count one more example, of this many steps."""
        cls.examples += 1
        cls.steps += steps
