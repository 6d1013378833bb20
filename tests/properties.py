"""Run the property tests on random scenarios for a given time: `python -m tests.properties --minutes N`.

Each file in turn, a round of examples at a time, until the time is up. A failing example is printed shrunk, with the
line that reproduces it; it belongs in an ordinary test. Exit code 1 if one was found.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from threading import Lock
from typing import Final

FILES: Final = (
    "tests/system/test_fleet_invariants.py",
    "tests/agent/test_gauges_invariants.py",
    "tests/agent/test_outputs_agree.py",
    "tests/core/test_invariants.py",
    "tests/agent/test_event_lifecycles.py",
    "tests/agent/test_loop_stateful.py",
    "tests/system/test_crashes.py",
)
ROUND: Final = "2"
"""How many times the examples of a short run one round has: half a minute of work or so."""
SAID: Final = re.compile(r"tried (\d+) examples of (\d+) steps")
SHOWN: Final = 8_000


@dataclass
class Sum:
    rounds: int = 0
    examples: int = 0
    steps: int = 0
    seconds: float = 0.0
    broken: int = 0


class RuleEvaluation:
    """All the rounds, and what came of them."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._next = cycle(FILES)
        self._lock = Lock()
        self.sums = {file: Sum() for file in FILES}

    def goes_on(self) -> None:
        """Round after round until the time is up; each file has one, however short it is."""
        while True:
            with self._lock:
                file = next(self._next)
                if self.sums[file].rounds and time.monotonic() >= self._end:
                    return
                self.sums[file].rounds += 1
            self._round(file)

    def _round(self, file: str) -> None:
        began = time.monotonic()
        seed = str(random.randrange(2**32))  # noqa: S311  # what to try is no secret
        environ = {"HYPOTHESIS_PROFILE": "long", "PROPERTIES_TIMES": ROUND, "CRASH_SEED": seed}
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}", file],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        said = SAID.search(run.stdout)
        with self._lock:
            found = self.sums[file]
            found.seconds += time.monotonic() - began
            found.examples += int(said[1]) if said else 0
            found.steps += int(said[2]) if said else 0
            if run.returncode:
                found.broken += 1
                print(f"{file} with {environ}:\n{(run.stdout + run.stderr)[-SHOWN:]}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.properties")
    parser.add_argument("--minutes", type=float, default=10, help="for all together")
    parser.add_argument("--workers", type=int, default=2, help="so many rounds at a time")
    args = parser.parse_args()
    trial = RuleEvaluation(args.minutes * 60)
    with ThreadPoolExecutor(args.workers) as pool:
        for worker in [pool.submit(trial.goes_on) for _ in range(args.workers)]:
            worker.result()
    for file, found in trial.sums.items():
        shown = f"{file:<34} {found.examples:>8} examples {found.steps:>9} steps {found.seconds:>6.0f} s"
        print(f"{shown}: {f'{found.broken} rounds BROKE' if found.broken else 'held'}")
    return int(any(found.broken for found in trial.sums.values()))


if __name__ == "__main__":
    sys.exit(main())
