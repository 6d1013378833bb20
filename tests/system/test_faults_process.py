"""The fault matrix of disk, network, and process, on the real `run`: without the resource it continues, reports the
fault, approves nothing that it could not record, and recovers completely afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from exporter.simulator.event_hubs.broker import Broker
from exporter.simulator.metadata.service import MetadataService
from tests.support.agent_environment import document, event, queued_in, started
from tests.support.otlp_receiver import Receiver, attributes
from tests.support.peers import need, until
from tests.support.ports import reserved_port
from tests.support.running import Run
from tests.system.test_run import HUB, REBOOT, mine, quiet, to_hub

if sys.platform != "win32":
    import resource

ENFORCE = "--approval.mode=enforce"
UNREACHABLE = "--otlp.endpoint=http://127.0.0.1:9"
HELD = {"decision": "hold", "reason": "outbox-unwritable", "rule": "user-initiated", "event_type": "Reboot"}
REBOOTED = 5
"""Records of a start and a reboot: agent.started, scheduled, approval.decided, approval.accepted, started."""


def namespaced(*script: str) -> tuple[str, ...]:
    """Return the command that runs the agent with its own mounts and, if asked, its own network; skip if not
    permitted."""
    tried = subprocess.run(["unshare", "-rmn", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip("this machine allows no namespaces of one's own")
    return ("unshare", *script)


def on_tmpfs(folder: Path, options: str) -> tuple[str, ...]:
    folder.mkdir()
    return namespaced("-rm", "sh", "-c", f'mount -t tmpfs -o {options} tmpfs "{folder}" && exec "$@"', "sh")


def fill_up(disk: Path) -> None:
    """Fill the disk; removing the file `fill` makes space."""
    with (disk / "fill").open("wb", buffering=0) as fill, contextlib.suppress(OSError):
        while True:
            fill.write(b"x" * 512)


@contextlib.contextmanager
def watched(
    tmp_path: Path, *flags: str, prefix: tuple[str, ...] = (), environ: Mapping[str, str] | None = None
) -> Iterator[tuple[Run, MetadataService]]:
    """Start an agent that has read one document without events."""
    with quiet() as service:
        service.set_document(document(5))
        with Run(service.url, tmp_path, ENFORCE, UNREACHABLE, *flags, prefix=prefix, environ=environ) as run:
            run.wait_for(lambda: run.get("/-/ready").status_code == 200)
            yield run, service


def polls_on(run: Run, service: MetadataService) -> None:
    before = len(service.requests)
    run.wait_for(lambda: len(service.requests) > before + 2)


# -- the disk


@pytest.mark.linux("runs the agent in its own namespaces")
def test_a_full_disk_holds_approvals_and_loses_nothing(tmp_path: Path) -> None:
    """With a full disk it polls and serves, holds with the reason, and logs it once; with space again it approves, and
    no record is missing."""
    disk = tmp_path / "disk"
    flags = (f"--outbox.path={disk}/outbox.db",)
    with watched(tmp_path, *flags, prefix=on_tmpfs(disk, "size=2m")) as (run, service):
        seen = Path(f"/proc/{run.process.pid}/root{disk}")
        fill_up(seen)
        service.set_document(document(6, *(mine(f"{REBOOT[:-2]}{number}") for number in range(10, 40))))
        run.wait_for(lambda: (run.metric("approval_decisions_total", **HELD) or 0) == 30)
        assert not service.posts
        polls_on(run, service)
        assert run.get("/-/healthy").status_code == 200
        assert len(run.said("outbox.unwritable")) == 1
        (seen / "fill").unlink()
        run.wait_for(lambda: len(service.posts) == 30)
        run.wait_for(lambda: bool(run.said("outbox.recovered")))
        # scheduled, held, approved and accepted, thirty times each
        run.wait_for(lambda: (run.metric("outbox_records", destination="otlp") or 0) >= 120)
        assert run.stop() == 0


@pytest.mark.linux("runs the agent in its own namespaces")
def test_a_read_only_disk_holds_approvals(tmp_path: Path) -> None:
    """On a read-only disk it starts, polls, serves, and holds everything."""
    disk = tmp_path / "disk"
    flags = (f"--outbox.path={disk}/outbox.db",)
    with watched(tmp_path, *flags, prefix=on_tmpfs(disk, "ro")) as (run, service):
        service.set_document(document(6, mine()))
        run.wait_for(lambda: run.metric("approval_decisions_total", **HELD) == 1)
        assert not service.posts
        run.wait_for(lambda: any("reason=read-only" in line for line in run.said("outbox.unwritable")))
        assert run.stop() == 0


def test_a_locked_database_delays_approvals(tmp_path: Path) -> None:
    """While another program keeps the database locked, no event is approved and polls continue; then it is approved."""
    with watched(tmp_path) as (run, service):
        with closing(sqlite3.connect(tmp_path / "outbox.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            service.set_document(document(6, mine()))
            run.wait_for(lambda: run.metric("approval_decisions_total", **HELD) == 1)
            polls_on(run, service)
            assert not service.posts
            other.execute("ROLLBACK")
        run.wait_for(lambda: len(service.posts) == 1)
        assert run.stop() == 0


def test_run_ends_in_time_while_the_database_is_locked(tmp_path: Path) -> None:
    """SIGTERM is obeyed while another program keeps the database locked."""
    with (
        watched(tmp_path) as (run, service),
        closing(sqlite3.connect(tmp_path / "outbox.db", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        service.set_document(document(6, mine()))
        run.wait_for(lambda: run.metric("approval_decisions_total", **HELD) == 1)
        assert run.stop() == 0


@pytest.mark.linux("removes a file that is open")
def test_a_removed_or_corrupt_outbox_is_replaced(tmp_path: Path) -> None:
    """After the file is removed or overwritten under the agent, later records are on disk under its name."""
    with watched(tmp_path) as (run, service):
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"outbox.db{suffix}").unlink(missing_ok=True)
        service.set_document(document(6, mine()))
        run.wait_for(lambda: len(service.posts) == 1)
        run.wait_for(lambda: bool(run.said("outbox.note")))
        assert "scheduled" in [record.kind for record in queued_in(tmp_path / "outbox.db", "otlp")]
        (tmp_path / "outbox.db").write_bytes(b"\xff" * 100_000)
        service.set_document(document(7, started(mine())))
        run.wait_for(lambda: run.metric("events", event_type="Reboot", event_status="Started") == 1)
        assert run.stop() == 0
        with Run(service.url, tmp_path, UNREACHABLE) as again:
            again.wait_for(lambda: again.get("/-/ready").status_code == 200)
            assert again.stop() == 0
    assert "agent.started" in [record.kind for record in queued_in(tmp_path / "outbox.db", "otlp")]


@contextlib.contextmanager
def slow_disk(run: Run, seconds: float, recorded: Path) -> Iterator[None]:
    """Delay every fsync of the running agent by this time, with strace, in the block; skip if tracing is not
    permitted."""
    delay = f"inject=fsync,fdatasync:delay_enter={round(seconds * 1e6)}"
    command = [need("strace"), "-f", "-qq", "-I2", f"--output={recorded}", "-e", "trace=fsync,fdatasync", "-e", delay]
    _skip_unless_traced([*command, "--attach"])
    strace = subprocess.Popen([*command, "--attach", str(run.process.pid)])
    try:
        until(lambda: strace.poll() is None and _tracers(run.process.pid) == {strace.pid})
        yield
    finally:
        strace.terminate()
        strace.wait(30)
    assert "DELAYED" in recorded.read_text(), "the disk was never asked to keep anything"


def _skip_unless_traced(command: list[str]) -> None:
    """A kernel may allow only children to be traced (yama), and a container may forbid tracing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as tried:
        strace = subprocess.Popen([*command, str(tried.pid)], stderr=subprocess.DEVNULL)
        until(lambda: strace.poll() is not None or _tracers(tried.pid) == {strace.pid})
        allowed = strace.poll() is None
        strace.terminate()
        strace.wait(30)
        tried.kill()
    if not allowed:
        pytest.skip("this machine does not permit tracing a running process")


