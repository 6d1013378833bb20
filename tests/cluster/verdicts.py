"""A line for each requirement, with the observation, and their sum."""

from __future__ import annotations

import time


class Verdicts:
    """Prints the verdicts as they come; `bad` has the requirements that don't hold."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.good = 0
        self.bad: list[str] = []

    def say(self, holds: object, sentence: str, seen: object = "") -> bool:
        """Print a verdict: `sentence` is the requirement, `seen` the observation."""
        holds = bool(holds)
        if holds:
            self.good += 1
        else:
            self.bad.append(sentence)
        recorded = f": {seen}" if str(seen) else ""
        print(f"{'ok ' if holds else 'BAD'} {sentence}{recorded}", flush=True)
        return holds

    def heading(self, name: str) -> None:
        """Begin a group, with the seconds since the beginning."""
        print(f"\n== {name} ({time.monotonic() - self._began:.0f} s)", flush=True)

    def __str__(self) -> str:
        return f"{self.good} ok, {len(self.bad)} BAD, {time.monotonic() - self._began:.0f} s"
