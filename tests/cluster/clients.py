"""kubectl and helm, each with a home of its own: what they say, and with which exit code."""

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
"""The longest that a single command may take."""
RECORDED: Final = 320
"""Characters of a refusal that are shown."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def good(self) -> bool:
        return self.code == 0

    @property
    def warnings(self) -> list[str]:
        """What the API server warns of, in the order of its sentences."""
        return [line.removeprefix("Warning: ") for line in self.err.splitlines() if line.startswith("Warning: ")]

    @property
    def refusal(self) -> str:
        """The words of a failure, as far as a line takes them, or nothing."""
        lines = [line.strip() for line in self.err.splitlines() if not line.startswith("Warning: ")]
        return "" if self.good else " ".join(lines)[:RECORDED]

    @property
    def recorded(self) -> str:
        """The refusal, or else the warnings, or nothing."""
        return self.refusal or "; ".join(self.warnings)


@dataclass(frozen=True, slots=True)
class Client:
    """A program that talks to the API server. It takes who it is from a kubeconfig, never from its command line."""

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
        """What it printed; raises ClusterError where it failed: what only prepares a proof has to work."""
        answer = self(*arguments, stdin=stdin)
        if not answer.good:
            raise ClusterError(f"{self.path.name} {' '.join(map(str, arguments))}: {answer.err.strip()[-1000:]}")
        return answer.out

    def json(self, *arguments: str | Path) -> Json:
        """The object that it prints with `-o json`."""
        answer: Json = json.loads(self.must(*arguments, "-o", "json"))
        return answer

    def items(self, *arguments: str | Path) -> list[Json]:
        """The objects of a list."""
        items: list[Json] = self.json("get", *arguments)["items"]
        return items


def together(objects: Iterable[Mapping[str, Any]]) -> str:
    """Several objects as one, for kubectl's standard input."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