def _tracers(pid: int) -> set[int]:
    """Return the ids of the processes that trace the threads of this one; 0 for none."""
    texts = []
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):  # the thread has ended
            texts.append(status.read_text())
    return {int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("TracerPid:")}


@pytest.mark.linux("delays the agent's calls by strace")
def test_a_slow_disk_delays_only_approvals(tmp_path: Path) -> None:
    """With a disk that takes a second for each fsync it approves, polls, serves, and delivers everything once."""
    with quiet() as service, Broker() as broker, Receiver() as collector:
        service.set_document(document(5))
        otlp = f"--otlp.endpoint=http://127.0.0.1:{collector.port}"
        with Run(service.url, tmp_path, ENFORCE, otlp, environ=to_hub(broker)) as run:
            run.wait_for(lambda: run.get("/-/ready").status_code == 200)
            with slow_disk(run, 1.0, tmp_path / "strace"):
                service.set_document(document(6, mine()))
                run.wait_for(lambda: len(service.posts) == 1, 60)
                service.set_document(document(7, started(mine())))
                run.wait_for(lambda: run.metric("events", event_type="Reboot", event_status="Started") == 1, 60)
                polls_on(run, service)
                assert run.get("/-/healthy").status_code == 200
                run.wait_for(lambda: min(len(broker.messages(HUB)), len(collector.logs)) >= REBOOTED, 60)
                run.wait_for(lambda: run.metric("outbox_records", destination="event_hubs") == 0, 60)
                run.wait_for(lambda: run.metric("outbox_records", destination="otlp") == 0, 60)
            assert run.stop() == 0
        assert len(service.posts) == 1
        stored = [str(message.message_id) for message in broker.messages(HUB)]
        logged = [str(attributes(log.attributes)["log.record.uid"]) for _, _, log in collector.logs]
    assert len(set(stored)) == len(stored)
    assert sorted(logged) == sorted(stored)


