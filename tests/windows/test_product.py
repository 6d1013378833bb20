"""The installed agent on Windows: started outside the checkout, and ended as Windows ends programs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from tests.support.agent_environment import document, event, started
from tests.support.otlp_receiver import Receiver, attributes
from tests.support.peers import until
from tests.support.running import Run
from tests.support.simulator_client import Unhurried
from tests.support.systems import CTRL_BREAK, CTRL_C, KILLED, press, run_away

pytestmark = pytest.mark.windows

HUB = "scheduled-events"
REBOOT = "6a8c1f0e-3b52-4c47-9d10-2f7e5b94c8d3"
ENFORCE = "--approval.mode=enforce"

IMPORT_ALL = """
import importlib, pkgutil, exporter
names = [found.name for found in pkgutil.walk_packages(exporter.__path__, "exporter.")]
for name in names:
    if name != "exporter.__main__":
        importlib.import_module(name)
print(len(names))
"""


def mine(**further: object) -> dict[str, object]:
    return event(REBOOT, "Reboot", "vm-1", **further)


def outputs(broker: Broker, collector: Receiver) -> tuple[str, dict[str, str]]:
    """Return the flag and the environment that make the agent send to both destinations."""
    environ = {"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": broker.connection_string(HUB)}
    return f"--otlp.endpoint=http://127.0.0.1:{collector.port}", environ


def test_every_module_can_be_imported(tmp_path: Path) -> None:
    """Each module of the package, with all its imports."""
    done = run_away(tmp_path, sys.executable, "-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_demo_runs_completely(tmp_path: Path) -> None:
    """It exits with 0, and every record arrived in every output."""
    done = run_away(tmp_path, sys.executable, "-m", "exporter", "demo", "--speed", "8", "--listen", "127.0.0.1:0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every record arrived in every output" in done.stdout


def test_reboot_is_approved_and_recorded_in_all_three_outputs(tmp_path: Path) -> None:
    """Prometheus, Event Hubs, and OpenTelemetry get the same records with the same ids; one approval is sent."""
    with (
        MetadataService(load("user-reboot"), speed=40, clock=Unhurried(0.25)) as service,
        Broker() as broker,
        Receiver() as collector,
    ):
        flag, environ = outputs(broker, collector)
        with Run(service.url, tmp_path, ENFORCE, flag, environ=environ, where=tmp_path) as run:
            run.wait_for(lambda: run.metric("events_closed_total", event_type="Reboot", outcome="completed") == 1, 90)
            run.wait_for(lambda: run.metric("outbox_records", destination="event_hubs") == 0)
            run.wait_for(lambda: run.metric("outbox_records", destination="otlp") == 0)
            stored = {str(message.message_id) for message in broker.messages(HUB)}
            logged = {str(attributes(log.attributes)["log.record.uid"]) for _, _, log in collector.logs}
            assert run.stop() == 0
        assert [post.event_ids for post in service.posts] == [(REBOOT,)]
    assert len(stored) >= 5
    assert stored <= logged


def test_records_survive_terminate_process(tmp_path: Path) -> None:
    """After a kill while the collector is away, the next process delivers the records with their ids, and continues
    the event's timeline."""
    with MetadataService(load("user-reboot"), speed=0.001) as service, Broker() as broker, Receiver() as collector:
        flag, environ = outputs(broker, collector)
        collector.__exit__(None, None, None)
        service.set_document(document(5, mine()))
        with Run(service.url, tmp_path, flag, environ=environ, where=tmp_path) as run:
            run.wait_for(lambda: (run.metric("outbox_records", destination="otlp") or 0) >= 2)
            run.process.kill()
            assert run.ended() == KILLED
        service.set_document(document(6, started(mine())))
        with Receiver() as another:
            flag, environ = outputs(broker, another)
            with Run(service.url, tmp_path, flag, environ=environ, where=tmp_path) as run:
                run.wait_for(lambda: run.metric("events", event_type="Reboot", event_status="Started") == 1)
                run.wait_for(lambda: run.metric("outbox_records", destination="otlp") == 0)
                run.wait_for(lambda: run.metric("outbox_records", destination="event_hubs") == 0)
                assert run.stop() == 0
            logged = [str(attributes(log.attributes)["log.record.uid"]) for _, _, log in another.logs]
    bodies = {body["id"]: body for body in (json.loads(message.body) for message in broker.messages(HUB))}
    kinds = [body["type"].split(".")[1] for body in bodies.values() if body["subject"] == REBOOT]
    assert [kind for kind in kinds if kind != "interruption"] == ["scheduled", "approval", "started"]
    assert set(bodies) <= set(logged)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(CTRL_C, id="ctrl-c"),
        pytest.param(CTRL_BREAK, id="ctrl-break", marks=pytest.mark.not_wine("has no Ctrl-Break")),
    ],
)
def test_key_ends_the_agent_within_five_seconds(tmp_path: Path, key: int) -> None:
    """Also while the metadata service hangs: exit code 0, and its last record is written."""
    with MetadataService(load("user-reboot"), speed=0.001) as service:
        with Run(service.url, tmp_path, where=tmp_path) as run:
            run.wait_for(lambda: run.get("/-/ready").status_code == 200)
            service.fault("events/hang:60")
            polls = len(service.requests)
            until(lambda: len(service.requests) > polls)
            press(run.process, key)
            began = time.monotonic()
            assert run.ended() == 0
            assert time.monotonic() - began < 5
        assert run.said("agent.stopped")


def test_hold_file_on_a_missing_drive_holds_every_event(tmp_path: Path) -> None:
    """A missing drive proves nothing about a file on it; on an existing drive, its absence allows approvals."""
    missing = next(f"{letter}:" for letter in "QRSTUVW" if not os.path.exists(f"{letter}:\\"))
    with MetadataService(load("user-reboot"), speed=0.001) as service:
        service.set_document(document(5, mine()))
        hold = f"--approval.hold-file={missing}\\hold"
        with Run(service.url, tmp_path, ENFORCE, hold, where=tmp_path) as run:
            run.wait_for(lambda: (run.metric("polls_total") or 0) >= 8)
            held = {"decision": "hold", "reason": "held", "rule": "user-initiated", "event_type": "Reboot"}
            assert run.metric("approval_decisions_total", **held) == 1
            assert run.stop() == 0
        assert not service.posts
        hold = f"--approval.hold-file={tmp_path}\\hold"
        with Run(service.url, tmp_path, ENFORCE, hold, where=tmp_path) as run:
            until(lambda: len(service.posts) == 1)
            assert run.stop() == 0
