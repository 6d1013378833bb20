"""From the metadata service's document to the pager and back, with real components only."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from tests.support.dashboards_environment import RULES
from tests.support.factories import azure_event
from tests.support.peers import Webhook, alertmanager, prometheus, scrape, until

LISTENING: Final = re.compile(r"event=agent\.listening .*?address=(127\.0\.0\.1:\d+)")
NAMES: Final = {"AzureScheduledEventsMaintenanceScheduled", "AzureScheduledEventsMaintenanceImminent"}
QUIET: Final[dict[str, Any]] = {"DocumentIncarnation": 3, "Events": []}


def _reboot_soon() -> dict[str, Any]:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    recorded = "Host server is undergoing maintenance."
    event = azure_event("602d9444-d2cd-49c7-8624-8643e7171297", "Reboot", ["vm-1"], soon, Description=recorded)
    return {"DocumentIncarnation": 2, "Events": [event]}


@contextmanager
def _agent(source: str, folder: Path) -> Iterator[str]:
    """Run the agent with its command; yield the address of its scrape endpoint."""
    flags = {"source.url": source, "source.poll-interval": "200ms", "web.listen-address": "127.0.0.1:0"}
    flags["outbox.path"] = str(folder / "outbox.db")
    command = [sys.executable, "-m", "exporter", "run", *(f"--{name}={value}" for name, value in flags.items())]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        yield until(lambda: next((found[1] for line in list(lines) if (found := LISTENING.search(line))), ""))
    finally:
        process.terminate()
        process.wait(20)
        reader.join(5)
        process.stderr.close()


def _recorded(hook: Webhook, status: str) -> dict[str, dict[str, Any]]:
    return {alert["labels"]["alertname"]: alert for alert in hook.alerts(status)}


@pytest.mark.peer("alertmanager")
def test_a_reboot_notifies_the_pager_and_is_resolved(tmp_path: Path) -> None:
    """A scheduled reboot sends both alerts with the VM's name, and its end resolves both."""
    with (
        MetadataService(load("quiet")) as service,
        _agent(service.url, tmp_path) as exporter,
        Webhook() as hook,
        alertmanager(tmp_path / "alertmanager", hook.url) as manager,
        prometheus(
            tmp_path / "prometheus",
            [scrape("azure-scheduled-events", exporter)],
            rules=[RULES],
            alertmanager_address=f"127.0.0.1:{manager.port}",
        ) as server,
    ):
        until(lambda: server.query("azure_scheduled_events_up == 1"), seconds=60)
        assert not hook.received
        service.set_document(_reboot_soon())
        until(lambda: set(_recorded(hook, "firing")) >= NAMES, seconds=60)
        imminent = _recorded(hook, "firing")["AzureScheduledEventsMaintenanceImminent"]
        assert imminent["annotations"]["summary"] == "Maintenance of vm-1 is imminent: Reboot"
        assert "can start in 4m" in imminent["annotations"]["description"]
        service.set_document(QUIET)
        until(lambda: set(_recorded(hook, "resolved")) >= NAMES, seconds=60)
        assert set(_recorded(hook, "firing")) == NAMES
