"""Lives of the agent that end by SIGKILL at a chosen boundary of the line, until the scenario ends.

Run as a program, it reads jobs, one JSON object a line, and answers each with the effects outside the agent. It forks a
process for each life: real processes, a real file, and real kills, without the time of imports.

The part of the scenario that must survive a crash outside the agent is in files: its position, the time, the records
that each destination accepted, and the POSTs.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from exporter.agent.delivery import Delivery
from exporter.agent.files import check_files
from exporter.agent.loop import Agent
from exporter.agent.ports import AgentOptions, Environment
from exporter.core.policy import Mode, Policy
from exporter.core.records import Record, VmIdentity
from exporter.log.log import Log
from exporter.metadata.client import MetadataResponse
from exporter.metadata.errors import MetadataError
from exporter.outbox.store import Outbox
from exporter.sinks.prometheus.sink import PrometheusSink
from tests.support.agent_environment import DESTINATIONS, START, VM, Clock, document, event, started

MOST_LIVES: Final = 40
MOST_TURNS: Final = 300
A, C, D = "AAAA-1", "CCCC-3", "DDDD-4"
_A, _C = event(A), event(C, "Redeploy", EventSource="Platform")
SCENARIO: Final[Sequence[bytes | None]] = (
    document(1),
    document(2, _A, _C),
    document(3, started(_A), _C),
    document(4, started(_A), {**_C, "Description": "moved"}),
    document(5, {**_C, "Description": "moved"}),
    None,  # twelve seconds without a response
    document(6),
    document(7, started(event(D, "Freeze"))),
    document(8, event("EEEE-5", "Reboot")),
    document(9),
)
APPROVED: Final = {1: A, 8: "EEEE-5"}
"""The scenario waits at these documents until that event was approved."""


class Killer:
    """Counts the boundaries, and ends this process with SIGKILL at the chosen one."""

    def __init__(self, at: int, trace: Path) -> None:
        self._left = at
        self._trace = trace.open("a")

    def cross(self, name: str) -> None:
        self._trace.write(f"{name}\n")
        self._trace.flush()
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, thing: Any, *names: str) -> Any:
        """Wrap an object with a boundary before and after each call of these methods."""
        return _Around(thing, names, self.cross)


class _Around:
    def __init__(self, thing: Any, names: Iterable[str], cross: Callable[[str], None]) -> None:
        self._thing, self._names, self._cross = thing, frozenset(names), cross

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if name not in self._names:
            return found

        def called(*given: Any, **named: Any) -> Any:
            self._cross(f"before {name}")
            done = found(*given, **named)
            self._cross(f"after {name}")
            return done

        return called


class Files:
    """Everything outside of the agent, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def number(self, name: str, default: float) -> float:
        path = self.folder / name
        return float(path.read_text()) if path.exists() else default

    def keep(self, name: str, number: float) -> None:
        (self.folder / f"{name}.new").write_text(repr(number))
        os.replace(self.folder / f"{name}.new", self.folder / name)

    def add(self, name: str, value: Any) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(value) + "\n")

    def all(self, name: str) -> list[Any]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Source:
    """Return the document at the current position; an approval counts from the moment it arrives."""

    def __init__(self, files: Files, clock: Clock) -> None:
        self._files, self._clock = files, clock

    def fetch(self) -> MetadataResponse:
        body = SCENARIO[int(self._files.number("position", 0))]
        if body is None:
            raise MetadataError("timeout", "no answer")
        return MetadataResponse(body, self._clock.mono, 0.01)

    def approve(self, event_id: str, leave: Callable[[], None], left: Callable[[], None]) -> None:
        leave()
        left()
        with closing(sqlite3.connect(self._files.folder / "outbox.db")) as db:
            bodies = [Record.from_json(body) for (body,) in db.execute("SELECT body FROM records")]
        known = [record.kind for record in bodies if record.subject == event_id]
        self._files.add(
            "posts",
            [event_id, self._clock.wall, "approval.decided" in known, "approval.accepted" in known],
        )


