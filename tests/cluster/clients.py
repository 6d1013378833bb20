"""kubectl and helm, each with a separate home: their output and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cluster.daemons import ClusterError

SECONDS: Final = 180.0
"""The maximum time of a single command, in seconds."""
RECORDED: Final = 320
"""The number of characters of a rejection that are shown."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def good(self) -> bool:
        return self.code == 0

    @property
    def warnings(self) -> list[str]:
        """The warnings of the API server, in order."""
        return [line.removeprefix("Warning: ") for line in self.err.splitlines() if line.startswith("Warning: ")]

    @property
    def refusal(self) -> str:
        """The message of a failure, shortened to a line; empty without one."""
        lines = [line.strip() for line in self.err.splitlines() if not line.startswith("Warning: ")]
        return "" if self.good else " ".join(lines)[:RECORDED]

    @property
    def recorded(self) -> str:
        """The rejection, or else the warnings, or an empty text."""
        return self.refusal or "; ".join(self.warnings)


@dataclass(frozen=True, slots=True)
class Client:
    """A program that calls the API server. Its identity is in a kubeconfig, never on its command line."""

    path: Path
    kubeconfig: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig)}

    def __call__(self, *arguments: str | Path, stdin: str = "") -> Answer:
        done = subprocess.run(
            [str(self.path), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=SECONDS,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def must(self, *arguments: str | Path, stdin: str = "") -> str:
        """Return its output. Raises ClusterError if it failed: the preparation of a proof must succeed."""
        answer = self(*arguments, stdin=stdin)
        if not answer.good:
            raise ClusterError(f"{self.path.name} {' '.join(map(str, arguments))}: {answer.err.strip()[-1000:]}")
        return answer.out

    def json(self, *arguments: str | Path) -> Json:
        """Return the object that it prints with `-o json`."""
        answer: Json = json.loads(self.must(*arguments, "-o", "json"))
        return answer

    def items(self, *arguments: str | Path) -> list[Json]:
        """Return the objects of a list."""
        items: list[Json] = self.json("get", *arguments)["items"]
        return items


def together(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return several objects as one, for kubectl's standard input."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
