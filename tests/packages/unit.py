"""The agent as the installed unit starts it, without systemd: its command, variables, user, and directories."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests.packages.root import Root
from tests.support.peers import until

NAME: Final = "azure-scheduled-events-exporter"
USER: Final = 61184
"""The first uid that systemd uses for DynamicUser= [systemd.exec(5)]."""
PRIVATE: Final = f"/var/lib/private/{NAME}"
OUTBOX: Final = f"{PRIVATE}/outbox.db"


@dataclass(frozen=True, slots=True)
class Unit:
    """The parts of the unit that matter without systemd."""

    start: tuple[str, ...]
    before: tuple[str, ...]
    environ: dict[str, str]


def installed(root: Root, path: str) -> Unit:
    """Read the unit that a package put at `path`, and the file of variables that it names."""
    text = root.path(path).read_text(encoding="utf-8")
    lines = re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)
    (start,) = [value for key, value in lines if key == "ExecStart"]
    before = [value.lstrip("-+").replace("%%", "%") for key, value in lines if key == "ExecStartPre"]
    recorded = [value for key, value in lines if key == "Environment"]
    for key, value in lines:
        if key == "EnvironmentFile" and root.lexists(value.lstrip("-")):
            recorded += root.path(value.lstrip("-")).read_text(encoding="utf-8").splitlines()
    environ = dict(line.split("=", 1) for line in recorded)
    return Unit(tuple(start.split()), tuple(before), environ)


@contextmanager
def agent(root: Root, unit: Unit, log: Path) -> Iterator[None]:
    """Run the agent as the unit's user with no rights; stop it at the end as systemd does."""
    state = root.path(PRIVATE)
    state.parent.mkdir(mode=0o700, exist_ok=True)
    state.mkdir(mode=0o700, exist_ok=True)
    os.chown(state, USER, USER)
    link = root.path(f"/var/lib/{NAME}")
    if not os.path.lexists(link):
        link.symlink_to(f"private/{NAME}")
    for command in unit.before:
        root.run("/bin/sh", "-c", f"umask 0077; {command}")
    # systemd gives the unit a private /var/lib/private, which only root can enter: here it is opened a little.
    state.parent.chmod(0o711)
    drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
    with root.running(*drop, *unit.start, environ=unit.environ, log=log) as process:
        yield
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the agent by SIGTERM, which is for it and not for `unshare`, and assert exit code 0."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGTERM)
    code = process.wait(30)
    assert code == 0, f"the agent ended with {code}"


def scraped(port: int, family: str, label: str = "") -> float:
    """Return the sum of a family's samples, those with `label` in them; -1 while there is none."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).raise_for_status().text
    except httpx.TransportError:
        return -1
    found = [
        line.rsplit(" ", 1)[1] for line in text.splitlines() if re.match(rf"{family}[{{ ]", line) and label in line
    ]
    return sum(map(float, found)) if found else -1


def waits(port: int, family: str, least: float, label: str = "") -> float:
    """Return the sum of a family once it is at least `least`."""
    until(lambda: scraped(port, family, label) >= least)
    return scraped(port, family, label)


def queued(root: Root) -> list[str]:
    """Return the ids of the records that wait in the outbox, in order, as they are on the disk."""
    with closing(sqlite3.connect(f"file:{root.path(OUTBOX)}?mode=ro", uri=True)) as db:
        query = "SELECT records.id FROM queue JOIN records USING (seq) ORDER BY queue.seq"
        return [str(row[0]) for row in db.execute(query)]