class Destination:
    """A backend that stores accepted records in a file."""

    batch_size = 3

    def __init__(self, name: str, files: Files) -> None:
        self.name, self._files = name, files
        self.subjects = None if name == "otlp" else 2  # as the real ones accept them

    def send(self, records: Sequence[Record]) -> None:
        for record in records:
            decision = record.data.get("decision") or {}
            words = [decision.get("verdict"), decision.get("reason")] if decision else []
            self._files.add(self.name, [record.id, record.kind, record.subject, words])

    def idle(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def life(folder: Path, kill_at: int) -> None:
    """Run one process until the scenario ends or the boundary is reached."""
    files, killer = Files(folder), Killer(kill_at, folder / "trace")
    clock = Clock(wall=files.number("time", START) + 1.0)
    began = clock.wall
    outbox = killer.around(
        Outbox(folder / "outbox.db", 10 << 20, DESTINATIONS, now=clock.utc), "commit", "beat", "next", "delivered"
    )
    source = killer.around(Source(files, clock), "fetch", "approve")
    sink = killer.around(
        PrometheusSink("1", ("user-initiated", "short-freeze"), include_process_metrics=False),
        *("publish", "observe"),
    )
    environment = Environment(clock=clock.instant, identity=lambda: VmIdentity(VM), check_files=check_files)
    log = Log(None)
    agent = Agent(
        AgentOptions(policy=Policy(mode=Mode.ENFORCE)), source, outbox, sink, log=log, environment=environment
    )
    deliveries = [
        Delivery(
            killer.around(Destination(name, files), "send"),
            outbox,
            sink,
            log,
            monotonic=clock.monotonic,
            jitter=lambda: 0.0,
        )
        for name in DESTINATIONS
    ]
    for turn in range(MOST_TURNS):
        wait = agent.tick()
        for delivery in deliveries:
            while turn % 3 == 2 and delivery.tick() == 0:
                pass
        clock.go(max(wait, 0.01))
        files.keep("time", clock.wall)
        if _moved_on(files, clock, began) and not any(queue.records for queue in outbox.queues().values()):
            outbox.close()
            return
    raise RuntimeError("the scenario does not end")


def _moved_on(files: Files, clock: Clock, began: float) -> bool:
    """Advance the scenario if its condition holds; return whether it has ended."""
    position = int(files.number("position", 0))
    since = files.number(f"since-{position}", clock.wall)
    files.keep(f"since-{position}", since)
    if position in APPROVED and APPROVED[position] not in {post[0] for post in files.all("posts")}:
        return False
    if SCENARIO[position] is None and clock.wall - max(since, began) < 12:
        return False  # an outage counts from when a process first saw it
    if position in APPROVED and clock.wall - since < 8:
        return False  # time for a second POST, if there is one
    if position == len(SCENARIO) - 1:
        return clock.wall - since > 12
    files.keep("position", position + 1)
    return False


def scenario(kills: Sequence[int]) -> dict[str, Any]:
    """Run one life after the other, each killed at its boundary; the last ones run to the end. Return the effects
    outside."""
    with tempfile.TemporaryDirectory(prefix="azse-crash-") as name:
        folder = Path(name)
        for number in range(MOST_LIVES):
            status = _lived(folder, kills[number] if number < len(kills) else 0)
            if status == 0:
                break
            if status != -signal.SIGKILL:
                raise RuntimeError(f"a life ended with {status}")
        files = Files(folder)
        return {
            "lives": number + 1,
            "sent": {name: files.all(name) for name in DESTINATIONS},
            "posts": files.all("posts"),
            "trace": (folder / "trace").read_text().splitlines(),
            "left": sorted(os.listdir(folder)),
        }


def _lived(folder: Path, kill_at: int) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        life(folder, kill_at)
    except BaseException:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(scenario(json.loads(line)["kills"])), flush=True)