@pytest.mark.linux("delays the agent's calls by strace")
def test_a_document_that_expires_during_the_write_is_not_approved(tmp_path: Path) -> None:
    """While recording an attempt takes longer than a document stays fresh, it approves nothing, polls, and serves; with
    a fast disk again it approves, once."""
    with watched(tmp_path) as (run, service):
        with slow_disk(run, 5.5, tmp_path / "strace"):
            service.set_document(document(6, mine()))
            run.wait_for(lambda: bool(run.said("approval.postponed")), 60)
            before = len(service.requests)
            run.wait_for(lambda: len(service.requests) > before, 60)  # a poll waits for the last one's commit
            assert run.get("/-/healthy").status_code == 200
            assert not service.posts
        run.wait_for(lambda: len(service.posts) == 1, 60)
        run.wait_for(lambda: "approval.accepted" in [r.kind for r in queued_in(tmp_path / "outbox.db", "otlp")])
        assert run.stop() == 0
        assert len(service.posts) == 1


# -- the network


@pytest.mark.linux("runs the agent in its own namespaces")
@pytest.mark.parametrize(("url", "reason"), [("http://169.254.169.254", "connect"), ("http://metadata.test", "dns")])
def test_run_starts_and_ends_without_a_network(tmp_path: Path, url: str, reason: str) -> None:
    """On a machine without a network it starts, reports what is missing, and ends in time."""
    prefix = namespaced("-rn")
    with Run(url, tmp_path, UNREACHABLE, prefix=prefix) as run:
        run.wait_for(lambda: any(f"reason={reason}" in line for line in run.said("poll.failed")))
        assert run.stop() == 0


# -- the process


@pytest.mark.linux("stops the agent by SIGSTOP")
def test_a_suspended_process_records_a_gap(tmp_path: Path) -> None:
    """After a SIGSTOP that makes a gap in polling, an event that disappeared meanwhile has `ended`; one that disappears
    later, without a gap, is `canceled`."""
    with watched(tmp_path) as (run, service):
        planned = {"NotBefore": "Fri, 01 Jan 2100 00:00:00 GMT", "DurationInSeconds": 60}
        service.set_document(document(6, event("unseen", "Freeze", "vm-1", **planned)))
        run.wait_for(lambda: run.metric("events", event_type="Freeze", event_status="Scheduled") == 1)
        run.process.send_signal(signal.SIGSTOP)
        service.set_document(document(7))
        time.sleep(5.5)  # no state to wait for changes meanwhile
        run.process.send_signal(signal.SIGCONT)
        run.wait_for(lambda: run.metric("events_closed_total", event_type="Freeze", outcome="ended") == 1)
        assert run.get("/-/healthy").status_code == 200
        service.set_document(document(8, event("seen", "Freeze", "vm-1", **planned)))
        run.wait_for(lambda: run.metric("events", event_type="Freeze", event_status="Scheduled") == 1)
        service.set_document(document(9))
        run.wait_for(lambda: run.metric("events_closed_total", event_type="Freeze", outcome="canceled") == 1)
        assert run.metric("events_closed_total", event_type="Freeze", outcome="ended") == 1
        assert run.stop() == 0


