"""`python -m exporter run` as a process: three outputs, real peers, signals, exit codes, and its own health."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.metadata.scenario import load
from exporter.simulator.metadata.service import MetadataService
from tests.support.agent_environment import document, event, queued_in, started
from tests.support.eventhubs_client import receive
from tests.support.otlp_receiver import Hang, Receiver, attributes
from tests.support.peers import NO_TLS, prometheus, scrape, until
from tests.support.ports import reserved_port, silent_port
from tests.support.running import Run
from tests.support.simulator_client import Unhurried

HUB = "scheduled-events"
REBOOT = "6a8c1f0e-3b52-4c47-9d10-2f7e5b94c8d3"


def quiet() -> MetadataService:
    """A metadata service of `vm-1` without events, until a test gives it a document."""
    return MetadataService(load("user-reboot"), speed=0.001)


def mine(event_id: str = REBOOT, **more: object) -> dict[str, object]:
    return event(event_id, "Reboot", "vm-1", **more)


def to_hub(broker: Broker) -> dict[str, str]:
    return {"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": broker.connection_string(HUB)}


@pytest.mark.peer("prometheus")
def test_the_main_job_end_to_end(tmp_path: Path) -> None:
    """A user's reboot is approved once, and Prometheus, a consumer of Event Hubs, and an OTLP receiver get the same
    facts under the same ids."""
    with (
        MetadataService(load("user-reboot"), speed=40, clock=Unhurried(0.25)) as service,
        Broker() as broker,
        Receiver() as collector,
        Run(
            service.url,
            tmp_path,
            "--approval.mode=enforce",
            f"--otlp.endpoint=http://127.0.0.1:{collector.port}",
            environ=to_hub(broker),
        ) as run,
        prometheus(tmp_path / "prometheus", [scrape("agent", run.address)]) as peer,
    ):
        run.wait_for(lambda: run.metric("events_closed_total", event_type="Reboot", outcome="completed") == 1, 90)
        run.wait_for(lambda: run.metric("outbox_records", destination="event_hubs") == 0)
        run.wait_for(lambda: run.metric("outbox_records", destination="otlp") == 0)
        closed = 'azure_scheduled_events_events_closed_total{event_type="Reboot",outcome="completed"} == 1'
        until(lambda: peer.query(closed))
        until(lambda: peer.query('azure_scheduled_events_up{job="agent"} == 1'))
        stored = len(broker.messages(HUB))
        got = asyncio.run(receive(broker.connection_string(HUB), lambda found: len(found) >= stored))
        bodies = [json.loads(each.body_as_str()) for _, each in got]
        logs = [(attributes(log.attributes), log) for _, _, log in collector.logs]
        assert run.stop() == 0
        assert [post.event_ids for post in service.posts] == [(REBOOT,)]
    kinds = [body["type"].split(".")[1] for body in bodies if body["subject"] == REBOOT]
    kinds = [kind for kind in kinds if kind != "interruption"]  # of a busy machine: a real stall
    assert kinds == ["scheduled", "approval", "approval", "started", "completed"]
    from_hub = {body["id"] for body in bodies}
    assert from_hub <= {found["log.record.uid"] for found, _ in logs}
    assert {each.message_id for _, each in got} == from_hub
    by_id = {found["log.record.uid"]: log.event_name for found, log in logs}
    for body in bodies:
        assert body["type"] == f"{by_id[body['id']]}.v1"
    assert len(from_hub) == len(bodies)


def test_the_first_scrape_does_not_wait_for_the_source(tmp_path: Path) -> None:
    """While the metadata service hangs, `/metrics` is served with all families, and the agent is healthy, not ready."""
    with (
        reserved_port() as port,
        silent_port() as hanging,
        Run(f"http://127.0.0.1:{hanging}", tmp_path, listen=f"127.0.0.1:{port}") as run,
    ):

        def scraped() -> httpx.Response | None:
            try:
                return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=2, trust_env=False, verify=NO_TLS)
            except httpx.TransportError:
                return None

        body = until(scraped, every=0.01)
        assert body is not None
        assert b"azure_scheduled_events_up 0.0" in body.content
        assert b"azure_scheduled_events_destination_sends_total" in body.content
        assert run.get("/-/healthy").status_code == 200
        assert run.get("/-/ready").status_code == 503
        assert run.get("/").status_code in (200, 503)
        assert run.stop() == 0


def test_ready_and_healthy_follow_the_agents_state(tmp_path: Path) -> None:
    """It is ready only after a document; destinations that are down change nothing; an outage of the source sets `up`
    to 0 at once, and the last known status stays."""
    with quiet() as service, reserved_port() as refused_port:
        service.fault("all/500")
        with Run(
            service.url,
            tmp_path,
            f"--otlp.endpoint=http://127.0.0.1:{refused_port}",
            environ={
                "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": f"Endpoint=sb://127.0.0.1:{refused_port};"
                "SharedAccessKeyName=k;SharedAccessKey=a2V5a2V5;EntityPath=hub;UseDevelopmentEmulator=true"
            },
        ) as run:
            assert run.get("/-/ready").status_code == 503
            assert run.metric("up") == 0
            service.fault(None)
            service.set_document(document(5, mine()))
            run.wait_for(lambda: run.get("/-/ready").status_code == 200)
            run.wait_for(lambda: (run.metric("outbox_records", destination="otlp") or 0) > 0)
            assert run.get("/-/healthy").status_code == 200
            service.fault("500")
            run.wait_for(lambda: run.metric("up") == 0)
            assert run.metric("document_incarnation") == 5
            assert run.metric("events", event_type="Reboot", event_status="Scheduled") == 1
            assert run.get("/-/healthy").status_code == 200
            assert run.stop() == 0


HANGING = ("refused", "silent", "slow-first")


@pytest.mark.parametrize("environment", HANGING)
def test_run_ends_in_time_and_loses_nothing(tmp_path: Path, environment: str) -> None:
    """SIGTERM ends it within 5 s with exit code 0 while destinations are down or hang, or the metadata service does not
    respond. The next process delivers what was recorded, including that the first one stopped."""
    with (
        quiet() as service,
        silent_port() as silent,
        reserved_port() as refused_port,
        Broker() as broker,
        Receiver(Hang(), Hang()) as hanging,
    ):
        service.set_document(document(5, mine()))
        target = refused_port if environment == "refused" else silent
        down = broker.connection_string(HUB).replace(str(broker.port), str(target))
        if environment == "slow-first":
            service.fault("all/hang:60")
        flags = ("--approval.mode=dry-run",)
        otlp = f"--otlp.endpoint=http://127.0.0.1:{hanging.port if environment == 'silent' else refused_port}"
        with Run(
            service.url, tmp_path, *flags, otlp, environ={"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": down}
        ) as run:
            if environment == "slow-first":
                run.wait_for(lambda: bool(run.address))
            else:
                run.wait_for(lambda: (run.metric("outbox_records", destination="event_hubs") or 0) >= 3)
            assert run.stop(5.0) == 0
        waiting = [record.id for record in queued_in(tmp_path / "outbox.db", "event_hubs")]
        if environment == "slow-first":
            return
        service.fault(None)
        with (
            Receiver() as collector,
            Run(
                service.url,
                tmp_path,
                *flags,
                f"--otlp.endpoint=http://127.0.0.1:{collector.port}",
                environ=to_hub(broker),
            ) as again,
        ):
            again.wait_for(lambda: again.metric("outbox_records", destination="event_hubs") == 0)
            again.wait_for(lambda: again.metric("outbox_records", destination="otlp") == 0)
            stored = [json.loads(each.body) for each in broker.messages(HUB)]
            kinds = [body["type"] for body in stored]
            assert set(waiting) <= {body["id"] for body in stored}
            assert kinds.count("azure_scheduled_event.agent.stopped.v1") == 1
            assert kinds.count("azure_scheduled_event.scheduled.v1") == 1
            assert set(waiting) <= {attributes(log.attributes)["log.record.uid"] for _, _, log in collector.logs}
            assert again.stop() == 0


def test_a_second_agent_does_not_start(tmp_path: Path) -> None:
    """A second agent on the same outbox ends with exit code 1 and an error, and the first one continues."""
    with quiet() as service, Run(service.url, tmp_path) as first:
        assert first.address
        with Run(service.url, tmp_path) as second:
            assert second.ended() == 1
        assert "another agent uses this outbox" in second.lines[-1]
        assert first.get("/-/healthy").status_code == 200
        assert first.stop() == 0


@pytest.mark.linux("makes symbolic links, which takes a privilege on Windows")
def test_a_second_agent_does_not_start_through_a_link(tmp_path: Path) -> None:
    """A link to the outbox counts as the outbox."""
    with quiet() as service, Run(service.url, tmp_path) as first:
        assert first.address
        (tmp_path / "link.db").symlink_to(tmp_path / "outbox.db")
        with Run(service.url, tmp_path, f"--outbox.path={tmp_path / 'link.db'}") as second:
            assert second.ended() == 1
        assert "another agent uses this outbox" in second.lines[-1]


def test_a_port_in_use_ends_the_agent(tmp_path: Path) -> None:
    """A port in use ends it with exit code 1 and an error that names the address."""
    with quiet() as service, silent_port() as taken:
        with Run(service.url, tmp_path, listen=f"127.0.0.1:{taken}") as run:
            assert run.ended() == 1
        assert str(taken) in run.lines[-1]
        assert "Traceback" not in "\n".join(run.lines)


def test_every_configuration_error_is_printed_at_once(tmp_path: Path) -> None:
    """Every error is printed in one run, each with its key; exit code 2."""
    config = tmp_path / "agent.toml"
    config.write_text('[source]\npoll_interval = "1"\n[approval]\nmode = "yes"\n[nonsense]\nx = 1\n')
    with Run("http://127.0.0.1:1", tmp_path, f"--config.file={config}", "--outbox.max-bytes=1") as run:
        assert run.ended() == 2
    recorded = "\n".join(run.lines)
    for key in ("[approval] mode", '"nonsense"', "--outbox.max-bytes"):
        assert key in recorded
    assert "Traceback" not in recorded


def test_the_agent_starts_without_an_outbox_and_holds(tmp_path: Path) -> None:
    """If the outbox can't be opened, the agent polls, serves, approves nothing, and reports the reason; once it opens,
    the agent approves."""
    (tmp_path / "state").write_text("no folder")
    with quiet() as service:
        service.set_document(document(5, mine()))
        with Run(service.url, tmp_path, f"--outbox.path={tmp_path}/state/outbox.db", "--approval.mode=enforce") as run:
            run.wait_for(lambda: run.get("/-/ready").status_code == 200)
            run.wait_for(lambda: run.metric("events", event_type="Reboot", event_status="Scheduled") == 1)
            run.wait_for(lambda: bool(run.said("outbox.unwritable")))
            held = {"decision": "hold", "reason": "outbox-unwritable", "rule": "user-initiated", "event_type": "Reboot"}
            run.wait_for(lambda: run.metric("approval_decisions_total", **held) == 1)
            assert not service.posts
            (tmp_path / "state").unlink()
            run.wait_for(lambda: len(service.posts) == 1)
            run.wait_for(lambda: bool(run.said("outbox.recovered")))
            assert run.stop() == 0


@pytest.mark.linux("systemd listens on a UNIX socket")
def test_the_watchdog_is_fed_while_the_source_does_not_respond(tmp_path: Path) -> None:
    """With any watchdog time of systemd, a first response that takes minutes doesn't stop the agent."""
    with quiet() as service, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        service.fault("all/hang")
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
        with Run(service.url, tmp_path, environ=environ) as run:
            assert manager.recv(1000).startswith(b"READY=1\n")
            assert [manager.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            assert run.get("/-/healthy").status_code == 200
            assert run.stop() == 0


def test_only_the_first_response_may_take_two_minutes(tmp_path: Path) -> None:
    """A restart within an hour of a valid document gives a hanging service 5 s, not the two minutes of the first
    start."""
    with quiet() as service:
        service.set_document(document(5))
        with Run(service.url, tmp_path) as run:
            run.wait_for(lambda: run.get("/-/ready").status_code == 200, 60)
            assert run.stop() == 0
        service.fault("events/hang:60")
        with Run(service.url, tmp_path) as run:
            run.wait_for(lambda: run.metric("poll_failures_total", reason="timeout") == 1, 60)
            assert run.stop() == 0


def test_records_survive_a_sigkill(tmp_path: Path) -> None:
    """After a SIGKILL in the middle, the next process sends the other records under the same ids."""
    with quiet() as service, Broker() as broker:
        service.set_document(document(5, mine()))
        with Run(service.url, tmp_path, environ=to_hub(broker)) as run:
            run.wait_for(lambda: run.metric("events", event_type="Reboot", event_status="Scheduled") == 1)
            run.process.kill()
            run.process.wait(30)
        service.set_document(document(6, started(mine())))
        with Run(service.url, tmp_path, environ=to_hub(broker)) as run:
            run.wait_for(lambda: run.metric("events", event_type="Reboot", event_status="Started") == 1)
            run.wait_for(lambda: run.metric("outbox_records", destination="event_hubs") == 0)
            assert run.stop() == 0
    bodies = {body["id"]: body for body in (json.loads(each.body) for each in broker.messages(HUB))}
    kinds = [body["type"] for body in bodies.values() if body["subject"] == REBOOT]
    kinds = [kind for kind in kinds if "interruption" not in kind]  # of a busy machine: a real stall
    assert kinds == [f"azure_scheduled_event.{word}.v1" for word in ("scheduled", "approval.decided", "started")]


def test_help_and_version_import_no_output_library() -> None:
    """`--version` and `--help` end with 0 and import none of the outputs' libraries."""
    look = "import sys; from exporter.cli import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass\n"
    look += "assert not {'azure', 'opentelemetry', 'prometheus_client', 'httpx'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_many_scrapers_do_not_slow_the_polls(tmp_path: Path) -> None:
    """While forty clients scrape, the poll interval doesn't change."""
    with quiet() as service, Run(service.url, tmp_path) as run:
        run.wait_for(lambda: run.get("/-/ready").status_code == 200)
        before = len(service.requests)
        over = threading.Event()

        def scrape_on() -> None:
            while not over.is_set():
                run.get("/metrics")

        with ThreadPoolExecutor(8) as pool:
            for _ in range(8):
                pool.submit(scrape_on)
            try:
                until(lambda: len(service.requests) >= before + 6, seconds=30)
            finally:
                over.set()
        assert run.stop() == 0
        assert os.path.getsize(tmp_path / "outbox.db") < 1 << 20


def test_posts_that_hang_delay_neither_polls_nor_other_approvals(tmp_path: Path) -> None:
    """Six events have POSTs without a response: the source stays up without a gap, another event is approved at once,
    and a new hold file stops approvals that aren't sent yet."""
    hold = tmp_path / "hold"
    stuck = [mine(f"stuck-{number}") for number in range(6)]
    with (
        quiet() as service,
        Run(service.url, tmp_path, "--approval.mode=enforce", f"--approval.hold-file={hold}") as run,
    ):
        run.wait_for(lambda: run.metric("up") == 1)
        service.fault("post-hang:60*6")
        service.set_document(document(2, *stuck))
        run.wait_for(lambda: len(service.posts) == 6)
        service.set_document(document(3, *stuck, mine()))
        run.wait_for(lambda: (REBOOT,) in [post.event_ids for post in service.posts])
        hold.touch()
        run.wait_for(lambda: "found=present" in " ".join(run.said("approval.hold_file")))
        sent = len(service.posts)
        run.wait_for(lambda: (run.metric("approval_request_failures_total", reason="timeout") or 0) >= 6)
        assert run.metric("poll_failures_total", reason="timeout") == 0
        assert run.metric("approvals_outdated_total") == 0
        assert len(service.posts) == sent
        assert run.stop() == 0
