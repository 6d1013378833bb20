"""Processes that end with this one: each with its own log in the folder of the run, and none left running."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

STOP_SECONDS: Final = 30.0
TAIL: Final = 1500
"""Characters of a log that a failure shows."""

T = TypeVar("T")


class ClusterError(Exception):
    """The control plane itself failed, so that no test can use it."""


class Daemon:
    """A process that serves during a `with`; if this process is killed, the kernel kills it (util-linux's setpriv)."""

    def __init__(self, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = Path(command[0]).name
        self._command = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
        self._folder, self._environment = folder, dict(environment)
        self._log = folder / f"{self.name}.log"

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raise ClusterError if it has ended, with the end of its log."""
        if (code := self._process.poll()) is not None:
            end = self._log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
            raise ClusterError(f"{self.name} ended with {code}:\n{end}")


def wait_for(look: Callable[[], T], seconds: float, every: float = 0.2) -> T:
    """Return the first true result of `look`, called repeatedly, or its last one after this many seconds."""
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(every)
    return found


def left_behind(folder: Path) -> list[str]:
    """Return the command lines of other processes that name this folder."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(folder) in line:
            found.append(line.strip())
    return found