@pytest.mark.linux("limits the descriptors of a process")
def test_run_survives_without_free_descriptors(tmp_path: Path) -> None:
    """Without free descriptors it polls over its open connection, and approves once descriptors are free."""
    with watched(tmp_path) as (run, service):
        polls_on(run, service)
        pid = run.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        service.set_document(document(6, mine()))
        polls_on(run, service)
        run.wait_for(lambda: any("reason=connect" in line for line in run.said("approval.postponed")))
        assert not service.posts
        assert "approval.failed" not in [r.kind for r in queued_in(tmp_path / "outbox.db", "otlp")]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        run.wait_for(lambda: len(service.posts) == 1)
        run.wait_for(lambda: run.get("/-/healthy").status_code == 200)
        assert run.stop() == 0


@pytest.mark.linux("needs a device that is always full")
@pytest.mark.parametrize("log", ["full", "closed"])
def test_a_log_that_cannot_be_written_changes_nothing_else(tmp_path: Path, log: str) -> None:
    """A log that accepts nothing, full or closed, changes nothing else."""
    prefix = ("sh", "-c", 'exec "$@" 2>&-', "sh") if log == "closed" else ()
    with quiet() as service, reserved_port() as port, open("/dev/full", "w") as full:
        service.set_document(document(6, mine()))
        with Run(service.url, tmp_path, ENFORCE, listen=f"127.0.0.1:{port}", stderr=full, prefix=prefix) as run:
            until(lambda: len(service.posts) == 1)
            answer = httpx.get(f"http://127.0.0.1:{port}/-/ready", timeout=5, trust_env=False)
            assert answer.status_code == 200
            assert run.stop() == 0
    assert os.path.getsize(tmp_path / "outbox.db") > 0


@pytest.mark.linux("runs the agent in its own namespaces")
def test_lines_lost_on_a_full_log_disk_are_counted(tmp_path: Path) -> None:
    """While the log's disk is full, nothing else changes; with space again it logs the number of missing lines and
    continues with complete ones."""
    disk = tmp_path / "logs"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=64k tmpfs "{disk}" && exec "$@" 2>"{disk}/log"'
    prefix = namespaced("-rm", "sh", "-c", script, "sh")
    with quiet() as service:
        service.set_document(document(5))
        with Run(service.url, tmp_path, ENFORCE, "--log.format=json", prefix=prefix) as run:
            log = Path(f"/proc/{run.process.pid}/root{disk}/log")
            until(lambda: b"agent.started" in (log.read_bytes() if log.exists() else b""))
            fill_up(log.parent)
            service.set_document(document(6, *(mine(f"{REBOOT[:-2]}{number}") for number in range(10, 40))))
            until(lambda: len(service.posts) == 30, seconds=60)
            # A POST does not prove that its lines were tried: another thread writes them, and may be late.
            until(lambda: log.stat().st_size % os.sysconf("SC_PAGESIZE") == 0)
            polls_on(run, service)
            assert b"lines_lost" not in log.read_bytes()
            (log.parent / "fill").unlink()
            service.set_document(document(7))
            until(lambda: b'"ended"' in log.read_bytes())
            lines = log.read_bytes().splitlines()
            assert run.stop() == 0
    torn = [number for number, line in enumerate(lines) if not line.endswith(b"}")]
    assert len(torn) <= 1, "the one that was half written when the disk was full"
    found = [json.loads(line) for number, line in enumerate(lines) if number not in torn]
    (missing,) = [each["lines"] for each in found if each["event"] == "log.lines_lost"]
    recorded = sum(each["event"] in ("scheduled", "approval.decided", "approval.accepted") for each in found)
    assert recorded + missing >= 3 * 30
