"""The JavaScript consumer as a team deploys it: its folder, with the packages that tests/node locks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import IO, Final

from exporter.simulator.event_hubs.broker import Broker
from tests.support.fleet_records import HUB, ROOT
from tests.support.node import node_binary, node_environment, node_packages

FOLDER: Final = ROOT / "deploy" / "consumers" / "javascript"


def installed(folder: Path) -> Path:
    """Return a copy of the consumer's folder with its packages."""
    packages = node_packages()
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(packages)
    return folder


def started(folder: Path, broker: Broker, state: Path, output: IO[str] | int, *flags: str) -> subprocess.Popen[str]:
    """Start the process, with its log on standard error."""
    environment = node_environment({"EVENT_HUBS_CONNECTION_STRING": broker.connection_string(HUB)})
    command = [node_binary(), "consume.mjs", "--state", str(state), *flags]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.PIPE, text=True)
