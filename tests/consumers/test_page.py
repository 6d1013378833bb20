"""The page about consumers: its commands run, and it explains every member of a summary."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from deploy.consumers.python.event_summaries.__main__ import VARIABLE
from exporter.simulator.event_hubs.broker import Broker
from tests.support.documentation import ROOT, blocks
from tests.support.eventhubs_broker import FORGETFUL, collected, running_broker
from tests.support.eventhubs_client import event, producer, send
from tests.support.fleet_records import HUB, recorded, summaries
from tests.support.javascript_consumer import installed
from tests.support.node import node_binary, node_environment
from tests.support.peers import need

pytestmark = [*FORGETFUL, pytest.mark.linux("runs shell blocks of the checkout")]
PAGE: Final = ROOT / "docs" / "consumers.md"
broker = pytest.fixture(running_broker)
_collected = pytest.fixture(autouse=True)(collected)


@pytest.mark.peer("node")
@pytest.mark.peer("jq")
@pytest.mark.parametrize("language", ["python", "javascript"])
def test_the_commands_of_the_page_run(language: str, broker: Broker, tmp_path: Path) -> None:
    """In the folder of each consumer, as a team deploys it, with records of every kind in the hub."""
    program = "python -m event_summaries" if language == "python" else "node consume.mjs"
    (block,) = [found for found in blocks(PAGE) if found.text.startswith(program)]
    asyncio.run(_deliver(broker))
    folder = tmp_path / language
    if language == "python":
        shutil.copytree(ROOT / "deploy" / "consumers" / language, folder)
    else:
        installed(folder)
    paths = {Path(path).parent for path in (sys.executable, node_binary(), need("jq"))}
    environment = node_environment({VARIABLE: broker.connection_string(HUB)})
    environment["PATH"] = ":".join([*map(str, sorted(paths)), environment["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", block.text], cwd=folder, env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.decode().splitlines()
    if language == "python":
        expected = summaries(recorded())
        assert sorted(json.loads(line)["outcome"] or "" for line in printed) == sorted(
            one["outcome"] or "" for one in expected.values()
        )
    else:
        assert len(printed) == len(recorded())


async def _deliver(broker: Broker) -> None:
    async with producer(broker.connection_string(HUB)) as client:
        await send(client, [event(body.decode()) for body in recorded()])


def test_every_member_of_a_summary_is_explained() -> None:
    """Each member once, and no other."""
    table = PAGE.read_text(encoding="utf-8").partition("<!-- summary -->")[2].partition("<!-- /summary -->")[0]
    explained = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    ]
    (found, *_) = summaries(recorded()).values()
    assert sorted(explained) == sorted(found)
